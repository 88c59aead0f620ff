"""A graph with every feature ends the same when it is killed, cancelled or interrupted anywhere."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from stategraph import Event, EventType, State
from tests.all_features import INPUTS, answer, build_all_features, builds_all_features, expected
from tests.event_order import misplaced
from tests.simulated_process import (
    CALLS,
    STORES,
    Build,
    Crash,
    Everything,
    Journal,
    SimulatedProcess,
    Tool,
    World,
    cancels,
    cancels_task,
    interrupts,
    live,
)

pytestmark = pytest.mark.unmeasured

KINDS = ("store", "work", "call")
DURABILITIES: dict[str, dict[str, Any]] = {
    "every step": {},
    "behind": {"durability": "async"},
    "every third step": {"interval": 3},
    "at the end": {"durability": "exit"},
    "forgotten in the end": {"preserve": False},
}


def undisturbed(
    world: World, build: Build, driver: str, kinds: Sequence[str] = KINDS
) -> tuple[State, SimulatedProcess]:
    """Return the final State of a run that nothing happens to, and the process that it took."""
    process = SimulatedProcess(kinds=kinds)
    return live(world, build, INPUTS, answer, driver=driver, process=process), process


def disturbed(
    world: World, build: Build, driver: str, process: SimulatedProcess
) -> tuple[State, list[SimulatedProcess]]:
    """Return the final State of a run to which something happens in its first process, and all its processes."""
    try:
        return live(world, build, INPUTS, answer, driver=driver, process=process), [process]
    except Crash:
        last = SimulatedProcess()
        return live(world, build, INPUTS, answer, driver=driver, process=last), [process, last]


def problems(final: State, world: World, processes: list[SimulatedProcess], keys: set[tuple[str, str]]) -> list[str]:
    """Return in what a disturbed run differs from an undisturbed one, which had these effects."""
    found = [] if (dict(final), final.step) == expected() else [f"it ends at step {final.step} with {dict(final)}"]
    found += [f"{key} was repeated although it was saved" for key in world.journal.repeated]
    found += [f"{effect} in one run only" for effect in keys ^ set(world.journal.done)]
    return found + [problem for process in processes for events in process.events for problem in misplaced(events)]


def sweep(
    folder: Path,
    store: str,
    driver: str,
    stride: int,
    act: Callable[[SimulatedProcess], None] = SimulatedProcess.die,
    kinds: Sequence[str] = KINDS,
    **checkpoint: Any,
) -> None:
    """Let something happen at every so-many-th point of a run, each time in a new world."""
    build = builds_all_features("mixed", **checkpoint)
    is_prompt = checkpoint.get("durability", "sync") == "sync"
    world = World(store, folder / "undisturbed")
    world.folder.mkdir()
    final, process = undisturbed(world, build, driver, kinds)
    keys = set(world.journal.done)
    assert problems(final, world, [process], keys) == []
    first = random.randrange(stride) + 1
    print(f"every {stride}th of {len(process.passed)} points from {first} on")
    for until in range(first, len(process.passed) + 1, stride):
        world = World(store, folder / str(until), is_prompt=is_prompt)
        world.folder.mkdir()
        process = SimulatedProcess(until, act, kinds)
        final, processes = disturbed(world, build, driver, process)
        assert problems(final, world, processes, keys) == [], f"at point {until}: {process.passed[-1]}"


# --------------------------------------------------------------------------- laws


@pytest.mark.parametrize(
    ("store", "kind", "driver"),
    [
        *(("memory", "sync", "sync"), ("memory", "async", "async"), ("sqlite", "mixed", "sync")),
        *(("sqlite", "async", "async"), ("disk", "mixed", "async")),
    ],
)
def test_it_comes_to_what_a_plain_function_does(tmp_path: Path, store: str, kind: str, driver: str) -> None:
    """The run equals a plain function with every driver, store and kind of function, without repetitions."""
    world = World(store, tmp_path)

    final, process = undisturbed(world, builds_all_features(kind), driver)

    assert problems(final, world, [process], set(world.journal.done)) == []
    seen = {event.type for events in process.events for event in events}
    assert {EventType.PART_COMPLETE, EventType.NODE_RETRY, EventType.NODE_CHUNK, EventType.GRAPH_PAUSE} <= seen


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("driver", CALLS)
def test_it_survives_a_crash_anywhere(tmp_path: Path, driver: str, durability: str) -> None:
    """After a crash the run ends the same, repeats no saved step or part, and reuses idempotency keys."""
    stride = 151 if driver == "sync" else 301
    sweep(tmp_path, "memory", driver, stride, **DURABILITIES[durability])


@pytest.mark.parametrize("durability", ["every step", "behind"])
@pytest.mark.parametrize("driver", CALLS)
@pytest.mark.parametrize("store", ["sqlite"])
def test_a_store_on_disk_is_opened_again_after_a_crash(
    tmp_path: Path, store: str, driver: str, durability: str
) -> None:
    """A process that knows only the file completes the run."""
    sweep(tmp_path, store, driver, 397, **DURABILITIES[durability])


@pytest.mark.parametrize("act", [cancels, cancels_task, interrupts])
@pytest.mark.parametrize("driver", CALLS)
def test_it_can_be_stopped_anywhere_and_resumed(
    tmp_path: Path, driver: str, act: Callable[[SimulatedProcess], None]
) -> None:
    """A cancel event, a cancelled task and Ctrl-C stop the run anywhere, and it can be resumed."""
    sweep(tmp_path, "memory", driver, 151 if driver == "sync" else 301, act)


# --------------------------------------------------------------------------- runs at the same time


@pytest.mark.parametrize("driver", CALLS)
@pytest.mark.parametrize("store_name", ["memory", "sqlite"])
def test_runs_of_one_graph_never_see_each_other(tmp_path: Path, store_name: str, driver: str) -> None:
    """Each of the runs in eight threads ends with the result of its own data."""
    process = SimulatedProcess()
    process.events.append([])
    with STORES[store_name](tmp_path) as store:
        graph = build_all_features(store, Tool(process, Journal(failed=Everything())), "mixed", observer=process)

        def run(number: int) -> tuple[dict[str, Any], int]:
            run_id, inputs = f"run-{number}", {"items": [number, number % 3]}
            final = CALLS[driver](graph, SimulatedProcess(), "execute", State(inputs, run_id=run_id))
            while final.pause is not None:
                updates = {final.pause.response_param: answer(final.pause)}
                final = CALLS[driver](graph, SimulatedProcess(), "resume", run_id, updates)
            return dict(final), final.step

        with ThreadPoolExecutor(8) as pool:
            finals = list(pool.map(run, range(8)))
        saved = [dict(store.load(run_id)) for run_id in (f"run-{number}" for number in range(8))]

    assert finals == [expected({"items": [number, number % 3]}) for number in range(8)]
    assert saved == [data for data, _ in finals]
    own = {
        f"run-{number}": [event for event in process.events[0] if _is_of(event, f"run-{number}")] for number in range(8)
    }
    assert sum(map(len, own.values())) == len(process.events[0])
    assert {run_id: calls_out_of_order(events) for run_id, events in own.items()} == {run_id: [] for run_id in own}


def _is_of(event: Event, run_id: str) -> bool:
    return f"{event.data['run_id']}/".startswith(f"{run_id}/")


def calls_out_of_order(events: Sequence[Event]) -> list[str]:
    """Return the problems in the order of the events of several calls of one run."""
    calls: list[list[Event]] = [[]]
    for event in events:
        if (
            calls[-1]
            and calls[-1][-1].type in {"graph.pause", "graph.complete"}
            and "/" not in calls[-1][-1].data["run_id"]
        ):
            calls.append([])
        calls[-1].append(event)
    return [problem for call in calls for problem in misplaced(call)]
