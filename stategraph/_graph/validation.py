"""What can be wrong with a graph as a whole."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from stategraph.edges import Edge


def problems_of(
    nodes: Sequence[str],
    edges: Sequence[Edge],
    handlers: Sequence[tuple[str, str]],
    entry: str | None,
    exits: Collection[str],
) -> list[str]:
    """Return everything that keeps runs from starting, or from reaching an exit point; empty if nothing does.

    Args:
        nodes: The names of the nodes.
        edges: The edges.
        handlers: Pairs of a node and the one that handles its failures.
        entry: The node where runs start.
        exits: The nodes where runs complete.
    """
    problems = []
    if not nodes:
        problems.append("it has no nodes; add_node adds one")
    if entry is None:
        problems.append("it has no entry point; set_entry_point sets it")
    if not exits:
        problems.append("it has no exit point; set_exit_point sets one")
    # A run completes at an exit point: edges out of one are never taken.
    taken = [(edge.source, edge.target) for edge in edges if edge.source not in exits]
    sources = {source for source, _ in taken}
    taken += handlers
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
