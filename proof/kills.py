"""A graph that is killed again and again ends as one that is not, with no checkpointed step repeated."""

from __future__ import annotations

import copy
import hashlib
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, cast

import attrs

import proof
from proof.report import Report
from stategraph import CheckpointConfig, GraphConfig, NodeContext, State, StateGraph, get_checkpoint_store
from stategraph.config import Durability, Retention
from stategraph.errors import CheckpointNotFoundError, RunCompleteError
from stategraph.stores import CheckpointStore
from stategraph.stores import _save_queue as background
from stategraph.stores.memory import MemoryStore
from stategraph.testing.corpus import Order, is_same

KILLS = 200  # at full length
_BOUND = 4  # in place of QUEUE_BOUND in most runs, so that a run is long beside it
_REAL_BOUND = background.QUEUE_BOUND
_SLOW = 0.8  # seconds that a save takes at least where the bound is the real one, so that States queue up to it
_RUN = "killed"
_PAUSE = 0.0005  # seconds that a step takes at least
_TOP = Path(proof.__file__).parent.parent


@attrs.frozen
class Case:
    """How a graph saves, and how many steps a kill may cost."""

    store: str
    durability: Durability
    interval: int
    retention: Retention
    bound: int = _BOUND

    @property
    def is_bound_real(self) -> bool:
        """Whether as many States may wait as outside of proofs."""
        return self.bound == _REAL_BOUND

    @property
    def steps(self) -> int:
        """How many steps a run takes: several times what may be lost."""
        return 1_600 if self.is_bound_real else 150

    @property
    def most_lost(self) -> int:
        """How many checkpoints that are due may be missing after a kill."""
        return self.bound if self.durability == "async" else 0

    def least_saved(self, entered: int) -> int:
        """-> the step that must be saved once this step was entered."""
        due = (entered - 1) // self.interval - self.most_lost
        return 0 if self.durability == "exit" else max(0, due * self.interval)

    def __str__(self) -> str:
        return f"{self.store} {self.durability} every {self.interval} {self.retention}, {self.bound} wait"


CASES = [
    Case("sqlite", durability, interval, retention)
    for durability in ("sync", "async", "exit")
    for interval in (1, 5)
    for retention in ("latest", "full")
    if (durability, retention) != ("exit", "full")
]
CASES += [Case("sqlite", "async", 1, "latest", _REAL_BOUND)]


# --------------------------------------------------------------------------- the run


def graph_of(case: Case, store: CheckpointStore, log: int | None) -> StateGraph:
    """-> a graph of one node that runs again and again, and tells the log of each step that it enters."""
    checkpoint = CheckpointConfig(
        interval=case.interval, preserve=True, durability=case.durability, retention=case.retention
    )
    config = GraphConfig(name="killed", observer="noop", max_iterations=10 * case.steps, checkpoint=checkpoint)
    graph = StateGraph(config, store=store)

    def work(state: State, context: NodeContext) -> dict[str, Any]:
        if log is not None:
            os.write(log, b"%d\n" % context.step)  # appended as a whole, whoever else writes
            time.sleep(_PAUSE)
        return work_of_step(state, context.step)

    graph.add_node("work", work)
    graph.add_node("end", lambda state: {"over": True})
    graph.set_entry_point("work")
    graph.set_exit_point("end")
    graph.add_edge("work", "work", lambda state: state.step < case.steps)
    graph.add_edge("work", "end")
    return graph


def work_of_step(state: State, step: int) -> dict[str, Any]:
    """-> what a step adds: it depends on all steps before."""
    digest = hashlib.blake2b(f"{state.get('digest')} {step}".encode(), digest_size=8).hexdigest()
    order = Order(step, [step, digest])
    changes = {"digest": digest, "log": [*state.get("log", ()), {"step": step, "digest": digest}], "order": order}
    return changes | ({f"odd-{step % 7}": (step, [digest])} if step % 2 else {})


class _Keeper(MemoryStore):
    """Keeps States as they are: encoding thousands that grow takes minutes."""

    def __init__(self) -> None:
        super().__init__()
        self.states: dict[int, State] = {}

    def save(self, state: State) -> None:
        self.states[state.step] = copy.deepcopy(state)


@cache
def undisturbed(bound: int) -> dict[int, State]:
    """-> the State after every step of a run that nobody kills, with cases of this bound."""
    case = Case("memory", "sync", 1, "full", bound)
    store = _Keeper()
    graph_of(case, store, None).execute(State(run_id=_RUN))
    return store.states


def opened(name: str, folder: Path) -> CheckpointStore:
    """-> the store of a case."""
    return get_checkpoint_store(name, path=str(folder / "runs"))


def live(folder: Path, case: Case) -> None:
    """One life of the run, in a process of its own: resume it, or begin it."""
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    store = opened(case.store, folder)
    if case.is_bound_real:
        _slow_down(store)
    background.QUEUE_BOUND = case.bound
    graph = graph_of(case, store, log)
    try:
        graph.resume(_RUN)
    except CheckpointNotFoundError:
        graph.execute(State(run_id=_RUN))
    except RunCompleteError:
        pass


def _slow_down(store: CheckpointStore) -> None:
    save_many = store.save_many

    def slowly(states: Sequence[State]) -> None:
        time.sleep(_SLOW)
        save_many(states)

    store.save_many = slowly  # type: ignore[method-assign]


# --------------------------------------------------------------------------- killing it


class _Killer:
    """Kills a run of one case some times, and looks at what is left each time."""

    def __init__(self, case: Case, kills: int, seed: int) -> None:
        self._case = case
        self._kills = kills
        self._random = random.Random(seed)  # noqa: S311 - no secret
        self._expected = undisturbed(case.bound)
        self.report = Report(str(case))

    def run(self) -> Report:
        """Runs one after the other, until there were enough kills."""
        while self._kills > 0 and not self.report.failures:
            with tempfile.TemporaryDirectory(prefix="stategraph-proof-") as folder:
                self._run(Path(folder))
        return self.report

    def _run(self, folder: Path) -> None:
        """One run from its beginning to its end."""
        saved = 0
        deaths = self._random.randint(3, 8)
        while True:
            entered = len(self._log(folder))
            is_last = deaths == 0 or self._kills == 0
            ended = self._one_life(folder, is_last)
            self._look_at_log(self._log(folder)[entered:], saved)
            if ended:
                break
            self.report.tried["kills with the real bound" if self._case.is_bound_real else "kills"] += 1
            self._kills -= 1
            deaths -= 1
            saved = self._look_at_store(folder, self._log(folder)[entered:], saved)
        self.report.tried["runs"] += 1
        self._look_at_end(folder)

    def _one_life(self, folder: Path, is_last: bool) -> bool:
        """Let the run live for a while -> whether it came to its end."""
        command = [sys.executable, "-m", "proof.kills", str(folder), *map(str, attrs.astuple(self._case))]
        before = len(self._log(folder))
        with subprocess.Popen(command, cwd=_TOP, stderr=subprocess.PIPE) as process:  # noqa: S603 - itself
            if not is_last:
                if self._random.random() < 0.8:  # most die at work, some on the way there
                    while len(self._log(folder)) == before and process.poll() is None:
                        time.sleep(0.001)
                    time.sleep(self._random.uniform(0, 2.5 if self._case.is_bound_real else 0.12))
                else:
                    time.sleep(self._random.uniform(0, 0.4))
                process.kill()
            _, errors = process.communicate()
        if process.returncode not in (0, -9):
            self._fail(f"a life ended in an error: {errors.decode()[-600:]}")
            return True
        return process.returncode == 0

    def _log(self, folder: Path) -> list[int]:
        """-> the steps that were entered, in all lives."""
        try:
            lines = (folder / "log").read_bytes().split()
        except FileNotFoundError:
            return []
        return [int(line) for line in lines]

    # ------------------------------------------------------------------ what must hold

    def _look_at_log(self, entered: list[int], saved: int) -> None:
        """A life goes on just behind what is saved, step by step."""
        if entered and entered != list(range(saved + 1, saved + 1 + len(entered))):
            self._fail(f"saved was step {saved}, and the next life entered {entered[:5]}...{entered[-3:]}")

    def _look_at_store(self, folder: Path, entered: list[int], before: int) -> int:
        """What a kill left is a State of the undisturbed run, and late enough -> its step."""
        with opened(self._case.store, folder) as store:
            try:
                state = store.load(_RUN)
            except CheckpointNotFoundError:
                state = State(run_id=_RUN)
        least = max(before, self._case.least_saved(entered[-1])) if entered else before
        if state.step < least:
            self._fail(
                f"step {least} was saved and is lost: after step {max(entered)} was entered, {state.step} is left"
            )
        if state.step and not is_same(dict(state), dict(self._expected[state.step])):
            self._fail(f"what is left at step {state.step} is not what was saved")
        again = (entered[-1] if entered else state.step) - state.step
        self.report.found[f"steps run twice, {'exit' if self._case.durability == 'exit' else 'else'}"] += max(0, again)
        if self._case.is_bound_real:
            self.report.found[f"checkpoints lost of {self._case.bound:,} that may wait, at most"] = max(
                self.report.found[f"checkpoints lost of {self._case.bound:,} that may wait, at most"],
                again // self._case.interval,
            )
        self.report.found["nothing lost" if again <= 1 else "steps lost, as allowed"] += 1
        return state.step

    def _look_at_end(self, folder: Path) -> None:
        """The final State is that of the undisturbed run, and so is every checkpoint that is kept."""
        if self.report.failures:
            return
        with opened(self._case.store, folder) as store:
            rows = store.history(_RUN)
            steps = [row.step for row in rows if self._case.retention != "full" or row.kind in ("input", "step")]
            due = {step for step in self._expected if step % self._case.interval == 0} | {self._case.steps + 1}
            if steps != (sorted(due) if self._case.retention == "full" else [self._case.steps + 1]):
                self._fail(f"its history is {steps}")
            for step in steps:
                state = store.load(_RUN, step)
                if not is_same(dict(state), dict(self._expected[step])):
                    self._fail(f"step {step} is another than without kills")
            if state.status != "completed":
                self._fail(f"it ended as {state.status}")

    def _fail(self, what: str) -> None:
        self.report.failures.append(f"{self._case}: {what}")


def prove(share: float, seed: int) -> list[Report]:
    """Kill runs of every case -> one report."""
    whole = Report("a run that is killed and resumed ends as one that is not, and repeats no checkpointed step")
    with ThreadPoolExecutor(2) as pool:
        killers = [_Killer(*given) for given in _dealt(max(1, round(KILLS * share)), seed)]
        for report in pool.map(_Killer.run, killers):
            whole.add(report)
    return [whole]


def _dealt(kills: int, seed: int) -> Iterator[tuple[Case, int, int]]:
    """-> the cases with their kills, as even as it goes."""
    cases = CASES[:]
    random.Random(seed).shuffle(cases)  # noqa: S311 - no secret
    for number, case in enumerate(cases):
        share = kills // len(cases) + (number < kills % len(cases))
        if share:
            yield case, share, seed + number


if __name__ == "__main__":
    _store, _durability, _interval, _retention, _bound = sys.argv[2:7]
    _when = cast(Durability, _durability), int(_interval), cast(Retention, _retention)
    live(Path(sys.argv[1]), Case(_store, *_when, int(_bound)))
