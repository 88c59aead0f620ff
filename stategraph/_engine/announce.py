"""Reporting on nodes and edges, to an observer who wants to hear of them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Protocol, TypeVar

from stategraph._engine.context import RunContext
from stategraph._engine.saving import emit, seconds_since, tell
from stategraph._graph.compiled import CompiledNode
from stategraph._protocol.commands import Notify, Task
from stategraph._text.shown import describe_exception
from stategraph._values import clock
from stategraph._values.events import PART_EVENTS, EventType
from stategraph._values.provenance import shortened_traceback
from stategraph.edges import Edge, NoWay, describe_predicate, place_of
from stategraph.errors import ExecutionError
from stategraph.nodes.step import PartTold
from stategraph.state import State, took_ns_of

_Answer = TypeVar("_Answer")


class Teller(Protocol):
    """A step that reports events."""

    attempt: int

    def tell(self, type: EventType, **about: Any) -> Task[None]:
        """Report an event of the step."""


_KINDS_OF_PARTS = {"failed": EventType.PART_ERROR, "retried": EventType.PART_RETRY}
_OF_PARTS = PART_EVENTS | {EventType.PART_RETRY}


def _is_handler(run: RunContext, stage: CompiledNode, name: str) -> bool:
    """Return whether a node is entered to handle a failure, and not to go on after a pause, which is no transition."""
    progress = run.state.progress
    return (progress is None or progress.woken is None) and stage.policies.on_error == name


def announce_entry(
    run: RunContext, stage: CompiledNode, way: Edge | NoWay | None, name: str, *, begins: bool
) -> Task[None]:
    """Report the edges that were tried after a node, the one that was taken, and that the next node begins.

    Args:
        run: The run.
        stage: The node.
        way: The edge that was taken; None if the next node handles a failure, or goes on after a pause.
        name: The next node.
        begins: Whether it begins: there may be no way on, or the run may have run too many nodes.
    """
    notify, wanted, state = run.services.notify, run.wanted, run.state
    edges: tuple[Edge, ...] = ()
    if way is None:
        if EventType.EDGE_TRANSITION in wanted and _is_handler(run, stage, name):
            way_on = {"source": stage.name, "target": name, "edge": "on_error", "predicate": "on_error"}
            yield (Notify, notify, (EventType.EDGE_TRANSITION, {"run_id": state.run_id, "step": state.step, **way_on}))
    else:
        edges = stage.edges[: way.tried if isinstance(way, NoWay) else place_of(way, stage.edges) + 1]
    for edge in edges:
        about: dict[str, Any] = {
            "run_id": state.run_id,
            "step": state.step,
            "source": edge.source,
            "target": edge.target,
            "edge": edge.name,
            "predicate": describe_predicate(edge.predicate),
        }
        if EventType.EDGE_EVALUATE in wanted:
            yield (Notify, notify, (EventType.EDGE_EVALUATE, {**about, "result": edge is way}))
        if EventType.EDGE_TRANSITION in wanted and edge is way:
            yield (Notify, notify, (EventType.EDGE_TRANSITION, about))
    if not begins:
        return
    about = {"run_id": state.run_id, "step": state.step + 1, "node": name}
    if EventType.CYCLE_DETECTED in wanted and name in run.completed:
        yield (Notify, notify, (EventType.CYCLE_DETECTED, about))
    if EventType.NODE_START in wanted:
        yield (Notify, notify, (EventType.NODE_START, about))


def announce_start(run: RunContext, steps: Task[_Answer]) -> Task[Task[_Answer]]:
    """Report that the call goes on with the run from here; return its steps as the observer wants them."""
    run.began_ns = clock.monotonic_ns()
    run.services.place = run.services.place or {"call_id": os.urandom(8).hex()}  # nested runs are given it
    yield from emit(run, EventType.GRAPH_START, run.state)
    if not hasattr(run.services.observer, "enter_node"):
        return steps
    from stategraph._engine.placing import placed  # imported when used: few observers do that

    return placed(run, steps)


def announce_completion(run: RunContext, handler: str) -> Task[None]:
    """Report that a node is completed, or has failed and another one handles that."""
    state, took = run.state, took_ns_of(run.state)
    run.completed.add(state.checkpoint_node)
    if EventType.NODE_COMPLETE in run.wanted:
        attempts, outcome = state.facts.attempts if state.facts else 1, "failed" if handler else "completed"
        about: dict[str, Any] = {"attempts": attempts, "outcome": outcome, "took": None if took is None else took / 1e9}
        yield from emit(run, EventType.NODE_COMPLETE, state, **about)


def announce_error(run: RunContext, state: State, error: BaseException) -> Task[None]:
    """Report that the run ends early, and at which node: the one that failed or, if none has, the one entered last."""
    node, info = run.path[-1] if run.path else state.checkpoint_node, None
    if isinstance(error, ExecutionError):
        node, info = error.node_name, error.state.error
    about = {
        "node": node,
        "error": describe_exception(error),
        "error_type": type(error).__name__ if info is None else info.type,
        "attempts": state.facts.attempts if state.facts else 1,
        "traceback": shortened_traceback(error) if info is None else info.traceback,
    }
    yield from emit(run, EventType.GRAPH_ERROR, state, run.began_ns, **about)


def announce_parts(run: RunContext, step: Teller, parts: Iterable[PartTold], total: int) -> Task[None]:
    """Report what came of parts of a step, which has so many."""
    for part in () if run.wanted.isdisjoint(_OF_PARTS) else parts:
        about = {"part": part.label, "total": total, "outcome": part.outcome, "took": part.took}
        if part.error is not None:
            about |= about_error(part.error)
        if part.delay is not None:
            about |= {"delay": part.delay}
        kind = _KINDS_OF_PARTS.get(part.outcome, EventType.PART_COMPLETE)
        yield from step.tell(kind, attempt=part.attempt or step.attempt, **about)


def announce_failure(run: RunContext, name: str, error: BaseException, attempt: int, began_ns: int) -> Task[None]:
    """Report that an attempt of a node has failed."""
    if EventType.NODE_ERROR in run.wanted:
        about = {"attempt": attempt, **about_error(error), "took": seconds_since(began_ns)}
        yield from tell(run, EventType.NODE_ERROR, run.state.run_id, run.state.step + 1, name, about)


def about_error(error: BaseException) -> dict[str, Any]:
    """Return what is told of an exception."""
    about = {"error": describe_exception(error), "error_type": type(error).__name__}
    return {**about, "traceback": shortened_traceback(error)}
