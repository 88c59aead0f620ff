"""Computing keys again that were not saved, when a run is resumed: only the nodes that wrote them run again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import attrs

from stategraph._engine.context import RunContext
from stategraph._engine.endings import end_early
from stategraph._engine.step import StepExecution
from stategraph._graph.compiled import CompiledGraph
from stategraph._progress.origins import GIVEN
from stategraph._protocol.commands import Task
from stategraph._text.shown import describe_exception, shorten
from stategraph._values.events import EventType
from stategraph._values.frozen import lay_over
from stategraph._values.progress import Origin, evolved
from stategraph._values.provenance import RunStatus
from stategraph.errors import RecomputeError
from stategraph.nodes.function import data_from
from stategraph.nodes.step import PartTold
from stategraph.state import State, data_of, evolve, with_data


class Recomputation(StepExecution):
    """The repetition of a step that was completed before: nothing of it is shown or saved."""

    saves_nothing = True

    def show_chunk(self, chunk: Any) -> Task[None]:
        yield from ()

    def keep_incoming(self, *, at_last: bool = False) -> Task[None]:
        yield from ()

    def finished_parts(self, made_of: Mapping[str, Any], mark: str = "") -> Task[dict[str, Any]]:
        yield from ()
        return {}

    def keep_parts(self, finished: Mapping[str, Any], made_of: Mapping[str, Any], mark: str = "") -> Task[None]:
        yield from ()

    def tell_parts(self, parts: Iterable[PartTold], total: int) -> Task[None]:
        yield from ()


def whole(
    run: RunContext, saved: State, updates: Mapping[str, Any], inputs: Mapping[str, Any]
) -> Task[tuple[State, Mapping[str, Any]]]:
    """Return a saved State with the keys that were not saved, and the updates that remain to be laid over it.

    While they are computed, the run stays as it is saved: it can be resumed in the same way again.
    """
    run.state = run.saved = evolve(saved, progress=evolved(saved.progress, partial=None))
    try:
        restored_whole = yield from restored(run, run.state, updates, inputs)
    except GeneratorExit:
        raise
    except BaseException as error:
        yield from end_early(run, error)
        raise
    run.saved = None
    return restored_whole


def restored(
    run: RunContext, saved: State, updates: Mapping[str, Any], inputs: Mapping[str, Any]
) -> Task[tuple[State, Mapping[str, Any]]]:
    """Return a saved State with the keys that were not saved, and the updates that remain to be laid over it.

    Updates change what is there now. But where a key cannot be computed again, and something else was made of it, its
    update is the value that it had.

    Args:
        run: The run.
        saved: The State.
        updates: Keys that are given.
        inputs: What the run began with, where that is known.

    Raises:
        RecomputeError: a key can neither be computed again nor is it given.
    """
    work = _Work.of(run.plan, saved, updates, inputs)
    data = lay_over(work.defaults, data_of(saved))
    for origin, keys in work.in_order():
        if origin.node == GIVEN:
            data = lay_over(data, {key: work.supplied[key] for key in keys})
        else:
            data = {**data, **(yield from _again(run, with_data(saved, data), origin, keys))}
    origins = work.origins_after()
    made = {key: value for key, value in data.items() if key not in work.defaults}
    state = evolve(with_data(saved, made), progress=evolved(saved.progress, origins=origins))
    return state, {key: value for key, value in updates.items() if key not in work.supplied}


def _again(run: RunContext, state: State, origin: Origin, keys: list[str]) -> Task[dict[str, Any]]:
    """Return the values that a node writes for keys when it makes its step again."""
    stage = run.plan.stages[origin.node]
    before = evolve(state, step=origin.step - 1, status=RunStatus.ACTIVE, error=None, pause=None)
    step = Recomputation(run, stage, before)
    yield from step.tell(EventType.NODE_RECOMPUTE, keys=tuple(keys))
    try:
        values = _taken((yield from step.result()), before, keys)
    except Exception as error:
        reason = f"node {shorten(origin.node)} fails when it runs again: {describe_exception(error)}"
        raise RecomputeError(state.run_id, dict.fromkeys(keys, reason)) from error
    return values


def _taken(result: Any, before: State, keys: list[str]) -> dict[str, Any]:
    """Return the values of keys in what a node returned. Raises ValueError if it did not write them again."""
    if isinstance(result, State) and result.pause is not None:
        raise ValueError(f"it pauses the run ({result.pause.reason})")
    data = data_from(result, before)
    lost = [key for key in keys if key not in data]
    if lost:
        raise ValueError(f"this time it does not write {', '.join(map(shorten, lost))}")
    return {key: data[key] for key in keys}


@attrs.frozen
class _Work:
    """What is to be done for the keys that are missing.

    Attributes:
        origins: All origins.
        missing: Those of the missing keys.
        needed: The keys that are to be there, for themselves or because others were made of them.
        supplied: The values of needed keys that are given because they cannot be computed.
        defaults: Values that come by themselves.
    """

    origins: Mapping[str, Origin]
    missing: Mapping[str, Origin]
    needed: frozenset[str]
    supplied: Mapping[str, Any]
    defaults: dict[str, Any]

    @classmethod
    def of(cls, plan: CompiledGraph, saved: State, updates: Mapping[str, Any], inputs: Mapping[str, Any]) -> _Work:
        origins = saved.progress.origins if saved.progress else {}
        missing = {key: origin for key, origin in origins.items() if key not in saved}
        needed = _needed(plan, missing, updates)
        reasons = {key: _obstacle(plan, missing[key]) for key in sorted(needed)}
        supplied: dict[str, Any] = {}
        for key in [key for key, reason in reasons.items() if reason]:
            origin = missing[key]
            if key in updates:
                supplied[key] = updates[key]
            elif key in inputs and origin.node == GIVEN and origin.step == 0:
                supplied[key] = inputs[key]
        refused = {key: reason for key, reason in reasons.items() if reason and key not in supplied}
        if refused:
            raise RecomputeError(saved.run_id, refused)
        persist = plan.persist if plan.persist is not None else plan.defaults.keys()
        known = persist, origins, saved
        defaults = {key: value for key, value in plan.defaults.items() if not any(key in keys for keys in known)}
        return cls(origins, missing, needed, supplied, defaults)

    def in_order(self) -> Iterator[tuple[Origin, list[str]]]:
        """Yield origins with the keys to take from there, in the order of their steps; of one step, given keys last."""
        grouped: dict[tuple[int, bool, str], list[str]] = {}
        for key in sorted(self.needed):
            origin = self.missing[key]
            node = GIVEN if key in self.supplied else origin.node
            grouped.setdefault((origin.step, node == GIVEN, node), []).append(key)
        for (step, _, node), keys in sorted(grouped.items()):
            yield Origin(node, step, ()), keys

    def origins_after(self) -> dict[str, Origin]:
        """Return the origins of all keys that are there now."""
        after = {key: origin for key, origin in self.origins.items() if key not in self.missing or key in self.needed}
        return {**after, **{key: Origin(GIVEN, after[key].step, ()) for key in self.supplied}}


def _needed(plan: CompiledGraph, missing: Mapping[str, Origin], updates: Mapping[str, Any]) -> frozenset[str]:
    """Return the missing keys that are not given, and those that these were made of."""
    needed = missing.keys() - updates.keys()
    for key, origin in sorted(missing.items(), key=lambda item: item[1].step, reverse=True):
        if key in needed and _obstacle(plan, origin) is None:
            before = {other for other in missing if missing[other].step < origin.step}
            needed |= before if origin.read is None else before & origin.read
    return frozenset(needed)


def _obstacle(plan: CompiledGraph, origin: Origin) -> str | None:
    """Return what keeps a key from being computed again; None if nothing does."""
    if origin.node == GIVEN:
        return "no node wrote it: it came with the input of the run, an update, or a failure"
    node = f"node {shorten(origin.node)}, which wrote it,"
    if origin.node not in plan.stages:
        return f"{node} is not in the graph"
    if plan.stages[origin.node].node.pauses:
        return f"{node} took it from an answer"
    if origin.overwritten is not None:
        return f"{node} had read {shorten(origin.overwritten)}, which was overwritten or removed since"
    return None
