"""Parts record their input and are used again only for exactly the same input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from stategraph import CheckpointStore, ExecutionError, MapNode, ParallelNode, State, StateGraph, register_type
from stategraph.nodes.base import Node
from tests.conftest import PLAYS
from tests.pairs import every_pair
from tests.scenarios import RUN, Scene, make_graph, reopened, trace

pytestmark = pytest.mark.timeout(600)
HOW: dict[str, dict[str, Any]] = {"sync": {}, "async": {"durability": "async"}, "exit": {"durability": "exit"}}


@register_type
@attrs.define
class Order:
    """An item that may change."""

    number: int
    total: float = 0.0


def in_the_middle(name: str, node: Node, store: CheckpointStore, **options: Any) -> StateGraph:
    """Return a graph with this node between two others."""
    return make_graph({"before": trace("before"), name: node, "end": trace("end")}, store=store, **options)


class Items:
    """A MapNode that logs its items and, while it is broken, fails at the last one."""

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.is_broken = True

    def graph(self, store: CheckpointStore, over: str = "items", **options: Any) -> StateGraph:
        """Return a graph with the node in the middle."""
        return in_the_middle("map", self.node(over), store, **options)

    def node(self, over: str = "items") -> MapNode:
        """Return the node."""
        return MapNode(self.item, over=over, into="results", max_workers=1)

    def fail(self, play: Scene, items: list[Any], **options: Any) -> None:
        """Run until the last item has failed; then it is mended."""
        with pytest.raises(ExecutionError):
            play.execute(self.graph(play.store, **options), State({"items": items}, run_id=RUN))
        self.log.clear()
        self.is_broken = False

    def resume(self, play: Scene, updates: Any = None, **options: Any) -> State:
        """Resume the run, in another process if the store allows it."""
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

    def test_nothing_is_left_of_them(self, play: Scene, how: str) -> None:
        """No parts stay, also if the list became shorter or the run takes another way."""
        items = Items()
        items.fail(play, ["a", "b", "last"], **HOW[how])

        items.resume(play, {"items": ["a"]}, preserve=True, **HOW[how])

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
        """An equal item of another type is done again, and the first one is not repeated if it comes back."""
        items = Items()
        items.fail(play, [one, "last"])

        assert items.resume(play, {"items": [other]})["results"] == [f"made of {other!r}"]

        assert len(items.log) == 1


class Branches:
    """Two branches, of which the second fails while it is broken."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.is_broken = True

    def graph(self, store: CheckpointStore, **options: Any) -> StateGraph:
        """Return a graph with the node in the middle."""
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
        """Branches are joined if the State is the same, also after an update that changes nothing."""
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


# --------------------------------------------------------------------------- classes that change


def line_class(fields: Any = ("sku",), **options: Any) -> Any:
    """Return the registered class of a line, as one program or the next one has it."""
    made = attrs.make_class("Line", fields)
    made.__module__, made.__qualname__ = __name__, "Line"
    return register_type(made, name="tests.Line", **options)


_GROWN = {"sku": attrs.field(), "unit": attrs.field(default="pc")}
LATER: dict[str, Callable[[], Any]] = {
    "upgrade": lambda: line_class(_GROWN, version=2, upgrade=lambda fields, version: {**fields, "unit": "kg"}),
    "version": lambda: line_class(version=2),
    "default": lambda: line_class(_GROWN),
}


@every_pair(change=LATER, retention=["latest", "full"], door=["resume", "run"], play=PLAYS, indirect=["play"])
def test_a_class_of_items_that_was_upgraded(change: str, retention: str, door: str, play: Scene) -> None:
    """Finished items stay finished, however often the step fails after that."""
    paid: list[str] = []

    def pay(line: Any) -> str:
        paid.append(line.sku)
        if line.sku == "c" and paid.count("c") < 3:
            raise OSError("down")
        return str(line.sku)

    def graph() -> StateGraph:
        nodes = {"map": MapNode(pay, over="lines", into="out", max_workers=1)}
        return make_graph(nodes, store=reopened(play.store), preserve=True, retention=retention)

    def given(cls: Any) -> State:
        return State({"lines": [cls("a"), cls("b"), cls("c")]}, run_id=RUN)

    with pytest.raises(ExecutionError):
        graph().run(given(line_class()))
    later = LATER[change]()
    go_on = (lambda: graph().resume(RUN)) if door == "resume" else (lambda: graph().run(given(later)))

    with pytest.raises(ExecutionError):
        go_on()
    final = go_on()

    assert (final["out"], paid) == (["a", "b", "c"], ["a", "b", "c", "c", "c"])
