"""The promises of a store about what it reports without loading data, and about runs that wait or are cancelled."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import attrs
import pytest

from stategraph._owners.holds import held
from stategraph._values.provenance import ErrorInfo, Kind, RunStatus
from stategraph.errors import CheckpointNotFoundError, RunCompleteError
from stategraph.state import State
from stategraph.stores import CheckpointStore
from stategraph.stores.base import RetentionPolicy
from stategraph.testing.values import PAUSE, saved_at

_WRONG: list[dict[str, Any]] = [
    *({"labels": 5}, {"labels": {"a": 1}}, {"since": datetime(2024, 1, 1)}, {"prefix": 5}, {"owned": 5}),
    *({"status": "pausd"}, {"limit": 0}, {"limit": "5"}, {"after": "x"}, {"after": 5}),
]
"""Arguments of `CheckpointStore.runs` that are refused."""


class LookingContract:
    """The part of `CheckpointStoreContract` that is about looking."""

    # ------------------------------------------------------------------ runs

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
        assert row.labels == store.load("run-4").labels == {"customer": "c1", "kind": "order"}

    @pytest.mark.parametrize("arguments", _WRONG, ids=str)
    def test_runs_refuses_what_finds_nothing(self, store: CheckpointStore, arguments: dict[str, Any]) -> None:
        """A wrong filter, limit or cursor is an error that names it, not an empty page."""
        with pytest.raises(ValueError, match=next(iter(arguments))):
            store.runs(**arguments)

    def test_runs_names_an_argument_that_it_does_not_take(self, store: CheckpointStore) -> None:
        """And the one that was meant."""
        for ask in (store.runs, store.count):
            with pytest.raises(TypeError, match=r"^runs\(\) got .* 'lables'; did you mean 'labels'"):
                ask(lables={"a": "b"})  # type: ignore[call-arg]

    # ------------------------------------------------------------------ pauses

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

    # ------------------------------------------------------------------ verify, changed_since

    def test_verify_reads_everything(self, store: CheckpointStore) -> None:
        """It counts the runs by their status, and what it has read of them; nothing is damaged, and nothing changes."""
        assert store.verify().runs == {}
        store.retain("a", RetentionPolicy("full"))
        for step in (1, 2, 3):
            store.save(State({"n": step}, run_id="a", step=step))
        store.save(State({"n": 1}, run_id="b", step=1, status="completed"))
        before = [store.load(run_id) for run_id in ("a", "b")]

        found = store.verify()

        assert found.runs == {"active": 1, "completed": 1}
        assert found.checkpoints == sum(len(store.history(run_id)) for run_id in ("a", "b"))
        assert (found.nested, found.damaged, found.unreadable) == (0, (), ())
        assert [store.load(run_id) for run_id in ("a", "b")] == before

    @pytest.mark.parametrize("about", [(), ("a",)], ids=["of the store", "of a run"])
    def test_each_change_is_noticed(self, store: CheckpointStore, about: tuple[str, ...]) -> None:
        """A run that begins, goes on, ends at the same step, is copied, taken back, or deleted. Reading changes
        nothing."""
        token = store.changed_since(None, *about)
        changes: list[Callable[[], object]] = [
            lambda: store.save(State({"n": 1}, run_id="a", step=1)),
            lambda: store.save(State({"n": 2}, run_id="a", step=2)),
            lambda: store.save(State({"n": 2}, run_id="a", step=2, status="completed")),
            lambda: store.amend(State({"n": 3}, run_id="a", step=2)),
            lambda: store.rollback("a", 2),
            lambda: store.delete("a"),
        ]
        if not about:
            changes.insert(4, lambda: store.fork("a", "b"))

        for change in changes:
            change()
            newer = store.changed_since(token, *about)
            assert newer is not None
            assert newer != token
            token = newer
            assert len(store.runs()) == len([store.load(run_id) for run_id in store.list()])
            assert [store.changed_since(token, *about) for _ in range(3)] == [None, None, None]

    # ------------------------------------------------------------------ cancel

    def test_a_run_that_nobody_is_at_work_on_is_cancelled_at_once(self, store: CheckpointStore) -> None:
        """With its data as they are; the history knows by whom. To cancel it once more changes nothing."""
        store.save(State({"n": 1}, run_id="a", step=1, checkpoint_node="one"))

        assert store.cancel("a", by="ann") is None

        state = store.load("a")
        assert (state.status, state.kind, state.by, state["n"]) == (RunStatus.CANCELLED, Kind.CANCEL, "ann", 1)
        assert store.cancel("a") is None
        assert store.load("a") == state

    def test_only_an_unfinished_run_is_cancelled(self, store: CheckpointStore) -> None:
        """Neither one that is not there, nor one that is complete."""
        store.save(State(run_id="a", step=1, status="completed"))

        with pytest.raises(RunCompleteError):
            store.cancel("a")
        with pytest.raises(CheckpointNotFoundError):
            store.cancel("nobody")
