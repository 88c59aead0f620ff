"""What can be wrong with a graph that has a schema: nodes, policies and defaults have to fit it."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from stategraph._graph.policies import NodePolicies
from stategraph._schema.schema import Schema
from stategraph.errors import SchemaError
from stategraph.nodes.base import Node


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
    written = {"error": dict.fromkeys(("type", "message", "node"), "")} if handled and not problems else {}
    for what, data in (("its defaults", defaults), ("what on_error writes", written)):
        try:
            schema.checked("", data, data)
        except SchemaError as error:
            problems.append(f"{what}: {error}")
    return problems


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
