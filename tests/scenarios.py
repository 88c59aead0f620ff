"""Drivers, stores, nodes and graphs that the tests of runs share."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import functools
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Mapping
from typing import Any, TypeAlias

import attrs

from stategraph import (
    CheckpointConfig,
    CheckpointNotFoundError,
    CheckpointStore,
    GraphConfig,
    State,
    StateGraph,
    get_observer,
)
from stategraph.stores import Policy

Node: TypeAlias = Callable[..., Any]
RUN = "run"


# --------------------------------------------------------------------------- stores


class FourMethodStore(CheckpointStore):
    """The least that a store can be."""

    def __init__(self) -> None:
        self.states: dict[str, State] = {}

    def save(self, state: State) -> None:
        self.states[state.run_id] = state

    def load(self, run_id: str, step: int | None = None, revision: int | None = None) -> State:
        state = self.states.get(run_id)
        if state is None or step not in (None, state.step):
            raise CheckpointNotFoundError(run_id, str(self), step)
        return state

    def delete(self, run_id: str) -> None:
        self.states.pop(run_id, None)

    def list(self) -> builtins.list[str]:
        return sorted(self.states)


def nothing(method: str, argument: Any) -> None:
    """Do nothing before a call."""


class WatchedStore(CheckpointStore):
    """Passes every call on to another store.

    Args:
        inner: The other store.
        before: Called first, with the name of the method and its argument; the method raises its errors.
    """

    def __init__(self, inner: CheckpointStore, before: Callable[[str, Any], object] = nothing) -> None:
        self.inner, self.before = inner, before
        self.calls: list[tuple[str, Any]] = []

    def save(self, state: State) -> None:
        self._call("save", state)

    def amend(self, state: State) -> None:
        self._call("amend", state)

    def load(self, run_id: str, step: int | None = None, revision: int | None = None) -> State:
        loaded: State = self._call("load", run_id)
        return loaded

    def retain(self, run_id: str, policy: Policy) -> None:
        self.inner.retain(run_id, policy)

    def delete(self, run_id: str) -> None:
        self._call("delete", run_id)

    def list(self) -> builtins.list[str]:
        return self.inner.list()

    @property
    def saves(self) -> builtins.list[tuple[int, str]]:
        """Step and status of every State that was saved or amended."""
        return [(state.step, state.status.value) for name, state in self.calls if name in {"save", "amend"}]

    def _call(self, method: str, argument: Any) -> Any:
        self.before(method, argument)
        self.calls.append((method, argument))
        return getattr(self.inner, method)(argument)


def fails_always(method: str, error: BaseException) -> Callable[[str, Any], None]:
    """Return a hook for WatchedStore that raises at every call of a method."""

    def before(called: str, argument: Any) -> None:
        if called == method:
            raise error

    return before


HANDLES: list[CheckpointStore] = []
"""Stores that `reopened` has opened; a fixture closes them after the test."""


def reopened(store: CheckpointStore) -> CheckpointStore:
    """Return another handle to the same store, as another process has it; the store itself where it lives in memory."""
    path = getattr(store, "path", None)
    if path is None:
        return store
    HANDLES.append(type(store)(path))  # type: ignore[call-arg]
    return HANDLES[-1]


# --------------------------------------------------------------------------- drivers


def live_threads() -> set[threading.Thread]:
    """Return the live threads, except threads of pools that stay for a while."""
    stay = ("stategraph saver", "stategraph-leases", "stategraph node_", "stategraph store_")
    return {thread for thread in threading.enumerate() if not thread.name.startswith(stay)}


def in_threads(*works: Callable[[], Any]) -> list[BaseException]:
    """Call the functions at the same time; return the errors."""
    raised: list[BaseException] = []

    def do(work: Callable[[], Any]) -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=do, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


def call_sync(graph: StateGraph, method: str, *args: Any, **options: Any) -> State:
    """Call `execute` or `resume`."""
    final: State = getattr(graph, method)(*args, **options)
    return final


def call_async(graph: StateGraph, method: str, *args: Any, **options: Any) -> State:
    """Call `aexecute` or `aresume` on a new event loop."""
    final: State = asyncio.run(getattr(graph, f"a{method}")(*args, **options))
    return final


DRIVERS: dict[str, Callable[..., State]] = {"sync": call_sync, "async": call_async}


# --------------------------------------------------------------------------- nodes


def as_sync(function: Node) -> Node:
    """Return the function itself."""
    return function


def as_async(function: Node) -> Node:
    """Return the function as an async one, which lets others run first."""

    @functools.wraps(function)
    async def node(*args: Any) -> Any:
        await asyncio.sleep(0)
        return function(*args)

    return node


def as_async_chunks(function: Callable[..., Generator[Any, None, None]]) -> Node:
    """Return the generator function as an async one, which lets others run between chunks."""

    @functools.wraps(function)
    async def node(*args: Any) -> AsyncIterator[Any]:
        with contextlib.closing(function(*args)) as chunks:
            for chunk in chunks:
                yield chunk
                await asyncio.sleep(0)

    return node


NODES: dict[str, Callable[[Node], Node]] = {"sync nodes": as_sync, "async nodes": as_async}


def each_pair_of(*stores: str) -> list[tuple[str, str, str]]:
    """Return triples of a store, a driver and a kind of nodes: any two of these meet in one triple.

    A driver does not know which store saves its run, and neither knows what makes a node: all three need not meet.
    """
    mixes = [zip(DRIVERS, NODES, strict=True), zip(DRIVERS, reversed(NODES), strict=True)]
    pairs = itertools.cycle([list(mix) for mix in mixes])
    return [(store, *pair) for store, mix in zip(stores, pairs, strict=False) for pair in mix]


def trace(name: str) -> Node:
    """Return a node that appends its name to the key "trace"."""

    def node(state: State) -> dict[str, Any]:
        return {"trace": [*state.get("trace", ()), name]}

    return node


def traces(names: Iterable[str]) -> dict[str, Node]:
    """Return such nodes by name."""
    return {name: trace(name) for name in names}


def raises(error: BaseException) -> Node:
    """Return a node, or a predicate, that raises."""

    def function(state: State) -> Any:
        raise error

    return function


def returns(result: Any) -> Node:
    """Return a node, or a predicate, that always answers the same."""

    def function(state: State) -> Any:
        return result

    return function


def does(action: Callable[[], object]) -> Node:
    """Return a node that does something and changes nothing."""

    def function(state: State) -> Any:
        action()
        return {}

    return function


def broken_first(function: Node, error: BaseException) -> Node:
    """Return the function, which raises the first time and works from then on."""
    left = [error]

    def node(state: State) -> Any:
        if left:
            raise left.pop()
        return function(state)

    return node


def counted(function: Node, log: list[int]) -> Node:
    """Return the function, which logs the step that it makes."""

    def node(state: State) -> Any:
        result = function(state)
        log.append(state.step + 1)
        return result

    return node


def shorter_than(length: int) -> Callable[[State], bool]:
    """Return a predicate that holds until the trace has this length."""

    def predicate(state: State) -> bool:
        return len(state["trace"]) < length

    return predicate


# --------------------------------------------------------------------------- graphs


def chain(names: Iterable[str]) -> list[tuple[Any, ...]]:
    """Return the edges from each name to the next."""
    return list(itertools.pairwise(names))


def make_graph(
    nodes: Mapping[str, Any],
    edges: Iterable[tuple[Any, ...]] | None = None,
    *,
    store: CheckpointStore,
    name: str = "flow",
    exits: Iterable[str] = (),
    observer: Any = None,
    policies: Mapping[str, Mapping[str, Any]] | None = None,
    max_iterations: int = 1000,
    interval: int = 1,
    schema: type | None = None,
    **checkpoint: Any,
) -> StateGraph:
    """Return a graph from the first node to the last, along a chain unless there are edges."""
    config = GraphConfig(
        name, max_iterations=max_iterations, checkpoint=CheckpointConfig(interval=interval, **checkpoint)
    )
    observer = get_observer("noop") if observer is None else observer
    graph = StateGraph(config, store=store, observer=observer, schema=schema)
    for node, function in nodes.items():
        graph.add_node(node, function, **(policies or {}).get(node, {}))
    for edge in chain(nodes) if edges is None else edges:
        graph.add_edge(*edge)
    graph.set_entry_point(next(iter(nodes)))
    for node in exits or list(nodes)[-1:]:
        graph.set_exit_point(node)
    return graph


HOW: dict[str, dict[str, Any]] = {
    "sync": {},
    "async": {"durability": "async"},
    "exit": {"durability": "exit"},
    "sync, full": {"retention": "full"},
    "async, full": {"durability": "async", "retention": "full"},
    "async, windowed": {"durability": "async", "retention": "windowed", "window": 3},
}
"""Durability and retention, as options of CheckpointConfig."""


def steady(state: State) -> tuple[Any, ...]:
    """Return all of a State that is the same in every run of a graph."""
    return dict(state), state.run_id, state.checkpoint_node, state.step, state.status, state.graph, state.error


@attrs.frozen
class Scene:
    """A driver, a store, and the kind of nodes: what a scenario is played with."""

    store: CheckpointStore
    call: Callable[..., State]
    as_node: Callable[[Node], Node]

    def graph(self, nodes: Mapping[str, Node], *args: Any, **options: Any) -> StateGraph:
        """As `make_graph`, with the nodes and the store of this scene."""
        made = {name: self.as_node(function) for name, function in nodes.items()}
        return make_graph(made, *args, **{"store": self.store, **options})

    def execute(self, graph: StateGraph, state: State | None = None, **options: Any) -> State:
        """Execute a State, by default a fresh one."""
        return self.call(graph, "execute", State(run_id=RUN) if state is None else state, **options)

    def resume(self, graph: StateGraph, updates: Mapping[str, Any] | None = None, **options: Any) -> State:
        """Resume the run."""
        return self.call(graph, "resume", RUN, updates, **options)

    def turn(self, graph: StateGraph, given: Mapping[str, Any], **options: Any) -> State:
        """Give the run a turn."""
        return self.call(graph, "turn", RUN, given, **options)
