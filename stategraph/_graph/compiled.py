"""CompiledGraph: a graph made ready to run, which never changes again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, TypedDict

import attrs

from stategraph._protocol import CommandType
from stategraph._text.shown import shorten
from stategraph._util.validators import is_seconds
from stategraph._values.provenance import GraphStructure
from stategraph.edges import Edge
from stategraph.errors import ConfigError
from stategraph.nodes.base import Node
from stategraph.nodes.function import NodeFunction

if TYPE_CHECKING:
    from stategraph._schema.schema import Schema  # imported when used: cattrs
    from stategraph.nodes.base import NestedStep
    from stategraph.policies import CachePolicy, RetryPolicy


class Policies(TypedDict, total=False):
    """What may be said of a node that is added, as of NodePolicies."""

    retry: RetryPolicy | None
    timeout: float | None
    cache: CachePolicy | None
    on_error: str | None


@attrs.frozen
class NodePolicies:
    """What a node does beyond being called.

    Attributes:
        retry: Try it again when it fails.
        timeout: Seconds that one attempt may take.
        cache: Keep its results.
        on_error: The node that a run goes to when it has failed.
    """

    retry: RetryPolicy | None = None
    timeout: float | None = None
    cache: CachePolicy | None = None
    on_error: str | None = None

    @property
    def is_at_work(self) -> bool:
        """Whether a call takes more than calling the node. A handler of failures does not make it so."""
        return self.retry is not None or self.timeout is not None or self.cache is not None

    def __attrs_post_init__(self) -> None:
        if self.timeout is not None and not is_seconds(self.timeout):
            raise ConfigError("timeout", self.timeout, "a number of seconds above 0")
        if self.retry is not None or self.cache is not None:
            from stategraph.policies import check_policies  # imported when used: few nodes have any

            check_policies(self.retry, self.cache)
        if self.on_error is not None and not isinstance(self.on_error, str):
            raise ConfigError("on_error", shorten(self.on_error), "the name of a node")


@attrs.frozen
class CompiledNode:
    """A node and the edges out of it.

    Attributes:
        name: Its name.
        node: The node.
        policies: What it does beyond being called.
        edges: The edges out of it, in the order in which they are tried.
        is_exit: Whether a run completes here.
        is_plain: Whether it is a function that is called once, as most are. The engine calls these itself.
        execution: The class whose objects make a step of it, where it is not plain: they are called with the run, this
            and the State, and have ``result()``, ``attempt`` and ``completed(state, is_failed=...)``.
        kind: The kind of the command that calls a plain one.
        function: What is called, where it is plain; None if it takes a NodeContext as well.
        sure_edge: The first edge, if it is always taken; None if edges have to be tried.
        cache: What looks after its results: ``execute(step, attempts)`` is a part of the run.
    """

    name: str
    node: Node
    policies: NodePolicies
    edges: tuple[Edge, ...]
    is_exit: bool
    is_plain: bool
    kind: type[CommandType]
    function: NodeFunction | None
    sure_edge: Edge | None
    execution: Any = None
    cache: Any = None


@attrs.frozen
class CompiledGraph:
    """All that the engine knows of a graph. Many runs share one.

    Attributes:
        graph: The graph's name.
        structure: What is saved of it with its runs.
        entry: The name of the node where a run starts.
        stages: Its nodes by their names.
        interval: Every how many steps a State is saved; 0 for only at the end of a call.
        saves: Whether anything is saved at all.
        write_behind: Whether a Save may be done later, and is waited for at the end.
        loads_parts: Whether finished parts of a step that did not complete are looked for in the store.
        keeps_parts: Whether they are saved as they finish.
        preserve: Whether a run is saved when it completes.
        forgets: Whether it is deleted then, if it is not preserved.
        max_iterations: How many nodes one call may enter.
        store: The store in words, for errors.
        digest: Returns a text that is equal for mappings that a store keeps as the same, and for no others; empty if no
            store can keep them.
        copier: Returns a function that makes copies of the values of a mapping, as a store would load them. It leaves
            out those that no store can keep.
        defaults: Values for keys that a run has no value for.
        schema: What keys there may be, and what their values are; None for any.
        persist: The only keys that are saved; None for all.
        async_node: The name of a node that is async, if there is one.
        nested_run: Makes the run of a graph that is a step of this one, or a part of one: the class
            `stategraph._engine.subgraphs.NestedRun`; None if no node runs a graph.
        stands_at: For nodes that were removed, the nodes that runs which stand there go on from.
        lacks: What keeps it from running by itself. Nested, it has the checkpoints of the outer graph.
    """

    graph: str
    structure: GraphStructure
    entry: str
    stages: Mapping[str, CompiledNode]
    interval: int
    saves: bool
    write_behind: bool
    loads_parts: bool
    keeps_parts: bool
    preserve: bool
    forgets: bool
    max_iterations: int
    store: str
    digest: Callable[..., str]
    copier: Callable[[Mapping[str, Any]], Callable[[], dict[str, Any]]]
    defaults: Mapping[str, Any] = attrs.field(factory=dict)
    schema: Schema | None = None
    persist: AbstractSet[str] | None = None
    async_node: str | None = None
    nested_run: Callable[..., NestedStep] | None = None
    stands_at: Mapping[str, str] = attrs.field(factory=dict)
    lacks: str = ""


def nested_in(graph: CompiledGraph, outer: CompiledGraph) -> CompiledGraph:
    """Return the graph as it runs as a step of another, which decides when something is saved."""
    return attrs.evolve(
        graph,
        interval=outer.interval if outer.loads_parts else 0,
        saves=outer.loads_parts,
        store=outer.store,
        write_behind=False,  # what its saves wait in is waited for by the outer run
        loads_parts=outer.loads_parts,
        keeps_parts=outer.keeps_parts,
        preserve=outer.keeps_parts,
        forgets=False,  # until the step that it is part of is saved, it may have to go on once more
        persist=graph.persist if outer.loads_parts else None,
    )
