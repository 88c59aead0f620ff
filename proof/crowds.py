"""Many runs at once on one event loop, killed again and again, end as one by one, with no saved step repeated."""

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
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import attrs

import proof
from proof.report import Report
from stategraph import CheckpointConfig, GraphConfig, State, StateGraph, get_checkpoint_store
from stategraph.config import Durability, Retention
from stategraph.errors import CheckpointNotFoundError
from stategraph.stores import CheckpointStore

RUNS = 1_000
KILLS = 30  # at full length
STEPS = 5
_TOP = Path(proof.__file__).parent.parent


@attrs.frozen
class Case:
    """How the runs save."""

    store: str
    durability: Durability
    retention: Retention
    runs: int = attrs.field(default=RUNS, converter=int)

    def __str__(self) -> str:
        return f"{self.runs:,} runs at once, {self.store} {self.durability} {self.retention}"


CASES = [Case("sqlite", durability, retention) for durability in ("sync", "async") for retention in ("latest", "full")]


def prove(share: float, seed: int) -> list[Report]:
    """Kill crowds of runs of each kind."""
    some = [attrs.evolve(case, runs=max(40, int(RUNS * min(1.0, share)))) for case in CASES]
    kills = max(2, int(KILLS * share))
    return [_Crowd(case, kills, seed + number).run() for number, case in enumerate(some)]


def digest_of(number: int, step: int) -> str:
    """-> what a run holds after a step: it depends on all steps before."""
    before = digest_of(number, step - 1) if step else f"run {number}"
    return hashlib.blake2b(f"{before} {step}".encode(), digest_size=8).hexdigest()


def graph_of(case: Case, store: CheckpointStore, log: int) -> StateGraph:
    """-> the graph of the runs: its nodes note what they enter. Those of every third step are sync."""

    def work(state: State) -> dict[str, Any]:
        step = state.step + 1
        os.write(log, b"%d %d\n" % (state["n"], step))
        return {"digest": digest_of(state["n"], step)}

    async def waits(state: State) -> dict[str, Any]:
        changes = work(state)
        await asyncio.sleep(0)
        return changes

    checkpoint = CheckpointConfig(preserve=True, interval=1, durability=case.durability, retention=case.retention)
    graph = StateGraph(GraphConfig("crowd", observer="noop", checkpoint=checkpoint), store=store)
    names = [f"step-{number}" for number in range(1, STEPS + 1)]
    for number, name in enumerate(names, 1):
        graph.add_node(name, waits if number % 3 else work)
        if number > 1:
            graph.add_edge(names[number - 2], name)
    graph.set_entry_point(names[0])
    graph.set_exit_point(names[-1])
    return graph


def opened(case: Case, folder: Path) -> CheckpointStore:
    """-> the store of the runs."""
    return get_checkpoint_store(case.store, path=folder / "runs")


async def live(case: Case, folder: Path) -> None:
    """Run them all, from wherever they stand to their ends."""
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with opened(case, folder) as store:
        graph = graph_of(case, store, log)
        await asyncio.gather(
            *(graph.arun(State({"n": n, "digest": digest_of(n, 0)}, run_id=f"run-{n}")) for n in range(case.runs))
        )


class _Crowd:
    """Lives of the same runs, one after the other, until there were enough kills."""

    def __init__(self, case: Case, kills: int, seed: int) -> None:
        self._case, self._kills = case, kills
        self._random = random.Random(seed)  # noqa: S311 - no secret
        self.report = Report(str(case))

    def run(self) -> Report:
        while self._kills > 0 and not self.report.failures:
            with tempfile.TemporaryDirectory(prefix="stategraph-proof-") as folder:
                self._to_the_end(Path(folder))
        return self.report

    def _to_the_end(self, folder: Path) -> None:
        saved = dict.fromkeys(range(self._case.runs), 0)
        deaths = min(self._kills, self._random.randint(2, 6))
        while not self.report.failures:
            before = len(self._log(folder))
            has_ended = self._one_life(folder, is_last=not deaths)
            entered = self._log(folder)[before:]
            self._look_at_log(entered, saved)
            saved = self._look_at_store(folder, entered, saved, is_over=has_ended)
            if has_ended:
                break
            deaths, self._kills = deaths - 1, self._kills - 1
            self.report.tried["kills"] += 1
        self.report.tried["runs"] += self._case.runs

    def _one_life(self, folder: Path, *, is_last: bool) -> bool:
        """Let them live for a while -> whether they came to their ends."""
        command = [sys.executable, "-m", "proof.crowds", str(folder), *map(str, attrs.astuple(self._case))]
        before = len(self._log(folder))
        with subprocess.Popen(command, cwd=_TOP, stderr=subprocess.PIPE) as process:  # noqa: S603 - itself
            if not is_last:
                while len(self._log(folder)) == before and process.poll() is None:
                    time.sleep(0.001)
                time.sleep(self._random.uniform(0, 0.0008 * self._case.runs))
                process.kill()
            _, errors = process.communicate()
        if process.returncode not in (0, -9):
            self.report.failures.append(f"a life ended in an error: {errors.decode()[-600:]}")
        return process.returncode == 0

    def _log(self, folder: Path) -> list[tuple[int, int]]:
        """-> the runs and steps that were entered, in all lives."""
        try:
            lines = (folder / "log").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [(int(number), int(step)) for number, step in map(str.split, lines)]

    def _look_at_log(self, entered: Sequence[tuple[int, int]], saved: dict[int, int]) -> None:
        """Each run goes on just behind what is saved of it, step by step."""
        steps: dict[int, list[int]] = defaultdict(list)
        for number, step in entered:
            steps[number].append(step)
        for number, found in steps.items():
            if found != list(range(saved[number] + 1, saved[number] + 1 + len(found))):
                self.report.failures.append(f"of run {number}, step {saved[number]} was saved, and entered {found}")

    def _look_at_store(
        self, folder: Path, entered: Sequence[tuple[int, int]], before: dict[int, int], *, is_over: bool
    ) -> dict[int, int]:
        """What is left of each run is one of its States, and late enough -> their steps."""
        newest = {**before, **dict(entered)}
        saved: dict[int, int] = {}
        with opened(self._case, folder) as store:
            for number, step in newest.items():
                state = self._state_of(store, number)
                least = STEPS if is_over else max(before[number], step - 1 if self._case.durability == "sync" else 0)
                if state.step < least or (state.step and state["digest"] != digest_of(number, state.step)):
                    self.report.failures.append(f"run {number} is left as {state}, and step {least} was saved")
                self.report.found["steps run twice"] += 0 if is_over else max(0, step - state.step)
                saved[number] = state.step
                if is_over and self._case.retention == "full":
                    self._look_at_history(store, number)
        return saved

    def _look_at_history(self, store: CheckpointStore, number: int) -> None:
        steps = [one.step for one in store.history(f"run-{number}")]
        if sorted(set(steps)) != list(range(STEPS + 1)) or steps != sorted(steps):
            self.report.failures.append(f"run {number} has the history {steps}")

    def _state_of(self, store: CheckpointStore, number: int) -> State:
        try:
            return store.load(f"run-{number}")
        except CheckpointNotFoundError:
            return State(run_id=f"run-{number}")


if __name__ == "__main__":
    asyncio.run(live(Case(*cast(Any, sys.argv[2:])), Path(sys.argv[1])))
