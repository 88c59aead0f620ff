"""Columns: records from the columns of a table and back, and as bytes for tables without columns."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import product
from operator import attrgetter
from types import UnionType
from typing import Any, TypeAlias, get_args, get_type_hints

import ormsgpack

from stategraph._text.shown import shorten
from stategraph._values.ids import check_stored_id
from stategraph._values.provenance import ErrorInfo, Kind, ParentStep, RunStatus
from stategraph.errors import CheckpointCorruptError, InvalidRunIdError
from stategraph.stores._rows.records import CheckpointRecord, RunRecord, Unreadable
from stategraph.stores.base import RetentionPolicy

Labels: TypeAlias = tuple[tuple[str, str], ...]

_STATUS = {status.value: status for status in RunStatus}
_KIND = {kind.value: kind for kind in Kind}
_AT_KIND, _AT_STATUS, _AT_ERROR = map(CheckpointRecord._fields.index, ("kind", "status", "error"))
_AT_NUMBER = RunRecord._fields.index("number")
_NULLABLE = {RunRecord._fields.index(name) for name in ("error", "parent")}
# Errors of reading damaged columns; RecursionError of a text that is nested without end.
_NOT_READ = (TypeError, ValueError, LookupError, AttributeError, RecursionError, OverflowError)


def _types_of(hint: Any) -> tuple[type, ...]:
    """Return the types that a field of a record may have."""
    return get_args(hint) if isinstance(hint, UnionType) else (hint,)


_TYPES_OF_ROWS = frozenset(product(*map(_types_of, get_type_hints(CheckpointRecord).values())))


class Columns:
    """Makes records from the columns of a table.

    Args:
        error, parent, policy, labels: Make these values from their columns, which may be lists or text.
    """

    def __init__(
        self,
        error: Callable[[Any], ErrorInfo],
        parent: Callable[[Any], ParentStep],
        policy: Callable[[Any], RetentionPolicy],
        labels: Callable[[Any], Labels],
    ) -> None:
        readers: dict[str, Callable[[Any], Any]] = {"kind": _KIND.__getitem__, "status": _STATUS.__getitem__}
        readers |= {"error": error, "parent": parent, "policy": policy, "labels": labels}
        self._error = error
        self._of_run = [(RunRecord._fields.index(name), read) for name, read in readers.items()]

    def row(self, run_id: str, found: Sequence[Any]) -> CheckpointRecord:
        """Return the row with these columns; raise CheckpointCorruptError if they are damaged."""
        fields = [*found]
        try:
            fields[_AT_KIND], fields[_AT_STATUS] = _KIND[fields[_AT_KIND]], _STATUS[fields[_AT_STATUS]]
            if fields[_AT_ERROR] is not None:
                fields[_AT_ERROR] = self._error(fields[_AT_ERROR])
        except _NOT_READ as wrong:
            raise no_checkpoint(run_id, wrong) from wrong
        if tuple(map(type, fields)) not in _TYPES_OF_ROWS:
            raise no_checkpoint(run_id, "a column is of another type")
        return tuple.__new__(CheckpointRecord, fields)  # as its constructor does, at every row

    def run(self, run_id: str, found: Sequence[Any], store: object) -> RunRecord:
        """Return the record of a run with these columns; raise CheckpointCorruptError if they are damaged."""
        try:
            check_stored_id(run_id)
        except InvalidRunIdError as error:
            raise no_run(run_id, f"its {error}", store) from error
        fields = [run_id, *found]
        if len(fields) != len(RunRecord._fields):
            raise no_run(run_id, f"it has {len(found)} columns", store)
        at = 0
        try:
            for at, read in self._of_run:
                if fields[at] is not None or at not in _NULLABLE:
                    fields[at] = read(fields[at])
        except _NOT_READ as wrong:
            raise _not_held(at, fields, store) from wrong
        if type(fields[_AT_NUMBER]) is not int:  # all else is sealed
            raise _not_held(_AT_NUMBER, fields, store)
        return tuple.__new__(RunRecord, fields)


def _not_held(at: int, fields: Sequence[Any], store: object) -> CheckpointCorruptError:
    """Return the error for a column of a run with another type of value."""
    return no_run(fields[0], f"its column {RunRecord._fields[at]} holds {shorten(fields[at])}", store)


def no_checkpoint(run_id: str, why: object) -> CheckpointCorruptError:
    """Return the error for damaged columns of a row."""
    return CheckpointCorruptError(run_id, f"its row in the store is no checkpoint: {why}")


def no_run(run_id: object, why: object, store: object) -> CheckpointCorruptError:
    """Return the error for damaged columns of a run."""
    way_out = f"put back a copy of the store, or remove it with store.delete({str(run_id)!r})"
    return CheckpointCorruptError(str(run_id), f"its record in the {store} is no run: {why}; {way_out}")


def labels_of(texts: Sequence[str]) -> Labels:
    """Return the labels in a list of alternating names and values; raise ValueError for anything else."""
    if type(texts) is not list or not all(type(text) is str for text in texts):
        raise ValueError(f"labels are a list of texts, not {shorten(texts)}")
    return tuple(zip(texts[::2], texts[1::2], strict=True))


# --------------------------------------------------------------------------- plain values, and bytes

PLAIN = Columns(
    error=lambda parts: ErrorInfo(*parts),
    parent=lambda parts: ParentStep(*parts),
    policy=lambda parts: RetentionPolicy(*parts),
    labels=labels_of,
)
"""Makes records from plain values, as `plain_row` returns them."""


def plain_row(row: CheckpointRecord) -> dict[str, Any]:
    """Return the columns of a row as plain values, by field."""
    error = None if row.error is None else row.error.parts
    return {**row._asdict(), "kind": row.kind.value, "status": row.status.value, "error": error}


def pack_row(row: CheckpointRecord) -> bytes:
    """Return a row as bytes."""
    return ormsgpack.packb([None, *plain_row(row).values()])  # older versions wrote a number in the first place


def unpack_row(run_id: str, kept: bytes) -> CheckpointRecord:
    """Return the row in these bytes; raise CheckpointCorruptError if they are damaged."""
    try:
        _, *columns = ormsgpack.unpackb(kept)
    except (TypeError, ValueError) as error:
        raise no_checkpoint(run_id, error) from error
    return PLAIN.row(run_id, columns)


def pack_run(run: RunRecord) -> bytes:
    """Return the record of a run as bytes.

    Raises:
        CheckpointCorruptError: its number has more than 64 bits, because the largest that the store holds is damaged.
    """
    error, parent, policy = run.error, run.parent, run.policy
    columns = {
        **run._asdict(),
        "kind": run.kind.value,
        "status": run.status.value,
        "error": None if error is None else error.parts,
        "parent": None if parent is None else [parent.run_id, parent.step],
        "policy": [policy.retention, policy.window, policy.ttl],
        "labels": [text for pair in run.labels for text in pair],
    }
    del columns["run_id"]
    try:
        return ormsgpack.packb([*columns.values()])
    except TypeError as wrong:
        reason = (
            f"it would have number {run.number}, which no run can have: the number of runs in the store is damaged or "
            "forged; put back a copy of the store"
        )
        raise CheckpointCorruptError(run.run_id, reason) from wrong


def unpack_run(run_id: str, kept: bytes, store: object = "store") -> RunRecord:
    """Return the record of a run in these bytes; raise CheckpointCorruptError, which names the store, if they are
    damaged."""
    try:
        columns = [*ormsgpack.unpackb(kept)]
    except (TypeError, ValueError) as error:
        raise no_run(run_id, f"its bytes are none of a run: {error}", store) from error
    return PLAIN.run(run_id, columns, store)


# --------------------------------------------------------------------------- columns of SQL databases


def row_values(row: CheckpointRecord, *, json_as_text: bool) -> tuple[Any, ...]:
    """Return the columns of a row."""
    payload = row.payload.decode() if json_as_text and row.encoding == "json" else row.payload
    return (
        *(row.sequence, row.base, row.step, row.revision, row.kind._value_, row.node, row.time_ns),
        *(row.status._value_, _error_text(row.error), row.by, row.took_ns, row.attempts, row.owner),
        *(row.format, row.encoding, payload, row.seal, row.pause),
    )


lasting_values: Callable[[RunRecord], tuple[Any, ...]] = attrgetter(
    *("revision", "kind", "status", "error", "by", "graph", "parent", "policy", "labels", "pause")
)
"""Returns the fields of a run that most steps leave as they are."""

step_values: Callable[[RunRecord], tuple[Any, ...]] = attrgetter(
    *("version", "sequence", "step", "node", "time_ns", "tip", "seal")
)
"""Returns the fields of a run that every step changes."""


def run_values(run: RunRecord) -> tuple[Any, ...]:
    """Return the columns of a run."""
    parent = None if run.parent is None else f"{run.parent.run_id}!{run.parent.step}"
    labels = json.dumps([text for pair in run.labels for text in pair])
    policy = (run.policy.retention, run.policy.window, run.policy.ttl)
    about = run.revision, run.kind._value_, run.status._value_, _error_text(run.error), run.by, run.graph, parent
    kept = " ".join("-" if part is None else str(part) for part in policy)
    return *step_values(run), *about, kept, labels, run.pause, run.created_ns, run.incarnation


def run_of(found: tuple[Any, ...], store: object) -> RunRecord:
    """Return the record of a run with these columns; raise CheckpointCorruptError if they are damaged."""
    return COLUMNS.run(found[0], found[1:], store)


def run_or_unreadable(found: tuple[Any, ...], store: object) -> RunRecord | Unreadable:
    """Return the record of a run with these columns, or why it cannot be read."""
    try:
        return run_of(found, store)
    except CheckpointCorruptError as error:
        return Unreadable(str(found[0]), found[1], error)


def _parent_of(text: str) -> ParentStep:
    run_id, _, step = text.rpartition("!")
    return ParentStep(run_id, int(step))


def _error_text(error: ErrorInfo | None) -> str | None:
    return None if error is None else json.dumps(error.parts)


@lru_cache  # few are in use
def _policy_of(text: str) -> RetentionPolicy:
    retention, window, ttl = text.split(" ")
    numbers = None if window == "-" else int(window), None if ttl == "-" else float(ttl)
    return RetentionPolicy(retention, *numbers)


COLUMNS = Columns(
    error=lambda text: ErrorInfo(*json.loads(text)),
    parent=_parent_of,
    policy=_policy_of,
    labels=lambda text: () if text == "[]" else labels_of(json.loads(text)),  # few runs have labels
)
"""Makes records from the columns of a SQL database."""
