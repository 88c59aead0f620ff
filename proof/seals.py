"""A signed or encrypted store that was changed without its key returns saved values, or reports a lack of trust.

Cells, rows and runs are replaced by those of the same run, of another, of a deleted one, of another store with the same
key, or by invented ones; rows are removed, copied and exchanged, tables changed. Then the proof reads the whole store,
and again after a write by a handle that was opened before or after the change. Unharmed runs read as before. Of harmed
runs each State, summary and part was saved in this run, and the newest is the newest; or an error is raised. Changed
rows are never sealed as if they had been saved.

Signatures allow (docs/signing.md): a whole run, head and rows together, may be as it once was; an older checkpoint may
be as it was before its step was saved again; lists show the record of a run.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs

from proof import row_changes
from proof.model import is_same_state
from proof.report import Report
from proof.row_changes import CHANGES, Change, Material, Rows, UnchangeableError, by_run, put_back, read
from proof.workers import WORKERS, determine, limited, tell, work_out
from stategraph._values.entries import Entry
from stategraph._values.progress import Part, Pause
from stategraph._values.provenance import ErrorInfo, ParentStep, RunStatus
from stategraph.errors import StateGraphError
from stategraph.state import State, evolve
from stategraph.stores import CheckpointStore, Policy, SqliteStore
from stategraph.stores.summaries import Summary
from stategraph.testing import is_same

CASES = 2_000
"""Changes at share 1.0. The store is read after each, and again after a call."""

_KEYS: dict[str, Any] = {"sign_with": lambda: b"the key that they do not have"}


def _opened(folder: Path, **options: Any) -> CheckpointStore:
    return SqliteStore(folder / "runs.db", **_KEYS, **options)


# --------------------------------------------------------------------------- the store


@attrs.define
class _Scene:
    """A store with runs of all kinds.

    Attributes:
        folder: Its folder.
        salt: A text in all its values.
        moments: Its rows after each write.
        saved: The saved States of each run since it began, also replaced ones.
        gone: The saved States of deleted runs.
        parts: The parts that were saved of each run, with their steps.
    """

    folder: Path
    salt: str
    moments: list[Rows] = attrs.field(factory=list)
    saved: dict[str, list[State]] = attrs.field(factory=dict)
    gone: dict[str, list[State]] = attrs.field(factory=dict)
    parts: dict[str, list[Part]] = attrs.field(factory=dict)

    def did(self, *states: State) -> None:
        """Note saved States and the current rows."""
        for state in states:
            self.saved.setdefault(state.run_id, []).append(state)
        self.moments.append(read(self.folder / "runs.db"))

    def save(self, store: CheckpointStore, run: str, steps: Sequence[int], size: int = 20, **about: Any) -> None:
        """Save steps of a run; `about` belongs to the last."""
        for step in steps:
            data = {"n": step, "salt": self.salt, "log": [self.salt] * step, "text": f"{self.salt} {step} " * size}
            more = about if step == steps[-1] or "parent" in about else {}
            state = State(data, run_id=run, step=step, checkpoint_node=f"node-{step}", graph="graph", **more)
            store.save(state)
            self.did(state)

    def delete(self, store: CheckpointStore, run: str) -> None:
        """Delete a run."""
        store.delete(run)
        self.gone.setdefault(run, []).extend(self.saved.pop(run))
        self.did()

    def save_parts(self, store: CheckpointStore, run: str, step: int) -> None:
        """Save parts of a step, one after the other."""
        for label in "xy":
            part = Part(step, "map", label, f"{self.salt} {label}")
            store.save_parts(run, [part])
            self.parts.setdefault(run, []).append(part)
            self.did()


def _built(folder: Path, salt: str) -> _Scene:
    """Make a store."""
    scene = _Scene(folder, salt)
    pause = Pause("look", "ask", {"shown": salt}, "answer", State().timestamp, None, "0a1b")
    with _opened(folder) as store, _opened(folder, serializer="json") as json_store:
        for run in ("done", "back", "gone"):
            store.retain(run, Policy("full"))
        store.retain("window", Policy("windowed", 2))
        for run in ("again", "gone"):
            scene.save(store, run, [1, 2, 3])
            scene.save_parts(store, run, 4)
            scene.delete(store, run)
        scene.parts.clear()
        scene.save(store, "done", [1, 2, 3, 4, 5, 6], size=300, status="completed")
        scene.save(store, "window", [1, 2, 3, 4, 5])
        for run in ("done", "window"):
            store.append(run, [Entry("turn", run), Entry("turn", run, name=salt, by=salt)])
            scene.did()
        scene.save(store, "failed", [1, 2], status="failed", error=ErrorInfo("E", "no", "x"), labels={"a": salt})
        scene.save(store, "waits", [1, 2], status="paused", pause=pause)
        scene.save(json_store, "json", [1, 2, 3])
        scene.save(store, "again", [1, 2])
        scene.save_parts(store, "again", 3)
        scene.save(store, "nested", [1])
        scene.save(store, "nested/#2/child", [1, 2], parent=ParentStep("nested", 1))
        scene.did(store.fork("done", "fork/1", 3))
        scene.saved["fork/1"] += [evolve(store.load("fork/1", step)) for step in (1, 2)]
        scene.save(store, "fork/1", [4, 5], parent=ParentStep("done", 3))
        scene.save(store, "back", [1, 2, 3, 4, 5], size=300)
        scene.did(store.rollback("back", 3))
        scene.save(store, "back", [4], generation=1)
        scene.save(store, "amended", [1, 2])
        amended = evolve(store.load("amended").set("n", salt))
        store.amend(amended)
        scene.did(amended)
    return scene


# --------------------------------------------------------------------------- the judge


@attrs.frozen
class _Refused:
    """An error of stategraph: there is no such value, or it cannot be trusted."""


def _answer(ask: Callable[[], Any]) -> Any:
    """Return an answer, or the foreign error that a call raised."""
    try:
        return ask()
    except StateGraphError:
        return _Refused()
    except Exception as error:  # noqa: BLE001 - it is looked at
        return error


@attrs.define
class _Judge:
    """Reads a store and finds wrong answers.

    Attributes:
        scene: The saved values.
        truth: The answers of the unchanged store about each run.
        touched: The runs that were changed; None if all of the store is.
        may_be_former: Whether a run may be as it once was.
        more: States that a call has saved since, or returned, by run.
    """

    scene: _Scene
    truth: dict[str, dict[Any, Any]]
    touched: set[str] | None = attrs.field(factory=set)
    may_be_former: bool = False
    more: dict[str, list[State]] = attrs.field(factory=dict)

    def read(self, store: CheckpointStore, run: str) -> dict[Any, Any]:
        """Return all answers of a store about a run."""
        steps = {state.step for states in (self.scene.saved, self.scene.gone) for state in states.get(run, ())}
        found: dict[Any, Any] = {
            "newest": _answer(lambda: store.load(run)),
            "history": _answer(lambda: store.history(run)),
            ("inbox", 0): _answer(lambda: [entry.value for entry in store.entries(run, step=0)]),
        }
        for step in sorted({*steps, 7}):
            found[step] = _answer(lambda step=step: store.load(run, step))  # type: ignore[misc]
            found["parts", step] = _answer(lambda step=step: store.load_parts(run, step, "map"))  # type: ignore[misc]
        return found

    def wrong(self, store: CheckpointStore) -> Iterator[str]:
        """Yield the wrong answers of a store."""
        for run, truth in self.truth.items():
            said = self.read(store, run)
            meant = {*(self.touched or ()), *self.more}
            is_harmed = self.touched is None or any(run == one or _is_within(run, one) for one in meant)
            for question, answer in said.items():
                if isinstance(answer, Exception):
                    yield f"{run} {question}: a foreign error, {answer!r}"
                elif not (is_harmed or _is_equal(answer, truth[question])):
                    yield f"{run} {question}: {_shown(answer)}, though it is unharmed"
                elif not self._was_saved(run, question, answer, truth[question]):
                    yield f"{run} {question}: {_shown(answer)} instead of {_shown(truth[question])}"
        listed = _answer(store.runs)
        for summary in listed if isinstance(listed, list) else ():
            if not any(_belongs_to(summary, state) for state in self._states(summary.run_id, is_former=True)):
                yield f"runs: {_shown(summary)}, which was never saved"
        if isinstance(listed, Exception):
            yield f"runs: a foreign error, {listed!r}"

    def _states(self, run: str, *, is_former: bool) -> list[State]:
        """Return the States that a store may show of a run."""
        gone = self.scene.gone.get(run, []) if is_former else []
        return [*self.scene.saved.get(run, ()), *gone, *self.more.get(run, ())]

    def _was_saved(self, run: str, question: Any, answer: Any, truth: Any) -> bool:
        """Return whether an answer shows saved values, or fewer of them."""
        if isinstance(answer, _Refused) or _is_equal(answer, truth):
            return True
        states = self._states(run, is_former=self.may_be_former)
        if isinstance(answer, State):
            if question == "newest" and not self.may_be_former:
                states = self.more.get(run, [])
            return any(is_same_state(answer, state) for state in states)
        if question == "history":
            return all(any(_belongs_to(row, state) for state in states) for row in answer)
        if question[0] == "inbox":
            return {run, *answer} == {run}  # each message is the id of its run
        parts = [part for part in self.scene.parts.get(run, ()) if part.step == question[1]]
        if self.may_be_former and run in self.scene.gone:
            parts += [Part(question[1], "map", label, f"{self.scene.salt} {label}") for label in "xy"]
        return dict(answer).items() <= {part.label: part.value for part in parts}.items()


def _is_within(run: str, other: str) -> bool:
    """Return whether a run is nested in another, or the other way round."""
    return run.startswith(f"{other}/#") or other.startswith(f"{run}/#")


def _is_equal(a: Any, b: Any) -> bool:
    if isinstance(a, State) and isinstance(b, State):
        return is_same_state(a, b)
    return type(a) is type(b) and bool(a == b)


def _belongs_to(summary: Summary, state: State) -> bool:
    """Return whether a summary belongs to a State."""
    expected = Summary.of(state)
    return all(
        getattr(summary, name) == getattr(expected, name)
        for name in ("run_id", "graph", "step", "checkpoint_node", "timestamp", "status", "error", "pause")
    )


def _shown(answer: Any) -> str:
    if isinstance(answer, State):
        return f"<{answer.run_id}@{answer.step} {answer.status} n={answer.get('n')!r:.30} {answer.get('salt')!r:.30}>"
    return f"{answer!r:.300}"


# --------------------------------------------------------------------------- calls


def _next(state: State, number: int = 1) -> State:
    return evolve(state.set("saved", number), step=state.step + number, status=RunStatus.ACTIVE, error=None, pause=None)


def _fork(store: CheckpointStore, newest: State) -> list[State]:
    made = [store.fork(newest.run_id, "fresh")]
    history = _answer(lambda: store.history("fresh"))
    for row in history if isinstance(history, list) else ():
        with suppress(StateGraphError):
            made.append(store.load("fresh", row.step, row.revision))
    return made


def _rollback(store: CheckpointStore, newest: State) -> list[State]:
    steps = [row.step for row in store.history(newest.run_id)]
    return [store.rollback(newest.run_id, min(steps, default=1))]


_CALLS: dict[str, Callable[[State], list[State]]] = {
    "save the next step": lambda newest: [_next(newest)],
    "save it again": lambda newest: [evolve(newest, status=RunStatus.FAILED, error=None, pause=None)],
    "save many": lambda newest: [_next(newest, number) for number in (1, 2, 3)],
    "amend": lambda newest: [evolve(newest.set("amended", True))],
}
"""The States that each saving call saves, given the newest one."""


def _call(name: str, store: CheckpointStore, newest: State) -> list[State]:
    """Make a call; return the States that may be read afterwards."""
    if name in ("fork", "rollback"):
        return {"fork": _fork, "rollback": _rollback}[name](store, newest)
    states = _CALLS[name](newest) if name in _CALLS else []
    if name == "delete":
        store.delete(newest.run_id)
    elif name == "prune":
        store.prune()
    elif name == "save many":
        store.save_many(states)
    else:
        (store.amend if name == "amend" else store.save)(*states)
    return states


# --------------------------------------------------------------------------- trying


def _try(scene: _Scene, judge: _Judge, material: Material, change: Change, case: str, report: Report) -> None:
    """Change a copy of the store, read it, call it, and read it again."""
    randomness = random.Random(case)  # noqa: S311 - no secret
    run = randomness.choice(sorted(scene.saved))
    name = randomness.choice([*_CALLS, "fork", "rollback", "delete", "prune"])
    newest = judge.truth[run]["newest"]
    with tempfile.TemporaryDirectory(dir=scene.folder.parent) as copy:
        folder = Path(copy)
        shutil.copy(scene.folder / "runs.db", folder)
        was_open = randomness.random() < 0.5
        with _opened(folder) as early:
            if was_open:
                early.load(run)
            row_changes.apply(change, folder / "runs.db", material, case)
            before, after = by_run(material.now), by_run(read(folder / "runs.db"))
            harmed = {one for one in before.keys() | after.keys() if before.get(one) != after.get(one)}
            judge.touched = None if "" in harmed or change is row_changes.change_schema else harmed
            judge.may_be_former, judge.more = change is put_back, {}
            report.tried[change.__name__.replace("_", " ")] += 1
            wrong = [f"{one}" for one in _wrong(folder, judge)]
            made = _answer(lambda: _made(folder, early if was_open else None, name, newest))
        if isinstance(made, Exception):
            wrong.append(f"{name} of {run}: a foreign error, {made!r}")
        states = [] if isinstance(made, Exception | _Refused) else made
        wrong += [f"{name} of {run} returned {_shown(one)}" for one in states if not _is_genuine(judge, run, one, name)]
        tried = _CALLS[name](newest) if name in _CALLS else states
        judge.more = {one.run_id: tried for one in tried} or {run: []}
        wrong += [f"after {name} of {run}: {one}" for one in _wrong(folder, judge)]
    report.found["BELIEVED" if wrong else "refused, or as it was"] += 1
    report.failures += [f"case {case}, {change.__name__}: {one}" for one in wrong[:3]]


def _made(folder: Path, early: CheckpointStore | None, name: str, newest: State) -> list[State]:
    if early is not None:
        return _call(name, early, newest)
    with _opened(folder) as store:
        return _call(name, store, newest)


def _is_genuine(judge: _Judge, run: str, state: State, name: str) -> bool:
    """Return whether a fork or a rollback returned saved data."""
    saved = judge._states(run, is_former=judge.may_be_former)
    return name in _CALLS or any(one.step == state.step and is_same(dict(one), dict(state)) for one in saved)


def _wrong(folder: Path, judge: _Judge) -> list[str]:
    """Open a store and read it; return the wrong answers."""
    store = _answer(lambda: _opened(folder))
    if not isinstance(store, CheckpointStore):
        return [] if isinstance(store, _Refused) else [f"opening it: {store!r}"]
    with store:
        return list(judge.wrong(store))


def _work(count: int, seed: str) -> Report:
    report = Report("seals")
    changes = random.Random(seed).choices(list(CHANGES), list(CHANGES.values()), k=count)  # noqa: S311 - no secret
    with tempfile.TemporaryDirectory(prefix="stategraph-proof-") as name:
        scenes = []
        for salt in ("ours", "theirs"):
            (Path(name) / salt).mkdir()
            scenes.append(_built(Path(name) / salt, salt))
        scene, other = scenes
        judge = _Judge(scene, {})
        with _opened(scene.folder) as store:
            judge.truth = {run: judge.read(store, run) for run in [*scene.saved, "gone", "fresh"]}
        material = Material(scene.moments[-1], scene.moments, other.moments[-1])
        for number, change in enumerate(changes):
            with limited():
                try:
                    _try(scene, judge, material, change, f"{seed}-{number}", report)
                except UnchangeableError:
                    report.found["changes that SQLite itself refuses"] += 1
        report.failures += _unseen(scene, judge)
    return report


def _unseen(scene: _Scene, judge: _Judge) -> Iterator[str]:
    """Yield a failure if the judge misses a change that was made with the key: it would prove nothing."""
    with _opened(scene.folder) as store:
        store.amend(store.load("failed").set("n", 99))
    judge.touched, judge.may_be_former, judge.more = {"failed"}, False, {}
    if not _wrong(scene.folder, judge):
        yield "what is written with the key is not seen"


def prove(share: float, seed: int) -> list[Report]:
    """Change a signed store, and one that is encrypted, `CASES` times at share 1.0."""
    report = Report("a store that is changed without its key is believed nothing that was not saved")
    count = max(5, round(CASES * share / WORKERS))
    work_out("seals", [(count, f"{seed}-{worker}") for worker in range(WORKERS)], report)
    return [report]


if __name__ == "__main__":
    determine(sys.argv[2])
    if sys.argv[2].endswith("-1"):  # one of the workers
        _KEYS = {"encrypt_with": {"key": b"the key that they do not have...."[:32]}, "encrypt_labels": True}
    tell(_work(int(sys.argv[1]), sys.argv[2]))
