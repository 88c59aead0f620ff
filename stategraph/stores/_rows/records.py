"""Records: how a durable store keeps a checkpoint, and a run as a whole.

They are converted to the columns of a table and back, and to bytes for tables without columns.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache, partial
from itertools import product
from operator import attrgetter
from types import UnionType
from typing import Any, NamedTuple, TypeAlias, TypeGuard, get_args, get_origin, get_type_hints

import attrs
import ormsgpack

from stategraph._owners.base import Ownership, current
from stategraph._text.shown import shorten
from stategraph._values import clock
from stategraph._values.ids import check_stored_id
from stategraph._values.progress import Pause
from stategraph._values.provenance import ErrorInfo, Facts, Kind, ParentStep, RunStatus, checked_labels, kind_of
from stategraph.errors import CheckpointCorruptError, InvalidRunIdError
from stategraph.stores._checks import row_cursor
from stategraph.stores._codec.states import pause_from_json
from stategraph.stores._codec.type_codecs import DecodeError, unknown_shown
from stategraph.stores._rows.cipher import is_encrypted, needs_key
from stategraph.stores.base import RetentionPolicy
from stategraph.stores.summaries import Summary, as_time

MAX_STEP = 2**32 - 1
"""The last step, and the last sequence number, that a row can have: it shares a 64-bit key with the number of the
run."""

FORMAT = 2
"""The version of the row format, which each row and entry has in its column `format`. Newer formats are refused, older
ones can be read: a payload of any version is decoded in the same way. Since 2 a payload may have edits inside values,
and fields of the progress; see `stategraph.stores._codec.states.changes_between`."""


class CheckpointRecord(NamedTuple):
    """One stored checkpoint: a row. A tuple, because one load makes hundreds of them.

    Attributes:
        sequence: Its number among the rows of its run, in order of time. The first row has the number of its step.
            From row to row it grows by max(1, growth of the step), so sequence >= step, and the difference never
            shrinks.
        base: The sequence number of the snapshot that it builds on; its own, if it is a snapshot.
        step: The step.
        revision: Counts the rows of a step, from 0.
        kind: Why it was saved.
        node: The completed node.
        time_ns: When it was saved; nanoseconds since 1970, UTC.
        status: The status of the run.
        error: The error of a failed run.
        by: The name that the caller gave for this change, if any.
        took_ns: How long its step took, in nanoseconds; None if unknown.
        attempts: The number of attempts at the step.
        owner: The process that wrote it, as "host:pid", if known.
        format: The version of the format of the following fields.
        encoding: The encoding of the payload, such as "msgpack" or "msgpack+zstd".
        payload: The data: all of them in a snapshot, otherwise the changes since the row before.
        seal: A checksum or a signature of all this (see `stategraph.stores._rows.seals.Sealer`).
        pause: The pause of the run, if any, as a str (see `stategraph.stores._codec.states`).
        effects: The keys of the effects of its step, as a list in JSON; None if it had none.
    """

    sequence: int
    base: int
    step: int
    revision: int
    kind: Kind
    node: str
    time_ns: int
    status: RunStatus
    error: ErrorInfo | None
    by: str | None
    took_ns: int | None
    attempts: int
    owner: str | None
    format: int
    encoding: str
    payload: bytes
    seal: bytes = b""
    pause: str | None = None
    effects: str | None = None

    @property
    def is_snapshot(self) -> bool:
        """Whether it holds all data."""
        return self.base == self.sequence

    @property
    def cursor(self) -> str:
        """Its cursor in the history of its run."""
        return row_cursor(self.sequence, self.time_ns)

    @property
    def facts(self) -> Facts | None:
        """The provenance of its State, unless the other fields imply it."""
        is_told = self.kind is kind_of(self.status, self.node)
        if is_told and self.by is None and self.attempts == 1 and self.effects is None:
            return None
        return Facts(self.kind, self.by, self.attempts, _effects_in(self.effects))


class EntryRecord(NamedTuple):
    """One stored entry; see `stategraph._values.entries.Entry`.

    Attributes:
        seal: A checksum or a signature of all this, and of the run.
    """

    step: int
    seq: int
    kind: str
    place: str
    name: str
    made_of: str
    at_ns: int
    by: str | None
    format: int
    encoding: str
    payload: bytes
    seal: bytes = b""


class RunRecord(NamedTuple):
    """A run as a whole. A tuple, because every save makes two of them.

    Attributes:
        run_id: The run.
        number: Counts the runs of a store, in the order in which they began.
        version: Grows with every write to the run. It begins with a random number, so that a deleted run is not
            mistaken for a later run with its id.
        sequence, step, revision, kind, node, time_ns, status, error, by: As in the newest row.
        graph: The graph that runs it.
        parent: The step that it was forked from.
        policy: Its retention policy.
        created_ns: When it began; nanoseconds since 1970, UTC.
        labels: Its labels: pairs, sorted.
        pause: As in the newest row.
        incarnation: Random bytes from the start of the run: no other run with this id has them, here or in another
            store; nested runs share the bytes of their outer run.
        tip: The seal of the newest row: it proves that this row and all rows that it builds on are present and
            unchanged.
        seal: A checksum or a signature of all this but the number, which only gives the order in which runs began, and
            the time at which it is due.
        due_ns: The earliest time at which it can go on by itself, in nanoseconds since 1970; None if it waits for a
            caller. The State decides whether it may: this only finds the run.
    """

    run_id: str
    number: int
    version: int
    sequence: int
    step: int
    revision: int
    kind: Kind
    node: str
    time_ns: int
    status: RunStatus
    error: ErrorInfo | None
    by: str | None
    graph: str | None
    parent: ParentStep | None
    policy: RetentionPolicy
    created_ns: int
    labels: tuple[tuple[str, str], ...]
    pause: str | None = None
    incarnation: bytes = b""
    tip: bytes = b""
    seal: bytes = b""
    due_ns: int | None = None

    @property
    def created(self) -> datetime:
        """When the run began."""
        return clock.to_datetime(self.created_ns)

    @property
    def due(self) -> datetime | None:
        """The time from which on the run can go on by itself."""
        return None if self.due_ns is None else as_time(self.due_ns)

    def summary(self) -> Summary:
        """Return the newest checkpoint of the run without its data."""
        shown = self._summary_of(self, self.created, dict(self.labels), str(self.number), (None, 1, None, None))
        return shown if self.due_ns is None else attrs.evolve(shown, due=self.due)

    def summaries_of(self, rows: Iterable[CheckpointRecord]) -> Iterator[Summary]:
        """Yield checkpoints of the run without their data."""
        created, labels = self.created, checked_labels(dict(self.labels))
        for row in rows:
            took = None if row.took_ns is None else row.took_ns / 1e9
            yield self._summary_of(row, created, labels, row.cursor, (took, row.attempts, row.owner, row.effects))

    def _summary_of(
        self,
        at: RunRecord | CheckpointRecord,
        created: datetime,
        labels: Mapping[str, str],
        cursor: str | None,
        origin: tuple[float | None, int, str | None, str | None],
    ) -> Summary:
        """Return a checkpoint without its data; `origin` is its duration, attempts, owner and effects."""
        took, attempts, owner, effects = origin
        return Summary(
            self.run_id,
            self.graph,
            at.step,
            at.node,
            clock.to_datetime(at.time_ns),
            at.status,
            at.error,
            self.parent,
            cursor,
            None if at.pause is None else self._pause_of(at.pause),
            at.kind,
            at.revision,
            at.by,
            took,
            attempts,
            owner,
            created,
            labels,
            effects=_effects_in(effects),
        )

    def _pause_of(self, kept: str) -> Pause | None:
        if is_encrypted(kept):
            raise needs_key(self.run_id, "its record")
        try:
            with unknown_shown():  # a list of runs does not need the types of their values
                return pause_from_json(kept)
        except DecodeError as error:
            raise CheckpointCorruptError(self.run_id, f"its pause cannot be restored: {error}") from error


def _effects_in(kept: str | None) -> tuple[str, ...]:
    return () if kept is None else tuple(_texts(json.loads(kept)))


of_newest: Callable[[CheckpointRecord], tuple[Any, ...]] = attrgetter(
    "sequence", "step", "revision", "kind", "node", "time_ns", "status", "error", "by"
)
"""Returns the fields that the record of a run copies from its newest row, in the order of the record."""


@attrs.frozen
class _Change:
    """An atomic change of one run.

    Attributes:
        ownership: The owner that makes the change, by default the owner for whom this thread writes. If that has lost
            the run, nothing is written.
    """

    ownership: Ownership | None = attrs.field(factory=partial(getattr, current, "ownership"), kw_only=True)

    @property
    def is_lost(self) -> bool:
        """Whether the owner is known to have lost the run."""
        return self.ownership is not None and self.ownership.is_lost


@attrs.frozen
class WriteBatch(_Change):
    """A change of the record of a run and of its rows.

    Attributes:
        run: The new record of the run.
        old: The record that the run must have now, compared by version; None if the run must not exist.
        put: Rows to add, or to replace rows with the same sequence number.
        cut_below: Remove rows with lower sequence numbers.
        cut_above: Remove rows with higher sequence numbers.
        cut_nested: Remove the nested runs with ids between these.
        outer: The incarnation that the outer run must have now; None if there need not be one.
        cut_parts: Remove all parts of its steps, and those of its nested runs.
        cut_journal: Remove the entries of its journal up to this step.
        taken: Remove the entries of its inbox up to this number, which its new State has taken in. The inbox of a run
            that begins counts on from there.
        entries: Entries that remain of those.
    """

    run: RunRecord
    old: RunRecord | None
    put: tuple[CheckpointRecord, ...] = ()
    cut_below: int = 0
    cut_above: int | None = None
    cut_nested: tuple[str, str] | None = None
    outer: bytes | None = None
    cut_parts: bool = False
    cut_journal: int = 0
    taken: int = 0
    entries: tuple[EntryRecord, ...] = ()

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self.run.run_id


@attrs.frozen
class Removal(_Change):
    """The removal of a run and of all its nested runs.

    Attributes:
        run_id: The id of the run.
        version: The version that it must have. None removes any version, and nested runs even if the run is missing.
    """

    run_id: str
    version: int | None = None


@attrs.frozen
class Appended(_Change):
    """Entries of a run that are added, or removed, without a State.

    Attributes:
        run_id: The id of the run.
        incarnation: The incarnation that it must have.
        put: The entries, which replace others of their names.
        inbox: The number of the newest entry of its inbox before these; None for entries of the journal.
        cut_journal: Remove the entries of its journal up to this step.
        due_ns: The time at which the run is due from now on; None to leave it.
        may_be_complete: Whether a complete run takes the entries.
        version: The version that the run must have; None if any will do.
    """

    run_id: str
    incarnation: bytes
    put: tuple[EntryRecord, ...] = ()
    inbox: int | None = None
    cut_journal: int = 0
    due_ns: int | None = None
    may_be_complete: bool = True
    version: int | None = None


Write: TypeAlias = WriteBatch | Removal | Appended


def known_inbox(write: Write) -> int | None:
    """Return the number of the newest entry of the inbox that a write knows; None if that does not matter.

    A State that completes its run knows what it has taken in: entries that came since have no step to come.
    """
    ownership = write.ownership
    if ownership is None or ownership.inbox is None or write.run_id != ownership.run_id:
        return None
    return write.taken if _completes(write) else ownership.inbox


def required_inbox(write: Write) -> int | None:
    """Return the number of the newest entry that the inbox must have for a write to be made; None for any.

    Such a write completes or removes its run, or decides between the inbox and something else.
    """
    decides = write.ownership is not None and write.ownership.refuses_new_entries
    return known_inbox(write) if decides or isinstance(write, Removal) or _completes(write) else None


def _completes(write: Write) -> TypeGuard[WriteBatch]:
    if not isinstance(write, WriteBatch) or write.run.kind in (Kind.ROLLBACK, Kind.REDACT):  # they end no step
        return False
    return write.run.status is RunStatus.COMPLETED


@attrs.frozen
class Unreadable:
    """Takes the place of a run that a table cannot read.

    Attributes:
        run_id: The run, as far as it is known.
        number: Its number; None if it is unknown.
        error: Why it cannot be read.
    """

    run_id: str
    number: int | None
    error: CheckpointCorruptError


# --------------------------------------------------------------------------- columns

_Convert: TypeAlias = Callable[[Any], Any]

_STATUS = {status.value: status for status in RunStatus}
_KIND = {kind.value: kind for kind in Kind}
_AT_KIND, _AT_STATUS, _AT_ERROR = map(CheckpointRecord._fields.index, ("kind", "status", "error"))
_AT_NUMBER = RunRecord._fields.index("number")
_NULLABLE = ("error", "parent")
NOT_READ = (TypeError, ValueError, LookupError, AttributeError, RecursionError, OverflowError)
"""Errors of reading damaged columns; RecursionError of a text that is nested without end."""


def _types_of(record: type) -> list[tuple[type, ...]]:
    """Return the types that each field of a record may have."""
    hints = get_type_hints(record).values()
    return [get_args(hint) if isinstance(hint, UnionType) else (get_origin(hint) or hint,) for hint in hints]


_TYPES_OF_ROWS = frozenset(product(*_types_of(CheckpointRecord)))
_TYPES_IN_RUN = _types_of(RunRecord)  # once: this evaluates text, as no damaged record makes a store do
_TYPES_OF_RUNS = frozenset(product(*_TYPES_IN_RUN))
"""The types that the fields of a row, or of a run, may have."""
_TYPES_OF_ENTRIES = frozenset(product(*_types_of(EntryRecord)))
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
        if len(fields) == len(CheckpointRecord._fields) - 1:  # of an older version, whose steps had no effects
            fields.append(None)
        try:
            fields[_AT_KIND], fields[_AT_STATUS] = _KIND[fields[_AT_KIND]], _STATUS[fields[_AT_STATUS]]
            if fields[_AT_ERROR] is not None:
                fields[_AT_ERROR] = self._read_error(fields[_AT_ERROR])
            _effects_in(fields[-1])
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
        if len(fields) == len(RunRecord._fields) - 1:  # of an older version, whose runs are never due
            fields.append(None)
        if len(fields) != len(RunRecord._fields):
            raise no_run(run_id, f"it has {len(fields)} columns")
        at = _AT_NUMBER
        try:
            for at, name, _, read in self._of_run:
                if fields[at] is not None or name not in _NULLABLE:
                    fields[at] = read(fields[at])
        except NOT_READ as error:
            raise _not_held(at, found) from error
        if tuple(map(type, fields)) not in _TYPES_OF_RUNS:
            types = zip(map(type, fields), _TYPES_IN_RUN, strict=True)
            raise _not_held(next(at for at, (cls, allowed) in enumerate(types) if cls not in allowed), found)
        run = tuple.__new__(RunRecord, fields)
        if not 0 <= run.step <= run.sequence <= MAX_STEP or run.number < 0:
            raise no_run(
                run_id, f"its number is {run.number}, and its checkpoint number {run.sequence} is of step {run.step}"
            )
        return run


def entries_of(run_id: str, found: Sequence[Sequence[Any]]) -> list[EntryRecord]:
    """Return the entries with these columns; raise CheckpointCorruptError if they are damaged."""
    if not _TYPES_OF_ENTRIES.issuperset([tuple(map(type, columns)) for columns in found]):
        raise CheckpointCorruptError(run_id, "an entry of it in the store is damaged: a column is of another type")
    return [tuple.__new__(EntryRecord, columns) for columns in found]  # as its constructor does


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
    return tuple(zip(_texts(texts)[::2], texts[1::2], strict=True))


def _texts(found: Any) -> list[str]:
    if type(found) is not list or not all(type(text) is str for text in found):
        raise ValueError(f"it holds {shorten(found)}, and no list of texts")
    return found


# --------------------------------------------------------------------------- plain values, and bytes

PLAIN = Columns(
    error=(attrgetter("parts"), lambda parts: ErrorInfo(*parts)),
    parent=(lambda parent: [parent.run_id, parent.step], lambda parts: ParentStep(*parts)),
    policy=(lambda policy: [policy.retention, policy.window, policy.ttl], lambda parts: RetentionPolicy(*parts)),
    labels=(lambda labels: [text for pair in labels for text in pair], _labels_of),
)
"""Converts records to plain values."""


def pack_row(row: CheckpointRecord) -> bytes:
    """Return a row as bytes, without the column of effects if there are none: older versions read that."""
    columns = PLAIN.of_row(row)
    return ormsgpack.packb([None, *(columns[:-1] if row.effects is None else columns)])  # None was once a number


def unpack_row(run_id: str, kept: bytes) -> CheckpointRecord:
    """Return the row in these bytes; raise CheckpointCorruptError if they are damaged."""
    try:
        _, *columns = ormsgpack.unpackb(kept)
    except (TypeError, ValueError) as error:
        raise no_checkpoint(run_id, error) from error
    return PLAIN.row(run_id, columns)


def pack_entry(entry: EntryRecord) -> bytes:
    """Return an entry as bytes."""
    return ormsgpack.packb([*entry])


def unpack_entry(run_id: str, kept: bytes) -> EntryRecord:
    """Return the entry in these bytes; raise CheckpointCorruptError if they are damaged."""
    try:
        return entries_of(run_id, [ormsgpack.unpackb(kept)])[0]
    except (TypeError, ValueError) as error:
        raise CheckpointCorruptError(run_id, f"an entry of it in the store is damaged: {error}") from error


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

ENTRY_COLUMNS = tuple({"by": "by_whom"}.get(field, field) for field in EntryRecord._fields)
"""The columns of an entry."""

_STEP = ("version", "sequence", "step", "node", "time_ns", "pause", "tip", "seal")
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


@lru_cache  # few are in use
def _policy_text(policy: RetentionPolicy) -> str:
    return " ".join("-" if part is None else str(part) for part in (policy.retention, policy.window, policy.ttl))


@lru_cache
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
