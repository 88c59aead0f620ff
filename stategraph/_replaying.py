"""Replays: steps of a run run again on the inputs that are kept, and are compared with their kept results."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from itertools import pairwise
from typing import cast

from stategraph._calls import ReplayCall
from stategraph._engine.context import RunContext
from stategraph._engine.recomputing import executed_again
from stategraph._engine.resume import fitting_saved
from stategraph._graph.changed import other_graph
from stategraph._graph.versions import upgraded
from stategraph._protocol import Load, Task
from stategraph.errors import ConfigError, UnknownNameError
from stategraph.state import State, with_data
from stategraph.stores.summaries import Difference, Replayed, Summary


def replay(run: RunContext, how: ReplayCall, run_id: str, nodes: Collection[str] | None) -> Task[list[Replayed]]:
    """Do what `StateGraph.replay` does. The run is not owned: nothing of it changes."""
    stages = run.plan.stages
    if isinstance(nodes, str):
        raise ConfigError("nodes", nodes, f"a list of names of nodes, as in [{nodes!r}]")
    for name in nodes or ():
        if name not in stages:
            raise UnknownNameError("node", name, stages)
    run.repeat_effects = how.get("repeat_effects", False)
    run.state = newest = cast(State, (yield (Load, run.session.load, run_id)))
    if newest.graph not in (None, *run.plan.names):
        raise other_graph(run.plan, newest, "Replay it with that graph.")
    rows: list[Summary] = yield (Load, run.session.store.history, run_id)
    # After a rollback, the later row of a step counts.
    steps = {row.step: (before, row) for before, row in pairwise(rows) if row.step == before.step + 1 <= newest.step}
    replayed: list[Replayed] = []
    for step in sorted(steps):
        before, row = steps[step]
        node = run.plan.renamed.get(row.checkpoint_node, row.checkpoint_node)
        if node in (stages if nodes is None else nodes):
            replayed.append((yield from _replayed(run, before, row, node)))
    return replayed


def _replayed(run: RunContext, before: Summary, row: Summary, node: str) -> Task[Replayed]:
    given, kept = (yield from _loaded(run, before)), (yield from _loaded(run, row))
    try:
        after = with_data(kept, (yield from executed_again(run, fitting_saved(run, given, {}), node)))
    except Exception as error:  # noqa: BLE001 - it belongs to the step
        return Replayed(row.step, node, kept, None, None, error)
    return Replayed(row.step, node, kept, after, Difference.between(kept, after))


def _loaded(run: RunContext, row: Summary) -> Task[State]:
    state: State = yield (Load, partial(run.session.store.load, row.run_id, row.step), row.revision)
    return upgraded(run.plan, state)
