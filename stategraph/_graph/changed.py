"""Resumes of runs whose graph has changed: whether a run can continue, and under which names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import attrs

from stategraph._graph.compiled import CompiledGraph
from stategraph._values.progress import Progress, evolved, pause_of
from stategraph._values.provenance import EdgeStructure, GraphStructure, RunStatus
from stategraph.errors import CheckpointCorruptError, GraphMismatchError, RunCompleteError
from stategraph.state import State, evolve


def check_compatible(plan: CompiledGraph, saved: State, allow_changed: bool, path: str = "") -> None:
    """Raise an error unless the saved State can continue in this graph.

    Args:
        plan: The graph.
        saved: The saved State.
        allow_changed: Whether the nodes and edges of the graph may have changed.
        path: The path from the outermost graph to this one: names of nodes, each followed by a slash.
    """
    if saved.graph is not None and saved.graph != plan.graph:
        change = f"it is a run of graph {saved.graph!r}, not of {plan.graph!r}"
        raise GraphMismatchError(saved.run_id, (change,), "Resume it with that graph.")
    if saved.status is RunStatus.COMPLETED:
        raise RunCompleteError(saved.run_id, saved.checkpoint_node)
    if saved.status is RunStatus.PAUSED and (saved.pause is None or not saved.pause.node):
        raise CheckpointCorruptError(
            saved.run_id,
            "its status is paused, but its pause names no node to continue at: save a State made by hand with "
            'status="active", or with pause=Pause(...) and the node in it',
        )
    for node in _nodes_of(saved):
        if node not in plan.stages:
            change = f"it stands at node {node!r}, which the graph does not have"
            names = f'{{{path + node!r}: "{path}..."}}'
            way_out = (
                f"Its nodes are {', '.join(plan.stages)}; if it was renamed, resume with migrate={names}. "
                f'If it was removed, graph.stands_at({{{node!r}: "..."}}) names the node to continue at.'
            )
            raise GraphMismatchError(saved.run_id, (change,), way_out)
    if saved.structure is not None and not allow_changed and saved.fingerprint != plan.structure.fingerprint:
        raise GraphMismatchError(
            saved.run_id,
            _changes_since(saved.structure, plan.structure),
            "To continue all the same, resume it with allow_changed=True; for renamed nodes, pass "
            + (f"migrate={{'{path}old': '{path}new'}}." if path else "migrate={old: new}."),
        )


def _nodes_of(saved: State) -> list[str]:
    """Return the nodes that a State requires to continue."""
    pause, progress = saved.pause, saved.progress
    nodes = [saved.checkpoint_node, pause.node if pause else "", progress.next_node if progress else ""]
    return [node for node in nodes if node]


def off_removed(plan: CompiledGraph, saved: State) -> State:
    """Move a State from a removed node to the node at which `GraphBuilder.stands_at` continues the run.

    Its pause ends, because no node of the graph uses the answer.
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
    """Return descriptions of all changes between two structures."""
    changes = [f"node {name!r} was added" for name in new.nodes if name not in old.nodes]
    changes += [f"node {name!r} was removed" for name in old.nodes if name not in new.nodes]
    here, there = Counter(new.edges), Counter(old.edges)
    changes += [f"edge {edge} was added" for edge in here - there]
    changes += [f"edge {edge} was removed" for edge in there - here]
    if not changes and new.fingerprint != old.fingerprint:
        reordered = [name for name in new.nodes if _edges_out_of(name, new) != _edges_out_of(name, old)]
        changes = [f"the edges out of {name!r} are tried in another order" for name in reordered]
    return tuple(changes)


def _edges_out_of(name: str, structure: GraphStructure) -> list[EdgeStructure]:
    return [edge for edge in structure.edges if edge.source == name]


# --------------------------------------------------------------------------- renamed nodes


def split_migration(
    migrate: Mapping[str, str], plan: CompiledGraph
) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Return the new names of the graph's own nodes, and of the nodes of each nested graph, by its node."""
    own: dict[str, str] = {}
    nested: dict[str, dict[str, str]] = {}
    for old, new in migrate.items():
        node, _, nested_new = new.partition("/")
        _, _, nested_old = old.partition("/")
        runs_graph = node in plan.stages and bool(plan.stages[node].node.graphs)
        if new not in plan.stages and nested_new and nested_old and runs_graph:
            nested.setdefault(node, {})[nested_old] = nested_new
        else:
            own[old] = new
    return own, nested


def migrate_state(saved: State, migrate: Mapping[str, str], plan: CompiledGraph) -> State:
    """Return a saved State with its nodes renamed.

    Raises:
        GraphMismatchError: The graph has no node of a new name, or had no node of an old name.
    """
    if not migrate:
        return saved
    is_done = saved.structure == plan.structure  # renamed by an earlier resume, which may be repeated
    had = tuple(migrate) if saved.structure is None else saved.structure.nodes
    problems = [
        f"migrate names node {new!r}, which the graph does not have"
        for new in migrate.values()
        if new not in plan.stages
    ]
    unknown = [old for old, new in migrate.items() if old not in had and new not in had and not is_done]
    problems += [f"migrate names node {old!r}, which the graph did not have" for old in unknown]
    if problems:
        nodes = f"Its nodes are {', '.join(plan.stages)}, and were {', '.join(had)}."
        raise GraphMismatchError(saved.run_id, tuple(problems), nodes)
    if is_done:
        return saved
    pauses = () if saved.pause is None else saved.pause.each
    renamed = [attrs.evolve(pause, node=migrate.get(pause.node, pause.node)) for pause in pauses]
    return evolve(
        saved,
        checkpoint_node=migrate.get(saved.checkpoint_node, saved.checkpoint_node),
        structure=saved.structure and _renamed(saved.structure, migrate),
        pause=pause_of(renamed) if renamed else None,
        progress=_moved_progress(saved.progress or Progress(), migrate),
    )


def _moved_progress(progress: Progress, migrate: Mapping[str, str]) -> Progress | None:
    """Return the progress with new names. Parts of the current step stay saved under the old names."""
    return evolved(
        progress,
        next_node=migrate.get(progress.next_node, progress.next_node),
        origins={
            key: attrs.evolve(origin, node=migrate.get(origin.node, origin.node))
            for key, origin in progress.origins.items()
        },
        kept_names={
            **{migrate.get(new, new): old for new, old in progress.kept_names.items()},
            **{new: progress.kept_names.get(old, old) for old, new in migrate.items()},
        },
    )


def _renamed(structure: GraphStructure, names: Mapping[str, str]) -> GraphStructure:
    """Return a structure with its nodes renamed, without the fields for pictures, which the graph provides."""
    edges = (
        EdgeStructure(names.get(edge.source, edge.source), names.get(edge.target, edge.target), edge.label)
        for edge in structure.edges
    )
    return GraphStructure(tuple(names.get(node, node) for node in structure.nodes), tuple(edges))
