"""What a compiled graph takes from the configuration and the store of its graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from stategraph._graph.compiled import CompiledGraph
from stategraph.config import GraphConfig
from stategraph.stores.base import CheckpointStore


def plan_of(
    compiled: Callable[..., CompiledGraph],
    config: GraphConfig,
    store: CheckpointStore,
    saves_keys: bool,
    handled: bool,
) -> CompiledGraph:
    """Return a graph compiled for its configuration and store.

    Args:
        compiled: Compiles the graph.
        config: Its configuration.
        store: Its store.
        saves_keys: Whether only the keys are saved that the configuration names.
        handled: Whether errors of some nodes are handled, and put into the State.
    """
    checkpoint = config.checkpoint
    errors = ("error",) if handled else ()  # which no node could make again
    persist = frozenset((*(checkpoint.persist or ()), *errors)) if saves_keys else None
    plan = compiled(
        persist,
        interval=0 if checkpoint.durability == "exit" else checkpoint.interval,
        saves=checkpoint.interval > 0,
        write_behind=checkpoint.durability == "async",
        loads_parts=checkpoint.interval > 0 and store.keeps_parts,
        keeps_parts=checkpoint.interval > 0 and store.keeps_parts and checkpoint.durability != "exit",
        preserve=checkpoint.preserve,
        forgets=not checkpoint.preserve,
        max_iterations=config.max_iterations,
        store=str(store),
        digest=_digest_of,
    )
    if all(stage.is_plain for stage in plan.stages.values()):
        return plan
    from stategraph._capabilities.equip import equipped  # imported when used: by graphs that need more than calls

    return equipped(plan, store)


def _digest_of(*parts: Mapping[str, Any]) -> str:
    from stategraph.stores._codec.digest import digest_of  # imported when used: by pauses, and parts of steps

    return digest_of(*parts)
