"""Following a run: `follow` and `afollow`."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from stategraph import (
    CheckpointConfig,
    CheckpointNotFoundError,
    GraphConfig,
    InterruptNode,
    RunStatus,
    State,
    StateGraph,
)
from stategraph.stores import CheckpointStore, MemoryStore, Policy, SqliteStore
from tests.scenarios import FourMethodStore

Follow = Callable[..., list[State]]


def blocking(graph: StateGraph, run_id: str, **how: Any) -> list[State]:
    return list(graph.follow(run_id, **how))


def awaiting(graph: StateGraph, run_id: str, **how: Any) -> list[State]:
    async def collected() -> list[State]:
        return [state async for state in graph.afollow(run_id, **how)]

    return asyncio.run(collected())


@pytest.fixture(params=[blocking, awaiting])
def follow(request: pytest.FixtureRequest) -> Follow:
    """Return both ways to follow."""
    return request.param  # type: ignore[no-any-return]


def counting(store: CheckpointStore, before: Callable[[int], object] = lambda n: None, **checkpoint: Any) -> StateGraph:
    """Return a graph that counts to three, calls something before each step, and asks whether that is enough."""
    kept = CheckpointConfig(**{"interval": 1, "retention": "full", "preserve": True, **checkpoint})
    graph = StateGraph(GraphConfig("counting", observer="noop", checkpoint=kept), store=store)

    def count(state: State) -> dict[str, int]:
        before(state["n"])
        return {"n": state["n"] + 1}

    graph.add_node("count", count)
    graph.add_node("ask", InterruptNode(None, "enough"))
    graph.add_edge("count", "count", lambda state: state["n"] < 3)
    graph.add_edge("count", "ask")
    graph.set_entry_point("count")
    graph.set_exit_point("ask")
    return graph


def steps_of(states: list[State]) -> list[tuple[int, str, str]]:
    return [(state.step, state.checkpoint_node, str(state.status)) for state in states]


BEFORE_THE_PAUSE = [(1, "count", "active"), (2, "count", "active"), (3, "count", "active"), (3, "count", "paused")]


def test_it_yields_what_is_kept_up_to_the_end(any_store: CheckpointStore, follow: Follow) -> None:
    """A follower gets the States of a stream, in any process, and at any time."""
    graph = counting(any_store)
    streamed = list(graph.stream(State({"n": 0}, run_id="a")))
    kept = slice(-1, None) if isinstance(any_store, FourMethodStore) else slice(None)  # that keeps but the newest
    assert steps_of(follow(graph, "a")) == BEFORE_THE_PAUSE[kept]
    streamed += graph.stream_resume("a", {"enough": True})

    followed = follow(counting(any_store), "a")
    assert steps_of(followed) == [*BEFORE_THE_PAUSE, (4, "ask", "completed")][kept]
    assert [state for state in followed if state in streamed] == streamed[kept]


def test_wait_and_timeout_limit_the_time(follow: Follow) -> None:
    """`wait` limits the time for the run to appear, and `timeout` the time to follow it."""
    graph = counting(MemoryStore())
    for wait in (None, 0, 0.02):
        with pytest.raises(CheckpointNotFoundError):
            follow(graph, "a", wait=wait)
    graph.submit(State({"n": 0}, run_id="a"))
    with pytest.raises(TimeoutError, match="'a' has not ended within"):
        follow(graph, "a", timeout=0.02)


def test_an_interrupted_wait_loses_no_state() -> None:
    """A caller that waits for some time only, as with `asyncio.wait_for`, gets the State at its next try."""
    graph, reads = counting(MemoryStore()), threading.Event()
    graph.execute(State({"n": 0}, run_id="a"))
    load, graph.store.load = graph.store.load, lambda *args: reads.wait(30) and load(*args)  # type: ignore[method-assign,assignment]

    async def collected() -> list[State]:
        states = graph.afollow("a")
        for _ in range(2):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(states), 0.1)
        reads.set()
        return [state async for state in states]

    assert asyncio.run(collected()) == blocking(graph, "a")


def test_a_run_that_is_deleted_and_begins_again_between_two_reads(
    any_store: CheckpointStore, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint that has gone with the earlier run is no error, also where the new one has as many steps."""
    any_store.retain("a", Policy("full"))
    any_store.save(State(run_id="a", step=3))
    any_store.amend(State({"n": 3}, run_id="a", step=3, status=RunStatus.COMPLETED))
    history, reads = any_store.history, iter([None, None])

    def read(run_id: str, **how: Any) -> Any:
        rows = history(run_id, **how)
        if next(reads, "over") == "over":
            monkeypatch.undo()
            any_store.delete("a")
            any_store.save(State({"n": 4}, run_id="a", step=3, status=RunStatus.COMPLETED))
        return rows

    next(reads)  # the first read waits for the run to begin
    monkeypatch.setattr(any_store, "history", read)

    assert {"n": 3} not in [dict(state) for state in follow(counting(any_store), "a")]


class Counted(SqliteStore):
    """A store that counts the rows of the histories that were read."""

    rows_read = 0

    def history(self, *which: Any, **how: Any) -> Any:
        rows = super().history(*which, **how)
        self.rows_read += len(rows)
        return rows


def test_a_row_is_read_once(tmp_path: Any) -> None:
    """A follower of a growing run reads each new row once, and not the rows before it."""
    with Counted(tmp_path / "runs.db") as store, SqliteStore(tmp_path / "runs.db") as writer:
        writer.retain("a", Policy("full"))
        writer.save(State(run_id="a", step=1, checkpoint_node="count"))
        for state in counting(store).follow("a"):
            if state.status is RunStatus.ACTIVE:
                status = RunStatus.COMPLETED if state.step == 20 else RunStatus.ACTIVE
                writer.save(State(run_id="a", step=state.step + 1, checkpoint_node="count", status=status))

        assert (state.step, store.rows_read) == (21, 22)  # it looks for the first one twice


_OTHER = """
import sys
from stategraph import State
from stategraph.stores import SqliteStore
from tests.test_follow import counting

graph = counting(SqliteStore(sys.argv[1]), lambda n: n == 0 or sys.stdin.readline())
graph.execute(State({"n": 0}, run_id="a"))
"""


@pytest.fixture
def other_process(tmp_path: Any) -> Iterator[subprocess.Popen[str]]:
    """Yield a process that owns a run and makes a step for each line of its input."""
    command = [sys.executable, "-c", _OTHER, str(tmp_path / "runs.db")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def test_a_run_of_another_process(other_process: subprocess.Popen[str], tmp_path: Any) -> None:
    """A run of another process is followed step by step, and after its death until it is resumed here."""
    graph = counting(store := SqliteStore(tmp_path / "runs.db"))
    followed: list[State] = []
    for state in graph.follow("a", wait=300, timeout=300):
        followed.append(state)
        if state.step == 1 and state.status is RunStatus.ACTIVE:
            assert other_process.stdin is not None
            other_process.stdin.write("\n")
            other_process.stdin.flush()
        if state.step == 2 and state.status is RunStatus.ACTIVE:
            other_process.kill()
            other_process.wait()
            graph.resume("a")
    store.close()

    assert steps_of(followed) == BEFORE_THE_PAUSE
