"""With retention "full", what a history said before it still says afterwards, whatever is done."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import attrs
import pytest

from stategraph import CheckpointError, CheckpointNotFoundError, State
from stategraph.errors import RunExistsError
from stategraph.stores import CheckpointStore, Policy
from stategraph.stores.disk import DiskStore
from stategraph.stores.memory import MemoryStore
from stategraph.stores.sqlite import SqliteStore
from stategraph.stores.summaries import Summary
from tests.postgres_server import postgres_at
from tests.redis_server import redis_at
from tests.scenarios import HANDLES

_FULL = Policy("full")
_KINDS = {"failed": "failure", "completed": "end", "paused": "pause"}


def opened(kind: str, folder: Path) -> CheckpointStore:
    """-> a store, which is closed with the test."""
    kinds = {
        "memory": MemoryStore,
        "sqlite": lambda: SqliteStore(folder / "runs.db"),
        "disk": lambda: DiskStore(folder / "runs"),
        "postgres": lambda: postgres_at(folder),
        "redis": lambda: redis_at(folder),
    }
    HANDLES.append(kinds[kind]())
    return HANDLES[-1]


class Story:
    """A store, and all that was ever said of its runs."""

    def __init__(self, kind: str, folder: Path, seed: int) -> None:
        self.kind, self.folder, self.random = kind, folder, random.Random(seed)
        self.store = opened(kind, folder)
        self.said: dict[str, list[tuple[Summary, State]]] = {}
        self.count = 0

    def changed(self, state: State, **more: Any) -> State:
        self.count += 1
        data = {"log": [*state.get("log", ()), self.count], "n": self.count, "big": "x" * 100}
        return attrs.evolve(state.update(data), checkpoint_node=f"node-{self.count}", status="active", **more)

    def go_on(self, run_id: str) -> None:
        """Save a later step, or the same one as another revision of it."""
        store = self.store
        store.retain(run_id, _FULL)
        newest = store.load(run_id) if run_id in self.said else State(run_id=run_id)
        doing = self.random.choice(["step", "step", "steps", "status", "amend"])
        if run_id not in self.said or doing == "step":
            store.save(self.changed(newest, step=newest.step + self.random.choice([1, 1, 1, 4])))
        elif doing == "steps":
            states = [newest]
            for _ in range(self.random.randrange(1, 4)):
                states.append(self.changed(states[-1], step=states[-1].step + self.random.choice([0, 1])))
                if states[-1].step == states[-2].step:
                    states[-1] = attrs.evolve(states[-2], status="completed")
            store.save_many(states[1:])
        elif doing == "status":
            store.save(attrs.evolve(newest, status=self.random.choice([*_KINDS, "active"]), pause=None, facts=None))
        else:
            store.amend(self.changed(newest))

    def go_back(self, run_id: str) -> None:
        """To any row of the history: by step, or by step and revision."""
        row, state = self.random.choice(self.said[run_id])
        back = self.store.rollback(run_id, row.step, row.revision, by="anna")
        newest = self.store.history(run_id)[-1]
        assert dict(back) == dict(state)
        assert (newest.kind, newest.step, newest.by) == ("rollback", row.step, "anna")

    def fork(self, run_id: str) -> None:
        row, state = self.random.choice(self.said[run_id])
        new_id = self.random.choice(["a", "b", "c", "d"])
        before = [one for one, _ in self.said[run_id] if self.place(run_id, one) < self.place(run_id, row)]
        try:
            forked = self.store.fork(run_id, new_id, row.step, row.revision)
        except RunExistsError:
            assert new_id in self.said
            return
        assert dict(forked) == dict(state)
        told = [(one.step, one.revision, one.kind) for one in self.store.history(new_id)]
        assert told[:-1] == [(one.step, one.revision, one.kind) for one in before]

    def place(self, run_id: str, row: Summary) -> int:
        return [(one.step, one.revision) for one, _ in self.said[run_id]].index((row.step, row.revision))

    def refused(self, run_id: str) -> None:
        """What cannot be saved, or is not there, changes nothing."""
        newest = self.store.load(run_id)
        for attempt in (
            lambda: self.store.save(attrs.evolve(newest.set("n", "other"), facts=None)),
            lambda: self.store.rollback(run_id, newest.step + 10_000),
            lambda: self.store.load(run_id, newest.step, 10_000),
        ):
            with pytest.raises(CheckpointError):
                attempt()

    def open_again(self, run_id: str) -> None:
        if self.kind != "memory":
            self.store.close()
            self.store = opened(self.kind, self.folder)

    def check(self) -> None:
        """All that was said is still said, in the same order. Now and then, each State of it is loaded."""
        is_thorough = self.random.random() < 0.2
        for run_id in self.store.list():
            rows, said = self.store.history(run_id), self.said.get(run_id, [])
            assert [attrs.evolve(row, owner=None) for row, _ in said] == [
                attrs.evolve(row, owner=None) for row in rows[: len(said)]
            ]
            counted: dict[int, int] = {}
            for row in rows:
                assert row.revision == counted.get(row.step, 0)
                counted[row.step] = row.revision + 1
            for row, state in said if is_thorough else said[-3:]:
                assert self.store.load(run_id, row.step, revision=row.revision) == state
            for row in rows[len(said) :]:
                self.said.setdefault(run_id, []).append((row, self.store.load(run_id, row.step, row.revision)))
            newest = self.said[run_id][-1][1]
            assert self.store.load(run_id) == self.store.load(run_id, newest.step) == newest


@pytest.mark.parametrize("kind", ["memory", "sqlite", "disk", "postgres", "redis"])
@pytest.mark.parametrize("seed", range(4))
def test_what_was_said_is_still_said(kind: str, seed: int, tmp_path: Path) -> None:
    """Whatever is saved, amended, failed, taken back, forked and refused, and by another handle as well."""
    story = Story(kind, tmp_path, seed)
    for _ in range(40):
        run_id = story.random.choice(["a", "b"])
        do = story.random.choice([story.go_on] * 5 + [story.go_back, story.fork, story.refused, story.open_again])
        (do if run_id in story.said else story.go_on)(run_id)
        story.check()
    story.store.close()


@pytest.mark.parametrize("kind", ["memory", "sqlite", "disk", "postgres", "redis"])
class TestRevisions:
    def test_the_newest_is_loaded_unless_another_is_asked_for(self, kind: str, tmp_path: Path) -> None:
        """Each can be; one that is not there is named."""
        store = opened(kind, tmp_path)
        store.retain("a", _FULL)
        for n in range(3):
            store.amend(State({"n": n}, run_id="a", step=1))
        store.save(State({"n": "later"}, run_id="a", step=2))

        assert [store.load("a", 1, revision)["n"] for revision in (None, 0, 1, 2)] == [2, 0, 1, 2]
        assert store.load("a", revision=0)["n"] == "later"
        with pytest.raises(CheckpointNotFoundError, match="step 1, revision 3"):
            store.load("a", 1, 3)
        with pytest.raises(ValueError, match="revision"):
            store.load("a", 1, -1)

    @pytest.mark.parametrize("policy", [_FULL, Policy("latest")], ids=lambda policy: policy.retention)
    @pytest.mark.parametrize("saves", [1, 3])
    @pytest.mark.parametrize("step", [None, 1])
    def test_a_revision_of_the_newest_step_that_is_not_there(
        self, kind: str, policy: Policy, saves: int, step: int | None, tmp_path: Path
    ) -> None:
        """It is not found, whatever asks for it: nothing is damaged."""
        store = opened(kind, tmp_path)
        store.retain("a", policy)
        for n in range(saves):
            store.amend(State({"n": n}, run_id="a", step=1))

        for asked in (
            lambda: store.load("a", step, saves),
            lambda: store.fork("a", "b", step, saves),
            lambda: store.rollback("a", 1, saves),
        ):
            with pytest.raises(CheckpointNotFoundError):
                asked()
        assert store.list() == ["a"]
        assert store.load("a")["n"] == saves - 1

    def test_a_save_that_is_repeated_exactly_adds_nothing(self, kind: str, tmp_path: Path) -> None:
        """As after an answer that was lost; another status is another checkpoint."""
        store = opened(kind, tmp_path)
        store.retain("a", _FULL)
        state = State({"n": 1}, run_id="a", step=1)
        for saved in (state, state, attrs.evolve(state, status="failed"), attrs.evolve(state, status="failed")):
            store.save(saved)

        assert [(row.revision, row.status) for row in store.history("a")] == [(0, "active"), (1, "failed")]

    def test_other_retentions_replace(self, kind: str, tmp_path: Path) -> None:
        """As many rows as steps, whatever is saved again."""
        store = opened(kind, tmp_path)
        for policy in (Policy(), Policy("windowed", window=2)):
            store.retain("a", policy)
            for step in (1, 2, 3):
                store.save(State({"n": step}, run_id="a", step=step))
                store.save(State({"n": step}, run_id="a", step=step, status="failed"))
            assert [row.revision for row in store.history("a")] == [0] * len(store.history("a"))
            assert [row.step for row in store.history("a")] == [1, 2, 3][-(policy.max_checkpoints or 0) :]
            store.delete("a")

    def test_a_window_counts_steps(self, kind: str, tmp_path: Path) -> None:
        """Not revisions, where a run kept all before."""
        store = opened(kind, tmp_path)
        store.retain("a", _FULL)
        for step in (1, 2, 3):
            store.save(State({"n": step}, run_id="a", step=step))
            store.amend(State({"n": -step}, run_id="a", step=step))
        store.retain("a", Policy("windowed", window=2))
        store.save(State({"n": 4}, run_id="a", step=4))

        assert [(row.step, row.revision) for row in store.history("a")] == [(3, 0), (3, 1), (4, 0)]


@pytest.mark.parametrize("policy", [_FULL, Policy("latest")], ids=lambda policy: policy.retention)
@pytest.mark.parametrize("kind", ["memory", "sqlite", "disk", "postgres", "redis"])
def test_a_save_that_is_made_again(tmp_path: Path, kind: str, policy: Policy) -> None:
    """As after an interrupt that came between its commit and its answer: it is no revision; what differs is one."""
    store = opened(kind, tmp_path)
    store.retain("r", policy)
    first = State({"n": [1]}, run_id="r", step=1)
    second = attrs.evolve(first.set("n", [2]), step=2)
    for _ in range(2):
        store.save(first)
    for _ in range(2):
        store.save(second)
        store.save_many([second, second])
    rows = [(row.step, row.revision) for row in store.history("r")]
    assert rows == ([(1, 0), (2, 0)] if policy.retention == "full" else [(2, 0)])

    done = attrs.evolve(second, status="completed")
    store.save_many([second, done, done])
    store.save(done)
    rows = [(row.step, row.revision) for row in store.history("r")]
    assert rows == ([(1, 0), (2, 0), (2, 1)] if policy.retention == "full" else [(2, 0)])
    assert store.load("r") == done
    assert not store.verify().damaged
