"""Burr: a function-based action and a `when` condition, run without tracker."""

from __future__ import annotations

from typing import Any

from burr.core import ApplicationBuilder, State, action, default, when
from burr.core.persistence import InMemoryPersister

from benchmarks import counters
from benchmarks.measure import Run


@action(reads=["n"], writes=["n"])
def count(state: State) -> State:
    """Count one up."""
    return state.update(n=state["n"] + 1)


@action(reads=[], writes=[])
def done(state: State) -> State:
    """Where the run ends."""
    return state


def step(steps: int) -> Run:
    """No persister."""
    return _run(_builder(steps))


def kept_step(steps: int) -> Run:
    """Every state kept in memory."""
    return _run(_builder(steps).with_state_persister(InMemoryPersister()))


def _builder(steps: int) -> Any:
    return (
        ApplicationBuilder()
        .with_actions(count=count, done=done)
        .with_transitions(("count", "count", when(n__lt=steps)), ("count", "done", default))
        .with_identifiers(app_id="benchmark")
        .with_state(**counters.START)
        .with_entrypoint("count")
    )


def _run(builder: Any) -> Run:
    application = builder.build()
    return lambda: application.run(halt_after=["done"])
