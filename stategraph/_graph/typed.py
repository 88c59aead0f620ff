"""What can be wrong with a graph that has a schema: nodes, policies and defaults have to fit it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from stategraph._graph.policies import NodePolicies
from stategraph._schema.schema import Schema
from stategraph._text.shown import with_article
from stategraph.errors import SchemaError
from stategraph.nodes.base import Node
from stategraph.nodes.function import FunctionNode
from stategraph.nodes.schema_calls import object_class


def schema_problems(
    schema: Schema,
    nodes: Mapping[str, Node],
    policies: Mapping[str, NodePolicies],
    defaults: Mapping[str, Any],
    persist: AbstractSet[str],
) -> list[str]:
    """Return why nodes, policies and defaults do not fit the schema."""
    handled = any(policy.on_error is not None for policy in policies.values())
    problems = list(schema.problems(_keys_named(nodes, policies, persist)))
    if handled and "error" not in schema.fields:
        problems.append(f"on_error needs this field in {schema.name}: error: dict[str, str] | None = None")
    written = {"error": dict.fromkeys(("type", "message", "node"), "")} if handled and not problems else {}
    for what, data in (("its defaults", defaults), ("what on_error writes", written)):
        try:
            schema.checked("", data, data)
        except SchemaError as error:
            problems.append(f"{what}: {error}")
    return problems


def untyped_problems(nodes: Mapping[str, Node]) -> Iterator[str]:
    """Yield why nodes cannot work in a graph without a schema."""
    for name, node in nodes.items():
        cls = object_class(node.given) if isinstance(node, FunctionNode) else None
        if cls is not None:
            way_out = f"make the graph with StateGraph(config, schema={cls.__name__})"
            yield f"node {name!r} takes {with_article(cls.__name__)}, and gets a State: {way_out}"


def _keys_named(
    nodes: Mapping[str, Node], policies: Mapping[str, NodePolicies], persist: AbstractSet[str]
) -> dict[str, str]:
    """Return the keys that are named anywhere, each with one place that names it."""
    known = dict.fromkeys(sorted(persist), "checkpoint.persist names")
    for name, policy in policies.items():
        if policy.cache is not None:
            known |= dict.fromkeys(policy.cache.inputs, f"the cache of node {name!r} names")
    for name, node in nodes.items():
        known |= dict.fromkeys(node.asks_for, f"node {name!r} takes an answer under")
        known |= dict.fromkeys(node.reads, f"node {name!r} reads")
        known |= dict.fromkeys(node.writes, f"node {name!r} writes")
    for name, policy in policies.items():
        if policy.on_error is not None:
            known["error"] = f"node {name!r} has on_error, which writes"
    return known
