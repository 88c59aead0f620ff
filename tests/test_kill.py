"""Processes that are killed, and runs that are long."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

import stategraph
from stategraph import CheckpointNotFoundError, RunStatus, State
from stategraph.stores.disk import DiskStore
from stategraph.stores.memory import MemoryStore
from tests.scenarios import RUN, as_async, make_graph

STEPS = 60

PROGRAM = """
import os, signal, sys
from stategraph import CheckpointNotFoundError, State
from stategraph.stores.disk import DiskStore
from tests.scenarios import DRIVERS, NODES, RUN, Scene, WatchedStore

folder, driver, kind, interval, steps, last, when = sys.argv[1:]
log = os.open(os.path.join(folder, "log"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)

def die(step, place):
    if step == int(last) and place == when:
        os.kill(os.getpid(), signal.SIGKILL)

def node(state, context):
    die(context.step, "before")
    os.write(log, f"{context.step} {context.idempotency_key}\\n".encode())
    die(context.step, "after")
    return {"sum": state.get("sum", 0) * 3 % 1_000_003 + context.step, "steps": [*state.get("steps", ()), context.step]}

def before(method, argument):
    if method == "save":
        die(argument.step, "at the save")

store = WatchedStore(DiskStore(os.path.join(folder, "runs")), before)
scene = Scene(store, DRIVERS[driver], NODES[kind])
edges = [("a", "b"), ("b", "a", lambda state: state.step < int(steps)), ("b", "c")]
graph = scene.graph({"a": node, "b": node, "c": node}, edges, interval=int(interval), preserve=True)
try:
    store.load(RUN)
except CheckpointNotFoundError:
    scene.execute(graph)
else:
    scene.resume(graph)
"""


def run_process(folder: Path, *arguments: Any) -> int:
    """Run the program -> its exit code, or minus the signal that killed it."""
    root = Path(stategraph.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{Path(__file__).parents[1]}"}
    command = [sys.executable, "-c", PROGRAM, str(folder), *map(str, arguments)]
    return subprocess.run(command, env=environment, check=False, timeout=60).returncode


def log_of(folder: Path) -> list[tuple[int, str]]:
    """-> step and idempotency key of every node that did its work."""
    lines = (folder / "log").read_text().splitlines() if (folder / "log").exists() else []
    return [(int(step), key) for step, key in map(str.split, lines)]


def saved_step(folder: Path) -> int:
    """-> the step that is in the store; 0 if there is none."""
    store = DiskStore(folder / "runs")
    try:
        return store.load(RUN).step
    except CheckpointNotFoundError:
        return 0
    finally:
        store.close()


@pytest.mark.parametrize(
    ("driver_name", "kind", "interval"),
    [("sync", "sync nodes", 1), ("sync", "sync nodes", 4), ("async", "async nodes", 3), ("async", "sync nodes", 2)],
)
def test_a_run_survives_being_killed(tmp_path: Path, driver_name: str, kind: str, interval: int) -> None:
    """It ends as if nothing had happened; only steps since the last checkpoint ran twice, under the same keys."""
    seed = random.randrange(10**6)
    print("seed", seed)
    chance = random.Random(seed)
    logged = 0
    for _ in range(3):
        before = saved_step(tmp_path)
        victim = min(STEPS, before + chance.randint(1, 15))
        place = chance.choice(["before", "after", "at the save"])
        if place == "at the save":
            victim += -victim % interval  # a step that is saved
        assert run_process(tmp_path, driver_name, kind, interval, STEPS, victim, place) == -9

        steps = [step for step, _ in log_of(tmp_path)[logged:]]
        logged += len(steps)
        assert steps == list(range(before + 1, before + 1 + len(steps)))
        assert saved_step(tmp_path) >= (victim - 1) // interval * interval

    before = saved_step(tmp_path)
    assert run_process(tmp_path, driver_name, kind, interval, STEPS, 0, "never") == 0
    assert [step for step, _ in log_of(tmp_path)[logged:]] == list(range(before + 1, STEPS + 2))
    assert_as_if_undisturbed(tmp_path)


def assert_as_if_undisturbed(folder: Path) -> None:
    """The final State is that of a plain loop, and every step has one key."""
    total = 0
    for step in range(1, STEPS + 2):
        total = total * 3 % 1_000_003 + step
    store = DiskStore(folder / "runs")
    final = store.load(RUN)
    store.close()
    assert (final["sum"], final["steps"]) == (total, list(range(1, STEPS + 2)))
    assert (final.step, final.status) == (STEPS + 1, RunStatus.COMPLETED)
    assert len(set(log_of(folder))) == len({key for _, key in log_of(folder)}) == STEPS + 1


# --------------------------------------------------------------------------- long runs


def peak_of(steps: int, interval: int, run: Any) -> int:
    """-> the most memory, in bytes, that a run of so many steps had at a time."""

    def count(state: State) -> dict[str, Any]:
        n: int = state.get("n", 0) + 1
        if run == "async" and n % 250 == 0:
            gc.collect()
        return {"n": n}

    edges = [("a", "b"), ("b", "a", lambda state: state["n"] < steps), ("b", "c")]
    nodes = {name: as_async(count) if run == "async" else count for name in "abc"}
    graph = make_graph(nodes, edges, store=MemoryStore(), interval=interval, max_iterations=10**9)
    tracemalloc.start()
    try:
        assert graph.execute(State(run_id=RUN))["n"] == steps + 1
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("interval", [0, 1])
def test_a_long_run_does_not_grow(interval: int) -> None:
    """20,000 steps take no more memory than 5,000: not one reference a step is kept."""
    peak_of(10, interval, "sync")  # imports what a run imports
    assert peak_of(20_000, interval, "sync") < peak_of(5_000, interval, "sync") + 100_000


def test_a_long_run_of_async_nodes_does_not_grow() -> None:
    """Nor do async nodes, whose garbage is collected as they go: when it would be is not the run's."""
    peak_of(10, 0, "async")  # imports what a run imports
    assert peak_of(5_000, 0, "async") < peak_of(1_000, 0, "async") + 100_000
