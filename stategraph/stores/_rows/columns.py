"""Records from the columns that a table holds of them, and as bytes for tables that know no columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from types import UnionType
from typing import Any, TypeAlias, get_args, get_type_hints

import ormsgpack

from stategraph._text.shown import shorten
from stategraph._values.provenance import ErrorInfo, Kind, ParentStep, RunStatus
from stategraph.errors import CheckpointCorruptError
from stategraph.stores._rows.records import CheckpointRecord, RunRecord
from stategraph.stores.base import RetentionPolicy

Labels: TypeAlias = tuple[tuple[str, str], ...]

_STATUS = {status.value: status for status in RunStatus}
_KIND = {kind.value: kind for kind in Kind}
_AT_KIND, _AT_STATUS, _AT_ERROR = map(CheckpointRecord._fields.index, ("kind", "status", "error"))
_AT_NUMBER = RunRecord._fields.index("number")
# Errors of reading damaged columns; RecursionError of a text that is nested without end.
_NOT_READ = (TypeError, ValueError, LookupError, AttributeError, RecursionError, OverflowError)


def _types_of(hint: Any) -> tuple[type, ...]:
    """Return the types that a field of a record may have."""
    return get_args(hint) if isinstance(hint, UnionType) else (hint,)


_TYPES_OF_ROWS = frozenset(product(*map(_types_of, get_type_hints(CheckpointRecord).values())))


class Columns:
    """Reads the records of a table, which writes an error, a parent and a policy in its own way: as lists, or as text.

    Args:
        error, parent, policy, labels: Make them of what the table holds for them.
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
        """Return the row in these columns. Raises CheckpointCorruptError if they hold none."""
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
        """Return the run in these columns. Raises CheckpointCorruptError, which names the store, if they hold none."""
        fields = [run_id, *found]
        if len(fields) != len(RunRecord._fields):
            raise no_run(run_id, f"it has {len(found)} columns", store)
        at = 0
        try:
            for at, read in self._of_run:
                if fields[at] is not None:
                    fields[at] = read(fields[at])
        except _NOT_READ as wrong:
            raise _not_held(at, fields, store) from wrong
        if type(fields[_AT_NUMBER]) is not int:  # all else is sealed
            raise _not_held(_AT_NUMBER, fields, store)
        return tuple.__new__(RunRecord, fields)


def _not_held(at: int, fields: Sequence[Any], store: object) -> CheckpointCorruptError:
    """Return the error for a column of a run that holds something else."""
    return no_run(fields[0], f"its column {RunRecord._fields[at]} holds {shorten(fields[at])}", store)


def no_checkpoint(run_id: str, why: object) -> CheckpointCorruptError:
    """Return the error for columns that cannot be read as a row."""
    return CheckpointCorruptError(run_id, f"what the store holds for it is no checkpoint: {why}")


def no_run(run_id: object, why: object, store: object) -> CheckpointCorruptError:
    """Return the error for columns that cannot be read as a run."""
    way_out = f"put back a copy of the store, or remove it with store.delete({str(run_id)!r})"
    return CheckpointCorruptError(str(run_id), f"what the {store} holds for it is no run: {why}; {way_out}")


def labels_of(texts: Sequence[str]) -> Labels:
    """Return the labels that these texts are: names and values by turns. Raises ValueError if they are none."""
    if texts == []:  # as of most runs
        return ()
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
"""Makes records of plain values, such as `plain_row` returns."""


def plain_row(row: CheckpointRecord) -> dict[str, Any]:
    """Return the columns of a row as plain values, by the names of its fields."""
    error = None if row.error is None else row.error.parts
    return {**row._asdict(), "kind": row.kind.value, "status": row.status.value, "error": error}


def pack_row(row: CheckpointRecord, previous: int | None) -> bytes:
    """Return a row as bytes, together with the sequence number of the row before it in its run."""
    return ormsgpack.packb([previous, *plain_row(row).values()])


def unpack_row(run_id: str, kept: bytes) -> tuple[CheckpointRecord, int | None]:
    """Return the row in these bytes, and the sequence number of the row before it.

    Raises:
        CheckpointCorruptError: they hold none.
    """
    try:
        previous, *columns = ormsgpack.unpackb(kept)
    except (TypeError, ValueError) as error:
        raise no_checkpoint(run_id, error) from error
    return PLAIN.row(run_id, columns), previous


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
            f"it would have number {run.number} among the runs of its store, which no run can have: what the store "
            "holds as the number of its runs is damaged or forged; put back a copy of it"
        )
        raise CheckpointCorruptError(run.run_id, reason) from wrong


def unpack_run(run_id: str, kept: bytes, store: object = "store") -> RunRecord:
    """Return the record of a run in these bytes.

    Raises:
        CheckpointCorruptError: they hold none; the error names the store.
    """
    try:
        columns = [*ormsgpack.unpackb(kept)]
    except (TypeError, ValueError) as error:
        raise no_run(run_id, f"its bytes are none of a run: {error}", store) from error
    return PLAIN.run(run_id, columns, store)
