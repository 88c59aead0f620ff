"""Versions of a graph: data of older ones are upgraded when a run goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from stategraph._graph.compiled import CompiledGraph
from stategraph._text.shown import describe_exception
from stategraph._values.frozen import check_mapping, freeze_items, plain_key
from stategraph._values.progress import Pause, evolved, pause_of
from stategraph.errors import GraphMismatchError
from stategraph.state import State, data_of, evolve, with_data


def version_of(state: State) -> int:
    """Return the version of the graph that saved a State; 0 if it had none."""
    return 0 if state.structure is None else state.structure.version


def upgraded(plan: CompiledGraph, saved: State) -> State:
    """Return a State of a run of this graph with its data as in the version of the graph.

    Raises:
        GraphMismatchError: It is of a newer version, or of an older one that has no upgrade; or the upgrade fails.
    """
    version = version_of(saved)
    if version == plan.structure.version or saved.structure is None or saved.graph not in plan.names:
        return saved
    before = data_of(saved)
    after = upgraded_data(plan, saved, before)
    progress = saved.progress
    if progress is not None and not progress.answered <= after.keys():  # an answer may have another key now
        progress = evolved(progress, answered=progress.answered | (after.keys() - before.keys()))
    pauses = [_as_asked_now(plan, pause) for pause in saved.pause.each] if saved.pause else []
    structure = attrs.evolve(saved.structure, version=plan.structure.version)
    saved = evolve(saved, structure=structure, progress=progress, pause=pause_of(pauses) if pauses else None)
    return evolve(with_data(saved, after), input_digest="")  # the same input has another form now


def upgraded_data(plan: CompiledGraph, saved: State, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return data of the version of a State as data of the version of the graph. Raises as `upgraded`."""
    version, newest = version_of(saved), plan.structure.version
    found = f"it is of version {version}, and the graph of version {newest}" if newest else ""
    if version > newest:
        change = found or f"it is of version {version}, and the graph has none"
        raise GraphMismatchError(saved.run_id, (change,), "Resume it with the newer graph.")
    for number in range(version, newest):
        function = plan.upgrades.get(number)
        if function is None and number:  # runs without a version count as version 1
            way_out = f"Declare graph.upgrade({number}, function), which makes data of version {number + 1} of them."
            raise GraphMismatchError(saved.run_id, (found,), way_out)
        if function is not None:
            try:
                given = function(dict(data))
                check_mapping(given)
                data = freeze_items({plain_key(key): value for key, value in given.items()})
            except Exception as error:
                change = f"its upgrade from version {number} failed: {describe_exception(error)}"
                raise GraphMismatchError(saved.run_id, (change,), "Correct the function of graph.upgrade.") from error
    return plan.saved_of(data)


def _as_asked_now(plan: CompiledGraph, pause: Pause) -> Pause:
    """Return a pause with the key under which its node takes the answer now."""
    stage = plan.stages.get(plan.renamed.get(pause.node, pause.node))
    if stage is None or stage.node.has_parts or len(stage.node.asks_for) != 1 or pause.key_of_data is None:
        return pause
    return attrs.evolve(pause, response_param=next(iter(stage.node.asks_for)))
