"""Show how many steps a kill repeats for each durability. One process is killed (SIGKILL) in a run, another resumes it.

Each step appends its number to a log, which shows the steps that ran twice.

Run it with ``python examples/crash_matrix.py``.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from stategraph import CheckpointConfig, CheckpointNotFoundError, GraphConfig, State, StateGraph, key_equals
from stategraph.config import Durability

STEPS = 40
KILLED_AT = 25


def counting_graph(folder: Path, durability: Durability, interval: int) -> StateGraph:
    """Return a loop that counts to `STEPS`. The process kills itself at `KILLED_AT`, unless it has done so before."""

    def count(state: State) -> dict[str, Any]:
        number = state["n"] + 1
        with (folder / "log").open("a", encoding="utf-8") as log:
            log.write(f"{number}\n")
        if number == KILLED_AT and not (folder / "killed").exists():
            (folder / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return {"n": number}

    checkpoint = CheckpointConfig(
        store="sqlite", interval=interval, durability=durability, options={"path": str(folder / "runs.db")}
    )
    graph = StateGraph(GraphConfig(name="crash-matrix", checkpoint=checkpoint))
    graph.add_node("count", count)
    graph.add_node("end", lambda state: {})
    graph.add_edge("count", "end", key_equals("n", STEPS))
    graph.add_edge("count", "count")
    graph.set_entry_point("count")
    graph.set_exit_point("end")
    return graph


def run(folder: Path, durability: Durability, interval: int) -> None:
    """Resume the run if the store has it, otherwise start it, as a supervisor would."""
    graph = counting_graph(folder, durability, interval)
    try:
        graph.resume("run")
    except CheckpointNotFoundError:
        graph.execute(State({"n": 0}, run_id="run"))


def killed_and_resumed(durability: str, interval: int) -> tuple[int, int]:
    """Return the number of starts until the run was complete, and the number of steps that ran twice."""
    with tempfile.TemporaryDirectory() as name:
        command = [sys.executable, __file__, "--folder", name, "--durability", durability, "--interval", str(interval)]
        starts = 1
        while subprocess.run(command, check=False).returncode == -signal.SIGKILL:
            starts += 1
        steps = (Path(name) / "log").read_text(encoding="utf-8").split()
        assert set(steps) == {str(number) for number in range(1, STEPS + 1)}, "a step was never done"
        return starts, len(steps) - len(set(steps))


def main() -> None:
    """Print the matrix."""
    print(f"{STEPS} steps, killed in step {KILLED_AT}; the step that was running counts as repeated")
    for durability in ("sync", "async", "exit"):
        for interval in (1, 10):
            starts, twice = killed_and_resumed(durability, interval)
            limit = {"sync": interval, "async": KILLED_AT, "exit": KILLED_AT}[durability]
            assert twice <= limit, f"{twice} steps were done twice"
            print(f"  {durability:5}  interval {interval:2}: {starts} starts, at most {limit:2} steps done twice")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--durability", default="sync")
    parser.add_argument("--interval", type=int, default=1)
    given = parser.parse_args()
    if given.folder is None:
        main()
    else:
        run(given.folder, given.durability, given.interval)
