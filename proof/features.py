"""Random graphs of all features, killed, cancelled and interrupted anywhere, end like a plain interpreter."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import attrs
from hypothesis import given, seed
from hypothesis import strategies as st

from proof.graphs import builds
from proof.programs import DEFAULTS, DERIVED, Interpreter, Level, Program, programs, replies
from proof.report import Report
from proof.searching import failures_of, searching
from stategraph import State, StateGraph
from tests.event_order import misplaced
from tests.scenarios import RUN
from tests.simulated_process import (
    CALLS,
    STORES,
    TURN,
    Crash,
    LeftError,
    SimulatedProcess,
    World,
    cancels,
    cancels_task,
    interrupts,
    live,
)

RUNS = 1000
"""Random runs, at full length."""
LEAST = 20
"""And with any share of it."""
_BATCH = 50
_ACTS = {"crash": SimulatedProcess.die, "cancel": cancels, "cancel of the task": cancels_task, "interrupt": interrupts}
_CHECKPOINTS: list[dict[str, Any]] = [
    {"interval": interval, "durability": durability, "preserve": preserve, "retention": retention}
    for interval in (1, 1, 2, 3)
    for durability in ("sync", "async", "exit")
    for preserve in (True, False)
    for retention in ("latest", "full")
    if (durability, retention) != ("exit", "full")
]


def iterate_sync(graph: StateGraph, process: SimulatedProcess, method: str, *arguments: Any) -> State:
    """Iterate with `stream` or `stream_resume` ; return the last State. Leave it when the cancel event is set."""
    name = {"execute": "stream", "resume": "stream_resume"}[method]
    seen: list[State] = []
    with getattr(graph, name)(*arguments) as states:
        for state in states:
            seen.append(state)
            if process.cancel.is_set():
                raise LeftError
    return seen[-1]


def iterate_async(graph: StateGraph, process: SimulatedProcess, method: str, *arguments: Any) -> State:
    """Do the same with `astream` or `astream_resume`."""
    name = {"execute": "astream", "resume": "astream_resume"}[method]

    async def run() -> State:
        seen: list[State] = []
        async with getattr(graph, name)(*arguments) as states:
            async for state in states:
                seen.append(state)
                if process.cancel.is_set():
                    raise LeftError
        return seen[-1]

    return asyncio.run(run())


CALLS_AND_ITERATIONS = {**CALLS, "stream": iterate_sync, "astream": iterate_async}


@attrs.frozen
class Case:
    """A run: its graph, its faults (each with the share of points before it), and its configuration."""

    program: Program
    salt: int
    blows: list[tuple[float, str]]
    driver: str
    store: str
    checkpoint: dict[str, Any]
    is_typed: bool
    is_selective: bool
    turns: list[dict[str, int]]


_CASES = st.builds(
    Case,
    programs(),
    st.integers(0, 9),
    st.lists(st.tuples(st.floats(0, 0.999), st.sampled_from(["crash", "crash", *_ACTS])), min_size=1, max_size=4),
    st.sampled_from([*CALLS_AND_ITERATIONS]),
    st.sampled_from(["memory"] * 8 + list(STORES)),
    st.sampled_from(_CHECKPOINTS),
    st.booleans(),
    st.booleans(),
    st.lists(st.dictionaries(st.sampled_from(["a", "b", "n"]), st.integers(0, 9)), max_size=2),
)


def problems_of(case: Case, report: Report) -> list[str]:
    """Return the differences between a run and the interpreter."""
    interpreter = Interpreter(case.salt)
    plain = interpreter.run(Level(case.program, RUN, dict(DEFAULTS), set()))
    for number, more in enumerate(_turns(case), 1):
        interpreter.go_on(plain, {**more, TURN: number})
    with tempfile.TemporaryDirectory() as folder:
        world = World(case.store, Path(folder), is_prompt=case.checkpoint["durability"] == "sync")
        final, processes = _lived(case, world, report)
        left = _left_behind(case, world)
    found = [f"{run_id} was left behind" for run_id in left]
    found += [f"{key} was repeated although it was saved" for key in world.journal.repeated]
    found += [f"{effect}: in one of them only" for effect in sorted(interpreter.effects ^ set(world.journal.done))]
    # A run that was complete when its process died is found without the keys that are not saved.
    optional = {key for key in plain.data if case.is_selective and key.startswith(DERIVED)} - final.keys()
    expected = {key: value for key, value in plain.data.items() if key not in optional}
    if _comparable(final) != expected:
        found.append(f"it ends with {_comparable(final)}, not {expected}")
    if final.step != plain.step:
        found.append(f"it ends at step {final.step}, not {plain.step}")
    report.tried["runs"] += 1
    report.tried["steps"] += plain.step
    report.tried["answers"] += interpreter.asked
    return found + [problem for process in processes for events in process.events for problem in misplaced(events)]


def _left_behind(case: Case, world: World) -> list[str]:
    """Return the runs that must not outlive the completion of the run."""
    with world.opened() as store:
        nested = [run.run_id for run in store.iter_runs(parent=RUN) if case.checkpoint["retention"] != "full"]
        return nested if case.checkpoint["preserve"] else [*store.list(), *nested]


def _lived(case: Case, world: World, report: Report) -> tuple[State, list[SimulatedProcess]]:
    """Return the final State after all faults, and the processes."""
    undisturbed = SimulatedProcess()
    _live(case, World("memory", world.folder), undisturbed)
    points = len(undisturbed.passed)
    processes = [SimulatedProcess(int(share * points) + 1, _ACTS[act]) for share, act in case.blows] + [
        SimulatedProcess()
    ]
    for number, process in enumerate(processes):
        try:
            final = _live(case, world, process)
        except Crash:
            report.tried["crashes"] += 1
            continue
        report.tried["calls that ended early"] += len(process.stopped)
        return final, processes[: number + 1]
    raise AssertionError("the last process has no end")


def _live(case: Case, world: World, process: SimulatedProcess) -> State:
    """Run or resume in a process; return the State that it ends with."""
    build = builds(case.program, is_typed=case.is_typed, is_selective=case.is_selective, **case.checkpoint)
    answer = partial(replies, salt=case.salt)
    return live(
        world, build, {}, answer, driver=case.driver, calls=CALLS_AND_ITERATIONS, process=process, turns=_turns(case)
    )


def _turns(case: Case) -> list[dict[str, int]]:
    """Return the further inputs of a run; a run that is deleted when it completes has none.

    Nor has one with keys derived from keys that would be derived once more: between the two, the former could not be
    computed again, and are refused.
    """
    refused = case.is_selective and any(step.sources for step in case.program.steps)
    return case.turns if case.checkpoint["preserve"] and not refused else []


def _features(case: Case) -> set[str]:
    used = {step.kind for step in case.program.steps}
    chosen = {"schema": case.is_typed, "persist": case.is_selective, "conversation": bool(_turns(case))}
    return used | {name for name, is_chosen in chosen.items() if is_chosen}


def _comparable(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return data without the texts of errors."""
    compared = dict(data)
    if "error" in compared:
        compared["error"] = {"type": compared["error"]["type"], "node": compared["error"]["node"]}
    return compared


def prove(share: float, first_seed: int) -> list[Report]:
    """Try random runs; return one report."""
    report = Report("a graph of all features ends as a plain interpreter of it, whatever happens on the way")
    features: Counter[str] = Counter()
    round_seed, left = first_seed, max(LEAST, round(RUNS * share))

    def check(case: Case) -> None:
        found = problems_of(case, report)
        features.update(_features(case))
        if found:
            raise AssertionError("\n".join(found))

    while left > 0 and not report.failures:
        looking = seed(round_seed)(searching(min(_BATCH, left))(given(_CASES)(check)))
        report.failures += failures_of(looking, round_seed)
        round_seed, left = round_seed + 1, left - _BATCH
    report.found.update({f"graphs with {kind!r}": count for kind, count in features.items()})
    return [report]
