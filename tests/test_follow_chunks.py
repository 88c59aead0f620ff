"""`persist_chunks` and `follow(chunks=True)`: each chunk once, in order, in any process, from a stored cursor on."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from stategraph import (
    CheckpointSaveError,
    EntriesNotKeptError,
    MapNode,
    NodeContext,
    ParallelNode,
    RetryPolicy,
    RunStatus,
    State,
    StateGraph,
)
from stategraph.stores import MemoryStore, SqliteStore
from tests.scenarios import RUN, Scene, call_async, make_graph, reopened

pytestmark = pytest.mark.timeout(600)
KEPT = {"persist_chunks": True}


def followed(play: Scene, graph: StateGraph, after: str | None = None) -> list[tuple[Any, str]]:
    """Return what a follower sees to the end, each with the cursor after it: steps, and chunks with their places."""

    def shown(state: State) -> Any:
        chunk = state.partial
        return (chunk.path, chunk.part, chunk.attempt, chunk.number, chunk.chunk) if chunk else state.step

    if play.call is not call_async:
        states = graph.follow(RUN, after=after, chunks=True, timeout=300)
        return [(shown(state), states.cursor or "") for state in states]

    async def read() -> list[tuple[Any, str]]:
        states = graph.afollow(RUN, after=after, chunks=True, timeout=300)
        return [(shown(state), states.cursor or "") async for state in states]

    return asyncio.run(read())


def says(state: Any, context: NodeContext) -> dict[str, Any]:
    """Emit two chunks."""
    context.emit("a")
    context.emit({"b": [1]})
    return {}


def talks(state: Any) -> Any:
    """Yield two chunks."""
    yield 1
    yield 2
    return {}


class TestFollowing:
    """What is kept, in which order, and where a cursor continues."""

    @pytest.mark.parametrize("durability", ["sync", "async", "exit"])
    def test_each_chunk_once_and_before_its_state(self, any_play: Scene, durability: str) -> None:
        """A follower that begins late sees all; from any of its cursors on another sees exactly the rest."""
        graph = make_graph(
            {"say": says, "quiet": talks, "talk": talks},
            store=any_play.store,
            policies={"say": KEPT, "talk": KEPT},
            preserve=True,
            durability=durability,
            retention="latest" if durability == "exit" else "full",
        )
        if not any_play.store.keeps_entries:
            with pytest.raises(EntriesNotKeptError):
                any_play.execute(graph)
            return
        any_play.execute(graph)

        seen = followed(any_play, graph)

        chunks = [shown for shown, _ in seen if isinstance(shown, tuple)]
        assert chunks == [
            (("say",), "", 1, 1, "a"),
            (("say",), "", 1, 2, {"b": [1]}),
            (("talk",), "", 1, 1, 1),
            (("talk",), "", 1, 2, 2),
        ]
        assert seen[-1][0] == 3
        if durability != "exit":
            assert [shown for shown, _ in seen if isinstance(shown, int)] == [1, 2, 3]
            assert seen[2][0] == 1
        for place, (_, cursor) in enumerate(seen):
            assert followed(any_play, graph, cursor) == seen[place + 1 :]

    def test_nested_graphs_items_and_branches(self, play: Scene) -> None:
        """The run that is followed has the chunks of all that is nested in it."""
        store = play.store
        inner = make_graph({"say": says}, store=store, name="inner", policies={"say": KEPT})
        nodes = {"in": inner.as_node(), "each": MapNode(says, "items", "out", 1), "both": ParallelNode({"x": says})}
        nodes["graphs"] = MapNode(inner.as_node(), "graphs", "out", 1)
        graph = make_graph(nodes, store=store, policies={"each": KEPT, "both": KEPT}, preserve=True)
        play.execute(graph, State({"items": [7, 8], "graphs": [{"n": 1}]}, run_id=RUN))

        chunks = [shown[:2] for shown, _ in followed(play, graph) if isinstance(shown, tuple)]

        assert chunks == [
            *[(("in", "say"), "")] * 2,
            *[(("each",), "0")] * 2,
            *[(("each",), "1")] * 2,
            *[(("both",), "x")] * 2,
            *[(("graphs", "say"), "0")] * 2,
        ]

    def test_attempts(self, play: Scene) -> None:
        """A retry, and a resume, is the next attempt, with chunks that are numbered again."""
        tries: list[int] = []

        def fails_twice(state: State, context: NodeContext) -> dict[str, Any]:
            tries.append(1)
            context.emit(len(tries))
            if len(tries) < 3:
                raise OSError("not yet")
            return {}

        policies = {"try": {**KEPT, "retry": RetryPolicy(max_attempts=2, initial_delay=0)}}
        graph = make_graph({"try": fails_twice}, store=play.store, policies=policies, preserve=True)
        with pytest.raises(Exception, match="not yet"):
            play.execute(graph)
        before = followed(play, graph)
        play.resume(graph)

        after = followed(play, graph, before[-1][1])

        assert [shown[2:] for shown, _ in before if isinstance(shown, tuple)] == [(1, 1, 1), (2, 1, 2)]
        assert [shown[2:] for shown, _ in after if isinstance(shown, tuple)] == [(3, 1, 3)]

    def test_a_rollback(self, play: Scene) -> None:
        """Steps that are done again have other chunks; a follower goes on from its cursor."""
        policies = {"a": KEPT, "b": KEPT}
        graph = make_graph(
            {"a": talks, "b": talks}, store=play.store, policies=policies, retention="full", preserve=True
        )
        play.execute(graph)
        before = followed(play, graph)
        play.store.rollback(RUN, 1)
        play.resume(graph)

        after = [shown for shown, _ in followed(play, graph, before[-1][1])]

        assert after == [(("b",), "", 1, 1, 1), (("b",), "", 1, 2, 2), 2]

    def test_a_turn(self, play: Scene) -> None:
        """The follower of a conversation goes on with the chunks of the next turn."""
        graph = make_graph({"a": talks}, store=play.store, policies={"a": KEPT}, preserve=True)
        play.turn(graph, {"n": 1})
        before = followed(play, graph)
        play.turn(graph, {"n": 2})

        after = followed(play, graph, before[-1][1])

        assert [shown[3:] for shown, _ in after if isinstance(shown, tuple)] == [(1, 1), (2, 2)]

    def test_another_run_under_the_same_id(self, any_play: Scene) -> None:
        """A cursor of a run that was deleted shows all of the run that has begun since. A cursor of an older version,
        which does not know when its run began, is read as well."""
        if not any_play.store.keeps_entries:
            pytest.skip("it keeps no entries")
        policies = {"a": KEPT, "b": KEPT}
        graph = make_graph({"a": talks, "b": talks}, store=any_play.store, policies=policies, preserve=True)
        any_play.execute(graph)
        before = followed(any_play, graph)
        any_play.store.delete(RUN)
        any_play.execute(graph)
        after = [shown for shown, _ in followed(any_play, graph)]

        for _, cursor in before:
            assert [shown for shown, _ in followed(any_play, graph, cursor)] == after
            assert followed(any_play, graph, cursor.rpartition(".")[0])

    def test_chunks_are_there_while_the_node_works(self, play: Scene) -> None:
        """Also if it emits no more."""
        seen = threading.Event()

        def node(state: State, context: NodeContext) -> dict[str, Any]:
            context.emit("now")
            assert seen.wait(300)
            return {}

        graph = make_graph({"n": node}, store=play.store, policies={"n": KEPT}, preserve=True)
        worker = threading.Thread(target=play.execute, args=(graph,))
        worker.start()
        with reopened(play.store):
            reader = make_graph({"n": node}, store=reopened(play.store))
            for state in reader.follow(RUN, chunks=True, wait=300, timeout=300):
                if state.partial:
                    seen.set()
        worker.join()

        assert state.status is RunStatus.COMPLETED

    @pytest.mark.parametrize("is_generator", [False, True])
    def test_a_store_that_fails(self, is_generator: bool) -> None:
        """A chunk that cannot be kept ends the call with the error of the store; the node has not failed."""

        class Full(MemoryStore):
            def append(self, run_id: str, entries: Any) -> Any:
                raise CheckpointSaveError(run_id, "the disk is full")

        def emits(state: State, context: NodeContext) -> dict[str, Any]:
            while True:
                context.emit("x")
                time.sleep(0.01)

        def yields(state: State) -> Any:
            while True:
                yield "x"
                time.sleep(0.01)

        graph = make_graph({"n": yields if is_generator else emits}, store=Full(), policies={"n": KEPT}, preserve=True)
        with pytest.raises(CheckpointSaveError, match="the disk is full"):
            graph.execute(State(run_id=RUN))

    def test_chunks_stay_for_some_steps(self, play: Scene) -> None:
        """The chunks of older steps are removed, so that a long run does not grow without limit."""
        edges = [("talk", "talk", lambda state: state.step < 103), ("talk", "end")]
        graph = make_graph(
            {"talk": talks, "end": lambda state: {}}, edges, store=play.store, policies={"talk": KEPT}, preserve=True
        )
        play.execute(graph)

        kept = {entry.step for entry in play.store.entries(RUN, kinds=("chunk",))}
        assert kept - {4} == {*range(5, 104)}

    def test_wrong_cursors(self, memory_play: Scene) -> None:
        """They are refused."""
        graph = make_graph({"a": talks}, store=memory_play.store, preserve=True)
        memory_play.execute(graph)
        with pytest.raises(ValueError, match="after"):
            list(graph.follow(RUN, after="yesterday"))


_KILLED = """
import os, signal, sys, time
from stategraph import State, StateGraph
from stategraph.stores import SqliteStore

def write(state):
    for number in range(1, 1000):
        yield number
        time.sleep(0.001)
        if number == int(sys.argv[2]):
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGKILL)
    return {}

graph = StateGraph("killed", store=SqliteStore(sys.argv[1]), preserve=True)
graph.add_node("write", write, persist_chunks=True)
graph.set_entry_point("write")
graph.set_exit_point("write")
if sys.argv[3] == "run":
    graph.run(State(run_id="run"))
"""


def test_a_killed_process_leaves_its_chunks(tmp_path: Path) -> None:
    """Those that are older than a moment. The next attempt has all of its own, and is marked as such."""
    path = str(tmp_path / "runs.db")
    for last in (70, 90, 10_000):
        done = subprocess.run([sys.executable, "-c", _KILLED, path, str(last), "run"], timeout=300, check=False)
        assert done.returncode == (0 if last == 10_000 else -signal.SIGKILL)
    with SqliteStore(path) as store:
        graph = make_graph({"write": talks}, store=store)
        chunks = [state.partial for state in graph.follow(RUN, chunks=True, timeout=300) if state.partial]

    for attempt, last in ((1, 70), (2, 90), (3, 999)):
        of_attempt = [each for each in chunks if each.attempt == attempt]
        assert [each.chunk for each in of_attempt] == [each.number for each in of_attempt] == [*range(1, last + 1)]
    assert [each.attempt for each in chunks] == sorted(each.attempt for each in chunks)
