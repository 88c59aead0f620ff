"""Runs on event loops: async nodes under `execute`, sync nodes and stores under `aexecute`."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import stategraph
from stategraph import ExecutionError, MapNode, RetryPolicy, RunCancelledError, State
from stategraph._drivers import threads as threads_of
from stategraph.stores.memory import MemoryStore
from tests.conftest import make_store
from tests.scenarios import RUN, WatchedStore, broken_first, does, make_graph, trace, traces
from tests.test_cancellations import PATIENCE, in_time
from tests.test_stopping import Gate

pytestmark = pytest.mark.timeout(90)

_word: contextvars.ContextVar[str] = contextvars.ContextVar("word", default="none")


async def nothing(state: State) -> dict[str, Any]:
    """Do nothing."""
    return {}


def coroutine_of_nothing(state: State) -> Any:
    """Return the coroutine of `nothing`: this is no async function itself."""
    return nothing(state)


def executed(nodes: dict[str, Any], given: dict[str, Any] | None = None, **options: Any) -> State:
    """Return the State that a chain of nodes ends with."""
    return make_graph(nodes, store=MemoryStore(), **options).execute(State(given or {}, run_id=RUN))


class TestOneTask:
    """All that nodes return is awaited in it."""

    def test_one_task_and_one_loop(self) -> None:
        """Each node finds the same ones."""
        found: list[Any] = []

        async def node(state: State) -> dict[str, Any]:
            found.append((asyncio.current_task(), asyncio.get_running_loop()))
            await asyncio.sleep(0)
            return {}

        executed(dict.fromkeys("abc", node))

        assert len(set(found)) == 1

    def test_between_nodes_no_loop_is_running(self) -> None:
        """A sync node, a predicate and a store may run a loop of their own."""

        def node(state: State) -> dict[str, Any]:
            return {"found": asyncio.run(asyncio.sleep(0, "something"))}

        class Store(MemoryStore):
            def save(self, state: State) -> None:
                asyncio.run(asyncio.sleep(0))
                super().save(state)

        edges = [("a", "b", lambda state: asyncio.run(asyncio.sleep(0, True))), ("b", "c")]
        graph = make_graph({"a": nothing, "b": node, "c": nothing}, edges, store=Store())

        assert graph.execute(State())["found"] == "something"

    def test_what_is_left_at_work(self) -> None:
        """A task that a node has begun goes on with the next one, and is cancelled at the end of the run."""
        seen: list[str] = []

        async def at_work() -> None:
            try:
                while True:
                    seen.append("turn")
                    await asyncio.sleep(0)
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise

        async def begins(state: State) -> dict[str, Any]:
            begins.task = asyncio.create_task(at_work())  # type: ignore[attr-defined]
            return {}

        async def waits(state: State) -> dict[str, Any]:
            for _ in range(5):
                await asyncio.sleep(0)
            return {}

        executed({"a": begins, "b": waits, "c": nothing})

        assert seen.count("turn") >= 5
        assert seen[-1] == "cancelled"

    @pytest.mark.filterwarnings("error::ResourceWarning")
    def test_of_parts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Threads of items leave no loop open in which they have awaited what a sync function returned."""
        inner = make_graph({"a": coroutine_of_nothing}, store=MemoryStore(), name="inner").as_node()
        noted: list[Any] = []
        monkeypatch.setattr(sys, "unraisablehook", noted.append)

        executed({"map": MapNode(inner, "items", "made", 2), "b": lambda state: {}}, given={"items": [{}] * 4})
        gc.collect()

        assert noted == []

    def test_context(self) -> None:
        """What an async node sets in its context is seen by the next one, not by the caller."""
        found: list[str] = []

        async def node(state: State) -> dict[str, Any]:
            found.append(_word.get())
            _word.set(f"{_word.get()}, set")
            return {}

        executed(dict.fromkeys("ab", node))

        assert found == ["none", "none, set"]
        assert _word.get() == "none"

    def test_failure_and_retry(self) -> None:
        """A node that raises fails or is tried again, as if it had a task of its own."""
        left = [ValueError("first"), asyncio.CancelledError("second")]

        async def node(state: State) -> dict[str, Any]:
            await asyncio.sleep(0)
            if left:
                raise left.pop(0)
            return {"trace": [*state["trace"], "b"]}

        policies = {"b": {"retry": RetryPolicy(max_attempts=3, initial_delay=0)}}
        nodes = {"a": trace("a"), "b": node, "c": nothing}

        assert list(executed(nodes, policies=policies)["trace"]) == ["a", "b"]

    @pytest.mark.parametrize("how", ["cancels its task", "stops the loop"])
    def test_node_that_ends_its_task(self, how: str) -> None:
        """It fails, even if it waits for nothing afterwards; no other node is cancelled by that."""

        async def node(state: State) -> dict[str, Any]:
            if how == "stops the loop":
                asyncio.get_running_loop().stop()
                await asyncio.sleep(60)
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            return {}

        with pytest.raises(ExecutionError):
            executed({"a": nothing, "b": node, "c": nothing})
        edges = [("a", "b"), ("b", "d"), ("c", "d")]
        nodes = {"a": nothing, "b": node, "c": nothing, "d": nothing}
        graph = make_graph(nodes, edges, store=MemoryStore(), policies={"b": {"on_error": "c"}})
        assert graph.execute(State()).checkpoint_node == "d"


class TestInterrupts:
    """Ctrl-C while something is awaited, and in between."""

    def test_awaited(self) -> None:
        """What is awaited is cancelled and may end, and the interrupt is raised then; the State before is saved."""
        seen: list[str] = []
        store = MemoryStore()

        async def node(state: State) -> dict[str, Any]:
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
            try:
                await asyncio.sleep(60)
            finally:
                seen.append("cleaned up")
            return {}

        with pytest.raises(KeyboardInterrupt):
            make_graph({**traces("a"), "b": node, "c": nothing}, store=store).execute(State(run_id=RUN))

        assert seen == ["cleaned up"]
        assert list(store.load(RUN)["trace"]) == ["a"]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def noting(found: list[Any], what: Callable[[], Any]) -> Callable[[State], dict[str, Any]]:
    """Return a sync node that notes what a function returns."""

    def node(state: State) -> dict[str, Any]:
        found.append(what())
        return {}

    return node


class TestSyncNodes:
    """A run of them goes on in one thread, and the loop is free."""

    def test_one_thread(self) -> None:
        """All nodes and saves of the run are done in one thread, which is not that of the loop."""
        where: list[int] = []

        class Store(MemoryStore):
            def save(self, state: State) -> None:
                where.append(threading.get_ident())
                super().save(state)

        async def main() -> None:
            nodes = {name: noting(where, threading.get_ident) for name in "abc"}
            await make_graph(nodes, store=Store(), preserve=True).aexecute(State())
            assert len(set(where)) == 1
            assert where[0] != threading.get_ident()

        in_time(main)

    def test_the_loop_is_free(self) -> None:
        """While the nodes block, everything else on the loop goes on."""
        ticks: list[None] = []

        async def tick() -> None:
            while True:
                ticks.append(None)
                await asyncio.sleep(0.001)

        async def main() -> None:
            ticking = asyncio.create_task(tick())
            await make_graph(
                {name: noting([], lambda: time.sleep(0.05)) for name in "abc"}, store=MemoryStore()
            ).aexecute(State())
            ticking.cancel()
            assert len(ticks) > 20

        in_time(main)

    def test_context(self) -> None:
        """Each node sees the context of the caller, and nothing that another one has set."""
        found: list[str] = []

        def node(state: State) -> dict[str, Any]:
            found.append(_word.get())
            _word.set("set by a node")
            return {}

        async def main() -> None:
            _word.set("set by the caller")
            await make_graph(dict.fromkeys("abc", node), store=MemoryStore()).aexecute(State())

        in_time(main)

        assert found == ["set by the caller"] * 3

    def test_cancelled(self) -> None:
        """A run that is cancelled, once or often, waits for the node at work; the next one does not begin."""
        gate, begun, store = Gate(), list[str](), MemoryStore()

        def slow(state: State) -> dict[str, Any]:
            gate.wait()
            return {"trace": [*state["trace"], "b"]}

        async def main() -> None:
            nodes = {"a": trace("a"), "b": slow, "c": noting(begun, lambda: "c")}
            task = asyncio.create_task(make_graph(nodes, store=store).aexecute(State(run_id=RUN)))
            await asyncio.to_thread(gate.reached.wait, PATIENCE)
            for _ in range(3):
                task.cancel()
                await asyncio.sleep(0.02)
            assert not task.done()
            gate.opened.set()
            with pytest.raises(asyncio.CancelledError):
                await task

        in_time(main)

        assert begun == []
        assert list(store.load(RUN)["trace"]) == ["a", "b"]

    @pytest.mark.parametrize("how", ["cancel", "timeout"])
    def test_stopped(self, how: str) -> None:
        """An event that is set, or a time that is up, stops the run before the next node."""
        cancel = threading.Event()

        def slow(state: State) -> dict[str, Any]:
            cancel.set()
            time.sleep(0.1)
            return {}

        async def main() -> None:
            begun = list[str]()
            graph = make_graph({"a": trace("a"), "b": slow, "c": noting(begun, lambda: "c")}, store=MemoryStore())
            with pytest.raises(RunCancelledError):
                await graph.aexecute(State(), **({"cancel": cancel} if how == "cancel" else {"timeout": 0.05}))
            assert begun == []

        in_time(main)

    def test_loop_that_is_gone(self) -> None:
        """Nobody runs further nodes for a loop that has stopped."""
        gate, begun = Gate(), list[str]()

        loop = asyncio.new_event_loop()
        task = loop.create_task(
            make_graph({"a": does(gate.wait), "b": noting(begun, lambda: "b")}, store=MemoryStore()).aexecute(State())
        )
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        loop.run_until_complete(asyncio.to_thread(gate.reached.wait, PATIENCE))
        loop.run_until_complete(loop.shutdown_default_executor())
        gate.opened.set()
        time.sleep(0.05)
        assert begun == []
        loop.run_until_complete(task)
        loop.close()

        assert begun == ["b"]

    def test_failures(self) -> None:
        """What a node raises is the engine's, which tries again, and the run goes on in a thread."""

        async def main() -> State:
            nodes = {"a": trace("a"), "b": broken_first(trace("b"), ValueError("once")), "c": trace("c")}
            policies = {"b": {"retry": RetryPolicy(max_attempts=2, initial_delay=0)}}
            return await make_graph(nodes, store=MemoryStore(), policies=policies).aexecute(State())

        assert list(in_time(main)["trace"]) == ["a", "b", "c"]


class TestAsyncNodes:
    """Their saves in memory are made on the loop."""

    def test_others_have_their_turn(self) -> None:
        """A run whose nodes wait for nothing does not keep the loop, and a cancellation arrives."""

        async def count(state: State) -> dict[str, Any]:
            return {"trace": [*state.get("trace", ()), "x"][-2:]}

        async def main() -> None:
            edges = [("a", "a", lambda state: True), ("a", "b")]
            graph = make_graph({"a": count, "b": count}, edges, store=MemoryStore(), max_iterations=200_000)
            task = asyncio.create_task(graph.aexecute(State()))
            await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        in_time(main)


class WaitingStore(MemoryStore):
    """A store that may wait, for all that an event loop knows."""

    never_waits = False


def ours() -> list[str]:
    """Return the names of the threads that are there for event loops."""
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name.startswith(("stategraph node_", "stategraph store_"))]


class TestNobodyWaits:
    """For what another run does, however slow that is."""

    def test_slow_nodes(self) -> None:
        """Nodes and saves of other runs go on, whatever sync nodes and the loop's own executor are at."""
        gate, store = Gate(), WaitingStore()

        async def main() -> None:
            asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
            blocked = make_graph({"a": does(gate.wait)}, store=store)
            waiting: list[asyncio.Task[Any]] = [asyncio.create_task(blocked.aexecute(State())) for _ in range(60)]
            await asyncio.to_thread(gate.reached.wait, PATIENCE)
            waiting.append(asyncio.create_task(asyncio.to_thread(gate.opened.wait, PATIENCE)))
            quick = make_graph(traces("abc"), store=store, preserve=True)
            finals = await asyncio.gather(*(quick.aexecute(State()) for _ in range(20)))
            assert {tuple(final["trace"]) for final in finals} == {("a", "b", "c")}
            assert not any(task.done() for task in waiting)
            gate.opened.set()
            await asyncio.wait(waiting)

        in_time(main)

    def test_slow_stores(self) -> None:
        """Nodes of runs that save nothing go on."""
        gate = Gate()

        def before(method: str, argument: Any) -> None:
            if method == "save":
                gate.wait()

        store = WatchedStore(WaitingStore(), before)

        async def main() -> None:
            blocked = make_graph(traces("a"), store=store, preserve=True)
            waiting = [asyncio.create_task(blocked.aexecute(State())) for _ in range(60)]
            await asyncio.to_thread(gate.reached.wait, PATIENCE)
            await asyncio.sleep(0.1)  # others come to it
            final = await make_graph(traces("abc"), store=store, interval=0).aexecute(State())
            assert final["trace"] == [*"abc"]
            gate.opened.set()
            await asyncio.wait(waiting)

        in_time(main)

    def test_more_than_there_may_be_threads(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Further nodes wait."""
        monkeypatch.setattr(threads_of, "NODES", 2)
        at_work, most = threading.Semaphore(2), list[bool]()

        def slow(state: State) -> dict[str, Any]:
            most.append(at_work.acquire(blocking=False))
            time.sleep(0.01)
            at_work.release()
            return {}

        async def main() -> None:
            graph = make_graph({"a": slow}, store=WaitingStore())
            await asyncio.gather(*(graph.aexecute(State()) for _ in range(20)))

        in_time(main)
        assert most == [True] * 20


class TestLives:
    """How long threads are there."""

    def test_one_run_after_another(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The next one finds them; they end after some time, in a loop that goes on, or with the loop."""
        monkeypatch.setattr(threads_of, "IDLE", 0.05)
        found = set[int]()

        def node(state: State) -> dict[str, Any]:
            found.add(threading.get_ident())
            return {}

        async def main() -> None:
            graph = make_graph({"a": node}, store=WaitingStore())
            before = {*threading.enumerate()}
            for _ in range(20):
                await graph.aexecute(State())
            while {*threading.enumerate()} - before:  # noqa: ASYNC110 - no thread tells that it has gone
                await asyncio.sleep(0.01)
            await graph.aexecute(State())

        in_time(main)
        assert len(found) < 20

    @pytest.mark.parametrize("is_busy", [False, True], ids=["after a run", "in a run"])
    @pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
    def test_a_loop_that_was_dropped(self, is_busy: bool) -> None:
        """It goes without being closed, and its threads with it; work that is under way is finished before."""
        gate, finished = Gate(), list[str]()

        def slow(state: State) -> dict[str, Any]:
            if is_busy:
                gate.wait()
            finished.append("slow")
            return {}

        async def until(task: asyncio.Task[State]) -> None:
            await (asyncio.to_thread(gate.reached.wait, PATIENCE) if is_busy else task)
            await asyncio.get_running_loop().shutdown_default_executor()

        def use() -> weakref.ref[asyncio.AbstractEventLoop]:
            loop = asyncio.new_event_loop()
            task = loop.create_task(make_graph({"a": slow}, store=WaitingStore()).aexecute(State()))
            loop.run_until_complete(until(task))
            return weakref.ref(loop)

        loop = use()
        gate.opened.set()
        end = time.monotonic() + PATIENCE
        while (loop() is not None or ours()) and time.monotonic() < end:
            gc.collect()
            time.sleep(0.01)

        assert (loop(), ours(), finished) == (None, [], ["slow"])

    def test_nothing_of_a_call_is_held(self) -> None:
        """An idle thread keeps no State alive."""

        class Thing:
            pass

        async def main() -> None:
            thing = Thing()
            held = weakref.ref(thing)
            graph = make_graph({"a": lambda state: {"n": state["thing"] is not None}}, store=WaitingStore(), interval=0)
            await graph.aexecute(State({"thing": thing}))
            del thing
            gc.collect()
            assert held() is None

        in_time(main)


PROGRAMS = {
    "a loop that is never closed": """
        loop = asyncio.new_event_loop()
        loop.run_until_complete(run())
    """,
    "a child of it that goes on": """
        loop = asyncio.new_event_loop()
        loop.run_until_complete(run())
        child = os.fork()
        if not child:
            loop.run_until_complete(run())
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        loop.run_until_complete(run())
        loop.close()
    """,
    "a child with a loop of its own": """
        async def forks():
            await run()
            child = os.fork()
            if not child:
                thread = threading.Thread(target=lambda: asyncio.run(run()))
                thread.start()
                thread.join()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            await run()
        asyncio.run(forks())
    """,
    "a node that hangs": """
        began = threading.Event()
        def hangs(state):
            began.set()
            time.sleep(600)
        graph = make_graph({"a": hangs}, store=MemoryStore())
        threading.Thread(target=lambda: asyncio.run(graph.aexecute(State())), daemon=True).start()
        began.wait()
    """,
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=list(PROGRAMS))
def test_the_interpreter_ends(program: str) -> None:
    """Whatever its threads are at."""
    head = """
        import asyncio, os, threading, time
        from stategraph import State
        from stategraph.stores.memory import MemoryStore
        from tests.scenarios import make_graph, traces
        async def run():
            assert (await make_graph(traces("ab"), store=MemoryStore()).aexecute(State()))["trace"] == ["a", "b"]
    """
    code = textwrap.dedent(head) + textwrap.dedent(program)
    root = Path(stategraph.__file__).parents[1]

    subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=root, check=True, timeout=PATIENCE)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_no_thread_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Where the system has no more threads, the event loop makes the calls itself, and nothing is lost."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with make_store(kind, tmp_path) as store:
        graph = make_graph(traces("abc"), store=store, preserve=True)
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            final = asyncio.run(graph.aexecute(State(run_id=RUN)))

        assert final["trace"] == [*"abc"]
        assert store.load(RUN) == final
