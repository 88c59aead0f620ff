"""StateGraph: build a graph, validate it, execute and resume runs on it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, TypeVar, overload

from stategraph.commands import RunNode, StartNode
from stategraph.config import GraphConfig
from stategraph.config.checks import is_name
from stategraph.drivers.stop import StopSignal
from stategraph.drivers.sync import drive, is_loop_running
from stategraph.edges import Edge, Predicate, is_predicate
from stategraph.engine import Engine
from stategraph.errors import AsyncNodeError, ConfigError, GraphError, UnknownNodeError, shorten
from stategraph.events import Listener, wanted_events
from stategraph.nodes.function import FunctionNode, NodeFunction
from stategraph.observers import get_observer
from stategraph.plan import Plan, Stage
from stategraph.services import Services
from stategraph.state import State
from stategraph.stores import CheckpointStore, get_checkpoint_store
from stategraph.stores.background import BackgroundSaves
from stategraph.stores.policy import Policy
from stategraph.structure import GraphStructure
from stategraph.validation import problems_of

_Function = TypeVar("_Function", bound=NodeFunction)


class StateGraph:
    """A workflow: named steps, and conditional edges between them.

    Build it with `add_node`, `add_edge`, `set_entry_point` and `set_exit_point`; then `execute` a State on it, or
    `resume` a run that did not finish. Any number of threads and tasks may run one graph at the same time.

    Args:
        config: Its name, and what is saved when and where.
        observer: Hears of events, in place of the one that the config names.
        store: Keeps the States, in place of the one that the config names.

    Raises:
        ConfigError: config is not a GraphConfig, or the store does not take its options.
        UnknownNameError: no store or observer has the name in the config.
    """

    def __init__(
        self, config: GraphConfig, *, observer: Listener | None = None, store: CheckpointStore | None = None
    ) -> None:
        _check_arguments(config, observer, store)
        checkpoint = config.checkpoint
        self.config = config
        self.observer = get_observer(config.observer) if observer is None else observer
        self.store = get_checkpoint_store(checkpoint.store, **checkpoint.store_options()) if store is None else store
        self._lock = threading.Lock()
        self._nodes: dict[str, FunctionNode] = {}
        self._edges: list[Edge] = []
        self._entry: str | None = None
        self._exits: set[str] = set()
        self._plan: Plan | None = None

    @property
    def name(self) -> str:
        """The name of the graph, from its config."""
        return self.config.name

    @property
    def nodes(self) -> Mapping[str, NodeFunction]:
        """The functions by the names of their nodes, in the order in which they were added."""
        return MappingProxyType({name: node.given for name, node in self._nodes.items()})

    @property
    def edges(self) -> tuple[Edge, ...]:
        """The edges, in the order in which they were added."""
        return tuple(self._edges)

    @property
    def structure(self) -> GraphStructure:
        """What is kept of the graph with its runs, to tell whether a saved State still fits."""
        return GraphStructure(tuple(self._nodes), tuple(edge.structure for edge in self._edges))

    @property
    def fingerprint(self) -> str:
        """32 hexadecimal digits that change when nodes or edges do; the same in every process."""
        return self.structure.fingerprint

    # ------------------------------------------------------------------ building

    def add_node(self, name: str, node: NodeFunction) -> None:
        """Add a step.

        Args:
            name: Names it within the graph.
            node: A sync or async function of a State (and, if it has a second parameter for it, of a NodeContext) that
                returns a State made from the one it was given, or a mapping of updates to it.

        Raises:
            GraphError: the name is taken or none, or the node cannot be called like that.
        """
        if not is_name(name):
            raise self._error(f"a node is named {shorten(name)}; a name has 1 to 200 printable characters")
        try:
            function = FunctionNode.of(node)
        except TypeError as error:
            raise self._error(f"node {name!r}: {error}") from None
        with self._changing():
            if name in self._nodes:
                raise self._error(f"node {name!r} is already there; give this one another name")
            self._nodes[name] = function

    @overload
    def node(self, function: _Function, /) -> _Function: ...
    @overload
    def node(self, name: str, /) -> Callable[[_Function], _Function]: ...
    def node(self, function_or_name: Any, /) -> Any:
        """Decorator that adds a function as a node: ``@graph.node`` under its own name, or ``@graph.node("name")``."""
        if not isinstance(function_or_name, str):
            self.add_node(getattr(function_or_name, "__name__", ""), function_or_name)
            return function_or_name

        def add(function: _Function) -> _Function:
            self.add_node(function_or_name, function)
            return function

        return add

    def add_edge(
        self, from_node: str, to_node: str, predicate: Predicate | None = None, *, name: str | None = None
    ) -> None:
        """Add a possible transition. The edges out of a node are tried in the order in which they were added.

        Args:
            from_node: The node it leaves.
            to_node: The node it leads to.
            predicate: Decides on the State after `from_node`; None always passes.
            name: Names the edge in events, errors and the structure that is kept with a run.

        Raises:
            UnknownNodeError: a node is not there.
            GraphError: the predicate is not a sync function, or the same edge is there already.
        """
        edge = Edge(self._known(from_node), self._known(to_node), predicate, name)
        if predicate is not None and not is_predicate(predicate):
            raise self._error(f"edge {from_node!r} -> {to_node!r}: a predicate is a sync function of a State")
        with self._changing():
            if edge in self._edges:
                raise self._error(f"edge {edge} is already there")
            self._edges.append(edge)

    def set_entry_point(self, node: str) -> None:
        """Let runs start at a node.

        Raises:
            UnknownNodeError: it is not there.
            GraphError: there is an entry point already.
        """
        self._known(node)
        with self._changing():
            if self._entry is not None:
                raise self._error(f"the entry point is {self._entry!r} already; {node!r} cannot be a second one")
            self._entry = node

    def set_exit_point(self, node: str) -> None:
        """Let runs complete at a node. A graph has one or more of these.

        Raises:
            UnknownNodeError: it is not there.
        """
        self._known(node)
        with self._changing():
            self._exits.add(node)

    def validate(self) -> None:
        """Check that runs can start, and can get from everywhere to an exit point.

        Raises:
            GraphError: they cannot; it lists all problems at once.
        """
        self._planned()

    # ------------------------------------------------------------------ running

    def execute(self, state: State, *, cancel: threading.Event | None = None, timeout: float | None = None) -> State:
        """Run a State from the entry point to an exit point.

        A State with a past, such as a loaded one, goes on counting its steps.

        Args:
            state: Where the run begins.
            cancel: Stops the run before the next node once it is set.
            timeout: Seconds after which the run is stopped before the next node; a node that is async is cut off.

        Returns:
            The final State, of status completed.

        Raises:
            GraphError: the graph is not valid.
            RunExistsError: the State is new and the store already has a run of its run_id.
            ExecutionError: a node or a predicate raised, a node returned something else than a State or a mapping, or
                no edge passed. The last completed State is in it and, unless the interval is 0, in the store.
            MaxIterationsError: the call ran as many nodes as the config allows.
            RunCancelledError: `cancel` was set or the time is up; resume goes on.
            CheckpointError: the store could not save; the State that was at stake is in it.
            AsyncNodeError: the graph has async nodes and an event loop is running in this thread: use `aexecute`.
        """
        engine = self._sync_engine()
        return drive(engine.execute(_checked(state)), _signal(cancel, timeout))

    async def aexecute(
        self, state: State, *, cancel: threading.Event | None = None, timeout: float | None = None
    ) -> State:
        """As `execute`, on the running event loop: sync nodes and the store work in threads, and cancelling the task
        stops the run, after the node that is running if that is a sync one."""
        from stategraph.drivers.tasks import adrive  # imported when used: asyncio takes 20 ms

        engine = self._engine()
        return await adrive(engine.execute(_checked(state)), _signal(cancel, timeout))

    def resume(
        self,
        run_id: str,
        updates: Mapping[str, Any] | None = None,
        *,
        allow_changed: bool = False,
        cancel: threading.Event | None = None,
        timeout: float | None = None,
    ) -> State:
        """Go on with a run from its last checkpoint: take the next edge after the node that produced it.

        Args:
            run_id: The run.
            updates: Laid over the data of the checkpoint, and saved before the next node runs.
            allow_changed: Go on even if nodes or edges of the graph have changed since.
            cancel: As for `execute`.
            timeout: As for `execute`.

        Returns:
            The final State, of status completed.

        Raises:
            CheckpointingDisabledError: the graph saves nothing (interval 0).
            CheckpointNotFoundError: the store has no checkpoint of the run.
            RunCompleteError: the run is complete.
            GraphMismatchError: it is a run of another graph, or of this one before it changed; it names the changes.
            And all that `execute` raises.
        """
        engine = self._sync_engine()
        task = engine.resume(run_id, _updates(updates), allow_changed)
        return drive(task, _signal(cancel, timeout))

    async def aresume(
        self,
        run_id: str,
        updates: Mapping[str, Any] | None = None,
        *,
        allow_changed: bool = False,
        cancel: threading.Event | None = None,
        timeout: float | None = None,
    ) -> State:
        """As `resume`, on the running event loop; see `aexecute`."""
        from stategraph.drivers.tasks import adrive  # imported when used: asyncio takes 20 ms

        engine = self._engine()
        task = engine.resume(run_id, _updates(updates), allow_changed)
        return await adrive(task, _signal(cancel, timeout))

    # ------------------------------------------------------------------ inside

    def _engine(self) -> Engine:
        plan, checkpoint = self._planned(), self.config.checkpoint
        store = BackgroundSaves(self.store) if plan.saves_behind else self.store
        policy = Policy(checkpoint.retention, checkpoint.window, checkpoint.ttl)
        services = Services(store, self.observer, self.name, policy)
        return Engine(plan, services, wanted_events(self.observer))

    def _sync_engine(self) -> Engine:
        engine = self._engine()
        if engine.plan.async_node is not None and is_loop_running():
            raise AsyncNodeError(engine.plan.async_node)
        return engine

    def _planned(self) -> Plan:
        plan = self._plan
        if plan is None:
            with self._lock:
                plan = self._plan = self._make_plan()
        return plan

    def _make_plan(self) -> Plan:
        checkpoint = self.config.checkpoint
        problems = problems_of(list(self._nodes), self._edges, self._entry, self._exits)
        if problems or self._entry is None:
            raise GraphError(self.name, tuple(problems))
        return Plan(
            graph=self.name,
            structure=self.structure,
            entry=self._entry,
            stages={name: self._make_stage(name, node) for name, node in self._nodes.items()},
            interval=0 if checkpoint.durability == "exit" else checkpoint.interval,
            saves=checkpoint.interval > 0,
            saves_behind=checkpoint.durability == "async",
            preserve=checkpoint.preserve,
            max_iterations=self.config.max_iterations,
            store=str(self.store),
        )

    def _make_stage(self, name: str, node: FunctionNode) -> Stage:
        edges = tuple(edge for edge in self._edges if edge.source == name)
        kind = StartNode if node.is_async else RunNode
        return Stage(name, node, kind, node.function, edges, is_exit=name in self._exits)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """The graph is changed: runs that are under way keep the plan they have."""
        with self._lock:
            yield
            self._plan = None

    def _known(self, node: str) -> str:
        if not isinstance(node, str) or node not in self._nodes:
            raise UnknownNodeError("node", node, self._nodes, self.name)
        return node

    def _error(self, problem: str) -> GraphError:
        return GraphError(self.name, (problem,))

    def __repr__(self) -> str:
        return f"StateGraph({self.name!r}, {len(self._nodes)} nodes, {len(self._edges)} edges, {self.store})"


def _check_arguments(config: object, observer: object, store: object) -> None:
    if not isinstance(config, GraphConfig):
        raise ConfigError("config", config, "a GraphConfig; GraphConfig.from_dict makes one of a mapping")
    if observer is not None and not callable(getattr(observer, "on_event", None)):
        raise ConfigError(
            "observer", observer, "an object with on_event(event); names go into GraphConfig(observer=...)"
        )
    if store is not None and not isinstance(store, CheckpointStore):
        raise ConfigError(
            "store", store, "a CheckpointStore; names go into CheckpointConfig(store=...), classes derive from it"
        )


def _checked(state: object) -> State:
    if not isinstance(state, State):
        raise TypeError(f"a graph runs a State, not {type(state).__name__}: State({{...}}) makes one of a mapping")
    return state


def _updates(updates: Mapping[str, Any] | None) -> Mapping[str, Any]:
    if updates is not None and not isinstance(updates, Mapping):
        raise TypeError(f"updates are a mapping, not {type(updates).__name__}")
    return updates or {}


def _signal(cancel: threading.Event | None, timeout: float | None) -> StopSignal | None:
    if cancel is not None and not callable(getattr(cancel, "is_set", None)):
        raise ConfigError("cancel", cancel, "a threading.Event")
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0):
        raise ConfigError("timeout", timeout, "a number of seconds from 0 on")
    return StopSignal.of(cancel, timeout)
