"""What stands in the columns of the tables of SQL databases."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from operator import attrgetter
from typing import Any

from stategraph._values.ids import check_stored_id
from stategraph._values.provenance import ErrorInfo, ParentStep
from stategraph.errors import CheckpointCorruptError, InvalidRunIdError
from stategraph.stores._rows.columns import Columns, Labels, labels_of, no_run
from stategraph.stores._rows.records import CheckpointRecord, RunRecord, Unreadable
from stategraph.stores.base import RetentionPolicy


def row_values(row: CheckpointRecord, *, json_as_text: bool) -> tuple[Any, ...]:
    """Return the columns of a row."""
    error = None if row.error is None else _error_text(row.error)
    payload = row.payload.decode() if json_as_text and row.encoding == "json" else row.payload
    return (
        *(row.sequence, row.base, row.step, row.revision, row.kind._value_, row.node, row.time_ns),
        *(row.status._value_, error, row.by, row.took_ns, row.attempts, row.owner),
        *(row.format, row.encoding, payload, row.seal, row.pause),
    )


lasting_values: Callable[[RunRecord], tuple[Any, ...]] = attrgetter(
    *("revision", "kind", "status", "error", "by", "graph", "parent", "policy", "labels", "pause")
)
"""Returns what seldom changes of a run."""

step_values: Callable[[RunRecord], tuple[Any, ...]] = attrgetter(
    *("version", "sequence", "step", "node", "time_ns", "tip", "seal")
)
"""Returns the columns of a run that change at every step."""


def run_values(run: RunRecord) -> tuple[Any, ...]:
    """Return the columns of a run."""
    error = None if run.error is None else _error_text(run.error)
    parent = None if run.parent is None else f"{run.parent.run_id}!{run.parent.step}"
    labels = json.dumps([text for pair in run.labels for text in pair]) if run.labels else "[]"
    about = run.revision, run.kind._value_, run.status._value_, error, run.by, run.graph, parent
    return *step_values(run), *about, _policy_text(run.policy), labels, run.pause, run.created_ns, run.incarnation


def run_of(found: tuple[Any, ...], store: object) -> RunRecord:
    """Return the run in these columns. Raises CheckpointCorruptError, which names the store, if they hold none."""
    run_id = found[0]
    try:
        check_stored_id(run_id)
    except InvalidRunIdError as error:
        raise no_run(run_id, f"its column {error}", store) from error
    return COLUMNS.run(run_id, found[1:], store)


def run_or_unreadable(found: tuple[Any, ...], store: object) -> RunRecord | Unreadable:
    """Return the run in these columns, or why they cannot be read."""
    try:
        return run_of(found, store)
    except CheckpointCorruptError as error:
        return Unreadable(str(found[0]), found[1], error)


def _parent_of(text: str) -> ParentStep:
    run_id, _, step = text.rpartition("!")
    return ParentStep(run_id, int(step))


def _error_text(error: ErrorInfo) -> str:
    return json.dumps(error.parts)


def _error_of(text: str) -> ErrorInfo:
    return ErrorInfo(*json.loads(text))


def _policy_text(policy: RetentionPolicy) -> str:
    parts = (policy.retention, policy.window, policy.ttl)
    return " ".join("-" if part is None else str(part) for part in parts)


@lru_cache  # few are in use
def _policy_of(text: str) -> RetentionPolicy:
    retention, window, ttl = text.split(" ")
    numbers = None if window == "-" else int(window), None if ttl == "-" else float(ttl)
    return RetentionPolicy(retention, *numbers)


def _labels_of(text: str) -> Labels:
    if text == "[]":  # as of most runs
        return ()
    return labels_of(json.loads(text))


COLUMNS = Columns(error=_error_of, parent=_parent_of, policy=_policy_of, labels=_labels_of)
"""Makes records of what stands in them."""
