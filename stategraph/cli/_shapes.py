"""What ``--json`` gives: the shapes of runs, checkpoints and States. They are documented in docs/command-line.md."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from stategraph.stores.serializers import plain

if TYPE_CHECKING:
    from stategraph._values.progress import Pause
    from stategraph._values.provenance import ErrorInfo, Owner, ParentStep
    from stategraph.state import State
    from stategraph.stores.summaries import Difference, Summary


def summary_shape(summary: Summary) -> dict[str, Any]:
    """Return a checkpoint without its data."""
    return {
        "run_id": summary.run_id,
        "graph": summary.graph,
        "status": str(summary.status),
        "step": summary.step,
        "revision": summary.revision,
        "kind": str(summary.kind),
        "node": summary.checkpoint_node,
        "timestamp": _time(summary.timestamp),
        "by": summary.by,
        "took": summary.took,
        "attempts": summary.attempts,
        "saved_by": summary.owner,
        "error": _error(summary.error),
        "pause": _pause(summary.pause),
        "parent": _parent(summary.parent),
        "created": _time(summary.created),
        "labels": dict(summary.labels),
    }


def state_shape(state: State, owner: Owner | None, keys: tuple[str, ...]) -> dict[str, Any]:
    """Return a State, with its data as the serializer "json" writes them: all, or only those of some keys."""
    return {
        "run_id": state.run_id,
        "graph": state.graph,
        "status": str(state.status),
        "step": state.step,
        "kind": str(state.kind),
        "node": state.checkpoint_node,
        "timestamp": _time(state.timestamp),
        "by": state.by,
        "error": _error(state.error),
        "pause": _pause(state.pause),
        "parent": _parent(state.parent),
        "generation": state.generation,
        "labels": dict(state.labels),
        "owner": owner_shape(owner),
        "data": plain({key: value for key, value in state.items() if not keys or key in keys}),
    }


def owner_shape(owner: Owner | None) -> dict[str, Any] | None:
    """Return who is at work on a run."""
    if owner is None:
        return None
    return {
        "host": owner.host,
        "pid": owner.pid,
        "since": _time(owner.since),
        "until": _time(owner.until),
        "node": owner.node,
        "node_since": _time(owner.node_since),
    }


def difference_shape(difference: Difference) -> dict[str, Any]:
    """Return how two States differ."""
    return {
        "added": plain(difference.added),
        "removed": plain(difference.removed),
        "changed": {key: [plain(one), plain(other)] for key, (one, other) in difference.changed.items()},
    }


def _time(when: datetime | None) -> str | None:
    return None if when is None else when.isoformat()


def _error(error: ErrorInfo | None) -> dict[str, Any] | None:
    if error is None:
        return None
    return {"type": error.type, "message": error.message, "node": error.node, "traceback": error.traceback}


def _pause(pause: Pause | None) -> dict[str, Any] | None:
    if pause is None:
        return None
    return {
        "id": pause.id,
        "reason": pause.reason,
        "node": pause.node,
        "value": plain(pause.value),
        "response_param": pause.response_param,
        "at": _time(pause.at),
        "deadline": _time(pause.deadline),
        "part": pause.part,
        "others": [_pause(other) for other in pause.others],
    }


def _parent(parent: ParentStep | None) -> dict[str, Any] | None:
    return None if parent is None else {"run_id": parent.run_id, "step": parent.step}
