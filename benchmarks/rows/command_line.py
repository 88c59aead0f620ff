"""The command ``stategraph runs``, from cold: a new interpreter that lists the newest runs of a store."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from benchmarks import scratch
from benchmarks.gauges import seconds_per_step
from benchmarks.measure import MILLISECONDS, Contender, Goal, Row, Run
from benchmarks.rows.imports import program

_RUNS = 1_000


def _store_with(folder: Path, runs: int) -> None:
    from stategraph import State
    from stategraph.stores import SqliteStore

    with SqliteStore(folder / "runs.db") as store:
        for number in range(runs):
            store.save(State({"n": number}, run_id=f"run-{number}", step=1, graph="bench"))


_folder_with = scratch.prepared(_store_with)


def _listing(_steps: int) -> Run:
    command = [sys.executable, "-m", "stategraph.cli", "--store", str(_folder_with(_RUNS) / "runs.db"), "runs"]
    # An installed package is compiled once. With this variable set, one that is not would be compiled every time.
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    return lambda: subprocess.run(command, check=True, capture_output=True, env=environment)


ROW = Row(
    title="stategraph runs",
    gauge=seconds_per_step,
    unit=MILLISECONDS,
    goal=Goal(250, absolute=True),
    floor=program("pass"),
    steps=1,
    rounds=7,
    contenders=(Contender("stategraph", _listing, judged=True),),
)
