"""Cancellations at any moment, any number of times, of whoever runs a graph or iterates over a run.

Every call ends, and its caller hears of the cancellation. It leaves no task and no thread. The run is where it was saved,
nothing that was saved is done again, and when it is left alone it ends as an undisturbed one.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import random
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import attrs

from proof.report import Report
from proof.workers import limited, tell, work_out
from stategraph import CheckpointNotFoundError, ExecutionError, RunStatus, State, StateGraph
from tests.everything import INPUTS, answer, builds_everything, expected
from tests.lives import MOST_CALLS, Life, MortalStore, Tool, World
from tests.orders import misplaced
from tests.scenarios import RUN

RUNS = 4000
"""Random runs, at full length."""
LEAST = 60
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


# --------------------------------------------------------------------------- who is cancelled


@attrs.define(eq=False)
class Target:
    """A call of a graph that is to be cancelled.

    Attributes:
        strike: Cancels it.
        is_over: Whether it has ended: nobody would be cancelled any more.
        is_struck: Whether its task was cancelled before that.
    """

    strike: Callable[[], object] = bool
    is_over: bool = False
    is_struck: bool = False

    def hit(self) -> None:
        """Cancel the call, if it has not ended."""
        if not self.is_over:
            self.strike()

    async def called(self, call: Awaitable[State]) -> State:
        """Wait for the call."""
        task = asyncio.current_task()
        assert task is not None
        try:
            return await call
        finally:
            self.is_over, self.is_struck = True, task.cancelling() > 0


class Heard(Exception):  # noqa: N818 - what is to come
    """Whoever called was told of the cancellation."""


_Call: TypeAlias = Callable[[], Awaitable[State]]


async def by_task(call: _Call, target: Target) -> State:
    """Cancel the task that calls."""
    task = asyncio.current_task()
    assert task is not None
    target.strike = task.cancel
    try:
        return await target.called(call())
    except asyncio.CancelledError:
        raise Heard from None


async def by_timeout(call: _Call, target: Target) -> State:
    """Let the time of ``asyncio.timeout`` be over."""
    try:
        async with asyncio.timeout(None) as limit:
            target.strike = lambda: limit.when() is None and limit.reschedule(0)
            return await target.called(call())
    except TimeoutError:
        raise Heard from None


async def by_sibling(call: _Call, target: Target) -> State:
    """Let another task of its group fail."""
    failing = asyncio.Event()
    target.strike = failing.set

    async def fail() -> None:
        await failing.wait()
        raise LookupError

    try:
        async with asyncio.TaskGroup() as group:
            sibling = group.create_task(fail())
            final = await target.called(call())
            sibling.cancel()
    except BaseExceptionGroup as errors:
        _, others = errors.split((LookupError, asyncio.CancelledError))
        if others is not None:
            raise others.exceptions[0] from None
        raise Heard from None
    return final


async def by_scope(call: _Call, target: Target) -> State:
    """Cancel a scope of anyio."""
    import anyio

    with anyio.CancelScope() as scope:
        target.strike = scope.cancel
        return await target.called(call())
    raise Heard


WAYS: dict[str, Callable[[_Call, Target], Awaitable[State]]] = {
    "task": by_task,
    "timeout": by_timeout,
    "group": by_sibling,
    "shutdown": by_task,  # and nobody waits for it: asyncio.run cancels all tasks at once
    **({"scope": by_scope} if importlib.util.find_spec("anyio") else {}),
}


# --------------------------------------------------------------------------- what is called


@attrs.define(eq=False)
class Seen:
    """What the caller was given: the States that were shown, and the final one."""

    shown: list[State] = attrs.field(factory=list)
    final: State | None = None


class LeftError(Exception):
    """Somebody left the iteration."""


async def executed(graph: StateGraph, method: str, arguments: tuple[Any, ...], seen: Seen) -> State:
    """Call ``aexecute`` or ``aresume``."""
    seen.final = final = await getattr(graph, f"a{method}")(*arguments)
    assert final is not None
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
    assert seen.final is not None
    return seen.final


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
        threads = set(threading.enumerate())
        calls = iter(self.case.calls)
        with contextlib.ExitStack() as stack:
            store = self.world.opened()
            if self.case.store != "memory":
                stack.enter_context(store)
            for _ in range(MOST_CALLS):
                way, use, blow = next(calls, ("task", "execute", None))
                final = self._call(store, way, use, blow)
                left_behind = set(threading.enumerate()) - threads
                self.wrong += [f"thread {thread.name} is left by {way}, {use}" for thread in left_behind]
                if final is not None and final.status is RunStatus.COMPLETED:
                    break
                if self.wrong:
                    return
            else:
                self.wrong.append("it never completes")
                return
        if (dict(final), final.step) != expected():
            self.wrong.append(f"it ends with {dict(final)} at step {final.step}")
        self.wrong += [f"{key} was repeated although it was saved" for key in self.world.journal.repeated]

    def _call(self, store: Any, way: str, use: str, blow: Blow | None) -> State | None:
        """Make one call; return the final State that is known after it."""
        points = blow.at if blow is not None and blow.of == "points" else None
        life = Life(points, kinds=("store", "work"))
        life.events.append([])
        if self.world.is_prompt:
            life.told = self.world.journal.trust
        mortal = MortalStore(store, life, self.world.journal)
        build = builds_everything(self.case.kind, **self.case.checkpoint)
        graph = build(mortal, life, Tool(life, self.world.journal))
        saved = _load(store)
        if saved is None:
            method, arguments = "execute", (State(INPUTS, run_id=RUN),)
        elif saved.status is RunStatus.COMPLETED:
            return saved
        else:
            method, arguments = "resume", (RUN, _answers(saved))
        seen, target = Seen(), Target()
        end = asyncio.run(
            _attacked(way, lambda: USES[use](graph, method, arguments, seen), target, blow, life, self.wrong)
        )
        self.wrong += misplaced(life.events[0])
        self._check(f"{way}, {use}, {method}", seen, target, end, saved, _load(store))
        return seen.final if seen.final is not None and seen.final.status is RunStatus.COMPLETED else None

    def _check(
        self, what: str, seen: Seen, target: Target, end: list[Any], before: State | None, after: State | None
    ) -> None:
        self.report.tried["calls"] += 1
        self.report.tried["cancelled"] += target.is_struck
        answer, error = end or (None, None)
        self.report.found[type(error).__name__ if error else "ended"] += 1
        kept = seen.final is not None and after is None  # the answer would be nowhere else
        if not end:
            self.wrong.append(f"{what}: nobody knows how it ended")
        elif target.is_struck and not isinstance(error, Heard) and not (kept and error is None):
            self.wrong.append(f"{what}: it was cancelled, and ended with {error or answer!r}")
        elif error is not None and not isinstance(error, Heard | ExecutionError | LeftError):
            self.wrong.append(f"{what}: it ended with {error!r}")
        elif isinstance(error, Heard) and not target.is_struck:
            self.wrong.append(f"{what}: nobody has cancelled it")
        if (
            after is None
            and before is not None
            and (seen.final is None or seen.final.status is not RunStatus.COMPLETED)
        ):
            self.wrong.append(f"{what}: the run is gone, and so is its final State")
        steps = [state.step for state in seen.shown if state.partial is None]
        if after is not None and steps and after.step < max(steps):
            self.wrong.append(f"{what}: step {max(steps)} was shown, and step {after.step} is saved")


async def _attacked(
    way: str, call: _Call, target: Target, blow: Blow | None, life: Life, wrong: list[str]
) -> list[Any]:
    """Make a call and cancel it; return a list of its answer and its error, which may be filled later."""
    end: list[Any] = []
    loop, reached = asyncio.get_running_loop(), asyncio.Event()
    life.act = lambda _: loop.call_soon_threadsafe(reached.set)

    async def work() -> None:
        try:
            end[:] = await WAYS[way](call, target), None
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is looked at
            end[:] = None, error
            if way == "shutdown" and isinstance(error, Heard):
                raise asyncio.CancelledError from None

    async def strike() -> None:
        assert blow is not None
        for _ in range(blow.at if blow.of == "turns" else 0):
            await asyncio.sleep(0)
        if blow.of == "points":
            await reached.wait()
        if way == "shutdown":
            return
        for _ in range(blow.times):
            target.hit()
            for _ in range(blow.gap):
                await asyncio.sleep(0)

    task = asyncio.create_task(work())
    striker = None if blow is None else asyncio.create_task(strike())
    if striker is None or way != "shutdown":
        await asyncio.wait([task])
        if striker is not None:
            striker.cancel()
            await asyncio.wait([striker])
    else:
        await asyncio.wait([task, striker], return_when=asyncio.FIRST_COMPLETED)
        striker.cancel()
        await asyncio.wait([striker])
        return end
    others = asyncio.all_tasks() - {asyncio.current_task()}
    wrong += [f"{other.get_coro()} is left by {way}" for other in others]
    return end


def _load(store: Any) -> State | None:
    try:
        state: State = store.load(RUN)
    except CheckpointNotFoundError:
        return None
    return state


def _answers(saved: State) -> dict[str, Any] | None:
    pause = saved.pause
    return None if pause is None or pause.response_param is None else {pause.response_param: answer(pause)}


# --------------------------------------------------------------------------- many


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
    report = Report("whenever and however often a run is cancelled, it stops, is told of, and goes on later")
    count = max(LEAST, round(RUNS * share))
    batches = [(seed, first, min(_BATCH, count - first)) for first in range(0, count, _BATCH)]
    work_out("cancellations", batches, report)
    report.tried = Counter({kind: number for kind, number in report.tried.items() if number})
    return [report]


if __name__ == "__main__":
    given, first, many = map(int, sys.argv[1:])
    tell(try_out(given, range(first, first + many)))
