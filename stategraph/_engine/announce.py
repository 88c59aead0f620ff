"""Reporting on a run: events for its observer, States for the caller who iterates over it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stategraph._engine.context import RunContext
from stategraph._graph.compiled import CompiledNode
from stategraph._protocol.commands import Notify, Show, Task
from stategraph._values.events import EventType
from stategraph.edges import Edge, NoWay, describe_predicate, place_of
from stategraph.state import State


def emit(run: RunContext, type: EventType, state: State, **more: object) -> Task[None]:
    """Report an event of the run, with its last State."""
    if type in run.wanted:
        provenance = {"run_id": state.run_id, "step": state.step, "node": state.checkpoint_node}
        yield (Notify, run.services.notify, (type, {**provenance, "status": state.status.value, **more}))


def tell(run: RunContext, type: EventType, run_id: str, step: int, node: str, about: Mapping[str, Any]) -> Task[None]:
    """Report an event that happens in the middle of a step."""
    if type in run.wanted:
        yield (Notify, run.services.notify, (type, {"run_id": run_id, "step": step, "node": node, **about}))


def show(run: RunContext, state: State) -> Task[None]:
    """Show a State to the caller who iterates over the run. A nested run shows nothing: it is one step."""
    if run.shows:
        yield (Show, None, state)


def announce_node(run: RunContext, name: str) -> Task[None]:
    """Report that a node begins."""
    about = {"run_id": run.state.run_id, "step": run.state.step + 1, "node": name}
    if EventType.CYCLE_DETECTED in run.wanted and name in run.completed:
        yield (Notify, run.services.notify, (EventType.CYCLE_DETECTED, about))
    if EventType.NODE_START in run.wanted:
        yield (Notify, run.services.notify, (EventType.NODE_START, about))


def announce_handler(run: RunContext, stage: CompiledNode, handler: str) -> Task[None]:
    """Report the transition to a node that handles a failure.

    A node that goes on after a pause is entered without a transition.
    """
    progress = run.state.progress
    if (progress is None or progress.woken is None) and stage.policies.on_error == handler:
        way = {"source": stage.name, "target": handler, "edge": "on_error", "predicate": "on_error"}
        about = {"run_id": run.state.run_id, "step": run.state.step, **way}
        if EventType.EDGE_TRANSITION in run.wanted:
            yield (Notify, run.services.notify, (EventType.EDGE_TRANSITION, about))


def announce_edges(run: RunContext, stage: CompiledNode, chosen: Edge | NoWay) -> Task[None]:
    """Report the edges that were tried after a node, and the one that was taken."""
    tried = chosen.tried if isinstance(chosen, NoWay) else place_of(chosen, stage.edges) + 1
    for edge in stage.edges[:tried]:
        about = {
            "run_id": run.state.run_id,
            "step": run.state.step,
            "source": edge.source,
            "target": edge.target,
            "edge": edge.name,
            "predicate": describe_predicate(edge.predicate),
        }
        if EventType.EDGE_EVALUATE in run.wanted:
            yield (Notify, run.services.notify, (EventType.EDGE_EVALUATE, {**about, "result": edge is chosen}))
        if EventType.EDGE_TRANSITION in run.wanted and edge is chosen:
            yield (Notify, run.services.notify, (EventType.EDGE_TRANSITION, about))
