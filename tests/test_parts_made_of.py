"""Parts know what they were made of: they are joined where that is the same, exactly, and nowhere else."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from stategraph import (
    CheckpointStore,
    ExecutionError,
    MapNode,
    ParallelNode,
    RunStatus,
    State,
    StateGraph,
    register_type,
)
from stategraph._values.progress import Part
from stategraph._values.sameness import is_same
from stategraph.nodes.base import Node
from stategraph.stores._codec.msgpack import digest_of
from stategraph.testing import Killed, MortalStore
from stategraph.testing.corpus import KEPT_VALUES
from tests.scenarios import RUN, Scene, make_graph, reopened, trace

pytestmark = pytest.mark.timeout(60)
HOW: dict[str, dict[str, Any]] = {"sync": {}, "async": {"durability": "async"}, "exit": {"durability": "exit"}}


@register_type
@attrs.define
class Order:
    """An item that may change."""

    number: int
    total: float = 0.0


def in_the_middle(name: str, node: Node, store: CheckpointStore, **options: Any) -> StateGraph:
    """-> a graph with this node between two others."""
    return make_graph({"before": trace("before"), name: node, "end": trace("end")}, store=store, **options)


class Items:
    """A MapNode that logs its items and, while it is broken, fails at the last one."""

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.is_broken = True

    def graph(self, store: CheckpointStore, over: str = "items", **options: Any) -> StateGraph:
        """-> a graph with the node in the middle."""
        return in_the_middle("map", self.node(over), store, **options)

    def node(self, over: str = "items") -> MapNode:
        """-> the node."""
        return MapNode(self.item, over=over, into="results", max_workers=1)

    def fail(self, play: Scene, items: list[Any], **options: Any) -> None:
        """Run until the last item has failed; then it is mended."""
        with pytest.raises(ExecutionError):
            play.execute(self.graph(play.store, **options), State({"items": items}, run_id=RUN))
        self.log.clear()
        self.is_broken = False

    def resume(self, play: Scene, updates: Any = None, **options: Any) -> State:
        """Go on, in another process where the store allows that."""
        return play.resume(self.graph(reopened(play.store), **options), updates)

    def item(self, item: Any) -> Any:
        """Do one."""
        self.log.append(item)
        if self.is_broken and item in ("last", ["last"]):
            raise ValueError("broken")
        return f"made of {item!r}"


@pytest.mark.parametrize("how", HOW)
class TestItems:
    """Each is made of its item."""

    @pytest.mark.parametrize(
        ("first", "updates", "done"),
        [
            (["a", "b", "last"], {"note": 1}, ["last"]),
            (["a", "b", "last"], {"items": ["a", "x", "last"]}, ["x", "last"]),
            (["a", "b", "last"], {"items": ["a", "x", "last", "more"]}, ["x", "last", "more"]),
            (["a", "b", "c", "last"], {"items": ["b", "a", "c"]}, ["b", "a"]),
        ],
        ids=["unrelated", "changed", "changed and added", "another order"],
    )
    def test_updates(self, play: Scene, how: str, first: list[str], updates: dict[str, Any], done: list[str]) -> None:
        """Repeat the items that changed or moved, and no others; each result stands at the place of its item."""
        items = Items()
        items.fail(play, first, **HOW[how])

        final = items.resume(play, updates, **HOW[how])

        assert items.log == done
        assert final["results"] == [f"made of {item!r}" for item in final["items"]]

    def test_another_list(self, play: Scene, how: str) -> None:
        """The node is pointed at another key, in a graph that has changed."""
        items = Items()
        items.fail(play, ["a", "b", "last"], **HOW[how])
        graph = items.graph(reopened(play.store), over="others", **HOW[how])

        final = play.resume(graph, {"others": ["b", "b"]})

        assert (final["results"], items.log) == (["made of 'b'", "made of 'b'"], ["b"])

    def test_there_and_back(self, play: Scene, how: str) -> None:
        """What was made of another list in between is not joined either."""
        items = Items()
        items.fail(play, ["a", "b", "last"], **HOW[how])
        items.is_broken = True
        with pytest.raises(ExecutionError):
            items.resume(play, {"items": ["x", "b", "last"]}, **HOW[how])
        items.log.clear()
        items.is_broken = False

        final = items.resume(play, {"items": ["a", "b", "last"]}, **HOW[how])

        assert final["results"] == ["made of 'a'", "made of 'b'", "made of 'last'"]
        assert items.log == ["a", "last"]

    def test_nothing_is_left_of_them(self, play: Scene, how: str) -> None:
        """Not even of places that the list does not have any more, nor where the run goes another way."""
        items = Items()
        items.fail(play, ["a", "b", "last"], **HOW[how])

        items.resume(play, {"items": ["a"]}, preserve=True, **HOW[how])

        assert play.store.load_parts(RUN, 2, "map") == {}

    def test_a_way_around_them(self, play: Scene, how: str) -> None:
        """An update leads the run to a node without parts: none is left when that has saved its step."""
        items = Items()

        def graph(store: CheckpointStore) -> StateGraph:
            nodes = {"before": trace("before"), "map": items.node(), "around": trace("around"), "end": trace("end")}
            edges = [
                ("before", "around", lambda state: "skip" in state),
                ("before", "map"),
                ("map", "end"),
                ("around", "end"),
            ]
            return make_graph(nodes, edges, store=store, preserve=True, **HOW[how])

        with pytest.raises(ExecutionError):
            play.execute(graph(play.store), State({"items": ["a", "last"]}, run_id=RUN))
        assert play.store.load_parts(RUN, 2, "map") == {"0": "made of 'a'"}

        play.resume(graph(reopened(play.store)), {"skip": True})

        assert play.store.load_parts(RUN, 2, "map") == {}


class TestExactly:
    """Values that are only equal are others."""

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            (1, True),
            (1, 1.0),
            (0.0, -0.0),
            ([1], (1,)),
            ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
            ({1}, frozenset({1})),
            (Order(1), Order(1, -0.0)),
            ({"deep": [{"x": 0}]}, {"deep": [{"x": False}]}),
            ("1", b"1"),
        ],
        ids=repr,
    )
    def test_items(self, play: Scene, one: Any, other: Any) -> None:
        """One takes the place of the other; back in its place, the first is not repeated."""
        items = Items()
        items.fail(play, [one, "last"])

        assert items.resume(play, {"items": [other]})["results"] == [f"made of {other!r}"]

        assert len(items.log) == 1

    def test_all_that_a_store_keeps(self) -> None:
        """Two values have one digest if and only if they are the same."""
        for one in KEPT_VALUES.values():
            for other in KEPT_VALUES.values():
                is_one = digest_of({"": one}) == digest_of({"": other})
                assert is_one == is_same(one, other), (one, other)

    def test_what_is_loaded(self, play: Scene) -> None:
        """It has the digest of what was saved."""
        play.store.save(State({"values": [*KEPT_VALUES.values()]}, run_id=RUN))

        loaded = reopened(play.store).load(RUN)["values"]

        assert [digest_of({"": value}) for value in loaded] == [
            digest_of({"": value}) for value in KEPT_VALUES.values()
        ]

    def test_what_cannot_be_kept(self) -> None:
        """It has none, so that nothing is joined for it."""
        assert digest_of({"": object()}) == ""


class Branches:
    """Two branches, of which the second fails while it is broken."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.is_broken = True

    def graph(self, store: CheckpointStore, **options: Any) -> StateGraph:
        """-> a graph with the node in the middle."""
        return in_the_middle("work", ParallelNode({"a": self._a, "b": self._b}, 1), store, **options)

    def fail(self, play: Scene, **options: Any) -> None:
        """Run until the second has failed; then it is mended."""
        with pytest.raises(ExecutionError):
            play.execute(self.graph(play.store, **options), State({"n": 1}, run_id=RUN))
        assert set(play.store.load_parts(RUN, 2, "work")) == {"a"}
        self.log.clear()
        self.is_broken = False

    def _a(self, state: State) -> dict[str, Any]:
        self.log.append("a")
        return {"a": repr(state.get("n"))}

    def _b(self, state: State) -> dict[str, Any]:
        self.log.append("b")
        if self.is_broken:
            raise ValueError("broken")
        return {"b": repr(state.get("n"))}


@pytest.mark.parametrize("how", HOW)
class TestBranches:
    """Each is made of the whole State."""

    def test_the_same_state(self, play: Scene, how: str) -> None:
        """They are joined, after an update that changes nothing as well."""
        branches = Branches()
        branches.fail(play, **HOW[how])

        play.resume(branches.graph(reopened(play.store), **HOW[how]), {"n": 1})

        assert branches.log == ["b"]

    @pytest.mark.parametrize("updates", [{"n": 2}, {"n": True}, {"other": 1}], ids=repr)
    def test_another_state(self, play: Scene, how: str, updates: Any) -> None:
        """All are done again: what they read is unknown."""
        branches = Branches()
        branches.fail(play, **HOW[how])

        final = play.resume(branches.graph(reopened(play.store), **HOW[how]), updates)

        assert branches.log == ["a", "b"]
        assert final["a"] == final["b"] == repr(final["n"])

    def test_a_fork(self, play: Scene, how: str) -> None:
        """It has its own copies of them, and joins them or not as the run would."""
        branches = Branches()
        branches.fail(play, **HOW[how])
        for run_id, updates, done in (("same", {}, ["b"]), ("other", {"n": 2}, ["a", "b"])):
            branches.log.clear()
            play.store.fork(RUN, run_id)

            play.call(branches.graph(play.store, **HOW[how]), "resume", run_id, updates)

            assert branches.log == done


class TestGenerations:
    """A run that was rolled back makes its steps again."""

    def test_parts_of_the_one_before(self, play: Scene) -> None:
        """They are not joined, even if a store should still have them."""
        branches = Branches()
        branches.fail(play)
        kept = play.store.load_parts(RUN, 2, "work")
        play.store.rollback(RUN, 1)
        assert play.store.load_parts(RUN, 2, "work") == {}
        play.store.save_parts(RUN, [Part(2, "work", "a", kept["a"], kept.made_of["a"])])

        play.resume(branches.graph(play.store))

        assert branches.log == ["a", "b"]

    def test_a_nested_graph(self, play: Scene) -> None:
        """It starts over, and does all of its items once more."""
        items = Items()
        inner = items.graph(play.store).as_node()
        graph = make_graph({"before": trace("before"), "inner": inner}, store=play.store, name="outer")
        with pytest.raises(ExecutionError):
            play.execute(graph, State({"items": ["a", "last"]}, run_id=RUN))
        items.is_broken = False
        play.store.rollback(RUN, 1)
        items.log.clear()

        play.resume(graph)

        assert items.log == ["a", "last"]


class TestNested:
    """A nested graph is joined, or goes on, with what the State gives it now."""

    @pytest.mark.parametrize(("updates", "done"), [({"note": 1}, ["end"]), ({"n": 2}, ["nested", "end"])], ids=repr)
    def test_one_that_had_completed(self, play: Scene, updates: Any, done: list[str]) -> None:
        """It runs again only if its inputs are others."""
        log: list[str] = []
        broken = [ValueError("broken")]

        def nested(state: State) -> dict[str, Any]:
            log.append("nested")
            return {"m": state["n"]}

        def outputs(state: State) -> dict[str, Any]:
            log.append("end")
            if broken:
                raise broken.pop()
            return {"m": state["m"]}

        inner = make_graph({"nested": nested}, store=play.store).as_node(["n"], outputs)
        graph = make_graph({"inner": inner}, store=play.store, name="outer", preserve=True)
        with pytest.raises(ExecutionError):
            play.execute(graph, State({"n": 1}, run_id=RUN))
        log.clear()

        final = play.resume(graph, updates)

        assert (log, final["m"], final.status) == (done, final["n"], RunStatus.COMPLETED)


class TestAKill:
    """At most as many finished items are repeated as there are workers."""

    @pytest.mark.parametrize("workers", [1, 3])
    def test_with_an_update(self, play: Scene, workers: int) -> None:
        """And an update of something else changes nothing in that."""
        done: list[int] = []
        mortal = MortalStore(play.store)

        def item(number: int) -> int:
            if number == 12 and not mortal.is_dead:
                mortal.is_dead = True
                raise Killed
            done.append(number)
            return number

        def graph(store: CheckpointStore) -> StateGraph:
            node = MapNode(item, over="items", into="out", max_workers=workers)
            return make_graph({"map": node}, store=store)

        with pytest.raises(Killed):
            play.execute(graph(mortal), State({"items": [*range(20)]}, run_id=RUN))
        mortal.is_dead = True

        final = play.resume(graph(reopened(play.store)), {"note": 1})

        repeated = [number for number in {*done} if done.count(number) > 1]
        assert final["out"] == [*range(20)]
        assert len(repeated) <= 2 * workers
