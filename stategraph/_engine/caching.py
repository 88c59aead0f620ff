"""The cache of a node: its results by its inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from stategraph._engine.step import StepExecution
from stategraph._graph.compiled import CompiledNode
from stategraph._protocol import Assist, Task
from stategraph._util.callables import version_of
from stategraph._values.events import EventType
from stategraph._values.progress import CachedResult, Changes
from stategraph.nodes.function import changes_from, with_changes
from stategraph.policies import CachePolicy
from stategraph.state import State


@attrs.define(eq=False)
class NodeCache:
    """The results of a node.

    Attributes:
        graph: The name of its graph.
        name: The name of the node.
        version: The version of the node's behaviour.
        policy: The CachePolicy.
        results: The cache itself, a `stategraph.stores._files.results.ResultCache`, which never raises.
    """

    graph: str
    name: str
    version: str
    policy: CachePolicy
    results: Any
    _has_warned: bool = attrs.field(default=False, init=False)

    def execute(self, step: StepExecution, attempts: Callable[[], Task[Any]]) -> Task[Any]:
        """Return a cached result, or the result of the node after its attempts."""
        if step.is_answered:
            return (yield from attempts())
        if step.state.keys().isdisjoint(self.policy.inputs):  # for example because their names are misspelled
            reason = f"none of its inputs is in the State: {', '.join(self.policy.inputs)}"
            self._warn(reason)
            yield from step.emit(EventType.CACHE_MISS, key=None, reason=reason)
            return (yield from attempts())
        found: CachedResult = yield (Assist, self._find, step.tracked_state)
        if found.changes is not None:
            yield from step.emit(EventType.CACHE_HIT, key=found.key)
            return with_changes(step.state, *found.changes)
        yield from step.emit(EventType.CACHE_MISS, key=found.key, reason=found.reason)
        result = yield from attempts()
        if found.key is not None and not step.is_answered and not _pauses(result):
            yield (Assist, self._keep, (found.key, changes_from(result, step.state), step.state.run_id))
        return result

    def _find(self, state: State) -> CachedResult:
        keys = sorted(set(self.policy.inputs))
        inputs = {key: state[key] for key in keys if key in state}
        found: CachedResult = self.results.find(
            [self.graph, self.name, self.version, keys, inputs], self.policy.ttl, state.run_id
        )
        if found.is_broken:
            self._warn(found.reason)
        return found

    def _keep(self, result: tuple[str, Changes, str]) -> None:
        key, changes, run_id = result
        failure = self.results.keep(key, changes, self.policy.ttl, run_id)
        if failure:
            self._warn(failure)

    def _warn(self, reason: str) -> None:
        """Log once that the cache cannot be used; the run continues without it."""
        if not self._has_warned:
            self._has_warned = True
            import logging  # imported when used: 5 ms

            logging.getLogger("stategraph").warning(
                "node %r of graph %r: its cache was not used (logged once): %s", self.name, self.graph, reason
            )


def with_caches(
    graph: str, stages: Mapping[str, CompiledNode], open_results: Callable[[CachePolicy], Any]
) -> dict[str, CompiledNode]:
    """Return the nodes of a graph; nodes with a CachePolicy get their cache."""
    opened: dict[tuple[str, int], Any] = {}

    def made(stage: CompiledNode) -> CompiledNode:
        policy = stage.policies.cache
        if policy is None:
            return stage
        place = str(policy.path), id(policy.sign_with)
        if place not in opened:
            opened[place] = open_results(policy)
        version = version_of(stage.node.made_of() or ()) if policy.version is None else f"={policy.version!r}"
        return attrs.evolve(stage, cache=NodeCache(graph, stage.name, version, policy, opened[place]))

    return {name: made(stage) for name, stage in stages.items()}


def _pauses(result: object) -> bool:
    return isinstance(result, State) and result.pause is not None
