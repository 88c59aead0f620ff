"""Calls race for one run in threads and processes on each store; processes are killed and frozen at random.

The calls start, resume, take over, delete and roll back the run at the same time. Without a take-over exactly one call
does the work and runs each step once. A call that loses the run gets an error, and only the owner saves States.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any, cast

import attrs

from proof import TOP
from proof.report import Report
from proof.stores import REMOTE, STORES
from proof.workers import limited, tell, work_out
from stategraph import CheckpointStore, State, StateGraph
from stategraph.errors import CheckpointNotFoundError, RunBusyError, RunCompleteError, RunExistsError, StepConflictError
from tests import postgres_server, redis_server, scenarios
from tests.scenarios import FourMethodStore, make_graph

RACES = {"threads": 2500, "processes": 1200}  # at full length
LEAST = 40  # of each, with any share of it
_BATCH = 500
_EXPECTED = (CheckpointNotFoundError, RunBusyError, RunCompleteError, RunExistsError, StepConflictError)

_STORES = STORES | {"four methods": lambda folder: FourMethodStore()}
SHARED = ("sqlite", *REMOTE)  # several processes can use these
KINDS: dict[str, tuple[str, ...]] = {
    "start against start": ("execute", "execute", "execute"),
    "resume against resume": ("resume", "resume", "resume"),
    "owner against delete": ("execute", "delete!"),
    "owner against rollback": ("resume", "rollback!"),
    "owner against take-over": ("resume", "resume!", "resume!"),
    "owner against writes by hand": ("resume", "delete", "rollback"),
}
"""The simultaneous calls, after one step if a run is resumed; "!" marks a take-over."""
CROWDS: dict[str, tuple[str, ...]] = {
    "eight that start": ("execute",) * 8,
    "eight that resume": ("resume",) * 8,
    "eight that take over": ("resume", *("resume!",) * 7),
}
"""Larger races, for threads alone."""
CALLS = KINDS | CROWDS


@attrs.frozen
class Race:
    """Calls that begin at the same time.

    Attributes:
        store: On which store.
        kind: The kind of the race.
        run_id: On which run.
        durability: How States are saved.
        pauses: How long each call waits before it begins, and in its nodes; seconds.
    """

    store: str
    kind: str
    run_id: str
    durability: str
    pauses: tuple[float, ...]

    @classmethod
    def random(cls, seed: str, stores: list[str], kinds: Iterable[str] = KINDS) -> Race:
        """Return the race that comes of a seed."""
        choice = random.Random(f"race {seed}")  # noqa: S311 - no secret
        kind = choice.choice(sorted(kinds))
        pauses = tuple(choice.choice([0, 0, 0.0005, 0.002]) * choice.random() for _ in CALLS[kind])
        store = choice.choice([name for name in stores for _ in range(1 if name in REMOTE else 3)])
        return cls(store, kind, f"run-{seed}", choice.choice(["sync", "sync", "async"]), pauses)

    @property
    def takes_over(self) -> bool:
        """Whether one call may take the run from another."""
        return any(call.endswith("!") for call in CALLS[self.kind])

    def begin(self, store: CheckpointStore) -> None:
        """Prepare the run."""
        if "resume" in CALLS[self.kind]:
            with self.graph(store, "first", list[str]()).stream(State(run_id=self.run_id)) as states:
                next(states)

    def graph(self, store: CheckpointStore, name: str, made: Any, pause: float = 0.0) -> StateGraph:
        """Return the graph of a call, whose nodes record each step and the call in the State."""

        def node(state: State) -> dict[str, Any]:
            made.append(f"{state.step + 1}")
            time.sleep(pause)
            return {"by": [*state.get("by", ()), name]}

        nodes = dict.fromkeys("abc", node)
        return make_graph(nodes, store=store, preserve=True, retention="full", durability=self.durability)

    def call(self, store: CheckpointStore, number: int, made: Any) -> Callable[[], Any]:
        """Return one of the calls."""
        what, pause = CALLS[self.kind][number], self.pauses[number]
        how: Any = {"take_over": True} if what.endswith("!") else {}
        graph = self.graph(store, f"{number}", made, pause)
        by_name: dict[str, Callable[[], Any]] = {
            "execute": lambda: graph.execute(State(run_id=self.run_id), **how),
            "resume": lambda: graph.resume(self.run_id, **how),
            "delete": lambda: store.delete(self.run_id, **how),
            "rollback": lambda: store.rollback(self.run_id, 1, **how),
        }
        return by_name[what.rstrip("!")]


# --------------------------------------------------------------------------- what must hold


def judge(
    race: Race, ends: list[str], made: list[str], store: CheckpointStore, *, is_killed: bool = False
) -> list[str]:
    """Return the problems of an ended race.

    Args:
        race: The race.
        ends: How each call ended: the name of an error, or "done".
        made: The steps that were made.
        store: The store.
        is_killed: Whether the process of one call was killed.
    """
    allowed = _ALLOWED | (_BY_HAND if race.store in REMOTE and "by hand" in race.kind else set())
    wrong = [f"call {number} ended with {end}" for number, end in enumerate(ends) if end not in allowed]
    done, calls = ends.count("done"), CALLS[race.kind]
    if not race.takes_over and not is_killed:
        if race.kind != "owner against writes by hand" and done != 1:
            wrong.append(f"{done} calls have done the work")
        repeated = [step for step, times in Counter(made).items() if times > 1]
        if repeated and race.kind != "owner against writes by hand":
            wrong.append(f"steps {repeated} were made more than once")
        if "RunLostError" in ends:
            wrong.append("a call has lost the run, though none may take it")
    if store.owner(race.run_id) is not None:
        return [*wrong, f"{store.owner(race.run_id)} owns the run in the end"]
    saved = _load(store, race.run_id)
    blocks = [] if saved is None else [name for name, _ in itertools.groupby(saved.get("by", ()))]
    if len(blocks) != len(set(blocks)):
        wrong.append(f"a State is of several calls at once: {blocks}")
    took_it = ends[0] == "RunLostError" and ends[1] != "killed"  # or it may have died before it did more than take it
    if took_it and calls[1] == "delete!" and saved is not None:
        wrong.append("a run that was deleted is there")
    if took_it and calls[1] == "rollback!" and (saved is None or saved.generation != 1):
        wrong.append(f"a run that was rolled back went on: {saved}")
    return wrong + _gone_on(race, store, saved)


_BY_HAND = {"StepConflictError"}
"""How writes by hand may end where they take no lease but detect other writes."""
_ALLOWED = {"done", "killed", "RunLostError", *(error.__name__ for error in _EXPECTED)} - _BY_HAND


def _gone_on(race: Race, store: CheckpointStore, saved: State | None) -> list[str]:
    """Go on with the run; return what is wrong with that."""
    graph = race.graph(store, "last", list[str]())
    if saved is None:
        saved = graph.execute(State(run_id=race.run_id))
    elif saved.status != "completed":
        saved = graph.resume(race.run_id)
    return [] if len(saved["by"]) == 3 else [f"the run ends with {dict(saved)}"]


def _load(store: CheckpointStore, run_id: str) -> State | None:
    try:
        return store.load(run_id)
    except CheckpointNotFoundError:
        return None


def _ended(call: Callable[[], Any], pause: float = 0.0) -> str:
    """Make a call; return how it ended."""
    time.sleep(pause)
    try:
        call()
    except Exception as error:  # noqa: BLE001 - it is looked at
        return type(error).__name__ if isinstance(error, _EXPECTED) else repr(error)
    return "done"


# --------------------------------------------------------------------------- threads


def in_threads(race: Race, stores: Sequence[CheckpointStore], made: list[str]) -> list[str]:
    """Make the calls of a race in a thread each, on these handles in turn; return how they ended."""
    calls = [race.call(stores[number % len(stores)], number, made) for number in range(len(race.pauses))]
    ends, barrier = [""] * len(calls), threading.Barrier(len(calls))

    def run(number: int) -> None:
        barrier.wait()
        ends[number] = _ended(calls[number], race.pauses[number])

    scenarios.in_threads(*(partial(run, number) for number in range(len(calls))))
    return ends


# --------------------------------------------------------------------------- processes


class Runner:
    """A process that makes one requested call after the other."""

    def __init__(self, folder: Path, number: int) -> None:
        command = [sys.executable, "-m", "proof.races", "runner", str(folder), str(number)]
        self.process = subprocess.Popen(  # noqa: S603 - itself
            command, cwd=TOP, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._stdin, self._stdout = cast(IO[str], self.process.stdin), cast(IO[str], self.process.stdout)
        self.answer()

    def tell(self, race: Race) -> None:
        """Start a race."""
        self._stdin.write(json.dumps(attrs.asdict(race)) + "\n")
        self._stdin.flush()

    def answer(self) -> str:
        """Return its next line; "killed" if it is dead."""
        return self._stdout.readline().strip() or "killed"

    def end(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.communicate()


class Steps:
    """A file in which processes note the steps that they make."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def append(self, step: str) -> None:
        """Note a step."""
        with self._file.open("a") as file:
            file.write(f"{step}\n")


def serve(folder: Path, number: int) -> None:
    """Make the requested calls, in a process of a `Runner`."""
    stores = {name: STORES[name](folder) for name in SHARED}
    print("ready", flush=True)
    for line in sys.stdin:
        about = json.loads(line)
        race = Race(**{**about, "pauses": tuple(about["pauses"])})
        call = race.call(stores[race.store], number, Steps(folder / race.run_id))
        print(_ended(call, race.pauses[number]), flush=True)


def in_processes(race: Race, folder: Path, runners: list[Runner], choice: random.Random) -> tuple[list[str], str]:
    """Make the calls of a race in a process each, one of which may be killed or frozen; return how they ended, and what
    happened."""
    racing = runners[: len(race.pauses)]
    for runner in racing:
        runner.tell(race)
    blow, struck = choice.choice(["nothing", "kill", "freeze"]), choice.choice(racing)
    time.sleep(choice.random() * 0.02)
    if blow == "kill":
        struck.process.send_signal(signal.SIGKILL)
    elif blow == "freeze":
        struck.process.send_signal(signal.SIGSTOP)
        time.sleep(choice.random() * 0.02)
        struck.process.send_signal(signal.SIGCONT)
    ends = [runner.answer() for runner in racing]
    if blow == "kill":
        struck.end()
        place = runners.index(struck)
        runners[place] = Runner(folder, place)
    return ends, blow


def _end_all(runners: list[Runner]) -> None:
    for runner in runners:
        runner.end()


def _race_processes(seed: int, numbers: range, report: Report) -> None:
    choice = random.Random(f"blows {seed} {numbers.start}")  # noqa: S311 - no secret
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        stores = {kind: stack.enter_context(STORES[kind](folder)) for kind in SHARED}
        runners = [Runner(folder, number) for number in range(3)]
        stack.callback(_end_all, runners)
        for number in numbers:
            race = Race.random(f"{seed}-{number}", list(SHARED))
            with limited():
                race.begin(stores[race.store])
                ends, blow = in_processes(race, folder, runners, choice)
                steps = folder / race.run_id
                made = steps.read_text().split() if steps.exists() else []
                wrong = judge(race, ends, made, stores[race.store], is_killed=blow == "kill")
            _note(report, "processes", race, ends, wrong)
            report.tried[{"kill": "killed", "freeze": "frozen"}.get(blow, "undisturbed")] += 1


# --------------------------------------------------------------------------- all of them


def _note(report: Report, where: str, race: Race, ends: list[str], wrong: list[str]) -> None:
    report.tried[f"races of {where}"] += 1
    report.tried[race.kind] += 1
    report.found.update(ends)
    if wrong:
        report.failures.append(f"in {where}: {race}: {ends}: {'; '.join(wrong)}")


def _race_threads(seed: int, numbers: range, report: Report) -> None:
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        stores = {name: stack.enter_context(opened(Path(folder))) for name, opened in _STORES.items()}
        for number in numbers:
            race, made = Race.random(f"{seed}-{number}", sorted(_STORES)), list[str]()
            if race.store == "four methods" and "rollback" in race.kind:
                race = attrs.evolve(race, store="memory")  # it keeps no step to go back to
            with limited():
                race.begin(stores[race.store])
                ends = in_threads(race, [stores[race.store]], made)
                wrong = judge(race, ends, made, stores[race.store], is_killed=False)
            _note(report, "threads", race, ends, wrong)


def _batches(share: float) -> Iterator[tuple[str, int, int]]:
    for where, most in RACES.items():
        count = max(LEAST, round(most * share))
        for first in range(0, count, _BATCH):
            yield where, first, min(_BATCH, count - first)


def prove(share: float, seed: int) -> list[Report]:
    """Let calls race."""
    report = Report("calls that race for one run own it one at a time, and each that loses it gets an error")
    os.environ.update({postgres_server.SERVER: postgres_server.dsn(), redis_server.SERVER: redis_server.url()})
    work_out("races", [(where, seed, first, many) for where, first, many in _batches(share)], report)
    return [report]


def main(arguments: list[str]) -> None:
    """Do a part of it, or be one of the processes."""
    if arguments[0] == "runner":
        serve(Path(arguments[1]), int(arguments[2]))
        return
    report, (seed, first, many) = Report(""), map(int, arguments[1:])
    numbers = range(first, first + many)
    {"processes": _race_processes, "threads": _race_threads}[arguments[0]](seed, numbers, report)
    tell(report)


if __name__ == "__main__":
    main(sys.argv[1:])
