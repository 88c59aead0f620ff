"""stategraph, drawing."""

from __future__ import annotations

from benchmarks.measure import Run
from benchmarks.rows.pictures import edges
from stategraph import GraphConfig, StateGraph, key_equals


def picture(nodes: int) -> Run:
    """A graph of so many nodes as SVG. Every other edge has a label."""
    graph = StateGraph(GraphConfig("drawn", observer="noop"))
    for number in range(nodes):
        graph.add_node(f"node-{number}", lambda state: {})
    for place, (source, target) in enumerate(edges(nodes)):
        graph.add_edge(source, target, key_equals("verdict", "good") if place % 2 else None)
    graph.set_entry_point("node-0")
    graph.set_exit_point(f"node-{nodes - 1}")
    return lambda: graph.picture().to_svg()
