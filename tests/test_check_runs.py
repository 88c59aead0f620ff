"""Before a deployment, a graph lists the stored runs that it could not continue."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stategraph import (
    CheckpointStore,
    ExecutionError,
    InterruptNode,
    MapNode,
    RunCheck,
    State,
    StateGraph,
)
from stategraph.stores.memory import MemoryStore
from stategraph.stores.sqlite import SqliteStore
from stategraph.testing import assert_upgrades, recorded_store
from tests.scenarios import Scene, make_graph, raises, trace, traces
from tests.test_versions import DATA, greets, versioned


@pytest.fixture
def store(tmp_path: Path) -> Iterator[CheckpointStore]:
    with SqliteStore(tmp_path / "runs.db") as opened:
        yield opened


def problems(graph: StateGraph, store: CheckpointStore | None = None) -> dict[str, str]:
    """Return the problems of each run that is not complete."""
    return {check.run_id: " ".join(check.problems) for check in graph.check_runs(store)}


def test_each_run_that_is_not_complete(any_play: Scene) -> None:
    """Runs of every status are checked, and those of other graphs are not; a declaration helps them."""
    store = any_play.store
    nodes = {"a": trace("a"), "ask": InterruptNode(None, "ok"), "b": trace("b")}
    graph = make_graph(nodes, store=store, preserve=True)
    for run_id in ("paused", "cancelled", "complete"):
        graph.execute(State(run_id=run_id))
    graph.cancel("cancelled")
    graph.resume("complete", {"ok": True})
    graph.submit(State(run_id="submitted"))
    with pytest.raises(ExecutionError):
        make_graph({**nodes, "a": raises(ValueError())}, store=store).execute(State(run_id="failed"))
    make_graph(nodes, store=store, name="other").execute(State(run_id="another"))
    changed = make_graph({"a": trace("a"), "approve": InterruptNode(None, "ok"), "b": trace("b")}, store=store)
    names = ["cancelled", "failed", "paused", "submitted"]

    assert sorted(graph.check_runs(), key=lambda check: check.run_id) == [RunCheck(name, ok=True) for name in names]
    before = {run_id: store.load(run_id) for run_id in store.list()}
    found = problems(changed)
    assert sorted(found) == names
    assert all("'ask'" in problem and "migrate" in problem for problem in found.values())
    assert {run_id: store.load(run_id) for run_id in store.list()} == before
    changed.renamed({"ask": "approve"})
    assert all(check.ok for check in changed.check_runs())


def test_nested_and_half_done_runs(play: Scene) -> None:
    """The problem names the nested run, or the parts that are done; all of them are named at once."""

    def fails(item: int) -> int:
        return 1 // item

    def make(*inner: str, kind: Any = None) -> StateGraph:
        nested = make_graph({**traces(inner), "ask": InterruptNode(None, "ok")}, store=play.store, name="nested")
        over = MapNode(nested.as_node(), over="items", into="out")
        return make_graph({"each": over, "end": trace("end")}, store=play.store, preserve=True)

    def half_done(node: Any) -> StateGraph:
        return make_graph({"half": node, "end": trace("end")}, store=play.store, name="half", preserve=True)

    play.call(make("a"), "execute", State({"items": [{"n": 1}, {"n": 2}]}, run_id="nested"))
    with pytest.raises(ExecutionError):
        half = half_done(MapNode(fails, over="items", into="out", max_workers=1))
        play.call(half, "execute", State({"items": [1, 0]}, run_id="half"))

    (check,) = make("x", "y").check_runs()
    assert sorted(problem.split("~")[1] for problem in check.problems) == ["0", "1"]
    assert all("migrate={'each/a'" in problem for problem in check.problems)
    assert problems(half) == {"half": ""}
    assert (
        "parts of node 'half' are done: 0" in problems(half_done(trace("half")))["half"]
        or "is a function now" in (problems(half_done(trace("half")))["half"])
    )


def test_runs_that_change_meanwhile(any_play: Scene) -> None:
    """A run that is deleted or completes before it is checked is left out; one that goes on is checked as it is."""
    nodes = {"ask": InterruptNode(None, "ok"), "again": InterruptNode(None, "more"), "end": trace("end")}
    graph = make_graph(nodes, store=any_play.store, preserve=True)
    for run_id in "abcde":
        graph.execute(State(run_id=run_id))
    changed = make_graph({**nodes, "and": trace("and")}, store=any_play.store)
    checks = changed.check_runs()

    seen = next(checks).run_id
    gone, done, on, left = sorted({*"abcde"} - {seen})
    any_play.store.delete(gone)
    graph.resume(graph.resume(done, {"ok": True}).run_id, {"more": True})
    graph.resume(on, {"ok": True})

    assert {check.run_id: check.ok for check in checks} == {on: False, left: False}


def test_versions_and_another_store(store: CheckpointStore) -> None:
    """A missing upgrade is named; the graph may have another store."""
    greets(1, store).execute(State(DATA, run_id="r"))
    assert problems(greets(2, MemoryStore()), store) == {"r": ""}
    newest = versioned({"first": print, "ask": InterruptNode(None, "ok"), "greet": print}, 9, MemoryStore())

    assert "graph.upgrade(1, function)" in problems(newest, store)["r"]


def test_a_run_that_cannot_be_read(store: CheckpointStore) -> None:
    """It is reported as one that cannot go on."""
    graph = make_graph({"ask": InterruptNode(None, "ok")}, store=store)
    graph.execute(State({"text": "spoiled"}, run_id="r"))
    path = Path(str(store.path))  # type: ignore[attr-defined]
    store.close()
    for file in path.parent.glob("runs.db*"):
        file.write_bytes(file.read_bytes().replace(b"spoiled", b"damaged"))
    with SqliteStore(path) as damaged:
        assert "damaged" in problems(graph, damaged)["r"]


@pytest.mark.parametrize("form", ["states", "lines", "file"])
def test_recorded_runs_are_fixtures(store: CheckpointStore, tmp_path: Path, form: str) -> None:
    """States and exported runs of an older version check the upgrades of a newer one, and go on in a test."""
    paused = greets(1, store).execute(State(DATA, run_id="r"))
    lines = [*store.export_run("r")]
    (tmp_path / "runs.jsonl").write_text("\n".join(lines), encoding="utf-8")
    recorded: Any = {"states": [paused], "lines": iter(lines), "file": str(tmp_path / "runs.jsonl")}[form]
    newest = versioned({"first": print, "ask": InterruptNode(None, "ok"), "greet": print}, 2, MemoryStore())

    with recorded_store([paused] if form == "states" else lines) as fixtures:
        assert greets(3, fixtures).resume("r", {"ok": True})["person"]["first"] == "Ada"
        path = fixtures.path
    assert not path.exists()
    assert_upgrades(greets(3, MemoryStore()), recorded)
    with pytest.raises(AssertionError, match=r"graph.upgrade\(1, function\)"):
        assert_upgrades(newest, tmp_path / "runs.jsonl")
    for wrong in (paused, [5], None):
        with pytest.raises(
            TypeError, match="recorded runs are a list of States, the lines of an export, or its file, not"
        ):
            assert_upgrades(newest, wrong)  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="no run of graph 'flow'"):
        assert_upgrades(make_graph({"a": trace("a")}, store=store, name="flow"), [paused])
