"""Runs as lines of JSON, and runs of such lines: with their histories, and all that is nested in them.

A line tells a run, or one of its checkpoints; docs/command-line.md says what stands in it. Seals are not told, as they
bind a record to its store. What is read is sealed anew, for the store that it is then in.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from itertools import groupby, pairwise
from typing import Any

import attrs

from stategraph._owners.holds import Owning, held
from stategraph._text.shown import shorten
from stategraph._values.ids import check_stored_id, given_id, is_parts_id
from stategraph._values.provenance import ErrorInfo, Kind, ParentStep, RunStatus
from stategraph.errors import CheckpointCorruptError, FormatError, RunExistsError
from stategraph.stores._codec.opaque import unknown_shown
from stategraph.stores._rows.copies import begin_runs
from stategraph.stores._rows.records import FORMAT, CheckpointRecord, RunRecord, WriteBatch, checked_row
from stategraph.stores._rows.run_log import RunLog
from stategraph.stores._rows.runs import new_incarnation
from stategraph.stores.base import RetentionPolicy
from stategraph.stores.serializers import from_plain, plain

_NOT_READ = (TypeError, ValueError, LookupError, AttributeError, RecursionError, OverflowError)


# --------------------------------------------------------------------------- to lines


def exported(log: RunLog, run_id: str) -> Iterator[str]:
    """Yield the lines of a run, and of all that is nested in it.

    Raises:
        CheckpointNotFoundError: there is no such run.
        CheckpointCorruptError, FormatError, ConfigError: as `CheckpointStore.load`.
    """
    # Not those that were dropped meanwhile, or left by another run.
    nested = [one for one in log.table.nested_ids(run_id) if log.runs.find(one) is not None]
    yield from log.read(run_id, lambda run: _lines(log, run, len(nested)))
    for nested_id in nested:
        yield from log.read(nested_id, lambda run: _lines(log, run, 0))


def _lines(log: RunLog, run: RunRecord, nested: int) -> list[str]:
    with unknown_shown():  # what is not known here is told as it is kept
        chains = [*log.holding(run, log.visible(run))]
        lines = [line for chain in chains for line in _chain_told(log, run, chain)]
        return [_written(_run_told(run) | {"checkpoints": len(lines), "nested": nested}), *lines]


def _run_told(run: RunRecord) -> dict[str, Any]:
    policy = run.policy
    return {
        "type": "run",
        "format": FORMAT,
        "run_id": run.run_id,
        "graph": run.graph,
        "status": run.status.value,
        "parent": None if run.parent is None else [run.parent.run_id, run.parent.step],
        "labels": dict(run.labels),
        "created_ns": run.created_ns,
        "retention": policy.retention,
        "window": policy.window,
        "ttl": policy.ttl,
    }


def _chain_told(log: RunLog, run: RunRecord, chain: list[CheckpointRecord]) -> Iterator[str]:
    for row, parts in zip(chain, log.encoder.parts(run.run_id, chain, run.incarnation), strict=True):
        told = {
            "type": "checkpoint",
            "run_id": run.run_id,
            "sequence": row.sequence,
            "base": row.base,
            "step": row.step,
            "revision": row.revision,
            "kind": row.kind.value,
            "node": row.node,
            "timestamp_ns": row.time_ns,
            "status": row.status.value,
            "error": None if row.error is None else row.error.parts,
            "by": row.by,
            "took_ns": row.took_ns,
            "attempts": row.attempts,
            "owner": row.owner,
            "pause": None if row.pause is None else json.loads(row.pause),
            "changes": plain(parts),
        }
        yield _written(told)


def _written(told: dict[str, Any]) -> str:
    return json.dumps(told, allow_nan=False, separators=(",", ":"))


# --------------------------------------------------------------------------- from lines


@attrs.define
class _Told:
    """A run as lines tell it."""

    run: dict[str, Any]
    checkpoints: list[dict[str, Any]] = attrs.field(factory=list)


def imported(store: Owning, log: RunLog, lines: Iterable[str]) -> list[str]:
    """Begin the runs that lines tell, each with all that is nested in it, or not at all; return their ids.

    Raises:
        FormatError: these are no such lines.
        RunExistsError: there is a run of one of the ids.
        RunBusyError: somebody owns it.
    """
    found: list[str] = []
    for run_id, told in groupby(_told(lines), key=lambda one: given_id(str(one.run.get("run_id")))):
        with unknown_shown(), held(store, run_id):
            try:
                begin_runs(log, _batches(log, run_id, list(told)))
            except (RunExistsError, FormatError) as error:
                if found:
                    error.add_note(f"imported before it: {', '.join(found)}")
                raise
        found.append(run_id)
    return found


def _told(lines: Iterable[str]) -> Iterator[_Told]:
    """Yield the runs of lines, each with its checkpoints."""
    newest: _Told | None = None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            told = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise FormatError("", f"line {number} is no JSON: {error}") from error
        kind = told.get("type") if type(told) is dict else None
        if kind == "run":
            if newest is not None:
                yield newest
            newest = _Told(told)
        elif kind == "checkpoint" and newest is not None and told.get("run_id") == newest.run.get("run_id"):
            newest.checkpoints.append(told)
        else:
            raise FormatError("", f"line {number} is neither a run nor a checkpoint of the run before: {shorten(line)}")
    if newest is not None:
        yield newest


def _batches(log: RunLog, run_id: str, told: list[_Told]) -> list[WriteBatch]:
    incarnation = new_incarnation()
    for one in told:
        _check_whole(run_id, one.run, "checkpoints", len(one.checkpoints))
    _check_whole(run_id, told[0].run, "nested", len(told) - 1)
    batches = [_batch(log, one, incarnation) for one in told]
    outer, *nested = batches
    if outer.run.run_id != run_id:
        raise FormatError(run_id, "the lines tell what is nested in it, and not the run itself")
    return [outer, *(attrs.evolve(batch, outer=incarnation) for batch in nested)]


def _check_whole(run_id: str, told: dict[str, Any], what: str, found: int) -> None:
    """Raise FormatError if lines of a run are missing, as where an export was cut off."""
    counted = told.get(what, found)
    if counted != found:
        number = f"{shorten(told.get('run_id'))} has {shorten(counted)} {what}, and {found} of them are there"
        raise FormatError(run_id, f"lines are missing: {number}; nothing of it is imported: export it again")


def _batch(log: RunLog, told: _Told, incarnation: bytes) -> WriteBatch:
    """Return the batch that begins a run."""
    run_id = str(told.run.get("run_id"))
    version = told.run.get("format")
    if version != FORMAT:
        raise FormatError(run_id, f"its lines have format {shorten(version)}; this version reads {FORMAT}; update it")
    try:
        check_stored_id(run_id)
        rows = [
            row for _, chain in groupby(told.checkpoints, _base_of) for row in _rows(log, run_id, chain, incarnation)
        ]
        run = _run(told.run, rows[-1], incarnation)
        batch = WriteBatch(log.sealer.sealed_run(run), None, tuple(rows))
    except FormatError:
        raise
    except CheckpointCorruptError as error:
        raise FormatError(run_id, f"its lines hold no run as a whole: {error.reason}") from error
    except _NOT_READ as error:
        raise FormatError(run_id, f"its lines hold no run: {type(error).__name__}: {error}") from error
    if any(row.sequence >= after.sequence for row, after in pairwise(rows)):
        raise FormatError(run_id, "its checkpoints are not in order")
    return batch


def _base_of(told: dict[str, Any]) -> object:
    return told.get("base")


def _rows(log: RunLog, run_id: str, chain: Iterable[dict[str, Any]], incarnation: bytes) -> list[CheckpointRecord]:
    """Return the rows of a snapshot and of what builds on it, and be sure that a State can be made of them."""
    rows: list[CheckpointRecord] = []
    before = b""
    for told in chain:
        row = _row(run_id, told, *log.encoder.encoded(from_plain(told["changes"])))
        row = log.sealer.seal(run_id, row, before, incarnation)
        rows.append(row)
        before = row.seal
    if is_parts_id(run_id):
        log.encoder.data(run_id, rows, incarnation)
    else:
        log.encoder.state(run_id, rows, incarnation)
    return rows


def _row(run_id: str, told: dict[str, Any], encoding: str, payload: bytes) -> CheckpointRecord:
    error, pause = told["error"], told["pause"]
    row = CheckpointRecord(
        sequence=told["sequence"],
        base=told["base"],
        step=told["step"],
        revision=told["revision"],
        kind=Kind(told["kind"]),
        node=told["node"],
        time_ns=told["timestamp_ns"],
        status=RunStatus(told["status"]),
        error=None if error is None else ErrorInfo(*error),
        by=told["by"],
        took_ns=told["took_ns"],
        attempts=told["attempts"],
        owner=told["owner"],
        format=FORMAT,
        encoding=encoding,
        payload=payload,
        pause=None if pause is None else _written(pause),
    )
    return checked_row(run_id, row)


def _run(told: dict[str, Any], newest: CheckpointRecord, incarnation: bytes) -> RunRecord:
    parent = told["parent"]
    return RunRecord(
        run_id=told["run_id"],
        number=0,
        version=int.from_bytes(os.urandom(6)),
        sequence=newest.sequence,
        step=newest.step,
        revision=newest.revision,
        kind=newest.kind,
        node=newest.node,
        time_ns=newest.time_ns,
        status=newest.status,
        error=newest.error,
        by=newest.by,
        graph=told["graph"],
        parent=None if parent is None else ParentStep(*parent),
        policy=RetentionPolicy(told["retention"], told["window"], told["ttl"]),
        created_ns=told["created_ns"],
        labels=tuple(sorted(told["labels"].items())),
        pause=newest.pause,
        incarnation=incarnation,
        tip=newest.seal,
    )
