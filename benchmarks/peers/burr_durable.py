"""Burr with its SQLite persister: the state of every step, as JSON. It sets neither journal_mode nor synchronous."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from burr.core import ApplicationBuilder, State, action, default, when
from burr.core.persistence import SQLitePersister

from benchmarks import documents, messages, scratch, threads
from benchmarks.counters import START
from benchmarks.measure import Run
from benchmarks.peers.burr import count, done


@action(reads=["n", "messages"], writes=["n", "messages"])
def append(state: State) -> State:
    """Append a message."""
    return state.append(messages=messages.message(state["n"])).update(n=state["n"] + 1)


def saved_steps(steps: int) -> Run:
    """A row for every step."""
    return _loop(count, START, steps, _persister(scratch.folder()))


def saved_steps_of_threads(steps: int) -> Run:
    """Eight threads, each with a persister, and so a connection, of its own."""
    share = max(1, steps // threads.COUNT)
    persisters = [_persister(scratch.folder()) for _ in range(threads.COUNT)]
    return threads.together([_loop(count, START, share, one, str(number)) for number, one in enumerate(persisters)])


def changed_key(steps: int) -> Run:
    """A large state, one small key of which changes."""
    return _loop(count, documents.start(), steps, _persister(scratch.folder()))


def messages_saved(steps: int) -> Run:
    """A list that grows."""
    return _append_messages(scratch.folder(), steps)


def messages_loaded(steps: int) -> Run:
    """The newest state."""
    persister = _persister(_prepared(steps))
    return lambda: persister.load("", messages.RUN)


def _append_messages(folder: Path, steps: int) -> Run:
    return _loop(append, {"n": 0, "messages": []}, steps, _persister(folder))


def _prepare(folder: Path, steps: int) -> None:
    """The newest state of such a run: Burr has no way to save that one only, and all of them take long."""
    persister = _persister(folder)
    whole = [messages.message(number) for number in range(steps)]
    persister.save("", messages.RUN, steps, "append", State({"n": steps, "messages": whole}), "completed")


_prepared = scratch.prepared(_prepare)


def _persister(folder: Path) -> Any:
    database = sqlite3.connect(folder / "burr.db", timeout=60, check_same_thread=False)
    scratch.at_end(database.close)
    persister = SQLitePersister(str(folder / "burr.db"), connection=database)
    persister.initialize()
    return persister


def _loop(node: Any, start: Mapping[str, Any], steps: int, persister: Any, run: str = messages.RUN) -> Run:
    application = (
        ApplicationBuilder()
        .with_actions(node=node, done=done)
        .with_transitions(("node", "node", when(n__lt=steps)), ("node", "done", default))
        .with_identifiers(app_id=run, partition_key="")
        .with_state(**start)
        .with_entrypoint("node")
        .with_state_persister(persister)
        .build()
    )
    return lambda: application.run(halt_after=["done"])
