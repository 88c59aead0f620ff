"""Shared commits: threads that write at the same time share a transaction, and what becomes of it."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from stategraph import State
from stategraph.errors import CheckpointError, CheckpointSaveError
from stategraph.stores import commit
from stategraph.stores.commit import SharedCommits
from stategraph.stores.sqlite import SqliteStore

THREADS = 8


class Applied:
    """Stands for a store: keeps what it was given, holds it up while `gate` is shut, and fails if it is to."""

    def __init__(self):
        self.batches = []
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.error = None

    def __call__(self, writes):
        self.entered.set()
        assert self.gate.wait(10)
        self.batches.append(list(writes))
        if self.error is not None:
            raise self.error
        return [write % 10 != 9 for write in writes]


@pytest.fixture
def applied():
    return Applied()


@pytest.fixture
def commits(applied):
    return SharedCommits(applied)


def outcome(commits, write):
    """-> what a commit returns or raises."""
    try:
        return commits.commit(write)
    except BaseException as error:
        return error


def gathered(commits, applied, count=THREADS):
    """A leader is at work and others are waiting -> the pool, and what each of them will get."""
    applied.gate.clear()
    pool = ThreadPoolExecutor(count)
    futures = [pool.submit(outcome, commits, 0)]
    assert applied.entered.wait(10)
    futures += [pool.submit(outcome, commits, number) for number in range(1, count)]
    wait_until(lambda: len(commits._queue) == count - 1)
    return pool, futures


def wait_until(is_so):
    end = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.001)


def assert_nobody_waits(commits):
    """A commit that comes now is made at once."""
    thread = threading.Thread(target=outcome, args=(commits, 1), daemon=True)
    thread.start()
    thread.join(5)
    assert not thread.is_alive()


def test_a_caller_that_is_alone_commits_in_its_own_thread(commits, applied):
    """At once, and hears whether it was made."""
    assert commits.commit(1) is True
    assert commits.commit(9) is False
    assert applied.batches == [[1], [9]]


def test_callers_share_a_commit(commits, applied):
    """Those who come while one is made are committed together, each with its own outcome, in order."""
    pool, futures = gathered(commits, applied, 10)
    with pool:
        applied.gate.set()
        outcomes = [future.result(10) for future in futures]

    assert outcomes == [True] * 9 + [False]
    assert [len(batch) for batch in applied.batches] == [1, 9]


def test_a_batch_has_an_end(commits, applied, monkeypatch):
    """Never more writes than `MOST_TOGETHER` in one transaction."""
    monkeypatch.setattr(commit, "MOST_TOGETHER", 3)
    pool, futures = gathered(commits, applied)
    with pool:
        applied.gate.set()
        assert all(future.result(10) is True for future in futures)

    assert max(map(len, applied.batches)) == 3
    assert sum(map(len, applied.batches)) == THREADS


def test_an_error_reaches_every_caller_of_the_batch(commits, applied):
    """And nobody else: the next commit is made."""
    applied.error = CheckpointSaveError("a", "the disk is full")
    pool, futures = gathered(commits, applied)
    with pool:
        applied.gate.set()
        outcomes = [future.result(10) for future in futures]

    assert [type(one) for one in outcomes] == [CheckpointSaveError] * THREADS
    applied.error = None
    assert commits.commit(1) is True


def test_each_caller_gets_an_error_of_its_own(commits, applied):
    """What one of them notes on it, the others do not read."""
    applied.error = CheckpointSaveError("a", "the disk is full")
    pool, futures = gathered(commits, applied)
    with pool:
        applied.gate.set()
        shared = [future.result(10) for future in futures[1:]]

    assert len(set(map(id, shared))) == len(shared)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_in_the_leader_leaves_nobody_waiting(commits, applied, error):
    """It goes up in the thread that it came to; the others hear that their write is not known to be made."""
    pool, futures = gathered(commits, applied)
    with pool:
        applied.error = error()
        applied.gate.set()
        outcomes = [future.result(10) for future in futures]

    assert any(isinstance(one, error) for one in outcomes)
    assert all(isinstance(one, error | CheckpointSaveError) for one in outcomes)
    applied.error = None
    assert_nobody_waits(commits)


class InterruptedEvent(threading.Event):
    """An event whose wait is interrupted."""

    def wait(self, timeout=None):
        raise KeyboardInterrupt


def test_an_interrupt_in_a_waiting_caller_leaves_nobody_waiting(commits, applied, monkeypatch):
    """Its write is taken back if nobody has begun with it; those behind it are committed."""
    applied.gate.clear()
    with ThreadPoolExecutor(3) as pool:
        leader = pool.submit(outcome, commits, 0)
        assert applied.entered.wait(10)
        with monkeypatch.context() as patched:
            patched.setattr(threading, "Event", InterruptedEvent)
            assert isinstance(outcome(commits, 1), KeyboardInterrupt)
        behind = pool.submit(outcome, commits, 2)
        wait_until(lambda: len(commits._queue) == 1)
        applied.gate.set()

        assert (leader.result(10), behind.result(10)) == (True, True)
    assert applied.batches == [[0], [2]]


class TestWithAStore:
    def test_threads_share_the_commits_of_a_store(self, tmp_path, monkeypatch):
        """Fewer transactions than writes, and every write is there."""
        sizes = []
        apply = SqliteStore._apply

        def counted(self, writes):
            sizes.append(len(writes))
            return apply(self, writes)

        monkeypatch.setattr(SqliteStore, "_apply", counted)
        with SqliteStore(tmp_path / "runs.db") as store, ThreadPoolExecutor(THREADS) as pool:

            def run(name):
                for step in range(1, 51):
                    store.save(State({"n": step}, run_id=name, step=step))

            list(pool.map(run, [f"run-{number}" for number in range(THREADS)]))

            assert sum(sizes) == THREADS * 50
            assert len(sizes) < THREADS * 50
            assert {run.step for run in store.runs()} == {50}

    def test_an_error_names_the_run_that_it_is_raised_for(self, tmp_path):
        """Though one transaction failed for all of them."""
        store = SqliteStore(tmp_path / "runs.db")
        store.save(State(run_id="there", step=1))
        store._database.execute("PRAGMA query_only = 1")
        barrier = threading.Barrier(THREADS)
        wrong = []

        def run(number):
            for attempt in range(20):
                barrier.wait(10)
                try:
                    store.save(State(run_id=f"run-{number}-{attempt}", step=1))
                except CheckpointError as error:
                    if error.run_id != f"run-{number}-{attempt}":
                        wrong.append(error.run_id)

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(run, range(THREADS)))
        store.close()

        assert wrong == []
