"""The process under test: it saves the States of runs step by step, and writes the acknowledgements to a diary.

A script is deterministic, so every State that it can have saved is known.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import attrs

from stategraph._values.provenance import RunStatus
from stategraph.errors import CheckpointNotFoundError, StateGraphError
from stategraph.state import State, evolve, time_ns_of
from stategraph.stores.base import CheckpointStore, Policy
from stategraph.stores.registry import get_checkpoint_store

DATABASE = "runs.db"
"""The file of the store that is proved: the disk store has the same table, in a folder."""
SMALL, LARGE = 20, 60_000
_TIME = 1_700_000_000_000_000_000


@attrs.frozen
class Operation:
    """One thing that a script does: "save", "again" (the newest step, with another status), "rollback" (to `step`),
    "delete", "close" (and open again; of no run)."""

    kind: str
    run: str = ""
    step: int = 0
    size: int = SMALL
    status: RunStatus = RunStatus.ACTIVE


@attrs.frozen
class Script:
    """The calls of a process on a store.

    Attributes:
        operations: One after the other.
        afresh: There is no store yet, and opening it is part of what is tried. Else one is there whose process was
            killed.
        threaded: Each run has a thread of its own.
    """

    operations: tuple[Operation, ...]
    afresh: bool = False
    threaded: bool = False


def policy_of(run: str) -> Policy:
    """Return the policy of a run: "full" for runs whose name begins so."""
    return Policy("full" if run.startswith("full") else "latest")


def _saves(run: str, first: int, last: int, size: int = SMALL) -> list[Operation]:
    return [Operation("save", run, step, size) for step in range(first, last + 1)]


def _again(run: str, step: int, status: RunStatus) -> Operation:
    return Operation("again", run, step, status=status)


def _life(run: str, size: int = SMALL) -> list[Operation]:
    """Return all kinds of operations on a run."""
    return [
        *_saves(run, 1, 3, size),
        _again(run, 3, RunStatus.FAILED),
        *_saves(run, 4, 5),
        Operation("rollback", run, 3 if run.startswith("full") else 5),
        *_saves(run, 6, 7, size),
        Operation("delete", run),
        *_saves(run, 1, 2),
    ]


def _in_turns(*lists: Sequence[Operation]) -> Iterator[Operation]:
    for turn in range(max(map(len, lists))):
        yield from (operations[turn] for operations in lists if turn < len(operations))


@cache
def scripts() -> dict[str, Script]:
    """Return the scripts by name."""
    interleaved = (_life("latest"), _life("full"), _saves("large", 1, 2, LARGE))
    large = [*_saves("full", 1, 3, LARGE), Operation("rollback", "full", 2), *_saves("full", 3, 3, LARGE)]
    close = Operation("close")
    long = (*_saves("log", 1, 120, LARGE), close, *_saves("log", 121, 124))  # longer than the log of SQLite grows
    return {
        "open": Script((*_saves("full", 1, 2), close, *_saves("full", 3, 4)), afresh=True),
        "latest": Script(tuple(_life("latest"))),
        "full": Script(tuple(_life("full"))),
        "large": Script((*_saves("latest", 1, 2, LARGE), *large)),
        "interleaved": Script(tuple(_in_turns(*interleaved))),
        "threads": Script((*_life("latest"), *_life("full")), threaded=True),
        "all": Script((*_in_turns(*interleaved), close, *_saves("full", 3, 6), *long, *_life("full/b")), afresh=True),
    }


# --------------------------------------------------------------------------- the States of a script


@cache
def states_of(script: Script) -> dict[int, State]:
    """Return the State of each saving operation by its place in the script, with generation 0."""
    made: dict[int, State] = {}
    kept: dict[str, dict[int, State]] = {}
    for place, operation in enumerate(script.operations):
        states = kept.setdefault(operation.run, {})
        if operation.kind == "delete":
            states.clear()
        elif operation.kind == "rollback":
            kept[operation.run] = {step: state for step, state in states.items() if step <= operation.step}
        elif operation.kind in {"save", "again"}:
            before = states[max(states)] if states else State(run_id=operation.run, timestamp=_TIME)
            made[place] = states[operation.step] = _next(before, operation, place)
    return made


def _next(before: State, operation: Operation, place: int) -> State:
    """Return the State that an operation saves, with a new number, a text of some size, and a longer list."""
    if operation.kind == "again":
        return evolve(before, status=operation.status)
    text = f"{operation.run} {place:04} " * (operation.size // 16 + 1)
    messages = [*before.get("messages", []), (operation.step, f"message {operation.step} of {operation.run}")]
    state = before.update(place=place, text=text[: operation.size], messages=messages)
    provenance = {"step": operation.step, "checkpoint_node": f"node{operation.step % 3}"}
    return evolve(state, **provenance, status=operation.status, _time_ns=_TIME + operation.step)


# --------------------------------------------------------------------------- running one


class Diary:
    """The answers that the process got, in one file; each line is a single write.

    ``place go`` before an operation is tried, ``place ok generation`` when the store says that it is done, ``place no``
    with the error when it says that it is not, ``place saw`` with what the run then looks like. Opening has place -1.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, place: int, word: str, *more: object) -> None:
        """Append a line."""
        text = " ".join(str(part) for part in (place, word, *more)).replace("\n", " ")
        os.write(self._file, text.encode() + b"\n")


class Workload:
    """A script that runs on a store.

    Args:
        script: The script.
        folder: The folder of the store.
        diary: The file for the outcomes.
    """

    def __init__(self, script: Script, folder: Path, diary: Path) -> None:
        self._script, self._states = script, states_of(script)
        self._folder = folder
        self._diary = Diary(diary)
        self._store: CheckpointStore | None = None
        self._generations: dict[str, int] = {}

    def run(self, arm: Callable[[], None]) -> None:
        """Run the script; call `arm` when faults may begin."""
        if self._script.afresh:
            arm()
        self._try(-1, self._open)
        if not self._script.afresh:
            arm()
        if self._script.threaded:
            self._run_threads()
            return
        for place in range(len(self._script.operations)):
            self._do(place)

    def _run_threads(self) -> None:
        runs: dict[str, list[int]] = {}
        for place, operation in enumerate(self._script.operations):
            runs.setdefault(operation.run, []).append(place)
        threads = [threading.Thread(target=self._do_all, args=(places,)) for places in runs.values()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _do_all(self, places: Sequence[int]) -> None:
        for place in places:
            self._do(place)

    def _open(self) -> int:
        self._store = open_store(self._folder)
        for run in {operation.run for operation in self._script.operations if operation.run}:
            self._store.retain(run, policy_of(run))
        return 0

    def _do(self, place: int) -> None:
        self._try(place, lambda: self._make(place, self._script.operations[place]))

    def _try(self, place: int, work: Callable[[], int]) -> None:
        """Do one operation and write its outcome; after a failure try it once more, as the fault has passed."""
        for _ in range(2):
            self._diary.write(place, "go")
            try:
                generation = work()
            except Exception as error:  # noqa: BLE001 - errors are outcomes
                ours = "ours" if isinstance(error, StateGraphError) else "foreign"
                self._diary.write(place, "no", ours, type(error).__name__, error)
                self._look(place)
            else:
                self._diary.write(place, "ok", generation)
                return

    def _make(self, place: int, operation: Operation) -> int:
        """Perform an operation; return the generation of the run."""
        if operation.kind == "close":
            if self._store is not None and not self._store.closed:
                self._store.close()
            return self._open()
        if self._store is None:
            self._open()
        assert self._store is not None  # noqa: S101
        if operation.kind == "delete":
            self._store.delete(operation.run)
            self._store.retain(operation.run, policy_of(operation.run))
            self._generations[operation.run] = 0
        elif operation.kind == "rollback":
            self._generations[operation.run] = self._store.rollback(operation.run, operation.step).generation
        else:
            state = evolve(self._states[place], generation=self._generations.get(operation.run, 0))
            self._store.save(state)
        return self._generations.get(operation.run, 0)

    def _look(self, place: int) -> None:
        """Write the newest State of the run of a failed operation to the diary."""
        run = self._script.operations[place].run if place >= 0 else ""
        if self._store is None or not run:
            return
        try:
            entry = entry_of(self._store.load(run), self._states)
        except CheckpointNotFoundError:
            self._diary.write(place, "saw")
        except Exception as error:  # noqa: BLE001 - as above
            ours = "ours" if isinstance(error, StateGraphError) else "foreign"
            self._diary.write(place, "blind", ours, type(error).__name__, error)
        else:
            self._diary.write(place, "saw", *attrs.astuple(entry))


def open_store(folder: Path) -> CheckpointStore:
    """Return the store that keeps its files in a folder."""
    return get_checkpoint_store("sqlite", path=str(folder / DATABASE))


# --------------------------------------------------------------------------- saved steps


@attrs.frozen
class Entry:
    """A saved step, identified by the operation whose data it has, its status and its generation."""

    step: int
    place: int
    status: str
    generation: int


class UnknownStateError(Exception):
    """A State that was never saved."""


def entry_of(state: State, states: dict[int, State]) -> Entry:
    """Return the entry of a State; raise UnknownStateError if no State is the same in values and types."""
    known = states.get(state.get("place", -1))
    if known is None:
        raise UnknownStateError(f"{state!r:.200} has data that no State had")
    expected = evolve(known, status=state.status, generation=state.generation)
    if state.generation:  # a rollback changed its time
        expected = evolve(expected, _time_ns=time_ns_of(state))
    if state != expected or repr(dict(state)) != repr(dict(expected)):
        raise UnknownStateError(
            f"step {state.step} of run {state.run_id!r} differs from the State that was saved at {known['place']}"
        )
    return Entry(state.step, known["place"], state.status.value, state.generation)
