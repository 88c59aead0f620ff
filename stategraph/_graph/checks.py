"""What can be wrong with a graph that has a schema or caches, or saves only some keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any

from stategraph._graph.compiled import NodePolicies
from stategraph._text.shown import with_article
from stategraph.errors import SchemaError
from stategraph.nodes.base import Node
from stategraph.nodes.function import FunctionNode
from stategraph.nodes.schema_calls import object_class

if TYPE_CHECKING:
    from stategraph._schema.schema import Schema  # imported when used: cattrs
    from stategraph.policies import CachePolicy


def further_problems(
    schema: Schema | None,
    nodes: Mapping[str, Node],
    policies: Mapping[str, NodePolicies],
    defaults: Mapping[str, Any],
    persist: AbstractSet[str],
    *,
    is_sound: bool,
) -> Iterator[str]:
    """Yield what keeps nodes and policies from working with the schema, the caches and the keys that are saved.

    Args:
        schema: The schema; None for any keys and values.
        nodes: The nodes by their names.
        policies: What they do beyond being called.
        defaults: Values for keys that a run has no value for.
        persist: The only keys that are saved; empty for all.
        is_sound: Whether nothing else is wrong: if so, nested graphs could not say what they ask for.
    """
    for name, node in nodes.items():
        if node.writes & persist and node.writes - persist:
            from stategraph._progress.origins import mixture  # imported when used, as those below

            is_sound = False
            yield f"node {name!r}: {mixture(node.writes - persist, node.writes & persist)}"
    for name, policy in policies.items():
        for problem in () if policy.cache is None else _cache_problems(name, nodes[name], policy.cache):
            is_sound = False
            yield problem
    if schema is None:
        yield from _untyped_problems(nodes)
    elif is_sound:
        yield from _schema_problems(schema, nodes, policies, defaults, persist)


def _cache_problems(name: str, node: Node, policy: CachePolicy) -> Iterator[str]:
    """Yield what keeps the results of a node from being cached."""
    from stategraph._util.code_version import is_told
    from stategraph.nodes.interrupt import InterruptNode

    made_of = node.made_of()
    if isinstance(node, InterruptNode):
        yield f"node {name!r} pauses runs: what somebody answers cannot be cached"
    elif policy.version is None and (made_of is None or not is_told(made_of)):
        yield f"node {name!r} does more than its code tells: cache it with CachePolicy(version=...)"


def _schema_problems(
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


def _untyped_problems(nodes: Mapping[str, Node]) -> Iterator[str]:
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
    from stategraph._progress.origins import AllBut  # imported when used

    named = persist.keys if isinstance(persist, AllBut) else persist
    known = dict.fromkeys(sorted(named), "checkpoint.persist names")
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
