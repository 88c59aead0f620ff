"""The order in which the events of a call must come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from stategraph import Event

_OPENING = {"checkpoint.load", "checkpoint.save", "checkpoint.resume", "graph.start"}
_CLOSING = {"graph.complete", "graph.pause", "graph.error"}
_WITHIN = {"node.error", "node.retry", "node.chunk", "part.complete", "node.complete", "cache.hit", "cache.miss"}


@attrs.define
class _Order:
    """How far the events of one run, in one call, have come."""

    runs: bool = False
    open: tuple[int, str] | None = None
    step: int | None = None
    completed: set[str] = attrs.field(factory=set)

    def problem(self, event: Event) -> str | None:
        """Return why this event may not come now; empty if it may."""
        kind, data = str(event.type), event.data
        step, node = data.get("step"), data.get("node")
        if not self.runs:
            if kind == "graph.start":
                self.runs, self.open, self.step = True, None, step
            return None if kind in _OPENING or self._is_again(kind, (step, node)) else "while the run is not under way"
        if kind in _CLOSING:
            self.runs = False
        elif kind == "graph.start":
            return "twice"
        elif kind == "node.start":
            if self.open is not None or step != (self.step or 0) + 1:
                return f"while step {self.step} is the last and {self.open} is open"
            self.open = (step, str(node))
        elif kind in _WITHIN:
            if self.open != (step, node):
                return f"while {self.open} is open"
            if kind == "node.complete":
                self.open, self.step = None, step
                self.completed.add(str(node))
        elif kind.startswith("edge.") and (self.open is not None or step != self.step):
            return f"while step {self.step} is the last and {self.open} is open"
        elif kind == "cycle.detected" and (node not in self.completed or self.open is not None):
            return "of a node that was not completed before"
        elif kind == "checkpoint.save" and step != self.step:
            return f"while step {self.step} is the last"
        return None

    def _is_again(self, kind: str, at: tuple[Any, Any]) -> bool:
        """Return whether the event belongs to a step that is computed again before the run continues."""
        if kind == "node.recompute":
            self.open = at
        return kind == "node.recompute" or (
            self.open is not None and (kind == "graph.error" or (kind in _WITHIN and at == self.open))
        )


def misplaced(events: Sequence[Event]) -> list[str]:
    """Return the problems in the order of the events of one call."""
    orders: dict[str, _Order] = {}
    found = []
    for event in events:
        if event.type.startswith("state."):
            continue
        run_id = event.data["run_id"]
        problem = orders.setdefault(run_id, _Order()).problem(event)
        outer, mark, _ = run_id.rpartition("/#")
        if mark and event.type == "graph.start" and orders.get(outer, _Order()).open is None:
            problem = "while no step of the outer run is under way"
        if problem:
            found.append(f"{event.type} {dict(event.data)} came {problem}")
    return found
