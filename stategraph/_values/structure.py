"""The structure of a graph: what is kept of it with a run, to tell whether a saved State still fits."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import attrs


@attrs.frozen(order=True)
class EdgeStructure:
    """An edge, as far as it can be compared across processes: `label` is its name, or what its predicate is made of."""

    source: str = attrs.field(validator=attrs.validators.instance_of(str))
    target: str = attrs.field(validator=attrs.validators.instance_of(str))
    label: str = attrs.field(validator=attrs.validators.instance_of(str))

    def __str__(self) -> str:
        return f"{self.source!r} -> {self.target!r} ({self.label})"


def _all_are(cls: type) -> Any:
    return attrs.validators.deep_iterable(attrs.validators.instance_of(cls))


@attrs.frozen(slots=False)
class GraphStructure:
    """Node names, and edges in the order in which they are tried.

    The code of nodes and predicates is not part of it: a run must survive the fix of the bug that stopped it.
    """

    nodes: tuple[str, ...] = attrs.field(validator=_all_are(str))
    edges: tuple[EdgeStructure, ...] = attrs.field(validator=_all_are(EdgeStructure))

    @cached_property
    def fingerprint(self) -> str:
        """32 hexadecimal digits, the same for the same structure in every process."""
        import hashlib  # imported when used: OpenSSL takes 4 ms

        parts = [*sorted(self.nodes), "", *(part for edge in self._by_source() for part in attrs.astuple(edge))]
        return hashlib.sha256("\n".join(map(repr, parts)).encode()).hexdigest()[:32]

    def _by_source(self) -> list[EdgeStructure]:
        """Return the edges grouped by their source; only within a group does the order matter."""
        return sorted(self.edges, key=lambda edge: edge.source)
