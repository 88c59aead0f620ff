"""What a run has spent and done: limits, and sums in the State of each step."""

from __future__ import annotations

from typing import Any

from stategraph._protocol import Load, Task
from stategraph._values.entries import Entry
from stategraph._values.progress import evolved
from stategraph._values.provenance import ErrorInfo, RunStatus
from stategraph._values.spending import as_numbers, exact
from stategraph.errors import LimitError
from stategraph.state import State, evolve, recorded


def recall(run: Any, state: State) -> Task[None]:
    """Begin with what a run has spent before, in completed steps too, and with the effects of the step under way."""
    entries, session = list[Entry](), run.session
    if session.ownership is not None and session.store.keeps_entries and state.status is not RunStatus.COMPLETED:
        entries = yield (Load, session.entries, (state.run_id, state.step + 1, ("spend", "effect")))
    run.did.update(dict.fromkeys(entry.name for entry in entries if entry.kind == "effect" and entry.value))
    if run.outer_step is None:
        spent = [entry for entry in entries if entry.kind == "spend"]
        run.spending.begin(state.progress.spent if state.progress else {}, spent)


def counting(run: Any, state: State) -> State:
    """Return the State after a step, which counts what the run has spent so far."""
    return evolve(state, progress=evolved(state.progress, spent=run.spending.counted()))


def check_limits(run: Any, node: str, cause: Exception | None = None) -> None:
    """Raise LimitError at a node if the run has spent what the limits of the call allow."""
    sums = dict(run.spending.sums) if run.limits else {}  # a copy: other parts of the step may spend now
    reached = [name for name, limit in run.limits.items() if sums.get(name, 0) >= exact(limit)]
    if not reached:
        return
    spent = as_numbers(sums)
    listed = ", ".join(f"{name} {spent[name]} of {run.limits[name]}" for name in reached)
    way_out = f"resume({run.outermost_run.state.run_id!r}, limits=...) goes on with larger ones"
    reason = f"is stopped: the run has spent {listed} (limits); {way_out}"
    state = recorded(run.state, status=RunStatus.FAILED, error=ErrorInfo.said(LimitError.__name__, reason, node))
    raise LimitError(node, state, tuple(run.path), reason, dict(spent), dict(run.limits)) from cause
