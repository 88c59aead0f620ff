"""Reporting on nodes and edges, to an observer who wants to hear of them."""

from __future__ import annotations

from typing import Any

from stategraph._engine.context import RunContext
from stategraph._graph.compiled import CompiledNode
from stategraph._protocol.commands import Notify, Task
from stategraph._values.events import EventType
from stategraph.edges import Edge, NoWay, describe_predicate, place_of


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
