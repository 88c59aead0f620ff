"""What keeps the runs of a graph from starting, or from reaching an exit point."""

from __future__ import annotations

from collections.abc import Iterable

from stategraph._values.provenance import GraphStructure


def problems_of(structure: GraphStructure, count: int) -> list[str]:
    """Return everything that keeps runs from starting, or from reaching an exit point; empty if nothing does.

    Args:
        structure: The structure of the graph.
        count: How many of its edges are taken by what their predicates say; the others lead to handlers of failures.
    """
    nodes, entry, exits, problems = structure.nodes, structure.entry, structure.exits, []
    ways = [(edge.source, edge.target) for edge in structure.edges]
    if not nodes:
        problems.append("it has no nodes; add_node adds one")
    if entry is None:
        problems.append("it has no entry point; set_entry_point sets it")
    if not exits:
        problems.append("it has no exit point; set_exit_point sets one")
    # A run completes at an exit point: edges out of one are never taken.
    taken = [way for way in ways[:count] if way[0] not in exits]
    sources = {source for source, _ in taken}
    taken += [way for way in ways[count:] if way[1] in nodes]
    if entry is not None:
        reached = _reachable({entry}, taken)
        problems += [
            f"node {name!r} cannot be reached from the entry point {entry!r}" for name in nodes if name not in reached
        ]
    dead_ends = [name for name in nodes if name not in exits and name not in sources]
    problems += [f"node {name!r} is a dead end: it has no edge out and is no exit point" for name in dead_ends]
    if exits:
        leading_out = _reachable({*exits, *dead_ends}, [(target, source) for source, target in taken])
        problems += [f"no exit point can be reached from node {name!r}" for name in nodes if name not in leading_out]
    return problems


def _reachable(start: set[str], edges: Iterable[tuple[str, str]]) -> set[str]:
    """Return the nodes that can be reached from those in `start`, which they include."""
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
