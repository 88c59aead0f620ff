"""Runs of all partitions, in the order of their numbers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs

from stategraph._values.ids import check_stored_id
from stategraph.errors import CheckpointCorruptError, InvalidRunIdError
from stategraph.stores._checks import RunFilter
from stategraph.stores._redis.connections import Asked
from stategraph.stores._redis.scripts import LIST
from stategraph.stores._rows.columns import no_run, unpack_run
from stategraph.stores._rows.records import RunRecord, Unreadable

_PAGE = 500  # runs of a partition that are asked for at a time, however many there are
_SPARE = 4  # more than its share, as runs are not spread evenly


@attrs.define(eq=False)
class _Source:
    """Runs of one partition.

    Attributes:
        partition: The partition.
        key: By what they are found.
        next: From where to go on; empty at the end.
        found: Those that were read, and not given out yet.
    """

    partition: int
    key: str
    next: str
    found: deque[RunRecord | Unreadable] = attrs.field(factory=deque)


def runs(
    ask: Callable[[Sequence[Asked]], list[Any]],
    partitions: int,
    which: RunFilter,
    limit: int,
    before: int | None,
    store: object,
) -> Iterator[RunRecord | Unreadable]:
    """Yield runs, the highest number first.

    Args:
        ask: Asks the server for several things at once.
        partitions: How many there are.
        which: Runs that are asked for, as `Table.runs`.
        limit: How many, if not all; a negative number if all.
        before: Only runs with a number below this one.
        store: The store, as errors name it.
    """
    wanted = [None if value is None else f"={value}" for value in (which.status, which.graph, which.parent)]
    values = [*(value or "" for value in wanted), which.prefix or ""]
    if not all(_is_text(value) for value in values):
        return
    first = "+inf" if before is None else f"({before}"
    keys = (
        [":runs", ":within"] if which.parent is not None else [f":status:{which.status}" if which.status else ":runs"]
    )
    sources = [_Source(partition, key, first) for key in keys for partition in range(partitions)]
    share = _PAGE if limit < 0 else min(_PAGE, limit // len(sources) + _SPARE)
    while True:
        empty = [source for source in sources if not source.found and source.next]
        if empty:
            asked = [Asked(one.partition, LIST, (one.key, one.next, share, *values)) for one in empty]
            for source, (further, *found) in zip(empty, ask(asked), strict=True):
                source.next = further.decode()
                columns = zip(found[::3], found[1::3], found[2::3], strict=True)
                source.found.extend(
                    run_or_unreadable(store, key.decode(errors="surrogateescape"), *kept) for key, *kept in columns
                )
            continue
        left = [source for source in sources if source.found]
        if not left:
            return
        yield max(left, key=lambda source: source.found[0].number or 0).found.popleft()


def run_or_unreadable(store: object, run_id: str, number: bytes | None, record: bytes | None) -> RunRecord | Unreadable:
    """Return the run that was found under an id, or why it cannot be read."""
    try:
        return found_run(store, run_id, number, record)
    except CheckpointCorruptError as error:
        return Unreadable(run_id, _number_of(number), error)


def found_run(store: object, run_id: str, number: bytes | None, record: bytes | None) -> RunRecord:
    """Return the run in this record. Raises CheckpointCorruptError, which names the store, if it holds none."""
    try:
        check_stored_id(run_id)
    except InvalidRunIdError as error:
        raise no_run(run_id, f"its key {error}", store) from error
    if record is None:
        raise no_run(run_id, "its record is missing", store)
    counted = _number_of(number)
    if counted is None:
        raise no_run(run_id, f"its number is {number!r}", store)
    return unpack_run(run_id, record, store)._replace(number=counted)


def _number_of(text: bytes | None) -> int | None:
    try:
        number = int(float(text or b""))
    except (ValueError, OverflowError):
        return None
    return number if 0 < number < 2**53 else None


def _is_text(value: str) -> bool:
    """Return whether a text can be stored: all but those that no UTF-8 can hold."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
