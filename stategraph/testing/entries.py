"""The promises of a store about entries: the journal of the step under way, and the inbox."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from stategraph._owners.base import on_behalf_of, owned
from stategraph._values.entries import Entry
from stategraph._values.progress import Progress
from stategraph._values.provenance import Kind
from stategraph.errors import CheckpointNotFoundError, NotSerializableError, RunBusyError
from stategraph.state import State, evolve, recorded, taken_of
from stategraph.stores import CheckpointStore
from stategraph.testing.values import saved_at

_SENDERS, _MESSAGES = 4, 15


def _values(entries: list[Entry]) -> list[Any]:
    return [entry.value for entry in entries]


def _in_threads(*calls: Callable[[], object]) -> None:
    """Make calls at the same time, each in a thread."""
    with ThreadPoolExecutor(len(calls)) as threads:
        for made in [threads.submit(call) for call in calls]:
            made.result()


class EntriesContract:
    """The part of `CheckpointStoreContract` about `append` and `entries`, for a store with `keeps_entries`.

    It needs a fixture named ``store`` that returns an empty store.
    """

    @pytest.fixture
    def at_work(self, store: CheckpointStore) -> CheckpointStore:
        """Return the store, with a run "a" that has completed two steps."""
        if not store.keeps_entries:
            pytest.skip("keeps_entries is False: this store has no append and entries")
        store.save(saved_at(2))
        return store

    # ------------------------------------------------------------------ the journal

    def test_the_journal_is_of_a_step(self, at_work: CheckpointStore) -> None:
        """Entries come back complete and in order, by step and by kind."""
        made = [
            Entry("effect", {"id": 1}, 3, "pay", "charge", "0a", by="ada", at_ns=1_700_000_000_000_000_001),
            Entry("spend", 0.5, 3, "pay"),
            Entry("spend", 0.5, 3, "pay"),
        ]

        kept = at_work.append("a", made)
        at_work.append("a", [Entry("chunk", "x", 3, "write")])

        assert [entry.seq for entry in kept] == [1, 2, 3]
        assert at_work.entries("a", step=3)[:3] == kept
        assert at_work.entries("a", kinds=("chunk", "spend"), after=2) == at_work.entries("a", after=2)
        assert _values(at_work.entries("a", step=3, kinds={"spend"})) == [0.5, 0.5]
        assert at_work.entries("a", step=2) == at_work.entries("a", step=0) == at_work.entries("b") == []
        assert at_work.load("a") == saved_at(2)

    def test_a_later_entry_replaces_one_of_its_name(self, at_work: CheckpointStore) -> None:
        """It has the number of the earlier one. Step, kind and place belong to the name."""
        for value in range(3):
            at_work.append(
                "a", [Entry("effect", value, 3, "pay", "charge"), Entry("status", value, 3, "pay", "charge")]
            )
        at_work.append("a", [Entry("effect", 9, 3, "send", "charge")])

        assert [(entry.seq, entry.value) for entry in at_work.entries("a")] == [(1, 2), (2, 2), (3, 9)]

    def test_the_next_step_removes_the_journal(self, at_work: CheckpointStore) -> None:
        """Saving the same step again, as when a run fails, does not."""
        at_work.append("a", [Entry("part", 1, 3, "map", "0")])
        at_work.save(saved_at(2, status="failed"))
        assert _values(at_work.entries("a")) == [1]

        at_work.save(saved_at(3))

        assert at_work.entries("a") == []
        assert _values(at_work.append("a", [Entry("part", 2, 4, "map", "0")])) == [2]

    def test_chunks_stay_for_late_readers(self, at_work: CheckpointStore) -> None:
        """The State after a hundred further steps removes them; a rollback removes all."""
        for step in (3, 4):
            at_work.append("a", [Entry("chunk", step, step, "write"), Entry("spend", step, step, "write")])
            if step == 3:
                at_work.save(saved_at(3))
        assert _values(at_work.entries("a", kinds={"chunk"})) == [3, 4]

        at_work.save(saved_at(103))

        assert _values(at_work.entries("a")) == [4]
        at_work.rollback("a", 103)
        assert at_work.entries("a") == []

    def test_only_the_owner_writes_the_journal(self, at_work: CheckpointStore) -> None:
        """Another call is refused, and a lost owner as well."""
        refused: list[Exception] = []

        def append() -> None:
            try:
                at_work.append("a", [Entry("spend", 1, 3)])
            except RunBusyError as error:
                refused.append(error)

        with owned(at_work, "a"):
            _in_threads(append)
            at_work.append("a", [Entry("spend", 2, 3)])

        assert len(refused) == 1
        assert _values(at_work.entries("a")) == [2]

    def test_a_rollback_removes_the_journal(self, at_work: CheckpointStore) -> None:
        """The steps that follow are others."""
        at_work.append("a", [Entry("part", 1, 3, "map", "0")])

        at_work.rollback("a", 2)

        assert at_work.entries("a") == []

    def test_a_fork_has_the_journal_of_its_next_step(self, at_work: CheckpointStore) -> None:
        """It does not have the inbox, which belongs to the source."""
        at_work.append("a", [Entry("part", 1, 3, "map", "0")])
        at_work.append("a", [Entry("message", 1)])

        at_work.fork("a", "b")
        at_work.delete("a")

        assert _values(at_work.entries("b")) == [1]

    def test_a_fork_numbers_its_inbox_after_all_that_has_begun(self, at_work: CheckpointStore) -> None:
        """Otherwise a new turn would count as one that has begun."""
        at_work.save(saved_at(3, progress=Progress(taken=1, turns=2)))

        at_work.fork("a", "b")

        assert at_work.append("b", [Entry("turn", 1, name="k")])[0].seq == 3
        assert taken_of(at_work.load("b")) == 2

    def test_a_rollback_and_a_fork_are_due_by_their_states(self, at_work: CheckpointStore) -> None:
        """A rollback takes back why a run was due; a fork is due when its source is."""
        at_work.append("a", [Entry("turn", 1, name="k")])
        assert [run.run_id for run in at_work.runs(overdue=True)] == ["a"]

        at_work.rollback("a", 2)
        assert at_work.runs(overdue=True) == []

        at_work.save(saved_at(3, progress=Progress(due_ns=1_000_000), generation=1))
        at_work.fork("a", "b")
        assert {run.run_id for run in at_work.runs(overdue=True)} == {"a", "b"}

    @pytest.mark.parametrize("step", [3, 4])
    def test_parts_of_a_step_append_at_the_same_time(self, at_work: CheckpointStore, step: int) -> None:
        """No entry replaces another, even while a reader looks at the run. The step need not be the next one."""

        def look() -> None:
            for _ in range(_MESSAGES):
                at_work.load("a")
                at_work.entries("a", step=step)

        def append() -> None:
            for number in range(_MESSAGES):
                with on_behalf_of(ownership):
                    at_work.append("a", [Entry("spend", number, step, "map")])

        with owned(at_work, "a") as ownership:
            _in_threads(look, *[append] * _SENDERS)

        assert sorted(_values(at_work.entries("a"))) == sorted([*range(_MESSAGES)] * _SENDERS)

    def test_what_is_spent_is_spent(self, at_work: CheckpointStore) -> None:
        """Neither a step that drops its parts nor a rollback takes it back."""
        at_work.append("a", [Entry("part", 1, 3, "map", "0"), Entry("spend", {"usd": 0.1}, 3, "map")])

        at_work.drop_parts("a", 3, newer_too=True)
        at_work.append("a", [Entry("spend", {"usd": 2}, 3, "map")])

        assert _values(at_work.entries("a")) == [{"usd": 0.1}, {"usd": 2}]
        at_work.save(saved_at(2, progress=Progress(spent={"usd": "1/10"})))
        assert at_work.rollback("a", 2).spent == at_work.load("a").spent == {"usd": 2.2}
        assert at_work.entries("a") == []

    def test_other_input_gives_the_step_up(self, at_work: CheckpointStore) -> None:
        """In the commit of `amend`: what was done was for the input before; what is spent is spent."""
        spent = Entry("spend", {"usd": 0.1}, 3, "pay")
        at_work.append("a", [Entry("part", 1, 3, "map", "0"), spent, Entry("effect", {}, 3, "pay", "x")])
        at_work.amend(recorded(saved_at(2), Kind.UPDATE))
        assert len(at_work.entries("a")) == 3

        at_work.amend(evolve(saved_at(2), checkpoint_node="").set("n", 5))

        assert _values(at_work.entries("a")) == [spent.value]
        at_work.append("a", [Entry("effect", {}, 3, "pay", "x")])
        assert len(at_work.entries("a")) == 2

    # ------------------------------------------------------------------ the inbox

    def test_anyone_appends_to_the_inbox(self, at_work: CheckpointStore) -> None:
        """Also while a call owns the run. Entries are numbered in order."""
        with owned(at_work, "a"):
            _in_threads(lambda: at_work.append("a", [Entry("message", 1), Entry("message", 2)]))
            at_work.append("a", [Entry("answer", 3, name="k", by="ada")])

        assert [(entry.seq, entry.value) for entry in at_work.entries("a", step=0)] == [(1, 1), (2, 2), (3, 3)]
        assert _values(at_work.entries("a", step=0, after=1, kinds={"message"})) == [2]

    def test_an_entry_with_a_name_is_appended_once(self, at_work: CheckpointStore) -> None:
        """The earlier one stays, and is returned."""
        first = at_work.append("a", [Entry("turn", "hello", name="event-1", made_of="0a")])

        again = at_work.append("a", [Entry("turn", "other", name="event-1"), Entry("message", "m", name="event-1")])

        assert again[0] == first[0]
        assert _values(at_work.entries("a")) == ["hello", "m"]

    def test_a_state_takes_entries_in(self, at_work: CheckpointStore) -> None:
        """Its save removes those up to the number that it has taken, except names; numbers are never used again."""
        at_work.append("a", [Entry("message", 1), Entry("message", 2, name="k"), Entry("message", 3)])

        at_work.save(saved_at(3, progress=Progress(taken=2)))

        assert _values(at_work.entries("a", step=0)) == [2, 3]
        assert [entry.seq for entry in at_work.append("a", [Entry("message", 4), Entry("message", 5, name="k")])] == [
            4,
            2,
        ]
        at_work.save(saved_at(4, progress=Progress(taken=4)))
        assert _values(at_work.entries("a", step=0, after=4)) == []

    def test_senders_at_the_same_time_lose_nothing(self, at_work: CheckpointStore) -> None:
        """Each entry is there once, and the entries of each sender are in order."""

        def send(sender: int) -> None:
            for number in range(_MESSAGES):
                at_work.append("a", [Entry("message", [sender, number])])

        _in_threads(*(partial(send, sender) for sender in range(_SENDERS)))

        entries = at_work.entries("a", step=0)
        assert [entry.seq for entry in entries] == [*range(1, _SENDERS * _MESSAGES + 1)]
        for sender in range(_SENDERS):
            assert [entry.value[1] for entry in entries if entry.value[0] == sender] == [*range(_MESSAGES)]

    # ------------------------------------------------------------------ both

    def test_what_cannot_be_kept_is_refused(self, at_work: CheckpointStore) -> None:
        """Nothing of the same call is appended, and the error names the entry."""
        for entries in ([Entry("spend", 1, 3), Entry("effect", object(), 3, "pay", "x")], [Entry("message", object())]):
            with pytest.raises(NotSerializableError, match=entries[-1].kind):
                at_work.append("a", entries)
        assert at_work.entries("a") == []

    def test_there_must_be_a_run(self, at_work: CheckpointStore) -> None:
        """A deleted run takes its entries along, and a new run of its id has none."""
        at_work.append("a", [Entry("message", 1), Entry("message", 2, name="k")])
        at_work.append("a", [Entry("part", 1, 3, "map", "0")])

        at_work.delete("a")

        for entry in (Entry("message", 1), Entry("part", 1, 3)):
            with pytest.raises(CheckpointNotFoundError):
                at_work.append("a", [entry])
        at_work.save(State(run_id="a", step=2))
        assert at_work.entries("a") == []

    def test_wrong_entries_are_refused(self, at_work: CheckpointStore) -> None:
        """A mistake is an error, not a lost entry."""
        with pytest.raises(ValueError, match="one by one"):
            at_work.append("a", [Entry("message", 1), Entry("spend", 1, 3)])
        with pytest.raises(ValueError, match="kinds"):
            at_work.entries("a", kinds=("letter",))
