"""Calls of a store that somebody changes: before it is opened, while it is open, or while a run is under way."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs

from proof.forging.calls import CALLS, RESUMABLE, UNDER_WAY, Answers, Session, answer, ask_all, heard
from proof.forging.changed import Changed, compared
from proof.forging.scene import NOW, RUNS, Scene, Work, at
from proof.forging.tables import FILES, Rows, connected, outermost, places, read, remove
from stategraph import CheckpointStore, State
from stategraph._values.ids import check_run_id
from stategraph._values.progress import Part
from stategraph.errors import InvalidRunIdError, StateGraphError


@attrs.frozen
class Forgery:
    """One thing that somebody does to a store.

    Attributes:
        what: What is changed, such as "run.status".
        how: By what it is replaced, or what becomes of it.
        detail: What exactly.
        apply: Does it to the files in a folder.
        runs: The runs that it is about.
        is_live: It is done to the files of a store that is open, whose newest commits are in its log.
        is_general: It is done to all of the store.
        hides: It lets SQLite not find rows that are there.
        takes_files: It changes files behind the back of SQLite, and so none that is open.
    """

    what: str
    how: str
    detail: str
    apply: Callable[[Path], None]
    runs: tuple[str, ...] = ()
    is_live: bool = False
    is_general: bool = False
    hides: bool = False
    takes_files: bool = False


_LOG_SIZE = 4 << 20  # bytes
_SAVES = ("save", "amend", "save_many", "fork", "rollback")


@attrs.frozen
class Call:
    """A call, and when the store is changed.

    Attributes:
        name: What is called; empty to read only.
        run: The run that it is about.
        when: "before" the store is opened, once the run was "loaded" with it, or what a run that is under way does
            then, one of `UNDER_WAY`.
    """

    name: str
    run: str
    when: str = "before"

    @property
    def kind(self) -> str:
        """What the call is, for people."""
        when = {"before": "", "loaded": " by a handle that had loaded it"}
        return self.name + when.get(self.when, f" under way, and it {self.when}")

    @property
    def begins(self) -> tuple[str, ...]:
        """The runs that it may begin."""
        is_new = self.run in {"gone", "fresh"} or self.name == "delete, and begin again"
        is_other = self.name.startswith("fork") or self.name == "begin another run"
        return (*([self.run] if is_new else ()), *(["fresh"] if is_other else ()))


@attrs.frozen
class Played:
    """What came of a call.

    Attributes:
        outcome: What it returned, or raised.
        effects: What the functions of the graph did.
        saved: The States that the graph gave to the store.
        parts: The finished parts of the run that it gave to the store.
        answers: What is then to be read.
        changed: What somebody had changed.
    """

    outcome: Any
    effects: list[str]
    saved: list[State]
    parts: list[Part]
    answers: Answers
    changed: Changed


class Player:
    """Makes calls of copies of a store.

    Args:
        scene: The store.
        folder: For the copies.
        is_live: Whether it is copied as it was while it was open.
    """

    def __init__(self, scene: Scene, folder: Path, *, is_live: bool = False) -> None:
        self.scene, self._folder = scene, folder
        self._files = scene.live if is_live else scene.files
        self._file = folder / FILES[scene.name]
        steps: dict[str, set[int]] = {run: {1} for run in RUNS}
        for moment in scene.moments:
            steps |= {place.run: {1} for place in places(moment.rows).values() if _is_run_id(place.run)}
        for place in places(scene.rows).values():
            if place.run in steps and place.step is not None:
                steps[place.run] |= {place.step, place.step + 1}
        self._steps = {run: sorted(kept) for run, kept in steps.items()}
        self.genuine: Answers = {}
        self.genuine = self.play(Call("", ""), None).answers

    def play(self, call: Call, forgery: Forgery | None) -> Played:
        """Make a call of a store that somebody changes."""
        self._lay_out()
        changed, work = Changed(), Work()
        saved: list[State] = []
        parts: list[Part] = []

        def change() -> None:
            nonlocal changed
            if forgery is not None:
                look = self._read_copy if forgery.takes_files else lambda: read(self._file)
                before = look()
                forgery.apply(self._folder)
                changed = compared(before or {}, look(), is_general=forgery.is_general, hides=forgery.hides)

        with at(NOW), heard():
            if call.when == "before":
                change()
            outcome = self._called(call, change, work, saved, parts) if call.name else None
            answers = self._answers(call, None if forgery is None else changed)
        return Played(outcome, work.effects, saved, parts, answers, changed)

    def _lay_out(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir()
        for name, content in self._files.items():
            (self._folder / name).write_bytes(content)

    def _read_copy(self) -> Rows | None:
        """Return the rows of a copy of the store; None if SQLite cannot read it, or not all of it."""
        copy = self._folder.with_name("copy")
        shutil.copytree(self._folder, copy, ignore=shutil.ignore_patterns("*-shm"))
        try:
            with connected(copy / self._file.name) as database:
                if database.execute("PRAGMA integrity_check(1)").fetchone() != ("ok",):
                    return None
            return read(copy / self._file.name)
        except Exception:  # noqa: BLE001 - whatever comes of reading garbage
            return None
        finally:
            shutil.rmtree(copy)

    def _called(self, call: Call, change: Callable[[], None], work: Work, saved: list[State], parts: list[Part]) -> Any:
        opened = answer(self._open)
        if not isinstance(opened, CheckpointStore):
            return opened
        with opened as store:
            if call.when == "loaded":
                answer(lambda: store.load(call.run))
                change()
            elif call.when in UNDER_WAY:
                work.during, work.then = change, call.when
            noting: dict[str, Callable[..., Any]] = {"save_parts": _noting_parts(parts, call.run, store.save_parts)}
            noting |= {name: _noting(saved, getattr(store, name)) for name in _SAVES}
            for name, noted in noting.items():
                setattr(store, name, noted)
            return answer(lambda: CALLS[call.name](self._session(call, store, work)))

    def _session(self, call: Call, store: CheckpointStore, work: Work) -> Session:
        newest = self.genuine["load", call.run]
        steps = tuple(summary.step for summary in self.genuine["history", call.run])
        return Session(store, call.run, newest if isinstance(newest, State) else None, steps, work)

    def _answers(self, call: Call, changed: Changed | None) -> Answers:
        """Return what is then to be read: after a call, of runs that nobody has changed only the newest steps."""
        steps: dict[str, Sequence[int]] = dict(self._steps)
        if changed is not None:
            steps = {run: () if call.name and not changed.touches(run) else kept for run, kept in steps.items()}
            steps |= dict.fromkeys(sorted(filter(_is_run_id, changed.planted)), (1,))
        for run in (call.run, "fresh"):  # which may have more steps now
            steps[run] = range(max(self._steps.get(run, (0,))) + 8)
        opened = answer(self._open)
        if not isinstance(opened, CheckpointStore):
            return dict.fromkeys(self.genuine, opened)
        with opened as store:
            return ask_all(store, steps)

    def _open(self) -> CheckpointStore:
        """Open the store. A log that is long already, if only of nothing, need not be grown first, which takes long."""
        log = self._file.with_name(f"{self._file.name}-wal")
        with log.open("ab") as file:
            file.truncate(max(file.tell(), _LOG_SIZE))
        return self.scene.open(self._folder)


def _is_run_id(run: str) -> bool:
    try:
        check_run_id(run)
    except InvalidRunIdError:
        return False
    return True


def deletion(runs: frozenset[str], scene: Scene) -> Forgery:
    """Return what removes runs as the store itself does, by another handle.

    What is within a run is removed row by row, and so is a run that is at work, which the store would not delete.
    """

    def apply(folder: Path) -> None:
        with scene.open(folder) as store:
            for run in sorted(runs.intersection(RUNS)):
                with suppress(StateGraphError):
                    store.delete(run)
        rows = read(folder / FILES[scene.name])
        with connected(folder / FILES[scene.name]) as database:
            for key, place in places(rows).items():
                if place.run in runs or outermost(place.run, RUNS) in runs:
                    remove(database, key)

    return Forgery("a run", "deleted", "", apply, tuple(runs))


def _noting(saved: list[State], write: Callable[..., State | None]) -> Callable[..., State | None]:
    def noted(*arguments: Any) -> State | None:
        given = (one for argument in arguments for one in (argument if isinstance(argument, list) else [argument]))
        saved.extend(one for one in given if isinstance(one, State))
        made = write(*arguments)
        saved.extend([made] if made is not None else [])
        return made

    return noted


def _noting_parts(
    noted: list[Part], run: str, write: Callable[[str, Sequence[Part]], None]
) -> Callable[[str, Sequence[Part]], None]:
    def noting(run_id: str, parts: Sequence[Part]) -> None:
        noted.extend(parts if run_id == run else ())
        write(run_id, parts)

    return noting


def possible_calls(run: str) -> list[Call]:
    """Return all calls about a run."""
    calls = [Call(name, run, when) for name in CALLS for when in ("before", "loaded")]
    return calls + ([Call("resume", run, then) for then in UNDER_WAY] if run in RESUMABLE else [])
