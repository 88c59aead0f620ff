"""The memory store beside others who use it at the same time, and what it drops."""

import sys
import threading
from collections.abc import Callable

import pytest

from stategraph import CheckpointNotFoundError, RunExistsError, State, StepConflictError
from stategraph.stores import Policy
from stategraph.stores.memory import MemoryStore


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def save(store: MemoryStore, *steps: int, run_id: str = "a", **data: object) -> None:
    for step in steps:
        store.save(State({"n": step, **data}, run_id=run_id, step=step))


def test_a_state_is_kept_as_it_is(store: MemoryStore) -> None:
    """Without a copy: it is immutable."""
    state = State({"big": [1] * 1000}, run_id="a", step=1)

    store.save(state)

    assert store.load("a") is state


def test_prune_counts_what_it_drops(store: MemoryStore) -> None:
    """Of runs that stay."""
    store.retain("a", Policy("full"))
    save(store, 1, 2, 3, 4, 5)
    store.retain("a", Policy("windowed", window=2))

    assert store.prune().checkpoints == 3
    assert [row.step for row in store.history("a")] == [4, 5]


def test_changes_and_deletions_at_the_same_time(store: MemoryStore) -> None:
    """Whatever comes first: what is gone is not found, and nothing else goes wrong."""
    done = threading.Event()
    errors: list[BaseException] = []

    def repeat(call: Callable[[], object]) -> None:
        while not done.is_set():
            try:
                call()
            except (CheckpointNotFoundError, RunExistsError, StepConflictError):
                pass
            except BaseException as error:
                errors.append(error)
                return

    def begin() -> None:
        store.retain("a", Policy("windowed", window=3))
        save(store, *range(1, 8))

    calls: list[Callable[[], object]] = [
        begin,
        lambda: store.rollback("a", 5),
        lambda: store.fork("a", "b"),
        lambda: store.delete("a"),
        lambda: store.delete("b"),
        lambda: store.load("a", 6),
        store.runs,
    ]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=repeat, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    done.wait(0.7)
    done.set()
    for thread in threads:
        thread.join(10)
    sys.setswitchinterval(before)

    assert errors == []
