"""Entries of runs: append them to the journal or the inbox of a run, and read them.

The writer numbers its entries. In the journal only the owner of the run writes, so it counts on from what it has read.
In the inbox a table compares the number of the newest entry, and a writer that was too slow tries again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import groupby
from operator import attrgetter

from stategraph._values.entries import Entry, due_ns_after, named_by_entry
from stategraph._values.ids import check_given_id
from stategraph.errors import (
    CheckpointCorruptError,
    CheckpointNotFoundError,
    FormatError,
    NotSerializableError,
    StepConflictError,
)
from stategraph.stores._checks import check_taken
from stategraph.stores._rows.loading import read
from stategraph.stores._rows.records import FORMAT, MAX_STEP, Appended, EntryRecord, RunRecord
from stategraph.stores._rows.run_log import Journal, RunLog

_TRIES = 1_000  # attempts at an append while others append to the same inbox
_step_of = attrgetter("step")


def append_to_journal(log: RunLog, run_id: str, entries: Sequence[Entry]) -> list[Entry]:
    """Append entries to the journal of a run, as `CheckpointStore.append`."""
    run, found = _run(log, run_id), list[Entry]()
    for step, of_step in groupby(entries, _step_of):  # the step under way, as a rule
        with log.lock:  # several parts of the step may append at the same time
            journal = _journal(log, run, step)  # stays in use until its entries are written
            numbered = journal.numbered(of_step)
        if not log.write(Appended(run_id, run.incarnation, _records(log, run, numbered))):
            log.forget(run_id)
            reason = f"entries of step {step} were not appended: others have deleted the run, or begun it again"
            raise StepConflictError(run_id, reason)
        found += numbered
    return found


def append_to_inbox(log: RunLog, run_id: str, entries: Sequence[Entry]) -> list[Entry]:
    """Append entries to the inbox of a run, as `CheckpointStore.append`."""
    check_given_id(run_id)
    for _ in range(_TRIES):
        run = log.find(run_id)
        if run is None:
            raise CheckpointNotFoundError(run_id, log.table.store)
        newest, put = log.table.inbox(run_id), list[Entry]()
        found: list[Entry] = []
        for entry in entries:
            there = entry_named(log, run, entry.kind, entry.name) if entry.name else None
            if there is None:
                put.append(entry.numbered(newest + len(put) + 1))
            found.append(there or put[-1])
        check_taken(put, run.summary())
        change = Appended(
            run_id,
            run.incarnation,
            _records(log, run, put),
            newest,
            due_ns=due_ns_after(put),
            may_be_complete=all(entry.kind == "turn" for entry in put),
            # Until an answer is appended, the run must not end its pause.
            version=run.version if any(entry.kind == "answer" for entry in put) else None,
            ownership=None,
        )
        if not put or log.write(change):
            return found
    raise StepConflictError(run_id, "its entries were not appended: others keep appending to the inbox")


def entry_named(log: RunLog, run: RunRecord, kind: str, name: str) -> Entry | None:
    """Return the entry of the inbox of a run that has a kind and a name."""
    record = log.table.entry_named(run.run_id, kind, name)
    return None if record is None else entry_of(log, run, record)


def entries(log: RunLog, run_id: str, step: int | None, kinds: Collection[str] | None, after: int) -> list[Entry]:
    """Return entries of a run, as `CheckpointStore.entries`."""
    first, last = (0, MAX_STEP) if step is None else (step, step)
    try:
        run, records = read(log, run_id, lambda run: (run, log.table.entries(run_id, first, last, after)))
    except CheckpointNotFoundError:
        return []
    return [entry for entry in entries_of(log, run, records) if kinds is None or entry.kind in kinds]


def copied(log: RunLog, run: RunRecord, step: int | None, run_id: str, incarnation: bytes) -> tuple[EntryRecord, ...]:
    """Return copies of the journal of a step, or of all entries, for another run, or to be signed again."""
    records = log.table.entries(run.run_id, *((0, MAX_STEP) if step is None else (step, step)))
    # Checked, because the new seals of copies would hide damage.
    checked = log.sealer.check_entries(run.run_id, records, run.incarnation)
    return tuple(log.sealer.sealed_entry(run_id, record, incarnation) for record in checked)


def cut_journal(log: RunLog, run_id: str, last: int, kinds: Collection[str]) -> None:
    """Remove the entries of the journal of a run up to a step, but not those of some kinds of the step under way."""
    run = log.find(run_id)
    found, left = ((), ()) if run is None else lasting(log, run, last, kinds)
    if run is not None and found:
        log.write(Appended(run_id, run.incarnation, left, cut_journal=last))
        log.forget(run_id)


def lasting(
    log: RunLog, run: RunRecord, last: int, kinds: Collection[str]
) -> tuple[Sequence[EntryRecord], tuple[EntryRecord, ...]]:
    """Return the entries of the journal of a run up to a step, and those of some kinds of the step under way."""
    found = log.table.entries(run.run_id, 1, last)
    return found, tuple(record for record in found if record.kind in kinds and record.step > run.step)


def _run(log: RunLog, run_id: str) -> RunRecord:
    known = log.known.get(run_id)
    run = log.find(run_id) if known is None else known[0]
    if run is None:
        raise CheckpointNotFoundError(run_id, log.table.store)
    return run


def _journal(log: RunLog, run: RunRecord, step: int) -> Journal:
    """Return what is known of the journal of a step, from the table unless this process has written all of it."""
    key = run.incarnation, run.run_id, step
    journal = log.in_use.get(key)  # the table does not have what other threads are writing now
    if journal is None:
        journal = log.journal_of(run.run_id, step)
        if journal is None:
            journal = Journal(step)
            journal.add(entries_of(log, run, log.table.entries(run.run_id, step, step)))
        log.in_use[key] = journal
        log.note_journal(run, journal)
    return journal


# --------------------------------------------------------------------------- records


def _records(log: RunLog, run: RunRecord, numbered: Sequence[Entry]) -> tuple[EntryRecord, ...]:
    return tuple([record_of(log, run.run_id, entry, run.incarnation) for entry in numbered])


def record_of(log: RunLog, run_id: str, entry: Entry, incarnation: bytes) -> EntryRecord:
    """Return the record of an entry.

    Raises:
        NotSerializableError: its value cannot be kept exactly.
    """
    try:
        encoding, payload = log.encoder.encoded([{"value": entry.value}])
    except NotSerializableError as error:
        raise named_by_entry(error, entry, run_id) from error.__cause__
    about = entry.step, entry.seq, entry.kind, entry.place, entry.name, entry.made_of, entry.at_ns, entry.by
    return log.sealer.sealed_entry(run_id, (*about, FORMAT, encoding, payload, b""), incarnation)


def entry_of(log: RunLog, run: RunRecord, record: EntryRecord) -> Entry:
    """Return the entry of a record; raise as `entries_of`."""
    return entries_of(log, run, [record])[0]


def entries_of(log: RunLog, run: RunRecord, records: Sequence[EntryRecord]) -> list[Entry]:
    """Return the entries of records.

    Raises:
        CheckpointCorruptError: one is damaged.
        FormatError: a newer version wrote one, or its value needs what is not registered here.
    """
    run_id = run.run_id
    for record in records:
        if record.format > FORMAT:
            reads = f"this version reads up to {FORMAT}; update it"
            raise FormatError(run_id, f"its entry {record.kind} has format {record.format}; {reads}")
    records = log.sealer.check_entries(run_id, records, run.incarnation)
    try:
        return [
            Entry.as_kept(kind, value, step, place, name, made_of, by, at_ns, seq)
            for (step, seq, kind, place, name, made_of, at_ns, by, _, _, _, _), value in zip(
                records, log.encoder.values(run_id, records), strict=True
            )
        ]
    except ValueError as error:
        raise CheckpointCorruptError(run_id, f"an entry of it is damaged: {error}") from error
