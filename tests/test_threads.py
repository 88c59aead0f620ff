"""The threads of an event loop, in which sync nodes and stores work."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import stategraph
from stategraph import State
from stategraph._drivers import threads as threads_of
from stategraph.stores.memory import MemoryStore
from tests.conftest import make_store
from tests.scenarios import RUN, WatchedStore, as_async, make_graph, trace, traces
from tests.test_cancellations import PATIENCE, in_time
from tests.test_stopping import Gate

pytestmark = pytest.mark.timeout(90)


class WaitingStore(MemoryStore):
    """A store that may wait, for all that an event loop knows."""

    never_waits = False


def ours() -> list[str]:
    """Return the names of the threads that are there for event loops."""
    return [thread.name for thread in threading.enumerate() if thread.name in {"stategraph node", "stategraph store"}]


class TestNobodyWaits:
    """For what another run does, however slow that is."""

    def test_slow_nodes(self) -> None:
        """Nodes and saves of other runs go on, whatever sync nodes and the loop's own executor are at."""
        gate, store = Gate(), WaitingStore()

        def slow(state: State) -> dict[str, Any]:
            gate.wait()
            return {}

        async def main() -> None:
            asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
            blocked = make_graph({"a": slow}, store=store)
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
        """Further nodes wait; saves do not."""
        monkeypatch.setattr(threads_of, "NODES", 2)
        order: list[str] = []

        def slow(state: State) -> dict[str, Any]:
            order.append(state.run_id)
            time.sleep(0.01)
            return {}

        async def main() -> None:
            graph = make_graph({"a": slow}, store=WaitingStore())
            await asyncio.gather(*(graph.aexecute(State()) for _ in range(20)))
            assert ours().count("stategraph node") == 2

        in_time(main)
        assert len(order) == 20

    def test_as_many_slow_nodes_as_there_may_be_threads(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Runs of async nodes are saved all the same."""
        monkeypatch.setattr(threads_of, "NODES", 2)
        gate, store = Gate(), WaitingStore()

        def slow(state: State) -> dict[str, Any]:
            gate.wait()
            return {}

        async def main() -> None:
            blocked = make_graph({"a": slow}, store=store)
            waiting = [asyncio.create_task(blocked.aexecute(State())) for _ in range(5)]
            await asyncio.to_thread(gate.reached.wait, PATIENCE)
            nodes = {name: as_async(trace(name)) for name in "abc"}
            final = await make_graph(nodes, store=store, preserve=True).aexecute(State(run_id=RUN))
            assert store.load(RUN) == final
            gate.opened.set()
            await asyncio.wait(waiting)

        in_time(main)

    def test_more_than_the_system_has(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What no thread can be begun for waits for one that is there."""
        start = threading.Thread.start

        def refuse(thread: threading.Thread) -> None:
            if len(ours()) >= 3:
                raise RuntimeError("can't start new thread")
            start(thread)

        async def main() -> list[State]:
            graph = make_graph(traces("ab"), store=WaitingStore())
            await graph.aexecute(State())
            monkeypatch.setattr(threading.Thread, "start", refuse)
            return await asyncio.gather(*(graph.aexecute(State()) for _ in range(10)))

        finals = in_time(main)
        assert {tuple(final["trace"]) for final in finals} == {("a", "b")}


class TestLives:
    """How long threads are there."""

    def test_one_run_after_another(self) -> None:
        """The next one finds them; when the loop is closed they are gone."""
        counts: set[int] = set()

        async def main() -> None:
            graph = make_graph(traces("abc"), store=WaitingStore())
            for _ in range(20):
                await graph.aexecute(State())
                counts.add(len(ours()))

        before = len(ours())
        in_time(main)

        assert counts == {before + 2}
        assert len(ours()) == before

    def test_idle_ones(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """They end after some time, in a loop that goes on and while others work."""
        monkeypatch.setattr(threads_of, "IDLE", 0.05)
        gate, before = Gate(), len(ours())

        def slow(state: State) -> dict[str, Any]:
            gate.wait()
            return {}

        async def until_gone(state: State | None = None) -> dict[str, Any]:
            while len(ours()) > before:  # noqa: ASYNC110 - no thread tells that it has gone
                await asyncio.sleep(0.01)
            return {}

        async def main() -> None:
            graph = make_graph({"a": slow}, store=WaitingStore())
            tasks = [asyncio.create_task(graph.aexecute(State())) for _ in range(10)]
            await asyncio.to_thread(gate.reached.wait, PATIENCE)
            other = asyncio.create_task(make_graph({"a": until_gone}, store=WaitingStore()).aexecute(State()))
            gate.opened.set()
            await asyncio.wait(tasks)
            await other
            await make_graph(traces("a"), store=WaitingStore()).aexecute(State())
            await until_gone()

        in_time(main)

    def test_several_loops(self) -> None:
        """Each has its own, whoever ends first."""
        graph = make_graph(traces("abc"), store=WaitingStore())

        async def main() -> None:
            for _ in range(10):
                await graph.aexecute(State())

        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(asyncio.run, main()) for _ in range(12)]:
                done.result(PATIENCE)
        assert not ours()

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

    def test_a_context(self) -> None:
        """Nodes see the context variables of the caller."""
        variable, seen = contextvars.ContextVar("variable", default=0), list[int]()

        def look(state: State) -> dict[str, Any]:
            seen.append(variable.get())
            return {}

        async def main() -> None:
            graph = make_graph({"a": look}, store=WaitingStore())
            for number in range(3):
                variable.set(number)
                await graph.aexecute(State())

        in_time(main)
        assert seen == [0, 1, 2]

    def test_a_call_is_not_cut_off(self) -> None:
        """However often the task is cancelled meanwhile: it ends after the call, and what that did is kept."""
        begun, goes_on = threading.Event(), threading.Event()

        def slow(_: State) -> dict[str, Any]:
            begun.set()
            goes_on.wait(60)
            return {"n": 1}

        store = WaitingStore()

        async def main() -> None:
            graph = make_graph({"a": slow}, store=store, preserve=True)
            run = asyncio.ensure_future(graph.aexecute(State(run_id="run")))
            await asyncio.to_thread(begun.wait, 60)
            for _ in range(3):
                run.cancel()
                await asyncio.sleep(0)
            assert not run.done()
            goes_on.set()
            with pytest.raises(asyncio.CancelledError):
                await run

        in_time(main)
        assert store.load("run")["n"] == 1

    def test_nothing_of_a_call_is_held(self) -> None:
        """An idle thread keeps no State alive."""
        import gc
        import weakref

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


@pytest.mark.parametrize("has_begun", [False, True])
def test_an_interrupt_when_a_thread_starts(monkeypatch: pytest.MonkeyPatch, has_begun: bool) -> None:
    """The loop is closed nevertheless, whether the thread has begun or not, and the runs can be made anew."""
    graph, left = make_graph(traces("ab"), store=WaitingStore(), preserve=True), ["an interrupt"]
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        if not thread.name.startswith("stategraph") or not left:
            start(thread)
            return
        left.clear()
        if has_begun:
            start(thread)
        raise KeyboardInterrupt

    async def main() -> None:
        await asyncio.gather(*(graph.arun(State(run_id=f"run-{number}")) for number in range(4)))

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    gc.collect()
    assert not ours()
    asyncio.run(main())
    assert [graph.store.load(f"run-{number}")["trace"] for number in range(4)] == [["a", "b"]] * 4


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
    "a node that never ends": """
        def endless(state):
            print("here", flush=True)
            threading.Event().wait()
        loop = asyncio.new_event_loop()
        task = loop.create_task(make_graph({"a": endless}, store=MemoryStore()).aexecute(State()))
        loop.run_until_complete(asyncio.sleep(0.2))
    """,
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=list(PROGRAMS))
def test_the_interpreter_ends(program: str) -> None:
    """Whatever its threads are at."""
    head = """
        import asyncio, os, threading
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
