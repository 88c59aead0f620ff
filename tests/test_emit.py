"""`context.emit`: chunks of any node, in the stream of the outermost run."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Any

import pytest

from stategraph import (
    Event,
    EventType,
    ExecutionError,
    MapNode,
    NodeContext,
    Observer,
    ParallelNode,
    Partial,
    RetryPolicy,
    RunStatus,
    State,
    StateGraph,
)
from stategraph.stores.memory import MemoryStore
from tests.scenarios import RUN, Scene, call_async, make_graph
from tests.test_streams import stream

pytestmark = pytest.mark.timeout(600)


def shown(states: list[State]) -> list[Any]:
    """Return what the chunks of a stream say about themselves."""
    partials = [state.partial for state in states if state.partial]
    return [(each.node, each.path, each.part, each.kind, each.number, each.chunk) for each in partials]


def says(state: Any, context: NodeContext) -> dict[str, Any]:
    """Emit two chunks."""
    context.emit("a")
    context.emit({"b": [1]})
    return {"said": True}


async def asays(state: Any, context: NodeContext) -> dict[str, Any]:
    """Emit two chunks on an event loop."""
    context.emit("a")
    await asyncio.sleep(0)
    context.emit({"b": [1]})
    return {"said": True}


NODES: dict[str, Callable[..., Any]] = {"sync": says, "async": asays}


@pytest.fixture(params=NODES)
def node(request: pytest.FixtureRequest) -> Any:
    """A node that emits two chunks, sync or async."""
    return NODES[request.param]


class TestWhereChunksComeFrom:
    """Each chunk names its node, the way to it, its part, its kind and its number."""

    def test_a_function(self, any_play: Scene, node: Any) -> None:
        """A function emits while it runs; its result is its updates, as without a stream."""
        graph = make_graph({"say": node}, store=any_play.store, preserve=True)

        states = stream(any_play, graph, "stream", State(run_id=RUN))

        path = ("say",)
        assert shown(states) == [("say", path, "", "chunk", 1, "a"), ("say", path, "", "chunk", 2, {"b": [1]})]
        assert states[1].partial == Partial("say", ("a", {"b": [1]}))
        assert dict(states[-1]) == {"said": True}
        assert dict(any_play.call(graph, "execute", State(run_id="quiet"))) == {"said": True}

    def test_a_nested_graph(self, play: Scene, node: Any) -> None:
        """A graph in a graph in a graph emits into the stream of the outermost run."""
        inner = make_graph({"say": node}, store=play.store, name="inner")
        middle = make_graph({"in": inner.as_node()}, store=play.store, name="middle")
        graph = make_graph({"mid": middle.as_node()}, store=play.store)

        states = stream(play, graph, "stream", State(run_id=RUN))

        path = ("mid", "in", "say")
        assert shown(states) == [("say", path, "", "chunk", 1, "a"), ("say", path, "", "chunk", 2, {"b": [1]})]
        assert {state.run_id for state in states} == {RUN}
        assert [state.step for state in states] == [0, 0, 1]

    def test_a_generator_in_a_nested_graph(self, play: Scene) -> None:
        """Its chunks are shown as those of any node, and so are finished items of the nested graph."""

        def talks(state: State) -> Any:
            yield from "xy"
            return {}

        inner = make_graph({"talk": talks, "each": MapNode(str, "items", "out", 1)}, store=play.store, name="inner")
        graph = make_graph({"in": inner.as_node()}, store=play.store)

        states = stream(play, graph, "stream", State({"items": [7]}, run_id=RUN))

        assert shown(states) == [
            ("talk", ("in", "talk"), "", "chunk", 1, "x"),
            ("talk", ("in", "talk"), "", "chunk", 2, "y"),
            ("each", ("in", "each"), "", "item", 1, (0, "7")),
        ]

    def test_items_and_branches(self, play: Scene, node: Any) -> None:
        """A part emits under its name, before it is shown as finished."""
        each, both = MapNode(node, "items", "out", 1), ParallelNode({"x": node}, 1)
        graph = make_graph({"each": each, "both": both}, store=play.store)

        states = stream(play, graph, "stream", State({"items": [7, 8]}, run_id=RUN))

        emitted = [("chunk", 1, "a"), ("chunk", 2, {"b": [1]})]
        assert shown(states) == [
            *(("each", ("each",), "0", *chunk) for chunk in emitted),
            ("each", ("each",), "", "item", 1, (0, {"said": True})),
            *(("each", ("each",), "1", *chunk) for chunk in emitted),
            ("each", ("each",), "", "item", 2, (1, {"said": True})),
            *(("both", ("both",), "x", *chunk) for chunk in emitted),
            ("both", ("both",), "", "branch", 1, ("x", {"said": True})),
        ]

    def test_graphs_as_items(self, play: Scene, node: Any) -> None:
        """A graph that is an item emits under the item, and an item of that graph under both."""
        inner = make_graph({"say": node, "each": MapNode(node, "ns", "out", 1)}, store=play.store, name="inner")
        graph = make_graph({"all": MapNode(inner.as_node(outputs=["said"]), "items", "out", 1)}, store=play.store)

        states = stream(play, graph, "stream", State({"items": [{"ns": [5]}]}, run_id=RUN))

        assert shown(states) == [
            ("say", ("all", "say"), "0", "chunk", 1, "a"),
            ("say", ("all", "say"), "0", "chunk", 2, {"b": [1]}),
            ("each", ("all", "each"), "0/0", "chunk", 1, "a"),
            ("each", ("all", "each"), "0/0", "chunk", 2, {"b": [1]}),
            ("each", ("all", "each"), "0", "item", 1, (0, {"said": True})),
            ("all", ("all",), "", "item", 1, (0, {"said": True})),
        ]

    @pytest.mark.parametrize("is_part", [False, True])
    def test_a_retry_starts_again(self, play: Scene, is_part: bool) -> None:
        """Chunks of another attempt are numbered from 1 and name it."""

        def fails_first(state: Any, context: NodeContext) -> dict[str, Any]:
            context.emit(context.attempt)
            if context.attempt == 1:
                raise OSError
            return {}

        retry = RetryPolicy(initial_delay=0)
        made: Any = MapNode(fails_first, "items", "out", 1, retry=retry) if is_part else fails_first
        policies = {} if is_part else {"try": {"retry": retry}}
        graph = make_graph({"try": made}, store=play.store, policies=policies)

        states = stream(play, graph, "stream", State({"items": [0]}, run_id=RUN))

        chunks = [state.partial for state in states if state.partial and state.partial.kind == "chunk"]
        assert [(each.attempt, each.number, each.chunk) for each in chunks] == [(1, 1, 1), (2, 1, 2)]


class TestWhoEmits:
    """Callbacks, threads and tasks of a node."""

    def test_threads_of_a_sync_node(self, play: Scene) -> None:
        """Each chunk arrives once, and the chunks of one thread are in order."""

        def node(state: State, context: NodeContext) -> dict[str, Any]:
            def emit(name: str) -> None:
                for number in range(50):
                    context.emit((name, number))

            threads = [threading.Thread(target=emit, args=(name,)) for name in "xy"]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return {}

        states = stream(play, make_graph({"n": node}, store=play.store), "stream", State(run_id=RUN))

        chunks = [state.partial.chunk for state in states if state.partial]
        assert [number for name, number in chunks if name == "x"] == [*range(50)]
        assert [number for name, number in chunks if name == "y"] == [*range(50)]

    def test_threads_and_tasks_of_an_async_node(self, play: Scene) -> None:
        """Each chunk arrives before the result of the node."""

        async def node(state: State, context: NodeContext) -> dict[str, Any]:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(asyncio.to_thread(context.emit, "thread"))
                tasks.create_task(asyncio.sleep(0)).add_done_callback(lambda _: context.emit("callback"))
            return {}

        states = stream(play, make_graph({"n": node}, store=play.store), "stream", State(run_id=RUN))

        assert {state.partial.chunk for state in states if state.partial} == {"thread", "callback"}
        assert states[-1].partial is None

    def test_a_chunk_comes_while_the_node_works(self, play: Scene) -> None:
        """The reader gets it before the node goes on."""
        seen = threading.Event()

        def node(state: State, context: NodeContext) -> dict[str, Any]:
            context.emit("now")
            assert seen.wait(300)
            return {}

        graph = make_graph({"n": node}, store=play.store)
        if play.call is not call_async:
            with graph.stream(State(run_id=RUN)) as states:
                assert next(states).partial is not None
                seen.set()
                assert next(states).partial is None
            return

        async def read() -> None:
            async with graph.astream(State(run_id=RUN)) as states:
                assert (await anext(states)).partial is not None
                seen.set()
                assert (await anext(states)).partial is None

        asyncio.run(read())

    def test_a_generator(self, play: Scene) -> None:
        """What it emits comes before what it yields next."""

        def node(state: State, context: NodeContext) -> Any:
            context.emit(1)
            yield 2
            context.emit(3)
            return {}

        states = stream(play, make_graph({"n": node}, store=play.store), "stream", State(run_id=RUN))

        assert [state.partial.chunk for state in states if state.partial] == [1, 2, 3]

    def test_context_variables(self, memory_play: Scene) -> None:
        """The thread of a node has those of the caller."""
        name: contextvars.ContextVar[str] = contextvars.ContextVar("name")
        name.set("caller")
        graph = make_graph({"n": lambda state, context: {"name": name.get()}}, store=memory_play.store)

        assert stream(memory_play, graph, "stream", State(run_id=RUN))[-1]["name"] == "caller"


class TestEnds:
    """Leaving a stream, failures, and calls without a stream."""

    def test_leaving(self, any_play: Scene, node: Any) -> None:
        """The node is stopped, its chunks are saved, and a resume repeats it."""
        graph = make_graph({"say": node}, store=any_play.store, preserve=True)

        stream(any_play, graph, "stream", State(run_id=RUN), most=1)

        saved = any_play.store.load(RUN)
        assert saved.status is RunStatus.ACTIVE
        assert saved.partial is None or saved.partial.path == ("say",)
        assert any_play.resume(graph, wait=5).status is RunStatus.COMPLETED

    def test_a_sync_node_ends_at_its_next_chunk(self, play: Scene) -> None:
        """No thread of it is left once the stream is closed."""
        ended = threading.Event()

        def node(state: State, context: NodeContext) -> dict[str, Any]:
            try:
                while True:
                    context.emit("more")
            finally:
                ended.set()

        stream(play, make_graph({"n": node}, store=play.store), "stream", State(run_id=RUN), most=3)

        assert ended.is_set()

    def test_an_abandoned_stream(self) -> None:
        """The thread of its node ends at the next chunk."""
        left, ended = threading.Event(), threading.Event()

        def node(state: State, context: NodeContext) -> dict[str, Any]:
            try:
                context.emit("one")
                left.wait()
                while True:
                    context.emit("more")
            finally:
                ended.set()

        states = make_graph({"n": node}, store=MemoryStore()).stream(State(run_id=RUN))
        next(states)
        with pytest.warns(ResourceWarning, match="neither closed nor exhausted"):
            del states
        left.set()

        assert ended.wait(300)

    def test_an_attempt_whose_time_is_up(self, play: Scene) -> None:
        """The thread of its node ends at the next chunk, and its chunks are not shown."""
        is_over, ended = threading.Event(), threading.Event()

        def node(state: State, context: NodeContext) -> dict[str, Any]:
            if context.attempt == 2:
                is_over.set()
                assert ended.wait(300)
                return {}
            try:
                context.emit("one")
                is_over.wait()
                while True:
                    context.emit("more")
            finally:
                ended.set()

        graph = make_graph(
            {"n": node}, store=play.store, policies={"n": {"timeout": 0.05, "retry": RetryPolicy(initial_delay=0)}}
        )

        states = stream(play, graph, "stream", State(run_id=RUN))

        assert [state.partial.chunk for state in states if state.partial] == ["one"]

    def test_a_failure_keeps_the_chunks(self, play: Scene) -> None:
        """As those of a generator that fails."""

        def node(state: State, context: NodeContext) -> dict[str, Any]:
            context.emit("one")
            raise OSError("gone")

        graph = make_graph({"n": node}, store=play.store)
        with pytest.raises(Exception, match="gone"):
            stream(play, graph, "stream", State(run_id=RUN))

        saved = play.store.load(RUN)
        assert saved.partial == Partial("n", ("one",))

    def test_the_end_of_an_iterator(self, play: Scene) -> None:
        """A StopAsyncIteration of an async node is its failure, as without a stream."""

        async def reads(state: Any, context: NodeContext) -> dict[str, Any]:
            raise StopAsyncIteration

        graph = make_graph({"read": reads}, store=play.store)
        with pytest.raises(ExecutionError, match="StopAsyncIteration"):
            stream(play, graph, "stream", State(run_id=RUN))

    def test_observers_see_chunks(self, memory_play: Scene, node: Any) -> None:
        """Under `execute` too. A sync node stays in the thread of the caller then."""
        seen: list[Any] = []

        class Sees(Observer):
            def wants(self, type: EventType) -> bool:
                return type is EventType.NODE_CHUNK

            def on_event(self, event: Event) -> None:
                seen.append(event.data["chunk"])

        def here(state: State, context: NodeContext) -> dict[str, Any]:
            context.emit(threading.get_ident())
            return {}

        graph = make_graph({"say": node, "here": here}, store=memory_play.store, observer=Sees())
        memory_play.execute(graph)

        assert seen[:2] == ["a", {"b": [1]}]
        assert seen[2] == threading.get_ident() or memory_play.call is call_async

    def test_without_a_run(self) -> None:
        """A context of a test emits nowhere."""
        NodeContext("run", "graph", "node", 1).emit("a")


class TestTurns:
    """`stream_turn` and `astream_turn`."""

    def test_a_turn_is_streamed(self, any_play: Scene, node: Any) -> None:
        """With the options of `turn`: the same key again yields the result alone, and runs nothing."""
        graph = make_graph({"say": node}, store=any_play.store, preserve=True)
        keeps = any_play.store.keeps_entries
        how: dict[str, Any] = {"key": "k"} if keeps else {}

        states = stream(any_play, graph, "stream_turn", RUN, {"n": 1}, **how)
        further = stream(any_play, graph, "stream_turn", RUN, {"n": 2})

        assert [state.partial and state.partial.chunk for state in states] == ["a", {"b": [1]}, None]
        assert (states[-1]["n"], further[-1]["n"], further[-1].step) == (1, 2, 2)
        if keeps:
            (again,) = stream(any_play, graph, "stream_turn", RUN, {"n": 1}, **how)
            assert again.status is RunStatus.COMPLETED


def test_many_chunks_take_linear_time() -> None:
    """A chunk takes as little memory after many others, which are shared."""

    def node(state: State, context: NodeContext) -> dict[str, Any]:
        for number in range(20_000):
            context.emit(number)
        return {}

    graph = StateGraph("many", store=MemoryStore(), preserve=True)
    graph.add_node("n", node)
    graph.set_entry_point("n")
    graph.set_exit_point("n")

    partials = [state.partial for state in graph.stream(State(run_id=RUN)) if state.partial]

    assert len(partials) == 20_000
    assert len({id(each._emitted.chunks) for each in partials}) == 1
