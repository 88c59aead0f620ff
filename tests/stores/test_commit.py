"""Shared commits: threads that write at the same time share a transaction, and what becomes of it."""

import linecache
import sqlite3
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from queue import SimpleQueue
from typing import cast

import pytest

from stategraph import State
from stategraph.errors import CheckpointCorruptError, CheckpointError, CheckpointSaveError
from stategraph.stores._rows import access as commit
from stategraph.stores._rows.access import SharedCommits
from stategraph.stores._rows.lanes import CommitLanes
from stategraph.stores._rows.records import WriteBatch
from stategraph.stores._rows.sqlite_table import SqliteTable
from stategraph.stores.disk import DiskStore
from stategraph.stores.sqlite import SqliteStore
from tests.stores.inside import connection_of, log_of, table_of

pytestmark = pytest.mark.inside

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


class InterruptedQueue(SimpleQueue[None]):
    """A queue whose readers are interrupted."""

    def get(self, block=True, timeout=None):
        raise KeyboardInterrupt


def test_an_interrupt_in_a_waiting_caller_leaves_nobody_waiting(commits, applied, monkeypatch):
    """Its write is taken back if nobody has begun with it; those behind it are committed."""
    applied.gate.clear()
    with ThreadPoolExecutor(3) as pool:
        leader = pool.submit(outcome, commits, 0)
        assert applied.entered.wait(10)
        with monkeypatch.context() as patched:
            patched.setattr(commit, "SimpleQueue", InterruptedQueue)
            assert isinstance(outcome(commits, 1), KeyboardInterrupt)
        behind = pool.submit(outcome, commits, 2)
        wait_until(lambda: len(commits._queue) == 1)
        applied.gate.set()

        assert (leader.result(10), behind.result(10)) == (True, True)
    assert applied.batches == [[0], [2]]


class Interrupter:
    """Interrupts a thread at the so-many-th line that it runs in commit.py; `lines` are those that it came to."""

    def __init__(self, commits, number):
        self.commits, self.number, self.lines = commits, number, []

    def __call__(self, frame, event, arg):
        if frame.f_code.co_filename != commit.__file__:
            return None
        if event == "line" and not self._is_way_out(frame):
            self.lines.append(f"{frame.f_code.co_name}:{frame.f_lineno}")
            if len(self.lines) == self.number:
                raise KeyboardInterrupt
        return self

    def _is_way_out(self, frame):
        """A tracer comes to the line of a `with` again before the lock is released. An interrupt does not: the
        interpreter looks for signals where a function begins or returns and where a loop goes back, and between the
        last of these in the block, which the `with` still covers, and the return of `__exit__` there is none.

        And since Python 3.12, what a tracer raises in a list comprehension passes by the `with` around it. What an
        interrupt raises does not."""
        line = linecache.getline(commit.__file__, frame.f_lineno)
        return self.commits._lock.locked() and (line.lstrip()[:5] == "with " or " for one in " in line)

    def traced(self, *arguments):
        sys.settrace(self)
        try:
            return outcome(*arguments)
        finally:
            sys.settrace(None)


def interrupted_at(number, place, interrupts=Interrupter):
    """One caller is interrupted at a line; it is alone, is a leader with followers, or is one of the followers.

    -> the lines that it came to, and how many threads are left waiting."""
    applied = Applied()
    commits = SharedCommits(applied)
    interrupter = interrupts(commits, number)
    applied.gate.clear()
    calls = [outcome] * 4
    calls[place] = interrupter.traced
    threads: list[threading.Thread] = []
    for call in calls:
        threads.append(threading.Thread(target=call, args=(commits, 10 + len(threads)), daemon=True))
        threads[-1].start()
        end = time.monotonic() + 0.2
        while threads[-1].is_alive() and time.monotonic() < end:
            waiting = sum(thread.is_alive() for thread in threads) - 1  # of an interrupted one there is nothing to see
            if applied.entered.is_set() and (commits._leader is None or len(commits._queue) >= waiting):
                break
            time.sleep(0.0005)
    applied.gate.set()
    for thread in threads:
        thread.join(1)
    assert_nobody_waits(commits)
    return interrupter.lines, sum(thread.is_alive() for thread in threads)


@pytest.mark.unmeasured
@pytest.mark.parametrize(("place", "least"), [(0, 15), (1, 30), (2, 10), (3, 10)])
def test_an_interrupt_at_any_line_leaves_nobody_waiting(place, least):
    """Wherever it comes, those who wait are served or told, and the next commit is made."""
    for number in range(1, 1000):
        lines, waiting = interrupted_at(number, place)
        assert not waiting, f"interrupted at {lines[-1]}"
        if len(lines) < number:
            break
    assert number > least, f"no line was interrupted: {lines}"


class WaitInterrupter(Interrupter):
    """Interrupts a thread where the so-many-th function of `threading` returns by which it waits."""

    def __call__(self, frame, event, arg):
        if frame.f_code.co_filename == threading.__file__ and event == "return" and self._is_of_commit(frame):
            self.lines.append(f"{frame.f_code.co_name}:{frame.f_lineno}")
            if len(self.lines) == self.number:
                raise KeyboardInterrupt
        return self

    def _is_of_commit(self, frame):
        while frame.f_code.co_filename == threading.__file__:
            frame = frame.f_back
        return frame.f_code.co_filename == commit.__file__


@pytest.mark.unmeasured
def test_an_interrupt_within_what_a_caller_waits_with_leaves_nobody_waiting():
    """No lock is left behind that whoever wakes the caller would wait for."""
    for number in range(1, 1000):
        lines, waiting = interrupted_at(number, 1, WaitInterrupter)
        assert not waiting, f"interrupted at {lines[-1]}"
        if len(lines) < number:
            break


def test_a_write_that_cannot_be_made_fails_alone(commits, applied):
    """The others of its batch are made."""

    def apply(writes):
        applied(writes)
        if 3 in writes:
            raise CheckpointCorruptError("", "what the store holds for it is no run")
        return [True for _ in writes]

    commits._apply = apply
    pool, futures = gathered(commits, applied)
    with pool:
        applied.gate.set()
        outcomes = [future.result(10) for future in futures]

    assert [number for number, one in enumerate(outcomes) if one is not True] == [3]
    assert isinstance(outcomes[3], CheckpointCorruptError)


def test_a_store_that_failed_is_not_asked_again_for_each_write(commits, applied):
    """It may have waited a minute for a lock already."""
    applied.error = CheckpointSaveError("a", "the store was locked by another process for 60 s")
    pool, futures = gathered(commits, applied)
    with pool:
        applied.gate.set()
        for future in futures:
            future.result(10)

    assert [len(batch) for batch in applied.batches] == [1, THREADS - 1]


class TestWithAStore:
    @pytest.mark.parametrize("kind", [DiskStore, SqliteStore])
    def test_a_run_that_is_damaged_fails_alone(self, tmp_path, kind, monkeypatch):
        """Others save at the same time, in the same transactions, and hear nothing of it."""
        with kind(tmp_path / "runs") as store, ThreadPoolExecutor(THREADS) as pool:
            for number in range(THREADS):
                store.save(State({"n": 0}, run_id=f"run-{number}"))
            apply, make, sizes = table_of(store).apply, table_of(store).write, []

            def damaged(write):
                if write.run.run_id == "run-3":
                    raise CheckpointCorruptError("run-3", "what the store holds for its step 0 is no checkpoint")
                return make(write)

            def counted(writes):
                sizes.append(len(writes))
                time.sleep(0.005)
                return apply(writes)

            monkeypatch.setattr(table_of(store), "write", damaged)
            monkeypatch.setattr(log_of(store).commits, "_apply", counted)

            def run(number):
                try:
                    for step in range(1, 6):
                        store.save(State({"n": step}, run_id=f"run-{number}", step=step))
                except CheckpointError as error:
                    return error
                return None

            wrong = [error for error in pool.map(run, range(THREADS)) if error]

            assert max(sizes) > 1
            assert [(type(error), error.run_id) for error in wrong] == [(CheckpointCorruptError, "run-3")]
            assert {run.run_id: run.step for run in store.runs()} == {
                f"run-{number}": 0 if number == 3 else 5 for number in range(THREADS)
            }

    def test_a_time_that_sqlite_has_no_place_for_fails_alone(self, tmp_path):
        """It has 64 bits, which end in the year 2262."""
        with SqliteStore(tmp_path / "runs.db") as store:
            states = [
                State(run_id=f"run-{year}", step=1, timestamp=datetime(year, 1, 1, tzinfo=UTC)) for year in (2300, 2200)
            ]
            snapshots = [log_of(store).encoder.snapshot(state) for state in states]
            writes = [WriteBatch(log_of(store).next_run(None, row, base), None, (row,)) for row, base in snapshots]

            late, early = log_of(store).commits._outcomes(writes)

            assert isinstance(late, CheckpointSaveError)
            assert early is True

    def test_a_value_that_is_too_large_for_sqlite_fails_alone(self, tmp_path):
        """Others that are saved with it are saved."""
        with SqliteStore(tmp_path / "runs.db") as store:
            store.save(State(run_id="first", step=1))
            connection_of(store).setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 100_000)
            states = [State({"text": "x" * size}, run_id=f"run-{size}", step=1) for size in (200_000, 10)]
            snapshots = [log_of(store).encoder.snapshot(state) for state in states]
            writes = [WriteBatch(log_of(store).next_run(None, row, base), None, (row,)) for row, base in snapshots]

            large, small = log_of(store).commits._outcomes(writes)

            assert isinstance(large, CheckpointSaveError)
            assert small is True

    def test_threads_share_the_commits_of_a_store(self, tmp_path, monkeypatch):
        """Fewer transactions than writes, and every write is there."""
        sizes = []
        apply = SqliteTable.apply

        def counted(self, writes):
            sizes.append(len(writes))
            return apply(self, writes)

        monkeypatch.setattr(SqliteTable, "apply", counted)
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
        connection_of(store).execute("PRAGMA query_only = 1")
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


class TestLanes:
    """Of a store that makes several transactions at a time."""

    def test_each_is_made_at_once_while_there_are_lanes(self) -> None:
        """What comes after that shares the next."""
        gate, applied, entered = threading.Event(), list[int](), threading.Semaphore(0)

        def apply(writes: Sequence[WriteBatch]) -> list[bool]:
            applied.append(len(writes))
            entered.release()
            gate.wait(10)
            return [True] * len(writes)

        lanes = CommitLanes(apply, bool, 2)
        threads = [threading.Thread(target=lanes.commit, args=(cast("WriteBatch", number),)) for number in range(5)]
        for thread in threads[:2]:
            thread.start()
            assert entered.acquire(timeout=10)
        for thread in threads[2:]:
            thread.start()
        while sum(max(0, lane.waiting) for lane in lanes._lanes) < 3:
            time.sleep(0.001)
        gate.set()
        for thread in threads:
            thread.join(10)

        assert sorted(applied) == [1, 1, 3]

    def test_who_lanes_in_one_is_refused_in_all(self) -> None:
        """It would wait for itself, further down its stack."""

        def apply(writes: Sequence[WriteBatch]) -> list[bool]:
            with pytest.raises(CheckpointSaveError):
                lanes.commit(cast("WriteBatch", 2))
            return [True]

        lanes = CommitLanes(apply, bool, 2)
        assert lanes.commit(cast("WriteBatch", 1))
