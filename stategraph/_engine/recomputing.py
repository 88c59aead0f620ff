"""Steps that run again: for the unsaved keys of a run that is resumed, and for `StateGraph.replay`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

import attrs

from stategraph._engine.context import RunContext, described
from stategraph._engine.ending import end_early
from stategraph._engine.step import StepExecution
from stategraph._graph.compiled import CompiledGraph, CompiledNode
from stategraph._progress import GIVEN
from stategraph._protocol import Task
from stategraph._text.shown import shorten
from stategraph._values.events import PART_EVENTS, EventType
from stategraph._values.frozen import lay_over
from stategraph._values.progress import Origin, evolved
from stategraph._values.provenance import RunStatus
from stategraph.errors import RecomputeError
from stategraph.nodes.function import data_from
from stategraph.state import State, data_of, evolve, with_data

_Restored = tuple[State, Mapping[str, Any]]
_NOT_EMITTED = PART_EVENTS | {EventType.PART_RETRY, EventType.NODE_CHUNK}


def with_unsaved_keys(
    run: RunContext, saved: State, updates: Mapping[str, Any], inputs: Mapping[str, Any]
) -> Task[_Restored]:
    """Return a saved State with its unsaved keys, and the updates that still apply.

    During the computation the saved run does not change, so it can be resumed in the same way again. An update replaces
    the current value of its key. But if a key cannot be recomputed and another value was derived from it, its update is
    taken as the value it had.

    Args:
        run: The run.
        saved: The State.
        updates: Keys that are given.
        inputs: The input of the run, if known.

    Raises:
        RecomputeError: a key can neither be recomputed nor is it given.
    """
    run.state = run.saved = evolve(saved, progress=evolved(saved.progress, partial=None))
    try:
        restored = yield from _restored(run, run.state, updates, inputs)
    except BaseException as error:
        yield from end_early(run, error)
        raise
    run.saved = None
    return restored


def _restored(run: RunContext, saved: State, updates: Mapping[str, Any], inputs: Mapping[str, Any]) -> Task[_Restored]:
    plan, origins = run.plan, saved.progress.origins if saved.progress else {}
    missing = {key: origin for key, origin in origins.items() if key not in saved}
    obstacles = {key: reason for key, origin in missing.items() if (reason := _obstacle(plan, origin))}
    needed = _needed(missing, obstacles, updates)
    begun_with = {key: inputs[key] for key in inputs.keys() & missing if _is_input(missing[key])}
    given = {**begun_with, **updates}
    supplied = {key: given[key] for key in needed & obstacles.keys() & given.keys()}
    refused = {key: obstacles[key] for key in sorted(needed & obstacles.keys() - supplied.keys())}
    if refused:
        raise RecomputeError(saved.run_id, refused)
    persist = plan.persist if plan.persist is not None else plan.defaults.keys()
    known = persist, origins, saved
    defaults = {key: value for key, value in plan.defaults.items() if not any(key in keys for keys in known)}
    data = lay_over(defaults, data_of(saved))
    # In the order of the steps; within one step, keys that are given come last.
    sources: dict[tuple[int, bool, str], list[str]] = {}
    for key in sorted(needed):
        source = (missing[key].step, key in supplied, missing[key].node)
        sources.setdefault(source, []).append(key)
    for (step, is_supplied, node), keys in sorted(sources.items()):
        if is_supplied:
            data = lay_over(data, {key: supplied[key] for key in keys})
        else:
            data = {**data, **(yield from _recomputed(run, with_data(saved, data), node, step, keys))}
    after = {key: origin for key, origin in origins.items() if key not in missing or key in needed}
    after |= {key: Origin(GIVEN, missing[key].step, ()) for key in supplied}
    restored = with_data(saved, {key: value for key, value in data.items() if key not in defaults})
    state = evolve(restored, progress=evolved(saved.progress, origins=after))
    return state, {key: value for key, value in updates.items() if key not in supplied}


def _is_input(origin: Origin) -> bool:
    return origin.node == GIVEN and origin.step == 0


def _needed(missing: Mapping[str, Origin], obstacles: Mapping[str, str], updates: Mapping[str, Any]) -> frozenset[str]:
    """Return the missing keys that are not given, and the missing keys they were derived from."""
    needed = missing.keys() - updates.keys()
    for key, origin in sorted(missing.items(), key=lambda item: item[1].step, reverse=True):
        if key in needed and key not in obstacles:
            before = {other for other in missing if missing[other].step < origin.step}
            needed |= before if origin.read is None else before & origin.read
    return frozenset(needed)


def _obstacle(plan: CompiledGraph, origin: Origin) -> str:
    """Return the reason why a key cannot be recomputed; empty if it can."""
    if origin.node == GIVEN:
        return "no node wrote it: it came with the input of the run, an update, or a failure"
    node = f"node {shorten(origin.node)}, which wrote it,"
    if origin.node not in plan.stages:
        return f"{node} is not in the graph"
    if plan.stages[origin.node].node.pauses:
        return f"{node} took it from an answer"
    if origin.overwritten is not None:
        return f"{node} had read {shorten(origin.overwritten)}, which was overwritten or removed since"
    return ""


def _recomputed(run: RunContext, state: State, node: str, step: int, keys: list[str]) -> Task[dict[str, Any]]:
    """Execute a step of a node again and return its values for some keys. Nothing is shown or saved."""
    progress = evolved(state.progress, kept_names={})  # they are of the step under way
    before = evolve(state, step=step - 1, progress=progress)
    try:
        return _values_of((yield from _result(run, run.plan.stages[node], before, keys)), keys)
    except Exception as error:
        reason = f"node {shorten(node)} fails when it runs again: {described(run, error)}"
        raise RecomputeError(state.run_id, dict.fromkeys(keys, reason)) from error


def _result(run: RunContext, stage: CompiledNode, before: State, keys: Sequence[str] = ()) -> Task[dict[str, Any]]:
    """Execute the step after a State again; return the data after it. Nothing is shown or saved.

    Raises:
        Exception: the node fails, or does an effect; or it pauses (ValueError).
    """
    again = copy(run)
    again.plan = attrs.evolve(run.plan, interval=0, saves=False, loads_parts=False, keeps_parts=False)
    again.shows = again.streams = False
    again.wanted, again.unsaved_parts = run.wanted - _NOT_EMITTED, []
    again.is_recomputing = not run.repeat_effects
    again.state = evolve(before, status=RunStatus.ACTIVE, error=None, pause=None)
    execution = StepExecution(again, stage, again.state)
    yield from execution.emit(EventType.NODE_RECOMPUTE, keys=tuple(keys))
    result = yield from execution.result()
    if isinstance(result, State) and result.pause is not None:
        raise ValueError(f"it pauses the run ({result.pause.reason})")
    return data_from(result, execution.state)


def executed_again(run: RunContext, saved: State, node: str) -> Task[dict[str, Any]]:
    """Return the data that the step of a node after a State has now, without unsaved keys. Raises as the node does."""
    plan, (before, _) = run.plan, (yield from _restored(run, saved, {}, {}))
    before = with_data(before, lay_over(plan.unsaved_defaults, data_of(before)))
    return plan.saved_of((yield from _result(run, attrs.evolve(plan.stages[node], cache=None), before)))


def _values_of(data: dict[str, Any], keys: list[str]) -> dict[str, Any]:
    """Return the values of keys from the data after a node. Raises ValueError if the node did not write them again."""
    lost = [key for key in keys if key not in data]
    if lost:
        raise ValueError(f"this time it does not write {', '.join(map(shorten, lost))}")
    return {key: data[key] for key in keys}
