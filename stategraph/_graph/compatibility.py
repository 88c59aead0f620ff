"""Whether a saved State can go on in a graph, and what it takes."""

from __future__ import annotations

from collections import Counter

from stategraph._graph.compiled import CompiledGraph
from stategraph._values.progress import Progress
from stategraph._values.provenance import EdgeStructure, GraphStructure, RunStatus
from stategraph.errors import CheckpointCorruptError, GraphMismatchError, RunCompleteError
from stategraph.state import State, evolve


def check_compatible(plan: CompiledGraph, saved: State, allow_changed: bool, path: str = "") -> None:
    """Raise unless the saved State can go on in this graph; `path` leads to the graph from the outermost one."""
    if saved.graph is not None and saved.graph != plan.graph:
        change = f"it is a run of graph {saved.graph!r}, not of {plan.graph!r}"
        raise GraphMismatchError(saved.run_id, (change,), "Resume it with that graph.")
    if saved.status is RunStatus.COMPLETED:
        raise RunCompleteError(saved.run_id, saved.checkpoint_node)
    if saved.status is RunStatus.PAUSED and (saved.pause is None or not saved.pause.node):
        raise CheckpointCorruptError(
            saved.run_id,
            "its status is paused, but its pause names no node to go on at: save a State made by hand with "
            'status="active", or with pause=Pause(...) and the node in it',
        )
    for node in _nodes_of(saved):
        if node not in plan.stages:
            change = f"it stands at node {node!r}, which the graph does not have"
            names = f'{{{path + node!r}: "{path}..."}}'
            way_out = (
                f"Its nodes are {', '.join(plan.stages)}; if it was renamed, resume with migrate={names}. "
                f'If it was removed, graph.stands_at({{{node!r}: "..."}}) names the node to go on from.'
            )
            raise GraphMismatchError(saved.run_id, (change,), way_out)
    if saved.structure is not None and not allow_changed and saved.fingerprint != plan.structure.fingerprint:
        raise GraphMismatchError(
            saved.run_id,
            _changes_since(saved.structure, plan.structure),
            "If it may go on all the same, resume it with allow_changed=True; nodes that were renamed are named by "
            + (f"migrate={{'{path}old': '{path}new'}}." if path else "migrate={old: new}."),
        )


def _nodes_of(saved: State) -> list[str]:
    """Return the nodes that a State needs to go on."""
    pause, progress = saved.pause, saved.progress
    nodes = [saved.checkpoint_node, pause.node if pause else "", progress.next_node if progress else ""]
    return [node for node in nodes if node]


def off_removed(plan: CompiledGraph, saved: State) -> State:
    """Return a State that stands at a removed node as one that goes on at the node which the graph names for it.

    What it waits for there is over, for nothing in the graph needs the answer.
    """
    if not plan.stands_at or saved.status is RunStatus.COMPLETED:
        return saved
    removed = plan.stands_at.keys() - plan.stages.keys()
    pause, progress, last = saved.pause, saved.progress, saved.checkpoint_node
    node = pause.node if pause else (progress.next_node if progress else "") or last
    if node in removed:
        left = (progress or Progress()).without_step().changed(next_node=plan.stands_at[node])
        saved = evolve(saved, status=RunStatus.ACTIVE, error=None, pause=None, progress=left)
    elif last not in removed:
        return saved
    return evolve(saved, checkpoint_node="" if last in removed else last, structure=plan.structure)


def _changes_since(old: GraphStructure, new: GraphStructure) -> tuple[str, ...]:
    """Return what was added, removed and rewired, in words; empty if nothing was."""
    changes = [f"node {name!r} was added" for name in new.nodes if name not in old.nodes]
    changes += [f"node {name!r} was removed" for name in old.nodes if name not in new.nodes]
    here, there = Counter(new.edges), Counter(old.edges)
    changes += [f"edge {edge} was added" for edge in here - there]
    changes += [f"edge {edge} was removed" for edge in there - here]
    if not changes and new.fingerprint != old.fingerprint:
        changes = [f"the edges out of {name!r} are tried in another order" for name in _reordered(old, new)]
    return tuple(changes)


def _reordered(old: GraphStructure, new: GraphStructure) -> list[str]:
    def out_of(structure: GraphStructure, name: str) -> list[EdgeStructure]:
        return [edge for edge in structure.edges if edge.source == name]

    return [name for name in new.nodes if out_of(new, name) != out_of(old, name)]
