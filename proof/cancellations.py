"""Cancellations at any moment, any number of times, of whoever runs a graph or iterates over a run.

Every call ends, and its caller hears of the cancellation. It leaves no task and no thread. The run is where it was
saved, nothing that was saved is done again, and when it is left alone it ends as an undisturbed one.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import tempfile
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias, cast

import attrs

from proof.cancelling import WAYS, Call, Heard, Target
from proof.report import Report
from proof.workers import limited, tell, work_out
from stategraph import CheckpointNotFoundError, CheckpointStore, ExecutionError, RunStatus, State, StateGraph
from tests.all_features import INPUTS, answer, builds_all_features, expected
from tests.event_order import misplaced
from tests.scenarios import RUN
from tests.simulated_process import MOST_CALLS, MortalStore, SimulatedProcess, Tool, World

RUNS = 2000
"""Random runs, at full length."""
LEAST = 20
"""And with any share of it."""
_BATCH = 250

_CHECKPOINTS: list[dict[str, Any]] = [
    {"interval": interval, "durability": durability, "preserve": preserve}
    for interval in (1, 1, 3)
    for durability in ("sync", "async", "exit")
    for preserve in (True, False)
]


@attrs.frozen
class Blow:
    """What happens to a call: after so many turns of the event loop, or points of the run, it is cancelled.

    Attributes:
        of: What is waited for: "turns" or "points".
        at: How many of them.
        times: How often it is cancelled.
        gap: How many turns lie between two of these.
    """

    of: str
    at: int
    times: int
    gap: int


@attrs.frozen
class Case:
    """A run: how it is called, what happens to these calls, and how it is saved."""

    kind: str
    store: str
    checkpoint: dict[str, Any]
    calls: list[tuple[str, str, Blow]]

    @classmethod
    def random(cls, seed: object) -> Case:
        """Return the case that comes of a seed."""
        choice = random.Random(f"cancelled {seed}")  # noqa: S311 - no secret
        calls = [
            (choice.choice(sorted(WAYS)), choice.choice(sorted(USES)), _blow(choice))
            for _ in range(choice.randint(1, 6))
        ]
        kinds, stores = ["sync", "async", "mixed", "mixed"], ["memory", "memory", "sqlite"]
        return cls(choice.choice(kinds), choice.choice(stores), choice.choice(_CHECKPOINTS), calls)


def _blow(choice: random.Random) -> Blow:
    of = choice.choice(["turns", "points"])
    at = choice.randint(1, 40) if of == "points" else int(2 ** choice.uniform(0, 11)) - 1
    return Blow(of, at, choice.choice([1, 1, 2, 3, 20]), choice.choice([0, 0, 1, 3, 30]))


# --------------------------------------------------------------------------- what is called


@attrs.define(eq=False)
class Seen:
    """What the caller was given."""

    shown: list[State] = attrs.field(factory=list)
    final: State | None = None


class LeftError(Exception):
    """Somebody left the iteration."""


async def executed(graph: StateGraph, method: str, arguments: tuple[Any, ...], seen: Seen) -> State:
    """Call ``aexecute`` or ``aresume``."""
    final: State = await getattr(graph, f"a{method}")(*arguments)
    seen.final = final
    return final


async def iterated(graph: StateGraph, method: str, arguments: tuple[Any, ...], seen: Seen, most: int = 1000) -> State:
    """Iterate with ``astream`` or ``astream_resume``; leave it after so many States."""
    name = {"execute": "astream", "resume": "astream_resume"}[method]
    made: AsyncGenerator[State, None] = getattr(graph, name)(*arguments)
    async with contextlib.aclosing(made) as states:
        async for state in states:
            seen.shown.append(state)
            seen.final = None if state.status is RunStatus.ACTIVE else state
            if len(seen.shown) == most and seen.final is None:
                raise LeftError
    return cast(State, seen.final)


async def left(graph: StateGraph, method: str, arguments: tuple[Any, ...], seen: Seen) -> State:
    """Iterate over the first few States."""
    return await iterated(graph, method, arguments, seen, most=3)


_Use: TypeAlias = Callable[[StateGraph, str, tuple[Any, ...], Seen], Awaitable[State]]
USES: dict[str, _Use] = {"execute": executed, "iterate": iterated, "leave": left}


# --------------------------------------------------------------------------- one run


@attrs.define(eq=False)
class Trial:
    """A case that is being tried, and what went wrong."""

    case: Case
    world: World
    report: Report
    wrong: list[str] = attrs.field(factory=list)

    def run(self) -> None:
        """Call the graph as the case says, then until the run is complete."""
        with contextlib.ExitStack() as stack:
            store = self.world.opened()
            if self.case.store != "memory":
                stack.enter_context(store)
            threads = set(threading.enumerate())
            for number in range(MOST_CALLS):
                way, use, blow = self.case.calls[number] if number < len(self.case.calls) else ("task", "execute", None)
                final = self._call(store, way, use, blow)
                behind = {one for one in threading.enumerate() if one.name != "stategraph saver"} - threads
                self.wrong += [f"{way}, {use}: thread {thread.name} is left" for thread in behind]
                if final is not None or self.wrong:
                    break
        if not self.wrong and (final is None or (dict(final), final.step) != expected()):
            self.wrong.append(f"it ends with {final}: {dict(final or {})}")
        self.wrong += [f"{key} was repeated although it was saved" for key in self.world.journal.repeated]

    def _call(self, store: CheckpointStore, way: str, use: str, blow: Blow | None) -> State | None:
        """Make one call; return the final State if the run is complete."""
        before = _load(store)
        if before is not None and before.status is RunStatus.COMPLETED:
            return before
        process = SimulatedProcess(
            blow.at if blow is not None and blow.of == "points" else None, kinds=("store", "work")
        )
        process.events.append([])
        process.told = self.world.journal.trust if self.world.is_prompt else bool
        build = builds_all_features(self.case.kind, **self.case.checkpoint)
        mortal = MortalStore(store, process, self.world.journal)
        graph = build(mortal, process, Tool(process, self.world.journal))
        arguments: tuple[Any, ...] = (State(INPUTS, run_id=RUN),) if before is None else (RUN, _answers(before))
        method, seen, target = "execute" if before is None else "resume", Seen(), Target()
        attack = _attacked(way, lambda: USES[use](graph, method, arguments, seen), target, blow, process)
        ending = asyncio.run(attack)
        ending.problems += misplaced(process.events[0])
        self._check(ending, seen, target, before, _load(store))
        self.wrong += [f"{way}, {use}, {method}: {problem}" for problem in ending.problems]
        return seen.final if seen.final is not None and seen.final.status is RunStatus.COMPLETED else None

    def _check(self, ending: Ending, seen: Seen, target: Target, before: State | None, after: State | None) -> None:
        """Find what is wrong with how a call ended, beside what was saved before it and after it."""
        error, problems = ending.error, ending.problems
        self.report.tried["calls"] += 1
        self.report.tried["cancelled"] += target.is_struck
        self.report.found["ended" if error is None else type(error).__name__] += 1
        is_heard, is_gone = isinstance(error, Heard), after is None and before is not None
        is_complete = seen.final is not None and seen.final.status is RunStatus.COMPLETED
        if target.is_struck and not is_heard and not (is_complete and after is None and error is None):
            problems.append(f"it was cancelled, and ended with {error or seen.final!r}")
        if error is not None and not isinstance(error, Heard | ExecutionError | LeftError):
            problems.append(f"it ended with {error!r}")
        if is_heard and not target.is_hit:
            problems.append("nobody has cancelled it")
        if is_gone and not is_complete:
            problems.append("the run is gone, and so is its final State")
        shown = max((state.step for state in seen.shown if state.partial is None), default=0)
        if after is not None and after.step < shown:
            problems.append(f"step {shown} was shown, and step {after.step} is saved")


@attrs.define(eq=False)
class Ending:
    """How a call ended: an error, if there was one, and what it left behind or what else was wrong."""

    error: BaseException | None = None
    problems: list[str] = attrs.field(factory=list)


async def _attacked(way: str, call: Call, target: Target, blow: Blow | None, process: SimulatedProcess) -> Ending:
    """Make a call and cancel it; return how it ended, which may show only when the event loop is closed."""
    ending, reached, loop = Ending(), asyncio.Event(), asyncio.get_running_loop()
    process.act = lambda _: cast(None, loop.call_soon_threadsafe(reached.set))

    async def work() -> None:
        try:
            await WAYS[way](call, target)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is looked at
            ending.error = error

    async def strike(blow: Blow) -> None:
        await (reached.wait() if blow.of == "points" else _turn(blow.at))
        for _ in range(blow.times if way != "shutdown" else 0):
            target.hit()
            await _turn(blow.gap)

    tasks = [asyncio.create_task(work())]
    if blow is not None:
        tasks.append(asyncio.create_task(strike(blow)))
    if way == "shutdown":
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        target.is_hit = not target.is_over
        return ending
    await asyncio.wait(tasks[:1])
    for task in tasks[1:]:
        task.cancel()
    await asyncio.wait(tasks)
    others = asyncio.all_tasks() - {asyncio.current_task()}
    ending.problems += [f"{other.get_coro()} is left" for other in others]
    return ending


async def _turn(times: int) -> None:
    """Let the event loop turn so many times."""
    for _ in range(times):
        await asyncio.sleep(0)


def _load(store: CheckpointStore) -> State | None:
    try:
        return store.load(RUN)
    except CheckpointNotFoundError:
        return None


def _answers(saved: State) -> dict[str, Any] | None:
    pause = saved.pause
    return None if pause is None or pause.response_param is None else {pause.response_param: answer(pause)}


def try_out(seed: int, numbers: range) -> Report:
    """Try the cases with these numbers."""
    report = Report("")
    for number in numbers:
        case = Case.random(f"{seed}/{number}")
        with limited(), tempfile.TemporaryDirectory() as folder:
            world = World(case.store, Path(folder), is_prompt=case.checkpoint["durability"] == "sync")
            trial = Trial(case, world, report)
            trial.run()
        report.tried["runs"] += 1
        if trial.wrong:
            again = f"python -m proof.cancellations {seed} {number} 1"
            report.failures.append(f"{again}: {'; '.join(trial.wrong[:3])}; {case}")
    return report


def prove(share: float, seed: int) -> list[Report]:
    """Try random runs that are cancelled again and again."""
    count = max(LEAST, round(RUNS * share))
    report = Report("whenever and however often a run is cancelled, it stops, is told of, and goes on later")
    batches = [(seed, first, min(_BATCH, count - first)) for first in range(0, count, _BATCH)]
    work_out("cancellations", batches, report)
    return [report]


if __name__ == "__main__":
    given, first, many = map(int, sys.argv[1:])
    tell(try_out(given, range(first, first + many)))
