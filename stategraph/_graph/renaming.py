"""Nodes that were renamed since a State was saved."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from stategraph._graph.compiled import CompiledGraph
from stategraph._values.progress import Pause, Progress, evolved, pause_of
from stategraph._values.provenance import EdgeStructure, GraphStructure
from stategraph.errors import GraphMismatchError
from stategraph.state import State, evolve


def split_migration(
    migrate: Mapping[str, str], plan: CompiledGraph
) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Return the new names of the graph's own nodes, and those of each nested graph, by the node that runs it."""
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
        GraphMismatchError: the graph has no node of a new name, or had none of an old one.
    """
    if not migrate:
        return saved
    is_done = saved.structure == plan.structure  # it was renamed before: resuming can be repeated as it was
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
    pause = saved.pause and pause_of([_renamed_pause(pause, migrate) for pause in saved.pause.each])
    return evolve(
        saved,
        checkpoint_node=migrate.get(saved.checkpoint_node, saved.checkpoint_node),
        structure=saved.structure and _renamed(saved.structure, migrate),
        pause=pause,
        progress=_moved_progress(saved.progress or Progress(), migrate),
    )


def _renamed_pause(pause: Pause, names: Mapping[str, str]) -> Pause:
    return attrs.evolve(pause, node=names.get(pause.node, pause.node))


def _moved_progress(progress: Progress, migrate: Mapping[str, str]) -> Progress | None:
    """Return the progress with new names. Parts of the step that is being made are kept under the old ones."""
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
    """Return a structure with other names for its nodes; without what is drawn, which the graph brings."""
    edges = (
        EdgeStructure(names.get(edge.source, edge.source), names.get(edge.target, edge.target), edge.label)
        for edge in structure.edges
    )
    return GraphStructure(tuple(names.get(node, node) for node in structure.nodes), tuple(edges))
