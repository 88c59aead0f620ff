"""CheckpointStoreContract: the promises of a store, as tests that every store passes."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import attrs
import pytest

from stategraph._values.provenance import EdgeStructure, ErrorInfo, GraphStructure, ParentStep, RunStatus
from stategraph.errors import CheckpointNotFoundError, InvalidRunIdError, StepConflictError
from stategraph.state import State
from stategraph.stores import CheckpointStore
from stategraph.testing.corpus import HOSTILE_RUN_IDS, KEPT_VALUES, RUN_IDS
from stategraph.testing.history import HistoryContract
from stategraph.testing.owning import OwningContract
from stategraph.testing.values import PAUSE, ValuesContract, check_each, saved_at


class CheckpointStoreContract(ValuesContract, HistoryContract, OwningContract):
    """Inherit from this and give it a fixture named ``store`` that makes an empty store.

    Set `keeps_history` to False for a store that keeps the newest State of a run only. Values of finished parts are
    skipped for a store whose `CheckpointStore.keeps_parts` is False.
    """

    @pytest.fixture
    def store(self) -> CheckpointStore:
        """Return an empty store: the tests of a store replace this."""
        raise NotImplementedError("give the test class a fixture named store that makes an empty store")

    # ------------------------------------------------------------------ one run

    def test_what_is_saved_is_loaded(self, store: CheckpointStore) -> None:
        """A loaded State equals the saved one, in data and in provenance."""
        state = State(
            {"topic": "checkpoints"},
            run_id="a",
            checkpoint_node="draft",
            step=3,
            timestamp=datetime(2024, 2, 29, 1, 2, 3, 456789, tzinfo=UTC),
            status=RunStatus.FAILED,
            graph="review",
            structure=GraphStructure(("draft", "publish"), (EdgeStructure("draft", "publish", "always()"),)),
            error=ErrorInfo("ValueError", "no topic", "publish"),
            parent=ParentStep("b", 2),
        )

        store.save(state)

        assert store.load("a") == state
        assert store.load("a").fingerprint == state.fingerprint

    def test_the_newest_step_is_loaded(self, store: CheckpointStore) -> None:
        """A later step takes the place of an earlier one. A clock that goes backwards changes nothing."""
        noon = datetime(2024, 1, 1, 12, tzinfo=UTC)
        for step in (1, 2, 5):
            store.save(State({"n": step}, run_id="a", step=step, timestamp=noon - timedelta(hours=step)))

        assert store.load("a")["n"] == 5
        assert store.load("a", 5)["n"] == 5
        with pytest.raises(CheckpointNotFoundError, match="step 7"):
            store.load("a", 7)

    def test_a_step_may_change_its_status(self, store: CheckpointStore) -> None:
        """The newest step is saved again when the run fails or completes after it."""
        state = State({"n": 1, "nan": float("nan")}, run_id="a", step=1)
        store.save(state)

        failed = State(dict(state), run_id="a", step=1, status="failed", error=ErrorInfo("ValueError", "no", "b"))
        store.save(failed)

        assert store.load("a").status is RunStatus.FAILED
        assert store.load("a").error == failed.error

    @pytest.mark.parametrize(("step", "reason"), [(5, "step 5"), (3, "step 3 is behind step 5")])
    def test_a_saved_step_is_not_replaced(self, store: CheckpointStore, step: int, reason: str) -> None:
        """Other data for the newest step, or a step before it, are refused, and the saved State stays."""
        state = State({"n": 1}, run_id="a", step=5)
        store.save(state)

        with pytest.raises(StepConflictError, match=reason):
            store.save(State({"n": 2}, run_id="a", step=step))

        assert store.load("a") == state

    def test_amend_changes_the_data_of_the_newest_step(self, store: CheckpointStore) -> None:
        """A run that is brought back to life has its newest State replaced; an older one is refused as by save."""
        store.save(State({"n": 1}, run_id="a", step=2))

        store.amend(State({"n": 2}, run_id="a", step=2))

        assert store.load("a")["n"] == 2
        with pytest.raises(StepConflictError):
            store.amend(State(run_id="a", step=1))

    # ------------------------------------------------------------------ several runs

    def test_a_run_that_is_not_there(self, store: CheckpointStore) -> None:
        """Loading it names the run; deleting it is no error."""
        with pytest.raises(CheckpointNotFoundError, match="'nobody'"):
            store.load("nobody")
        with pytest.raises(LookupError):
            store.load("nobody", 3)
        store.delete("nobody")
        assert store.list() == []

    def test_delete_forgets_only_that_run(self, store: CheckpointStore) -> None:
        """All others stay, however alike their ids are; its own can be used again."""
        others = ["a+1", "a-1", "a.1", "a/1", "a/b", "a:1", "a=1", "a@1", "ab", "b"]
        for run_id in [*others, "a"]:
            for step in (1, 2):
                store.save(State({"id": run_id}, run_id=run_id, step=step))
        assert store.list() == sorted([*others, "a"])

        store.delete("a")
        store.delete("a")

        assert store.list() == others
        assert [(store.load(run_id)["id"], store.load(run_id).step) for run_id in others] == [(o, 2) for o in others]
        with pytest.raises(CheckpointNotFoundError):
            store.load("a")
        store.save(State({"new": True}, run_id="a", step=1))
        assert store.load("a")["new"] is True

    # ------------------------------------------------------------------ ids

    def test_run_ids(self, store: CheckpointStore) -> None:
        """Every id in the grammar can be saved, listed, loaded and deleted."""

        def check(run_id: str) -> None:
            store.save(State(run_id=run_id, step=1))
            assert store.list() == [run_id]
            assert store.load(run_id).run_id == run_id
            store.delete(run_id)
            assert store.list() == []

        check_each(zip(RUN_IDS, RUN_IDS, strict=True), check)

    def test_hostile_run_ids_are_refused(self, store: CheckpointStore) -> None:
        """No id becomes a path or a part of a query: what is not in the grammar goes nowhere."""

        def check(run_id: Any) -> None:
            for ask in (lambda run_id: State(run_id=run_id), store.load, store.delete, store.owner):
                with pytest.raises(InvalidRunIdError):
                    ask(run_id)

        check_each(((ascii(run_id)[:30], run_id) for run_id in HOSTILE_RUN_IDS), check)

    # ------------------------------------------------------------------ lists, pauses

    def test_runs_reports_every_run(self, store: CheckpointStore) -> None:
        """Its newest checkpoint, why it failed and what it waits for, filtered by status and graph."""
        error = ErrorInfo("ValueError", "no topic", "draft")
        store.save(State(run_id="a", step=1, graph="review"))
        store.save(State(run_id="b", step=2, graph="review", status="failed", error=error, checkpoint_node="plan"))
        store.save(State(run_id="c", step=3, graph="other", status="paused", pause=PAUSE))

        assert {run.run_id for run in store.runs()} == {"a", "b", "c"}
        assert store.runs(status="completed") == []
        (row,) = store.runs(status="failed", graph="review")
        assert (row.run_id, row.step, row.checkpoint_node, row.error) == ("b", 2, "plan", error)
        assert (row.timestamp, row.pause) == (store.load("b").timestamp, None)
        (row,) = store.runs(graph="other")
        assert (row.run_id, row.status, row.pause) == ("c", RunStatus.PAUSED, PAUSE)
        assert store.history("c")[-1].pause == PAUSE

    def test_runs_come_in_pages(self, store: CheckpointStore) -> None:
        """The cursor of the last row of a page leads to the next page; each run comes once, in the same order."""
        for number in range(7):
            store.save(State(run_id=f"run-{number}", step=1))
        pages = [store.runs(limit=3)]
        while pages[-1]:
            pages.append(store.runs(limit=3, after=pages[-1][-1].cursor))

        assert [len(page) for page in pages] == [3, 3, 1, 0]
        assert [run.run_id for page in pages for run in page] == [run.run_id for run in store.runs()]

    def test_a_saved_step_pauses_and_goes_on(self, store: CheckpointStore) -> None:
        """The same step is saved without a pause, with one, with another, and without."""
        pauses = PAUSE, attrs.evolve(PAUSE, reason="x", value=None, response_param=None, deadline=None), None
        paused = [saved_at(2, status="paused" if pause else "active", pause=pause) for pause in pauses]
        for saved in (saved_at(2), *paused):
            store.save(saved)
            assert store.load("a") == saved
            assert store.load("a").pause == store.runs()[0].pause == saved.pause

        store.save(saved_at(3))
        assert store.load("a").pause is None

    # ------------------------------------------------------------------ all at once

    def test_threads_save_side_by_side(self, store: CheckpointStore) -> None:
        """Runs of different threads do not disturb each other."""

        def run(name: str) -> None:
            for step in range(1, 21):
                store.save(State({"n": step}, run_id=name, step=step))

        names = [f"run-{number}" for number in range(8)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(run, names))

        assert store.list() == names
        assert {store.load(name).step for name in names} == {20}

    def test_a_reader_sees_the_old_state_or_the_new_one(self, store: CheckpointStore) -> None:
        """Never a mixture of both."""
        store.save(State({"a": 0, "b": [0] * 100}, run_id="a", step=1))
        done = threading.Event()

        def read() -> bool:
            consistent = True
            while not done.is_set():
                state = store.load("a")
                consistent = consistent and set(state["b"]) == {state["a"]} and state.step == state["a"] + 1
            return consistent

        with ThreadPoolExecutor(2) as pool:
            readers = [pool.submit(read) for _ in range(2)]
            try:
                for n in range(1, 60):
                    store.save(State({"a": n, "b": [n] * 100}, run_id="a", step=n + 1))
            finally:
                done.set()

        assert all(reader.result() for reader in readers)

    def test_nothing_is_imported_because_of_what_is_stored(self, store: CheckpointStore) -> None:
        """Loading makes values of known types and needs no other module."""
        store.save(State(KEPT_VALUES, run_id="a", step=1))
        store.load("a")
        modules = set(sys.modules)

        store.load("a")

        assert set(sys.modules) == modules
