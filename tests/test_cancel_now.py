"""A run that another process cancels stops where it waits, and loses no saved State."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stategraph import (
    CheckpointError,
    InterruptNode,
    MapNode,
    ParallelNode,
    RetryPolicy,
    RunCancelledError,
    RunStatus,
    State,
)
from stategraph.nodes import _processes
from tests.conftest import make_store
from tests.scenarios import DRIVERS, RUN, FourMethodStore, make_graph, reopened, trace
from tests.test_cancellations import PATIENCE

pytestmark = pytest.mark.timeout(600)

CANCEL = """
import sys
from stategraph import get_checkpoint_store
store = get_checkpoint_store(sys.argv[1], path=sys.argv[2])
store.cancel("run", by="ann")
"""


def cancel_elsewhere(store: Any) -> None:
    """Cancel the run in another process, or in another thread if the store lives in memory."""
    path = getattr(store, "path", None)
    if path is None:
        reopened(store).cancel(RUN, by="ann")
    else:
        kind = type(store).__name__.removesuffix("Store").lower()
        subprocess.run([sys.executable, "-c", CANCEL, kind, str(path)], check=True)


class Waiting:
    """Nodes that wait in several ways, and what has become of them."""

    def __init__(self) -> None:
        self.is_waiting = threading.Event()
        self.ends: list[str] = []

    async def wait(self, argument: Any) -> Any:
        """Wait for longer than a test does."""
        self.is_waiting.set()
        try:
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            self.ends.append("cancelled")
            raise
        return {}

    async def chunks(self, state: State) -> AsyncIterator[int]:
        """Wait for the second chunk."""
        yield 1
        await self.wait(state)
        yield 2

    async def turns_into_a_failure(self, state: State) -> Any:
        """Fail because of the cancellation."""
        try:
            await self.wait(state)
        except asyncio.CancelledError:
            raise OSError("the connection is gone") from None

    def fails(self, argument: Any) -> Any:
        """Fail, to be retried much later."""
        self.is_waiting.set()
        raise ConnectionError("not yet")

    def graph(self, store: Any, kind: str) -> Any:
        """Return a graph whose second node waits."""
        later = RetryPolicy(9, initial_delay=50, max_delay=50)  # after a longer delay, another call would go on
        policies = {}
        match kind:
            case "async node":
                node: Any = self.wait
            case "nested graph":
                node = make_graph({"inner": self.wait}, store=store, name="inner").as_node()
            case "items":
                node = MapNode(self.wait, over="items", into="out")
            case "branch":
                node = ParallelNode({"quick": lambda state: {"quick": 1}, "slow": self.wait})
            case "generator":
                node = self.chunks
            case "retry":
                node, policies = self.fails, {"work": {"retry": later}}
            case "failure":
                node, policies = self.turns_into_a_failure, {"work": {"retry": later}}
            case _:
                node = MapNode(self.fails, over="items", into="out", retry=later)
        return make_graph(
            {"first": trace("first"), "work": node, "last": trace("last")}, store=store, policies=policies
        )


KINDS = ["async node", "nested graph", "items", "branch", "generator", "retry", "failure", "retried items"]


@contextlib.contextmanager
def cancelling(store: Any, is_waiting: Callable[[], bool]) -> Iterator[Any]:
    """Expect that a run is cancelled, which is done in another process once it waits."""

    def cancel() -> None:
        while not is_waiting():
            time.sleep(0.005)
        cancel_elsewhere(store)

    canceller = threading.Thread(target=cancel)
    canceller.start()
    with pytest.raises(RunCancelledError) as stopped:
        yield stopped
    canceller.join()


@pytest.mark.parametrize(
    ("pair", "kind"),
    [(("memory", "sync" if number % 2 else "async"), kind) for number, kind in enumerate(KINDS)]
    + [(pair, kind) for pair in (("sqlite", "async"), ("disk", "sync")) for kind in ("items", "retry", "generator")],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_it_stops_where_it_waits(pair: tuple[str, str], kind: str, tmp_path: Path) -> None:
    """An async node is cancelled at its await, wherever it is nested, and a delay before a retry ends.

    The run is cancelled, and has its last completed step.
    """
    waiting = Waiting()
    with make_store(pair[0], tmp_path) as store:
        graph = waiting.graph(store, kind)

        with cancelling(store, waiting.is_waiting.is_set) as stopped:
            DRIVERS[pair[1]](graph, "execute", State({"items": [1, 2]}, run_id=RUN))

        kept, owner = store.load(RUN), store.owner(RUN)
    assert kept == stopped.value.state
    assert (kept.status, kept.by, kept.step, kept["trace"]) == (RunStatus.CANCELLED, "ann", 1, ["first"])
    assert set(waiting.ends) == (set() if kind.startswith("ret") else {"cancelled"})
    assert owner is None


@pytest.mark.parametrize("kind", ["async node", "retry"])
def test_it_stops_where_a_worker_waits(kind: str, driver: Any, tmp_path: Path) -> None:
    """The same where the call can be stopped here as well, as those of `stategraph work` can."""
    waiting = Waiting()
    with make_store("sqlite", tmp_path) as store, cancelling(store, waiting.is_waiting.is_set):
        driver(waiting.graph(store, kind), "execute", State(run_id=RUN), cancel=threading.Event())


@pytest.mark.parametrize("kind", ["postgres", "redis"])
def test_it_stops_where_it_waits_on_a_server(kind: str, driver: Any, tmp_path: Path) -> None:
    """The same for the stores on servers, and for finished parts: they stay finished."""
    waiting, done = Waiting(), list[int]()

    async def item(number: int) -> int:
        if number == 2 and not waiting.ends:
            await waiting.wait(number)
        done.append(number)
        return number

    with make_store(kind, tmp_path) as store, make_store(kind, tmp_path) as other:
        graph = make_graph({"map": MapNode(item, over="items", into="out", max_workers=1)}, store=store, preserve=True)

        def cancel() -> None:
            assert waiting.is_waiting.wait(PATIENCE)
            other.cancel(RUN)

        canceller = threading.Thread(target=cancel)
        canceller.start()
        with pytest.raises(RunCancelledError):
            driver(graph, "execute", State({"items": [0, 1, 2]}, run_id=RUN))
        canceller.join()
        assert store.load(RUN).status is RunStatus.CANCELLED

        assert list(driver(graph, "resume", RUN)["out"]) == [0, 1, 2]
    assert done == [0, 1, 2]


def test_a_node_that_ignores_it_completes(driver: Any, tmp_path: Path) -> None:
    """Its step is saved, and the run is cancelled before the next one; so is a cancellation that comes too late."""
    is_waiting = threading.Event()

    async def stubborn(state: State) -> Any:
        is_waiting.set()
        try:
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            return {"kept": True}

    with make_store("sqlite", tmp_path) as store:
        graph = make_graph({"a": stubborn, "b": trace("b")}, store=store)

        def cancel() -> None:
            assert is_waiting.wait(PATIENCE)
            assert graph.cancel(RUN, wait=PATIENCE) is RunStatus.CANCELLED

        canceller = threading.Thread(target=cancel)
        canceller.start()
        with pytest.raises(RunCancelledError):
            driver(graph, "execute", State(run_id=RUN))
        canceller.join()

        assert (store.load(RUN).step, store.load(RUN)["kept"]) == (1, True)


def test_a_store_of_your_own_fails_to_cancel() -> None:
    """Its error becomes a CheckpointError, as in every other call of a graph."""

    class Full(FourMethodStore):
        is_full = False

        def save(self, state: State) -> None:
            if self.is_full:
                raise OSError("no space is left")
            super().save(state)

    store = Full()
    graph = make_graph({"ask": InterruptNode(None, "go")}, store=store)
    graph.execute(State(run_id=RUN))
    store.is_full = True

    with pytest.raises(CheckpointError, match="no space is left"):
        graph.cancel(RUN)


def test_cancel_on_an_event_loop(tmp_path: Path) -> None:
    """`acancel` waits without blocking the loop on which the run works, and returns what came of it."""
    waiting = Waiting()

    async def main() -> tuple[Any, Any]:
        with make_store("sqlite", tmp_path) as store:
            graph = waiting.graph(store, "async node")
            work = asyncio.create_task(graph.aexecute(State(run_id=RUN)))
            await asyncio.to_thread(waiting.is_waiting.wait)
            status = await graph.acancel(RUN, by="ann", wait=PATIENCE)
            with pytest.raises(RunCancelledError) as stopped:
                await work
            return status, stopped.value.state

    status, state = asyncio.run(main())

    assert (status, state.status, state.by) == (RunStatus.CANCELLED, RunStatus.CANCELLED, "ann")


# --------------------------------------------------------------------------- processes of a map


def item_in_a_process(about: tuple[str, str]) -> str:
    """Note that it is at work; then do what the item says."""
    folder, kind = about
    if kind == "handles":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
    elif kind == "finishes":
        signal.signal(signal.SIGTERM, lambda *_: Path(folder, "asked").touch())
    Path(folder, kind).write_text(str(os.getpid()))
    give_up = time.monotonic() + PATIENCE
    while time.monotonic() < give_up and not Path(folder, "asked").exists():
        time.sleep(0.01)
    return kind


@pytest.fixture
def cancelled_map(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Runs items in processes, and cancels the run in another process while all are at work."""
    with make_store("sqlite", tmp_path) as store:

        def run(driver: Any, *kinds: str) -> Any:
            node = MapNode(item_in_a_process, over="items", into="out", processes=True, max_workers=2)
            graph = make_graph({"map": node}, store=store, preserve=True)
            with cancelling(store, lambda: all((tmp_path / kind).exists() for kind in kinds)):
                driver(graph, "execute", State({"items": [(str(tmp_path), kind) for kind in kinds]}, run_id=RUN))
            return graph

        yield run


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGTERM")
class TestProcesses:
    """Those of a map, at work when another process cancels the run."""

    @pytest.mark.parametrize("driver", DRIVERS.values(), ids=[*DRIVERS])
    def test_they_are_killed_after_a_grace(
        self, driver: Any, cancelled_map: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One that ignores the request is killed; one that ends because of it has not failed."""
        monkeypatch.setattr(_processes, "_PATIENCE", 1)
        graph = cancelled_map(driver, "hangs", "handles")

        for kind in ("hangs", "handles"):
            with pytest.raises(ProcessLookupError):
                os.kill(int((tmp_path / kind).read_text()), 0)
        kept = graph.store.load(RUN)
        assert (kept.status, kept.error) == (RunStatus.CANCELLED, None)

    def test_one_that_finishes_in_time_is_kept(
        self, cancelled_map: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is asked first, by SIGTERM. A resume does not repeat it."""
        monkeypatch.setattr(_processes, "_PATIENCE", PATIENCE)
        graph = cancelled_map(DRIVERS["sync"], "finishes")
        (tmp_path / "finishes").unlink()

        assert list(graph.resume(RUN)["out"]) == ["finishes"]
        assert not (tmp_path / "finishes").exists()
