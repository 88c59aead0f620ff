"""Plan: a graph made ready to run, which never changes again."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from stategraph.commands import Kind
from stategraph.edges import Edge
from stategraph.nodes.function import FunctionNode, NodeFunction
from stategraph.structure import GraphStructure


@attrs.frozen
class Stage:
    """A node and the ways out of it.

    Attributes:
        name: Its name.
        node: The node.
        kind: The kind of the command that calls it.
        function: What is called.
        edges: The edges out of it, in the order in which they are tried.
        is_exit: Whether a run completes here.
    """

    name: str
    node: FunctionNode
    kind: type[Kind]
    function: NodeFunction
    edges: tuple[Edge, ...]
    is_exit: bool


@attrs.frozen
class Plan:
    """All that the engine knows of a graph. Many runs share one.

    Attributes:
        graph: The graph's name.
        entry: The name of the stage where a run starts.
        interval: Every how many steps a State is saved; 0 for only at the end of a call.
        saves: Whether anything is saved at all.
        saves_behind: Whether a Save may be done later, and is waited for at the end.
        preserve: Whether a completed run stays in the store.
        max_iterations: How many nodes one call may enter.
        store: The store in words, for errors.
    """

    graph: str
    structure: GraphStructure
    entry: str
    stages: Mapping[str, Stage]
    interval: int
    saves: bool
    saves_behind: bool
    preserve: bool
    max_iterations: int
    store: str

    @property
    def async_node(self) -> str | None:
        """The name of a node that is async, if there is one."""
        return next((name for name, stage in self.stages.items() if stage.node.is_async), None)
