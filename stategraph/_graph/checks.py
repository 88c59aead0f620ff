"""Validation of a graph: all problems that keep its runs from working."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any

from stategraph._graph.compiled import NodePolicies
from stategraph._text.shown import with_article
from stategraph._values.provenance import GraphStructure
from stategraph.errors import SchemaError
from stategraph.nodes.base import Node
from stategraph.nodes.function import FunctionNode

if TYPE_CHECKING:
    from stategraph._schema.schema import Schema  # imported when used: cattrs
    from stategraph.policies import CachePolicy


def problems_of(
    structure: GraphStructure,
    nodes: Mapping[str, Node],
    policies: Mapping[str, NodePolicies],
    *,
    declared: Mapping[str, Iterable[str]],
    schema: Schema | None,
    defaults: Mapping[str, Any],
    persist: AbstractSet[str],
) -> list[str]:
    """Return all problems of a graph; empty if it is valid.

    Args:
        structure: The structure of the graph.
        nodes: The nodes by name.
        policies: The policies of the nodes by name.
        declared: The nodes that declarations about old nodes name, by the methods that make them.
        schema: The schema; None for any keys and values.
        defaults: Values for keys that the input of a run lacks.
        persist: The only keys that are saved; empty for all.
    """
    handlers = {name: policy.on_error for name, policy in policies.items() if policy.on_error is not None}
    problems = list(_unsound(structure, len(structure.edges) - len(handlers)))
    for name, node in nodes.items():
        problems += node.problems(name)
        if node.writes & persist and node.writes - persist:
            from stategraph._progress import mixture  # imported when used, as those below

            problems.append(f"node {name!r}: {mixture(node.writes - persist, node.writes & persist)}")
    for name, handler in handlers.items():
        if handler not in nodes:
            problems.append(f"node {name!r} has on_error={handler!r}, but no node has this name")
    problems += [
        f"{method} names {name!r}, but no node has this name"
        for method, names in declared.items()
        for name in names
        if name not in nodes
    ]
    for name, policy in policies.items():
        if policy.cache is not None:
            problems += _cache_problems(name, nodes[name], policy.cache)
    if schema is None:
        problems += _untyped_problems(nodes)
    elif not problems:  # invalid nested graphs could not name the keys they need
        problems += _schema_problems(schema, nodes, policies, defaults, persist)
    return problems


def _unsound(structure: GraphStructure, count: int) -> Iterator[str]:
    """Yield the problems that keep runs from starting or from reaching an exit point.

    Args:
        structure: The structure of the graph.
        count: The number of its ordinary edges; the edges after them lead to handlers of failures.
    """
    nodes, entry, exits = structure.nodes, structure.entry, structure.exits
    ways = [(edge.source, edge.target) for edge in structure.edges]
    if not nodes:
        yield "it has no nodes; add_node adds one"
    if entry is None:
        yield "it has no entry point; set_entry_point sets it"
    if not exits:
        yield "it has no exit point; set_exit_point sets one"
    # A run completes at an exit point: edges out of one are never taken.
    taken = [way for way in ways[:count] if way[0] not in exits]
    dead_ends = [name for name in nodes if name not in {*exits, *(source for source, _ in taken)}]
    taken += [way for way in ways[count:] if way[1] in nodes]
    reached = set(nodes) if entry is None else _reachable({entry}, taken)
    yield from (
        f"node {name!r} cannot be reached from the entry point {entry!r}" for name in nodes if name not in reached
    )
    yield from (f"node {name!r} is a dead end: it has no edge out and is no exit point" for name in dead_ends)
    if exits:
        leading_out = _reachable({*exits, *dead_ends}, [(target, source) for source, target in taken])
        yield from (f"no exit point can be reached from node {name!r}" for name in nodes if name not in leading_out)


def _reachable(start: set[str], edges: Iterable[tuple[str, str]]) -> set[str]:
    """Return the nodes that can be reached from the nodes in `start`, including these."""
    following: dict[str, list[str]] = {}
    for source, target in edges:
        following.setdefault(source, []).append(target)
    reached, new = set(start), list(start)
    while new:
        for target in following.get(new.pop(), ()):
            if target not in reached:
                reached.add(target)
                new.append(target)
    return reached


def _cache_problems(name: str, node: Node, policy: CachePolicy) -> Iterator[str]:
    """Yield why the results of a node cannot be cached."""
    from stategraph._util.callables import is_determined_by_code
    from stategraph.nodes.interrupt import InterruptNode

    made_of = node.made_of()
    if isinstance(node, InterruptNode):
        yield f"node {name!r} pauses runs: answers cannot be cached"
    elif policy.version is None and (made_of is None or not is_determined_by_code(made_of)):
        yield f"node {name!r} does more than its code shows: cache it with CachePolicy(version=...)"


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
    """Yield the problems of nodes in a graph without a schema."""
    for name, node in nodes.items():
        if not isinstance(node, FunctionNode) or not getattr(node.given, "__annotations__", None):
            continue
        from stategraph.nodes.schema_calls import object_class  # imported when used

        cls = object_class(node.given)
        if cls is not None:
            way_out = f"make the graph with StateGraph(config, schema={cls.__name__})"
            yield f"node {name!r} takes {with_article(cls.__name__)}, and gets a State: {way_out}"


def _keys_named(
    nodes: Mapping[str, Node], policies: Mapping[str, NodePolicies], persist: AbstractSet[str]
) -> dict[str, str]:
    """Return the keys that the graph uses, each with a description of one place that uses it."""
    from stategraph._progress import AllBut  # imported when used

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
