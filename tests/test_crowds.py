"""Many runs at once on one event loop share commits, and end like single runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from stategraph import InterruptNode, MapNode, ParallelNode, RunCancelledError, State
from stategraph.errors import CheckpointSaveError
from stategraph.stores.sqlite import SqliteStore
from tests.conftest import make_store
from tests.scenarios import HOW, as_async, chain, make_graph, steady, traces
from tests.stores.inside import table_of
from tests.test_cancellations import in_time

pytestmark = pytest.mark.timeout(600)

RUNS = 20
SOME = ["sync", "async", "exit"]


@pytest.fixture(params=["sqlite", "disk", "postgres", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A store that saves for several runs in one go."""
    with make_store(request.param, tmp_path) as opened:
        yield opened


def crowd(graph: Any, runs: int = RUNS) -> list[Any]:
    """Run so many States at once; return what came of each."""

    async def main() -> list[Any]:
        some = [graph.aexecute(State({"n": n}, run_id=f"run-{n}")) for n in range(runs)]
        return await asyncio.gather(*some, return_exceptions=True)

    found: list[Any] = in_time(main)
    return found


def async_traces(names: str) -> dict[str, Any]:
    """Return async nodes that leave a trace."""
    return {name: as_async(node) for name, node in traces(names).items()}


def failing(store: Any, monkeypatch: pytest.MonkeyPatch, error: Exception, *, most: int = 1) -> list[int]:
    """Have the table of a store fail for some commits of several runs; return the sizes of all of its commits."""
    sizes: list[int] = []
    table, left = table_of(store), [error] * most
    apply = table.apply

    def fails(batches: Sequence[Any]) -> Any:
        sizes.append(len(batches))
        if (len(batches) > 1 or type(error) is CheckpointSaveError) and left:
            raise left.pop()
        return apply(batches)

    monkeypatch.setattr(table_of(store), "apply", fails)
    return sizes


@pytest.mark.parametrize(("how", "are_async"), [*((how, True) for how in SOME), ("sync", False), ("async", False)])
def test_they_end_as_one_by_one(store: Any, how: str, are_async: bool, tmp_path: Path) -> None:
    """The saved States and the history of each run equal those of a single run."""
    nodes = async_traces("abcd") if are_async else traces("abcd")
    finals = crowd(make_graph(nodes, store=store, preserve=True, **HOW[how]))

    with SqliteStore(tmp_path / "alone") as other:
        alone = make_graph(traces("abcd"), store=other, preserve=True, **HOW[how])
        for n, final in enumerate(finals):
            assert store.load(f"run-{n}") == final
            assert steady(final) == steady(alone.execute(State({"n": n}, run_id=f"run-{n}")))
            for one, expected in zip(store.history(f"run-{n}"), other.history(f"run-{n}"), strict=True):
                assert (one.step, one.status, one.kind) == (expected.step, expected.status, expected.kind)


@pytest.mark.parametrize(("how", "runs"), [*((how, 8) for how in SOME), ("sync", 1)])
def test_runs_whose_parts_are_graphs(store: Any, how: str, runs: int) -> None:
    """Parts that save before their run does, several at a time, belong to one run, which none takes for deleted."""

    def inner(key: str) -> Any:
        async def double(state: State) -> dict[str, Any]:
            return {key: 2 * state["n"]}

        return make_graph({"double": double}, store=store, name=key, **HOW[how]).as_node()

    nodes = {
        **async_traces("a"),
        "items": MapNode(inner("doubled"), "list", "items"),
        "branches": ParallelNode({"left": inner("left"), "right": inner("right")}),
        **async_traces("z"),
    }
    graph = make_graph(nodes, store=store, preserve=True, **HOW[how])

    async def main() -> Any:
        some = [State({"n": n, "list": [{"n": item} for item in range(3)]}, run_id=f"run-{n}") for n in range(runs)]
        return await asyncio.gather(*[graph.aexecute(state) for state in some], return_exceptions=True)

    for n, final in enumerate(in_time(main)):
        assert isinstance(final, State), final
        assert [item["doubled"] for item in final["items"]] == [0, 2, 4]
        assert final["left"] == final["right"] == 2 * n
        assert store.load(f"run-{n}") == final
    assert {one.run_id for one in store.runs(status="completed")} == {f"run-{n}" for n in range(runs)}


@pytest.mark.parametrize("how", SOME)
def test_runs_that_pause_early(store: Any, how: str) -> None:
    """Runs whose first States are saved in one batch are stored as paused, and can be resumed."""
    nodes = {**async_traces("a"), "ask": InterruptNode("n", "answer"), **async_traces("z")}
    graph = make_graph(nodes, store=store, preserve=True, **HOW[how])
    found = crowd(graph)

    assert [str(one.status) if isinstance(one, State) else one for one in found] == ["paused"] * RUNS
    assert {one.run_id for one in store.runs(status="paused")} == {f"run-{n}" for n in range(RUNS)}
    assert graph.resume("run-3", {"answer": "yes"})["trace"] == ["a", "z"]


def test_a_commit_that_fails_for_all(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run in a failed commit gets the error with its own State, and can be resumed."""
    failing(store, monkeypatch, CheckpointSaveError("", "the disk is full"))
    graph = make_graph(async_traces("abcd"), store=store, preserve=True)
    found = crowd(graph)
    failed = [(n, one) for n, one in enumerate(found) if isinstance(one, Exception)]

    assert failed
    for n, error in failed:
        assert isinstance(error, CheckpointSaveError)
        assert error.run_id == f"run-{n}"
        assert error.state is not None
        assert error.state.run_id == f"run-{n}"
        assert list(graph.run(State({"n": n}, run_id=f"run-{n}"))["trace"]) == list("abcd")


class Panic(BaseException):
    """What a native library raises when it fails: not an Exception."""


@pytest.mark.parametrize("how", SOME)
def test_a_batch_that_ends_by_a_base_exception(tmp_path: Path, as_node: Any, how: str) -> None:
    """No run waits for ever: each gets the exception, and can be resumed."""
    broken: list[int] = []

    def key() -> bytes:
        time.sleep(0.01)  # the other runs gather for the next batch in the meantime
        if broken:
            raise Panic
        return b"k" * 32

    nodes = traces("abcd")
    trace_b = nodes["b"]

    def breaks(state: State) -> Any:
        broken.append(0)
        return trace_b(state)

    nodes["b"] = breaks
    with SqliteStore(tmp_path / "runs.db", sign_with=key) as store:
        graph = make_graph(
            {name: as_node(node) for name, node in nodes.items()}, store=store, preserve=True, **HOW[how]
        )
        ends = crowd(graph, 5)

        assert [*map(type, ends)] == [Panic] * 5
        assert not store.runs(owned=True)
        nodes["b"] = trace_b
        broken.clear()
        graph = make_graph(nodes, store=store, preserve=True, **HOW[how])
        for n in range(5):
            assert list(graph.run(State({"n": n}, run_id=f"run-{n}"))["trace"]) == list("abcd")


class Gate:
    """Where all runs wait for one of them, so that it saves together with others: not first, which would be alone."""

    def __init__(self) -> None:
        self._is_open = asyncio.Event()

    async def passed(self) -> None:
        """Wait until it is open."""
        await self._is_open.wait()

    async def opened(self) -> None:
        """Open it, and let the others go first."""
        self._is_open.set()
        await asyncio.sleep(0)


@pytest.mark.parametrize("by", ["this process", "another one"])
def test_a_run_that_is_cancelled(store: Any, by: str) -> None:
    """It stops before the next node, and the others do not. What another process says is heard at the next save."""
    begun: list[int] = []
    gate, graph = Gate(), cast(Any, None)

    async def cancels(state: State) -> dict[str, Any]:
        if state["n"] != 3:
            await gate.passed()
            return {}
        if by == "this process":
            await asyncio.to_thread(graph.cancel, "run-3")
        else:
            await asyncio.to_thread(table_of(store).set_cancelled, "run-3", True, None)
        await gate.opened()
        return {}

    async def begins(state: State) -> dict[str, Any]:
        begun.append(state["n"])
        return {}

    nodes = {**async_traces("a"), "b": cancels, "c": begins}
    graph = make_graph(nodes, chain("abc"), store=store, preserve=True)
    found = crowd(graph)

    assert isinstance(found[3], RunCancelledError)
    assert sorted(begun) == [n for n in range(RUNS) if n != 3]
