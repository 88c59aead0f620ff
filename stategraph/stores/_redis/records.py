"""Batches, rows and runs as scripts take them and give them back; and runs of all partitions, by their numbers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs

from stategraph._owners.base import Ownership
from stategraph._values.ids import check_stored_id, given_id
from stategraph.errors import CheckpointCorruptError, CheckpointSaveError, InvalidRunIdError
from stategraph.stores._checks import RunFilter
from stategraph.stores._redis.connections import Asked, Nodes
from stategraph.stores._redis.scripts import LIST, REMOVE, SAVE
from stategraph.stores._rows.columns import no_checkpoint, no_run, pack_row, pack_run, unpack_row, unpack_run
from stategraph.stores._rows.records import CheckpointRecord, Removal, RunRecord, Unreadable, Write, WriteBatch

_LARGEST = 512 * 1024 * 1024  # bytes of a value that a server takes, unless it was told otherwise


def script_of(write: Write, nodes: Nodes, store: object) -> Asked:
    """Return the script that makes a write.

    Raises:
        CheckpointSaveError: no Redis can hold it.
    """
    run_id = write.run_id
    if isinstance(write, Removal):
        version = "" if write.version is None else write.version
        return nodes.script(run_id, REMOVE, version, given_id(run_id), *_guard(write.ownership))
    try:
        values = _values(write, nodes)
    except (TypeError, ValueError, CheckpointCorruptError) as error:
        cause = ValueError(str(error))
        cause.__cause__ = error
        raise CheckpointSaveError(run_id, f"the {store} cannot hold it: {error}") from cause
    return Asked(nodes.partition_of(run_id), SAVE, values)


def _guard(ownership: Ownership | None) -> tuple[int, int]:
    """Return what is compared: 0 for nothing, 1 for a fence, 2 for that nobody has the run; and the fence."""
    if ownership is None:
        return 0, 0
    return (1, ownership.fence) if ownership.fence else (2, 0)


def _values(batch: WriteBatch, nodes: Nodes) -> list[Any]:
    run, old, run_id = batch.run, batch.old, batch.run.run_id
    nested = "all" if batch.cut_nested else "parts" if batch.cut_parts else ""
    values: list[Any] = [
        *(run_id, given_id(run_id), *_guard(batch.ownership), batch.outer or b""),
        *(b"" if old is None else _version_of(old), _version_of(run), pack_run(run), run.incarnation),
        *(run.status._value_, run.graph or "", run.parent.run_id if run.parent else ""),
        *(nodes.count, nodes.partition_of(run_id), batch.cut_below),
        *("" if batch.cut_above is None else batch.cut_above, nested),
    ]
    for row in batch.put:
        if len(row.payload) > _LARGEST:
            raise ValueError(f"its data are {len(row.payload)} bytes, and a value of Redis has {_LARGEST} at most")
        about = pack_row(row._replace(payload=b""), None)
        values += row.sequence, b"%d %d %d %d %b" % (row.sequence, row.base, row.step, row.revision, about), row.payload
    return values


def _version_of(run: RunRecord) -> bytes:
    """Return what is compared of a run: its version and its seal, as others may have written as often as was lost."""
    return b"%d %b" % (run.version, run.seal)


def row_of(run_id: str, member: bytes, payload: bytes | None) -> CheckpointRecord:
    """Return a row of a run. Raises CheckpointCorruptError if it is none, or its payload is missing."""
    *numbers, about = member.split(b" ", 4)
    row, _ = unpack_row(run_id, about)
    if numbers != [b"%d" % number for number in (row.sequence, row.base, row.step, row.revision)]:
        raise no_checkpoint(run_id, ValueError(f"it is kept as {numbers}"))
    if payload is None:
        raise CheckpointCorruptError(run_id, f"the data of its checkpoint number {row.sequence} are missing")
    return row._replace(payload=payload)


def newest_of(whole: list[Any], sequence: int) -> list[Any] | None:
    """Return what the script CHAIN finds, of what the script RUN has found; None if another checkpoint is meant."""
    _, record, members, first, payloads = whole
    is_meant = members and members[-1].startswith(b"%d " % sequence)
    return [record, members[first:], payloads] if is_meant and payloads else None


# --------------------------------------------------------------------------- runs

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
