"""Nodes that are generators: each is one activity from its start to its end, whoever runs it."""

from __future__ import annotations

import asyncio
import contextlib
import decimal
import gc
import signal
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from decimal import Decimal
from typing import Any

import attrs
import pytest

from stategraph import ExecutionError, RetryPolicy, RunCancelledError, State, StateGraph, Updates
from stategraph.stores.memory import MemoryStore
from tests.scenarios import RUN, Scene, as_async_chunks, as_sync, call_async, make_graph
from tests.test_streams import chunks, stream

pytestmark = pytest.mark.timeout(60)
NAME: ContextVar[str] = ContextVar("NAME", default="nobody")


@attrs.frozen
class Said:
    """What a graph with a schema knows."""

    said: list[str] = attrs.field(factory=list)


def alone(node: Any, **options: Any) -> StateGraph:
    """-> a graph of this node."""
    return make_graph({"talks": node}, store=MemoryStore(), **options)


def limited(node: Any) -> StateGraph:
    """-> the same, with a time limit that is never reached."""
    return alone(node, policies={"talks": {"timeout": 50}})


def typed(node: Any) -> StateGraph:
    """-> the same, with a schema."""
    return alone(node, schema=Said)


def nested(node: Any) -> StateGraph:
    """-> the same, within another."""
    return make_graph({"inner": alone(node, name="inner").as_node()}, store=MemoryStore())


def tried_again(node: Any) -> StateGraph:
    """-> the same, where what fails is tried again."""
    return alone(node, policies={"talks": {"retry": RetryPolicy(initial_delay=0), "timeout": 50}})


@pytest.fixture(params=[alone, limited, typed, nested, tried_again])
def make(request: pytest.FixtureRequest) -> Any:
    """Makes a graph of a node."""
    return request.param


@pytest.fixture(params=[as_sync, as_async_chunks], ids=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> Any:
    """Makes a sync or an async generator of a sync one."""
    return request.param


@pytest.fixture(params=["execute", "stream"])
def said(request: pytest.FixtureRequest, memory_play: Scene) -> Callable[[StateGraph], Any]:
    """-> what a graph has said, run by every driver, with somebody who iterates over the run and without."""
    if request.param == "execute":
        return lambda graph: memory_play.execute(graph)["said"]
    return lambda graph: stream(memory_play, graph, "stream", State(run_id=RUN))[-1]["said"]


# --------------------------------------------------------------------------- what is its own while it yields


def precise(state: State) -> Iterator[Any]:
    """Reckon with 50 digits."""
    with decimal.localcontext(prec=50):
        yield "one"
        yield "two"
        yield Updates({"said": [str(Decimal(1) / 3)]})


def named(state: State) -> Iterator[Any]:
    """Have a name for a while."""
    token = NAME.set("somebody")
    yield "one"
    found = NAME.get()
    NAME.reset(token)
    yield "two"
    yield Updates({"said": [found, NAME.get()]})


class TestContext:
    """The context variables of a generator."""

    @pytest.mark.parametrize(("node", "found"), [(precise, ["0." + 50 * "3"]), (named, ["somebody", "nobody"])])
    def test_it_is_set_until_the_generator_resets_it(
        self, make: Any, said: Any, kind: Any, node: Any, found: list[str]
    ) -> None:
        assert said(make(kind(node))) == found

    def test_it_is_not_set_for_readers_and_later_nodes(self, memory_play: Scene, kind: Any) -> None:
        seen: list[int] = []

        def after(state: State) -> dict[str, Any]:
            seen.append(decimal.getcontext().prec)
            return {}

        graph = make_graph({"talks": kind(precise), "after": after}, store=MemoryStore())

        async def main() -> None:
            async for _ in graph.astream(State()):
                seen.append(decimal.getcontext().prec)

        if memory_play.call is call_async:
            asyncio.run(main())
        else:
            seen.extend(decimal.getcontext().prec for _ in graph.stream(State()))
        assert seen == 5 * [28]

    def test_each_chunk_can_be_read_in_another_thread(self, kind: Any) -> None:
        """A web server may hand a stream to its workers."""
        states: list[State] = []
        with contextlib.closing(alone(kind(named)).stream(State())) as shown:

            def ask() -> None:
                states.extend([next(shown, State())])

            for _ in range(3):
                worker = threading.Thread(target=ask)
                worker.start()
                worker.join()

        assert states[-1]["said"] == ["somebody", "nobody"]

    def test_it_begins_with_that_of_the_run(self, memory_play: Scene, kind: Any) -> None:
        """What the caller has set is set in the generator."""

        def node(state: State) -> Iterator[Any]:
            yield Updates({"name": NAME.get()})

        token = NAME.set("caller")
        try:
            final = memory_play.execute(alone(kind(node)))
        finally:
            NAME.reset(token)
        assert final["name"] == "caller"

    def test_each_attempt_has_its_own(self, said: Any, kind: Any) -> None:
        """One that failed leaves nothing to the next."""
        found: list[str] = []

        def node(state: State) -> Iterator[Any]:
            found.append(NAME.get())
            NAME.set("set by the first")
            yield "chunk"
            if len(found) == 1:
                raise ValueError("once")
            yield Updates({"said": found})

        assert said(tried_again(kind(node))) == ["nobody", "nobody"]

    def test_when_it_is_closed(self, memory_play: Scene, kind: Any) -> None:
        """It is still the same."""
        seen: list[str] = []

        def node(state: State) -> Iterator[Any]:
            token = NAME.set("somebody")
            try:
                yield "one"
                yield "two"
            finally:
                seen.append(NAME.get())
                NAME.reset(token)

        stream(memory_play, alone(kind(node)), "stream", State(run_id=RUN), most=1)

        assert seen == ["somebody"]


class TestThread:
    """The thread of a sync generator, and the task of an async one."""

    def test_a_connection_and_a_lock(self, make: Any, said: Any) -> None:
        """Only the thread that made them may use them."""

        def node(state: State) -> Iterator[Any]:
            with contextlib.closing(sqlite3.connect(":memory:")) as database, threading.RLock():
                for number in range(5):
                    yield f"chunk {number}"
                    database.execute("SELECT 1")
            yield Updates({"said": ["all"]})

        assert said(make(node)) == ["all"]

    def test_a_task(self, make: Any, said: Any) -> None:
        """There is one task, and nobody else works in it."""

        async def node(state: State) -> AsyncIterator[Any]:
            tasks = [asyncio.current_task()]
            yield "chunk"
            tasks.append(asyncio.current_task())
            await asyncio.sleep(0)
            yield "chunk"
            tasks.append(asyncio.current_task())
            yield Updates({"said": [str(len(set(tasks)))]})

        assert said(make(node)) == ["1"]

    @pytest.mark.parametrize("is_failing", [False, True])
    def test_no_thread_is_left(self, memory_play: Scene, is_failing: bool) -> None:
        """However the generator ends."""

        def node(state: State) -> Iterator[Any]:
            yield "chunk"
            if is_failing:
                raise ValueError("no")
            yield Updates({})

        before = set(threading.enumerate())
        with contextlib.suppress(ExecutionError):
            memory_play.execute(alone(node, policies={"talks": {"timeout": 50}}))
        stream(memory_play, limited(node), "stream", State(run_id=RUN), most=1)

        others = [thread for thread in set(threading.enumerate()) - before if thread.name == "stategraph node"]
        for thread in others:
            thread.join(10)  # it may be between its answer and its end
        assert not any(thread.is_alive() for thread in others)

    def test_one_that_is_left_at_work(self, memory_play: Scene) -> None:
        """It is closed where it yields next, in its own context and thread."""
        opened, closed = threading.Event(), threading.Event()
        seen: list[Any] = []

        def node(state: State) -> Iterator[Any]:
            token, thread = NAME.set("somebody"), threading.get_ident()
            try:
                yield "one"
                opened.wait(30)
                yield "two"
                seen.append("went on")
            finally:
                NAME.reset(token)
                seen.append(thread == threading.get_ident())
                closed.set()

        with pytest.raises(ExecutionError, match="took longer than its timeout"):
            memory_play.execute(alone(node, policies={"talks": {"timeout": 1}}))
        opened.set()

        assert closed.wait(30)
        assert seen == [True]


# --------------------------------------------------------------------------- what an async one may hold


@pytest.fixture(params=["asyncio", "anyio"])
def tasks(request: pytest.FixtureRequest) -> Any:
    """What opens a task group, and what starts a task in one; those of anyio insist on one task."""
    if request.param == "asyncio":
        return asyncio.TaskGroup, lambda group, function, *args: group.create_task(function(*args))
    anyio = pytest.importorskip("anyio")

    @contextlib.asynccontextmanager
    async def scoped() -> AsyncIterator[Any]:
        with anyio.fail_after(30):
            async with anyio.create_task_group() as group:
                yield group

    return scoped, lambda group, function, *args: group.start_soon(function, *args)


@pytest.mark.parametrize(("limit", "result"), [(0.05, "cut off"), (50, "in time")])
def test_a_timeout_around_chunks(make: Any, said: Any, limit: float, result: str) -> None:
    async def node(state: State) -> AsyncIterator[Any]:
        found = "in time"
        try:
            async with asyncio.timeout(limit):
                yield "one"
                yield "two"
                await asyncio.sleep(40 if limit < 1 else 0)
        except TimeoutError:
            found = "cut off"
        yield Updates({"said": [found]})

    assert said(make(node)) == [result]


async def fails() -> None:
    """Be a task that fails."""
    raise ValueError("no")


class TestTaskGroups:
    """Task groups in a generator."""

    def test_its_tasks_work_while_the_generator_waits(self, tasks: Any, make: Any, said: Any) -> None:
        opened, start = tasks

        async def node(state: State) -> AsyncIterator[Any]:
            found: asyncio.Queue[str] = asyncio.Queue()

            async def look(number: int) -> None:
                await asyncio.sleep(0)
                await found.put(str(number))

            async with opened() as group:
                for number in range(3):
                    start(group, look, number)
                looked = []
                for _ in range(3):
                    looked.append(await found.get())
                    yield looked[-1]
            yield Updates({"said": sorted(looked)})

        assert said(make(node)) == ["0", "1", "2"]

    def test_a_task_that_fails(self, tasks: Any, make: Any, said: Any) -> None:
        """It cancels what the generator awaits next, and its error comes out of the group."""
        opened, start = tasks

        async def node(state: State) -> AsyncIterator[Any]:
            try:
                async with opened() as group:
                    yield "one"
                    start(group, fails)
                    yield "two"
                    await asyncio.sleep(40)
                    pytest.fail("it was not cancelled")
            except ExceptionGroup as error:
                yield Updates({"said": [str(error.exceptions[0])]})

        assert said(make(node)) == ["no"]

    def test_a_failure_of_the_node(self, memory_play: Scene) -> None:
        """It is the group that fails it, not a cancellation."""

        async def node(state: State) -> AsyncIterator[Any]:
            async with asyncio.TaskGroup() as group:
                group.create_task(fails())
                yield "one"
                await asyncio.sleep(40)

        with pytest.raises(ExecutionError) as raised:
            memory_play.execute(alone(node))

        assert isinstance(raised.value.__cause__, ExceptionGroup)
        assert str(raised.value.__cause__.exceptions[0]) == "no"

    @pytest.mark.parametrize("make", [alone, limited, typed])
    def test_a_task_that_fails_while_somebody_looks(self, memory_play: Scene, make: Any) -> None:
        """It cancels the generator where it has yielded, as soon as the event loop runs; what comes of that is shown
        when it is asked for."""
        is_to_fail: list[asyncio.Event] = []
        log: list[str] = []

        async def fails() -> None:
            await is_to_fail[0].wait()
            raise ValueError("no")

        async def node(state: State) -> AsyncIterator[Any]:
            is_to_fail.append(asyncio.Event())
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(fails())
                    await asyncio.sleep(0)
                    yield "one"
                    yield "never"
            except ExceptionGroup:
                log.append("left")
                yield "failed"
                log.append("went on")
            yield Updates({"said": []})

        graph, shown = make(node), list[State]()

        async def main() -> None:
            async with contextlib.aclosing(graph.astream(State())) as states:
                async for state in states:
                    shown.append(state)
                    is_to_fail[0].set()
                    for _ in range(20):
                        await asyncio.sleep(0)
                    log.append("asked")

        if memory_play.call is call_async:
            asyncio.run(main())
            assert log == ["left", "asked", "asked", "went on", "asked"]
        else:
            for state in graph.stream(State()):
                shown.append(state)
                is_to_fail[0].set()
                log.append("asked")
            assert log == ["asked", "left", "asked", "went on", "asked"]
        assert chunks(shown) == [("one",), ("one", "failed")]

    @pytest.mark.parametrize("make", [alone, limited, typed])
    def test_its_tasks_are_over_when_the_stream_is_left(self, tasks: Any, memory_play: Scene, make: Any) -> None:
        opened, start = tasks
        over: list[str] = []

        async def works() -> None:
            try:
                await asyncio.sleep(40)
            finally:
                over.append("task")

        async def node(state: State) -> AsyncIterator[Any]:
            async with opened() as group:
                start(group, works)
                await asyncio.sleep(0)
                yield "one"
                yield "two"

        stream(memory_play, make(node), "stream", State(run_id=RUN), most=1)

        assert over == ["task"]

    def test_a_task_that_fails_when_it_is_left(self, memory_play: Scene) -> None:
        """That is a note."""

        async def works() -> None:
            try:
                await asyncio.sleep(40)
            finally:
                raise ValueError("cannot stop")

        async def node(state: State) -> AsyncIterator[Any]:
            async with asyncio.TaskGroup() as group:
                group.create_task(works())
                await asyncio.sleep(0)
                yield "one"
                yield "two"

        with pytest.raises(RunCancelledError) as raised:
            stream(memory_play, alone(node), "stream", State(run_id=RUN), most=1)

        assert "ExceptionGroup" in raised.value.__notes__[0]
        assert "GeneratorExit" not in raised.value.__notes__[0]


class TestAnyio:
    """Cancel scopes of anyio."""

    @pytest.fixture
    def anyio(self) -> Any:
        return pytest.importorskip("anyio")

    def test_a_cancel_scope(self, anyio: Any, make: Any, said: Any) -> None:
        """Its deadline cuts off the generator, which goes on after it."""

        async def node(state: State) -> AsyncIterator[Any]:
            with anyio.move_on_after(0.05) as scope:
                yield "one"
                yield "two"
                await anyio.sleep(40)
            yield Updates({"said": [str(scope.cancelled_caught)]})

        assert said(make(node)) == ["True"]

    def test_a_scope_around_the_run(self, anyio: Any) -> None:
        """It cuts off the run, and the generator in it."""
        scopes: list[Any] = []
        over: list[str] = []

        async def node(state: State) -> AsyncIterator[Any]:
            try:
                yield "one"
                scopes[0].cancel()
                await asyncio.sleep(40)
            finally:
                over.append("node")

        async def main() -> None:
            with anyio.CancelScope() as scope:
                scopes.append(scope)
                await alone(node).aexecute(State())

        asyncio.run(main())
        assert scopes[0].cancelled_caught
        assert over == ["node"]

    @pytest.mark.parametrize("closes", [False, True], ids=["at work", "waiting"])
    def test_a_scope_around_the_run_cancels_once(self, anyio: Any, closes: bool) -> None:
        """Though it raises the cancellation again and again: what the node shields for its end is not cut off."""
        ended: list[str] = []

        async def work(state: State) -> AsyncIterator[str]:
            try:
                yield "begun"
                await asyncio.sleep(30)
            finally:
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(0.05)
                    ended.append("in peace")

        async def main() -> None:
            graph = make_graph({"work": work}, store=MemoryStore())
            with anyio.move_on_after(0.05):
                if not closes:
                    await graph.aexecute(State())
                async with contextlib.aclosing(graph.astream(State())) as states:
                    await anext(states)
                    await asyncio.sleep(30)

        asyncio.run(main())

        assert ended == ["in peace"]


class TestEnds:
    """A generator that does not come to its own end."""

    @pytest.mark.parametrize("how", ["left", "cancelled", "out of time"])
    def test_it_can_clean_up(self, memory_play: Scene, how: str) -> None:
        """In its own task, with all that takes."""
        cancel, seen = threading.Event(), list[bool]()

        async def node(state: State) -> AsyncIterator[Any]:
            task = asyncio.current_task()
            try:
                async with asyncio.timeout(50):
                    yield "one"
                    if how == "cancelled":
                        cancel.set()
                    if how == "out of time":
                        await asyncio.sleep(40)
                    yield "two"
                    yield "three"
            finally:
                await asyncio.sleep(0.01)
                seen.append(task is asyncio.current_task())

        graph = alone(node, policies={"talks": {"timeout": 1 if how == "out of time" else 50}})
        match how:
            case "left":
                stream(memory_play, graph, "stream", State(run_id=RUN), most=1)
            case "cancelled":
                with pytest.raises(RunCancelledError):
                    memory_play.execute(graph, cancel=cancel)
            case _:
                with pytest.raises(ExecutionError, match="took longer than its timeout"):
                    memory_play.execute(graph)

        assert seen == [True]

    def test_what_it_raises_then(self, memory_play: Scene) -> None:
        """It is a note."""

        async def node(state: State) -> AsyncIterator[Any]:
            try:
                yield "one"
                yield "two"
            finally:
                await asyncio.sleep(0)
                raise ValueError("cannot close")

        with pytest.raises(RunCancelledError) as raised:
            stream(memory_play, alone(node), "stream", State(run_id=RUN), most=1)

        assert "ValueError: cannot close" in raised.value.__notes__[0]

    @pytest.mark.parametrize("is_async", [False, True])
    def test_one_that_will_not_be_closed(self, memory_play: Scene, is_async: bool) -> None:
        """It is said that it goes on yielding."""

        def node(state: State) -> Iterator[Any]:
            with contextlib.suppress(GeneratorExit):
                yield "one"
                yield "two"
            yield "three"

        async def anode(state: State) -> AsyncIterator[Any]:
            with contextlib.suppress(GeneratorExit):
                yield "one"
                yield "two"
            yield "three"

        with pytest.raises(RunCancelledError) as raised:
            stream(memory_play, alone(anode if is_async else node), "stream", State(run_id=RUN), most=1)

        assert "generator ignored GeneratorExit" in raised.value.__notes__[0]

    def test_one_that_swallows_its_cancellation(self, memory_play: Scene) -> None:
        """Its time is up all the same."""

        async def node(state: State) -> AsyncIterator[Any]:
            yield "one"
            while True:
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(40)
                yield "more"

        with pytest.raises(ExecutionError, match="took longer than its timeout") as raised:
            memory_play.execute(alone(node, policies={"talks": {"timeout": 0.1}}))

        assert isinstance(raised.value.__cause__, TimeoutError)

    def test_one_that_cancels_itself(self, memory_play: Scene) -> None:
        """It has failed: nobody has cancelled the run."""

        async def node(state: State) -> AsyncIterator[Any]:
            yield "one"
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(40)

        with pytest.raises(ExecutionError, match="CancelledError"):
            memory_play.execute(alone(node))

    def test_a_run_that_is_cancelled(self) -> None:
        """The generator hears of it where it awaits something, and may take its time to clean up."""
        seen: list[str] = []

        async def main() -> None:
            waits = asyncio.Event()

            async def node(state: State) -> AsyncIterator[Any]:
                yield "one"
                try:
                    waits.set()
                    await asyncio.sleep(40)
                except asyncio.CancelledError as error:
                    await asyncio.sleep(0.05)
                    seen.append(str(error))
                    raise

            run = asyncio.create_task(alone(node).aexecute(State()))
            await waits.wait()
            run.cancel("enough")
            with pytest.raises(asyncio.CancelledError):
                await run

        asyncio.run(main())
        assert seen == ["enough"]

    def test_a_run_that_is_abandoned(self) -> None:
        """Whenever the event loop ends, nothing waits for ever, and a generator that had begun is closed."""
        ends: list[str] = []
        runs: list[asyncio.Task[State]] = []

        async def node(state: State) -> AsyncIterator[Any]:
            ends.append("begun")
            try:
                for number in range(5):
                    yield number
                    await asyncio.sleep(0)
                yield Updates({"said": ["all"]})
            finally:
                ends.append("closed")

        async def main(turns: int) -> None:
            run = asyncio.create_task(alone(node).aexecute(State()))
            for _ in range(turns):
                await asyncio.sleep(0)
            runs.append(run)

        for turns in range(40):
            asyncio.run(main(turns))
        assert ends.count("begun") == ends.count("closed") > 0
        assert all(run.cancelled() or run.result()["said"] == ["all"] for run in runs)

    def test_an_interrupt(self, memory_play: Scene) -> None:
        """From the keyboard: the generator can clean up, and the interrupt comes out."""
        closed: list[bool] = []

        async def node(state: State) -> AsyncIterator[Any]:
            task = asyncio.current_task()
            try:
                yield "one"
                signal.raise_signal(signal.SIGINT)
                await asyncio.sleep(40)
            finally:
                await asyncio.sleep(0)
                closed.append(task is asyncio.current_task())

        with pytest.raises(KeyboardInterrupt):
            memory_play.execute(alone(node))

        assert closed == [True]

    @pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
    def test_it_raises_what_is_no_exception(self, memory_play: Scene, error: type[BaseException]) -> None:
        """That comes out, and the chunks before are kept."""

        async def node(state: State) -> AsyncIterator[Any]:
            yield "one"
            raise error

        graph = make_graph({"talks": node}, store=memory_play.store)
        with pytest.raises(error):
            memory_play.execute(graph)

        partial = memory_play.store.load(RUN).partial
        assert partial is not None
        assert partial.chunks == ("one",)


class TestClosedLoops:
    """What becomes of a generator whose loop is closed under it."""

    @pytest.mark.parametrize("is_held", [False, True])
    def test_it_ends_without_noise(self, is_held: bool) -> None:
        """Nobody is told of a task that they did not make."""
        told, held = list[dict[str, Any]](), list[Any]()

        async def node(state: State) -> AsyncIterator[dict[str, Any]]:
            yield {"x": 1}
            yield {"x": 2}

        async def leave() -> None:
            taken = make_graph({"a": node}, store=MemoryStore()).astream(State())
            held.append(taken)
            await anext(aiter(taken))

        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda _, context: told.append(context))
        loop.run_until_complete(leave())
        with pytest.warns(ResourceWarning, match="neither closed nor exhausted"):
            if not is_held:
                held.clear()
            loop.close()
            held.clear()
            del loop
            gc.collect()

        assert told == []


class TestNeverAhead:
    """The generator goes on when its next chunk is asked for."""

    def test_between_two_chunks(self, memory_play: Scene, kind: Any) -> None:
        """However long somebody looks."""
        log: list[str] = []

        def node(state: State) -> Iterator[Any]:
            for number in range(3):
                log.append(f"made {number}")
                yield number
            yield Updates({})

        graph = alone(kind(node))

        async def main() -> None:
            async for state in graph.astream(State()):
                await asyncio.sleep(0.02)
                log.append(f"seen {state.partial.chunk if state.partial else 'the end'}")

        if memory_play.call is call_async:
            asyncio.run(main())
        else:
            for state in graph.stream(State()):
                log.append(f"seen {state.partial.chunk if state.partial else 'the end'}")
        assert log == ["made 0", "seen 0", "made 1", "seen 1", "made 2", "seen 2", "seen the end"]
