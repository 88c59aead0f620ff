"""CheckpointStoreContract: the promises of a store, as tests that every store passes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import attrs
import pytest

from stategraph._values.provenance import EdgeStructure, ErrorInfo, GraphStructure, ParentStep, RunStatus
from stategraph._values.sameness import is_same
from stategraph.config import CheckpointConfig, GraphConfig
from stategraph.errors import (
    CheckpointNotFoundError,
    InvalidRunIdError,
    RunBusyError,
    RunExistsError,
    RunLostError,
    StepConflictError,
)
from stategraph.graph import StateGraph
from stategraph.state import State
from stategraph.stores import CheckpointStore
from stategraph.stores.base import RetentionPolicy
from stategraph.testing.corpus import HOSTILE_RUN_IDS, KEPT_VALUES, RUN_IDS, Order
from stategraph.testing.entries import EntriesContract
from stategraph.testing.values import PAUSE, ValuesContract, check_each, saved_at

RUN = "order-1"
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


def graph_of(
    store: CheckpointStore, interfere: Callable[[], Any] = dict, *, has_third: bool = False, **options: Any
) -> StateGraph:
    """Return a graph of two or three steps. During the second, another thread calls `interfere`."""

    def second(state: State) -> dict[str, Any]:
        with ThreadPoolExecutor(1) as thread:
            thread.submit(interfere).result()
        return {"made": [*state["made"], "b"]}

    checkpoint = CheckpointConfig(**{"interval": 1, "preserve": True, **options})
    graph = StateGraph(GraphConfig("orders", checkpoint=checkpoint), store=store)
    graph.add_node("a", lambda state: {"made": ["a"]})
    graph.add_node("b", second)
    graph.add_edge("a", "b")
    graph.set_entry_point("a")
    if has_third:
        graph.add_node("c", lambda state: {})
        graph.add_edge("b", "c")
    graph.set_exit_point("c" if has_third else "b")
    return graph


def long_run_of(steps: int) -> list[State]:
    """Return the States of a run: a list grows, a key comes and goes, and an object changes."""
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


_CHANGES: dict[str, Callable[[CheckpointStore], Any]] = {
    "save": lambda store: store.save(attrs.evolve(store.load(RUN), step=9)),
    "amend": lambda store: store.amend(store.load(RUN)),
    "delete": lambda store: store.delete(RUN),
    "rollback": lambda store: store.rollback(RUN, 1),
}

_each_durability = pytest.mark.parametrize("durability", ["sync", "async", "exit"])


class CheckpointStoreContract(ValuesContract, EntriesContract):
    """Tests for a store: inherit from this class and add a fixture named ``store`` that returns an empty store.

    Set `keeps_history` to False for a store that keeps only the newest State of a run. Tests of finished parts are
    skipped for a store whose `CheckpointStore.keeps_parts` is False, those of entries if `keeps_entries` is False.
    """

    keeps_history: ClassVar[bool] = True

    @pytest.fixture
    def store(self) -> CheckpointStore:
        """Return an empty store. Your test class replaces this fixture."""
        raise NotImplementedError("give the test class a fixture named store that makes an empty store")

    # ------------------------------------------------------------------ one run

    def test_a_saved_state_is_loaded(self, store: CheckpointStore) -> None:
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
        """A later step replaces an earlier one, even if the clock goes backwards."""
        noon = datetime(2024, 1, 1, 12, tzinfo=UTC)
        for step in (1, 2, 5):
            store.save(State({"n": step}, run_id="a", step=step, timestamp=noon - timedelta(hours=step)))

        assert store.load("a")["n"] == 5
        assert store.load("a", 5)["n"] == 5
        with pytest.raises(CheckpointNotFoundError, match="step 7"):
            store.load("a", 7)

    def test_a_step_may_change_its_status(self, store: CheckpointStore) -> None:
        """The newest step is saved again when the run fails or completes after it."""
        state = saved_at(1).set("nan", float("nan"))
        store.save(state)

        failed = attrs.evolve(state, status="failed", error=ErrorInfo("ValueError", "no", "b"))
        store.save(failed)

        assert store.load("a").status is RunStatus.FAILED
        assert store.load("a").error == failed.error

    @pytest.mark.parametrize(("step", "reason"), [(5, "step 5"), (3, "step 3 is older")])
    def test_a_saved_step_is_not_replaced(self, store: CheckpointStore, step: int, reason: str) -> None:
        """Saving an older step, or other data for the newest one, is refused and changes nothing."""
        store.save(saved_at(5))

        with pytest.raises(StepConflictError, match=reason):
            store.save(saved_at(step).set("n", 0))

        assert store.load("a") == saved_at(5)

    def test_amend_changes_the_data_of_the_newest_step(self, store: CheckpointStore) -> None:
        """`amend` replaces the newest State, and refuses an older step as `save` does."""
        store.save(saved_at(2))

        store.amend(saved_at(2).set("n", 0))

        assert store.load("a")["n"] == 0
        with pytest.raises(StepConflictError):
            store.amend(saved_at(1))

    # ------------------------------------------------------------------ several runs

    def test_an_unknown_run(self, store: CheckpointStore) -> None:
        """Loading it raises an error that names it. Deleting it is no error."""
        with pytest.raises(CheckpointNotFoundError, match="'missing'"):
            store.load("missing")
        with pytest.raises(LookupError):
            store.load("missing", 3)
        store.delete("missing")
        assert store.list() == []

    def test_delete_forgets_only_that_run(self, store: CheckpointStore) -> None:
        """Runs with similar ids stay, and the deleted id can be used again."""
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
        """Every allowed id can be saved, listed, loaded and deleted."""

        def check(run_id: str) -> None:
            store.save(State(run_id=run_id, step=1))
            assert store.list() == [run_id]
            assert store.load(run_id).run_id == run_id
            store.delete(run_id)
            assert store.list() == []

        check_each(zip(RUN_IDS, RUN_IDS, strict=True), check)

    def test_hostile_run_ids_are_refused(self, store: CheckpointStore) -> None:
        """Ids outside the grammar are refused, so no id becomes a path or a part of a query."""

        def check(run_id: Any) -> None:
            for call in (lambda run_id: State(run_id=run_id), store.load, store.delete, store.owner):
                with pytest.raises(InvalidRunIdError):
                    call(run_id)

        check_each(((ascii(run_id)[:30], run_id) for run_id in HOSTILE_RUN_IDS), check)

    # ------------------------------------------------------------------ lists, pauses

    def test_runs_lists_every_run(self, store: CheckpointStore) -> None:
        """It shows the newest checkpoint of each run with its error and pause, and filters by status and graph."""
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
        """The cursor of a page's last row leads to the next page. Each run comes once, in the same order."""
        for number in range(7):
            store.save(State(run_id=f"run-{number}", step=1))
        pages = [store.runs(limit=3)]
        while pages[-1]:
            pages.append(store.runs(limit=3, after=pages[-1][-1].cursor))

        assert [len(page) for page in pages] == [3, 3, 1, 0]
        assert [run.run_id for page in pages for run in page] == [run.run_id for run in store.runs()]

    def test_a_saved_step_pauses_and_continues(self, store: CheckpointStore) -> None:
        """A step can be saved without a pause, with a pause, with another pause, and without again."""
        pauses = PAUSE, attrs.evolve(PAUSE, reason="x", value=None, response_param=None, deadline=None), None
        paused = [saved_at(2, status="paused" if pause else "active", pause=pause) for pause in pauses]
        for saved in (saved_at(2), *paused):
            store.save(saved)
            assert store.load("a") == saved
            assert store.load("a").pause == store.runs()[0].pause == saved.pause

        store.save(saved_at(3))
        assert store.load("a").pause is None

    # ------------------------------------------------------------------ threads

    def test_threads_save_side_by_side(self, store: CheckpointStore) -> None:
        """Runs in different threads do not disturb each other."""

        def run(name: str) -> None:
            for step in range(1, 21):
                store.save(State({"n": step}, run_id=name, step=step))

        names = [f"run-{number}" for number in range(8)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(run, names))

        assert store.list() == names
        assert {store.load(name).step for name in names} == {20}

    def test_a_reader_sees_the_old_state_or_the_new_one(self, store: CheckpointStore) -> None:
        """A reader never sees a mixture of both."""
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

    def test_loading_imports_nothing(self, store: CheckpointStore) -> None:
        """Stored data never cause an import: loading makes values of known types only."""
        store.save(State(KEPT_VALUES, run_id="a", step=1))
        store.load("a")
        modules = set(sys.modules)

        store.load("a")

        assert set(sys.modules) == modules

    # ------------------------------------------------------------------ the past of runs

    def test_the_default_history_is_the_newest_checkpoint(self, store: CheckpointStore) -> None:
        """Older steps cannot be loaded. An unknown run has no history."""
        for step in (1, 2, 3):
            store.save(saved_at(step, checkpoint_node=f"node-{step}"))

        assert [(row.step, row.checkpoint_node) for row in store.history("a")] == [(3, "node-3")]
        assert store.history("missing") == []
        with pytest.raises(CheckpointNotFoundError, match="step 2"):
            store.load("a", 2)

    # ------------------------------------------------------------------ forks

    def test_a_fork_is_an_independent_copy(self, store: CheckpointStore) -> None:
        """It is active, names its parent, and survives the deletion of its source."""
        store.save(saved_at(4, status="failed", error=ErrorInfo("ValueError", "", "x")))

        forked = store.fork("a", "b")
        store.delete("a")

        assert store.load("b") == forked
        assert (forked["n"], forked.step, forked.status, forked.error) == (4, 4, RunStatus.ACTIVE, None)
        assert forked.parent == ParentStep("a", 4)
        store.save(attrs.evolve(forked.set("n", 0), step=5))
        assert store.load("b")["n"] == 0

    def test_a_fork_of_a_paused_run_is_active(self, store: CheckpointStore) -> None:
        """It continues with the node that waits."""
        store.save(saved_at(2, status="paused", pause=PAUSE))

        forked = store.fork("a", "b")

        assert store.load("b") == forked
        assert (forked.status, forked.pause) == (RunStatus.ACTIVE, None)
        assert forked.progress is not None
        assert forked.progress.next_node == PAUSE.node

    def test_a_fork_never_replaces_a_run(self, store: CheckpointStore) -> None:
        """A used id is an error, and so is an unknown source."""
        store.save(saved_at(1))
        store.save(attrs.evolve(saved_at(2), run_id="b"))

        with pytest.raises(RunExistsError, match="'b'"):
            store.fork("a", "b")
        with pytest.raises(CheckpointNotFoundError):
            store.fork("missing", "c")
        with pytest.raises(InvalidRunIdError):
            store.fork("a", "../c")
        assert store.load("b")["n"] == 2

    # ------------------------------------------------------------------ stores that keep a history

    @pytest.fixture
    def full(self, store: CheckpointStore) -> CheckpointStore:
        """Return the store after asking it to keep the full history of run "a"."""
        if not self.keeps_history:
            pytest.skip("keeps_history is False: this store keeps only the newest State of a run")
        store.retain("a", RetentionPolicy("full"))
        return store

    @pytest.fixture
    def long_run(self, full: CheckpointStore) -> CheckpointStore:
        """Return the store with all 60 steps of a run "a", made by `long_run_of`."""
        for state in long_run_of(60):
            full.save(state)
        return full

    def test_every_step_can_be_loaded(self, long_run: CheckpointStore) -> None:
        """With retention "full" each step keeps its values and types, and the history lists it."""
        for state, row in zip(long_run_of(60), long_run.history("a"), strict=True):
            loaded = long_run.load("a", state.step)
            assert is_same(dict(loaded), dict(state))
            assert loaded.checkpoint_node == row.checkpoint_node == state.checkpoint_node
            assert row.step == state.step
        assert list(long_run.iter_history("a")) == long_run.history("a")

    @pytest.mark.parametrize("window", [1, 5, 40])
    def test_a_window_keeps_the_newest(self, full: CheckpointStore, window: int) -> None:
        """Exactly as many checkpoints as the window are listed and loaded. A rollback deletes later ones."""
        full.retain("a", RetentionPolicy("windowed", window=window))
        states = long_run_of(60)
        for state in states:
            full.save(state)

        assert [row.step for row in full.history("a")] == list(range(61 - window, 61))
        assert is_same(dict(full.load("a", 61 - window)), dict(states[60 - window]))
        with pytest.raises(CheckpointNotFoundError, match=f"step {60 - window}"):
            full.load("a", 60 - window)
        back = 60 - window // 2
        full.rollback("a", back)
        assert max(row.step for row in full.history("a")) == back

    def test_rollback_deletes_later_steps(self, long_run: CheckpointStore) -> None:
        """The run continues from there. A rollback to an unknown step deletes nothing."""
        with pytest.raises(CheckpointNotFoundError, match="step 99"):
            long_run.rollback("a", 99)
        assert long_run.load("a").step == 60

        state = long_run.rollback("a", 20)

        assert state.step == 20
        assert long_run.load("a") == state
        long_run.save(State({"other": "way"}, run_id="a", step=21))
        assert is_same(dict(long_run.load("a")), {"other": "way"})
        assert long_run.load("a", 20) == state

    def test_a_fork_has_the_history(self, long_run: CheckpointStore) -> None:
        """It has every step up to the fork, even after its source is deleted. A rollback keeps its parent."""
        states = long_run_of(60)
        forked = long_run.fork("a", "b", 30)
        long_run.delete("a")

        assert long_run.load("b") == forked
        assert [row.step for row in long_run.history("b")] == list(range(1, 31))
        for step in (1, 17, 29, 30):
            assert is_same(dict(long_run.load("b", step)), dict(states[step - 1]))
        long_run.save(attrs.evolve(forked.set("n", "new"), step=31))
        assert long_run.load("b")["n"] == "new"
        assert long_run.rollback("b", 20).parent == long_run.load("b").parent == forked.parent

    def test_prune_removes_expired_runs(self, full: CheckpointStore) -> None:
        """It removes completed runs after their ttl, and never a run that can be resumed."""
        for run_id, status in (("done", "completed"), ("failed", "failed"), ("active", "active")):
            full.retain(run_id, RetentionPolicy(ttl=60))
            full.save(State(run_id=run_id, step=1, status=RunStatus(status), timestamp=LONG_AGO))
        full.retain("fresh", RetentionPolicy(ttl=3600))
        full.save(State(run_id="fresh", step=1, status="completed"))
        full.save(State(run_id="forever", step=1, status="completed", timestamp=LONG_AGO))

        assert full.prune().runs == ("done",)

        assert full.list() == ["active", "failed", "forever", "fresh"]
        assert full.prune().runs == ()

    # ------------------------------------------------------------------ owners

    def test_a_run_is_owned_while_a_call_works_on_it(self, store: CheckpointStore) -> None:
        """It has no owner before and afterwards."""
        owners: list[Any] = [store.owner(RUN)]
        graph_of(store, lambda: owners.append(store.owner(RUN))).execute(State(run_id=RUN))

        before, during = owners
        assert before is store.owner(RUN) is None
        assert during.pid > 0
        assert during.host
        assert during.since.tzinfo is not None

    @_each_durability
    @pytest.mark.parametrize("how", ["execute", "resume"])
    def test_a_second_call_is_refused(self, store: CheckpointStore, how: str, durability: Any) -> None:
        """It is refused before anything runs or is saved, and the error names the owner. The first call continues."""
        refused: list[RunBusyError] = []

        def second() -> None:
            with pytest.raises(RunBusyError) as raised:
                getattr(graph_of(store, pytest.fail), how)(State(run_id=RUN) if how == "execute" else RUN)
            refused.append(raised.value)

        state = graph_of(store, second, durability=durability).execute(State(run_id=RUN))

        assert state["made"] == ["a", "b"]
        assert store.load(RUN) == state
        assert refused[0].run_id == RUN
        assert refused[0].owner.pid > 0

    @pytest.mark.parametrize("change", _CHANGES.values(), ids=list(_CHANGES))
    def test_direct_changes_of_an_owned_run_are_refused(self, store: CheckpointStore, change: Any) -> None:
        """Calls on the store cannot change a run while a graph works on it."""

        def refused() -> None:
            with pytest.raises(RunBusyError):
                change(store)

        state = graph_of(store, refused, retention="full").execute(State(run_id=RUN))

        assert store.load(RUN) == state

    @_each_durability
    def test_an_owner_that_lost_its_run_writes_nothing_more(self, store: CheckpointStore, durability: Any) -> None:
        """Another call has taken the run over and completed it."""

        def taken_over() -> None:
            graph_of(store).execute(State({"by": "the second"}, run_id=RUN, step=5), take_over=True)

        with pytest.raises(RunLostError) as lost:
            graph_of(store, taken_over, durability=durability).execute(State({"by": "the first"}, run_id=RUN))

        assert store.load(RUN)["by"] == "the second"
        assert store.load(RUN).step == 7
        assert lost.value.run_id == RUN
        assert lost.value.state is not None
        assert lost.value.state["by"] == "the first"
        assert store.owner(RUN) is None

    @_each_durability
    @pytest.mark.parametrize("begins_again", [False, True])
    def test_a_deleted_run_does_not_come_back(
        self, store: CheckpointStore, durability: Any, begins_again: bool
    ) -> None:
        """Its former owner does not replace a new run of the same id either."""

        def deleted() -> None:
            store.delete(RUN, take_over=True)  # every store takes it
            if begins_again:
                store.save(State({"by": "another"}, run_id=RUN, step=1))

        with pytest.raises(RunLostError):
            graph_of(store, deleted, durability=durability).execute(State(run_id=RUN))

        if begins_again:
            assert store.load(RUN)["by"] == "another"
        else:
            with pytest.raises(CheckpointNotFoundError):
                store.load(RUN)
