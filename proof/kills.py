"""Runs that are killed again and again end like undisturbed runs, and repeat no checkpointed step.

One run in a process, and many at once on one event loop.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import attrs

from proof import TOP
from proof.children import distributed, lines_of
from proof.report import Report
from proof.workload import open_store
from stategraph import CheckpointConfig, GraphConfig, NodeContext, State, StateGraph
from stategraph.config import Durability, Retention
from stategraph.errors import CheckpointNotFoundError
from stategraph.stores import CheckpointStore
from stategraph.stores import _save_queue as background
from stategraph.testing import is_same
from stategraph.testing.corpus import Order

KILLS = 260  # at full length
CROWD = 1_000  # runs at once, at full length
_BOUND = 4  # in place of QUEUE_BOUND in most runs, so that a run is long beside it
_REAL_BOUND = background.QUEUE_BOUND
_SLOW = 0.8  # seconds that a save takes at least where the bound is the real one, so that States queue up to it
_PAUSE = 0.0005  # seconds that a step takes at least


@attrs.frozen
class Case:
    """The way in which runs save, and the number of steps that a kill may cost.

    Attributes:
        durability, interval, retention: Their configuration.
        bound: How many States may wait.
        runs: How many there are at once.
    """

    durability: Durability
    interval: int = attrs.field(converter=int)
    retention: Retention
    bound: int = attrs.field(default=_BOUND, converter=int)
    runs: int = attrs.field(default=1, converter=int)

    @property
    def is_bound_real(self) -> bool:
        """Whether as many States may wait as outside of proofs."""
        return self.bound == _REAL_BOUND

    @property
    def steps(self) -> int:
        """How many steps a run takes before its last: several times what may be lost."""
        return 5 if self.runs > 1 else 1_600 if self.is_bound_real else 150

    def least_saved(self, entered: int) -> int:
        """Return the step that must be saved once this step was entered."""
        waiting = self.bound if self.durability == "async" else 0
        due = (entered - 1) // self.interval - waiting
        return 0 if self.durability == "exit" else max(0, due * self.interval)


CASES = [
    Case(durability, interval, retention)
    for durability in ("sync", "async", "exit")
    for interval in (1, 5)
    for retention in ("latest", "full")
    if (durability, retention) != ("exit", "full")
]
CASES += [Case("async", 1, "latest", _REAL_BOUND)]
CASES += [Case(durability, 1, kept, runs=CROWD) for durability in ("sync", "async") for kept in ("latest", "full")]


# --------------------------------------------------------------------------- the runs


def work_of_step(data: dict[str, Any], step: int) -> dict[str, Any]:
    """Return what a step adds: it depends on all steps before."""
    digest = hashlib.blake2b(f"{data.get('digest')} {data['n']} {step}".encode(), digest_size=8).hexdigest()
    order = Order(step, [step, digest])
    changes = {"digest": digest, "log": [*data.get("log", ()), {"step": step, "digest": digest}], "order": order}
    return changes | ({f"odd-{step % 7}": (step, [digest])} if step % 2 else {})


@lru_cache(CROWD)
def undisturbed(number: int, steps: int) -> list[dict[str, Any]]:
    """Return the data of a run after each step, the last one included, as plain Python makes them."""
    made: list[dict[str, Any]] = [{"n": number}]
    for step in range(1, steps + 1):
        made.append(made[-1] | work_of_step(made[-1], step))
    return [*made, made[-1] | {"over": True}]


def graph_of(case: Case, store: CheckpointStore, log: int) -> StateGraph:
    """Return a graph of two alternating nodes that log each step; in a crowd, one of them is async."""
    checkpoint = CheckpointConfig(
        interval=case.interval, preserve=True, durability=case.durability, retention=case.retention
    )
    config = GraphConfig(name="killed", observer="noop", max_iterations=10 * case.steps, checkpoint=checkpoint)
    graph = StateGraph(config, store=store)

    def work(state: State, context: NodeContext) -> dict[str, Any]:
        os.write(log, b"%d %d\n" % (state["n"], context.step))  # one write: lines of other processes cannot split it
        if case.runs == 1:
            time.sleep(_PAUSE)
        return work_of_step(dict(state), context.step)

    async def waits(state: State, context: NodeContext) -> dict[str, Any]:
        await asyncio.sleep(0)
        return work(state, context)

    graph.add_node("work", work)
    graph.add_node("waits", work if case.runs == 1 else waits)
    graph.add_node("end", lambda state: {"over": True})
    for name, other in ("work", "waits"), ("waits", "work"):
        graph.add_edge(name, other, lambda state: state.step < case.steps)
        graph.add_edge(name, "end")
    graph.set_entry_point("work")
    graph.set_exit_point("end")
    return graph


def live(folder: Path, case: Case) -> None:
    """Run or resume all runs to their ends, in a process that may be killed."""
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    store = open_store(folder)
    if case.is_bound_real:
        _slow_down(store)
    background.QUEUE_BOUND = case.bound
    graph = graph_of(case, store, log)
    states = [State({"n": number}, run_id=f"run-{number}") for number in range(case.runs)]
    if case.runs == 1:
        graph.run(states[0])
        return

    async def all_at_once() -> None:
        await asyncio.gather(*map(graph.arun, states))

    asyncio.run(all_at_once())


def _slow_down(store: CheckpointStore) -> None:
    save_many = store.save_many

    def slowly(states: Sequence[State]) -> None:
        time.sleep(_SLOW)
        save_many(states)

    store.save_many = slowly  # type: ignore[method-assign]


# --------------------------------------------------------------------------- killing them


class _Killer:
    """Kills runs of one case several times, and checks the store each time."""

    def __init__(self, case: Case, kills: int, seed: int) -> None:
        self._case, self._kills = case, kills
        self._random = random.Random(seed)  # noqa: S311 - no secret
        self.report = Report(str(case))

    def run(self) -> Report:
        """Run and kill processes until there were enough kills."""
        while self._kills > 0 and not self.report.failures:
            with tempfile.TemporaryDirectory(prefix="stategraph-proof-") as folder:
                self._to_the_end(Path(folder))
        return self.report

    def _to_the_end(self, folder: Path) -> None:
        saved = dict.fromkeys(range(self._case.runs), 0)
        deaths, has_ended = min(self._kills, self._random.randint(3, 8)), False
        while not (has_ended or self.report.failures):
            before = len(_log(folder))
            has_ended = self._one_life(folder, is_last=not deaths)
            entered: dict[int, list[int]] = defaultdict(list)
            for number, step in _log(folder)[before:]:
                entered[number].append(step)
            for number, steps in entered.items():  # a life goes on right after what is saved, step by step
                if steps != list(range(saved[number] + 1, saved[number] + 1 + len(steps))):
                    self._fail(
                        f"run {number} was saved at step {saved[number]}, and entered {steps[:5]}...{steps[-3:]}"
                    )
            if not has_ended:
                self.report.tried["kills"] += 1
                deaths, self._kills = deaths - 1, self._kills - 1
            saved = self._look_at_store(folder, entered, saved, is_over=has_ended)
        self.report.tried["runs"] += self._case.runs

    def _one_life(self, folder: Path, *, is_last: bool) -> bool:
        """Run a process for a while; return whether all runs ended."""
        command = [sys.executable, "-m", "proof.kills", str(folder), *map(str, attrs.astuple(self._case))]
        before = len(_log(folder))
        longest = 0.0008 * self._case.runs if self._case.runs > 1 else 2.5 if self._case.is_bound_real else 0.12
        with subprocess.Popen(command, cwd=TOP, stderr=subprocess.PIPE) as process:  # noqa: S603 - itself
            if not is_last:
                if self._random.random() < 0.8:  # most die at work, some on the way there
                    while len(_log(folder)) == before and process.poll() is None:
                        time.sleep(0.001)
                    time.sleep(self._random.uniform(0, longest))
                else:
                    time.sleep(self._random.uniform(0, 0.4))
                process.kill()
            _, errors = process.communicate()
        if process.returncode not in (0, -9):
            self._fail(f"a life ended in an error: {errors.decode()[-600:]}")
        return process.returncode == 0

    def _look_at_store(
        self, folder: Path, entered: dict[int, list[int]], before: dict[int, int], *, is_over: bool
    ) -> dict[int, int]:
        """Check that each run is at one of its States, and late enough; return their steps."""
        case, saved = self._case, dict(before)
        with open_store(folder) as store:
            for number in before if is_over else list(entered):
                expected, newest = undisturbed(number, case.steps), max(entered[number], default=0)
                state = _state_of(store, number)
                least = case.steps + 1 if is_over else max(before[number], case.least_saved(newest))
                if state.step < least:
                    self._fail(f"run {number}: step {least} was saved, and {state.step} is left")
                if state.step and not is_same(dict(state), expected[state.step]):
                    self._fail(f"run {number}: what is left at step {state.step} is not what was saved")
                self.report.found["steps run twice"] += 0 if is_over else max(0, newest - state.step)
                saved[number] = state.step
                if is_over:
                    self._look_at_end(store, number, expected)
        return saved

    def _look_at_end(self, store: CheckpointStore, number: int, expected: list[dict[str, Any]]) -> None:
        """Check that every kept checkpoint equals that of an undisturbed run."""
        case = self._case
        rows = store.history(f"run-{number}")
        steps = [row.step for row in rows if case.retention != "full" or row.kind in ("input", "step")]
        due = {step for step in range(case.steps + 1) if step % case.interval == 0} | {case.steps + 1}
        if steps != (sorted(due) if case.retention == "full" else [case.steps + 1]):
            self._fail(f"run {number}: its history is {steps}")
        for step in steps:
            if not is_same(dict(store.load(f"run-{number}", step)), expected[step]):
                self._fail(f"run {number}: step {step} is another than without kills")

    def _fail(self, what: str) -> None:
        self.report.failures.append(f"{self._case}: {what}")


def _log(folder: Path) -> list[tuple[int, int]]:
    """Return the runs and steps that were entered, in all lives."""
    return [(int(number), int(step)) for number, step in map(str.split, lines_of(folder / "log"))]


def _state_of(store: CheckpointStore, number: int) -> State:
    try:
        return store.load(f"run-{number}")
    except CheckpointNotFoundError:
        return State(run_id=f"run-{number}")


def prove(share: float, seed: int) -> list[Report]:
    """Kill runs of every case."""
    whole = Report("runs that are killed and resumed end like undisturbed ones, and repeat no checkpointed step")
    with ThreadPoolExecutor(2) as pool:
        for report in pool.map(_Killer.run, _dealt(share, seed)):
            whole.add(report)
    return [whole]


def _dealt(share: float, seed: int) -> Iterator[_Killer]:
    """Distribute the kills evenly over the cases."""
    cases, kills = CASES[:], max(1, round(KILLS * share))
    random.Random(seed).shuffle(cases)  # noqa: S311 - no secret
    for case, some, own_seed in distributed(kills, cases, seed):
        runs = case.runs if case.runs == 1 else max(40, round(CROWD * min(1.0, share)))
        yield _Killer(attrs.evolve(case, runs=runs), some, own_seed)


if __name__ == "__main__":
    live(Path(sys.argv[1]), Case(*cast(Any, sys.argv[2:])))
