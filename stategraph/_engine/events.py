"""Report events of a run to its observer, and show States to a caller that iterates over the run."""

from __future__ import annotations

from typing import Any

from stategraph._engine.context import RunContext
from stategraph._graph.compiled import CompiledNode
from stategraph._protocol.commands import Notify, Show, Task
from stategraph._text.shown import describe_exception
from stategraph._values import clock
from stategraph._values.events import EventType
from stategraph._values.provenance import shortened_traceback
from stategraph.edges import Edge, NoWay, describe_predicate, place_of
from stategraph.errors import ExecutionError
from stategraph.state import State, took_ns_of


def tell(run: RunContext, type: EventType, run_id: str, step: int, /, **about: Any) -> Task[None]:
    """Report an event at a step."""
    if type in run.wanted:
        yield (Notify, run.services.notify, (type, {"run_id": run_id, "step": step, **about}))


def emit(run: RunContext, type: EventType, state: State, began_ns: int | None = None, **more: object) -> Task[None]:
    """Report an event of the run with its last State; an event that ends something also has its duration."""
    if type in run.wanted:
        about: dict[str, Any] = {"node": state.checkpoint_node, "status": state.status.value}
        if began_ns is not None:
            about["took"] = seconds_since(began_ns)
        yield from tell(run, type, state.run_id, state.step, **{**about, **more})


def seconds_since(began_ns: int) -> float:
    """Return the seconds since a time of clock.monotonic_ns."""
    return (clock.monotonic_ns() - began_ns) / 1e9


def show(run: RunContext, state: State) -> Task[None]:
    """Show a State to the caller that iterates over the run. A nested run shows nothing: it is one step."""
    if run.shows:
        yield (Show, None, state)


def announce_entry(
    run: RunContext, stage: CompiledNode, way: Edge | NoWay | None, name: str, *, begins: bool
) -> Task[None]:
    """Report the edges that were tried after a node, the edge that was taken, and the start of the next node.

    Args:
        run: The run.
        stage: The node.
        way: The edge that was taken; None if the next node handles a failure, or continues after a pause.
        name: The next node.
        begins: Whether the next node starts: there may be no matching edge, or the run may have reached its node limit.
    """
    state = run.state
    at = state.run_id, state.step
    edges: tuple[Edge, ...] = ()
    if way is not None:
        edges = stage.edges[: way.tried if isinstance(way, NoWay) else place_of(way, stage.edges) + 1]
    elif stage.policies.on_error == name and not (state.progress and state.progress.woken):
        handled = {"source": stage.name, "target": name, "edge": "on_error", "predicate": "on_error"}
        yield from tell(run, EventType.EDGE_TRANSITION, *at, **handled)
    for edge in edges:
        about = {"source": edge.source, "target": edge.target, "edge": edge.name}
        about["predicate"] = describe_predicate(edge.predicate)
        yield from tell(run, EventType.EDGE_EVALUATE, *at, **about, result=edge is way)
        if edge is way:
            yield from tell(run, EventType.EDGE_TRANSITION, *at, **about)
    if begins:
        if name in run.completed:
            yield from tell(run, EventType.CYCLE_DETECTED, state.run_id, state.step + 1, node=name)
        yield from tell(run, EventType.NODE_START, state.run_id, state.step + 1, node=name)


def announce_completion(run: RunContext, handler: str) -> Task[None]:
    """Report that a node completed, or that it failed and another node handles the failure."""
    state, took = run.state, took_ns_of(run.state)
    run.completed.add(state.checkpoint_node)
    attempts, outcome = state.facts.attempts if state.facts else 1, "failed" if handler else "completed"
    about: dict[str, Any] = {"attempts": attempts, "outcome": outcome, "took": None if took is None else took / 1e9}
    yield from emit(run, EventType.NODE_COMPLETE, state, **about)


def announce_failure(run: RunContext, name: str, error: BaseException, attempt: int, began_ns: int) -> Task[None]:
    """Report that an attempt of a node failed."""
    if EventType.NODE_ERROR in run.wanted:
        about = {"attempt": attempt, **about_error(error), "took": seconds_since(began_ns)}
        yield from tell(run, EventType.NODE_ERROR, run.state.run_id, run.state.step + 1, node=name, **about)


def announce_error(run: RunContext, state: State, error: BaseException) -> Task[None]:
    """Report that the run ends early, and at which node: the failed node, otherwise the last one entered."""
    if EventType.GRAPH_ERROR in run.wanted:
        node, about = run.path[-1] if run.path else state.checkpoint_node, about_error(error)
        if isinstance(error, ExecutionError) and state.error is not None:
            node, info = error.node_name, state.error
            about |= {"error_type": info.type, "traceback": info.traceback}
        about["attempts"] = state.facts.attempts if state.facts else 1
        yield from emit(run, EventType.GRAPH_ERROR, state, run.began_ns, **{**about, "node": node})


def about_error(error: BaseException) -> dict[str, Any]:
    """Return the event data that describe an exception."""
    about = {"error": describe_exception(error), "error_type": type(error).__name__}
    return {**about, "traceback": shortened_traceback(error)}
