"""How the structure of a graph has changed since a run was saved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from stategraph._values.provenance import EdgeStructure, GraphStructure


def changes_since(old: GraphStructure, new: GraphStructure) -> tuple[str, ...]:
    """Return what was added, removed and rewired, in words; empty if nothing was."""
    changes = [f"node {name!r} was added" for name in new.nodes if name not in old.nodes]
    changes += [f"node {name!r} was removed" for name in old.nodes if name not in new.nodes]
    here, there = Counter(new.edges), Counter(old.edges)
    changes += [f"edge {edge} was added" for edge in here - there]
    changes += [f"edge {edge} was removed" for edge in there - here]
    if not changes and new.fingerprint != old.fingerprint:
        changes = [f"the edges out of {name!r} are tried in another order" for name in _reordered(old, new)]
    return tuple(changes)


def renamed(structure: GraphStructure, names: Mapping[str, str]) -> GraphStructure:
    """Return a structure with other names for its nodes."""
    edges = (
        EdgeStructure(names.get(edge.source, edge.source), names.get(edge.target, edge.target), edge.label)
        for edge in structure.edges
    )
    return GraphStructure(tuple(names.get(node, node) for node in structure.nodes), tuple(edges))


def _reordered(old: GraphStructure, new: GraphStructure) -> list[str]:
    def out_of(structure: GraphStructure, name: str) -> list[EdgeStructure]:
        return [edge for edge in structure.edges if edge.source == name]

    return [name for name in new.nodes if out_of(new, name) != out_of(old, name)]
