"""Whether a saved State can go on in a graph, and what it takes."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from stategraph.errors import CheckpointCorruptError, GraphMismatchError, RunCompleteError
from stategraph.plan import Plan
from stategraph.provenance import Pause, Progress, RunStatus, evolved
from stategraph.state import State, evolve


def check_fits(plan: Plan, saved: State, allow_changed: bool) -> None:
    """Raise unless the saved State can go on in this graph."""
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
            way_out = (
                f'Its nodes are {", ".join(plan.stages)}; if it was renamed, resume with migrate={{{node!r}: "..."}}.'
            )
            raise GraphMismatchError(saved.run_id, (change,), way_out)
    if saved.structure is not None and not allow_changed and saved.fingerprint != plan.structure.fingerprint:
        raise GraphMismatchError(
            saved.run_id,
            plan.structure.changes_since(saved.structure),
            "If it may go on all the same, resume it with allow_changed=True; nodes that were renamed are named by "
            "migrate={old: new}.",
        )


def _nodes_of(saved: State) -> list[str]:
    """-> the nodes that a State needs to go on."""
    pause, progress = saved.pause, saved.progress
    nodes = [saved.checkpoint_node, pause.node if pause else "", progress.next_node if progress else ""]
    return [node for node in nodes if node]


def moved(saved: State, migrate: Mapping[str, str], plan: Plan) -> State:
    """-> a saved State with its nodes renamed.

    Raises:
        GraphMismatchError: the graph has no node of a new name.
    """
    if not migrate:
        return saved
    missing = [new for new in migrate.values() if new not in plan.stages]
    if missing:
        changes = tuple(f"migrate names node {new!r}, which the graph does not have" for new in missing)
        raise GraphMismatchError(saved.run_id, changes, f"Its nodes are {', '.join(plan.stages)}.")
    pause = saved.pause and attrs.evolve(saved.pause, node=migrate.get(saved.pause.node, saved.pause.node))
    return evolve(
        saved,
        checkpoint_node=migrate.get(saved.checkpoint_node, saved.checkpoint_node),
        structure=saved.structure and saved.structure.renamed(migrate),
        pause=pause,
        progress=saved.progress and _moved_progress(saved.progress, migrate),
    )


def _moved_progress(progress: Progress, migrate: Mapping[str, str]) -> Progress | None:
    return evolved(
        progress,
        next_node=migrate.get(progress.next_node, progress.next_node),
        visited={migrate.get(node, node) for node in progress.visited},
        origins={
            key: attrs.evolve(origin, node=migrate.get(origin.node, origin.node))
            for key, origin in progress.origins.items()
        },
    )


def awake(paused: State, pause: Pause) -> State:
    """-> a paused State as one that goes on at the node that paused; the answer that it awaits can be given now."""
    answered = paused.progress.answered if paused.progress else frozenset()
    progress = evolved(
        paused.progress, next_node=pause.node, woken=pause.at, answered=answered - {pause.response_param}
    )
    return evolve(paused, status=RunStatus.ACTIVE, pause=None, progress=progress)
