"""Runs as lines of JSON are imported completely into a store of any kind, or not at all."""

import json
from contextlib import suppress
from itertools import product
from typing import Any

import pytest

from stategraph import ExecutionError, FormatError, MapNode, RunExistsError, State
from stategraph._values.provenance import ParentStep
from stategraph.errors import CheckpointSaveError
from stategraph.stores import DiskStore, Policy, SqliteStore
from tests import scenarios
from tests.postgres_server import postgres_at
from tests.redis_server import redis_at

STORES: dict[str, Any] = {
    "sqlite": lambda path: SqliteStore(path / "runs.db"),
    "sqlite, signed": lambda path: SqliteStore(path / "runs.db", sign_with=lambda: b"0123456789abcdef"),
    "postgres": postgres_at,
    "disk, json": lambda path: DiskStore(path / "runs", serializer="json"),
}


@pytest.fixture(params=STORES)
def stores(request, tmp_path):
    """Return a store, and another one of the same kind."""
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    with STORES[request.param](tmp_path / "one") as one, STORES[request.param](tmp_path / "other") as other:
        yield one, other


def make_graph(store, calls, retention="full", *, mended=False):
    """Return a graph with a graph within, whose map fails at the third item unless it is mended."""

    def work(item):
        calls.append(item)
        if item == 2 and not mended:
            raise ValueError("no")
        return item * item

    options = {"store": store, "retention": retention, "preserve": True}
    squares = MapNode(work, over="items", into="squares", max_workers=1)
    inner = scenarios.make_graph(
        {"load": lambda state: {"items": [0, 1, 2, 3]}, "map": squares}, name="inner", **options
    )
    nodes = {"begin": lambda state: {"log": ["begun"]}, "inner": inner.as_node()}
    return scenarios.make_graph(nodes, name="outer", **options)


def test_nested_runs_and_finished_parts_are_exported(stores):
    """A run that failed within a map of a nested graph continues there after the import, and repeats nothing."""
    one, other = stores
    calls: list[int] = []
    with pytest.raises(ExecutionError):
        make_graph(one, calls).execute(State(run_id="a"), labels={"customer": "c1"}, by="ann")
    assert calls == [0, 1, 2]

    lines = list(one.export_run("a"))
    assert other.import_runs(lines) == ["a"]

    assert list(other.export_run("a")) == lines
    assert other.load("a") == one.load("a")
    assert other.history("a") == one.history("a")
    assert [row.labels for row in other.runs()] == [{"customer": "c1"}]
    assert {json.loads(line)["run_id"] for line in lines} > {"a"}
    assert other.verify().damaged == ()
    done = make_graph(other, calls, mended=True).resume("a")
    assert done["squares"] == [0, 1, 4, 9]
    assert sorted(calls) == [0, 1, 2, 2, 3]


@pytest.mark.parametrize("retention", ["latest", "full"])
def test_a_complete_run_comes_along_as_it_is_kept(stores, retention):
    """A complete run keeps its history with a rollback and a fork, as far as retention kept it."""
    one, other = stores
    graph = make_graph(one, [], retention, mended=True)
    graph.execute(State(run_id="a"))
    if retention == "full":
        one.rollback("a", 1, by="ann")
        graph.resume("a")
    one.fork("a", "b")

    assert other.import_runs([*one.export_run("a"), "", *one.export_run("b")]) == ["a", "b"]

    for run_id in ("a", "b"):
        assert other.history(run_id) == one.history(run_id)
        for row in one.history(run_id):
            if retention == "full":
                assert other.load(run_id, row.step, row.revision) == one.load(run_id, row.step, row.revision)
            assert other.load(run_id) == one.load(run_id)
    assert other.load("b").parent == one.load("b").parent


def test_lines_in_which_something_is_missing_are_refused(stores):
    """An import with any line missing is refused; a nested run cannot come without its run."""
    one, other = stores
    with pytest.raises(ExecutionError):
        make_graph(one, []).execute(State(run_id="a"))
    lines = list(one.export_run("a"))
    first_nested = next(place for place, line in enumerate(lines) if json.loads(line)["run_id"] != "a")

    last = max(place for place, line in enumerate(lines) if json.loads(line)["type"] == "run")
    cut_off = (lines[:end] for end in range(1, len(lines)))
    for wrong in (lines[1:], lines[first_nested:], lines[last:], [lines[0], *lines[2:]], *cut_off):
        with pytest.raises(FormatError):
            other.import_runs(wrong)
        assert other.runs() == []


def test_an_interrupted_import_goes_on_when_it_is_repeated(stores):
    """Runs that are there just as in the lines are left alone; a run that has gone on since is refused."""
    one, other = stores
    graph = make_graph(one, [])
    for run_id in ("a", "b"):
        with pytest.raises(ExecutionError):
            graph.execute(State(run_id=run_id))
    lines = [line for run_id in ("a", "b") for line in one.export_run(run_id)]

    def interrupted():
        yield from lines[:-1]
        raise OSError("the pipe is closed")

    with pytest.raises(OSError, match="pipe"):
        other.import_runs(interrupted())
    assert other.list() == ["a"]
    assert other.import_runs(lines) == other.list() == ["a", "b"]
    assert [line for run_id in ("a", "b") for line in other.export_run(run_id)] == lines

    make_graph(other, [], mended=True).resume("b")
    with pytest.raises(RunExistsError, match="'b'"):
        other.import_runs(lines)
    assert other.load("b").status == "completed"


_WRONG = [None, True, "text", -1, 1e300, 2**40, 10**400, ["x", 2], {"x": 1}]
"""Values that are of another type, or out of range, somewhere."""


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_a_field_of_another_type_or_range_never_ends_a_list(kind, tmp_path):
    """Whatever stands in a field of a line, the run is refused, or every list and report names it or reads it."""
    (tmp_path / "other").mkdir()
    with SqliteStore(tmp_path / "one.db") as one:
        one.retain("a", Policy("windowed", window=3, ttl=1e9))
        one.save(State({"n": 1}, run_id="a", step=1, graph="g", labels={"x": "y"}, parent=ParentStep("x", 1)))
        one.save(State({"n": 2}, run_id="a", step=2, graph="g", labels={"x": "y"}, status="completed"))
        lines = [json.loads(line) for line in one.export_run("a")]

    store = redis_at(tmp_path / "other") if kind == "redis" else STORES[kind](tmp_path / "other")
    with store:
        store.save(State(run_id="b", step=1))
        for place, line in enumerate(lines):
            for name, wrong in product(sorted(line.keys() - {"type", "run_id"}), _WRONG):
                changed = [*lines[:place], line | {name: wrong}, *lines[place + 1 :]]
                with suppress(FormatError, CheckpointSaveError):
                    store.import_runs(map(json.dumps, changed))

                where = f"{name} of line {place + 1}: {wrong!r}"
                listed = [run.run_id for run in store.iter_runs()]
                damaged = [damage.run_id for damage in store.verify().damaged]
                assert set(store.list()) >= {"b"}, where
                assert "b" in listed, where
                if "a" in listed:
                    assert (store.load("a").run_id, len(store.history("a"))) == ("a", 2), where
                    assert list(store.export_run("a")), where
                assert (damaged, store.prune().damaged) == ([], ()), where
                store.delete("a")
