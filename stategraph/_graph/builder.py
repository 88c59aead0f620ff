"""GraphBuilder: build and compile a graph."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, Unpack, overload

import attrs

from stategraph._graph.checks import problems_of
from stategraph._graph.compiled import CompiledGraph, CompiledNode, NodePolicies, Policies
from stategraph._protocol import RunHere, RunNode
from stategraph._text.shown import shorten
from stategraph._util.callables import problem_of, showing_options
from stategraph._util.validators import is_name, maps_texts, naming_arguments
from stategraph._values.frozen import check_mapping, freeze_items
from stategraph._values.progress import NodeOutline, Structures
from stategraph._values.provenance import EdgeStructure, GraphStructure, check_step
from stategraph.edges import Edge, Predicate, edges_of_route, predicate_problem
from stategraph.errors import GraphError, UnknownNodeError
from stategraph.nodes.base import Node
from stategraph.nodes.function import FunctionNode, NodeFunction
from stategraph.state import S, S_co, State

if TYPE_CHECKING:
    from stategraph._schema.schema import Schema
    from stategraph.nodes.function import AnyKeys, OfAny, OfObject, OfState, Returned
    from stategraph.policies import CachePolicy, RetryPolicy

_P = ParamSpec("_P")
_Result = TypeVar("_Result", bound="Returned")
_Name = TypeVar("_Name", str, str | None)


class _Decorator(Protocol[S_co]):
    """Adds a function of a State, or of an object of the schema, as a node, and returns it."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[State[S_co], _P], _Result], /
    ) -> Callable[Concatenate[Any, _P], _Result]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[S_co, _P], _Result], /
    ) -> Callable[Concatenate[Any, _P], _Result]: ...


@showing_options
class GraphBuilder(Generic[S]):
    """The nodes and edges of a graph that is being built.

    Args:
        name: The name of the graph.
        schema: The class whose fields are the keys of its States; None for any keys.
    """

    def __init__(self, name: str, schema: type | None = None) -> None:
        self._name = _plain(name)
        self._schema = None if schema is None else _schema_of(schema)
        self._lock = threading.Lock()
        self._nodes: dict[str, Node] = {}
        self._policies: dict[str, NodePolicies] = {}
        self._edges: list[Edge] = []
        self._defaults: dict[str, Any] = {}
        self._entry: str | None = None
        self._exits: set[str] = set()
        self._stands_at: dict[str, str] = {}
        self._renamed: dict[str, str] = {}
        self._moved_from: tuple[str, ...] = ()
        self._upgrades: dict[int, Callable[[dict[str, Any]], Mapping[str, Any]]] = {}
        self._on_message: Callable[[Any, Any], Mapping[str, Any]] | None = None
        self._identity: tuple[str, Mapping[str, str], int] = ("", {}, 0)  # module, settings and version

    @property
    def name(self) -> str:
        """The name of the graph, from its config."""
        return self._name

    @property
    def names(self) -> tuple[str, ...]:
        """The name of the graph, and those that `moved_from` declares."""
        return self._name, *self._moved_from

    @property
    def nodes(self) -> Mapping[str, NodeFunction | Node]:
        """The nodes by name, as they were added, in the order in which they were added."""
        return MappingProxyType({name: _as_given(node) for name, node in self._nodes.items()})

    @property
    def edges(self) -> tuple[Edge, ...]:
        """The edges, in the order in which they were added."""
        return tuple(self._edges)

    @property
    def structure(self) -> GraphStructure:
        """The structure of the graph, which is saved with its runs to detect changes, and for pictures."""
        return self.structure_in({})

    def structure_in(self, others: Structures) -> GraphStructure:
        """Return the structure. `others` holds the structures made before: a graph may be nested in many places."""
        policies, nodes = self._policies, self._nodes
        handlers = {name: policy.on_error for name, policy in policies.items() if policy.on_error is not None}
        failures = (EdgeStructure(name, handler, "on_error") for name, handler in handlers.items())
        edges = *(edge.structure for edge in self._edges), *failures
        exits = tuple(name for name in nodes if name in self._exits)
        outlines = _outlines_of(nodes, policies, others)
        return GraphStructure(tuple(nodes), edges, self._entry, exits, outlines, *self._identity)

    @property
    def fingerprint(self) -> str:
        """32 hexadecimal digits that change when nodes or edges change; the same in every process."""
        return self.structure.fingerprint

    # ------------------------------------------------------------------ building

    @overload  # the first one is that of a lambda, which gets a State
    def add_node(self, name: str, node: OfState[S] | Node, **policies: Unpack[Policies]) -> None: ...
    @overload
    def add_node(self, name: str, node: OfObject[S], **policies: Unpack[Policies]) -> None: ...
    @overload
    def add_node(self: GraphBuilder[AnyKeys], name: str, node: OfAny, **policies: Unpack[Policies]) -> None: ...
    @naming_arguments()
    def add_node(  # noqa: PLR0913 - the options of a node
        self,
        name: str,
        node: Any = None,
        *,
        retry: RetryPolicy | None = None,
        timeout: float | None = None,
        cache: CachePolicy | None = None,
        on_error: str | None = None,
        persist_chunks: bool = False,
        replace: bool = False,
    ) -> None:
        """Add a node.

        Args:
            name: The name of the node in the graph.
            node: A sync or async function of a State and, if it has a second parameter, of a NodeContext. It returns a
                State derived from its input, or a mapping of updates. Or a generator function that yields chunks and
                finally a State or `Updates`; or a node of stategraph, such as InterruptNode.
            retry: When and how often the node is retried after a failure.
            timeout: Seconds that one attempt may take. An async function is then cancelled. The thread of a sync
                function cannot be stopped: it continues, and its result is ignored.
            cache: How results are cached, so that the node runs only for new inputs; see CachePolicy.
            on_error: The node that follows a failure of this node. The State then has ``error``, a mapping of type,
                message and node. The failed node counts as a step.
            persist_chunks: Keep the chunks in the store, so that `follow` shows them in any process; see
                the page "Streams".
            replace: Take the place of the node of this name, if there is one, as a cell of a notebook that runs again
                does. Edges stay.

        Raises:
            GraphError: The name is taken or not valid, the node cannot be called with a State, or its first parameter
                is annotated with a class that is not the schema.
            ConfigError: A policy has a wrong type or value.
        """
        if not is_name(name):
            first = 'the name comes first: add_node("name", function)'
            allowed = first if callable(name) else "a name has 1 to 200 printable characters"
            raise self._error(f"a node is named {shorten(name)}; {allowed}")
        name = _plain(name)
        try:
            new = node if isinstance(node, Node) else FunctionNode.of(node)
        except TypeError as error:
            raise self._error(f"node {name!r}: {error}") from None
        self._typed(name, new)
        policies = NodePolicies(retry, timeout, cache, _plain(on_error), persist_chunks)
        with self._changing():
            if name in self._nodes and not replace:
                way_out = 'give this one another name, or replace it: add_node("name", ..., replace=True)'
                raise self._error(f"node {name!r} is already there; {way_out}")
            self._nodes[name] = new
            self._policies[name] = policies

    @overload
    def node(
        self, function: Callable[Concatenate[State[S], _P], _Result], /
    ) -> Callable[Concatenate[Any, _P], _Result]: ...
    @overload
    def node(self, function: Callable[Concatenate[S, _P], _Result], /) -> Callable[Concatenate[Any, _P], _Result]: ...
    @overload
    def node(self, name: str = ..., /, **policies: Unpack[Policies]) -> _Decorator[S]: ...
    def node(self, function_or_name: Any = ..., /, **policies: Unpack[Policies]) -> Any:
        """Add a function as a node; use it as a decorator.

        ``@graph.node`` adds the function under its own name, ``@graph.node("name")`` under another name, and
        ``@graph.node(retry=RetryPolicy())`` with the policies of `add_node`.
        """
        name = function_or_name if isinstance(function_or_name, str) else None

        def add(function: Any) -> Any:
            self.add_node(_own_name(function) if name is None else name, function, **policies)
            return function

        return add if function_or_name is ... or name is not None else add(function_or_name)

    def add_sequence(self, *nodes: OfState[S] | OfObject[S] | str) -> None:
        """Add functions as nodes under their own names, and an edge from each to the next.

        A str is the name of a node that was added before: ``graph.add_sequence("review", publish, notify)``.

        Raises:
            GraphError, UnknownNodeError: As for `add_node` and `add_edge`. Nothing after the culprit has been added.
        """
        names = [node if isinstance(node, str) else _own_name(node) for node in nodes]
        if "" in names:
            allowed = "functions and names of nodes, one by one; add_node adds other nodes, under a name"
            raise self._error(f"add_sequence is given {shorten(nodes[names.index('')])}; it takes {allowed}")
        for name, node in zip(names, nodes, strict=True):
            if not isinstance(node, str):
                self.add_node(name, node)
        for one, following in pairwise(names):
            self.add_edge(one, following)

    @naming_arguments()
    def add_edge(
        self, from_node: str, to_node: str, predicate: Predicate | None = None, *, name: str | None = None
    ) -> None:
        """Add a possible transition. The edges out of a node are tried in the order in which they were added.

        Args:
            from_node: The node that the edge leaves.
            to_node: The node that it leads to.
            predicate: Returns whether to take the edge, from the State after `from_node`. None always takes it.
            name: The name of the edge in events, errors and the structure that is saved with a run.

        Raises:
            UnknownNodeError: The graph has no such node.
            GraphError: The predicate is not a sync function of a State, or the graph already has the same edge.
        """
        edge = Edge(self._known(from_node), self._known(to_node), predicate, _plain(name))
        problem = "" if predicate is None else predicate_problem(predicate)
        if problem:
            raise self._error(
                f"edge {from_node!r} -> {to_node!r}: its predicate is {shorten(predicate)}; "
                f"a predicate is a sync function of a State (the name of an edge goes into name=): {problem}"
            )
        self._add_edges([edge])

    def _add_edges(self, edges: Iterable[Edge]) -> None:
        with self._changing():
            for edge in edges:
                if edge in self._edges:
                    raise self._error(f"edge {edge} is already there")
            self._edges.extend(edges)

    @naming_arguments()
    def add_route(
        self,
        from_node: str,
        function: Callable[[State], Any],
        targets: Mapping[Any, str] | Sequence[str] | AbstractSet[str],
        *,
        name: str | None = None,
    ) -> None:
        """Add edges out of a node, one of which a function chooses. It is called once, when these edges are tried.

        Args:
            from_node: The node that the edges leave.
            function: Chooses an edge, from the State after `from_node`.
            targets: The nodes that the edges lead to, by the results of the function; or the names of the nodes, if it
                returns names.
            name: The name of the edges, as for `add_edge`, to which the result is added: "verdict says 'good'".

        Raises:
            UnknownNodeError: The graph has no such node.
            GraphError: The function is not a sync function of a State, there are no targets, or the graph already has
                such an edge.
        """
        source = self._known(from_node)
        try:
            edges = edges_of_route(source, function, targets, name)
        except (TypeError, ValueError) as error:
            raise self._error(f"the route out of {source!r}: {error}") from None
        self._add_edges([attrs.evolve(edge, target=self._known(edge.target)) for edge in edges])

    def set_entry_point(self, node: str) -> None:
        """Set the node at which runs begin.

        Raises:
            UnknownNodeError: The graph has no such node.
            GraphError: The graph already has an entry point.
        """
        node = self._known(node)
        with self._changing():
            if self._entry is not None:
                raise self._error(f"the entry point is {self._entry!r} already; {node!r} cannot be a second one")
            self._entry = node

    def set_exit_point(self, node: str) -> None:
        """Make a node an exit point, at which runs complete. A graph has one or more exit points.

        Raises:
            UnknownNodeError: The graph has no such node.
        """
        node = self._known(node)
        with self._changing():
            self._exits.add(node)

    def set_defaults(self, defaults: Mapping[str, Any]) -> None:
        """Set values for keys that the input of a run lacks.

        They apply to every call of `execute`, but not to a resume: it continues with the saved data.

        Raises:
            TypeError: The defaults are not a mapping of str to values.
        """
        check_mapping(defaults)
        with self._changing():
            self._defaults.update(freeze_items(dict(defaults)))

    def stands_at(self, removed: Mapping[str, str]) -> None:
        """Name the nodes that replace removed nodes in saved runs.

        A run that waits at a removed node, or has completed it last, runs the named node next. If the run waits
        for an answer there, it no longer requires one; a given answer becomes part of the data. See
        the page "Graph changes".

        Args:
            removed: Names of nodes by the names of removed nodes. An unknown node is a GraphError when the graph runs.

        Raises:
            TypeError: It is not a mapping of str to str.
        """
        self._declare("stands_at", self._stands_at, removed)

    def renamed(self, names: Mapping[str, str]) -> None:
        """Name the nodes that were renamed, as `migrate` does for one call; every way to continue a run knows them.

        Of a node that was renamed twice, both renames are declared. A nested graph has its own declarations. See
        the page "Graph changes".

        Args:
            names: New names of nodes by their old names. An unknown new name is a GraphError when the graph runs.

        Raises:
            TypeError: It is not a mapping of str to str.
        """
        self._declare("renamed", self._renamed, names)

    def moved_from(self, *names: str) -> None:
        """Name what the graph, or the module that makes it, was called before: runs that began then continue here.

        Their idempotency keys keep the old name of the graph.

        Args:
            names: Old names of the graph, and of its module, as in ``"orders"`` or ``"app.old_flows"``.

        Raises:
            TypeError: A name is not a str.
        """
        if not all(isinstance(name, str) for name in names):
            raise TypeError(f"moved_from takes old names of the graph or its module, not {shorten(names)}")
        with self._changing():
            self._moved_from += tuple(map(_plain, names))

    def upgrade(self, from_version: int, function: Callable[[dict[str, Any]], Mapping[str, Any]]) -> None:
        """Set the function that makes data of the next version of data of a version; see `GraphConfig.version`.

        It is called when a run of that version goes on, before anything runs. A run that is several versions older
        goes through each of their upgrades. See the page "Graph changes".

        Args:
            from_version: The version of the data; 0 for runs that began when the graph had no version.
            function: A sync function of a dict of the saved data, which it may change. It returns the new data.

        Raises:
            TypeError: It is not such a function.
            ValueError: The version is not a non-negative int, or its upgrade is set already.
        """
        check_step(from_version, "from_version")
        problem = problem_of(function, 1)
        if problem:
            raise TypeError(f"upgrade takes a version and a sync function of a dict of data: {problem}")
        with self._changing():
            if self._upgrades.setdefault(from_version, function) is not function:
                raise ValueError(f"the upgrade from version {from_version} is set already")

    def _declare(self, method: str, known: dict[str, str], names: Mapping[str, str]) -> None:
        if not maps_texts(names):
            raise TypeError(f"{method} takes a mapping of old names of nodes to names of nodes, not {shorten(names)}")
        with self._changing():
            known.update(names)

    def _name_now(self, node: str) -> str:
        """Return the name that a node has now, given an old one."""
        ahead = dict(self._renamed)
        while node in ahead:
            node = ahead.pop(node)
            if node in self._nodes or node in self._stands_at:
                break
        return node

    def on_message(self, function: Callable[[State, Mapping[str, Any]], Mapping[str, Any]]) -> None:
        """Set the function that decides what a message to a run changes; without it, the message is the updates.

        It is called between two steps, once for each message in the order in which they came. It must be fast, and
        return the same for the same arguments.

        Args:
            function: A sync function of the State and the updates of the message. It returns the updates to apply;
                ``{}`` for none.

        Raises:
            TypeError: It is not such a function.
        """
        problem = problem_of(function, 2)
        if problem:
            raise TypeError(f"on_message takes a sync function of a State and updates: {problem}")
        with self._changing():
            self._on_message = function

    # ------------------------------------------------------------------ inside

    def _compiled(self, persist: AbstractSet[str] | None, *, loads_parts: bool, **how: Any) -> CompiledGraph:
        """Compile the graph.

        Args:
            persist: The only keys that are saved; None for all.
            loads_parts: Whether finished parts are loaded from the store, if there are any.
            how: The other fields of CompiledGraph.

        Raises:
            GraphError: The graph is not valid; the error lists all problems.
        """
        structure, stands_at = self.structure, self._stands_at
        renamed = {old: self._name_now(old) for old in self._renamed}
        problems = problems_of(
            structure,
            self._nodes,
            self._policies,
            declared={"stands_at": stands_at.values(), "renamed": sorted({*renamed.values()} - stands_at.keys())},
            schema=self._schema,
            defaults=self._defaults,
            persist=frozenset() if persist is None else persist,
        )
        if problems or self._entry is None:
            raise GraphError(self._name, tuple(problems))
        # A schema validates the results of nodes; if only some keys are saved, the reads of nodes are recorded.
        is_watched = self._schema is not None or persist is not None
        stages = {name: self._stage(name, is_watched=is_watched) for name in self._nodes}
        return CompiledGraph(
            graph=self._name,
            structure=structure,
            entry=self._entry,
            stages=stages,
            loads_parts=loads_parts and any(stage.node.has_parts for stage in stages.values()),
            defaults=self._defaults.copy(),
            schema=self._schema,
            persist=persist,
            stands_at=stands_at.copy(),
            renamed=renamed,
            moved_from=self._moved_from,
            upgrades=self._upgrades.copy(),
            on_message=self._on_message,
            async_node=next((name for name, stage in stages.items() if stage.node.is_async), None),
            **how,
        )

    def _stage(self, name: str, *, is_watched: bool) -> CompiledNode:
        """Return the compiled form of a node. It is not plain if its reads or results are watched."""
        node, policies = self._typed(name, self._nodes[name]), self._policies[name]
        edges = tuple(edge for edge in self._edges if edge.source == name)
        function, is_plain = None, False
        if isinstance(node, FunctionNode):
            function = None if node.wants_context else node.function
            is_plain = not (node.is_generator or policies.needs_execution or is_watched)
        kind = RunHere if node.is_async else RunNode
        sure_edge = edges[0] if edges and edges[0].predicate is None else None
        return CompiledNode(name, node, policies, edges, name in self._exits, is_plain, kind, function, sure_edge)

    def _typed(self, name: str, node: Node) -> Node:
        """Return a node adapted to the schema. Raises GraphError if it takes another class."""
        try:
            return node if self._schema is None else node.typed(name, self._schema)
        except TypeError as error:
            raise self._error(f"node {name!r}: {error}") from None

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Change the graph. Active runs keep the graph as it was compiled for them."""
        with self._lock:
            yield
            self._changed()

    def _changed(self) -> None:
        """Discard compiled graphs."""

    def _known(self, node: str) -> str:
        if not isinstance(node, str) or node not in self._nodes:
            raise UnknownNodeError("node", node, self._nodes, self.name)
        return _plain(node)

    def _error(self, problem: str) -> GraphError:
        return GraphError(self.name, (problem,))


def _schema_of(cls: type) -> Schema:
    from stategraph._schema.schema import schema_of  # imported when used: few graphs have one

    return schema_of(cls)


def _plain(name: _Name) -> _Name:
    """Return a name as a plain str if it is a member of a StrEnum, which no store keeps."""
    return str.__str__(name) if isinstance(name, str) else name


def _own_name(function: NodeFunction) -> str:
    return getattr(function, "__name__", "")


def _as_given(node: Node) -> NodeFunction | Node:
    return node.given if isinstance(node, FunctionNode) else node


def _outlines_of(
    nodes: Mapping[str, Node], policies: Mapping[str, NodePolicies], others: Structures
) -> dict[str, NodeOutline]:
    """Return the outlines of the nodes, except plain functions without policies."""
    outlines = {}
    for name, node in nodes.items():
        outline, notes = node.outline(others), tuple(_notes(policies[name]))
        if outline is not None or notes:
            outline = outline or NodeOutline()
            outlines[name] = attrs.evolve(outline, notes=(*outline.notes, *notes))
    return outlines


def _notes(policies: NodePolicies) -> Iterator[str]:
    if policies.retry is not None:
        yield f"up to {policies.retry.max_attempts} attempts"
    if policies.timeout is not None:
        yield f"at most {policies.timeout:g} s"
    if policies.cache is not None:
        yield "cached"
