"""Structures of graphs, which stores keep for pictures: entry, exits, nodes and nested graphs."""

import sqlite3
from itertools import pairwise
from typing import Any

import pytest

from stategraph import (
    CheckpointConfig,
    ExecutionError,
    GraphConfig,
    InterruptNode,
    MapNode,
    ParallelNode,
    RetryPolicy,
    State,
    StateGraph,
    key_equals,
)
from stategraph.stores import get_checkpoint_store
from stategraph.stores.sqlite import SqliteStore


def is_short(state):
    return len(state.get("text", "")) < 10


def drawn(structure):
    """Return all fields of a structure, also those that are not compared."""
    outlines = {
        name: (outline.kind, outline.notes, outline.nested and drawn(outline.nested))
        for name, outline in structure.outlines.items()
    }
    return structure, [edge.shown for edge in structure.edges], structure.entry, structure.exits, outlines


def kept(store, *which):
    structure = store.load(*which).structure
    assert structure is not None
    return structure


def config(name):
    return GraphConfig(name, observer="noop", checkpoint=CheckpointConfig(interval=1, preserve=True))


@pytest.mark.parametrize("serializer", ["msgpack", "json"])
def test_a_structure_is_written_once_for_all_rows_that_build_on_it(serializer, tmp_path):
    """Pauses, answers and the steps after them write what has changed; the copy of an export says the same."""
    with SqliteStore(tmp_path / "one.db", serializer=serializer) as one, SqliteStore(tmp_path / "other.db") as other:
        checkpoint = CheckpointConfig(interval=1, retention="full", preserve=True)
        graph = StateGraph(GraphConfig("long", observer="noop", checkpoint=checkpoint), store=one)
        names = [f"node-{number}" for number in range(60)]
        for name in names:
            graph.add_node(name, InterruptNode(None, name) if name in ("node-2", "node-4") else lambda state: {})
        for name, after in pairwise(names):
            graph.add_edge(name, after)
        graph.set_entry_point("node-0")
        graph.set_exit_point("node-59")
        graph.execute(State(run_id="a"), labels={"of": "a test"})
        graph.resume("a", {"node-2": 1}, by="ann")
        done = graph.resume("a", {"node-4": 2})
        rows, structure = one.history("a"), drawn(graph.execute(State(run_id="b")).structure)
        other.import_runs(one.export_run("a"))

        for row in rows:
            state = one.load("a", row.step, row.revision)
            assert state == other.load("a", row.step, row.revision)
            assert drawn(state.structure) == structure
            assert state.labels == {"of": "a test"}
        assert one.load("a") == done
    with sqlite3.connect(tmp_path / "one.db") as connection:
        sizes = connection.execute("SELECT length(payload) FROM checkpoint WHERE base <> id & 0xFFFFFFFF").fetchall()
    assert max(sizes) < (600,)


def graph_of_all_kinds(store=None):
    nested = StateGraph(config("translate"))
    nested.add_node("split", lambda state: {})
    nested.add_node("join", lambda state: {})
    nested.add_edge("split", "join", is_short)
    nested.set_entry_point("split")
    nested.set_exit_point("join")
    graph = StateGraph(config("letters"), store=store)
    graph.add_node("begin", lambda state: {"items": [1]}, retry=RetryPolicy(4), timeout=2.5, on_error="mend")
    graph.add_node("each", MapNode(lambda item: item, "items", "done"))
    graph.add_node("sides", ParallelNode({"left": lambda state: {}, "right": lambda state: {}}))
    graph.add_node("nested", nested.as_node())
    graph.add_node("mend", lambda state: {})
    graph.add_node("ask", InterruptNode(None, "verdict"))
    for source, target in (("begin", "each"), ("each", "sides"), ("sides", "nested"), ("mend", "ask")):
        graph.add_edge(source, target)
    graph.add_edge("nested", "ask", key_equals("to", "unknown"))
    graph.add_edge("nested", "ask")
    graph.set_entry_point("begin")
    graph.set_exit_point("ask")
    return graph


STORES = [
    pytest.param("memory", {}, id="memory"),
    *(
        pytest.param(store, {"serializer": serializer}, id=f"{store}-{serializer}")
        for store in ("sqlite", "disk")
        for serializer in ("msgpack", "json")
    ),
]


@pytest.mark.parametrize(("store", "options"), STORES)
def test_a_store_keeps_what_a_picture_needs(store, options, tmp_path):
    """The store alone is enough to draw the graph."""
    path: dict[str, Any] = {} if store == "memory" else {"path": str(tmp_path / "runs")}
    with get_checkpoint_store(store, **path, **options) as opened:
        graph = graph_of_all_kinds(opened)
        graph.execute(State(run_id="r"))
        structure = kept(opened, "r")

    assert drawn(structure) == drawn(graph.structure)
    assert (structure.entry, structure.exits) == ("begin", ("ask",))
    assert structure.outlines["begin"].notes == ("up to 4 attempts", "at most 2.5 s")
    kinds = {name: outline.kind for name, outline in structure.outlines.items()}
    assert kinds == {"begin": "function", "each": "map", "sides": "parallel", "nested": "graph", "ask": "pause"}
    assert structure.outlines["sides"].nested.nodes == ("left", "right")
    assert structure.outlines["nested"].nested.entry == "split"
    assert structure.outlines["nested"].nested.edges[0].shown == "is_short"


def graph_with(store, node, **policies):
    checkpoint = CheckpointConfig(interval=1, retention="full", preserve=True)
    graph = StateGraph(GraphConfig("g", observer="noop", checkpoint=checkpoint), store=store)
    graph.add_node("first", lambda state: {"items": [1, 2]})
    graph.add_node("second", node, **policies)
    graph.add_node("third", lambda state: {"third": True})
    graph.add_edge("first", "second")
    graph.add_edge("second", "third")
    graph.set_entry_point("first")
    graph.set_exit_point("third")
    return graph


def test_a_changed_structure_is_kept_again(tmp_path):
    """A structure that is drawn differently is kept again, although its fingerprint is the same."""

    def fails(state):
        raise ValueError("not yet")

    with SqliteStore(tmp_path / "runs.db") as store:
        with pytest.raises(ExecutionError, match="not yet"):
            graph_with(store, fails).execute(State(run_id="r"))
        graph_with(store, lambda state: {}, timeout=2.5).resume("r")

        assert kept(store, "r", 1, 0).outlines == {}
        assert kept(store, "r").outlines["second"].notes == ("at most 2.5 s",)
