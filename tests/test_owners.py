"""A run has one owner among threads, tasks and processes, even if the owner dies or freezes."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from stategraph import (
    CheckpointError,
    CheckpointStore,
    NodeContext,
    RunBusyError,
    RunLostError,
    State,
    StepConflictError,
)
from stategraph._owners import base, locks
from stategraph._values.progress import Part
from stategraph.stores.memory import MemoryStore
from stategraph.stores.sqlite import SqliteStore
from tests.conftest import make_store
from tests.postgres_server import dsn, postgres_at, schema_of
from tests.redis_server import prefix_of, redis_at, url
from tests.scenarios import RUN, make_graph, traces

pytestmark = pytest.mark.timeout(600)


def sqlite_at(folder: Path) -> CheckpointStore:
    """Return the sqlite store of a folder."""
    return SqliteStore(folder / "runs.db")


SHARED: dict[str, Callable[..., CheckpointStore]] = {"sqlite": sqlite_at, "postgres": postgres_at, "redis": redis_at}


@pytest.fixture(params=["memory", "disk", "four methods", "postgres", "redis"])
def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CheckpointStore]:
    """An empty store of each kind, those on servers as well."""
    with make_store(request.param, tmp_path) as store:
        yield store


@pytest.fixture(params=SHARED)
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], CheckpointStore]:
    """Return a function that opens a store that processes share, once more each time."""
    return lambda: SHARED[request.param](tmp_path)


def begun(store: CheckpointStore, names: str) -> Any:
    """Return an open stream of a run that has done its first node."""
    stream = make_graph(traces(names), store=store).stream(State(run_id=RUN))
    next(stream)
    return stream


# --------------------------------------------------------------------------- tasks and threads


def test_two_tasks_of_one_loop_execute_one_run(any_store: CheckpointStore) -> None:
    """Each node runs once, and the second task gets an error."""
    ran: list[str] = []

    async def node(state: State) -> dict[str, Any]:
        ran.append("node")
        await asyncio.sleep(0.05)
        return {}

    graph = make_graph({"a": node, "b": node}, store=any_store)

    async def main() -> Any:
        both = (graph.aexecute(State(run_id=RUN)) for _ in range(2))
        return await asyncio.gather(*both, return_exceptions=True)

    first, second = sorted(asyncio.run(main()), key=lambda one: isinstance(one, Exception))
    assert first.step == 2
    assert isinstance(second, RunBusyError)
    assert ran == ["node", "node"]


# --------------------------------------------------------------------------- processes

OWNER = """
import json, sys, time
from pathlib import Path
from stategraph import CheckpointConfig, GraphConfig, State, StateGraph
from stategraph.errors import RunLostError

folder, kind, durability, options = Path(sys.argv[1]), sys.argv[2], sys.argv[3], json.loads(sys.argv[4])
checkpoint = CheckpointConfig(store=kind, interval=1, preserve=True, durability=durability, options=options)
graph = StateGraph(GraphConfig("owned", observer="noop", checkpoint=checkpoint))

def slow(state):
    print("at work", flush=True)
    while not (folder / "go on").exists():
        time.sleep(0.01)
    return {"by": "the first"}

graph.add_node("a", lambda state: {"by": "the first"})
graph.add_node("b", slow)
graph.add_node("c", lambda state: {})
graph.add_edge("a", "b")
graph.add_edge("b", "c")
graph.set_entry_point("a")
graph.set_exit_point("c")
try:
    graph.execute(State(run_id="run"))
except RunLostError as error:
    print("lost", error.state["by"], flush=True)
"""


def options_of(kind: str, folder: Path) -> str:
    """Return the options of the store that stands for a folder, as JSON."""
    if kind == "postgres":
        return json.dumps({"dsn": dsn(), "schema": schema_of(folder)})
    if kind == "redis":
        return json.dumps({"url": url(), "prefix": prefix_of(folder)})
    return json.dumps({"path": str(folder / ("runs.db" if kind == "sqlite" else "runs"))})


class Process:
    """A process that owns the run."""

    def __init__(self, folder: Path, kind: str, durability: str = "sync") -> None:
        command = [sys.executable, "-c", OWNER, str(folder), kind, durability, options_of(kind, folder)]
        self.folder = folder
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.said() == "at work"

    def said(self) -> str:
        """Return its next line."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def goes_on(self) -> None:
        """Let its node come to an end."""
        (self.folder / "go on").touch()


@pytest.fixture(params=SHARED)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def start(tmp_path: Path, kind: str) -> Iterator[Callable[..., Process]]:
    """Return a function that starts a process which owns the run."""
    started: list[Process] = []

    def begin(durability: str = "sync") -> Process:
        started.append(Process(tmp_path, kind, durability))
        return started[-1]

    yield begin
    for one in started:
        one.process.kill()
        one.process.communicate()


class TestProcesses:
    """They share a store."""

    @pytest.fixture
    def graph(self, tmp_path: Path, kind: str) -> Any:
        store = SHARED[kind](tmp_path)
        nodes = {name: lambda state: {"by": "the second"} for name in "abc"}
        yield make_graph(nodes, store=store, preserve=True, name="owned")
        store.close()

    def test_a_run_that_another_process_is_at_work_on(
        self, graph: Any, start: Callable[..., Process], kind: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each call fails at once, and the error names the other process.

        Stores in files also name the current node; a server does not know it.
        """
        other, slept = start(), list[float]()
        monkeypatch.setattr(time, "sleep", slept.append)

        for _ in range(3):
            with pytest.raises(RunBusyError) as busy:
                graph.resume(RUN, allow_changed=True)
        assert not slept
        monkeypatch.undo()
        with pytest.raises(RunBusyError):
            graph.store.delete(RUN)

        owner = graph.store.owner(RUN)
        assert busy.value.owner == owner
        assert owner.pid == other.process.pid
        assert owner.since is not None
        assert owner.node == ("b" if kind == "sqlite" else None)
        assert kind != "sqlite" or owner.since <= owner.node_since <= datetime.now(UTC)

    def test_an_owner_that_is_killed(self, graph: Any, start: Callable[..., Process]) -> None:
        """The run of a killed owner is free at once."""
        other = start()
        other.process.send_signal(signal.SIGKILL)
        other.process.wait()

        assert graph.store.owner(RUN) is None
        state = graph.resume(RUN, allow_changed=True)
        assert (state["by"], state.step) == ("the second", 3)

    @pytest.mark.parametrize(
        ("kind", "durability"),
        [("sqlite", "async"), ("postgres", "sync"), ("redis", "exit")],
    )
    def test_an_owner_that_is_frozen(self, graph: Any, start: Callable[..., Process], durability: str) -> None:
        """A frozen owner keeps the run until a take-over, and saves nothing once it wakes up."""
        other = start(durability)
        if durability == "async":  # one that is frozen while it writes keeps the whole database
            while graph.store.list() != [RUN]:
                time.sleep(0.01)
            time.sleep(0.1)
        other.process.send_signal(signal.SIGSTOP)
        with pytest.raises(RunBusyError):
            graph.execute(State(run_id=RUN), wait=0.1)

        if durability == "sync":
            state = graph.resume(RUN, allow_changed=True, take_over=True)
        else:
            graph.store.delete(RUN, take_over=True)
            state = graph.execute(State(run_id=RUN))
        other.goes_on()
        other.process.send_signal(signal.SIGCONT)

        assert other.said() == "lost the first"
        assert graph.store.load(RUN) == state
        assert graph.store.owner(RUN) is None


def forked(work: Callable[[], object]) -> int:
    """Return how a forked child ends that does this: 0 if nothing was raised."""
    child = os.fork()
    if not child:  # pragma: no cover
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1]


@pytest.mark.unmeasured  # coverage has a lock that a fork leaves locked
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
class TestForks:
    """A child owns nothing, and lets go of nothing."""

    @pytest.mark.parametrize("kind", ["memory", *SHARED])
    def test_a_child_of_an_owner(self, kind: str, tmp_path: Path) -> None:
        """A forked child cannot save the run; in a shared store the run belongs to the parent."""
        store = MemoryStore() if kind == "memory" else SHARED[kind](tmp_path)
        graph = make_graph(traces("abc"), store=store)
        stream = graph.stream(State(run_id=RUN))
        next(stream)

        def child() -> None:
            with pytest.raises(RunLostError):
                next(stream)
            if kind != "memory":
                with pytest.raises(RunBusyError):
                    graph.resume(RUN)

        assert forked(child) == 0
        assert store.owner(RUN) is not None
        assert [*stream][-1]["trace"] == [*"abc"]
        store.close()

    @pytest.mark.parametrize("kind", ["memory", *SHARED])
    def test_a_child_of_a_node(self, kind: str, tmp_path: Path) -> None:
        """A forked child does no effects of the node, spends nothing, and is told why."""
        codes: list[int] = []

        def work(state: State, context: NodeContext) -> dict[str, Any]:
            codes.append(forked(lambda: refused(lambda: context.effect("a", list))))
            codes.append(forked(lambda: refused(lambda: context.spend(usd=1))))
            return {}

        def refused(call: Callable[[], object]) -> None:
            with pytest.raises(RunLostError):
                call()

        store = MemoryStore() if kind == "memory" else SHARED[kind](tmp_path)
        make_graph({"work": work}, store=store).execute(State(run_id=RUN))
        assert codes == [0, 0]
        store.close()

    @pytest.mark.skipif(not locks.CAN_SEE, reason="elsewhere, children do not inherit locks")
    def test_a_child_that_outlives_the_owner(self, tmp_path: Path) -> None:
        """The run is free once its owner is dead, whatever other threads were doing at the fork."""
        program = """
            import os, sys, threading, time
            from stategraph import State, StateGraph

            def lists():
                while True:
                    graph.store.runs(owned=True)

            def forks(state):
                for _ in range(5):
                    time.sleep(0.05)
                    if not os.fork():
                        time.sleep(600)
                        os._exit(0)
                print("forked", flush=True)
                time.sleep(600)

            graph = StateGraph("g", store=sys.argv[1])
            graph.add_node("a", forks)
            graph.set_entry_point("a")
            graph.set_exit_point("a")
            for _ in range(2):
                threading.Thread(target=lists, daemon=True).start()
            graph.execute(State(run_id="run"))
        """
        path = tmp_path / "runs.db"
        command = [sys.executable, "-c", textwrap.dedent(program), str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as owner:
            try:
                assert owner.stdout is not None
                assert owner.stdout.readline() == "forked\n"
                with SqliteStore(path) as store:
                    assert store.owner(RUN) is not None
                    owner.kill()
                    owner.wait()
                    assert store.owner(RUN) is None
            finally:
                os.killpg(owner.pid, signal.SIGKILL)


# --------------------------------------------------------------------------- the files with the locks


class TestFilesOfLocks:
    """The ways in which they could fail."""

    @pytest.fixture
    def open_store(self, tmp_path: Path) -> Callable[[], CheckpointStore]:
        return lambda: sqlite_at(tmp_path)

    @pytest.mark.parametrize("how", ["the same path", "a link to the folder", "a path with dots"])
    def test_paths_that_lead_to_one_store(self, tmp_path: Path, how: str) -> None:
        """The run has one owner, whichever path was taken."""
        (tmp_path / "real").mkdir()
        (tmp_path / "link").symlink_to(tmp_path / "real")
        other = {"the same path": "real", "a link to the folder": "link", "a path with dots": "link/../real"}[how]
        first, second = sqlite_at(tmp_path / "real"), sqlite_at(tmp_path / other)
        stream = begun(first, "ab")

        with pytest.raises(RunBusyError):
            make_graph(traces("ab"), store=second).resume(RUN)

        stream.close()
        first.close()
        assert make_graph(traces("ab"), store=second).resume(RUN)["trace"] == ["a", "b"]
        second.close()

    @pytest.mark.skipif(sys.platform != "linux", reason="elsewhere, this is a known limit")
    def test_others_open_and_close_the_file(self, tmp_path: Path) -> None:
        """The locks of a process stay when it opens and closes the file elsewhere."""
        with sqlite_at(tmp_path) as store:
            stream = begun(store, "ab")
            for file in tmp_path.rglob("*owners"):
                file.read_bytes()

            program = (
                "import sys; from stategraph.stores import SqliteStore; "
                "print(SqliteStore(sys.argv[1]).owner('run').pid)"
            )
            command = [sys.executable, "-c", program, str(tmp_path / "runs.db")]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            assert int(done.stdout) == os.getpid()
            stream.close()

    def test_a_file_system_without_locks(
        self, open_store: Callable[[], CheckpointStore], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """On a file system without locks nothing runs, and the error names the way out."""

        def none(*_: Any) -> None:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

        monkeypatch.setattr(locks.LockFile, "_set", none)
        with open_store() as store, pytest.raises(CheckpointError, match="local disk"):
            make_graph({"a": lambda state: pytest.fail("it has run")}, store=store).execute(State(run_id=RUN))


# --------------------------------------------------------------------------- how it is let go of


Handles = tuple[CheckpointStore, CheckpointStore]


@pytest.fixture
def handles(open_store: Callable[[], CheckpointStore], monkeypatch: pytest.MonkeyPatch) -> Iterator[Handles]:
    """Yield two handles to one store whose owners act like two processes."""
    monkeypatch.setattr(locks, "_by_path", {})
    with open_store() as first:
        monkeypatch.setattr(locks, "_by_path", {})
        with open_store() as second:
            yield first, second


@pytest.mark.parametrize("by", ["delete", "owner"])
def test_a_run_that_another_process_has_taken_over_and_done(handles: Handles, by: str) -> None:
    """It is free in this process as well, where the former owner hangs and has not found out."""
    store, other = handles
    with make_graph(traces("abc"), store=store).stream(State(run_id=RUN)) as hangs:
        next(hangs)
        make_graph(traces("abc"), store=other, preserve=True).resume(RUN, take_over=True)

        getattr(store, by)(RUN)
        assert store.owner(RUN) is None
        with pytest.raises(RunLostError):
            next(hangs)


def test_ctrl_c_as_a_run_is_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next call for the run finishes its release."""
    store, pwrite = sqlite_at(tmp_path), os.pwrite

    def interrupt(fd: int, data: bytes, offset: int) -> int:
        if any(data):
            return pwrite(fd, data, offset)
        monkeypatch.undo()
        raise KeyboardInterrupt  # as the record of the owner is erased

    monkeypatch.setattr(os, "pwrite", interrupt)
    with pytest.raises(KeyboardInterrupt):
        store.save(State(run_id=RUN, step=1))

    store.save(State(run_id=RUN, step=2))

    assert store.load(RUN).step == 2
    assert not store.runs(owned=True)


def test_a_run_that_is_deleted_while_it_is_cancelled() -> None:
    """The cancellation is refused, and the run stays deleted."""

    class Raced(MemoryStore):
        def load(self, *which: Any, **how: Any) -> State:
            state = super().load(*which, **how)
            thread = threading.Thread(target=self.delete, args=(RUN,), kwargs={"take_over": True})
            thread.start()
            thread.join()
            return state

    store = Raced()
    store.save(State(run_id=RUN, step=1))

    with pytest.raises(RunLostError):
        store.cancel(RUN)
    assert store.list() == []


def test_a_run_with_an_owner_is_not_pruned(any_store: CheckpointStore) -> None:
    """Prune keeps a due run that has an owner, which may be about to resume it."""
    over = make_graph(traces("ab"), store=any_store, preserve=True, ttl=0.001)
    over.execute(State(run_id=RUN))
    threading.Event().wait(0.01)
    ownership = base.Ownership(RUN)
    base.own(any_store, ownership)

    assert any_store.prune().runs == ()
    base.release(ownership)
    assert any_store.prune().runs == (() if any_store.list() else (RUN,))  # a store of four methods prunes nothing


def test_lost_parts(any_store: CheckpointStore) -> None:
    """Parts of a step are no more kept of one who has lost the run than States are: the next owner makes its own."""
    if not any_store.keeps_parts:
        pytest.skip("it keeps no parts")
    any_store.save(State(run_id=RUN, step=1))
    late, owner = base.Ownership(RUN), base.Ownership(RUN)
    base.own(any_store, late)
    base.own(any_store, owner, take_over=True)

    with pytest.raises(StepConflictError), base.on_behalf_of(late):
        any_store.save_parts(RUN, [Part(2, "b", "1", "late")])

    assert any_store.load_parts(RUN, 2, "b") == {}
    base.release(owner)
