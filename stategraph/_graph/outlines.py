"""What the nodes of a graph are, for pictures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs

from stategraph._graph.compiled import NodePolicies
from stategraph._values.progress import NodeOutline, Structures
from stategraph.nodes.base import Node

_FUNCTION = NodeOutline()


def outlines_of(
    nodes: Mapping[str, Node], policies: Mapping[str, NodePolicies], others: Structures
) -> dict[str, NodeOutline]:
    """Return the outlines of the nodes that are more than a function that is called once."""
    outlines = {name: _outline_of(node, policies[name], others) for name, node in nodes.items()}
    return {name: outline for name, outline in outlines.items() if outline != _FUNCTION}


def _outline_of(node: Node, policies: NodePolicies, others: Structures) -> NodeOutline:
    outline = node.outline(others) or _FUNCTION
    return attrs.evolve(outline, notes=(*outline.notes, *_notes(policies)))


def _notes(policies: NodePolicies) -> Iterator[str]:
    if policies.retry is not None:
        yield f"up to {policies.retry.max_attempts} attempts"
    if policies.timeout is not None:
        yield f"at most {policies.timeout:g} s"
    if policies.cache is not None:
        yield "cached"
