"""Every order of the commands of two or three calls on one run, one of which may be interrupted or crash anywhere.

The engine yields each effect as a command, so the proof drives calls command by command in all orders; a call that is
not driven for a while acts like a frozen one. At each command no two calls own the run, and a call that lost it writes
nothing. In the end each call that lost the run got an error, no State is of two calls, and the run can be resumed.

Equal situations (the store, and the answers to each call so far) continue equally: each is tried once, and the orders
that lead through it are counted.

Eight real threads also race for one run, each with its own handle on a store in a file. Without the GIL, as with
``PYTHON_GIL=0``, they really run at the same time.
"""

from __future__ import annotations

import itertools
import os
import random
import sqlite3
import sys
import tempfile
import warnings
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from proof.driven import CALLS, KINDS, Call, Case, answers, graph_of, shown_state
from proof.races import CROWDS, Race, in_threads, judge
from proof.report import Report
from proof.workers import limited, tell, work_out
from stategraph import CheckpointStore, State
from stategraph._owners import base, locks
from stategraph.errors import (
    AnswerError,
    CheckpointNotFoundError,
    RunBusyError,
    RunCancelledError,
    RunCompleteError,
    RunExistsError,
    RunLostError,
)
from stategraph.stores.memory import MemoryStore
from stategraph.stores.sqlite import SqliteStore
from tests.scenarios import RUN

LEAST = {"memory": 30, "sqlite": 4}
"""Cases that are tried of each store with any share of them."""
MOST = {"memory": (1200, 1800), "sqlite": (60, 100)}
"""Those that are tried at full length: without a fault, and with one."""
MOST_SITUATIONS = 3_000
"""Of a case: items that are at work at the same time report in any order, and two such calls meet in any of them."""
RACES, LEAST_RACES = 1000, 80
"""Races of eight threads: at full length, and with any share of it."""
_BATCH = 40
_EXPECTED = (
    *(AnswerError, CheckpointNotFoundError, KeyboardInterrupt, RunBusyError, RunCompleteError, RunExistsError),
    *(RunCancelledError, RunLostError),
)

# --------------------------------------------------------------------------- orders


class World:
    """A case whose calls were driven in some order.

    Args:
        case: The case.
        order: The calls that made a step so far, by their numbers.

    Attributes:
        is_another: Whether a call had fewer steps than before: the parts of a node end one by one, or several at once.
    """

    def __init__(self, case: Case, order: tuple[int, ...]) -> None:
        self.case, self._stack, self.wrong = case, ExitStack(), list[str]()
        self.is_another = False
        self._folder = "" if case.store == "memory" else self._stack.enter_context(tempfile.TemporaryDirectory())
        first = self._opened()
        if case.begun:
            _begin(case, first)
        others = [first if case.store == "memory" else self._opened() for _ in case.calls[1:]]
        self.store = first if case.store == "memory" else self._opened()
        self.calls = [Call(case, number, store) for number, store in enumerate([first, *others])]
        for number in order:
            self.is_another = self.is_another or self.calls[number].end is not None
            if not self.is_another:
                self.step(number)

    def _opened(self) -> Any:
        """Return a store, as another process has it."""
        if self.case.store == "memory":
            return MemoryStore()
        locks._by_path = weakref.WeakValueDictionary()
        return self._stack.enter_context(SqliteStore(Path(self._folder) / "runs.db"))

    def close(self) -> None:
        """Forget the calls and close the stores."""
        for call in self.calls:
            call.close()
        self._stack.close()

    def ready(self) -> list[int]:
        """Return the calls that can go on."""
        return [number for number, call in enumerate(self.calls) if call.can_go_on]

    def step(self, number: int) -> None:
        """Let a call make a step, and check what must hold after each."""
        call = self.calls[number]
        was_lost = call.is_lost
        before = self._everything() if was_lost else None
        call.step()
        if was_lost and before != self._everything():
            self.wrong.append(f"{call.name} has written after it lost the run")
        call.was_refused |= was_lost and call.log[-1][1] == "RunLostError"
        if sum(one.is_owner for one in self.calls) > 1:
            self.wrong.append("two own the run")
        saved = _load(self.store)
        blocks = [] if saved is None else [name for name, _ in itertools.groupby(saved.get("by", ()))]
        if len(blocks) != len(set(blocks)):
            self.wrong.append(f"a State is of several calls at once: {saved}")

    def _everything(self) -> object:
        """Return all that the store holds."""
        if self.case.store == "memory":
            runs: dict[str, Any] = self.store._runs_by_id
            return [(run_id, [id(kept) for kept in run.kept], list(run.entries)) for run_id, run in runs.items()]
        with sqlite3.connect(Path(self._folder) / "runs.db") as database:
            return [database.execute(f"SELECT * FROM {table}").fetchall() for table in ("run", "checkpoint", "entry")]  # noqa: S608

    def situation(self) -> object:
        """Return what decides on how it can go on."""
        if self.case.store == "memory":
            runs = self.store._runs_by_id
            kept: list[Any] = [
                (run_id, [_step_of(one) for one in run.kept], [*run.entries]) for run_id, run in runs.items()
            ]
        else:
            kept = [(row.step, row.status) for row in self.store.history(RUN)]
        saved = _load(self.store)
        calls = [(tuple(call.log), call.is_lost, call.is_in_node) for call in self.calls]
        fence = 0 if self.case.store == "memory" else self.store._log.table.fence(RUN)
        return repr((kept, fence, saved and shown_state(saved), self.store.owner(RUN) is None, calls))

    def check_end(self) -> None:
        """Find what is wrong once no call can go on."""
        for call in self.calls:
            if call.end is None:
                self.wrong.append(f"{call.name} waits for ever")
            elif isinstance(call.end, BaseException) and not isinstance(call.end, _EXPECTED):
                self.wrong.append(f"{call.name} ended with {call.end!r}")
            elif call.was_refused and not isinstance(call.end, RunLostError | KeyboardInterrupt):
                self.wrong.append(f"{call.name} has lost the run, and ended with {call.end!r}")
        if self.store.owner(RUN) is not None:
            self.wrong.append("the run still has an owner in the end")
            return
        try:
            self._go_on()
        except Exception as error:  # noqa: BLE001 - any error means that the run is stuck
            self.wrong.append(f"the run cannot be resumed: {error!r}")

    def _go_on(self) -> None:
        graph = graph_of(self.case.kind, "D", self.store, "sync")
        saved = _load(self.store)
        for _ in range(2):  # at most one pause
            if saved is None or saved.status != "completed":
                start = State({"items": [1, 2]}, run_id=RUN)
                saved = graph.execute(start) if saved is None else graph.resume(RUN, answers(self.store))
        made = {"nested": 4, "parallel": 2, "map": 2, "pause": 2, "answer": 2}.get(self.case.kind, 3)
        if saved is None or saved.status != "completed" or len(saved["by"]) != made:
            self.wrong.append(f"the run ends with {saved!r}: {dict(saved or {})}")


def _begin(case: Case, store: Any) -> None:
    with graph_of(case.kind, "0", store, "sync").stream(State({"items": [1, 2]}, run_id=RUN)) as states:
        next(states)
        if case.kind == "answer":
            next(states)


def _load(store: Any) -> State | None:
    try:
        loaded: State = store.load(RUN)
    except CheckpointNotFoundError:
        return None
    return loaded


def _step_of(kept: Any) -> object:
    return kept.step


def explore(case: Case, report: Report) -> int:
    """Try all orders of a case, up to `MOST_SITUATIONS`; return how many there were."""
    counted: dict[object, int] = {}
    begun: set[object] = set()

    def orders(world: World, order: tuple[int, ...]) -> int:
        """Return in how many ways it can go on from here."""
        if world.is_another:
            world.close()
            report.found["orders that came out otherwise"] += 1
            return 0
        situation = world.situation()
        if situation in counted or world.wrong:
            _judge(report, world, order)
            world.close()
            return counted.get(situation, 1)
        if len(counted) + len(begun) > MOST_SITUATIONS:
            world.close()
            report.found["orders that were left out"] += 1
            return 0
        begun.add(situation)
        ready = world.ready()
        if not ready:
            world.check_end()
            report.found.update(_kind_of(call.end) for call in world.calls)
        count = 0 if ready else 1
        for number in ready[1:]:
            count += orders(World(case, (*order, number)), (*order, number))
        if ready:
            world.step(ready[0])
            count += orders(world, (*order, ready[0]))
        else:
            _judge(report, world, order)
            world.close()
        begun.discard(situation)
        counted[situation] = count
        return count

    count = orders(World(case, ()), ())
    report.tried[f"orders on {case.store}"] += count
    report.tried[f"situations on {case.store}"] += len(counted)
    report.tried[f"cases on {case.store}"] += 1
    return count


def _judge(report: Report, world: World, order: tuple[int, ...]) -> None:
    if world.wrong:
        report.failures.append(f"{world.case}, in the order {''.join('ABC'[one] for one in order)}: {world.wrong[0]}")


def _kind_of(end: Any) -> str:
    return type(end).__name__ if isinstance(end, BaseException) else "done"


# --------------------------------------------------------------------------- threads


def race_threads(seed: int, first: int, many: int) -> Report:
    """Let eight threads race for a run, so many times."""
    report = Report("")
    has_gil: bool = getattr(sys, "_is_gil_enabled", lambda: True)()
    sys.setswitchinterval(1e-5)
    for number in range(first, first + many):
        race, made = Race.random(f"{seed}-{number}", ["memory", "sqlite"], CROWDS), list[str]()
        with ExitStack() as stack, limited():
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            handles: list[CheckpointStore] = [MemoryStore()]
            if race.store == "sqlite":
                threads = stack.enter_context(ThreadPoolExecutor(8))
                handles = [*threads.map(lambda _, folder=folder: SqliteStore(Path(folder) / "runs.db"), range(8))]
            for handle in handles:
                stack.callback(handle.close)
            race.begin(handles[0])
            ends = in_threads(race, handles, made)
            wrong = judge(race, ends, made, handles[0])
        report.tried[f"races of eight threads {'with' if has_gil else 'without'} the GIL"] += 1
        report.found.update(ends)
        if wrong:
            report.failures.append(f"{race}: {ends}: {'; '.join(wrong)}")
    return report


# --------------------------------------------------------------------------- cases


def _pairs() -> Iterator[tuple[bool, tuple[str, ...]]]:
    """Yield whether the run was begun, and the calls."""
    for first, second in itertools.product(CALLS, CALLS):
        for begun in (False, True):
            if begun or "start" in first or "start" in second:
                yield begun, (first, second)


def cases(store: str) -> list[Case]:
    """Return all cases of a store."""
    found: list[Case] = []
    for kind, (begun, calls) in itertools.product(KINDS, _pairs()):
        found.append(Case(store, kind, begun, calls))
        faults = ["interrupted before", "interrupted after", *(["crashes"] if store == "sqlite" else [])]
        if CALLS[calls[0]][0] in {"execute", "resume"}:
            found += [Case(store, kind, begun, calls, fault, at) for fault in faults for at in range(1, 15)]
    three = [
        ("start", "resume, taking over", "delete, taking over"),
        ("start", "resume, taking over", "resume, taking over"),
        ("start", "resume, waiting", "rollback, taking over"),
        ("start, waiting", "start, waiting", "resume, taking over"),
        ("resume", "delete, taking over", "start"),
    ]
    found += [Case(store, kind, True, calls) for kind in KINDS for calls in three if store == "memory"]
    found += [Case(store, "plain", False, calls, durability=how) for _, calls in _pairs() for how in ("async", "exit")]
    return found


def _chosen(store: str, share: float, seed: int) -> list[int]:
    """Return the numbers of the cases to be tried."""
    choice, chosen = random.Random(f"ownership {store} {seed}"), list[int]()  # noqa: S311 - no secret
    for has_fault, most in zip((False, True), MOST[store], strict=True):
        numbers = [number for number, case in enumerate(cases(store)) if bool(case.fault) is has_fault]
        some = max(LEAST[store] // 2, round(most * share))
        chosen += choice.sample(numbers, min(len(numbers), some))
    choice.shuffle(chosen)
    return chosen


def try_out(store: str, numbers: list[int]) -> Report:
    """Try the cases with these numbers."""
    for module in (base, locks):  # writes by hand are driven as well and never wait
        vars(module)["LONGEST_WRITE"] = 0.0
    warnings.simplefilter("ignore", RuntimeWarning)  # async nodes of crashed calls are never awaited
    report, all_cases = Report(""), cases(store)
    for number in numbers:
        with limited(600):
            explore(all_cases[number], report)
    return report


def prove(share: float, seed: int) -> list[Report]:
    """Try all orders of some cases, or of all of them."""
    report = Report("a run has one owner, in whichever order the commands of calls on it come")
    requests: list[list[object]] = []
    for store in ("memory", "sqlite"):
        chosen = _chosen(store, share, seed)
        batches = (chosen[first : first + _BATCH] for first in range(0, len(chosen), _BATCH))
        requests += [[store, *batch] for batch in batches]
    work_out("ownership", requests, report)
    crowds = Report("a run has one owner, among eight threads that race for it")
    races = max(LEAST_RACES, round(RACES * share))
    work_out("ownership", [["threads", seed, n, min(_BATCH, races - n)] for n in range(0, races, _BATCH)], crowds)
    return [report, crowds]


if __name__ == "__main__":
    store_or_threads, *given = sys.argv[1], *map(int, sys.argv[2:])
    tell(race_threads(*given) if store_or_threads == "threads" else try_out(store_or_threads, given))
    sys.stdout.flush()
    os._exit(0)  # threads of calls that have crashed wait for ever
