"""The step under way: what is known of it while it happens, and parts of it that are done again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stategraph import (
    AnswerError,
    CheckpointStore,
    EntriesNotKeptError,
    ErrorInfo,
    ExecutionError,
    InterruptNode,
    MapNode,
    NodeContext,
    ParallelNode,
    State,
    UnknownNameError,
)
from stategraph._values.entries import Entry
from stategraph.stores import UnderWay
from stategraph.testing import kill_at
from tests.conftest import make_store
from tests.pairs import every_pair
from tests.scenarios import DRIVERS, RUN, FourMethodStore, as_async, make_graph, trace

pytestmark = pytest.mark.timeout(600)

STORES = [("memory", "sync"), ("sqlite", "async"), ("disk", "sync"), ("postgres", "async"), ("redis", "sync")]


@pytest.fixture(params=STORES, ids=" ".join)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[CheckpointStore, Any]]:
    """Every store that keeps entries, and every driver."""
    with make_store(request.param[0], tmp_path) as store:
        yield store, DRIVERS[request.param[1]]


# --------------------------------------------------------------------------- looking in


class TestLookingIn:
    """At the step under way."""

    @every_pair(
        durability=["sync", "async", "exit"], as_node=[lambda node: node, as_async], place=STORES, indirect=["place"]
    )
    def test_a_status_is_there_while_the_node_runs(self, place: Any, durability: str, as_node: Any) -> None:
        """It is durable when it is said, the newest replaces the one before, and the next step has none."""
        store, call = place
        seen: list[UnderWay] = []

        def node(state: State, context: NodeContext) -> dict[str, Any]:
            for page in (1, 2):
                context.status(f"page {page} of 90")
                seen.append(store.under_way(RUN))
            return {}

        def after(state: State) -> dict[str, Any]:
            seen.append(store.under_way(RUN))
            return {}

        graph = make_graph({"a": trace("a"), "read": as_node(node), "after": after}, store=store, durability=durability)
        call(graph, "execute", State(run_id=RUN))

        assert [under_way.statuses for under_way in seen[:2]] == [{"read": f"page {page} of 90"} for page in (1, 2)]
        assert {(under_way.node, under_way.step) for under_way in seen[:2]} == {("read", 2)}
        assert all(under_way.since is not None for under_way in seen[:2])
        if durability == "sync":
            assert (seen[2].statuses, seen[2].step) == ({}, 3)

    def test_items_and_branches(self, place: Any) -> None:
        """Finished, failed, and at work: by the place of each, also of graphs, which have a step of their own."""
        store, call = place

        def item(number: int, context: NodeContext) -> int:
            context.status(f"half of {number}")
            if number == 1:
                raise ValueError("no")
            return number

        inner = make_graph({"x": trace("x"), "y": _fails}, store=store, name="inner")
        items = MapNode(item, over="items", into="out", max_workers=1)
        branches = ParallelNode({"graph": inner, "plain": lambda state: {"p": 1}}, on_failure="finish")
        for name, node in (("map", items), ("branches", branches)):
            graph = make_graph({name: node}, store=store)
            with pytest.raises(ExecutionError):
                call(graph, "execute", State({"items": [0, 1, 2]}, run_id=name))

        under_way = store.under_way("map")
        assert (under_way.done, under_way.failed, under_way.at_work) == (("map/0",), ("map/1",), ())
        assert under_way.statuses == {f"map/{number}": f"half of {number}" for number in range(2)}
        under_way = store.under_way("branches")
        assert (under_way.node, under_way.done) == ("branches", ("branches/plain",))
        assert under_way.failed == ("branches/graph",)
        assert under_way.nested["branches/graph"].step == 2

    def test_effects_and_messages(self, place: Any) -> None:
        """An effect is intended until its outcome is known; a message waits until it is taken in."""
        store, _ = place
        store.save(State(run_id=RUN))
        store.append(RUN, [Entry("effect", {"awaits": False}, 1, "pay", "a")])
        store.append(RUN, [Entry("effect", {"awaits": False, "result": 3}, 1, "map/3", "b")])
        store.send(RUN, {"n": 1})

        under_way = store.under_way(RUN)

        assert under_way.effects == {"pay/a": "intended", "map/3/b": "done"}
        assert (under_way.messages, under_way.at_work) == (1, ("map/3",))

    def test_live_views_learn_of_it(self, place: Any) -> None:
        """Each entry is a change of the store."""
        store, _ = place
        store.save(State(run_id=RUN))
        token = store.changed_since(None)

        said = [Entry("status", text, 1, "n", "status") for text in "ab"]
        for entry in (*said, Entry("message", 1)):
            store.append(RUN, [entry])
            token, before = store.changed_since(token), token
            assert token is not None, before

    def test_people_see_it(self, tmp_path: Path) -> None:
        """In `stategraph show`, for people and for programs, and on the page; `stategraph resume` does parts again."""
        pytest.importorskip("click")
        web = pytest.importorskip("stategraph.web")
        from tests.cli.shop import call
        from tests.web.conftest import let_in

        with make_store("sqlite", tmp_path) as store:
            store.save(State(run_id=RUN))
            store.append(RUN, [Entry("status", "page <45> of 90", 1, "read/3", "status")])
            store.append(RUN, [Entry("part", 1, 1, "read", "2", "0a"), Entry("effect", {}, 1, "read/3", "mail")])
            store.send(RUN, {"n": 1})
            at = ("--store", str(tmp_path / "runs.db"))

            shown, as_json = call("show", RUN, *at).out, json.loads(call("show", RUN, "--json", *at).out)
            html = let_in(web.app(store)).get("/run", params={"id": RUN}).text

        for line in (
            "done: 1: read/2",
            "status of read/3: page <45> of 90",
            "read/3/mail intended",
            "messages: 1 wait",
        ):
            assert line in shown
        assert as_json["under_way"]["statuses"] == {"read/3": "page <45> of 90"}
        assert (as_json["under_way"]["messages"], as_json["under_way"]["done"]) == (1, ["read/2"])
        assert "page &lt;45&gt; of 90" in html

    def test_a_store_without_entries(self) -> None:
        """It refuses a status, and knows no more than its States and owners."""
        graph = make_graph({"a": lambda state, context: context.status("x")}, store=FourMethodStore())
        with pytest.raises(EntriesNotKeptError, match="keeps entries"):
            graph.execute(State(run_id=RUN))
        assert graph.store.under_way(RUN).statuses == {}

    def test_a_run_that_is_not_saved(self) -> None:
        """Its statuses are shown to no one. A status is a text."""
        texts: list[Any] = ["a"]

        def node(state: State, context: NodeContext) -> dict[str, Any]:
            context.status(*texts)
            return {}

        make_graph({"a": node}, store=FourMethodStore(), interval=0).execute(State(run_id=RUN))
        texts[0] = 45
        with pytest.raises(ExecutionError, match="a status is a str, not int"):
            make_graph({"a": node}, store=FourMethodStore(), interval=0).execute(State(run_id=RUN))


def _fails(state: State) -> Any:
    raise ValueError("no")


# --------------------------------------------------------------------------- done again


class Work:
    """Items that count how often they are done, and may be wrong at first."""

    def __init__(self) -> None:
        self.done: list[Any] = []
        self.is_wrong = True

    def item(self, number: int) -> str:
        """Do an item; item 1 fails at first."""
        self.done.append(number)
        if number == 1 and self.is_wrong:
            raise ValueError("no")
        return f"{number}{'?' if self.is_wrong else ''}"

    def last(self, state: State) -> dict[str, Any]:
        """End."""
        return {}


class TestRedo:
    """Parts of the step under way are done again."""

    def test_items_and_collected_failures(self, place: Any) -> None:
        """Those that are named are done again, the others stay as they are."""
        store, call = place
        work = Work()
        graph = crashed(store, call, MapNode(work.item, over="items", into="out", on_error="collect"), work)
        work.is_wrong, before = False, len(work.done)

        final = call(graph, "resume", RUN, redo=["map/1", "map/2"])

        assert sorted(work.done[before:]) == [1, 2]
        assert list(final["out"]) == ["0?", "1", "2"]

    def test_without_redo_they_stay(self, place: Any) -> None:
        """A collected failure is a result."""
        store, call = place
        work = Work()
        graph = crashed(store, call, MapNode(work.item, over="items", into="out", on_error="collect"), work)
        before = len(work.done)

        final = call(graph, "resume", RUN)

        assert (work.done[before:], type(final["out"][1])) == ([], ErrorInfo)

    def test_branches_and_graphs(self, place: Any) -> None:
        """A graph that is complete begins again; parts of a nested graph are named by their path."""
        store, call = place
        work = Work()

        def first(state: State) -> dict[str, Any]:
            work.done.append("first")
            return {"first": 1}

        def branch(state: State) -> dict[str, Any]:
            work.done.append("branch")
            return {"branch": 1}

        inner = make_graph({"first": first}, store=store, name="inner")
        graph = crashed(store, call, ParallelNode({"graph": inner, "plain": branch, "other": lambda state: {}}), work)
        before = len(work.done)

        call(graph, "resume", RUN, redo=["map/graph", "map/plain"])

        assert sorted(work.done[before:]) == ["branch", "first"]

    def test_items_of_a_nested_graph(self, place: Any) -> None:
        """They are named by their path."""
        store, call = place
        work = Work()
        node = MapNode(work.item, over="items", into="out", on_error="collect")
        inner = make_graph({"map": node, "inner last": work.last}, store=store, name="inner")
        graph = crashed(store, call, inner.as_node(), work, at="map/map")
        work.is_wrong, before = False, len(work.done)
        assert store.under_way(RUN).nested["map"].failed == ("map/1",)

        final = call(graph, "resume", RUN, redo=["map/map/1"])

        assert (work.done[before:], list(final["out"])) == ([1], ["0?", "1", "2?"])

    def test_unknown_names_are_refused(self, place: Any) -> None:
        """The error lists the parts that there are, and nothing has changed: not even the parts named beside it."""
        store, call = place
        work = Work()
        graph = crashed(store, call, MapNode(work.item, over="items", into="out", on_error="collect"), work)

        with pytest.raises(UnknownNameError, match=r"'map/7'.*'map/0', 'map/1', 'map/2'"):
            call(graph, "resume", RUN, redo=["map/0", "map/7"])

        before = len(work.done)
        call(graph, "resume", RUN)
        assert work.done[before:] == []

    def test_a_refused_resume_does_nothing_again(self, place: Any) -> None:
        """Its parts stay done."""
        store, call = place
        asks = make_graph({"ask": InterruptNode(None, "go")}, store=store, name="asks")
        graph = make_graph({"both": ParallelNode({"plain": trace("plain"), "asks": asks})}, store=store)
        call(graph, "execute", State(run_id=RUN))

        with pytest.raises(AnswerError):
            call(graph, "resume", RUN, redo=["both/plain"])

        assert store.under_way(RUN).done == ("both/plain",)


def crashed(store: CheckpointStore, call: Callable[..., Any], node: Any, work: Work, at: str = "map") -> Any:
    """Return a graph whose run has crashed when all parts of its first step were done."""
    graph = make_graph({"map": node, "last": work.last}, store=store, preserve=True)
    with kill_at(at, saved=False):
        call(graph, "execute", State({"items": [0, 1, 2]}, run_id=RUN))
    return graph
