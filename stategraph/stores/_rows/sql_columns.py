"""Records from the columns in which SQL databases hold them (`stategraph.stores._rows.records` makes those)."""

from __future__ import annotations

import json
from typing import Any

from stategraph._values.ids import check_stored_id
from stategraph._values.provenance import ErrorInfo, ParentStep
from stategraph.errors import CheckpointCorruptError, InvalidRunIdError
from stategraph.stores._codec.nesting import check_json
from stategraph.stores._rows.columns import Columns, Labels, labels_of, no_run
from stategraph.stores._rows.records import RunRecord, Unreadable
from stategraph.stores.base import RetentionPolicy


def run_of(found: tuple[Any, ...], store: object) -> RunRecord:
    """Return the run in these columns. Raises CheckpointCorruptError, which names the store, if they hold none."""
    run_id = found[0]
    try:
        check_stored_id(run_id)
    except InvalidRunIdError as error:
        raise no_run(run_id, f"its column {error}", store) from error
    return SQL_COLUMNS.run(run_id, found[1:], store)


def run_or_unreadable(found: tuple[Any, ...], store: object) -> RunRecord | Unreadable:
    """Return the run in these columns, or why they cannot be read."""
    try:
        return run_of(found, store)
    except CheckpointCorruptError as error:
        return Unreadable(str(found[0]), found[1], error)


def _parent_of(text: str) -> ParentStep:
    run_id, _, step = text.rpartition("@")
    return ParentStep(run_id, int(step))


def _error_of(text: str) -> ErrorInfo:
    check_json(text.encode(), levels=1)
    return ErrorInfo(*json.loads(text))


def _policy_of(text: str) -> RetentionPolicy:
    retention, window, ttl = text.split(" ")
    numbers = None if window == "-" else int(window), None if ttl == "-" else float(ttl)
    return RetentionPolicy(retention, *numbers)


def _labels_of(text: str) -> Labels:
    check_json(text.encode(), levels=1)
    return labels_of(json.loads(text))


SQL_COLUMNS = Columns(error=_error_of, parent=_parent_of, policy=_policy_of, labels=_labels_of)
