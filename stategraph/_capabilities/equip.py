"""Give a compiled graph the functions that its nodes, policies and schema need: a capability registers here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs

from stategraph._engine.step import StepExecution
from stategraph._graph.compiled import CompiledGraph, CompiledNode
from stategraph._values.frozen import freeze_items
from stategraph.errors import GraphError
from stategraph.stores.base import CheckpointStore

if TYPE_CHECKING:
    from stategraph._schema.schema import Schema


def equipped(plan: CompiledGraph, store: CheckpointStore) -> CompiledGraph:
    """Return a graph with what its nodes, its schema and its policies ask for.

    Args:
        plan: The graph, some of whose nodes are more than a function that is called once.
        store: Its store.

    Raises:
        GraphError: its schema holds values that no store can save.
    """
    nodes = {
        name: node if node.is_plain else attrs.evolve(node, execution=StepExecution)
        for name, node in plan.stages.items()
    }
    if any(node.policies.cache is not None for node in nodes.values()):
        nodes = _with_caches(plan.graph, nodes, store)
    plan = attrs.evolve(plan, stages=nodes, lacks=_lacks(plan, store))
    if any(node.node.graphs for node in nodes.values()):
        from stategraph._engine.subgraphs import NestedRun  # imported when used, as all that follows

        plan = attrs.evolve(plan, nested_run=NestedRun)
    return plan if plan.schema is None else _with_schema(plan, plan.schema)


def _lacks(plan: CompiledGraph, store: CheckpointStore) -> str:
    """Return what runs of the graph cannot do without, if that is not there."""
    pausing = {name: stage for name, stage in plan.stages.items() if stage.node.pauses}
    nested = [name for name, stage in pausing.items() if stage.node.has_parts]
    if pausing and not plan.saves:
        name = next(iter(pausing))
        return f"node {name!r} pauses runs, which takes checkpoints: set checkpoint.interval to 1 or more"
    if nested and not store.keeps_parts:
        return f"node {nested[0]!r} pauses runs within a graph, which takes a store that keeps parts"
    return ""


def _with_caches(graph: str, nodes: Mapping[str, CompiledNode], store: CheckpointStore) -> dict[str, CompiledNode]:
    from stategraph._engine.result_cache import with_caches
    from stategraph.stores._files.results import result_cache_of

    return with_caches(graph, nodes, lambda policy: result_cache_of(policy, store.signing_key))


def _with_schema(plan: CompiledGraph, schema: Schema) -> CompiledGraph:
    """Return the graph with defaults that are as its schema wants them."""
    from stategraph._values.registered_types import find_by_class

    unknown = [cls for cls in schema.classes if plan.saves and find_by_class(cls) is None]
    if unknown:
        raise GraphError(plan.graph, tuple(_not_registered(schema.name, cls) for cls in unknown))
    return attrs.evolve(plan, defaults=freeze_items(schema.checked("", plan.defaults, plan.defaults)))


def _not_registered(schema: str, cls: type) -> str:
    return (
        f"its schema {schema} holds values of class {cls.__qualname__}, which no store can save: "
        f"stategraph.register_type({cls.__name__}) says why"
    )
