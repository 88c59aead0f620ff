"""Iterating over a run: a State after every node, chunks as they come, and leaving early."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from types import MappingProxyType
from typing import Any

import pytest

from stategraph import (
    ExecutionError,
    InterruptNode,
    MapNode,
    ParallelNode,
    Partial,
    RunStatus,
    State,
    StateGraph,
    Updates,
)
from stategraph.stores.memory import MemoryStore
from tests.scenarios import RUN, Scene, as_sync, call_async, make_graph, raises, reopened, returns, traces

pytestmark = pytest.mark.timeout(600)


def stream(
    play: Scene, graph: StateGraph, method: str, *args: Any, most: int | None = None, **options: Any
) -> list[State]:
    """Return the States of a stream, by the driver of the scene; only the first ones, if `most` are to be taken."""
    if play.call is not call_async:
        states: list[State] = []
        with getattr(graph, method)(*args, **options) as shown:
            while most is None or len(states) < most:
                state = next(shown, None)
                if state is None:
                    break
                states.append(state)
        return states

    async def main() -> list[State]:
        states: list[State] = []
        async with getattr(graph, f"a{method}")(*args, **options) as shown:
            while most is None or len(states) < most:
                state = await anext(shown, None)
                if state is None:
                    break
                states.append(state)
        return states

    return asyncio.run(main())


def talks(state: State) -> Generator[Any, None, Any]:
    """Put out chunks, then return the result."""
    yield "one"
    yield "two"
    return {"said": ["one", "two"]}


def as_async_generator(function: Callable[[State], Iterator[Any]]) -> Callable[[State], AsyncIterator[Any]]:
    """Return a generator function as an async one, which yields last what the other returns."""

    async def node(state: State) -> AsyncIterator[Any]:
        generator = function(state)
        while True:
            await asyncio.sleep(0)
            try:
                chunk = next(generator)
            except StopIteration as end:
                if end.value is not None:
                    yield end.value if isinstance(end.value, State) else Updates(end.value)
                return
            yield chunk

    return node


EITHER = pytest.mark.parametrize("kind", [as_sync, as_async_generator], ids=["generator", "async generator"])


def chunks(states: list[State]) -> list[tuple[Any, ...]]:
    """Return the chunks of States that have any."""
    return [state.partial.chunks for state in states if state.partial is not None]


class TestSteps:
    """A State after every node."""

    def test_every_step(self, any_play: Scene) -> None:
        """A stream yields each State with its provenance; the last one equals the result of execute."""
        graph = make_graph(traces("abc"), store=any_play.store, preserve=True)

        states = stream(any_play, graph, "stream", State(run_id=RUN))

        assert [(state.step, state.checkpoint_node, state.status.value) for state in states] == [
            (1, "a", "active"),
            (2, "b", "active"),
            (3, "c", "completed"),
        ]
        assert states[-1]["trace"] == ["a", "b", "c"]
        assert any_play.store.load(RUN) == states[-1]

    def test_it_begins_when_it_is_asked_for(self, any_play: Scene) -> None:
        """It is never ahead of the iteration; errors of the graph are raised at once."""
        log: Any = []
        graph = make_graph(
            {"a": lambda s: log.append("a") or {}, "b": lambda s: log.append("b") or {}}, store=any_play.store
        )
        assert stream(any_play, graph, "stream", State(run_id=RUN), most=0) == []
        assert log == []

        stream(any_play, graph, "stream", State(run_id=RUN), most=1)

        assert log == ["a"]

    def test_a_pause_is_the_last(self, any_play: Scene) -> None:
        """A pause ends the stream, and stream_resume continues with the answer."""
        nodes = {**traces("a"), "ask": InterruptNode(None, "ok"), **traces("b")}
        graph = make_graph(nodes, store=any_play.store)

        first = stream(any_play, graph, "stream", State(run_id=RUN))
        second = stream(any_play, graph, "stream_resume", RUN, {"ok": 1})

        assert [state.status.value for state in first] == ["active", "paused"]
        assert [(state.step, state.checkpoint_node) for state in second] == [(2, "ask"), (3, "b")]

    def test_an_error_comes_out_of_the_iteration(self, any_play: Scene) -> None:
        """An error is raised after the States of the nodes before it."""
        graph = make_graph({**traces("ab"), "c": raises(ValueError("no"))}, store=any_play.store)
        assert len(stream(any_play, graph, "stream", State(run_id=RUN), most=2)) == 2
        with pytest.raises(ExecutionError, match="no"):
            stream(any_play, graph, "stream_resume", RUN)

        assert any_play.store.load(RUN).status is RunStatus.FAILED

    @pytest.mark.parametrize("durability", ["sync", "async", "exit"])
    @pytest.mark.parametrize("interval", [1, 3])
    def test_leaving_stops_at_a_checkpoint(self, any_play: Scene, durability: str, interval: int) -> None:
        """Leaving a stream saves the last State that it yielded, and a resume continues after it."""
        options = {"durability": durability, "interval": interval}
        graph = make_graph(traces("abcd"), store=any_play.store, **options)  # type: ignore[arg-type]

        states = stream(any_play, graph, "stream", State(run_id=RUN), most=2)

        assert any_play.store.load(RUN) == states[-1]
        assert any_play.store.load(RUN).status is RunStatus.ACTIVE
        assert any_play.resume(make_graph(traces("abcd"), store=reopened(any_play.store)))["trace"] == [*"abcd"]

    def test_one_thread_at_a_time(self) -> None:
        """A second call for the next State is refused, even while a node is at work, and changes nothing."""
        begun, goes_on = threading.Event(), threading.Event()

        def waits(state: State) -> dict[str, Any]:
            begun.set()
            goes_on.wait(300)
            return {"a": 1}

        graph = make_graph({"waits": waits, **traces("b")}, store=MemoryStore())
        shown = graph.stream(State(run_id=RUN))
        taken: list[State] = []
        first = threading.Thread(target=lambda: taken.append(next(shown)))
        first.start()
        begun.wait(300)
        for call in (shown.__next__, shown.close):
            with pytest.raises(ValueError, match="one at a time"):
                call()
        goes_on.set()
        first.join()

        assert [(state.step, state["a"]) for state in (*taken, *shown)] == [(1, 1), (2, 1)]


@pytest.mark.parametrize("node", [talks, as_async_generator(talks)], ids=["generator", "async generator"])
class TestChunks:
    """Chunks that a node emits before it ends."""

    def test_they_are_shown_as_partial(self, any_play: Scene, node: Callable[..., Any]) -> None:
        """Chunks come in States of the step before with all chunks so far, and are not saved."""
        graph = make_graph({**traces("a"), "talks": node, **traces("b")}, store=any_play.store, preserve=True)

        states = stream(any_play, graph, "stream", State(run_id=RUN))

        assert [state.partial for state in states] == [
            None,
            Partial("talks", ("one",)),
            Partial("talks", ("one", "two")),
            None,
            None,
        ]
        assert [state.step for state in states] == [1, 1, 1, 2, 3]
        assert states[2].partial is not None
        assert states[2].partial.chunk == "two"
        assert states[-1]["said"] == ["one", "two"]
        assert any_play.store.load(RUN).partial is None


class TestParts:
    """Branches and items, as they finish."""

    def test_each_is_shown(self, any_play: Scene) -> None:
        """Each part is shown by its place or name, together with the parts before it."""
        branches = {"x": lambda state: {"x": 1}, "y": lambda state: {}}
        nodes = {"each": MapNode(str, "items", "texts", 1), "both": ParallelNode(branches, 1)}
        states = stream(
            any_play, make_graph(nodes, store=any_play.store), "stream", State({"items": [7, 8]}, run_id=RUN)
        )
        assert [state.partial for state in states] == [
            Partial("each", ((0, "7"),)),
            Partial("each", ((0, "7"), (1, "8"))),
            None,
            Partial("both", (("x", {"x": 1}),)),
            Partial("both", (("x", {"x": 1}), ("y", {}))),
            None,
        ]

    @pytest.mark.parametrize("is_async", [False, True])
    def test_a_reader_takes_the_time_of_none(self, memory_play: Scene, is_async: bool) -> None:
        """A slow reader delays neither running parts nor later ones, and costs them no time of their limits."""
        seen = threading.Event()

        def item(number: int) -> int:
            assert number != 1 or seen.wait(300)
            return number

        async def aitem(number: int) -> int:
            while number == 1 and not seen.is_set():  # noqa: ASYNC110 - set by another thread, or while the loop stands
                await asyncio.sleep(0.01)
            return number

        node = MapNode(aitem if is_async else item, "items", "out", 2)
        graph = make_graph({"each": node}, store=memory_play.store, policies={"each": {"timeout": 0.5}})
        given = State({"items": [0, 1, 2, 3]}, run_id=RUN)

        def read() -> list[State]:
            with graph.stream(given) as states:
                next(states)
                time.sleep(0.7)
                seen.set()
                return [*states]

        async def aread() -> list[State]:
            async with graph.astream(given) as states:
                await anext(states)
                await asyncio.sleep(0.7)
                seen.set()
                return [state async for state in states]

        final = (asyncio.run(aread()) if memory_play.call is call_async else read())[-1]
        assert list(final["out"]) == [0, 1, 2, 3]


class TestPartsThatFinishTogether:
    """More async parts than workers, several of which finish in one turn of the event loop."""

    @pytest.mark.parametrize("kind", ["items", "branches"])
    def test_leaving_at_the_first(self, play: Scene, kind: str) -> None:
        """Leaving at the first part stops and releases the run, which resumes with the other parts."""
        done: list[int] = []

        async def part(number: int) -> dict[str, Any]:
            await asyncio.sleep(0)
            done.append(number)
            return {f"part {number}": True}

        def branch(number: int) -> Any:
            async def run(state: State) -> dict[str, Any]:
                return await part(number)

            return run

        branches = {str(number): branch(number) for number in range(8)}
        node = MapNode(part, "items", "out", 2) if kind == "items" else ParallelNode(branches, 2)
        graph = make_graph({"each": node, "end": returns({})}, store=play.store, preserve=True)

        stream(play, graph, "stream", State({"items": list(range(8))}, run_id=RUN), most=1)
        assert play.store.load(RUN).status is not RunStatus.COMPLETED
        final = play.resume(graph, wait=300)

        assert final.status is RunStatus.COMPLETED
        assert sorted(done) == [*range(8)]


class TestGraphsAsParts:
    """Items and branches that are graphs, as they finish."""

    def test_each_is_shown(self, play: Scene) -> None:
        """Each graph is shown by its place or name with the parts before it, and so are other parts."""
        negate = play.as_node(lambda state: {"negative": -state["n"]})
        half = make_graph({"negate": negate}, store=play.store, name="half").as_node(outputs=["negative"])
        graph = make_graph({"each": MapNode(half, "items", "out", 1)}, store=play.store)
        states = stream(play, graph, "stream", State({"items": [{"n": 7}, {"n": 8}]}, run_id=RUN))
        assert [state.partial and state.partial.chunks for state in states] == [
            ((0, {"negative": -7}),),
            ((0, {"negative": -7}), (1, {"negative": -8})),
            None,
        ]

        branches: dict[str, Any] = {"half": half, "plain": lambda state: {"y": 1}}
        graph = make_graph({"both": ParallelNode(branches, 1)}, store=play.store, name="other")
        states = stream(play, graph, "stream", State({"n": 2}, run_id="branches"))
        assert chunks(states) == [
            (("half", {"negative": -2}),),
            (("half", {"negative": -2}), ("plain", {"y": 1})),
        ]


class TestResults:
    """Of nodes that are generators."""

    @pytest.mark.parametrize(
        ("kind", "last"),
        [*itertools.product(["yields", "returns", "async"], ["Updates", "State", "none"]), ("returns", "mapping")],
    )
    def test_the_result_of_a_generator(self, memory_play: Scene, kind: str, last: str) -> None:
        """Updates or a State, yielded or returned, are the result, and so is a mapping that is returned.

        Dicts before it, as language models give them, are chunks without a warning.
        """

        def result(state: State) -> Any:
            mapping = {} if last == "none" else {"n": 1}
            return {"mapping": mapping, "State": state.update(mapping)}.get(last, Updates(mapping))

        def yields(state: State) -> Iterator[Any]:
            yield {"chunk": 1}
            yield result(state)

        def returns(state: State) -> Any:
            yield {"chunk": 1}
            return result(state)

        node: Any = {"yields": yields, "returns": returns, "async": as_async_generator(yields)}[kind]
        states = stream(memory_play, _alone(node), "stream", State())

        assert dict(states[-1]) == ({} if last == "none" else {"n": 1})
        assert chunks(states) == [({"chunk": 1},)]

    @pytest.mark.parametrize("last", [{"n": 1}, {}, MappingProxyType({"n": 1})])
    @EITHER
    def test_a_dict_that_is_yielded_last(self, memory_play: Scene, kind: Any, last: Any) -> None:
        """It is a chunk. The warning names the node, and says how to give updates."""

        def node(state: State) -> Iterator[Any]:
            yield "one"
            yield last

        graph = make_graph({"model": kind(node)}, store=memory_play.store)
        with pytest.warns(FutureWarning, match=r"'model'.* chunk .*yield Updates\(\{\.\.\.\}\)"):
            states = stream(memory_play, graph, "stream", State({"before": 0}, run_id=RUN))

        assert dict(states[-1]) == {"before": 0}
        assert chunks(states)[-1] == ("one", last)

    @EITHER
    def test_many_chunks(self, memory_play: Scene, kind: Any) -> None:
        """The cost of a chunk and of its State does not grow with the chunks before it."""

        def node(state: State) -> Any:
            yield from range(state["n"])
            return {}

        graph = _alone(kind(node))

        def peak(count: int) -> int:
            """Return how many bytes it takes to keep all States of so many chunks."""
            gc.collect()
            tracemalloc.start()
            try:
                states = stream(memory_play, graph, "stream", State({"n": count}, run_id=RUN))
                taken = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
            shown = [state.partial.chunk for state in states if state.partial]
            assert shown == list(range(count))
            assert states[count // 2].partial == Partial("talks", tuple(range(count // 2 + 1)))
            return taken

        peak(10)  # the first call imports modules
        assert peak(400) < 8 * peak(100)

    @EITHER
    def test_a_failure_keeps_what_was_put_out(self, any_play: Scene, kind: Any) -> None:
        """The error and the store keep the chunks of a failed node until the run is resumed."""

        def fails(state: State) -> Iterator[str]:
            yield "one"
            raise ValueError("no")

        failing = make_graph({"talks": kind(fails)}, store=any_play.store)
        with pytest.raises(ExecutionError) as caught:
            any_play.execute(failing)

        assert caught.value.state.partial == any_play.store.load(RUN).partial == Partial("talks", ("one",))
        assert any_play.resume(make_graph({"talks": talks}, store=any_play.store)).partial is None


def _alone(node: Any, **policies: Any) -> StateGraph:
    """Return a graph of one node with policies."""
    return make_graph({"talks": node}, store=MemoryStore(), policies={"talks": policies})
