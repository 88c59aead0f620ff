"""Versions of a graph: data of older runs are upgraded when they go on, by every way to go on."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypedDict

import pytest

from stategraph import (
    CheckpointConfig,
    CheckpointStore,
    ConfigError,
    ExecutionError,
    GraphConfig,
    GraphMismatchError,
    InterruptNode,
    MapNode,
    NodeContext,
    ParallelNode,
    Recovered,
    SchemaError,
    State,
    StateGraph,
)
from stategraph._values.entries import Entry
from stategraph.stores.sqlite import SqliteStore
from tests.scenarios import RUN, Scene
from tests.test_declarations import WAYS

DATA = {"name": "Ada Lovelace", "born": 1815}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[CheckpointStore]:
    with SqliteStore(tmp_path / "runs.db") as opened:
        yield opened


def versioned(
    nodes: Mapping[str, Any], version: int, store: CheckpointStore, *, name: str = "old", schema: type | None = None
) -> StateGraph:
    """Return a graph of a version, a chain of these nodes."""
    config = GraphConfig(name, version=version, checkpoint=CheckpointConfig(interval=1, preserve=True))
    graph = StateGraph(config, store=store, schema=schema)
    for node, function in nodes.items():
        graph.add_node(node, function)
    graph.add_sequence(*nodes)
    graph.set_entry_point(next(iter(nodes)))
    graph.set_exit_point([*nodes][-1])
    return graph


def greets(version: int, store: CheckpointStore, ask: str = "ok") -> StateGraph:
    """Return a graph that greets a person, whose name has another form in each version."""
    greetings: dict[int, Callable[[State], str]] = {
        0: lambda state: state["name"],
        1: lambda state: state["name"],
        2: lambda state: state["names"][0],
        3: lambda state: state["person"]["first"],
    }
    greet = lambda state: {"greeted": [*state.get("greeted", []), greetings[version](state)]}  # noqa: E731
    nodes = {"first": greet, "ask": InterruptNode(None, ask), "greet": greet}
    graph = versioned(nodes, version, store)
    if version > 1:
        graph.upgrade(1, split)
    if version > 2:
        graph.upgrade(2, put_together)
    return graph


def split(data: dict[str, Any]) -> dict[str, Any]:
    data["names"] = data.pop("name").split()
    return data


def put_together(data: dict[str, Any]) -> dict[str, Any]:
    first, last = data.pop("names")
    return {**data, "person": {"first": first, "last": last}}


class TestEveryWay:
    """A run goes on with the data of the version of the graph, by every way to go on."""

    @pytest.mark.parametrize("before", [0, 1, 2])
    @pytest.mark.parametrize("way", WAYS)
    def test_through_each_upgrade(self, store: CheckpointStore, way: str, before: int) -> None:
        """Upgrades are applied in order; a run without a version counts as version 1."""
        data = {"names": ["Ada", "Lovelace"], "born": 1815} if before == 2 else DATA
        greets(before, store).execute(State(data, run_id=RUN))

        final = WAYS[way](greets(3, store))

        assert (final["person"], final["born"]) == ({"first": "Ada", "last": "Lovelace"}, 1815)
        assert (final["greeted"][1:], final.status, final.keys() & {"name", "names"}) == (["Ada"], "completed", set())
        assert final.structure is not None
        assert final.structure.version == 3

    def test_in_any_store(self, any_play: Scene) -> None:
        """What an upgrade makes is saved before the next node runs, once."""
        any_play.execute(greets(1, any_play.store), State(DATA, run_id=RUN))
        calls: list[int] = []

        def counted(data: dict[str, Any]) -> dict[str, Any]:
            calls.append(1)
            return split(data)

        graph = versioned({"first": print, "ask": InterruptNode(None, "ok"), "greet": greeted}, 2, any_play.store)
        graph.upgrade(1, counted)
        with pytest.raises(ValueError, match="no answer"):
            any_play.resume(graph)
        assert "name" in any_play.store.load(RUN)

        assert any_play.resume(graph, {"ok": True})["greeted"] == "Ada"
        assert len(calls) == 2  # one for each call that goes on with it

    def test_a_new_turn_of_a_complete_run(self, any_play: Scene) -> None:
        """The data that a conversation goes on with are upgraded, also those that `execute` is given again."""
        names = {1: lambda state: {"said": state["name"]}, 2: lambda state: {"said": state["names"][0]}}
        old, new = (versioned({"say": names[version]}, version, any_play.store) for version in (1, 2))
        new.upgrade(1, split)
        done = any_play.execute(old, State(DATA, run_id=RUN))

        assert any_play.turn(new, {"born": 1})["said"] == "Ada"
        any_play.store.delete(RUN)
        any_play.store.save(done)
        assert any_play.execute(new, any_play.store.load(RUN))["said"] == "Ada"

    def test_a_run_that_only_began(self, any_play: Scene) -> None:
        """A submitted run is upgraded; `run` with its input in the new form is the same run."""
        greets(1, any_play.store).submit(State(DATA, run_id=RUN))
        graph = greets(2, any_play.store)

        paused = any_play.call(graph, "run", State({"names": ["Ada", "Lovelace"], "born": 1815}, run_id=RUN))

        assert (paused["greeted"], paused.status) == (["Ada"], "paused")
        assert any_play.resume(graph, {"ok": 1}).status == "completed"


def test_messages_that_wait_are_not_upgraded(store: CheckpointStore) -> None:
    """The graph takes them in as they were sent; `on_message` can give them the new keys."""
    old, new = greets(1, store), greets(2, store)
    old.execute(State(DATA, run_id=RUN))
    old.send(RUN, {"name": "Grace Hopper"})
    new.on_message(lambda state, updates: split({**updates}) if "name" in updates else updates)

    final = new.resume(RUN, {"ok": True})

    assert (final["names"], final["greeted"], "name" in final) == (
        ["Grace", "Hopper"],
        ["Ada Lovelace", "Grace"],
        False,
    )


class TestServes:
    """Workers of an old and a new version continue runs of one store side by side."""

    def test_each_serves_its_versions(self, any_play: Scene) -> None:
        """A worker takes up runs of the versions that it serves, which get its own version, and no others."""
        store, forms = any_play.store, {0: DATA, 1: DATA, 2: split({**DATA}), 3: put_together(split({**DATA}))}
        for version, data in forms.items():
            greets(version, store).submit(State(data, run_id=f"of-{version}"))
        new, old = greets(3, store), greets(1, store)

        assert {one.run_id for one in new.recover(serves=[2, 3])} == {"of-2", "of-3"}
        assert [*new.recover(serves=[2, 3])] == []
        assert {store.load(run_id).status for run_id in ("of-0", "of-1")} == {"active"}
        assert {one.run_id for one in asyncio.run(swept(old, serves={1}))} == {"of-0", "of-1"}
        assert [store.load(f"of-{version}").structure.version for version in forms] == [1, 1, 3, 3]  # type: ignore[union-attr]

    def test_stored_answers_and_turns(self, store: CheckpointStore) -> None:
        """An old worker leaves those to runs that a new one has taken up."""
        old, new = greets(1, store), greets(2, store)
        for run_id in ("answered", "turned"):
            new.execute(State(split({**DATA}), run_id=run_id))
            new.answer(run_id, True)
        new.resume("turned")
        store.append("turned", [Entry("turn", [{"born": 1}, "enqueue", 0], name="t")])

        assert [*old.recover(serves=[1])] == []
        assert {one.run_id for one in new.recover(serves=[2])} == {"answered", "turned"}

    def test_runs_that_nobody_serves(self, store: CheckpointStore) -> None:
        """`check_runs` lists them, also those that wait; not those that the graph serves."""
        greets(1, store).execute(State(DATA, run_id="old"))
        greets(2, store).execute(State(split({**DATA}), run_id="new"))
        graph = greets(3, store)

        refused = [check for check in graph.check_runs(serves=[2, 3]) if not check.ok]
        assert [
            (check.run_id, "version 1, and only these are served: 2, 3" in check.problems[0]) for check in refused
        ] == [("old", True)]
        assert all(check.ok for check in graph.check_runs(serves=[1, 2]))
        assert all("only these are served: none" in check.problems[0] for check in graph.check_runs(serves=[]))

    @pytest.mark.parametrize("serves", [3, "23", [0], [True], ["2"]])
    def test_what_is_no_list_of_versions(self, store: CheckpointStore, serves: Any) -> None:
        """It is refused before anything runs."""
        with pytest.raises(ConfigError, match="serves"):
            greets(3, store).recover(serves=serves)
        with pytest.raises(ConfigError, match="serves"):
            greets(3, store).check_runs(serves=serves)


async def swept(graph: StateGraph, **how: Any) -> list[Recovered]:
    return [one async for one in graph.arecover(**how)]


class TestRefused:
    """A State that cannot be upgraded is refused, and the error names the reason, before anything runs."""

    @pytest.mark.parametrize(
        ("version", "upgrades", "why"),
        [
            (3, {2: put_together}, r"version 1, and the graph of version 3.*graph.upgrade\(1, function\)"),
            (3, {1: split}, r"version 1, and the graph of version 3.*graph.upgrade\(2, function\)"),
            (2, {1: lambda data: data["gone"]}, r"upgrade from version 1 failed: KeyError: 'gone'"),
            (2, {1: lambda data: None}, r"upgrade from version 1 failed: TypeError"),
            (0, {}, "version 1, and the graph has none.*newer graph"),
        ],
    )
    def test_whatever_is_allowed(self, any_play: Scene, version: int, upgrades: dict[int, Any], why: str) -> None:
        """Nothing is written."""
        before = any_play.execute(greets(1, any_play.store), State(DATA, run_id=RUN))
        graph = versioned({"first": print, "ask": InterruptNode(None, "ok"), "greet": print}, version, any_play.store)
        for number, function in upgrades.items():
            graph.upgrade(number, function)

        with pytest.raises(GraphMismatchError, match=why):
            any_play.resume(graph, {"ok": True}, allow_changed=True)
        assert any_play.store.load(RUN) == before

    def test_of_a_newer_version(self, store: CheckpointStore) -> None:
        """Old workers leave the runs of new ones alone."""
        greets(3, store).submit(State({"person": {"first": "Ada", "last": "Lovelace"}}, run_id=RUN))

        (refused,) = greets(2, store).recover()

        assert "of version 3, and the graph of version 2" in str(refused.error)

    def test_data_that_do_not_fit_the_schema(self, store: CheckpointStore) -> None:
        """The result of an upgrade is checked as a State is."""
        schema = TypedDict("schema", {"names": list[str], "ok": bool, "born": int}, total=False)  # noqa: UP013
        greets(1, store).execute(State(DATA, run_id=RUN))
        nodes = {"first": lambda state: {}, "ask": InterruptNode(None, "ok"), "greet": lambda state: {}}
        graph = versioned(nodes, 2, store, schema=schema)
        graph.upgrade(1, lambda data: {"names": data["name"]})

        with pytest.raises(SchemaError, match="names"):
            graph.resume(RUN, {"ok": True})

    def test_declarations_that_are_wrong(self, store: CheckpointStore) -> None:
        """They are refused when they are made."""
        graph = greets(2, store)
        with pytest.raises(ValueError, match="set already"):
            graph.upgrade(1, put_together)
        with pytest.raises(ValueError, match="from_version: '1' is not allowed; a non-negative integer is"):
            graph.upgrade("1", put_together)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"takes a version and a sync function"):
            graph.upgrade(3, print_nothing)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="version"):
            GraphConfig("flow", version=-1)
        assert GraphConfig.from_dict(GraphConfig("flow", version=2).to_dict()).version == 2
        assert "version" not in GraphConfig("flow").to_dict()


class TestAnswers:
    """A question that is open keeps its answer."""

    def test_under_a_renamed_key(self, any_play: Scene) -> None:
        """A run that waits for an answer under an old key takes it under the new one."""
        any_play.execute(greets(1, any_play.store), State(DATA, run_id=RUN))
        graph = greets(2, any_play.store, ask="approved")

        final = any_play.resume(graph, {"approved": True})

        assert (final["approved"], final["greeted"]) == (True, ["Ada Lovelace", "Ada"])

    def test_of_a_nested_graph(self, play: Scene) -> None:
        """Nested graphs have versions of their own; the outer run asks as it did."""

        def make(version: int, ask: str) -> StateGraph:
            inner = greets(version, play.store, ask=ask)
            return versioned({"in": inner.as_node(), "end": lambda state: {}}, 0, play.store, name="outer")

        play.execute(make(1, "ok"), State(DATA, run_id=RUN))

        final = play.resume(make(3, "approved"), {"ok": True})

        assert (final["person"]["first"], final["greeted"][1:], final["approved"]) == ("Ada", ["Ada"], True)

    def test_of_a_nested_graph_without_a_version(self, play: Scene) -> None:
        """If the outer data are upgraded, a nested run that has some of them must be upgraded as well."""

        def make(version: int, nested: int) -> StateGraph:
            inner = versioned({"ask": InterruptNode(None, "ok")}, nested, play.store, name="inner")
            graph = versioned({"in": inner.as_node(), "end": lambda state: {}}, version, play.store, name="outer")
            inner.upgrade(0, split)
            graph.upgrade(0, split)
            return graph

        before = play.execute(make(0, 0), State(DATA, run_id=RUN))
        with pytest.raises(GraphMismatchError, match="#1/in' has data in an older form"):
            play.resume(make(1, 0), {"ok": True})
        assert play.store.load(RUN) == before

        final = play.resume(make(1, 1), {"ok": True})

        assert dict(final) == {"names": ["Ada", "Lovelace"], "born": 1815, "ok": True}


class TestHalfDone:
    """Finished parts of the step under way stay finished under their keys, or the resume says what is done."""

    def made(self, version: int, store: CheckpointStore, kind: str, pay: Any) -> StateGraph:
        """Return a graph that pays items; in version 2 they are texts."""
        node = {
            "map": lambda: MapNode(pay, "items" if version == 1 else "parts", "paid", 1),
            "parallel": lambda: ParallelNode({name: paying(pay, name) for name in "ab"}, max_workers=1),
        }[kind]()
        return versioned({"pay": node, "end": lambda state: {}}, version, store)

    @pytest.mark.parametrize("kind", ["map", "parallel"])
    def test_what_is_done_stays_done(self, play: Scene, kind: str) -> None:
        """Items of another type, and a list with another name, are the same items."""
        keys = defaultdict[str, list[str]](list)

        def pay(item: Any, context: NodeContext) -> str:
            keys[str(item)].append(context.idempotency_key)
            if str(item) in "3b" and len(keys[str(item)]) == 1:
                raise OSError("the bank is down")
            return f"paid {item}"

        with pytest.raises(ExecutionError):
            play.execute(self.made(1, play.store, kind, pay), State({"n": 1, "items": [1, 2, 3]}, run_id=RUN))
        new = self.made(2, play.store, kind, pay)
        new.upgrade(1, lambda data: {"count": data["n"], "parts": [str(n) for n in data["items"]]} | _paid(data))

        final = play.resume(new)

        assert final["count"] == 1
        assert {item: len(each) for item, each in keys.items()} == (
            {"1": 1, "2": 1, "3": 2} if kind == "map" else {"a": 1, "b": 2}
        )
        assert all(len({*each}) == 1 for each in keys.values())

    @pytest.mark.parametrize("kind", ["map", "parallel"])
    def test_results_of_an_older_form(self, play: Scene, kind: str) -> None:
        """An upgrade that would change results of finished parts is refused; abandon_parts does these parts again."""

        def pay(item: Any, context: NodeContext) -> Any:
            if item in (2, "b") and not is_up:
                raise OSError("the bank is down")
            return {"paid": item}

        is_up: list[int] = []
        with pytest.raises(ExecutionError):
            play.execute(self.made(1, play.store, kind, pay), State({"items": [1, 2]}, run_id=RUN))
        is_up.append(1)
        new = self.made(2, play.store, kind, pay)
        new.upgrade(1, lambda data: {"parts": data["items"], "a": 0} | {"paid": [0 for _ in _paid(data)]})

        with pytest.raises(GraphMismatchError, match=f"part {'0' if kind == 'map' else 'a'} .*older form.*abandon"):
            play.resume(new)
        assert "items" in play.store.load(RUN)
        assert play.resume(new, abandon_parts=True).status == "completed"

    def test_effects(self, play: Scene) -> None:
        """An effect that was done is not repeated after an upgrade."""
        charged: list[str] = []

        def once() -> str:
            charged.append("once")
            return "receipt"

        def charge(state: State, context: NodeContext) -> dict[str, Any]:
            paid = context.effect("charge", once)
            return {"receipt": paid, "to": state["names"]}

        with pytest.raises(ExecutionError, match="names"):
            play.execute(versioned({"charge": charge}, 1, play.store), State(DATA, run_id=RUN))
        new = versioned({"charge": charge}, 2, play.store)
        new.upgrade(1, split)

        assert (play.resume(new)["receipt"], charged) == ("receipt", ["once"])


def greeted(state: State) -> dict[str, Any]:
    """Greet by the first name."""
    return {"greeted": state["names"][0]}


def print_nothing() -> None:
    """Take no data."""


def _paid(data: dict[str, Any]) -> dict[str, Any]:
    return {key: data[key] for key in ("paid", "a", "b") if key in data}


def paying(pay: Any, name: str) -> Any:
    """Return a branch that pays."""
    return lambda state, context: {name: pay(name, context)}
