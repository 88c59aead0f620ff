"""Stopping a run: by event, by time, by asyncio, by Ctrl-C. Nothing completed is lost, and nothing is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stategraph
from stategraph import (
    AsyncNodeError,
    ConfigError,
    ExecutionError,
    MapNode,
    ParallelNode,
    RetryPolicy,
    RunCancelledError,
    RunStatus,
    State,
    StateGraph,
)
from stategraph.stores.disk import DiskStore
from stategraph.stores.memory import MemoryStore
from tests.scenarios import (
    RUN,
    Scene,
    WatchedStore,
    as_async,
    call_sync,
    live_threads,
    make_graph,
    raises,
    trace,
    traces,
)

pytestmark = pytest.mark.timeout(30)


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """No thread that was not there before."""
    before = live_threads()
    yield
    assert live_threads() <= before


class Gate:
    """A place where a thread waits until it is let through."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()

    def wait(self) -> None:
        """Wait in this thread."""
        self.reached.set()
        assert self.opened.wait(20)


async def cancel_at(gate: Gate, task: asyncio.Task[Any], times: int = 1) -> asyncio.CancelledError:
    """Cancel a task while a thread stands at the gate, let the thread through, and return the cancellation."""
    await asyncio.to_thread(gate.reached.wait, 20)
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0.01)
        assert not task.done()
    gate.opened.set()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    return caught.value


def execute_and_cancel(graph: StateGraph, gate: Gate) -> None:
    """Cancel the task of a run while a thread stands at the gate."""

    async def main() -> None:
        await cancel_at(gate, asyncio.create_task(graph.aexecute(State(run_id=RUN))))

    asyncio.run(main())


class TestCancelEvent:
    """The event given as `cancel`."""

    def test_set_beforehand(self, scene: Scene) -> None:
        """No node runs, and the run can be resumed all the same."""
        cancel = threading.Event()
        cancel.set()
        with pytest.raises(RunCancelledError):
            scene.execute(scene.graph(dict.fromkeys("ab", raises(AssertionError()))), cancel=cancel)

        with pytest.raises(RunCancelledError):
            scene.resume(scene.graph(dict.fromkeys("ab", raises(AssertionError()))), cancel=cancel)

        assert scene.resume(scene.graph(traces("ab")))["trace"] == ["a", "b"]

    def test_at_the_last_node(self, memory_scene: Scene) -> None:
        """There is no next node: the run completes."""
        cancel = threading.Event()

        def stop(state: State) -> dict[str, Any]:
            cancel.set()
            return {}

        assert memory_scene.execute(memory_scene.graph({"a": stop}), cancel=cancel).status is RunStatus.COMPLETED

    @pytest.mark.parametrize("cancel", [True, "yes", 5])
    def test_anything_else(self, memory_scene: Scene, cancel: Any) -> None:
        """It is refused."""
        with pytest.raises(ConfigError, match="cancel"):
            memory_scene.execute(memory_scene.graph(traces("a")), cancel=cancel)

    @pytest.mark.parametrize("is_async", [False, True])
    def test_it_stops_between_items(self, memory_play: Scene, is_async: bool) -> None:
        """Sync or async: those that have finished are saved, and are not done again."""
        cancel, done = threading.Event(), []

        def item(number: int) -> int:
            done.append(number)
            if number == 2:
                cancel.set()
            return number

        node = MapNode(as_async(item) if is_async else item, over="items", into="results", max_workers=1)
        graph = make_graph({"map": node, **traces("b")}, store=memory_play.store)
        with pytest.raises(RunCancelledError):
            memory_play.execute(graph, State({"items": [*range(20)]}, run_id=RUN), cancel=cancel)
        assert len(done) < 10

        memory_play.resume(graph)

        assert done == [*range(20)]

    @pytest.mark.parametrize("policies", [{"on_error": "b"}, {"retry": RetryPolicy(initial_delay=0)}], ids=str)
    def test_a_generator_that_fails_when_it_is_closed(self, memory_play: Scene, policies: dict[str, Any]) -> None:
        """The run is stopped, and that is no failure to be handled or tried again; what it raised is a note."""
        cancel = threading.Event()

        def talks(state: State) -> Iterator[str]:
            try:
                yield "a"
                cancel.set()
                yield "b"
                yield "c"
            finally:
                raise ValueError("cannot close")

        graph = make_graph({"a": talks, **traces("b")}, store=memory_play.store, policies={"a": policies})
        with pytest.raises(RunCancelledError) as raised:
            memory_play.execute(graph, cancel=cancel)

        assert raised.value.state.step == 0
        assert "cannot close" in raised.value.__notes__[0]

    @pytest.mark.parametrize("is_within", [False, True])
    def test_a_part_that_cannot_be_saved_any_more(self, memory_play: Scene, is_within: bool) -> None:
        """The run is stopped all the same; that a part is lost that was still being done is a note."""
        cancel, gate, is_slow_begun = threading.Event(), Gate(), threading.Event()

        class Full(MemoryStore):
            def save_parts(self, run_id: str, parts: Any) -> None:
                if cancel.is_set():
                    raise OSError("the disk is full")
                super().save_parts(run_id, parts)
                assert is_slow_begun.wait(20)
                cancel.set()
                threading.Timer(0.1, gate.opened.set).start()

        def slow(state: State) -> dict[str, Any]:
            is_slow_begun.set()
            gate.wait()
            return {}

        node: Any = ParallelNode({"quick": trace("quick"), "slow": slow})
        if is_within:
            node = make_graph({"parts": node}, store=MemoryStore(), name="inner").as_node()
        graph = make_graph({"a": node, **traces("b")}, store=Full())
        with pytest.raises(RunCancelledError) as raised:
            memory_play.execute(graph, cancel=cancel)

        assert "the disk is full" in raised.value.__notes__[0]


class TestTimeout:
    """The seconds given as `timeout`."""

    @pytest.mark.parametrize("timeout", [0, 0.0, 1e-9])
    def test_no_time_at_all(self, scene: Scene, timeout: float) -> None:
        """No node runs, the cause is a TimeoutError, and the run can be resumed."""
        graph = scene.graph(traces("ab"))
        with pytest.raises(RunCancelledError, match="timeout") as caught:
            scene.execute(graph, timeout=timeout)

        assert type(caught.value.__cause__) is TimeoutError
        assert caught.value.state.step == 0
        assert scene.resume(graph)["trace"] == ["a", "b"]

    def test_an_async_node_is_cut_off(self, driver: Any) -> None:
        """It does not count; the steps before it do."""
        ended: list[str] = []

        async def endless(state: State) -> dict[str, Any]:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("cleaned up")
            return {}

        scene = Scene(MemoryStore(), driver, as_node=lambda function: function)
        with pytest.raises(RunCancelledError) as caught:
            scene.execute(scene.graph({"a": trace("a"), "b": endless, "c": trace("c")}, interval=10), timeout=0.3)

        assert type(caught.value.__cause__) is TimeoutError
        assert scene.store.load(RUN)["trace"] == ["a"]
        assert ended == ["cleaned up"]

    def test_a_timeout_of_the_node_itself(self, memory_scene: Scene) -> None:
        """It is an error of the node like any other."""
        with pytest.raises(ExecutionError) as caught:
            memory_scene.execute(memory_scene.graph({"a": raises(TimeoutError("mine"))}), timeout=60)

        assert type(caught.value.__cause__) is TimeoutError

    @pytest.mark.parametrize("timeout", [60, float("inf")])
    def test_enough_time(self, memory_scene: Scene, timeout: float) -> None:
        """Nothing happens."""
        assert memory_scene.execute(memory_scene.graph(traces("ab")), timeout=timeout).step == 2

    @pytest.mark.parametrize("timeout", [-1, float("nan"), "1", True, False, 10**400])
    def test_no_number_of_seconds(self, memory_scene: Scene, timeout: Any) -> None:
        """It is refused."""
        with pytest.raises(ConfigError, match="timeout"):
            memory_scene.execute(memory_scene.graph(traces("a")), timeout=timeout)


class TestAsyncioCancellation:
    """Cancelling the task of an async run."""

    @pytest.mark.parametrize("times", [1, 3])
    @pytest.mark.parametrize("interval", [1, 10])
    def test_while_the_store_saves(self, interval: int, times: int) -> None:
        """The save is made once and to its end, however often the run is cancelled."""
        gate, inner = Gate(), MemoryStore()

        def before(method: str, argument: Any) -> None:
            if method == "save" and not gate.reached.is_set():
                gate.wait()

        store, started = WatchedStore(inner, before), asyncio.Event()

        async def endless(state: State) -> dict[str, Any]:
            started.set()
            await asyncio.Event().wait()
            return {}

        async def main() -> None:
            graph = make_graph({"a": trace("a"), "b": endless, "c": trace("c")}, store=store, interval=interval)
            task = asyncio.create_task(graph.aexecute(State(run_id=RUN)))
            if interval == 10:  # so it is the save for an earlier cancellation that is cancelled again
                await started.wait()
                task.cancel()
            await cancel_at(gate, task, times)

        asyncio.run(main())
        assert store.saves == [(1, "active")]
        assert inner.load(RUN)["trace"] == ["a"]

    def test_while_the_last_node_runs(self) -> None:
        """The run is cancelled all the same, and its final State is not lost: it is in the store."""
        gate, store = Gate(), MemoryStore()

        def slow(state: State) -> dict[str, Any]:
            gate.wait()
            return {"n": 1}

        execute_and_cancel(make_graph({"a": slow}, store=store), gate)

        assert (store.load(RUN)["n"], store.load(RUN).status) == (1, RunStatus.COMPLETED)

    def test_while_a_sync_function_makes_a_coroutine(self) -> None:
        """The cancellation that came while the thread worked is not forgotten when its coroutine waits."""
        gate = Gate()

        async def endless() -> dict[str, Any]:
            await asyncio.sleep(60)
            return {}

        def slow(state: State) -> Any:
            gate.wait()
            return endless()

        execute_and_cancel(make_graph({"a": slow, "b": trace("b")}, store=MemoryStore()), gate)

    def test_asyncio_timeout(self) -> None:
        """``asyncio.timeout`` around a run raises its TimeoutError, and the completed steps are saved."""
        store = MemoryStore()

        async def endless(state: State) -> Any:
            await asyncio.Event().wait()

        async def main() -> None:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    graph = make_graph({"a": trace("a"), "b": endless}, store=store, interval=10)
                    await graph.aexecute(State(run_id=RUN))
            await asyncio.sleep(0)  # nothing is left of the cancellation

        asyncio.run(main())
        assert store.load(RUN)["trace"] == ["a"]

    def test_a_cancellation_is_not_lost_when_a_graph_within_is_forgotten(self) -> None:
        """With durability "exit" its run is deleted as it completes; the outer answer is in the store all the same."""
        gate, store = Gate(), MemoryStore()
        inner = make_graph(traces("x"), store=store, name="inner")

        def wait(state: State) -> dict[str, Any]:
            gate.wait()
            return {}

        nodes = {"inner": inner.as_node(), "z": wait}
        graph = make_graph(nodes, store=store, durability="exit", preserve=True)

        execute_and_cancel(graph, gate)

        assert store.load(RUN).status is RunStatus.COMPLETED


class TestEventLoops:
    """Sync calls where an event loop is running."""

    def test_async_nodes_need_aexecute(self) -> None:
        """The error says so before anything has run."""
        store = WatchedStore(MemoryStore())
        graph = make_graph({"a": trace("a"), "b": as_async(trace("b"))}, store=store)

        async def main() -> None:
            with pytest.raises(AsyncNodeError, match=r"'b'.*aexecute"):
                graph.execute(State(run_id=RUN))
            with pytest.raises(AsyncNodeError, match=r"'b'.*aresume"):
                graph.resume(RUN)

        asyncio.run(main())
        assert store.calls == []

    def test_sync_nodes_may_run_on_the_loop(self) -> None:
        """If there is nothing to await, execute works anywhere."""
        graph = make_graph(traces("ab"), store=MemoryStore())

        async def main() -> State:
            return graph.execute(State(run_id=RUN))

        assert asyncio.run(main()).step == 2

    def test_all_async_nodes_of_a_sync_run_share_one_loop(self) -> None:
        """What one of them makes, the next can use."""
        loops: list[Any] = []

        async def node(state: State) -> dict[str, Any]:
            loops.append(asyncio.get_running_loop())
            return {}

        make_graph(dict.fromkeys("abc", node), store=MemoryStore()).execute(State(run_id=RUN))

        assert len(set(loops)) == 1
        assert loops[0].is_closed()

    def test_a_sync_function_that_returns_a_coroutine(self) -> None:
        """It cannot be awaited here either; no node has failed or is tried again, and aresume goes on."""
        store = MemoryStore()
        function = as_async(trace("b"))

        def later(state: State) -> Any:
            return function(state)

        nodes = {**traces("a"), "b": later, **traces("c")}
        graph = make_graph(nodes, store=store, policies={"b": {"on_error": "c", "retry": RetryPolicy(initial_delay=0)}})

        async def main() -> None:
            with pytest.raises(AsyncNodeError, match=r"'b'.*aexecute"):
                graph.execute(State(run_id=RUN))
            assert store.load(RUN).status is RunStatus.ACTIVE
            assert (await graph.aresume(RUN))["trace"] == [*"abc"]

        asyncio.run(main())

    def test_it_is_the_same_in_a_graph_within(self) -> None:
        """But what a node brings on itself, by a run of its own, is its failure."""
        function = as_async(trace("b"))

        def later(state: State) -> Any:
            return function(state)

        inner = make_graph({"b": later}, store=MemoryStore(), name="inner")
        outer = make_graph({"inner": inner.as_node()}, store=MemoryStore())

        async def misused(state: State) -> State:
            return inner.execute(State())

        async def main() -> None:
            with pytest.raises(AsyncNodeError, match="'b'"):
                outer.execute(State())
            with pytest.raises(ExecutionError, match=r"'a'.*AsyncNodeError"):
                await make_graph({"a": misused}, store=MemoryStore()).aexecute(State())

        asyncio.run(main())

    def test_async_branches_of_a_stream_that_was_made_elsewhere(self) -> None:
        """That it cannot be iterated over in an event loop shows when it is."""
        graph = make_graph({"a": ParallelNode({"x": as_async(trace("x"))})}, store=MemoryStore())
        states = graph.stream(State(run_id=RUN))

        async def main() -> None:
            with pytest.raises(AsyncNodeError, match="'a'"):
                list(states)

        asyncio.run(main())


class TestNothingIsLeft:
    """Threads, tasks and files."""

    def test_closing_a_store_closes_the_files_of_all_threads(self, tmp_path: Path) -> None:
        """Those of the worker threads of an event loop that goes on, too."""

        async def main() -> None:
            store = DiskStore(tmp_path)
            await make_graph(traces("ab"), store=store).aexecute(State(run_id=RUN))
            store.close()
            assert open_files(tmp_path) == []

        asyncio.run(main())


def open_files(folder: Path) -> list[str]:
    """Return the files in a folder that this process has open, without the files of locks, which stay open."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the one that lists
            found.append(str(descriptor.readlink()))
    return [name for name in found if str(folder) in name and not name.removesuffix(" (deleted)").endswith("owners")]


# --------------------------------------------------------------------------- Ctrl-C

PROGRAM = """
import asyncio, sys, time
from pathlib import Path
from stategraph import State
from stategraph.stores.disk import DiskStore
from tests.scenarios import DRIVERS, NODES, RUN, Scene, WatchedStore, trace

folder, driver, kind, place = sys.argv[1:]
done = Path(folder, "done").open("a")

def stay(here):
    if here == place:
        print("here", flush=True)
        for _ in range(100):  # not in one go: not every signal ends a sleep
            time.sleep(0.01)

def node(name):
    def work(state):
        if name == "c":
            stay("node")
        done.write(name)
        done.flush()
        return trace(name)(state)
    return work

def predicate(state):
    stay("predicate")
    return True

def before(method, argument):
    if method == "save" and argument.step == 2:
        stay("save")

store = WatchedStore(DiskStore(Path(folder, "runs")), before)
scene = Scene(store, DRIVERS[driver], NODES[kind])
edges = [("a", "b"), ("b", "c"), ("c", "d", predicate)]
scene.execute(scene.graph({name: node(name) for name in "abcd"}, edges, interval=2))
"""


@pytest.mark.parametrize("place", ["node", "predicate", "save"])
@pytest.mark.parametrize(
    ("driver_name", "kind"), [("sync", "sync nodes"), ("async", "sync nodes"), ("async", "async nodes")]
)
def test_an_interrupt_from_the_keyboard(tmp_path: Path, driver_name: str, kind: str, place: str) -> None:
    """SIGINT in the middle of a node, a predicate or a save: every node that was completed is in the store."""
    process = start(PROGRAM, tmp_path, driver_name, kind, place)
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"

    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)

    done = [*(tmp_path / "done").read_text()]
    store = DiskStore(tmp_path / "runs")
    assert "KeyboardInterrupt" in errors
    assert store.load(RUN)["trace"] == done
    assert store.load(RUN).status is RunStatus.ACTIVE
    scene = Scene(store, call_sync, lambda function: function)
    edges = [("a", "b"), ("b", "c"), ("c", "d", lambda state: True)]
    assert scene.resume(scene.graph(traces("abcd"), edges))["trace"] == [*"abcd"]
    store.close()


INTERRUPTED_TWICE = """
    import asyncio, itertools, sys, time
    from stategraph import MapNode, State, StateGraph

    count = itertools.count()

    def hang(_):
        if next(count) == 0:
            print("here", flush=True)
        time.sleep(600)

    async def ahang(_):
        if next(count) == 0:  # once all tasks are waiting: an interrupt that comes before is one of the function
            asyncio.get_running_loop().call_soon(lambda: print("here", flush=True))
        try:
            await asyncio.sleep(600)
        finally:
            await asyncio.sleep(600)  # cleaning up

    kind = sys.argv[1]
    node = {
        "threads of items": MapNode(hang, over="items", into="made", max_workers=2),
        "tasks of items": MapNode(ahang, over="items", into="made", max_workers=2),
        "an async node": ahang,
        "threads of a batch": hang,
    }[kind]
    graph = StateGraph("g")
    graph.add_node("a", node)
    graph.set_entry_point("a")
    graph.set_exit_point("a")
    if kind == "threads of a batch":
        list(graph.run_many([State(), State()]))
    graph.execute(State({"items": [0, 1]}))
"""


@pytest.mark.parametrize("kind", ["threads of items", "tasks of items", "an async node", "threads of a batch"])
def test_a_second_interrupt_from_the_keyboard(kind: str) -> None:
    """The first SIGINT waits for threads, which cannot be stopped, and for tasks that clean up. The second does not."""
    process = start(INTERRUPTED_TWICE, kind, measured=False)
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"

    process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)

    assert "KeyboardInterrupt" in errors


def start(program: str, *arguments: Any, measured: bool = True) -> subprocess.Popen[str]:
    """-> a new Python process that runs a program; its coverage is not measured if that would be in the way."""
    root = Path(stategraph.__file__).parents[1]
    environment = {name: value for name, value in os.environ.items() if measured or not name.startswith("COVERAGE")}
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)],
        env={**environment, "PYTHONPATH": f"{root}{os.pathsep}{Path(__file__).parents[1]}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


INTERRUPTED = """
    import signal

    from stategraph import CheckpointConfig, GraphConfig, State, StateGraph

    checkpoint = CheckpointConfig(interval=1)
    graph = StateGraph(GraphConfig("busy", observer="noop", max_iterations=10**9, checkpoint=checkpoint))
    graph.add_node("a", lambda state: {"n": 1})
    graph.add_node("b", lambda state: {})
    graph.add_edge("a", "a", lambda state: not state.get("ends"))
    graph.add_edge("a", "b")
    graph.set_entry_point("a")
    graph.set_exit_point("b")
    graph.execute(State({"ends": True}))  # imports all there is to import: Python's own locks may be left behind there
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    saved = 0
    for number in range(150):
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.002 + number / 100_000)
            graph.execute(State(run_id=f"run-{number}"))
        except KeyboardInterrupt as interrupt:
            assert not hasattr(interrupt, "__notes__"), interrupt.__notes__
            saved += f"run-{number}" in graph.store.list()
    print(saved)
"""


def test_an_interrupt_at_any_moment_leaves_no_lock_behind() -> None:
    """A timer interrupts a busy run again and again: no run waits for a lock that was left locked."""
    process = start(INTERRUPTED, measured=False)  # coverage has a lock of its own, which an interrupt leaves behind

    output, errors = process.communicate(timeout=25)

    assert errors == ""
    assert int(output) > 100  # the others were interrupted before they began
