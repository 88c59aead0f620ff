"""A value whose class is gone is carried as it was stored, through steps that do not read it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest

from stategraph import (
    CheckpointStore,
    ExecutionError,
    FormatError,
    InterruptNode,
    MapNode,
    State,
    StateGraph,
    register_type,
)
from stategraph._values import registered_types
from stategraph.stores import SqliteStore
from stategraph.testing import is_same
from tests.conftest import make_store
from tests.scenarios import make_graph


@register_type(name="app.Plan")
@attrs.define
class Plan:
    steps: list[Any]


@register_type
@attrs.define
class Holder:
    it: Any


PLANS: dict[str, Any] = {
    "plan": Plan([1, (2,)]),
    "plans": [{"deep": (Plan([]),)}, {Holder(1).it: Plan([Plan([3])])}],
    "held": Holder(Plan([4])),
}

STORES = ("disk", "sqlite", "sqlite, json", "sqlite, signed", "postgres", "redis")


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Return a durable store of each kind."""
    kind, _, how = request.param.partition(", ")
    known: dict[str, Any] = {"json": {"serializer": "json"}, "signed": {"sign_with": lambda: b"k" * 32}}
    with SqliteStore(tmp_path / "runs.db", **known[how]) if how else make_store(kind, tmp_path) as store:
        yield store


@pytest.fixture
def gone(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function after which the process does not know the class."""
    return lambda: monkeypatch.delitem(registered_types._by_name, "app.Plan")


def graph_of(store: CheckpointStore, *last: Any, **how: Any) -> StateGraph:
    """Return a graph that makes plans, asks, and goes on."""
    nodes: dict[str, Any] = {
        "make": lambda state: dict(PLANS),
        "ask": InterruptNode(None, "ok"),
        "note": lambda state: {"n": 1},
    }
    return make_graph(
        {**nodes, **dict(zip(("b", "c"), last, strict=False))},
        **{"store": store, "preserve": True, "retention": "full", **how},
    )


def test_steps_that_do_not_read_it_leave_it_as_it_was(store: Any, gone: Any, monkeypatch: Any, tmp_path: Path) -> None:
    """A resume, later deltas, a fork, an export and verifying need no class; where it is known again, all is there.
    A key that is replaced is an ordinary one again."""
    graph = graph_of(store, lambda state: state.set("other", state["n"]), lambda state: {"plan": "replaced"})
    graph.execute(State(run_id="r"))
    gone()

    final = graph.resume("r", {"ok": True})
    assert "Plan(steps=[4])" in repr(final)  # how a State looks needs no class either
    store.fork("r", "f", 5)
    store.rollback("f", 4)
    store.cancel("f")
    with SqliteStore(tmp_path / "other.db", sign_with=(lambda: b"k" * 32) if store.signing_key else None) as other:
        other.import_runs(store.export_run("f"))
        assert not store.verify().damaged
        assert (final["other"], final["plan"]) == (1, "replaced")
        with pytest.raises(FormatError, match=r"app\.Plan"):
            store.load("r")
        monkeypatch.undo()
        for loaded in store.load("r", 4), store.load("f"), other.load("f"):
            assert is_same({key: loaded[key] for key in PLANS}, PLANS)
    assert is_same(store.load("r")["plans"], PLANS["plans"])


READS: dict[str, Any] = {
    "key": lambda state: state["held"],
    "get": lambda state: state.get("plan"),
    "items": dict,
    "values": lambda state: list(state.values()),
    "all": lambda state: {**state},
    "map": MapNode(lambda item: item, over="plans", into="done"),
}


@pytest.mark.parametrize("read", READS)
def test_a_node_that_reads_it_fails_and_says_what_is_missing(read: str, tmp_path: Path) -> None:
    """The error names the key, the class and the way out; once the class is known, a resume goes on."""
    node = READS[read] if read == "map" else lambda state: {"read": bool(READS[read](state))}
    with SqliteStore(tmp_path / "runs.db") as store:
        graph = graph_of(store, node)
        graph.execute(State(run_id="r"))
        with pytest.MonkeyPatch.context() as patch:
            patch.delitem(registered_types._by_name, "app.Plan")
            with pytest.raises(ExecutionError, match=r"value '(plan|plans|held)' .*app\.Plan.*import the module"):
                graph.resume("r", {"ok": True})

        assert graph.resume("r").status == "completed"


def test_a_nested_graph_carries_it(tmp_path: Path) -> None:
    """In its own State, while it waits, as its input and in its result."""
    with SqliteStore(tmp_path / "runs.db") as store:
        inner = graph_of(store, name="inner")
        nodes = {"make": lambda state: {"mine": Plan([])}, "inner": inner.as_node()}
        graph = make_graph(nodes, store=store, preserve=True)
        graph.execute(State(run_id="r"))
        with pytest.MonkeyPatch.context() as patch:
            patch.delitem(registered_types._by_name, "app.Plan")
            assert graph.resume("r", {"ok": True})["n"] == 1

        loaded = store.load("r")
        assert is_same({key: loaded[key] for key in (*PLANS, "mine")}, {**PLANS, "mine": Plan([])})


def test_a_schema_lets_it_pass_and_an_object_of_it_needs_it(gone: Any, tmp_path: Path) -> None:
    """Checks of a resume leave a carried value alone; a node that gets an object of the schema reads all of it."""

    @attrs.frozen
    class Typed:
        plan: Any = None
        plans: list[Any] = attrs.Factory(list)
        held: Any = None
        ok: bool = False
        n: int = 0

    def takes(typed: Typed) -> dict[str, Any]:
        return {}

    with SqliteStore(tmp_path / "runs.db") as store:
        graph = graph_of(store, lambda state: {"n": 2}, takes, schema=Typed)
        graph.execute(State(run_id="r"))
        gone()

        with pytest.raises(ExecutionError, match=r"app\.Plan") as caught:
            graph.resume("r", {"ok": True})

    assert isinstance(caught.value.__cause__, FormatError)
    assert caught.value.state is not None
    assert caught.value.state["n"] == 2
