"""CompiledGraph: an immutable graph that is ready to run."""

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
    """The options of `add_node`: policies, see NodePolicies, and whether it may replace a node."""

    retry: RetryPolicy | None
    timeout: float | None
    cache: CachePolicy | None
    on_error: str | None
    persist_chunks: bool
    replace: bool


@attrs.frozen
class NodePolicies:
    """The policies of a node.

    Attributes:
        retry: When and how often it is retried after a failure.
        timeout: Seconds that one attempt may take.
        cache: How its results are cached.
        on_error: The node that follows a failure.
        persist_chunks: Whether its chunks are kept, for readers in any process.
    """

    retry: RetryPolicy | None = None
    timeout: float | None = None
    cache: CachePolicy | None = None
    on_error: str | None = None
    persist_chunks: bool = False

    @property
    def needs_execution(self) -> bool:
        """Whether a step is more than one call of the node. A handler of failures alone does not count."""
        return any(each is not None for each in (self.retry, self.timeout, self.cache)) or self.persist_chunks

    def __attrs_post_init__(self) -> None:
        if self.timeout is not None and not is_seconds(self.timeout):
            raise ConfigError("timeout", self.timeout, "a number of seconds above 0")
        if self.retry is not None or self.cache is not None:
            from stategraph.policies import check_policies  # imported when used: few nodes have any

            check_policies(self.retry, self.cache)
        if not isinstance(self.persist_chunks, bool):
            raise ConfigError("persist_chunks", shorten(self.persist_chunks), "True or False")
        if self.on_error is not None and not isinstance(self.on_error, str):
            raise ConfigError("on_error", shorten(self.on_error), "the name of a node")


@attrs.frozen
class CompiledNode:
    """A node and the edges out of it.

    Attributes:
        name: Its name.
        node: The node.
        policies: Its policies.
        edges: The edges out of it, in the order in which they are tried.
        is_exit: Whether a run completes here.
        is_plain: Whether a step is one call of a function, as for most nodes. The engine calls plain nodes directly.
        kind: The command that calls a plain node.
        function: The function of a plain node; None if it takes a NodeContext as well.
        sure_edge: The first edge, if it is always taken; None if edges must be tried.
        execution: The class that executes a step of a node that is not plain:
            `stategraph._engine.step.StepExecution`.
        cache: The result cache: ``execute(step, attempts)`` is a part of the run.
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
    """A graph as the engine sees it. Many runs share one.

    Attributes:
        graph: The name of the graph.
        structure: Its structure, which is saved with its runs.
        entry: The name of the node where a run begins.
        stages: Its nodes by their names.
        interval: The number of steps between two saves; 0 saves only at the end of a call.
        saves: Whether anything is saved.
        write_behind: Whether saves are queued, and awaited at the end.
        loads_parts: Whether finished parts of an incomplete step are loaded from the store.
        keeps_parts: Whether parts are saved as they finish.
        preserve: Whether a run stays in the store when it completes. Otherwise it is deleted, unless it is nested.
        max_iterations: The most nodes that a call may enter.
        store: A description of the store, for errors.
        digest: Returns a text that is equal for mappings that a store saves as equal, and different for others; empty
            if they cannot be saved.
        copier: Returns a function that copies the values of a mapping as a store would load them, without values that
            cannot be saved.
        defaults: Values for keys that the input of a run lacks.
        schema: The schema of the States; None for any keys and values.
        persist: The only keys that are saved; None for all.
        async_node: The name of an async node, if there is one.
        nested_run: The class of nested runs, `stategraph._engine.subgraphs.NestedRun`; None if no node runs a graph.
        stands_at: For each removed node, the node at which its runs continue.
        renamed: The names that renamed nodes have now, by their old ones.
        moved_from: The names that the graph and its module had before.
        upgrades: Functions that make data of the next version of data, by the version.
        on_message: Returns the updates of a message, given the State and the given updates; None to take these.
        obstacle: The reason why the graph cannot run by itself; empty if it can. As a nested graph it uses the
            checkpoints of the outer graph.
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
    renamed: Mapping[str, str] = attrs.field(factory=dict)
    moved_from: tuple[str, ...] = ()
    upgrades: Mapping[int, Callable[[dict[str, Any]], Mapping[str, Any]]] = attrs.field(factory=dict)
    on_message: Callable[[Any, Any], Mapping[str, Any]] | None = None
    obstacle: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The name of the graph, and the old ones of it and of its module."""
        return self.graph, *self.moved_from

    @property
    def unsaved_defaults(self) -> dict[str, Any]:
        """The defaults of keys that are not saved."""
        return {
            key: value for key, value in self.defaults.items() if self.persist is not None and key not in self.persist
        }

    def saved_of(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return the data of a State, or updates of it, without the keys that are not saved."""
        return {key: value for key, value in data.items() if self.persist is None or key in self.persist}


def nested_in(graph: CompiledGraph, outer: CompiledGraph) -> CompiledGraph:
    """Return the graph for a nested run. The outer graph determines when it is saved."""
    nested = attrs.evolve(
        graph,
        interval=outer.interval if outer.loads_parts else 0,
        saves=outer.loads_parts,
        store=outer.store,
        write_behind=False,  # the outer run waits for the queue
        loads_parts=outer.loads_parts,
        keeps_parts=outer.keeps_parts,
        preserve=outer.keeps_parts,
        persist=graph.persist if outer.loads_parts else None,
    )
    return with_saved_keys(nested)


def with_saved_keys(graph: CompiledGraph) -> CompiledGraph:
    """Return the graph with a schema that knows the keys that are saved, and checks that they can be loaded."""
    if graph.schema is None:
        return graph
    saved = (graph.schema.fields if graph.persist is None else graph.persist) if graph.saves else ()
    return attrs.evolve(graph, schema=attrs.evolve(graph.schema, saved=saved))
