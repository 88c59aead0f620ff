"""Export of runs as lines of JSON, with their histories and nested runs; and import of such lines.

A line is a run or one of its checkpoints; the page "Command line" describes it. Seals are left out, because they bind a
record to its store. Imported records get seals of their new store.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from itertools import groupby, pairwise
from typing import Any

import attrs

from stategraph._owners.base import OwnableStore, new_incarnation, owned
from stategraph._text.shown import shorten
from stategraph._values.entries import Entry
from stategraph._values.ids import check_stored_id, given_id
from stategraph._values.provenance import ParentStep, check_step
from stategraph.errors import CheckpointCorruptError, ConfigError, FormatError, NotSerializableError, RunExistsError
from stategraph.stores._codec.states import without_edits
from stategraph.stores._codec.type_codecs import expect_list, unknown_shown
from stategraph.stores._rows.cipher import Cipher, needs_key
from stategraph.stores._rows.entries import entry_of, record_of
from stategraph.stores._rows.loading import chains, read, visible
from stategraph.stores._rows.nested import begin_runs
from stategraph.stores._rows.records import (
    FORMAT,
    MAX_STEP,
    NOT_READ,
    PLAIN,
    CheckpointRecord,
    EntryRecord,
    RunRecord,
    WriteBatch,
    of_newest,
)
from stategraph.stores._rows.run_log import RunLog
from stategraph.stores.base import RetentionPolicy
from stategraph.stores.serializers import from_plain, plain

_NAMES = {"time_ns": "timestamp_ns"}  # fields with another name in lines
_LEFT_OUT = ("format", "encoding", "payload", "seal")


# --------------------------------------------------------------------------- to lines


def exported(log: RunLog, run_id: str, whole: bool = False) -> Iterator[str]:
    """Yield the lines of a run and of its nested runs; with `whole`, those of nested runs have no edits.

    Raises:
        CheckpointNotFoundError: there is no such run.
        CheckpointCorruptError, FormatError, ConfigError: as `CheckpointStore.load`.
    """
    # Not those that were removed at the same time, or remain of a deleted run.
    nested = [nested_id for nested_id in log.table.nested_ids(run_id) if log.find(nested_id) is not None]
    yield from read(log, run_id, lambda run: _lines(log, run, len(nested)))
    for nested_id in nested:
        yield from read(log, nested_id, lambda run: _lines(log, run, 0, whole))


def _lines(log: RunLog, run: RunRecord, nested: int, whole: bool = False) -> list[str] | None:
    """Return the lines of a run; None if others remove it at the same time."""
    with unknown_shown():  # values of unknown types are written in their stored form
        lines: list[str] = []
        for chain in chains(log, run, visible(log, run)):
            try:
                lines += [*_chain_lines(log, run, chain, whole)]
            except NotSerializableError:  # an edit nests values a little deeper than a State may
                lines += _chain_lines(log, run, chain, whole=True)
        if not lines:
            return None
        entries = [_entry_line(log, run, record) for record in log.table.entries(run.run_id, 0, MAX_STEP)]
        counts = {"checkpoints": len(lines), "nested": nested}
        if entries:
            counts["entries"] = len(entries)
        return [written(_run_line(run, log.table.inbox(run.run_id)) | counts), *lines, *entries]


def _run_line(run: RunRecord, inbox: int) -> dict[str, Any]:
    more = {"inbox": inbox, "due_ns": run.due_ns}
    return {
        "type": "run",
        "format": FORMAT,
        "run_id": run.run_id,
        "graph": run.graph,
        "status": run.status.value,
        "parent": None if run.parent is None else [run.parent.run_id, run.parent.step],
        "labels": dict(run.labels),
        "created_ns": run.created_ns,
        **attrs.asdict(run.policy),
        **{name: value for name, value in more.items() if value},
    }


def _entry_line(log: RunLog, run: RunRecord, record: EntryRecord) -> str:
    entry = attrs.asdict(entry_of(log, run, record), recurse=False)
    return written({"type": "entry", "run_id": run.run_id, **entry, "value": plain(entry["value"])})


def _chain_lines(log: RunLog, run: RunRecord, chain: list[CheckpointRecord], whole: bool) -> Iterator[str]:
    decoded = log.encoder.parts(run.run_id, chain, run.incarnation)
    deltas = [parts for _, parts in decoded]
    for (row, _), parts in zip(decoded, without_edits(deltas) if whole else deltas, strict=True):
        columns = dict(zip(row._fields, PLAIN.of_row(row), strict=True))
        columns["pause"] = None if row.pause is None else json.loads(row.pause)
        left_out = {*_LEFT_OUT, "effects"} if row.effects is None else _LEFT_OUT
        fields = {_NAMES.get(name, name): value for name, value in columns.items() if name not in left_out}
        yield written({"type": "checkpoint", "run_id": run.run_id, **fields, "changes": [*map(plain, parts)]})


def written(fields: dict[str, Any]) -> str:
    return json.dumps(fields, allow_nan=False, separators=(",", ":"))


def encrypted_lines(log: RunLog, run_id: str, lines: Iterable[str]) -> Iterator[str]:
    """Yield one line with all lines of a run. Raise ConfigError if the store has no key."""
    if log.sealer.cipher is None:
        raise ConfigError("checkpoint.options.encrypt_with", None, "the key to encrypt an export with")
    text = log.sealer.cipher.text(run_id, f"export {run_id}".encode(), "\n".join(lines).encode())
    yield written({"type": "encrypted", "run_id": run_id, "lines": text})


def _decrypted(cipher: Cipher | None, fields: dict[str, Any]) -> list[str]:
    run_id, what = str(fields.get("run_id")), "its export"
    if cipher is None:
        raise needs_key(run_id, what)
    text = cipher.decrypted(run_id, f"export {run_id}".encode(), str(fields.get("lines")), what)
    return text.decode().split("\n")


# --------------------------------------------------------------------------- from lines


def imported(store: OwnableStore, log: RunLog, lines: Iterable[str]) -> list[str]:
    """Create the runs in lines, as `RowStore.import_runs`."""
    found: list[str] = []
    for run_id, grouped in groupby(
        runs_in(lines, log.sealer.cipher), key=lambda run: given_id(str(run[0].get("run_id")))
    ):
        with unknown_shown(), owned(store, run_id):
            runs = [*grouped]
            try:
                begin_runs(log, _batches(log, run_id, runs))
            except (RunExistsError, FormatError) as error:
                if isinstance(error, RunExistsError) and [*runs_in(exported(log, run_id))] == runs:
                    found.append(run_id)  # by an import that was interrupted after it
                    continue
                if found:
                    error.add_note(f"imported before it: {', '.join(found)}")
                raise
        found.append(run_id)
    return found


def runs_in(lines: Iterable[str], cipher: Cipher | None = None) -> Iterator[list[dict[str, Any]]]:
    """Yield the runs in lines, each as a list: the fields of the run, and those of its checkpoints."""
    run: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise FormatError("", f"line {number} is no JSON: {error}") from error
        kind = fields.get("type") if type(fields) is dict else None
        if kind in ("run", "encrypted"):
            if run:
                yield run
            run = [fields] if kind == "run" else []
            if not run:
                yield from runs_in(_decrypted(cipher, fields))
        elif kind in ("checkpoint", "entry") and run and fields.get("run_id") == run[0].get("run_id"):
            run.append(fields)
        else:
            raise FormatError(
                "", f"line {number} is neither a run nor a checkpoint or entry of the run before: {shorten(line)}"
            )
    if run:
        yield run


def _batches(log: RunLog, run_id: str, runs: list[list[dict[str, Any]]]) -> list[WriteBatch]:
    """Return the batches that begin a run and its nested runs."""
    incarnation, outer = new_incarnation(), runs[0][0]
    if outer.get("run_id") != run_id:
        raise FormatError(run_id, "the lines hold its nested runs, and not the run itself")
    counts = [
        (run, name, len(found))
        for run, *lines in runs
        for name, found in zip(("checkpoints", "entries"), _separated(lines), strict=True)
    ]
    for run, name, found in [*counts, (outer, "nested", len(runs) - 1)]:
        counted = run.get(name, 0 if name == "entries" else found)
        if counted != found:  # an incomplete export
            number = f"{shorten(run.get('run_id'))} has {shorten(counted)} {name}, and {found} of them are there"
            raise FormatError(run_id, f"lines are missing: {number}; it was not imported; export it again")
    return [batch_of(log, run, lines, incarnation) for run, *lines in runs]


def batch_of(log: RunLog, fields: dict[str, Any], lines: list[dict[str, Any]], incarnation: bytes) -> WriteBatch:
    """Return the batch that begins a run."""
    run_id = str(fields.get("run_id"))
    if fields.get("format") not in range(1, FORMAT + 1):
        found = shorten(fields.get("format"))
        raise FormatError(run_id, f"its lines have format {found}; this version reads up to {FORMAT}; update it")
    try:
        check_stored_id(run_id)
        checkpoints, entries = _separated(lines)
        rows = [row for _, chain in groupby(checkpoints, _base_of) for row in _rows(log, run_id, chain, incarnation)]
        shown = [log.sealer.shown(run_id, row, incarnation) for row in rows]
        run = _run(fields, shown[-1], incarnation)
        _ = [*run.summaries_of(shown)]  # a list of them must never fail
        run = log.sealer.sealed_run(run)
        kept = tuple(record_of(log, run_id, _entry(entry), incarnation) for entry in entries)
        taken = check_step(fields.get("inbox", 0))
    except (CheckpointCorruptError, *NOT_READ) as error:
        raise FormatError(run_id, f"its lines hold no run: {type(error).__name__}: {error}") from error
    if any(row.sequence >= after.sequence for row, after in pairwise(rows)):
        raise FormatError(run_id, "its checkpoints are not in order")
    return WriteBatch(run, None, tuple(rows), taken=taken, entries=kept)


def _separated(lines: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Return the lines of checkpoints, and those of entries."""
    return [[line for line in lines if line["type"] == kind] for kind in ("checkpoint", "entry")]


def _entry(fields: dict[str, Any]) -> Entry:
    about = {name: value for name, value in fields.items() if name not in ("type", "run_id")}
    return Entry(**{**about, "value": from_plain(fields["value"])})


def _base_of(fields: dict[str, Any]) -> object:
    return fields.get("base")


def _rows(log: RunLog, run_id: str, chain: Iterable[dict[str, Any]], incarnation: bytes) -> list[CheckpointRecord]:
    """Return the rows of a chain, after a check that its State can be restored."""
    found = (_row(run_id, fields, *log.encoder.encoded(expect_list(from_plain(fields["changes"])))) for fields in chain)
    rows = log.sealer.seal_chain(run_id, found, incarnation)
    log.encoder.check_content(run_id, rows, incarnation)
    return rows


def _row(run_id: str, fields: dict[str, Any], encoding: str, payload: bytes) -> CheckpointRecord:
    pause = fields["pause"]
    columns = {
        "format": FORMAT,
        "encoding": encoding,
        "payload": payload,
        "seal": b"",
        "effects": fields.get("effects"),
    }
    columns["pause"] = None if pause is None else written(pause)
    found = [columns[name] if name in columns else fields[_NAMES.get(name, name)] for name in CheckpointRecord._fields]
    return PLAIN.row(run_id, found)


def _run(fields: dict[str, Any], newest: CheckpointRecord, incarnation: bytes) -> RunRecord:
    parent = None if fields["parent"] is None else ParentStep(*fields["parent"])
    policy = RetentionPolicy(fields["retention"], fields["window"], fields["ttl"])
    version, labels = int.from_bytes(os.urandom(6)), tuple(sorted(fields["labels"].items()))
    about = fields["graph"], parent, policy, fields["created_ns"], labels, newest.pause
    run = RunRecord._make(
        (fields["run_id"], 0, version, *of_newest(newest), *about, incarnation, newest.seal, b"", fields.get("due_ns"))
    )
    return PLAIN.run(PLAIN.of_run(run))  # checks the types of the fields
