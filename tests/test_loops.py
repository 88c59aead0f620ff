"""Runs on event loops: async nodes in `execute`, sync nodes and stores in `aexecute`."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import stategraph
from stategraph import State
from stategraph.stores.memory import MemoryStore
from tests.conftest import make_store
from tests.scenarios import RUN, does, make_graph, traces
from tests.test_cancellations import PATIENCE, in_time
from tests.test_stopping import Gate

pytestmark = pytest.mark.timeout(600)


async def nothing(state: State) -> dict[str, Any]:
    """Do nothing."""
    return {}


def executed(nodes: dict[str, Any], given: dict[str, Any] | None = None, **options: Any) -> State:
    """Return the State that a chain of nodes ends with."""
    return make_graph(nodes, store=MemoryStore(), **options).execute(State(given or {}, run_id=RUN))


class TestOneTask:
    """All that nodes return is awaited in it."""

    def test_one_task_and_one_loop(self) -> None:
        """All nodes of a run share one task and one loop."""
        found: list[Any] = []

        async def node(state: State) -> dict[str, Any]:
            found.append((asyncio.current_task(), asyncio.get_running_loop()))
            await asyncio.sleep(0)
            return {}

        executed(dict.fromkeys("abc", node))

        assert len(set(found)) == 1

    def test_tasks_left_at_work(self) -> None:
        """A task that a node starts runs on beside the next nodes, and is cancelled at the end of the run."""
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


class TestInterrupts:
    """Ctrl-C while something is awaited, and in between."""

    def test_awaited(self) -> None:
        """An interrupt cancels the awaited task, waits for its end and is raised; the State before is saved."""
        seen: list[str] = []
        store = MemoryStore()

        async def node(state: State) -> dict[str, Any]:
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
            try:
                await asyncio.sleep(300)
            finally:
                seen.append("cleaned up")
            return {}

        with pytest.raises(KeyboardInterrupt):
            make_graph({**traces("a"), "b": node, "c": nothing}, store=store).execute(State(run_id=RUN))

        assert seen == ["cleaned up"]
        assert list(store.load(RUN)["trace"]) == ["a"]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


class WaitingStore(MemoryStore):
    """A store that may wait, for all that an event loop knows."""

    never_waits = False


class TestRunsDoNotBlockEachOther:
    """For what another run does, however slow that is."""

    def test_slow_nodes(self) -> None:
        """Nodes and saves of other runs continue while sync nodes and the executor of the loop are busy."""
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


PROGRAMS = {
    "a loop that is never closed": """
        loop = asyncio.new_event_loop()
        loop.run_until_complete(run())
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
    """The interpreter ends while its threads are busy."""
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
