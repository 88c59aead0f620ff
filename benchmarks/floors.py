"""The floors of the rows with durable stores: the least that a careful program writes by hand, in SQL.

One connection, write-ahead log, synchronous=FULL, a commit for every step. No tricks.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from time import perf_counter

import ormsgpack

from benchmarks import documents, messages, scratch, threads
from benchmarks.counters import START, below
from benchmarks.edits import EDITS
from benchmarks.measure import NotHere, Run

_STEPS = "CREATE TABLE IF NOT EXISTS step (run INTEGER, step INTEGER, body BLOB, PRIMARY KEY (run, step)) WITHOUT ROWID"
_MESSAGES = "CREATE TABLE message (step INTEGER PRIMARY KEY, body BLOB)"
_PUT = "INSERT INTO step VALUES (?, ?, ?)"


def open_database(folder: Path, schema: str = _STEPS) -> sqlite3.Connection:
    """Return a connection that commits every statement, durably."""
    database = sqlite3.connect(folder / "floor.db", isolation_level=None, check_same_thread=False, timeout=60)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    database.execute(schema)
    return database


def saved_steps(steps: int) -> Run:
    """A row for the State of each step."""
    return _counting(steps, _opened())


def saved_steps_of_threads(steps: int) -> Run:
    """The same in eight threads, a connection and a run each, and a share of the steps."""
    share = max(1, steps // threads.COUNT)
    return threads.together([_counting(share, _opened(), run) for run in range(threads.COUNT)])


def changed_key(steps: int) -> Run:
    """A large State once, then a row for each change of its one small key."""
    database, unfinished = _opened(), below(steps)

    def run() -> None:
        state = documents.start()
        database.execute(_PUT, (1, 0, ormsgpack.packb(state)))
        n = 0
        while unfinished({"n": n}):
            n += 1
            database.execute(_PUT, (1, n, ormsgpack.packb({"n": n})))

    return run


def changed_key_of_many(steps: int) -> Run:
    """A State of many keys, which is copied to change one of them, and a row for the change."""
    database, unfinished = _opened(), below(steps)

    def run() -> None:
        state = documents.of_many_keys()
        database.execute(_PUT, (1, 0, ormsgpack.packb(state)))
        while unfinished(state):
            state = {**state, "n": state["n"] + 1}
            database.execute(_PUT, (1, state["n"], ormsgpack.packb({"n": state["n"]})))

    return run


def messages_saved(steps: int) -> Run:
    """A row for each message."""
    database = open_database(scratch.folder(), _MESSAGES)
    scratch.at_end(database.close)
    return lambda: _save_messages(database, steps)


def messages_loaded(steps: int) -> Run:
    """All messages, selected and decoded."""
    return _load(steps, steps)


def messages_loaded_to_an_older_step(steps: int) -> Run:
    """The messages up to three quarters of the steps."""
    return _load(steps, steps * 3 // 4)


def edits_saved(name: str, steps: int) -> Run:
    """A value once, then a row for what is new in it after each step."""
    database, edit = open_database(scratch.folder(), _MESSAGES), EDITS[name]
    scratch.at_end(database.close)

    def run() -> None:
        for step in range(steps + 1):
            new = edit.new(step) if step else edit.start()
            database.execute("INSERT INTO message VALUES (?, ?)", (step, ormsgpack.packb(new)))

    return run


def short_runs(runs: int) -> Run:
    """Runs of two steps, a row for the State of each."""
    database = _opened()
    return lambda: _save_runs(database, runs, 2)


def crowd(runs: int) -> Run:
    """Runs of five steps that take turns: the rows of a step of all runs are one transaction."""
    database = _opened()

    def run() -> None:
        for step in range(5):
            database.execute("BEGIN")
            database.executemany(
                _PUT, [(number, step, ormsgpack.packb({**START, "n": step})) for number in range(runs)]
            )
            database.execute("COMMIT")

    return run


def entries_of_a_table(steps: int) -> Run:
    """An entry in a dict that a lock guards, made and removed."""
    table: dict[str, object] = {}
    lock = threading.Lock()

    def run() -> None:
        for _ in range(steps):
            with lock:
                table["order-1"] = object()
            with lock:
                del table["order-1"]

    return run


def locks_of_a_byte(steps: int) -> Run:
    """A byte of a file, locked and unlocked, and a row that is looked for in between."""
    try:
        from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, lockf
    except ImportError:
        raise NotHere("there is no fcntl") from None
    file = (scratch.folder() / "locks").open("wb")
    scratch.at_end(file.close)
    database, select = _opened(), "SELECT body FROM step WHERE run = 1 AND step = 1"

    def run() -> None:
        for _ in range(steps):
            lockf(file, LOCK_EX | LOCK_NB, 1, 0)
            database.execute(select).fetchone()
            lockf(file, LOCK_UN, 1, 0)

    return run


def slowest_commit(steps: int) -> Callable[[], float]:
    """Return seconds that the slowest of the commits took: so long a step is unsaved."""
    database = _opened()

    def run() -> float:
        moments = [perf_counter()]
        for n in range(steps):
            database.execute(_PUT, (1, n, ormsgpack.packb({**START, "n": n})))
            moments.append(perf_counter())
        return max(after - before for before, after in pairwise(moments))

    return run


def rows_deleted(steps: int) -> Run:
    """A row a run, deleted one by one, a thousand in a transaction."""
    database = _opened()
    _put_rows(database, steps)

    def run() -> None:
        for first in range(0, steps, 1_000):
            database.execute("BEGIN IMMEDIATE")
            together = [(n,) for n in range(first, min(first + 1_000, steps))]
            database.executemany("DELETE FROM step WHERE run = ?", together)
            database.execute("COMMIT")

    return run


def rows_listed(steps: int) -> Run:
    """Numbers and bodies of all rows of a run."""
    database = _opened()
    _put_rows(database, steps)
    return lambda: database.execute("SELECT step, run FROM step").fetchall()


def page_listed(steps: int) -> Run:
    """The newest hundred of the rows."""
    database = _opened()
    _put_rows(database, steps)
    return lambda: database.execute("SELECT * FROM step ORDER BY run DESC LIMIT 100").fetchall()


def _put_rows(database: sqlite3.Connection, steps: int) -> None:
    database.execute("BEGIN")
    database.executemany(_PUT, [(n, 3, ormsgpack.packb({"n": n})) for n in range(steps)])
    database.execute("COMMIT")


def empty(_steps: int) -> Run:
    """Nothing: where other libraries are no measure."""
    return lambda: None


def nothing(_steps: int) -> Callable[[], float]:
    """Return 0: what is saved at every step needs no draining."""
    return lambda: 0.0


def _opened() -> sqlite3.Connection:
    database = open_database(scratch.folder())
    scratch.at_end(database.close)
    return database


def _counting(steps: int, database: sqlite3.Connection, number: int = 1) -> Run:
    unfinished = below(steps)

    def run() -> None:
        state = {**START}
        while unfinished(state):
            state = {**state, "n": state["n"] + 1}
            database.execute(_PUT, (number, state["n"], ormsgpack.packb(state)))

    return run


def _save_runs(database: sqlite3.Connection, runs: int, steps: int) -> None:
    for number in range(runs):
        for step in range(steps):
            database.execute(_PUT, (number, step, ormsgpack.packb({**START, "n": step})))


def _save_messages(database: sqlite3.Connection, steps: int) -> None:
    for n in range(steps):
        database.execute("INSERT INTO message VALUES (?, ?)", (n, ormsgpack.packb(messages.message(n))))


def _prepare(folder: Path, steps: int) -> None:
    database = open_database(folder, _MESSAGES)
    _save_messages(database, steps)
    database.close()


_prepared = scratch.prepared(_prepare)


def _load(steps: int, last: int) -> Run:
    database = sqlite3.connect(_prepared(steps) / "floor.db")
    scratch.at_end(database.close)
    query = "SELECT body FROM message WHERE step < ? ORDER BY step"
    return lambda: [ormsgpack.unpackb(body) for (body,) in database.execute(query, (last,))]
