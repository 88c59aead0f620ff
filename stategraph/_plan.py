"""Compile a graph for its configuration and store, and read short configurations."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import Any

import attrs

from stategraph._graph.compiled import CompiledGraph, CompiledNode, with_saved_keys
from stategraph._values.events import Listener
from stategraph._values.frozen import freeze_items
from stategraph.config import CheckpointConfig, GraphConfig
from stategraph.errors import ConfigError, GraphError, NotSerializableError
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
        saves_keys: Whether to save only the keys that the configuration names.
        handled: Whether nodes have handlers of failures, which put errors into the State.
    """
    checkpoint = config.checkpoint
    errors = ("error",) if handled else ()  # always saved, because no node can compute an error again
    persist = saved_keys(checkpoint, errors) if saves_keys else None
    plan = compiled(
        persist,
        interval=0 if checkpoint.durability == "exit" else checkpoint.interval,
        saves=checkpoint.interval > 0,
        write_behind=checkpoint.durability == "async",
        loads_parts=checkpoint.interval > 0 and store.keeps_parts,
        keeps_parts=checkpoint.interval > 0 and store.keeps_parts and checkpoint.durability != "exit",
        preserve=checkpoint.preserve,
        max_iterations=config.max_iterations,
        store=str(store),
        digest=_digest_of,
        copier=_copier_of,
    )
    return plan if all(stage.is_plain for stage in plan.stages.values()) else equipped(plan, store)


def equipped(plan: CompiledGraph, store: CheckpointStore) -> CompiledGraph:
    """Return the graph with the classes that execute nodes which are not plain, with caches, and with checked defaults.

    Raises:
        GraphError: Its schema, or that of a nested graph, holds values that no store can save.
    """
    from stategraph._engine.step import StepExecution  # imported when used, as the others below

    nodes = {
        name: node if node.is_plain else attrs.evolve(node, execution=StepExecution)
        for name, node in plan.stages.items()
    }
    if any(node.policies.cache is not None for node in nodes.values()):
        nodes = _with_caches(plan.graph, nodes, store)
    plan = attrs.evolve(plan, stages=nodes, obstacle=_obstacle(plan, store))
    if any(node.node.graphs for node in nodes.values()):
        from stategraph._engine.subgraphs import NestedRun

        plan = attrs.evolve(plan, nested_run=NestedRun)
    if plan.saves and (problems := tuple(_unsaved(plan))):
        raise GraphError(plan.graph, problems)
    schema = with_saved_keys(plan).schema
    if schema is None:
        return plan
    return attrs.evolve(plan, schema=schema, defaults=freeze_items(schema.checked("", plan.defaults, plan.defaults)))


def _unsaved(plan: CompiledGraph, where: str = "") -> Iterator[str]:
    """Yield the classes that no store can save, in its schema and in those of its nested graphs."""
    from stategraph._values.registered_types import call_for, find_by_class

    if plan.schema is not None:
        for cls in plan.schema.classes:
            if find_by_class(cls) is None:
                way_out = call_for(cls) or f"stategraph.register_type({cls.__name__}) says why"
                values = f"its schema {plan.schema.name} holds values of class {cls.__qualname__}"
                yield f"{where}{values}, which no store can save: {way_out}"
    node: Any
    for name, stage in plan.stages.items():
        for node in stage.node.graphs:
            yield from _unsaved(node.plan(), f"{where}in graph {node.graph.name!r} of node {name!r}: ")


def _obstacle(plan: CompiledGraph, store: CheckpointStore) -> str:
    """Return why the graph cannot run by itself; empty if it can."""
    pausing = {name: stage for name, stage in plan.stages.items() if stage.node.pauses}
    nested = [name for name, stage in pausing.items() if stage.node.has_parts]
    if pausing and not plan.saves:
        name = next(iter(pausing))
        way_out = 'give the graph a store, as in store="runs.db", or set checkpoint.interval to 1 or more'
        return f"node {name!r} pauses runs, which needs checkpoints: {way_out}"
    if nested and not store.keeps_parts:
        return f"node {nested[0]!r} pauses a nested run, which needs a store that keeps parts"
    return ""


def _with_caches(graph: str, nodes: Mapping[str, CompiledNode], store: CheckpointStore) -> dict[str, CompiledNode]:
    from stategraph._engine.caching import with_caches
    from stategraph.stores._files.results import result_cache_of

    return with_caches(graph, nodes, lambda policy: result_cache_of(policy, store.signing_key, store.cipher))


def saved_keys(checkpoint: CheckpointConfig, errors: tuple[str, ...] = ()) -> AbstractSet[str]:
    """Return the keys to save: those that `persist` names, and `errors`."""
    persist = checkpoint.persist
    if not isinstance(persist, Mapping):
        return frozenset((*(persist or ()), *errors))
    from stategraph._progress import AllBut  # imported when used

    return AllBut(frozenset(persist["except"]).difference(errors))


def _digest_of(*parts: Mapping[str, Any]) -> str:
    from stategraph.stores._codec.msgpack import digest_of  # imported when used: few nodes have pauses or parts

    return digest_of(*parts)


def _copier_of(values: Mapping[str, Any]) -> Callable[[], dict[str, Any]]:
    from stategraph.stores._codec.msgpack import decode, encode  # imported when used: few retries require copies

    kept: dict[str, bytes] = {}
    for key, value in values.items():
        with suppress(NotSerializableError):
            kept[key] = encode([value])
    return lambda: {key: decode(packed)[0] for key, packed in kept.items()}


# --------------------------------------------------------------------------- short configurations


def short_config(
    given: object,
    store: CheckpointStore | str | os.PathLike[str] | None,
    observer: Listener | str | None,
    preserve: bool | None,
) -> tuple[GraphConfig, CheckpointStore | None, Listener | None]:
    """Return the configuration of a graph, and the store and observer objects, from the arguments of StateGraph.

    Args:
        given: The configuration; or the name of the graph, which saves every step if there is a store.
        store: A store; or its address, which replaces the store and its place in the configuration. Other options of
            the store stay.
        observer: An observer; or its name, which replaces the one in the configuration.
        preserve: Replaces the value in the configuration, unless it is None.

    Raises:
        ConfigError: The name or the address of the store is not valid.
    """
    config = given if isinstance(given, GraphConfig) else _named(given, has_store=store is not None)
    changes: dict[str, Any] = {} if preserve is None else {"preserve": preserve}
    if isinstance(store, str | os.PathLike):
        from stategraph.stores.registry import PLACES, store_at  # imported when used

        kind, options = store_at(store)
        others = {name: value for name, value in config.checkpoint.options.items() if name not in PLACES}
        changes |= {"store": kind, "options": {**others, **options}}
        store = None
    if changes:
        config = attrs.evolve(config, checkpoint=CheckpointConfig(**{**config.checkpoint.given(), **changes}))
    if isinstance(observer, str):
        config, observer = attrs.evolve(config, observer=observer), None
    return config, store, observer


def _named(name: object, *, has_store: bool) -> GraphConfig:
    if isinstance(name, type):
        allowed = (
            f'the name of the graph comes first; a class is the schema: StateGraph("name", schema={name.__name__})'
        )
        raise ConfigError("config", name.__name__, allowed)
    if not isinstance(name, str):
        allowed = (
            'the name of the graph, as in StateGraph("orders"), or a GraphConfig, as GraphConfig.from_dict makes it'
        )
        raise ConfigError("config", name, allowed, is_shown=name is None or callable(name))
    return GraphConfig(name, checkpoint=CheckpointConfig(interval=1 if has_store else 0))
