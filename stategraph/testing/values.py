"""The promises of a store about values: wherever a value is saved, it comes back exactly or is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing, nullcontext
from datetime import UTC, datetime
from typing import Any

import attrs
import pytest

from stategraph._values.progress import Origin, Part, Partial, Pause, Progress
from stategraph._values.sameness import is_same
from stategraph.errors import NotSerializableError
from stategraph.state import State
from stategraph.stores import CheckpointStore
from stategraph.testing.corpus import KEPT_VALUES, UNKEPT_VALUES, Order

NOON = datetime(2024, 5, 29, 12, 0, 0, 1, tzinfo=UTC)
PAUSE = Pause("approve it", "review", {"draft": ("a", 1)}, "verdict", NOON, NOON.replace(year=2030), "0a1b")

PROGRESS: dict[str, Any] = {
    "next_node": "review",
    "woken": attrs.evolve(PAUSE, value=None, part="3/left"),
    "given": ("ann", 1_700_000_000_000_000_000, "person"),
    "answer": {"verdict": (), "a": (0,)},
    "answered": frozenset({"verdict", "name"}),
    "partial": Partial("write", ("Once ", {"upon": (1, None)}, b"\0", 2**70)),
    "origins": {
        "index": Origin("build", 3, frozenset({"a", "b"})),
        "n": Origin("", 0, frozenset()),
    },
    "recoveries": 3,
    "turn": 2,
    "taken": 7,
    "turns": 6,
    "serves": 5,
    "due_ns": 1_700_000_000_000_000_000,
    "kept_names": {"write": (3, "draft"), "draft": (0, "write")},
    "kept_digests": {"ab": "cd"},
    "overtaken": {"n": (), "items": ([1],)},
    "replaced": {"n": (), "orders": ([{"id": (1, None)}],), "note": ("\0",)},
}
"""An example value for each attribute of Progress."""


def check_each(values: Iterable[tuple[str, Any]], check: Callable[[Any], None]) -> None:
    """Check every value, and fail only then, with the names of all values that failed.

    Raises:
        BaseExceptionGroup: at least one check failed; it holds their exceptions.
    """
    failures: dict[str, BaseException] = {}
    for name, value in values:
        try:
            check(value)
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - a store may raise anything
            error.add_note(f"the value that failed: {name}")
            failures[name] = error
    if failures:
        raise BaseExceptionGroup(f"this holds for all values but: {', '.join(failures)}", list(failures.values()))


def check_refused(
    save: Callable[[Any], object], match: str | None = None, is_left: Callable[[], bool] = lambda: True
) -> None:
    """Check that `save` refuses each value of UNKEPT_VALUES, and that `is_left` is still true afterwards."""

    def check(make: Callable[[], Any]) -> None:
        value = make()
        closed = closing(value) if hasattr(value, "close") else nullcontext()
        with closed, pytest.raises(NotSerializableError, match=match):
            save(value)
        assert is_left()

    check_each(UNKEPT_VALUES.items(), check)


def saved_at(step: int, **about: Any) -> State:
    """Return a State of run "a"."""
    return State({"n": step}, run_id="a", step=step, timestamp=NOON, **about)


@attrs.frozen
class _Place:
    """A place where a State may have a value.

    Attributes:
        save: Saves a value there, at step 3 of run "a".
        load: Returns the value once for each way to read it.
        path: A pattern for the beginning of an error about it.
    """

    save: Callable[[CheckpointStore, Any], object]
    load: Callable[[CheckpointStore], list[Any]]
    path: str


def _progress(**about: Any) -> State:
    return saved_at(3, progress=Progress(**about))


def _pause(value: Any) -> State:
    return saved_at(3, status="paused", pause=attrs.evolve(PAUSE, value=value))


def _pauses(store: CheckpointStore) -> list[Any]:
    rows: list[Any] = [store.load("a"), store.runs()[0], store.history("a")[-1]]
    return [row.pause.value for row in rows]


_PLACES = {
    "the data of a State": _Place(
        lambda store, value: store.save(saved_at(3).set("value", value)),
        lambda store: [store.load("a")["value"]],
        "^value",
    ),
    "a pause": _Place(lambda store, value: store.save(_pause(value)), _pauses, r"^pause\.value"),
    "a chunk": _Place(
        lambda store, value: store.save(_progress(partial=Partial("write", (value, 1)))),
        lambda store: [store.load("a").partial.chunks[0]],  # type: ignore[union-attr]
        r"^partial\.chunks\[0\]",
    ),
    "a replaced value": _Place(
        lambda store, value: store.save(_progress(replaced={"k": (value,)})),
        lambda store: [store.load("a").progress.replaced["k"][0]],  # type: ignore[union-attr]
        r"^replaced\.k",
    ),
    "a part": _Place(
        lambda store, value: store.save_parts("a", [Part(3, "map", "y", 1), Part(3, "map", "x", value)]),
        lambda store: [store.load_parts("a", 3, "map")["x"]],
        "",  # the error names the part after the path
    ),
}


class ValuesContract:
    """The part of `CheckpointStoreContract` about values: all promises that a serializer can break.

    It needs a fixture named ``store`` that returns an empty store.
    """

    @pytest.fixture(params=_PLACES)
    def place(self, request: pytest.FixtureRequest, store: CheckpointStore) -> _Place:
        """Return a place for values."""
        if request.param == "a part" and not store.keeps_parts:
            pytest.skip("keeps_parts is False: this store keeps no finished parts")
        return _PLACES[request.param]

    def test_values_are_kept_exactly(self, store: CheckpointStore, place: _Place) -> None:
        """Loaded values equal the saved ones in value and type."""

        def check(value: Any) -> None:
            store.delete("a")
            store.save(saved_at(2))
            place.save(store, value)
            assert all(is_same(shown, value) for shown in place.load(store))

        check_each(KEPT_VALUES.items(), check)

    def test_other_values_are_refused(self, store: CheckpointStore, place: _Place) -> None:
        """The error names the place, and the checkpoint before stays."""
        store.save(saved_at(2))

        def save(value: Any) -> None:
            place.save(store, {"orders": [1, {"total": value}]})

        def is_left() -> bool:
            return store.load("a") == saved_at(2) and not (store.keeps_parts and store.load_parts("a", 3, "map"))

        check_refused(save, rf"{place.path}.*orders\[1\]\.total", is_left)

    def test_saved_objects_never_change(self, store: CheckpointStore, place: _Place) -> None:
        """Changes of the original object or of a loaded copy do not reach the store."""
        order = Order(1, ["tea"])
        store.save(saved_at(2))
        place.save(store, [order])

        order.items.append("milk")
        for shown in place.load(store):
            shown[0].items.append("cake")

        assert place.load(store)[0][0].items == ["tea"]

    def test_a_changed_object_is_saved_again(self, store: CheckpointStore) -> None:
        """The State holds the same object, but the store must not mistake it for the same value."""
        order = Order(1, ["tea"])
        state = saved_at(1).update(order=order, nested=[{"order": order}])
        store.save(state)

        order.items.append("milk")
        store.save(attrs.evolve(state, step=2))

        assert store.load("a")["order"].items == ["tea", "milk"]
        assert store.load("a")["nested"][0]["order"].items == ["tea", "milk"]

    @pytest.mark.parametrize("changed", [[1, 2, 3, 4, 5], [1, 9, 3, 4], [1, 2], [], [1, 2, 3, [4]], [0, 1, 2, 3]])
    def test_a_changed_list_is_saved_again(self, store: CheckpointStore, changed: list[Any]) -> None:
        """The list may grow at its end, change in its middle, or shrink."""
        state = saved_at(1).update(log=[1, 2, 3], other="x" * 100)
        store.save(state)

        store.save(attrs.evolve(state.set("log", changed), step=2))

        assert is_same(store.load("a")["log"], changed)

    def test_progress_comes_and_goes(self, store: CheckpointStore) -> None:
        """A State has only its own progress, and nothing of earlier saves."""
        single = [Progress(**{name: value}) for name, value in PROGRESS.items()]
        progresses = [None, *single, Progress(partial=Partial("write")), Progress(**PROGRESS), None]
        for step, progress in enumerate([*progresses, *reversed(progresses)], 1):
            for saved in saved_at(step, progress=progress), saved_at(step, status="failed"):
                store.save(saved)
                assert store.load("a") == saved
                assert store.load("a").progress == saved.progress

    def test_a_value_of_megabytes(self, store: CheckpointStore) -> None:
        """A large value is kept exactly."""
        text = "x" * 20_000_000
        store.save(saved_at(1).set("text", text))

        assert store.load("a")["text"] == text
