"""Resumes of runs whose graph has changed: whether a run can continue, and under which names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import TypeAlias

import attrs

from stategraph._graph.compiled import CompiledGraph
from stategraph._graph.versions import upgraded
from stategraph._values.progress import Progress, evolved, pause_of
from stategraph._values.provenance import EdgeStructure, GraphStructure, RunStatus
from stategraph.errors import CheckpointCorruptError, GraphMismatchError, RunCompleteError
from stategraph.state import State, evolve, first_graph


def check_compatible(plan: CompiledGraph, saved: State, allow_changed: bool, path: str = "") -> None:
    """Raise an error unless the saved State can continue in this graph.

    Args:
        plan: The graph.
        saved: The saved State.
        allow_changed: Whether the nodes and edges of the graph may have changed.
        path: The path from the outermost graph to this one: names of nodes, each followed by a slash.
    """
    if saved.graph is not None and saved.graph not in plan.names:
        raise other_graph(plan, saved, "Resume it with that graph.")
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
                f"Its nodes are {', '.join(plan.stages)}; if it was renamed, resume with migrate={names}, "
                "or declare it with graph.renamed. "
                f'If it was removed, graph.stands_at({{{node!r}: "..."}}) names the node to continue at.'
            )
            raise GraphMismatchError(saved.run_id, (change,), way_out)
    changes = () if saved.structure is None or allow_changed else _changes_since(saved.structure, plan.structure)
    if changes:
        raise GraphMismatchError(
            saved.run_id,
            changes,
            "To continue all the same, resume it with allow_changed=True; for renamed nodes, pass "
            + (f"migrate={{'{path}old': '{path}new'}}." if path else "migrate={old: new}."),
        )


def other_graph(plan: CompiledGraph, saved: State, way_out: str) -> GraphMismatchError:
    """Return the error for a run of a graph of another name."""
    change = f"it is a run of graph {saved.graph!r}, not of {plan.graph!r}"
    old = f" If that is an old name of this graph, declare graph.moved_from({saved.graph!r})."
    return GraphMismatchError(saved.run_id, (change,), way_out + old)


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
        kept = progress.kept_names if progress else {}
        left = (progress or Progress()).without_step().changed(next_node=plan.stands_at[node], kept_names=kept)
        saved = evolve(saved, status=RunStatus.ACTIVE, error=None, pause=None, progress=left)
    elif last not in removed:
        return saved
    old = saved.structure and attrs.evolve(
        plan.structure, module=saved.structure.module, settings=saved.structure.settings
    )
    return evolve(saved, checkpoint_node="" if last in removed else last, structure=old)


def _changes_since(old: GraphStructure, new: GraphStructure) -> tuple[str, ...]:
    """Return descriptions of all changes between two structures."""
    changes = [] if old == new else [*_changed_parts(old, new)]
    kinds = ((name, _kind_of(name, old), _kind_of(name, new)) for name in new.nodes if name in old.nodes)
    changes += [f"node {name!r} was a {was}, and is a {now} now" for name, was, now in kinds if was and was != now]
    if old.settings is not None and new.settings is not None:
        names = sorted({*old.settings, *new.settings})
        settings = ((name, old.settings.get(name, "missing"), new.settings.get(name, "missing")) for name in names)
        changes += [f"setting {name!r} was {was}, and is {now} now" for name, was, now in settings if was != now]
    return tuple(changes)


@lru_cache(maxsize=64)  # many runs of a store have the same structure
def _changed_parts(old: GraphStructure, new: GraphStructure) -> tuple[str, ...]:
    """Return descriptions of the changes of nodes and edges."""
    changes = [f"node {name!r} was added" for name in new.nodes if name not in old.nodes]
    changes += [f"node {name!r} was removed" for name in old.nodes if name not in new.nodes]
    here, there = Counter(new.edges), Counter(old.edges)
    changes += [f"edge {edge} was added" for edge in here - there]
    changes += [f"edge {edge} was removed" for edge in there - here]
    if not changes:
        reordered = [name for name in new.nodes if _edges_out_of(name, new) != _edges_out_of(name, old)]
        changes = [f"the edges out of {name!r} are tried in another order" for name in reordered]
    return tuple(changes)


def other_module(plan: CompiledGraph, saved: State) -> str:
    """Return the module whose graph made a saved State, if it is known and not that of this graph; else ""."""
    theirs, ours = "" if saved.structure is None else saved.structure.module, plan.structure.module
    # A main script is known by the name of its file: "flows" and "app.flows" may be the same.
    is_same = f".{theirs}".endswith(f".{ours}") or f".{ours}".endswith(f".{theirs}")
    return "" if is_same or theirs in plan.moved_from or not (theirs and ours) else theirs


def began_elsewhere(plan: CompiledGraph, module: str) -> str:
    """Describe the graph of another module whose run this graph has found."""
    return f"graph {plan.graph!r} of module {module!r} began it, and this one is of module {plan.structure.module!r}"


def _kind_of(name: str, structure: GraphStructure) -> str:
    """Return the kind of a node; empty if it is unknown, as in structures that older versions have saved."""
    return "" if structure.entry is None else structure.kinds.get(name, "function")


def _edges_out_of(name: str, structure: GraphStructure) -> list[EdgeStructure]:
    return [edge for edge in structure.edges if edge.source == name]


# --------------------------------------------------------------------------- the step under way


Places: TypeAlias = Mapping[str, tuple[int, str]]
"""The step and the name under which nodes keep their parts, by the names of the nodes; see `Progress.kept_names`."""


def carried_over(plan: CompiledGraph, saved: State, migrate: Mapping[str, str]) -> tuple[State, Places]:
    """Return a saved State for this graph: with its nodes renamed, and not at a node listed as removed.

    `migrate` has the new names that a call gives; those that the graph declares are applied if the run is older. Also
    return the places of nodes that may have been under way and that the graph no longer has, or has as another
    kind of node.

    Raises:
        GraphMismatchError: `migrate` names unknown nodes, or the data cannot be upgraded.
    """
    saved = upgraded(plan, saved)
    if saved.graph is not None and saved.graph != plan.graph and saved.graph in plan.names:
        names = evolved(saved.progress, first_graph=first_graph(saved) or saved.graph)
        saved = evolve(saved, graph=plan.graph, progress=names)
    moved = migrate_state(_keeping_step(plan, saved), {**_declared(plan, saved.structure), **migrate}, plan)
    old, kept = moved.structure, moved.progress.kept_names if moved.progress else {}
    lost = {
        name: at
        for name, at in kept.items()
        if name not in plan.stages or (old and _kind_of(name, old) not in ("", _kind_of(name, plan.structure)))
    }
    # A new node that has the old name of a renamed one gets another place.
    places, step = {*kept.values()}, saved.step + 1
    new = {name: (step, f"{name}\nnew") for name in plan.stages if name not in kept and (step, name) in places}
    left = {name: at for name, at in kept.items() if name in plan.stages} | new
    if left != kept:
        moved = evolve(moved, progress=evolved(moved.progress, kept_names=left))
    return off_removed(plan, moved), lost


def _declared(plan: CompiledGraph, old: GraphStructure | None) -> dict[str, str]:
    """Return the declared new names of nodes that a graph of this structure had, and did not have under them."""
    had = () if old is None else old.nodes
    return {
        name: new
        for name, new in plan.renamed.items()
        if (name not in plan.stages if old is None else name in had and new not in had)
    }


def _keeping_step(plan: CompiledGraph, saved: State) -> State:
    """Return a State of a changed graph with the place of the step under way, until its node completes.

    The changed graph may come to such a node in a later step. Its finished parts, its nested run and its idempotency
    keys are still those of the step in which it began.
    """
    old, progress = saved.structure, saved.progress or Progress()
    if old is None or saved.status is RunStatus.COMPLETED or not _changes_since(old, plan.structure):
        return saved
    kept = {name: progress.kept_at(name, saved.step + 1) for name in nodes_under_way(saved, old)}
    return evolve(saved, progress=progress.changed(kept_names={**progress.kept_names, **kept}))


def nodes_under_way(saved: State, structure: GraphStructure) -> list[str]:
    """Return the nodes that may have been under way when the run stopped, without a call of predicates."""
    node = (saved.pause.node if saved.pause else "") or (saved.progress.next_node if saved.progress else "")
    if not node and not saved.checkpoint_node:
        node = structure.entry or ""
    return [node] if node else [edge.target for edge in _edges_out_of(saved.checkpoint_node, structure)]


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
        if new not in plan.stages and new not in plan.stands_at
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
        kept_names={migrate.get(name, name): at for name, at in progress.kept_names.items()},
    )


def _renamed(structure: GraphStructure, names: Mapping[str, str]) -> GraphStructure:
    """Return a structure with its nodes renamed."""
    edges = (
        EdgeStructure(names.get(edge.source, edge.source), names.get(edge.target, edge.target), edge.label)
        for edge in structure.edges
    )
    return attrs.evolve(
        structure,
        nodes=tuple(names.get(node, node) for node in structure.nodes),
        edges=tuple(edges),
        entry=names.get(structure.entry or "", structure.entry),
        exits=tuple(names.get(node, node) for node in structure.exits),
        outlines={names.get(node, node): outline for node, outline in structure.outlines.items()},
    )
