"""Processes that share a store: nothing is lost, mixed or starved."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from proof import TOP
from proof.report import Report
from proof.workload import open_store
from stategraph import State
from stategraph.errors import CheckpointNotFoundError, StepConflictError
from stategraph.stores import CheckpointStore
from stategraph.stores.base import Policy

SAVES = 300  # by each of the writers, at full length
WRITERS = 8
SLOW = 2.0  # seconds beyond which a save beside seven other writers is reported
STARVED = 20.0  # and beyond which it is starved, however slow the machine is


# --------------------------------------------------------------------------- what the processes do


def write(store: CheckpointStore, run_id: str, saves: int) -> dict[str, Any]:
    """Save steps of a run; return the longest duration of a save."""
    longest = 0.0
    store.retain(run_id, Policy("full"))
    for step in range(1, saves + 1):
        began = time.monotonic()
        store.save(State({"n": step, "log": [step] * (step % 50)}, run_id=run_id, step=step))
        longest = max(longest, time.monotonic() - began)
    return {"longest": longest}


def read(store: CheckpointStore, run_id: str, saves: int) -> dict[str, Any]:
    """Load a run that another process writes, until a file ends it; return the number of loads."""
    count, newest, is_over = 0, 0, False
    folder = Path(os.environ["STATEGRAPH_PROOF"])
    (folder / f"reader {os.getpid()}").touch()
    while not is_over:  # and once more when it is
        is_over = (folder / "over").exists()
        try:
            state = store.load(run_id)
        except CheckpointNotFoundError:
            continue
        if list(state["log"]) != [state["n"]] * (state["n"] % 50):
            raise AssertionError(f"a mixture: {dict(state)}")
        if not newest <= state.step == state["n"]:
            raise AssertionError(f"after step {newest} came {state.step} with the data of {state['n']}")
        count, newest = count + 1, state.step
    return {"reads": count, "longest": 0.0}


def fight(store: CheckpointStore, name: str, saves: int) -> dict[str, Any]:
    """Save steps of a run that another process saves as well; return the steps whose save succeeded."""
    made: list[int] = []
    refused = 0
    store.retain("fight", Policy("full"))
    state = State({"log": []}, run_id="fight")
    while len(made) < saves:
        step = state.step + 1
        after = attrs.evolve(state.set("log", [*state["log"], [name, step]]), step=step, status="active", error=None)
        try:
            store.save(after)
            made.append(step)
            state = after
            if len(made) % 3 == 0:
                store.save(attrs.evolve(after, status="failed"))
        except StepConflictError:
            refused += 1
            state = store.load("fight")
    return {"made": made, "refused": refused, "longest": 0.0}


_ROLES: dict[str, Callable[[CheckpointStore, str, int], dict[str, Any]]] = {
    role.__name__: role for role in (write, read, fight)
}


# --------------------------------------------------------------------------- starting them


@attrs.define
class _Process:
    """A process and its result."""

    role: str
    run_id: str
    process: subprocess.Popen[str]
    result: dict[str, Any] = attrs.field(factory=dict)

    def wait(self, report: Report, seconds: float = 300) -> None:
        """Wait for its end; an error in it is a failure of the proof."""
        try:
            out, errors = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            out, errors = self.process.communicate()
            errors += f"\nkilled after {seconds} s"
        if self.process.returncode != 0:
            report.failures.append(f"{self.role} {self.run_id}: {errors[-900:]}")
        else:
            self.result = json.loads(out)


def _started(folder: Path, role: str, run_id: str, saves: int) -> _Process:
    command = [sys.executable, "-m", "proof.processes", str(folder), role, run_id, str(saves)]
    pipe = subprocess.PIPE
    environment = {**os.environ, "STATEGRAPH_PROOF": str(folder)}
    process = subprocess.Popen(command, cwd=TOP, env=environment, stdout=pipe, stderr=pipe, text=True)  # noqa: S603
    return _Process(role, run_id, process)


def _readers(folder: Path, runs: list[str]) -> list[_Process]:
    """Return processes that are already reading when the writers start."""
    readers = [_started(folder, "read", run, 0) for run in runs]
    while any(reader.process.poll() is None for reader in readers) and len(list(folder.glob("reader *"))) < len(runs):
        time.sleep(0.005)
    return readers


def _end_reading(readers: list[_Process], folder: Path, report: Report) -> None:
    """Stop the readers; a reader that read nothing proves nothing."""
    (folder / "over").touch()
    for reader in readers:
        reader.wait(report)
        count = reader.result.get("reads", 0)
        report.found["reads, each old or new"] += count
        if not count and not report.failures:
            report.failures.append(f"a reader of {reader.run_id} read nothing")


def _all_kept(store: CheckpointStore, run_id: str, steps: int, report: Report) -> None:
    """Check that every step of a run is kept with its data."""
    kept = [row.step for row in store.history(run_id)]
    if kept != list(range(1, steps + 1)):
        report.failures.append(f"{run_id}: {steps} steps were saved, and these are kept: {kept[:3]}...{kept[-3:]}")
    for step in {*kept[:: max(1, steps // 10)], *kept[-1:]}:
        if store.load(run_id, step)["n"] != step:
            report.failures.append(f"{run_id}: step {step} is another than was saved")


# --------------------------------------------------------------------------- the proofs


def _writers_and_readers(saves: int, folder: Path) -> Report:
    report = Report("eight processes that write to one store, beside two that read")
    readers = _readers(folder, [f"run-{number}" for number in range(2)])
    writers = [_started(folder, "write", f"run-{number}", saves) for number in range(WRITERS)]
    for writer in writers:
        writer.wait(report)
    _end_reading(readers, folder, report)
    with open_store(folder) as store:
        for writer in writers:
            report.tried["saves"] += saves
            _all_kept(store, writer.run_id, saves, report)
            longest = writer.result.get("longest", 0.0)
            report.found[f"saves of more than {SLOW:.0f} s"] += longest > SLOW
            if longest > STARVED:
                report.failures.append(f"a save of {writer.run_id} took {longest:.1f} s")
            report.found["ms at most for a save"] = max(report.found["ms at most for a save"], round(1000 * longest))
    return report


def _fight(saves: int, folder: Path) -> Report:
    report = Report("two processes that fight over one run")
    fighters = [_started(folder, "fight", name, saves) for name in ("A", "B")]
    for fighter in fighters:
        fighter.wait(report)
        report.tried["saves"] += len(fighter.result.get("made", ())) + fighter.result.get("refused", 0)
        report.found["saved"] += len(fighter.result.get("made", ()))
        report.found["refused as conflicts"] += fighter.result.get("refused", 0)
    if report.failures:
        return report
    owners = {step: fighter.run_id for fighter in fighters for step in fighter.result["made"]}
    if len(owners) != 2 * saves:
        report.failures.append(f"{2 * saves} saves returned, of {len(owners)} steps: one took the place of another")
    with open_store(folder) as store:
        newest = store.load("fight")
        if [tuple(entry) for entry in newest["log"]] != [
            (owners.get(step), step) for step in range(1, newest.step + 1)
        ]:
            report.failures.append(f"the log of the run is not what was saved, up to step {newest.step}")
        if newest.step != 2 * saves:
            report.failures.append(f"{2 * saves} steps were saved, and the run stands at {newest.step}")
    return report


def prove(share: float, seed: int) -> list[Report]:
    """Let processes write, read and fight; return a report for each."""
    reports = []
    for proof_of in (_writers_and_readers, _fight):
        with tempfile.TemporaryDirectory(prefix="stategraph-proof-", ignore_cleanup_errors=True) as folder:
            reports.append(proof_of(max(10, round(SAVES * share)), Path(folder)))
    return reports


if __name__ == "__main__":
    _, folder_, role_, run_id_, saves_ = sys.argv
    result_ = _ROLES[role_](open_store(Path(folder_)), run_id_, int(saves_))
    print(json.dumps(result_))
