"""Replays: steps of a run run again on the inputs that are kept, and the differences are returned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from stategraph import (
    CachePolicy,
    CheckpointConfig,
    CheckpointNotFoundError,
    CheckpointStore,
    ConfigError,
    ExecutionError,
    GraphConfig,
    GraphMismatchError,
    InterruptNode,
    MapNode,
    NodeContext,
    State,
    StateGraph,
    UnknownNameError,
    Updates,
)
from stategraph.stores import DiskStore, MemoryStore, Replayed, SqliteStore
from tests.scenarios import RUN, FourMethodStore, call_async


@pytest.fixture(params=[MemoryStore, SqliteStore, DiskStore])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CheckpointStore]:
    with MemoryStore() if request.param is MemoryStore else request.param(tmp_path / "runs") as opened:
        yield opened


def chain(
    store: CheckpointStore, nodes: Mapping[str, Any], *, version: int = 0, cache: Any = None, **checkpoint: Any
) -> StateGraph:
    """Return a graph that keeps all steps."""
    how = CheckpointConfig(**{"interval": 1, "preserve": True, "retention": "full", **checkpoint})
    graph = StateGraph(GraphConfig("flow", version=version, checkpoint=how), store=store)
    for name, node in nodes.items():
        graph.add_node(name, node, cache=cache if name == "cached" else None, persist_chunks=name == "tell")
    graph.add_sequence(*nodes)
    graph.set_entry_point(next(iter(nodes)))
    graph.set_exit_point([*nodes][-1])
    return graph


def everything(store: CheckpointStore) -> Any:
    """Return all that a store has of the run."""
    return store.load(RUN), store.history(RUN), store.entries(RUN), store.list()


def steps_of(replayed: list[Replayed]) -> list[tuple[int, str, str]]:
    return [(one.step, one.node, str(one.error or "")) for one in replayed]


def changed(one: Replayed) -> dict[str, tuple[Any, Any]]:
    assert one.difference is not None, one.error
    assert (one.difference.added, one.difference.removed) == ({}, {})
    return one.difference.changed


def test_changed_nodes(store: CheckpointStore, driver: Any) -> None:
    """Each step begins with its own kept input, whatever the step before it returns now. Nothing is saved."""
    ask = InterruptNode(None, "ok")
    old = chain(store, {"a": lambda state: {"n": 1}, "ask": ask, "b": lambda state: {"m": state["n"] + 1}})
    old.execute(State(run_id=RUN))
    old.resume(RUN, {"ok": True})
    kept = everything(store)

    async def later(state: State, context: NodeContext) -> dict[str, Any]:
        return {"m": state["n"] * context.deps, "more": state["ok"]}

    node: Any = later if driver is call_async else lambda state, context: {"m": context.deps, "more": state["ok"]}
    new = chain(store, {"a": lambda state: {"n": 9}, "ask": ask, "b": node})
    first, second, third = driver(new, "replay", RUN, deps=5)

    assert steps_of([first, second, third]) == [(1, "a", ""), (2, "ask", ""), (3, "b", "")]
    assert first.after is not None
    assert (first.before["n"], first.after["n"]) == (1, 9)
    assert (first.after.step, first.after.checkpoint_node, first.after.status) == (1, "a", first.before.status)
    assert (changed(first), changed(second)) == ({"n": (1, 9)}, {})
    assert third.difference is not None
    assert (third.difference.added, third.difference.changed) == ({"more": True}, {"m": (2, 5)})
    assert steps_of(driver(new, "replay", RUN, ["a"])) == [(1, "a", "")]
    assert everything(store) == kept


def test_parts_chunks_and_caches(store: CheckpointStore, tmp_path: Path) -> None:
    """Items, nested graphs and generators run again; results of caches are not used, and chunks are not kept."""
    calls: list[Any] = []

    def count(call: Any) -> int:
        calls.append(call)
        return len(calls)

    def tells(state: State) -> Iterator[Any]:
        yield from "ab"
        yield Updates({"told": count("tell")})

    nodes = {
        "map": MapNode(count, over="items", into="out", max_workers=1),
        "nest": chain(store, {"in": lambda state: {"inside": count("in")}}).as_node(),
        "cached": lambda state: {"cached": count("cached")},
        "tell": tells,
    }
    graph = chain(store, nodes, cache=CachePolicy(["items"], path=str(tmp_path / "cache")))
    graph.execute(State({"items": [1, 2]}, run_id=RUN))
    kept, before = everything(store), [*calls]

    found = graph.replay(RUN)

    assert steps_of(found) == [(1, "map", ""), (2, "nest", ""), (3, "cached", ""), (4, "tell", "")]
    assert [{*changed(one)} for one in found] == [{"out"}, {"inside"}, {"cached"}, {"told"}]
    assert (calls[len(before) :], everything(store)) == (before, kept)


def test_effects_are_not_done(store: CheckpointStore) -> None:
    """An effect is an error of its step that names it, unless effects are to be called again."""
    calls: list[str] = []

    def pay(state: State, context: NodeContext) -> dict[str, Any]:
        def charge() -> int:
            calls.append(context.idempotency_key)
            return len(calls)

        return {"paid": context.effect("charge", charge)}

    graph = chain(store, {"pay": pay, "end": lambda state: {}})
    graph.execute(State(run_id=RUN))
    kept, key = everything(store), calls[0]

    first, second = graph.replay(RUN)
    assert "effect 'charge' of node 'pay'" in str(first.error)
    assert "repeat_effects=True" in str(first.error)
    assert (first.after, first.difference, second.error, calls) == (None, None, None, [key])
    first, _ = graph.replay(RUN, repeat_effects=True)
    assert (changed(first), calls) == ({"paid": (1, 2)}, [key, key])
    assert everything(store) == kept


def test_what_is_kept_decides(tmp_path: Path) -> None:
    """Steps of a run that is not complete, after a rollback, of an older version: each as it counts now."""
    with SqliteStore(tmp_path / "runs.db") as store:
        nodes: dict[str, Any] = {"a": lambda state: {"n": state["n"] + 1}, "b": lambda state: {"m": state["n"]}}
        broken = chain(store, {**nodes, "c": lambda state: 1 / state["zero"]})
        with pytest.raises(ExecutionError):
            broken.execute(State({"n": 1, "zero": 0}, run_id=RUN))
        store.rollback(RUN, 1)
        with pytest.raises(ExecutionError):
            broken.resume(RUN, {"n": 5})

        newer = chain(store, {"a": nodes["a"], "late": lambda state: {"m": state["number"]}, "c": print}, version=2)
        with pytest.raises(GraphMismatchError, match=r"graph.upgrade\(1"):
            newer.replay(RUN)
        newer.upgrade(1, lambda data: {**data, "number": data["n"] * 10})
        newer.renamed({"b": "late"})
        first, second = newer.replay(RUN)
        assert (first.before["n"], first.error, second.node) == (2, None, "late")
        assert changed(second) == {"m": (5, 50)}

        chain(store, nodes, retention="latest").execute(State({"n": 1}, run_id="other"))
        assert chain(store, nodes).replay("other") == []


def test_keys_that_are_not_saved(tmp_path: Path) -> None:
    """Keys that steps need and the store does not have are computed again; differences are of saved keys."""
    with SqliteStore(tmp_path / "runs.db") as store:

        def grow(state: State, context: NodeContext) -> dict[str, Any]:
            context.status("growing")
            return {"big": [1] * state["n"]}

        measure = lambda state: {"m": len(state["big"]) * state["factor"]}  # noqa: E731
        graph = chain(store, {"a": grow, "b": measure}, persist=["n", "m"])
        graph.set_defaults({"factor": 2})
        graph.execute(State({"n": 3}, run_id=RUN))

        assert [changed(one) for one in graph.replay(RUN)] == [{}, {}]


def test_what_cannot_be_replayed(store: CheckpointStore, driver: Any) -> None:
    """A node that the graph lacks, no run and a run of another graph are errors before anything runs."""
    graph = chain(store, {"a": lambda state: {}})
    graph.execute(State(run_id=RUN))

    with pytest.raises(UnknownNameError, match="no node is named 'b'"):
        driver(graph, "replay", RUN, nodes=["a", "b"])
    with pytest.raises(ConfigError, match=r"nodes: 'a' is not allowed; a list of names of nodes, as in \['a'\]"):
        driver(graph, "replay", RUN, nodes="a")
    with pytest.raises(CheckpointNotFoundError):
        driver(graph, "replay", "another")
    other = StateGraph("other", store=store)
    other.add_sequence(dict)
    other.set_entry_point("dict")
    other.set_exit_point("dict")
    with pytest.raises(GraphMismatchError, match="graph 'flow'"):
        driver(other, "replay", RUN)
    least = chain(FourMethodStore(), {"a": lambda state: {}}, retention="latest")
    least.execute(State(run_id=RUN))
    assert driver(least, "replay", RUN) == []
