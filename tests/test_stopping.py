"""Stopping a run by event, timeout, asyncio or Ctrl-C loses no completed step and leaks nothing."""

from __future__ import annotations

import asyncio
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
from stategraph import AsyncNodeError, RunCancelledError, RunStatus, State
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

pytestmark = pytest.mark.timeout(600)


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
        assert self.opened.wait(300)


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


class TestCancelEvent:
    """The event given as `cancel`."""

    def test_set_beforehand(self, scene: Scene) -> None:
        """With the event set beforehand no node runs, and the run can be resumed."""
        cancel = threading.Event()
        cancel.set()
        with pytest.raises(RunCancelledError):
            scene.execute(scene.graph(dict.fromkeys("ab", raises(AssertionError()))), cancel=cancel)

        with pytest.raises(RunCancelledError):
            scene.resume(scene.graph(dict.fromkeys("ab", raises(AssertionError()))), cancel=cancel)

        assert scene.resume(scene.graph(traces("ab")))["trace"] == ["a", "b"]


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


class TestAsyncioCancellation:
    """Cancelling the task of an async run."""

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


class TestEventLoops:
    """Sync calls where an event loop is running."""

    @pytest.mark.parametrize("is_within", [False, True])
    def test_async_nodes_need_aexecute(self, is_within: bool) -> None:
        """The error says so before anything has run."""
        store, node = WatchedStore(MemoryStore()), as_async(trace("b"))
        inner = make_graph({"in": node}, store=store, name="inner")
        graph = make_graph({"a": trace("a"), "b": inner.as_node() if is_within else node}, store=store)

        async def main() -> None:
            with pytest.raises(AsyncNodeError, match=r"'b'.*aexecute"):
                graph.execute(State(run_id=RUN))
            with pytest.raises(AsyncNodeError, match=r"'b'.*aresume"):
                graph.resume(RUN)

        asyncio.run(main())
        assert store.calls == []
        assert graph.execute(State(run_id=RUN))["trace"] == ["a", "b"]


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


@pytest.mark.parametrize(
    ("driver_name", "kind", "place"),
    [
        *(("sync", "sync nodes", "node"), ("sync", "sync nodes", "save"), ("async", "sync nodes", "save")),
        *(("async", "async nodes", "node"), ("async", "async nodes", "predicate")),
    ],
)
def test_an_interrupt_from_the_keyboard(tmp_path: Path, driver_name: str, kind: str, place: str) -> None:
    """SIGINT in the middle of a node, a predicate or a save: every node that was completed is in the store."""
    process = start(PROGRAM, tmp_path, driver_name, kind, place)
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"

    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=300)

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
        "an async node": ahang,
    }[kind]
    graph = StateGraph("g")
    graph.add_node("a", node)
    graph.set_entry_point("a")
    graph.set_exit_point("a")
    graph.execute(State({"items": [0, 1]}))
"""


@pytest.mark.parametrize("kind", ["threads of items", "an async node"])
def test_a_second_interrupt_from_the_keyboard(kind: str) -> None:
    """The first SIGINT waits for threads, which cannot be stopped, and for tasks that clean up. The second does not."""
    process = start(INTERRUPTED_TWICE, kind, measured=False)
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"

    process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=300)

    assert "KeyboardInterrupt" in errors


def start(program: str, *arguments: Any, measured: bool = True) -> subprocess.Popen[str]:
    """Return a new Python process that runs a program; its coverage is not measured if that would be in the way."""
    root = Path(stategraph.__file__).parents[1]
    environment = {name: value for name, value in os.environ.items() if measured or not name.startswith("COVERAGE")}
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)],
        env={**environment, "PYTHONPATH": f"{root}{os.pathsep}{Path(__file__).parents[1]}"},
        stdin=subprocess.PIPE,
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


INTERRUPTED_LOOP = """
    import asyncio, signal

    from stategraph import MapNode, State, StateGraph
    from stategraph.stores.memory import MemoryStore

    async def work(item):
        for _ in range(50):
            await asyncio.sleep(0)
        return item

    graph = StateGraph("busy", store=MemoryStore(), preserve=True)
    graph.add_node("map", MapNode(work, over="items", into="done"))
    graph.set_entry_point("map")
    graph.set_exit_point("map")
    graph.execute(State({"items": [0]}))
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    interrupted = 0
    for number in range(100):
        state = State({"items": [*range(200)]}, run_id=f"run-{number}")
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.004 + number / 10_000)
            graph.execute(state)
            signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            interrupted += 1
    print(interrupted)
"""


def test_an_interrupt_of_the_event_loop_of_parts() -> None:
    """The call ends with the interrupt: it does not wait for tasks that nothing wakes any more, and is no failure."""
    process = start(INTERRUPTED_LOOP, measured=False)

    output, _ = process.communicate(timeout=300)

    assert process.returncode == 0
    assert int(output) > 0


@pytest.mark.skipif(sys.version_info[:2] == (3, 14), reason="Python 3.14 may skip the end of a with: CPython #148874")
def test_an_interrupt_at_any_moment_leaves_no_lock_behind() -> None:
    """A timer interrupts a busy run again and again: no run waits for a lock that was left locked."""
    process = start(INTERRUPTED, measured=False)  # an interrupt would leave the lock of coverage acquired

    output, errors = process.communicate(timeout=300)

    assert errors == ""
    assert int(output) > 100  # the others were interrupted before they began


WRITE_BEHIND = """
    import signal

    from stategraph import CheckpointConfig, GraphConfig, State, StateGraph

    checkpoint = CheckpointConfig(durability="async", store="sqlite", options={"path": "runs.db"})
    graph = StateGraph(GraphConfig("busy", observer="noop", max_iterations=10**9, checkpoint=checkpoint))
    graph.add_node("a", lambda state: {"n": state.get("n", 0) + 1})
    graph.add_node("b", lambda state: {})
    graph.add_edge("a", "a", lambda state: state["n"] < 10**6)
    graph.add_edge("a", "b")
    graph.set_entry_point("a")
    graph.set_exit_point("b")
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    for number in range(40):
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.1 + number / 1000)  # the queue is full by then
            graph.execute(State(run_id=f"run-{number}"))
        except KeyboardInterrupt:
            pass
    print("ended")
"""


@pytest.mark.skipif(sys.version_info[:2] == (3, 14), reason="Python 3.14 may skip the end of a with: CPython #148874")
def test_an_interrupt_of_a_run_that_waits_for_its_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run ends; it does not wait for the lock of its queue."""
    monkeypatch.chdir(tmp_path)
    process = start(WRITE_BEHIND, measured=False)

    output, errors = process.communicate(timeout=300)

    assert (output, errors) == ("ended\n", "")
