"""Streams that are dropped: whoever finds them, wherever, what was completed is saved, and nothing hangs."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import decimal
import gc
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stategraph import (
    CheckpointStore,
    EventType,
    MapNode,
    RunBusyError,
    RunCancelledError,
    RunStatus,
    State,
    StateGraph,
)
from stategraph._util.dropped import reaper
from stategraph.stores.disk import DiskStore
from stategraph.stores.memory import MemoryStore
from stategraph.stores.sqlite import SqliteStore
from stategraph.stores.write_behind import WriteBehindStore
from tests.conftest import make_store
from tests.scenarios import RUN, WatchedStore, counted, fails_always, live_threads, make_graph, reopened, trace, traces
from tests.test_events import Recorder

pytestmark = [pytest.mark.timeout(60), pytest.mark.unmeasured]

VARIABLE = contextvars.ContextVar("VARIABLE", default=0)

SAVED: dict[str, dict[str, Any]] = {
    "each step": {},
    "every 4th": {"interval": 4},
    "exit": {"durability": "exit"},
    "async": {"durability": "async", "interval": 3},
}
"""When States are saved."""


@pytest.fixture(params=["memory", "sqlite", "disk"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CheckpointStore]:
    """A store of each kind."""
    with make_store(request.param, tmp_path) as store:
        yield store


@pytest.fixture(params=["memory", "sqlite"])
def some_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CheckpointStore]:
    """A store, where its kind hardly matters."""
    with make_store(request.param, tmp_path) as store:
        yield store


@pytest.fixture(params=["every 4th", "async"])
def some(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Options with which States wait to be saved."""
    return SAVED[request.param]


@pytest.fixture(params=SAVED)
def when(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Options for when States are saved."""
    return SAVED[request.param]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Threads are as before, once those are over that were about to end."""
    gc.collect()
    before = live_threads()
    yield
    wait_until(lambda: live_threads() <= before, "a thread is left")


class Knot:
    """Holds itself, so that only a collection finds it."""

    def __init__(self, *held: object) -> None:
        self.held, self.me = held, self


def begun(graph: StateGraph, states: int = 2, run_id: str = RUN) -> tuple[Any, State]:
    """-> a stream, and the last of the States that it was asked for."""
    stream = graph.stream(State(run_id=run_id))
    return stream, [next(stream) for _ in range(states)][-1]


def in_thread(work: Callable[[], object]) -> None:
    """Do some work in a thread of its own."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()


def wait_until(is_so: Callable[[], bool], otherwise: str = "") -> None:
    """Wait for what another thread does."""
    give_up = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < give_up, (otherwise, threading.enumerate())
        time.sleep(0.01)


async def alone() -> None:
    """Wait until no other task is left."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others, timeout=30)
    assert asyncio.all_tasks() == {asyncio.current_task()}


class TestWhatWasCompletedIsSaved:
    """When the next line runs that asks the store, and the run can be resumed."""

    @pytest.mark.parametrize("how", ["break", "del", "cycle", "cycle elsewhere", "many"])
    def test_however_it_is_dropped(self, store: CheckpointStore, when: dict[str, Any], how: str) -> None:
        """By its last reference, or by a collection, on whatever thread."""
        graph = make_graph(traces("abcdefg"), store=store, **when)
        if how == "break":
            for number, _ in enumerate(graph.stream(State(run_id=RUN)), 1):
                if number == 2:
                    break
        else:
            for number in range(10 if how == "many" else 1):
                stream, _ = begun(graph, run_id=f"{RUN}-{number}" if number else RUN)
                if how != "del":
                    Knot(stream)
            del stream
            if how == "cycle elsewhere":
                in_thread(gc.collect)
            gc.collect()

        assert store.load(RUN)["trace"] == ["a", "b"]
        assert store.load(RUN).status is RunStatus.ACTIVE
        assert len(store.list()) == (10 if how == "many" else 1)
        assert graph.resume(RUN)["trace"] == [*"abcdefg"]

    @pytest.mark.parametrize("by", ["node", "observer", "value"])
    def test_a_run_that_holds_its_stream(self, store: CheckpointStore, when: dict[str, Any], by: str) -> None:
        """The cycle goes through the engine itself: it is found all the same."""
        holder = Recorder(EventType.GRAPH_ERROR)
        nodes = traces("abcde")
        if by == "node":
            nodes["a"] = lambda state, holder=holder: trace("a")(state)
        graph = make_graph(nodes, store=store, observer=holder if by == "observer" else None, **when)
        stream = graph.stream(State(run_id=RUN))
        holder.stream = stream  # type: ignore[attr-defined]
        next(stream), next(stream)
        if by == "value":
            graph.holder = holder  # type: ignore[attr-defined]
        del stream, graph, nodes, holder
        gc.collect()

        assert store.load(RUN)["trace"] == ["a", "b"]

    @pytest.mark.parametrize("kind", ["sqlite", "disk"])
    def test_a_store_that_is_dropped_with_it(self, tmp_path: Path, when: dict[str, Any], kind: str) -> None:
        """It is not closed before the run is saved."""

        def work() -> None:
            store = make_store(kind, tmp_path)
            stream, _ = begun(make_graph(traces("abcde"), store=store, **when))
            Knot(stream)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # nobody closes that store
            work()
            gc.collect()
            with make_store(kind, tmp_path) as store:
                wait_until(lambda: RUN in store.list() and store.load(RUN).step == 2)
            gc.collect()

    def test_chunks(self, store: CheckpointStore) -> None:
        """What was shown of a step that has not completed is kept with the run, and its generator is closed."""
        closed = threading.Event()

        def talks(state: State) -> Any:
            try:
                yield "one"
                yield "two"
            finally:
                closed.set()

        for state in make_graph({**traces("a"), "talks": talks}, store=store).stream(State(run_id=RUN)):
            if state.partial is not None:
                break

        assert closed.wait(20)
        kept = store.load(RUN).partial
        assert kept is not None
        assert kept.chunks == ("one",)

    def test_the_event_loop_of_an_async_generator(self, store: CheckpointStore) -> None:
        """It ends what it was at, even where that takes a while, and is closed."""
        closed = threading.Event()

        async def talks(state: State) -> AsyncIterator[str]:
            try:
                yield "one"
                yield "two"
            finally:
                await asyncio.sleep(0.01)
                closed.set()

        graph = make_graph({**traces("a"), "talks": talks}, store=store)
        for end in (lambda stream: None, Knot):
            stream, _ = begun(graph, 2)
            end(stream)
            del stream
            gc.collect()

            assert closed.wait(20)
            closed.clear()
            assert store.load(RUN).step == 1
            store.delete(RUN)

    def test_steps_of_a_graph_within(self, store: CheckpointStore, when: dict[str, Any]) -> None:
        """They are part of a step that is completed."""
        inner = make_graph(traces("xy"), store=store, name="inner")
        graph = make_graph({**traces("a"), "inner": inner.as_node(), **traces("b")}, store=store, **when)
        stream, _ = begun(graph)
        del stream

        assert store.load(RUN)["trace"] == ["a", "x", "y"]

    def test_an_observer_hears_of_it(self, store: CheckpointStore) -> None:
        """As of any stop."""
        recorder = Recorder(EventType.GRAPH_ERROR)
        stream, _ = begun(make_graph(traces("abc"), store=store, observer=recorder))
        del stream
        store.load(RUN)

        assert "dropped" in recorder.data(EventType.GRAPH_ERROR)[0]["error"]

    def test_a_store_that_is_closed_next(self, tmp_path: Path) -> None:
        """Not before the run is saved."""
        with make_store("sqlite", tmp_path) as store:
            stream, _ = begun(make_graph(traces("abc"), store=store, durability="exit"))
            del stream

        assert reopened(store).load(RUN)["trace"] == ["a", "b"]

    def test_a_store_with_four_methods(self) -> None:
        """To resume waits for what was dropped, whatever the store is."""
        store = make_store("four methods", Path())
        graph = make_graph(traces("abcd"), store=store, interval=5)
        stream, _ = begun(graph)
        del stream

        assert graph.resume(RUN)["trace"] == [*"abcd"]

    @pytest.mark.inside
    def test_a_failure_is_told_of(self, caplog: pytest.LogCaptureFixture) -> None:
        """There is nobody to whom it could be raised."""
        store = WatchedStore(MemoryStore(), fails_always("save", OSError("the disk is full")))
        with caplog.at_level(logging.ERROR, "stategraph"):
            stream, _ = begun(make_graph(traces("abc"), store=store, interval=5))
            del stream
            reaper.settle(store)

        assert "has not ended well" in caplog.text
        assert "the disk is full" in caplog.text

    def test_one_that_has_not_begun_or_has_ended(
        self, store: CheckpointStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        """There is nothing to do."""
        graph = make_graph(traces("ab"), store=store, preserve=True)
        graph.stream(State(run_id="new"))
        for _ in graph.stream(State(run_id=RUN)):
            pass
        begun(graph, run_id="shown")

        assert store.list() == [RUN, "shown"]
        assert store.load("shown").status is RunStatus.COMPLETED
        assert caplog.messages == []


class TestFoundLate:
    """A collection may come after somebody has gone on with the run: what they did stands."""

    @pytest.mark.parametrize("then", ["completed", "deleted", "further", "rolled back"])
    def test_it_has_gone_on(self, store: CheckpointStore, then: str, caplog: pytest.LogCaptureFixture) -> None:
        """It is neither brought back nor set back."""
        options: dict[str, Any] = {"retention": "full", "preserve": True}
        graph = make_graph(traces("abcd"), store=store, interval=1, **options)
        slow = make_graph(traces("abcd"), store=store, interval=3, **options)
        stream, _ = begun(graph, 1)
        stream.close()
        late = slow.stream_resume(RUN)
        assert next(late)["trace"] == ["a", "b"]
        knot: Any = Knot(late)
        del late
        with pytest.raises(RunBusyError):
            graph.resume(RUN)  # as far as anybody can tell, somebody iterates over it
        if then == "completed":
            graph.resume(RUN, take_over=True)
        elif then == "deleted":
            store.delete(RUN, take_over=True)  # type: ignore[call-arg]
        else:
            with graph.stream_resume(RUN, take_over=True) as states:
                next(states)
            if then == "rolled back":
                store.rollback(RUN, 1)
        before = [(one.step, one.status) for one in store.history(RUN)]

        del knot
        gc.collect()

        assert [(one.step, one.status) for one in store.history(RUN)] == before
        assert caplog.messages == []


class TestOnAnEventLoop:
    """astream, wherever it is dropped."""

    @pytest.mark.parametrize("how", ["del", "cycle", "cycle elsewhere"])
    def test_while_the_loop_runs(
        self, some_store: CheckpointStore, some: dict[str, Any], how: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """No task is left of it."""
        graph = make_graph(traces("abcdefg"), store=some_store, **some)

        async def main() -> None:
            stream = graph.astream(State(run_id=RUN))
            await anext(stream)
            await anext(stream)
            if how != "del":
                Knot(stream)
            del stream
            await (asyncio.to_thread(gc.collect) if how == "cycle elsewhere" else asyncio.sleep(0, gc.collect()))
            await alone()

        asyncio.run(main())
        gc.collect()

        assert some_store.load(RUN)["trace"] == ["a", "b"]
        assert graph.resume(RUN)["trace"] == [*"abcdefg"]
        assert caplog.messages == []

    @pytest.mark.parametrize("how", ["del", "cycle"])
    @pytest.mark.parametrize("loop_is", ["stopped", "closed", "dropped"])
    def test_when_the_loop_does_not_run(
        self,
        some_store: CheckpointStore,
        some: dict[str, Any],
        loop_is: str,
        how: str,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """Somebody drives it by hand: no hook of asyncio knows of it."""
        graph = make_graph(traces("abcdefg"), store=some_store, **some)
        loop = asyncio.new_event_loop()
        stream = graph.astream(State(run_id=RUN))
        loop.run_until_complete(anext(stream))
        loop.run_until_complete(anext(stream))
        loop.run_until_complete(loop.shutdown_default_executor())
        if loop_is != "stopped":
            loop.close()
        if loop_is == "dropped":
            del loop
        if how == "cycle":
            Knot(stream)
        del stream
        gc.collect()

        assert some_store.load(RUN)["trace"] == ["a", "b"]
        if loop_is == "stopped":
            loop.run_until_complete(asyncio.sleep(0))
            loop.close()
        assert graph.resume(RUN)["trace"] == [*"abcdefg"]
        gc.collect()
        assert caplog.messages == []

    @pytest.mark.inside
    def test_parts_that_are_being_done_in_threads(self, some_store: CheckpointStore) -> None:
        """No other one begins, and no thread is left."""
        begun: list[int] = []

        def item(number: int) -> int:
            begun.append(number)
            time.sleep(0.02)
            return number

        node = MapNode(item, "items", "results", max_workers=2)
        graph = make_graph({**traces("a"), "map": node}, store=some_store, interval=5)
        loop = asyncio.new_event_loop()
        task = loop.create_task(graph.aexecute(State({"items": list(range(500))}, run_id=RUN)))
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        while len(begun) < 6 and not task.done():
            loop.run_until_complete(asyncio.sleep(0.01))
        loop.close()
        del task

        def are_gone() -> bool:
            gc.collect()  # a thread that is at work holds on to who waits for it
            return not any(thread.name == "stategraph part" for thread in threading.enumerate())

        wait_until(are_gone)
        assert some_store.load(RUN)["trace"] == ["a"]
        assert len(begun) < 100

    @pytest.mark.parametrize("how", ["del", "cycle", "closed loop"])
    def test_a_sync_generator_is_closed_where_it_has_begun(self, some_store: CheckpointStore, how: str) -> None:
        """In its own context, and in its thread."""
        begun: list[threading.Thread] = []
        ended: list[threading.Thread] = []
        kept = decimal.getcontext().prec

        def talks(state: State) -> Iterator[str]:
            token = VARIABLE.set(1)
            begun.append(threading.current_thread())
            try:
                with decimal.localcontext(prec=5):
                    yield "one"
                    yield "two"
            finally:
                VARIABLE.reset(token)  # raises in any other context
                ended.append(threading.current_thread())

        graph = make_graph({"talks": talks}, store=some_store)
        loop = asyncio.new_event_loop()
        stream: Any = graph.stream(State()) if how != "closed loop" else graph.astream(State())
        if how == "closed loop":
            loop.run_until_complete(anext(stream))
        else:
            next(stream)
        loop.close()
        if how == "cycle":
            Knot(stream)
        del stream
        gc.collect()

        wait_until(lambda: bool(ended))
        assert ended == begun
        assert decimal.getcontext().prec == kept

    @pytest.mark.inside
    @pytest.mark.parametrize("loop_is", ["stopped", "closed"])
    def test_whoever_waits_is_dropped_with_it(self, some_store: CheckpointStore, loop_is: str) -> None:
        """In the middle of a node."""
        began = threading.Event()

        async def waits(state: State) -> None:
            began.set()
            await asyncio.sleep(60)

        graph = make_graph({**traces("ab"), "waits": waits}, store=some_store, interval=5)
        loop = asyncio.new_event_loop()

        async def main() -> None:
            async for _ in graph.astream(State(run_id=RUN)):
                pass

        task = loop.create_task(main())
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        while not began.is_set():
            loop.run_until_complete(asyncio.sleep(0.01))
        loop.run_until_complete(loop.shutdown_default_executor())
        if loop_is == "closed":
            loop.close()
        else:
            loop.run_until_complete(asyncio.sleep(0))
        close = loop.close
        del task, loop
        close()
        del close
        gc.collect()

        assert some_store.load(RUN)["trace"] == ["a", "b"]

    def test_a_failure_is_told_of(self, caplog: pytest.LogCaptureFixture) -> None:
        """By the event loop as well as by a thread."""
        store = WatchedStore(MemoryStore(), fails_always("save", OSError("the disk is full")))
        graph = make_graph(traces("abc"), store=store, interval=5)

        async def main() -> None:
            async for _ in graph.astream(State(run_id=RUN)):
                break
            await alone()

        asyncio.run(main())

        assert "has not ended well" in caplog.text


class TestThrow:
    """An error of whoever iterates stops the run, and goes up."""

    def thrown(self, graph: StateGraph, is_async: bool, error: Any) -> None:
        """Throw an error into a stream after its second State."""
        if not is_async:
            stream, _ = begun(graph)
            stream.throw(error)
            return

        async def main() -> None:
            stream = graph.astream(State(run_id=RUN))
            await anext(stream)
            await anext(stream)
            await stream.athrow(error)

        asyncio.run(main())

    @pytest.mark.parametrize("is_async", [False, True])
    @pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), ValueError])
    def test_the_run_is_saved(
        self,
        some_store: CheckpointStore,
        some: dict[str, Any],
        is_async: bool,
        error: BaseException | type[BaseException],
    ) -> None:
        """At its last State, and as one that has not failed."""
        graph = make_graph(traces("abcde"), store=some_store, **some)
        with pytest.raises(error if isinstance(error, type) else type(error)) as raised:
            self.thrown(graph, is_async, error)

        assert raised.value is error or isinstance(error, type)
        assert some_store.load(RUN)["trace"] == ["a", "b"]
        assert some_store.load(RUN).status is RunStatus.ACTIVE
        assert graph.resume(RUN)["trace"] == [*"abcde"]

    @pytest.mark.parametrize("is_async", [False, True])
    def test_what_fails_besides_is_a_note(self, is_async: bool) -> None:
        """The error that was thrown is the one that counts."""
        store = WatchedStore(MemoryStore(), fails_always("save", OSError("the disk is full")))
        cause = KeyError("why")
        error = ValueError("no")
        error.__cause__ = cause
        with pytest.raises(ValueError, match="no") as raised:
            self.thrown(make_graph(traces("abc"), store=store, interval=5), is_async, error)

        assert "the disk is full" in raised.value.__notes__[0]
        assert raised.value.__cause__ is cause

    @pytest.mark.parametrize("is_async", [False, True])
    def test_generator_exit(self, some_store: CheckpointStore, is_async: bool) -> None:
        """Is what a generator is closed with."""
        graph = make_graph(traces("abc"), store=some_store, interval=5)
        with pytest.raises(GeneratorExit):
            self.thrown(graph, is_async, GeneratorExit())

        assert some_store.load(RUN)["trace"] == ["a", "b"]

    def test_before_it_begins_and_after_it_has_ended(self) -> None:
        """Nothing is run, and the error goes up."""
        ran: list[int] = []
        graph = make_graph({"a": counted(lambda state: {}, ran)}, store=MemoryStore())
        new = graph.stream(State(run_id=RUN))
        with pytest.raises(ValueError, match="no"):
            new.throw(ValueError("no"))
        assert list(new) == []
        assert ran == []
        ended = graph.stream(State(run_id=RUN))
        assert len(list(ended)) == 1
        with pytest.raises(ValueError, match="no"):
            ended.throw(ValueError("no"))

        async def main() -> None:
            stream = graph.astream(State(run_id=RUN))
            with pytest.raises(ValueError, match="no"):
                await stream.athrow(ValueError("no"))
            assert [state async for state in stream] == []
            with pytest.raises(ValueError, match="no"):
                await stream.athrow(ValueError("no"))

        asyncio.run(main())
        assert ran == [1]


class TestWith:
    """Leaving a ``with`` stops the run at once."""

    @pytest.mark.parametrize("error", [None, ValueError("no")])
    @pytest.mark.parametrize("is_async", [False, True])
    def test_it_is_closed(
        self, some_store: CheckpointStore, some: dict[str, Any], is_async: bool, error: Exception | None
    ) -> None:
        """However it is left."""
        graph = make_graph(traces("abcde"), store=some_store, **some)

        def leave() -> None:
            if error is not None:
                raise error

        async def main() -> None:
            async with graph.astream(State(run_id=RUN)) as states:
                await anext(states)
                leave()

        with pytest.raises(ValueError, match="no") if error else contextlib.nullcontext():
            if is_async:
                asyncio.run(main())
            else:
                with graph.stream(State(run_id=RUN)) as states:
                    next(states)
                    leave()

        assert some_store.load(RUN)["trace"] == ["a"]

    def test_two_that_iterate_at_once(self) -> None:
        """The second is told; the first one goes on."""
        graph = make_graph(traces("ab"), store=MemoryStore())

        async def main() -> None:
            stream = graph.astream(State(run_id=RUN))
            first = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0)
            with pytest.raises(RuntimeError, match="somebody else"):
                await anext(stream)
            with pytest.raises(RuntimeError, match="somebody else"):
                await stream.aclose()
            assert (await first).step == 1
            await stream.aclose()
            assert [state async for state in stream] == []

        asyncio.run(main())

    def test_closing_that_fails(self) -> None:
        """Is not silent."""
        store = WatchedStore(MemoryStore(), fails_always("save", OSError("the disk is full")))
        graph = make_graph(traces("abc"), store=store, interval=5)
        with pytest.raises(RunCancelledError), graph.stream(State(run_id=RUN)) as states:
            next(states)


PROGRAM = """
import sys
from pathlib import Path
from stategraph import CheckpointConfig, GraphConfig, State, StateGraph

store, durability, end = sys.argv[1:]
folder = Path("runs")
options = {"path": str(folder / "runs.db" if store == "sqlite" else folder)}
checkpoint = CheckpointConfig(store=store, interval=1, durability=durability, options=options)
graph = StateGraph(GraphConfig(name="g", observer="noop", checkpoint=checkpoint))
for name in "abcd":
    graph.add_node(name, lambda state, name=name: {"trace": [*state.get("trace", ()), name]})
for edge in ("ab", "bc", "cd"):
    graph.add_edge(*edge)
graph.set_entry_point("a")
graph.set_exit_point("d")
states = graph.stream(State(run_id="run"))
next(states), next(states)
if end == "cycle":
    states = [states]
    states.append(states)
    del states
elif end == "dropped":
    del states
elif end == "async":
    import asyncio
    loop = asyncio.new_event_loop()
    states.close()
    graph.store.delete("run")
    states = graph.astream(State(run_id="run"))
    loop.run_until_complete(anext(states))
    loop.run_until_complete(anext(states))
"""


@pytest.mark.parametrize("end", ["open", "cycle", "dropped", "async"])
@pytest.mark.parametrize(("kind", "durability"), [("sqlite", "exit"), ("disk", "async")])
def test_the_end_of_the_process(tmp_path: Path, kind: str, durability: str, end: str) -> None:
    """What was begun is saved before."""
    command = [sys.executable, "-W", "error", "-W", "ignore::ResourceWarning", "-c", PROGRAM, kind, durability, end]
    found = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    told = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=50, env=found)

    assert (told.returncode, told.stderr) == (0, "")
    path = tmp_path / "runs"
    with SqliteStore(path / "runs.db") if kind == "sqlite" else DiskStore(path) as store:
        assert store.load("run")["trace"] == ["a", "b"]


@pytest.mark.inside
@pytest.mark.timeout(20)  # it would wait for 30 s
def test_whoever_saves_behind_a_run_waits_for_no_end(store: CheckpointStore) -> None:
    """The end of a dropped run waits for the saves behind it: whoever makes these must not wait for that end."""
    behind = WriteBehindStore(store)
    states = [State(run_id=RUN, step=1)]
    behind.save(states[0])
    while not behind.begun():  # the thread of the writer may be at it
        behind.save(states[0])
    reaper.hand_over(store, behind.flush)
    assert store.list() in ([], [RUN])
    behind.end([], True)
    reaper.settle(store)
    assert store.list() == [RUN]


@pytest.mark.inside
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_copy_of_the_process(tmp_path: Path) -> None:
    """It drops its copy of the stream, and the run goes on in the process that began it."""
    with make_store("sqlite", tmp_path) as store:
        graph = make_graph(traces("abcd"), store=store, interval=3)
        stream, _ = begun(graph)
        held = [stream]
        del stream
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if not child:
            signal.alarm(20)
            held.clear()
            gc.collect()
            reaper.finish()
            os._exit(len(store.list()))

        assert os.waitpid(child, 0)[1] == 0
        assert next(held[0])["trace"] == ["a", "b", "c"]
        held[0].close()


ABANDONED = """
import asyncio, sys
from stategraph import CheckpointConfig, GraphConfig, State, StateGraph

async def talks(state):
    try:
        yield "one"
        yield "two"
    finally:
        print("closed", flush=True)

async def works(state):
    asyncio.get_running_loop().create_task(beats())
    yield "one"
    yield "two"

async def beats():
    while True:
        await asyncio.sleep(0.01)

graph = StateGraph(GraphConfig(name="g", observer="noop", checkpoint=CheckpointConfig(store="memory", interval=1)))
graph.add_node("a", lambda state: {"n": 1})
graph.add_node("node", {"talks": talks, "works": works}[sys.argv[1]])
graph.add_edge("a", "node")
graph.set_entry_point("a")
graph.set_exit_point("node")
for state in graph.stream(State(run_id="run")):
    if state.partial is not None:
        break
print(graph.store.load("run").step, flush=True)
"""


@pytest.mark.parametrize("node", ["talks", "works"])
def test_an_async_generator_that_is_left_by_a_break_keeps_nobody_waiting(node: str, tmp_path: Path) -> None:
    """Nor do tasks that it has left at work: it is closed, its run is saved, and the process ends."""
    command = [sys.executable, "-W", "error", "-c", ABANDONED, node]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    told = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=50, check=True
    )

    assert told.stderr == ""
    assert set(told.stdout.split()) == {"1", *(["closed"] if node == "talks" else [])}
