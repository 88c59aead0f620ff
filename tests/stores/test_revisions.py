"""Revisions: a step that is saved again. The proof `stories` tries that a full history only grows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from stategraph import CheckpointNotFoundError, State
from stategraph.stores import CheckpointStore, Policy
from stategraph.stores.disk import DiskStore
from stategraph.stores.memory import MemoryStore
from stategraph.stores.sqlite import SqliteStore
from tests.pairs import every_pair
from tests.postgres_server import postgres_at
from tests.redis_server import redis_at
from tests.scenarios import HANDLES

_FULL = Policy("full")


def opened(kind: str, folder: Path) -> CheckpointStore:
    """Return a store, which is closed with the test."""
    kinds: dict[str, Callable[[], CheckpointStore]] = {
        "memory": MemoryStore,
        "sqlite": lambda: SqliteStore(folder / "runs.db"),
        "disk": lambda: DiskStore(folder / "runs"),
        "postgres": lambda: postgres_at(folder),
        "redis": lambda: redis_at(folder),
    }
    HANDLES.append(kinds[kind]())
    return HANDLES[-1]


@pytest.mark.parametrize("kind", ["memory", "sqlite", "disk", "postgres", "redis"])
class TestRevisions:
    def test_the_newest_is_loaded_unless_another_is_asked_for(self, kind: str, tmp_path: Path) -> None:
        """`load` returns the newest revision or a given one; an error names an unknown revision."""
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

    @every_pair(policy=[_FULL, Policy("latest")], saves=[1, 3], step=[None, 1])
    def test_a_revision_of_the_newest_step_that_is_not_there(
        self, kind: str, policy: Policy, saves: int, step: int | None, tmp_path: Path
    ) -> None:
        """It is not found, whatever asks for it: nothing is damaged."""
        store = opened(kind, tmp_path)
        store.retain("a", policy)
        for n in range(saves):
            store.amend(State({"n": n}, run_id="a", step=1))

        for call in (
            lambda: store.load("a", step, saves),
            lambda: store.fork("a", "b", step, saves),
            lambda: store.rollback("a", 1, saves),
        ):
            with pytest.raises(CheckpointNotFoundError):
                call()
        assert store.list() == ["a"]
        assert store.load("a")["n"] == saves - 1

    def test_other_retentions_replace(self, kind: str, tmp_path: Path) -> None:
        """Other retentions keep one row for each step, however often it is saved."""
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
        """A window counts steps and not revisions, even after a full history."""
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
    """A repeated save of the same State adds no revision; a different State does."""
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
