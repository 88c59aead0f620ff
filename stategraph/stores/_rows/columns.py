"""Records from the columns that a table holds of them, and as bytes for tables that know no columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import attrs
import ormsgpack

from stategraph._text.shown import shorten
from stategraph._values.provenance import ErrorInfo, Kind, ParentStep, RunStatus
from stategraph.errors import CheckpointCorruptError
from stategraph.stores._rows.records import CheckpointRecord, RunRecord, checked_row, wrong_field_of
from stategraph.stores.base import RetentionPolicy

_STATUS = {status.value: status for status in RunStatus}
_KIND = {kind.value: kind for kind in Kind}
_AT_KIND, _AT_STATUS, _AT_ERROR = map(CheckpointRecord._fields.index, ("kind", "status", "error"))
_OF_KIND, _OF_STATUS, _OF_ERROR, _OF_PARENT, _OF_POLICY, _OF_LABELS = map(
    RunRecord._fields.index, ("kind", "status", "error", "parent", "policy", "labels")
)
# What comes of reading what nobody wrote; RecursionError of a text that is nested without end.
_NOT_READ = (TypeError, ValueError, LookupError, AttributeError, RecursionError, OverflowError)


@attrs.frozen
class Columns:
    """Reads the records of a table, which writes an error, a parent and a policy in its own way: as lists, or as text.

    Args:
        error, parent, policy, labels: Make them of what the table holds for them.
    """

    error: Callable[[Any], ErrorInfo]
    parent: Callable[[Any], ParentStep]
    policy: Callable[[Any], RetentionPolicy]
    labels: Callable[[Any], Labels]

    def row(self, run_id: str, found: Sequence[Any]) -> CheckpointRecord:
        """Return the row in these columns. Raises CheckpointCorruptError if they hold none."""
        fields = [*found]
        try:
            fields[_AT_KIND], fields[_AT_STATUS] = _KIND[fields[_AT_KIND]], _STATUS[fields[_AT_STATUS]]
            if fields[_AT_ERROR] is not None:
                fields[_AT_ERROR] = self.error(fields[_AT_ERROR])
        except _NOT_READ as wrong:
            raise no_checkpoint(run_id, wrong) from wrong
        return checked_row(run_id, tuple.__new__(CheckpointRecord, fields))  # as its constructor does, at every row

    def run(self, run_id: str, found: Sequence[Any], store: object) -> RunRecord:
        """Return the run in these columns. Raises CheckpointCorruptError, which names the store, if they hold none."""
        fields = [run_id, *found]
        try:
            if len(fields) != len(RunRecord._fields):
                raise ValueError(f"{len(found)} columns")
            fields[_OF_KIND], fields[_OF_STATUS] = _KIND[fields[_OF_KIND]], _STATUS[fields[_OF_STATUS]]
            fields[_OF_POLICY], fields[_OF_LABELS] = self.policy(fields[_OF_POLICY]), self.labels(fields[_OF_LABELS])
            if fields[_OF_ERROR] is not None:
                fields[_OF_ERROR] = self.error(fields[_OF_ERROR])
            if fields[_OF_PARENT] is not None:
                fields[_OF_PARENT] = self.parent(fields[_OF_PARENT])
        except _NOT_READ as wrong:
            raise no_run(run_id, self._unread(found), store) from wrong
        run = tuple.__new__(RunRecord, fields)
        wrong_field = wrong_field_of(run)
        if wrong_field is not None:
            raise no_run(run_id, _held(wrong_field, getattr(run, wrong_field)), store)
        return run

    def _unread(self, found: Sequence[Any]) -> str:
        """Say which of these columns of a run cannot be read."""
        if len(found) != len(_OF_RUN):
            return f"it has {len(found)} columns, and not {len(_OF_RUN)}"
        readers = {"status": _STATUS.__getitem__, "error": self.error, "parent": self.parent, "policy": self.policy}
        readers |= {"kind": _KIND.__getitem__, "labels": self.labels}
        for name, value in zip(_OF_RUN, found, strict=True):
            if name in readers and (value is not None or name in _NEVER_MISSING):
                try:
                    readers[name](value)
                except _NOT_READ:
                    return _held(name, value)
        return "its columns cannot be read"


_OF_RUN = (
    *("number", "version", "sequence", "step", "revision", "kind", "checkpoint_node", "timestamp_ns", "status"),
    *("error", "by_whom", "graph", "parent", "policy", "created_ns", "labels", "pause", "incarnation", "tip", "seal"),
)
_NEVER_MISSING = ("kind", "status", "policy", "labels")
_COLUMN_NAMES = {"node": "checkpoint_node", "time_ns": "timestamp_ns", "by": "by_whom"}  # of fields that have others


def _held(name: str, value: object) -> str:
    return f"its column {_COLUMN_NAMES.get(name, name)} holds {shorten(value)}"


def no_checkpoint(run_id: str, error: Exception) -> CheckpointCorruptError:
    """Return the error for columns that cannot be read as a row."""
    return CheckpointCorruptError(run_id, f"what the store holds for it is no checkpoint: {error}")


def no_run(run_id: object, why: object, store: object) -> CheckpointCorruptError:
    """Return the error for columns that cannot be read as a run."""
    way_out = f"put back a copy of the store, or remove it with store.delete({str(run_id)!r})"
    return CheckpointCorruptError(str(run_id), f"what the {store} holds for it is no run: {why}; {way_out}")


Labels: TypeAlias = tuple[tuple[str, str], ...]


def labels_of(texts: Sequence[str]) -> Labels:
    """Return the labels that these texts are: names and values by turns. Raises ValueError if they are none."""
    if texts == []:  # as of most runs
        return ()
    if type(texts) is not list or not all(type(text) is str for text in texts):
        raise ValueError(f"labels are a list of texts, not {shorten(texts)}")
    return tuple(zip(texts[::2], texts[1::2], strict=True))


# --------------------------------------------------------------------------- bytes

_PACKED = Columns(
    error=lambda parts: ErrorInfo(*parts),
    parent=lambda parts: ParentStep(*parts),
    policy=lambda parts: RetentionPolicy(*parts),
    labels=labels_of,
)


def pack_row(row: CheckpointRecord, previous: int | None) -> bytes:
    """Return a row as bytes, together with the sequence number of the row before it in its run."""
    return ormsgpack.packb(
        [
            *(previous, row.sequence, row.base, row.step, row.revision, row.kind.value, row.node, row.time_ns),
            *(row.status.value, _error_parts(row.error), row.by, row.took_ns, row.attempts, row.owner),
            *(row.format, row.encoding, row.payload, row.seal, row.pause),
        ]
    )


def unpack_row(run_id: str, kept: bytes) -> tuple[CheckpointRecord, int | None]:
    """Return the row in these bytes, and the sequence number of the row before it.

    Raises:
        CheckpointCorruptError: they hold none.
    """
    try:
        previous, *columns = ormsgpack.unpackb(kept)
    except (TypeError, ValueError) as error:
        raise no_checkpoint(run_id, error) from error
    return _PACKED.row(run_id, columns), previous


def pack_run(run: RunRecord) -> bytes:
    """Return the record of a run as bytes.

    Raises:
        CheckpointCorruptError: its number has more than 64 bits, because the largest that the store holds is damaged.
    """
    parent, policy = run.parent, run.policy
    columns = [
        *(run.number, run.version, run.sequence, run.step, run.revision, run.kind.value, run.node, run.time_ns),
        *(run.status.value, _error_parts(run.error), run.by, run.graph),
        *(None if parent is None else [parent.run_id, parent.step], [policy.retention, policy.window, policy.ttl]),
        *(run.created_ns, [text for pair in run.labels for text in pair], run.pause),
        *(run.incarnation, run.tip, run.seal),
    ]
    try:
        return ormsgpack.packb(columns)
    except TypeError as error:
        reason = (
            f"it would have number {run.number} among the runs of its store, which no run can have: what the store "
            "holds as the number of its runs is damaged or forged; put back a copy of it"
        )
        raise CheckpointCorruptError(run.run_id, reason) from error


def unpack_run(run_id: str, kept: bytes, store: object = "store") -> RunRecord:
    """Return the record of a run in these bytes.

    Raises:
        CheckpointCorruptError: they hold none; the error names the store.
    """
    try:
        columns = list(ormsgpack.unpackb(kept))
    except (TypeError, ValueError) as error:
        raise no_run(run_id, f"its bytes are none of a run: {error}", store) from error
    return _PACKED.run(run_id, columns, store)


def _error_parts(error: ErrorInfo | None) -> list[str] | None:
    return None if error is None else error.parts
