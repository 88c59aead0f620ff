"""The promises of a store about what it reports without loading data, about retention, and about time travel."""

from __future__ import annotations

import copy
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, ClassVar

import attrs
import pytest

from stategraph._owners.holds import held
from stategraph._values.provenance import ErrorInfo, ParentStep, RunStatus
from stategraph._values.registered_types import register_type
from stategraph.errors import CheckpointNotFoundError, InvalidRunIdError, RunExistsError
from stategraph.state import State
from stategraph.stores import CheckpointStore
from stategraph.stores.base import RetentionPolicy
from stategraph.testing.corpus import KEPT_VALUES, Order, is_same


@register_type
@attrs.define(eq=False)
class Twin:
    """Equals everything of its kind, whatever is in it."""

    n: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Twin)

    __hash__ = None  # type: ignore[assignment]


@register_type
@attrs.define(eq=False)
class Quarrelsome:
    """Cannot be compared, as arrays of numbers cannot."""

    n: int

    def __eq__(self, other: object) -> bool:
        raise ValueError("the truth value of an array is ambiguous")

    __hash__ = None  # type: ignore[assignment]


_ALIKE: list[tuple[Any, Any, Any]] = [
    (1, True, True),
    (1, 1.0, 1.0),
    (0.0, -0.0, -0.0),
    ([1, [2]], [1, [2.0]], [1, [2.0]]),
    ((1,), [1], [1]),
    (Decimal("1.0"), Decimal("1.00"), Decimal("1.00")),
    (Twin(1), Twin(2), Twin(2)),
    (Quarrelsome(1), Quarrelsome(2), Quarrelsome(2)),
]
"""Three values each: the first is another one than the second, which the third is the same as."""


class HistoryContract:
    """The part of `CheckpointStoreContract` that is about runs as a whole, and about their past."""

    keeps_history: ClassVar[bool] = True

    # ------------------------------------------------------------------ what is reported without loading data

    def test_runs_reports_every_run(self, store: CheckpointStore) -> None:
        """Its newest checkpoint, and why it failed, filtered by status and graph."""
        error = ErrorInfo("ValueError", "no topic", "draft")
        store.save(State(run_id="a", step=1, graph="review"))
        failed = State(run_id="b", step=2, graph="review", status="failed", error=error, checkpoint_node="plan")
        store.save(failed)
        store.save(State(run_id="c", step=3, graph="other"))

        assert {run.run_id for run in store.runs()} == {"a", "b", "c"}
        assert [run.run_id for run in store.runs(graph="other")] == ["c"]
        (row,) = store.runs(status="failed", graph="review")
        assert (row.run_id, row.step, row.checkpoint_node, row.error) == ("b", 2, "plan", error)
        assert row.timestamp == store.load("b").timestamp
        assert store.runs(status="completed") == []

    def test_runs_come_in_pages(self, store: CheckpointStore) -> None:
        """The cursor of the last row of a page leads to the next page; each run comes once, in the same order."""
        for number in range(7):
            store.save(State(run_id=f"run-{number}", step=1))
        pages = [store.runs(limit=3)]
        while pages[-1]:
            pages.append(store.runs(limit=3, after=pages[-1][-1].cursor))

        assert [len(page) for page in pages] == [3, 3, 1, 0]
        assert [run.run_id for page in pages for run in page] == [run.run_id for run in store.runs()]

    def test_runs_are_found_by_what_is_known_of_them(self, store: CheckpointStore) -> None:
        """Their labels, ids, parents, beginnings and owners; a page is full as long as there are more."""
        began = datetime(2024, 1, 1, tzinfo=UTC)
        for number in range(9):
            labels = {"customer": f"c{number % 3}", "kind": "order"}
            when = began + timedelta(days=number)
            store.save(State(run_id=f"run-{number}", step=1, labels=labels, timestamp=when))
        store.save(State(run_id="other", step=1, timestamp=began))
        store.fork("other", "forked")

        def found(**which: Any) -> set[str]:
            rows = list(store.iter_runs(**which))
            assert store.count(**which) == len(rows) == len({row.run_id for row in rows})
            return {row.run_id for row in rows}

        assert found(labels={"customer": "c1"}) == {"run-1", "run-4", "run-7"}
        assert len(store.runs(labels={"customer": "c1"}, limit=2)) == 2
        assert found(labels={"customer": "c1", "kind": "other"}) == set()
        assert found(prefix="run-") == {f"run-{number}" for number in range(9)}
        assert found(prefix="r", since=began + timedelta(days=6)) == {"run-6", "run-7", "run-8"}
        assert found(since=datetime(2999, 1, 1, tzinfo=UTC)) == set()
        assert len(found(since=datetime(1, 1, 1, tzinfo=UTC))) == 11
        assert found(status=RunStatus.ACTIVE, prefix="o") == {"other"}
        assert found(parent="other") == {"forked"}
        assert found(owned=True) == set()
        assert store.count(owned=False) == store.count() == 11
        with held(store, "other"):
            assert found(owned=True) == {"other"}
        (row,) = store.runs(prefix="run-4")
        assert row.labels == {"customer": "c1", "kind": "order"}
        assert store.load("run-4").labels == row.labels

    @pytest.mark.parametrize(
        "arguments", [{"labels": 5}, {"labels": {"a": 1}}, {"since": datetime(2024, 1, 1)}, {"prefix": 5}, {"owned": 5}]
    )
    def test_runs_refuses_what_finds_nothing(self, store: CheckpointStore, arguments: dict[str, Any]) -> None:
        """A filter of a wrong type is an error, not an empty list."""
        with pytest.raises(ValueError, match=next(iter(arguments))):
            store.runs(**arguments)

    def test_runs_names_an_argument_that_it_does_not_take(self, store: CheckpointStore) -> None:
        """And the one that was meant."""
        for ask in (store.runs, store.count):
            with pytest.raises(TypeError, match=r"^runs\(\) got .* 'lables'; did you mean 'labels'"):
                ask(lables={"a": "b"})  # type: ignore[call-arg]

    @pytest.mark.parametrize("arguments", [{"limit": 0}, {"limit": "5"}, {"after": "x"}, {"after": 5}])
    def test_runs_refuses_what_is_no_page(self, store: CheckpointStore, arguments: dict[str, Any]) -> None:
        """A wrong limit or cursor is an error, not an empty page."""
        with pytest.raises(ValueError, match=next(iter(arguments))):
            store.runs(**arguments)

    def test_history_of_a_run_that_keeps_the_newest(self, store: CheckpointStore) -> None:
        """It is the newest checkpoint; nothing, where there is no run."""
        for step in (1, 2, 3):
            store.save(State({"n": step}, run_id="a", step=step, checkpoint_node=f"node-{step}"))

        assert [(row.step, row.checkpoint_node) for row in store.history("a")] == [(3, "node-3")]
        assert store.history("nobody") == []
        with pytest.raises(CheckpointNotFoundError, match="step 2"):
            store.load("a", 2)

    def test_a_fork_is_a_copy_of_its_own(self, store: CheckpointStore) -> None:
        """It is active, knows where it comes from, and needs the source no more."""
        store.save(State({"n": [1]}, run_id="a", step=4, status="failed", error=ErrorInfo("ValueError", "", "x")))

        forked = store.fork("a", "b")
        store.delete("a")

        assert store.load("b") == forked
        assert (forked["n"], forked.step, forked.status, forked.error) == ([1], 4, RunStatus.ACTIVE, None)
        assert forked.parent == ParentStep("a", 4)
        store.save(State({"n": 2}, run_id="b", step=5, parent=forked.parent))
        assert store.load("b")["n"] == 2

    def test_a_fork_never_takes_the_place_of_a_run(self, store: CheckpointStore) -> None:
        """An id that is taken is an error, and so is a run that is not there."""
        store.save(State({"n": 1}, run_id="a", step=1))
        store.save(State({"n": 2}, run_id="b", step=1))

        with pytest.raises(RunExistsError, match="'b'"):
            store.fork("a", "b")
        with pytest.raises(CheckpointNotFoundError):
            store.fork("nobody", "c")
        with pytest.raises(InvalidRunIdError):
            store.fork("a", "../c")
        assert store.load("b")["n"] == 2

    # ------------------------------------------------------------------ retention and time travel

    @pytest.fixture
    def full(self, store: CheckpointStore) -> CheckpointStore:
        """Return the store, which is to keep all of a run "a"."""
        if not self.keeps_history:
            pytest.skip("this store keeps the newest State of a run only, and says so by keeps_history = False")
        store.retain("a", RetentionPolicy("full"))
        return store

    @pytest.fixture
    def long_run(self, full: CheckpointStore) -> CheckpointStore:
        """Return the store, with a run "a" of 60 steps that are all kept: a list grows, a key comes and goes."""
        for state in _long_run(60):
            full.save(state)
        return full

    def test_every_step_can_be_loaded(self, long_run: CheckpointStore) -> None:
        """With retention "full" each comes back as it was saved, in values and in types."""
        for state in _long_run(60):
            loaded = long_run.load("a", state.step)
            assert is_same(dict(loaded), dict(state))
            assert loaded.checkpoint_node == state.checkpoint_node

    def test_a_fork_keeps_what_its_id_was_told(self, long_run: CheckpointStore) -> None:
        """A policy that was there before the run is: its own, not that of the source."""
        long_run.save(State(run_id="source", step=1))
        long_run.retain("copy", RetentionPolicy("full"))
        long_run.fork("source", "copy")
        long_run.save(State(run_id="copy", step=2))

        assert [row.step for row in long_run.history("copy")] == [1, 2]

    def test_a_history_can_be_iterated(self, long_run: CheckpointStore) -> None:
        """It yields what the list holds; nothing for a run that does not exist."""
        assert list(long_run.iter_history("a")) == long_run.history("a")
        assert list(long_run.iter_history("another")) == []

    def test_history_lists_every_step(self, long_run: CheckpointStore) -> None:
        """In order, without loading data."""
        history = long_run.history("a")

        assert [row.step for row in history] == list(range(1, 61))
        assert history[6].checkpoint_node == "node-7"

    @pytest.mark.parametrize("window", [1, 5, 40])
    def test_a_window_keeps_the_newest(self, full: CheckpointStore, window: int) -> None:
        """Exactly so many checkpoints can be seen and loaded, and older ones cannot."""
        full.retain("a", RetentionPolicy("windowed", window=window))
        states = _long_run(60)
        for state in states:
            full.save(state)

        assert [row.step for row in full.history("a")] == list(range(61 - window, 61))
        assert is_same(dict(full.load("a", 61 - window)), dict(states[60 - window]))
        with pytest.raises(CheckpointNotFoundError, match=f"step {60 - window}"):
            full.load("a", 60 - window)

    def test_rollback_forgets_what_came_later(self, long_run: CheckpointStore) -> None:
        """The run goes on from there as if the later steps had never been."""
        state = long_run.rollback("a", 20)

        assert state.step == 20
        assert long_run.load("a") == state
        long_run.save(State({"other": "way"}, run_id="a", step=21))
        assert is_same(dict(long_run.load("a")), {"other": "way"})
        assert long_run.load("a", 20) == state

    def test_a_fork_that_is_rolled_back(self, long_run: CheckpointStore) -> None:
        """It is the fork that it was, also where it goes back behind the step where it was forked off."""
        parent = long_run.fork("a", "b", 30).parent

        assert long_run.rollback("b", 20).parent == long_run.load("b").parent == parent

    def test_rollback_forgets_what_is_not_to_be_kept(self, full: CheckpointStore) -> None:
        """With a window, later steps are gone."""
        full.retain("a", RetentionPolicy("windowed", window=50))
        for state in _long_run(30):
            full.save(state)

        full.rollback("a", 20)

        assert [row.step for row in full.history("a")] == list(range(1, 21))

    def test_rollback_to_a_step_that_is_not_kept(self, long_run: CheckpointStore) -> None:
        """It is an error, and nothing is forgotten."""
        with pytest.raises(CheckpointNotFoundError, match="step 99"):
            long_run.rollback("a", 99)

        assert long_run.load("a").step == 60

    def test_a_fork_has_the_history(self, long_run: CheckpointStore) -> None:
        """Every step up to the one where it was forked off, whatever becomes of the source."""
        states = _long_run(60)
        forked = long_run.fork("a", "b", 30)
        long_run.delete("a")

        assert long_run.load("b") == forked
        assert [row.step for row in long_run.history("b")] == list(range(1, 31))
        for step in (1, 17, 29, 30):
            assert is_same(dict(long_run.load("b", step)), dict(states[step - 1]))
        long_run.save(State({"n": "new"}, run_id="b", step=31, parent=forked.parent))
        assert long_run.load("b")["n"] == "new"

    def test_diff_names_what_changed(self, full: CheckpointStore) -> None:
        """Keys added, removed and changed between two steps."""
        full.save(State({"same": 1, "old": 2, "n": 3}, run_id="a", step=1))
        full.save(State({"same": 1, "new": 4, "n": [5]}, run_id="a", step=2))

        difference = full.diff("a", 1, 2)

        assert (difference.added, difference.removed, difference.changed) == ({"new": 4}, {"old": 2}, {"n": (3, [5])})

    def test_diff_compares_two_runs(self, full: CheckpointStore) -> None:
        """Such as a fork with the run that it comes from."""
        full.save(State({"n": 1}, run_id="a", step=1))
        full.fork("a", "b")
        full.save(State({"n": 2}, run_id="b", step=2))

        assert full.diff("a", 1, 2, other="b").changed == {"n": (1, 2)}

    def test_diff_names_nothing_that_is_the_same(self, full: CheckpointStore) -> None:
        """Every value that is kept is the same as its copy, to the last nan in it."""
        for step in (1, 2):
            full.save(State({**copy.deepcopy(KEPT_VALUES), "n": step}, run_id="a", step=step))

        assert full.diff("a", 1, 2).changed == {"n": (1, 2)}

    def test_diff_tells_apart_what_is_equal(self, full: CheckpointStore) -> None:
        """Values of other types, or that objects call equal; whatever their ``==`` says, or raises."""
        for step, values in enumerate(zip(*_ALIKE, strict=True), 1):
            full.save(State({str(place): value for place, value in enumerate(values)}, run_id="a", step=step))

        assert full.diff("a", 1, 2).changed.keys() == set(map(str, range(len(_ALIKE))))
        assert full.diff("a", 2, 3).changed == {}

    def test_prune_removes_what_is_due(self, full: CheckpointStore) -> None:
        """Completed runs whose time is over; never one that can be resumed, and never the newest State of one."""
        long_ago = datetime(2020, 1, 1, tzinfo=UTC)
        for run_id, status in (("done", "completed"), ("failed", "failed"), ("active", "active")):
            full.retain(run_id, RetentionPolicy(ttl=60))
            full.save(State(run_id=run_id, step=1, status=status, timestamp=long_ago))
        full.retain("fresh", RetentionPolicy(ttl=3600))
        full.save(State(run_id="fresh", step=1, status="completed"))
        full.save(State(run_id="forever", step=1, status="completed", timestamp=long_ago))

        pruned = full.prune()

        assert pruned.runs == ("done",)
        assert full.list() == ["active", "failed", "forever", "fresh"]
        assert full.prune().runs == ()

    def test_prune_follows_a_policy_that_became_tighter(self, long_run: CheckpointStore) -> None:
        """What was kept under a wider policy goes, and what is left can be loaded."""
        long_run.retain("a", RetentionPolicy("windowed", window=3))
        long_run.save(State({"n": "last"}, run_id="a", step=61))

        long_run.prune()

        assert [row.step for row in long_run.history("a")] == [59, 60, 61]
        assert is_same(dict(long_run.load("a", 59)), dict(_long_run(60)[58]))


def _long_run(steps: int) -> list[State]:
    """Return the States of a run in which a list grows, a key comes and goes, and an object changes."""
    order = Order(1, [])
    states = [State({"log": [], "big": "x" * 2_000}, run_id="a", timestamp=datetime(2024, 1, 1, tzinfo=UTC))]
    for step in range(1, steps + 1):
        state = states[-1].update(log=[*states[-1]["log"], {"step": step, "text": "y" * 500}], n=step)
        order = Order(step // 10, [step // 10])
        state = state.set("order", order) if step % 3 else state.set("odd", step)
        if step % 7 == 0 and "odd" in state:
            state = state.remove("odd")
        states.append(attrs.evolve(state, step=step, checkpoint_node=f"node-{step}"))
    return states[1:]
