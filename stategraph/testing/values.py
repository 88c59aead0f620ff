"""The promises of a store about values: wherever a value is saved, it comes back exactly, or it is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing, nullcontext
from typing import Any

import attrs
import pytest

from stategraph._values.progress import Part, Partial, Progress
from stategraph._values.provenance import RunStatus
from stategraph.errors import NotSerializableError
from stategraph.state import State
from stategraph.stores import CheckpointStore
from stategraph.testing.corpus import KEPT_VALUES, UNKEPT_VALUES, Order, is_same
from stategraph.testing.waiting import waiting


def check_each(values: Iterable[tuple[str, Any]], check: Callable[[Any], None]) -> None:
    """Check every value, and only then fail, with the name of each value that failed.

    Raises:
        BaseExceptionGroup: With what each failing check has raised.
    """
    names: list[str] = []
    failures: list[BaseException] = []
    for name, value in values:
        try:
            check(value)
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - a store may raise anything
            error.add_note(f"the value that failed: {name}")
            names.append(name)
            failures.append(error)
    if failures:
        raise BaseExceptionGroup(f"this holds for all values but: {', '.join(names)}", failures)


def check_kept(again: Callable[[Any], Any]) -> None:
    """Check that each value that is kept is the same once it is saved and loaded, which `again` does."""

    def check(value: Any) -> None:
        assert is_same(again(value), value)

    check_each(KEPT_VALUES.items(), check)


def check_refused(
    save: Callable[[Any], object], match: str | None = None, is_left: Callable[[], bool] = lambda: True
) -> None:
    """Check that each value that cannot be kept is refused when it is saved, and what was saved before is left."""

    def check(make: Callable[[], Any]) -> None:
        value = make()
        closed = closing(value) if hasattr(value, "close") else nullcontext()
        with closed, pytest.raises(NotSerializableError, match=match):
            save(value)
        assert is_left()

    check_each(UNKEPT_VALUES.items(), check)


def saved_again(store: CheckpointStore, state: State) -> Any:
    """Return a State of a run "a" as it is loaded, once it is saved as its first."""
    store.delete("a")
    store.save(state)
    return store.load("a")


def needs_parts(store: CheckpointStore) -> None:
    """Skip the test if the store keeps no parts; save a run "a" of two steps in it otherwise."""
    if not store.keeps_parts:
        pytest.skip("this store keeps no parts, and says so by keeps_parts = False")
    for step in (1, 2):
        store.save(State({"n": step}, run_id="a", step=step))


class ValuesContract:
    """The part of `CheckpointStoreContract` that is about values, and all of it that a serializer can break.

    It takes a fixture named ``store`` that makes an empty store.
    """

    # ------------------------------------------------------------------ in the data of a State

    def test_values_are_kept_exactly(self, store: CheckpointStore) -> None:
        """What is loaded has the values and the types of what was saved."""
        check_kept(lambda value: saved_again(store, State({"value": value}, run_id="a", step=1))["value"])

    def test_values_that_cannot_be_kept_are_refused(self, store: CheckpointStore) -> None:
        """The error names the place, and what was saved before is still there."""
        store.save(State({"n": 1}, run_id="a", step=1))

        def save(value: Any) -> None:
            store.save(State({"orders": [1, {"total": value}]}, run_id="a", step=2))

        check_refused(save, r"orders\[1\]\.total", lambda: store.load("a").step == 1)

    def test_a_kept_state_never_changes(self, store: CheckpointStore) -> None:
        """Objects in a State can be changed; what was saved of them, and what was loaded before, cannot."""
        order = Order(1, ["tea"])
        store.save(State({"order": order}, run_id="a", step=1))
        loaded = store.load("a")

        order.items.append("milk")
        loaded["order"].items.append("cake")

        assert store.load("a")["order"].items == ["tea"]

    def test_an_object_that_changed_between_two_saves_is_saved_as_it_is_now(self, store: CheckpointStore) -> None:
        """The State holds the same object, and the store must not take it for the same value."""
        order = Order(1, ["tea"])
        state = State({"order": order, "nested": [{"order": order}]}, run_id="a", step=1)
        store.save(state)

        order.items.append("milk")
        store.save(attrs.evolve(state, step=2))

        assert store.load("a")["order"].items == ["tea", "milk"]
        assert store.load("a")["nested"][0]["order"].items == ["tea", "milk"]

    @pytest.mark.parametrize("changed", [[1, 2, 3, 4, 5], [1, 9, 3, 4], [1, 2], [], [1, 2, 3, [4]], [0, 1, 2, 3]])
    def test_a_list_that_changed_is_saved_as_it_is_now(self, store: CheckpointStore, changed: list[Any]) -> None:
        """Whether it grew at its end, in its middle, or not at all."""
        state = State({"log": [1, 2, 3], "other": "x" * 100}, run_id="a", step=1)
        store.save(state)

        store.save(attrs.evolve(state.set("log", changed), step=2))

        assert is_same(store.load("a")["log"], changed)

    def test_a_value_of_megabytes(self, store: CheckpointStore) -> None:
        """Size is no reason to lose anything."""
        text = "x" * 20_000_000
        store.save(State({"text": text}, run_id="a", step=1))

        assert store.load("a")["text"] == text

    # ------------------------------------------------------------------ in a pause

    def test_what_a_pause_shows_is_kept_exactly(self, store: CheckpointStore) -> None:
        """In values and in types, in a loaded State and in the rows of runs and history."""

        def check(value: Any) -> None:
            loaded: list[Any] = [saved_again(store, waiting(value)), store.runs()[0], store.history("a")[0]]
            assert all(is_same(shown.pause.value, value) for shown in loaded)

        check_each(KEPT_VALUES.items(), check)

    def test_what_a_pause_shows_and_cannot_be_kept_is_refused(self, store: CheckpointStore) -> None:
        """The error names the place, and what was saved before is still there."""
        store.save(State({"n": 1}, run_id="a", step=2))

        def save(value: Any) -> None:
            store.save(waiting({"orders": [1, {"total": value}]}))

        check_refused(save, r"^pause\.value\.orders\[1\]\.total", lambda: store.load("a").status is RunStatus.ACTIVE)

    def test_what_a_pause_shows_never_changes(self, store: CheckpointStore) -> None:
        """Objects can be changed; what was saved of them, and what was loaded before, cannot."""
        order = Order(1, ["tea"])
        store.save(waiting([order]))
        shown: list[Any] = [store.load("a"), store.runs()[0], store.history("a")[0]]

        order.items.append("milk")
        for one in shown:
            one.pause.value[0].items.append("cake")

        loaded: Any = store.load("a")
        assert loaded.pause.value[0].items == ["tea"]

    # ------------------------------------------------------------------ in progress

    def test_chunks_are_kept_exactly(self, store: CheckpointStore) -> None:
        """What a node has emitted so far has the values and the types that it had."""
        check_kept(lambda value: saved_again(store, _with_chunks(value, 1)).partial.chunks[0])
        assert saved_again(store, _with_chunks("a", 1)).partial.chunks == ("a", 1)

    def test_replaced_values_are_kept_exactly(self, store: CheckpointStore) -> None:
        """Those that a nested run may still have to be told of."""

        def again(value: Any) -> Any:
            state = State(run_id="a", step=1, progress=Progress(replaced={"k": (value,)}))
            (replaced,) = saved_again(store, state).progress.replaced["k"]
            return replaced

        check_kept(again)

    def test_chunks_that_cannot_be_kept_are_refused(self, store: CheckpointStore) -> None:
        """And what was saved before is still there."""
        store.save(State(run_id="a"))
        check_refused(lambda value: store.save(_with_chunks(value)), is_left=lambda: store.load("a").step == 0)

    def test_chunks_never_change(self, store: CheckpointStore) -> None:
        """Nor replaced values, whatever happens to objects among them."""
        order, other = Order(1, ["tea"]), Order(2, ["tea"])
        store.save(_with_chunks(order))
        store.save(State(run_id="b", step=1, progress=Progress(replaced={"k": (other,)})))

        order.items.append("milk")
        other.items.append("milk")

        a: Any = store.load("a")
        b: Any = store.load("b")
        assert (a.partial.chunk.items, b.progress.replaced["k"][0].items) == (["tea"], ["tea"])

    # ------------------------------------------------------------------ in a part of a step

    def test_values_of_parts_are_kept_exactly(self, store: CheckpointStore) -> None:
        """In values and in types."""
        needs_parts(store)

        def again(value: Any) -> Any:
            store.drop_parts("a", 3)
            store.save_parts("a", [Part(3, "map", "x", value)])
            return store.load_parts("a", 3, "map")["x"]

        check_kept(again)

    def test_values_of_parts_that_cannot_be_kept_are_refused(self, store: CheckpointStore) -> None:
        """And what was saved before is still there. The error names the part, and the place in it."""
        needs_parts(store)
        store.save_parts("a", [Part(3, "map", "x", 1)])

        def save(value: Any) -> None:
            bad = Part(3, "map", "y", {"orders": [1, {"total": value}]})
            store.save_parts("a", [Part(3, "map", "z", 1), bad])

        is_named = r"orders\[1\]\.total.* in part 'y' of node 'map' cannot"
        check_refused(save, is_named, lambda: store.load_parts("a", 3, "map") == {"x": 1})

    def test_the_value_of_a_part_never_changes(self, store: CheckpointStore) -> None:
        """Whatever happens to objects in what was saved, or in what was loaded before."""
        needs_parts(store)
        order = Order(1, ["tea"])
        store.save_parts("a", [Part(3, "map", "x", order)])

        order.items.append("milk")
        store.load_parts("a", 3, "map")["x"].items.append("cake")

        assert store.load_parts("a", 3, "map")["x"].items == ["tea"]


def _with_chunks(*chunks: Any) -> State:
    """Return a State of a run "a" whose node has emitted these chunks so far."""
    return State(run_id="a", step=1, progress=Progress(partial=Partial("write", chunks)))
