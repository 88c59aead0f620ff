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

_Convert: TypeAlias = Callable[[Any], Any]

_STATUS = {status.value: status for status in RunStatus}
_KIND = {kind.value: kind for kind in Kind}
_AT_KIND, _AT_STATUS, _AT_ERROR = map(CheckpointRecord._fields.index, ("kind", "status", "error"))
_AT_NUMBER = RunRecord._fields.index("number")
_NULLABLE = ("error", "parent")
NOT_READ = (TypeError, ValueError, LookupError, AttributeError, RecursionError, OverflowError)
"""Errors of reading damaged columns; RecursionError of a text that is nested without end."""


def _types_of(hint: Any) -> tuple[type, ...]:
    """Return the types that a field of a record may have."""
    return get_args(hint) if isinstance(hint, UnionType) else (hint,)


_TYPES_OF_ROWS = frozenset(product(*map(_types_of, get_type_hints(CheckpointRecord).values())))
_value: _Convert = attrgetter("_value_")


class Columns:
    """Converts records to the columns of a table and back. The columns are in the order of the fields.

    Args:
        error, parent, policy, labels: The functions that convert these fields to a column, and back.
    """

    def __init__(self, **functions: tuple[_Convert, _Convert]) -> None:
        functions |= {"kind": (_value, _KIND.__getitem__), "status": (_value, _STATUS.__getitem__)}
        self._write_error, self._read_error = functions["error"]
        self._of_run = [(at, name, *functions[name]) for at, name in enumerate(RunRecord._fields) if name in functions]

    def of_row(self, row: CheckpointRecord) -> list[Any]:
        """Return the columns of a row."""
        columns = [*row]
        columns[_AT_KIND], columns[_AT_STATUS] = row.kind._value_, row.status._value_
        if row.error is not None:
            columns[_AT_ERROR] = self._write_error(row.error)
        return columns

    def of_run(self, run: RunRecord) -> list[Any]:
        """Return the columns of a run."""
        columns = [*run]
        for at, _, write, _ in self._of_run:
            if columns[at] is not None:
                columns[at] = write(columns[at])
        return columns

    def row(self, run_id: str, found: Sequence[Any]) -> CheckpointRecord:
        """Return the row with these columns; raise CheckpointCorruptError if they are damaged."""
        fields = [*found]
        try:
            fields[_AT_KIND], fields[_AT_STATUS] = _KIND[fields[_AT_KIND]], _STATUS[fields[_AT_STATUS]]
            if fields[_AT_ERROR] is not None:
                fields[_AT_ERROR] = self._read_error(fields[_AT_ERROR])
        except NOT_READ as wrong:
            raise no_checkpoint(run_id, wrong) from wrong
        if tuple(map(type, fields)) not in _TYPES_OF_ROWS:
            raise no_checkpoint(run_id, "a column is of another type")
        return tuple.__new__(CheckpointRecord, fields)  # as its constructor does, at every row

    def run(self, found: Sequence[Any]) -> RunRecord:
        """Return the run with these columns; raise CheckpointCorruptError if they are damaged."""
        fields = [*found]
        run_id = fields[0]
        try:
            check_stored_id(run_id)
        except InvalidRunIdError as error:
            raise no_run(run_id, f"its {error}") from error
        if len(fields) != len(RunRecord._fields):
            raise no_run(run_id, f"it has {len(fields)} columns")
        at = _AT_NUMBER
        try:
            for at, name, _, read in self._of_run:
                if fields[at] is not None or name not in _NULLABLE:
                    fields[at] = read(fields[at])
        except NOT_READ as error:
            raise _not_held(at, found) from error
        if type(fields[_AT_NUMBER]) is not int:  # all else is sealed
            raise _not_held(_AT_NUMBER, found)
        return tuple.__new__(RunRecord, fields)


def _not_held(at: int, found: Sequence[Any]) -> CheckpointCorruptError:
    """Return the error for a column of a run with another type of value."""
    return no_run(found[0], f"its column {RunRecord._fields[at]} holds {shorten(found[at])}")


def no_checkpoint(run_id: str, why: object) -> CheckpointCorruptError:
    """Return the error for damaged columns of a row."""
    return CheckpointCorruptError(run_id, f"its row in the store is no checkpoint: {why}")


def no_run(run_id: object, why: object) -> CheckpointCorruptError:
    """Return the error for damaged columns of a run."""
    way_out = f"put back a copy of the store, or remove it with store.delete({str(run_id)!r})"
    return CheckpointCorruptError(str(run_id), f"its record in the store is no run: {why}; {way_out}")


def _labels_of(texts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return the labels in a list of alternating names and values; raise ValueError for anything else."""
    if type(texts) is not list or not all(type(text) is str for text in texts):
        raise ValueError(f"labels are a list of texts, not {shorten(texts)}")
    return tuple(zip(texts[::2], texts[1::2], strict=True))


# --------------------------------------------------------------------------- plain values, and bytes

PLAIN = Columns(
    error=(attrgetter("parts"), lambda parts: ErrorInfo(*parts)),
    parent=(lambda parent: [parent.run_id, parent.step], lambda parts: ParentStep(*parts)),
    policy=(lambda policy: [policy.retention, policy.window, policy.ttl], lambda parts: RetentionPolicy(*parts)),
    labels=(lambda labels: [text for pair in labels for text in pair], _labels_of),
)
"""Converts records to plain values."""


def pack_row(row: CheckpointRecord) -> bytes:
    """Return a row as bytes."""
    return ormsgpack.packb([None, *PLAIN.of_row(row)])  # older versions wrote a number in the first place


def unpack_row(run_id: str, kept: bytes) -> CheckpointRecord:
    """Return the row in these bytes; raise CheckpointCorruptError if they are damaged."""
    try:
        _, *columns = ormsgpack.unpackb(kept)
    except (TypeError, ValueError) as error:
        raise no_checkpoint(run_id, error) from error
    return PLAIN.row(run_id, columns)


def pack_run(run: RunRecord) -> bytes:
    """Return the record of a run as bytes, without its id."""
    return ormsgpack.packb(PLAIN.of_run(run)[1:])


def unpack_run(run_id: str, kept: bytes) -> RunRecord:
    """Return the record of a run in these bytes; raise CheckpointCorruptError if they are damaged."""
    try:
        columns = [run_id, *ormsgpack.unpackb(kept)]
    except (TypeError, ValueError) as error:
        raise no_run(run_id, f"its bytes are none of a run: {error}") from error
    return PLAIN.run(columns)


# --------------------------------------------------------------------------- columns of SQL databases

_NAMES = {"node": "checkpoint_node", "time_ns": "timestamp_ns", "by": "by_whom"}


def _names_of(fields: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the columns of some fields."""
    return tuple(_NAMES.get(field, field) for field in fields)


ROW_COLUMNS = _names_of(CheckpointRecord._fields)
"""The columns of a row. Its sequence number is part of its key."""

RUN_COLUMNS = _names_of(RunRecord._fields)
"""The columns of a run."""

_STEP = ("version", "sequence", "step", "node", "time_ns", "tip", "seal")
STEP_COLUMNS = _names_of(_STEP)
"""The columns of a run that every step changes."""

step_values: Callable[[RunRecord], tuple[Any, ...]] = attrgetter(*_STEP)
"""Returns the values of these columns."""

_FIXED = ("run_id", "number", "created_ns", "incarnation")
lasting_values: Callable[[RunRecord], tuple[Any, ...]] = attrgetter(
    *(field for field in RunRecord._fields if field not in _STEP + _FIXED)
)
"""Returns the fields of a run that most steps leave as they are."""


def run_or_unreadable(found: Sequence[Any]) -> RunRecord | Unreadable:
    """Return the record of a run with these columns, or why it cannot be read."""
    try:
        return COLUMNS.run(found)
    except CheckpointCorruptError as error:
        return Unreadable(str(found[0]), found[1], error)


def _parent_of(text: str) -> ParentStep:
    run_id, _, step = text.rpartition("!")
    return ParentStep(run_id, int(step))


def _policy_text(policy: RetentionPolicy) -> str:
    return " ".join("-" if part is None else str(part) for part in (policy.retention, policy.window, policy.ttl))


@lru_cache  # few are in use
def _policy_of(text: str) -> RetentionPolicy:
    retention, window, ttl = text.split(" ")
    return RetentionPolicy(retention, None if window == "-" else int(window), None if ttl == "-" else float(ttl))


COLUMNS = Columns(
    error=(lambda error: json.dumps(error.parts), lambda text: ErrorInfo(*json.loads(text))),
    parent=(lambda parent: f"{parent.run_id}!{parent.step}", _parent_of),
    policy=(_policy_text, _policy_of),
    labels=(
        lambda labels: json.dumps([text for pair in labels for text in pair]),
        lambda text: () if text == "[]" else _labels_of(json.loads(text)),  # few runs have labels
    ),
)
"""Converts records to the columns of a SQL database."""
