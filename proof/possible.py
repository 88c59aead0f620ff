"""The possible outcomes of a workload, computed from its script and its diary and compared with a store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import attrs

from proof.workload import Entry, Operation, Script, UnknownStateError, entry_of, open_store, policy_of, states_of
from stategraph.errors import CheckpointNotFoundError, StateGraphError
from stategraph.state import State, evolve
from stategraph.stores.base import CheckpointStore
from stategraph.stores.summaries import Summary

Kept = tuple[Entry, ...]
"""The visible checkpoints of one run, in order."""


@attrs.define
class Possible:
    """All possible contents of the runs of a script, given the answers that the process got.

    Acknowledged operations have happened. Failed and interrupted ones may have happened.

    Attributes:
        script: The operations of the process.
        kept: The possible contents of each run.
        problems: The impossible entries of the diary.
        counts: The raised errors, by type.
        failed_twice: Operations that failed twice.
    """

    script: Script
    kept: dict[str, set[Kept]] = attrs.field(init=False)
    problems: list[str] = attrs.field(init=False, factory=list)
    counts: Counter[str] = attrs.field(init=False, factory=Counter)
    failed_twice: list[str] = attrs.field(init=False, factory=list)
    _failed: set[int] = attrs.field(init=False, factory=set)
    _states: dict[int, State] = attrs.field(init=False)
    _going: set[int] = attrs.field(init=False, factory=set)
    _generations: dict[str, int] = attrs.field(init=False, factory=dict)

    def __attrs_post_init__(self) -> None:
        self._states = states_of(self.script)
        self.kept = {operation.run: {()} for operation in self.script.operations if operation.run}

    def read(self, diary: str) -> None:
        """Read a diary; an incomplete last line was never written."""
        for line in diary.split("\n")[:-1]:
            number, word, *more = line.split(" ")
            self._take(int(number), word, more)
        for place in self._going:
            self._may_have_happened(place)

    def _take(self, place: int, word: str, more: list[str]) -> None:
        if word == "go":
            self._going.add(place)
        elif word == "ok":
            self._going.discard(place)
            self._has_happened(place, int(more[0]))
        elif word == "no":
            self._going.discard(place)
            self.counts[f"{more[1]} shown"] += 1
            self._check_ours(place, more)
            self._may_have_happened(place)
            if place in self._failed:
                self.failed_twice.append(f"operation {place}: {' '.join(more[1:])[:200]}")
            self._failed.add(place)
        elif word == "saw":
            self._check_seen(place, more)
        else:
            self.counts[f"{more[1]} while loading"] += 1
            self._check_ours(place, more)

    def _check_ours(self, place: int, more: list[str]) -> None:
        if more[0] != "ours":
            self.problems.append(f"operation {place} raised a foreign error: {' '.join(more[1:])[:200]}")

    def _check_seen(self, place: int, more: list[str]) -> None:
        newest = Entry(int(more[0]), int(more[1]), more[2], int(more[3])) if more else None
        ways = self.kept[self.script.operations[place].run]
        if all((kept[-1] if kept else None) != newest for kept in ways):
            self.problems.append(f"after its failure, operation {place} saw {newest}, which may not be")

    def _has_happened(self, place: int, generation: int) -> None:
        if place < 0 or not self.script.operations[place].run:
            return
        run = self.script.operations[place].run
        self._generations[run] = generation
        ways = {after for kept in self.kept[run] if (after := self._after(kept, place, generation)) is not None}
        if not ways:
            self.problems.append(f"operation {place} was acknowledged and is not possible")
        self.kept[run] = ways

    def _may_have_happened(self, place: int) -> None:
        if place < 0 or not self.script.operations[place].run:
            return
        operation = self.script.operations[place]
        for kept in list(self.kept[operation.run]):
            generation = self._generations.get(operation.run, 0)
            if operation.kind == "rollback":
                generation = 1 + next((entry.generation for entry in kept if entry.step == operation.step), 0)
            after = self._after(kept, place, generation)
            if after is not None:
                self.kept[operation.run].add(after)

    def _after(self, kept: Kept, place: int, generation: int) -> Kept | None:
        """Return the contents of a run after an operation; None if it is impossible."""
        operation = self.script.operations[place]
        if operation.kind == "delete":
            return ()
        if operation.kind == "rollback":
            return _rolled_back(kept, operation, generation)
        if kept and kept[-1].step > operation.step:
            return None
        data = self._states[place]["place"]
        entry = Entry(operation.step, data, operation.status.value, generation)
        if policy_of(operation.run).max_checkpoints == 1:
            return (entry,)
        return (*(old for old in kept if old.step < operation.step), entry)

    # ------------------------------------------------------------------ comparing

    def compare(self, store: CheckpointStore) -> list[str]:
        """Return the problems of a store."""
        found: list[str] = []
        listed = store.list()
        found += [f"run {run!r} was never saved" for run in listed if run not in self.kept]
        for run, ways in self.kept.items():
            problem = self._compare_run(store, run, ways, run in listed)
            found += [f"run {run!r}: {problem}"] if problem else []
        return found

    def _compare_run(self, store: CheckpointStore, run: str, ways: set[Kept], is_listed: bool) -> str:
        try:
            steps = _line(store.history(run))
            loaded = [store.load(run, step) for step in steps]
            newest = store.load(run) if steps else None
            kept = tuple(entry_of(state, self._states) for state in loaded)
        except (StateGraphError, UnknownStateError) as error:
            return f"{type(error).__name__}: {error}"[:300]
        if bool(steps) != is_listed or (newest is not None and newest != loaded[-1]):
            return f"list, history and load do not agree (steps {steps})"
        if kept not in ways:
            return f"{_shown(kept)} is kept and only {' or '.join(map(_shown, sorted(ways, key=str)[:3]))} may be"
        return ""

    def go_on(self, store: CheckpointStore) -> list[str]:
        """Save to the existing runs and to a new one; return the problems."""
        wrong: list[str] = []
        for run in [*store.list(), "after"]:
            try:
                before = store.load(run)
            except CheckpointNotFoundError:
                before = State(run_id=run)
            state = evolve(before.set("after", "all"), step=before.step + 1)
            store.save(state)
            if store.load(run) != state:
                wrong.append(f"run {run!r}: a later save is not loaded")
        store.delete("after")
        return wrong


def _rolled_back(kept: Kept, operation: Operation, generation: int) -> Kept | None:
    back = [entry for entry in kept if entry.step <= operation.step]
    if not back or back[-1].step != operation.step:
        return None
    return (*back[:-1], attrs.evolve(back[-1], generation=generation))


def _shown(kept: Kept) -> str:
    return "[" + ", ".join(f"{entry.step} ({entry.place} {entry.status} {entry.generation})" for entry in kept) + "]"


def problems_of(possible: Possible, folder: Path) -> list[str]:
    """Open the store in a folder; return its problems and those of the diary."""
    try:
        store = open_store(folder)
    except StateGraphError as error:
        return [*possible.problems, f"it does not open: {type(error).__name__}: {error}"]
    with store:
        try:
            wrong = [*possible.problems, *possible.compare(store)]
            return wrong or possible.go_on(store)
        except StateGraphError as error:
            return [*possible.problems, f"it opens, and then: {type(error).__name__}: {error}"]


def _line(history: Sequence[Summary]) -> list[int]:
    """Return the steps that lead to the newest one, without replaced and rolled back rows of a full history."""
    line: list[int] = []
    for row in history:
        while line and line[-1] >= row.step:
            line.pop()
        line.append(row.step)
    return line
