"""What a compiled graph, and a run of it, take from the configuration and the store of their graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from stategraph._engine.context import RunContext
from stategraph._engine.io import RunIO
from stategraph._graph.compiled import CompiledGraph
from stategraph._values.events import Listener, wanted_events
from stategraph.config import CheckpointConfig, GraphConfig
from stategraph.errors import NotSerializableError
from stategraph.stores.base import CheckpointStore, RetentionPolicy

if TYPE_CHECKING:
    from stategraph.stores._save_queue import SaveQueue


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
    persist = saved_keys(checkpoint, errors) if saves_keys else None
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
        copier=_copier_of,
    )
    if all(stage.is_plain for stage in plan.stages.values()):
        return plan
    from stategraph._capabilities.equip import equipped  # imported when used: by graphs that need more than calls

    return equipped(plan, store)


def saved_keys(checkpoint: CheckpointConfig, errors: tuple[str, ...] = ()) -> AbstractSet[str]:
    """Return the keys that are saved where `persist` names some; `errors` always are."""
    persist = checkpoint.persist
    if not isinstance(persist, Mapping):
        return frozenset((*(persist or ()), *errors))
    from stategraph._progress.origins import AllBut  # imported when used

    return AllBut(frozenset(persist["except"]).difference(errors))


def new_run(
    plan: CompiledGraph, config: GraphConfig, store: CheckpointStore, observer: Listener, *, shows: bool, asked: Any
) -> RunContext:
    """Return the context of a call that runs a graph.

    Args:
        plan: The graph, compiled.
        config: Its configuration.
        store: Its store.
        observer: Hears of the run.
        shows: Whether its States are shown to whoever iterates over it.
        asked: What is said of the call, as the last arguments of RunContext.
    """
    checkpoint = config.checkpoint
    queue: SaveQueue | None = None
    if plan.write_behind:
        from stategraph.stores._save_queue import SaveQueue  # imported when used: for durability "async"

        queue = SaveQueue(store)
    policy = RetentionPolicy(checkpoint.retention, checkpoint.window, checkpoint.ttl)
    services = RunIO(store, observer, config.name, policy, plan.persist, queue)
    return RunContext(plan, services, wanted_events(observer), shows, *asked)


def blocks(run: RunContext) -> RunContext:
    """Return a run that blocks this thread. Raises where it cannot: its nodes are async, and a loop runs here."""
    plan, node = run.plan, run.plan.async_node
    if plan.nested_run is not None:  # nested graphs may have changed since this one was compiled
        node = next((name for name, stage in plan.stages.items() if stage.node.is_async), None)
    if node is not None:
        from stategraph._drivers.sync import check_no_loop  # imported when used: with async nodes

        check_no_loop(node, shows=run.shows)
    return run


def _digest_of(*parts: Mapping[str, Any]) -> str:
    from stategraph.stores._codec.msgpack import digest_of  # imported when used: by pauses, and parts of steps

    return digest_of(*parts)


def _copier_of(values: Mapping[str, Any]) -> Callable[[], dict[str, Any]]:
    from stategraph.stores._codec.msgpack import decode, encode  # imported when used: where retries meet such values

    kept: dict[str, bytes] = {}
    for key, value in values.items():
        with suppress(NotSerializableError):
            kept[key] = encode([value])
    return lambda: {key: decode(packed)[0] for key, packed in kept.items()}
