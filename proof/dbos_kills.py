"""Random graphs under DBOSRunner, with workers killed and frozen at random, end as undisturbed ones."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import attrs

from proof import TOP
from proof.report import Report
from stategraph import (
    AnswerError,
    CheckpointConfig,
    GraphConfig,
    InterruptNode,
    MapNode,
    NodeContext,
    ParallelNode,
    RunStatus,
    State,
    StateGraph,
)
from stategraph.dbos import DBOSRunner, Queue, TurnHandle
from stategraph.stores import CheckpointStore, MemoryStore, PostgresStore, SqliteStore
from tests.dbos_worker import SQLITE_SERVES

KILLS = 60  # at full length, on either database
_WORKERS = 3
_RUNS = 12  # for each kill
_LAPSE = 2.0
_LONGEST = 120.0  # seconds that undisturbed runs may take to end
_MODULUS = 10_007

Data = dict[str, Any]


def plain(number: int, data: Data) -> Data:
    """Return the updates of a plain node."""
    return {"n": (data["n"] * 31 + number) % _MODULUS}


def listed(number: int, data: Data) -> Data:
    """Return the updates of a node that makes a list."""
    return {"items": [data["n"] + item for item in range(number + 2)]}


def square(item: int) -> int:
    """Return the result of an item of a map."""
    return item * item % _MODULUS


def joined(number: int, data: Data) -> Data:
    """Return the updates of a node that reads what others have made."""
    found = sum(data.get("squares", ())) + data.get("left", 0) + sum(data.get("right", ())) + data.get("answer", 0)
    return {"n": (data["n"] + found + number) % _MODULUS, "seen": [*data.get("seen", ()), found]}


def answer_to(shown: int) -> int:
    """Return the answer to what a pause shows."""
    return shown * 2 + 1


KINDS = ("plain", "async", "branches", "map", "nested", "ask", "list", "join")


def kinds_of(seed: int) -> list[str]:
    """Return the kinds of the nodes of a random graph."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    return [chance.choice(KINDS) for _ in range(chance.randint(3, 7))]


# --------------------------------------------------------------------------- as a graph


@attrs.frozen
class Place:
    """Where workers meet.

    Attributes:
        folder: The folder with the log and the files.
        dsn: The PostgreSQL server; empty for SQLite.
        seed: The seed of the graph.
        is_noted: Whether nodes log each step.
    """

    folder: Path
    dsn: str
    seed: int
    is_noted: bool = True

    def store(self) -> CheckpointStore:
        """Return the store of the runs."""
        if self.dsn:
            return PostgresStore(self.dsn, schema=f"runs_{self.folder.name.lower()}")
        return SqliteStore(self.folder / "runs.db")

    def runner(self) -> tuple[StateGraph, DBOSRunner]:
        """Return the graph and a runner for it."""
        graph = self.graph(self.store())
        url = self.dsn or f"sqlite:///{self.folder}/dbos.db"
        config = {"log_level": "CRITICAL", "dbos_system_schema": f"dbos_{self.folder.name.lower()}"}
        options: dict[str, Any] = {"lapse": _LAPSE, "poll": 0.05, "max_recoveries": 1000, "config": config}
        return graph, DBOSRunner(graph, url=url, queues={"stategraph": Queue(per_worker=2)}, **options)

    def graph(self, store: CheckpointStore) -> StateGraph:
        """Return the random graph."""
        graph = self._empty("random", store)
        kinds = kinds_of(self.seed)
        names = [f"{number}-{kind}" for number, kind in enumerate(kinds)]
        for number, (name, kind) in enumerate(zip(names, kinds, strict=True)):
            graph.add_node(name, self._node(kind, number, store))
        graph.add_node("round", lambda state: {"round": state["round"] + 1})
        for pair in pairwise([*names, "round"]):
            graph.add_edge(*pair)
        graph.add_node("end", lambda state: {})
        graph.add_edge("round", names[0], lambda state: state["round"] < state["rounds"])
        graph.add_edge("round", "end")
        graph.set_entry_point(names[0])
        graph.set_exit_point("end")
        return graph

    def _empty(self, name: str, store: CheckpointStore) -> StateGraph:
        checkpoint = CheckpointConfig(interval=1, preserve=True)
        return StateGraph(GraphConfig(name, observer="noop", checkpoint=checkpoint), store=store)

    def _node(self, kind: str, number: int, store: CheckpointStore) -> Any:
        match kind:
            case "branches":
                left = self._calls(lambda number, data: {"left": data["n"] + number}, number)
                right = self._calls(lambda number, data: {"right": [data["n"], number]}, number)
                return ParallelNode({"left": left, "right": right})
            case "map":
                return MapNode(square, over="items", into="squares", max_workers=2)
            case "ask":
                return InterruptNode("n", "answer")
            case "nested":
                inside = self._empty(f"nested-{number}", store)
                inside.add_node("first", self._calls(plain, number))
                inside.add_node("second", self._calls(plain, number))
                inside.add_edge("first", "second")
                inside.set_entry_point("first")
                inside.set_exit_point("second")
                return inside.as_node()
            case "async":
                return self._awaits(number)
        functions: dict[str, Callable[[int, Data], Data]] = {"list": listed, "join": joined}
        return self._calls(functions.get(kind, plain), number)

    def _calls(self, function: Callable[[int, Data], Data], number: int) -> Any:
        def node(state: State, context: NodeContext) -> Data:
            time.sleep(self._note(context))
            return function(number, dict(state))

        return node

    def _awaits(self, number: int) -> Any:
        async def node(state: State, context: NodeContext) -> Data:
            await asyncio.sleep(self._note(context))
            return plain(number, dict(state))

        return node

    def _note(self, context: NodeContext) -> float:
        """Log a step; return its duration in seconds."""
        if self.is_noted:
            with (self.folder / "log").open("a", encoding="utf-8") as log:
                log.write(f"{context.idempotency_key}\n")
        return 0.02 * self.is_noted

    def undisturbed(self, data: Data) -> State:
        """Return the final State of an undisturbed run."""
        graph = attrs.evolve(self, is_noted=False).graph(MemoryStore())
        state = graph.run(State(data))
        while state.pause is not None:
            state = graph.resume(state.run_id, {"answer": answer_to(cast(int, state.pause.value))})
        return state

    def work(self) -> None:
        """Work until the input ends."""
        with self.runner()[1]:
            print("ready", flush=True)
            sys.stdin.read()


# --------------------------------------------------------------------------- disturbing it


class _Disturbed:
    """Runs of one graph, while workers come and go."""

    def __init__(self, place: Place, kills: int, name: str) -> None:
        self.place, self.kills = place, kills
        self.report = Report(name)
        self._random = random.Random(place.seed)  # noqa: S311 - no secret
        self._workers: list[subprocess.Popen[str]] = []
        self._frozen: list[subprocess.Popen[str]] = []

    def run(self) -> Report:
        graph, runner = self.place.runner()
        try:
            with runner.launch(work=False):
                self._workers = [self._worker() for _ in range(_WORKERS)]
                inputs = {f"run-{number}": self._input() for number in range(_RUNS * self.kills)}
                handles = [runner.start(graph, State(data, run_id=run_id)) for run_id, data in inputs.items()]
                for _ in range(self.kills):
                    self._answer(runner, self._random.uniform(0.1, 1.0))
                    self._disturb()
                self._finish(runner, handles, graph)
            self._look(graph, inputs)
        finally:
            for worker in [*self._workers, *self._frozen]:
                worker.kill()
                worker.communicate()
            graph.store.close()
        return self.report

    def _input(self) -> Data:
        count = {"round": 0, "rounds": self._random.randint(1, 3)}
        return {"n": self._random.randrange(_MODULUS), "items": [], **count}

    def _worker(self) -> subprocess.Popen[str]:
        arguments = [str(self.place.folder), self.place.dsn, str(self.place.seed)]
        pipe = subprocess.PIPE
        command = [sys.executable, "-m", "proof.dbos_kills", *arguments]
        with (self.place.folder / "errors").open("w") as errors:
            worker = subprocess.Popen(command, cwd=TOP, stdin=pipe, stdout=pipe, stderr=errors, text=True)  # noqa: S603 - itself
        if worker.stdout is None or worker.stdout.readline() != "ready\n":
            raise RuntimeError(f"a worker did not start: {(self.place.folder / 'errors').read_text()[-2000:]}")
        return worker

    def _disturb(self) -> None:
        """Kill or freeze a worker, or wake up one that is frozen; another takes its place."""
        if self._frozen and self._random.random() < 0.5:
            woken = self._frozen.pop()
            os.kill(woken.pid, signal.SIGCONT)
            self._workers.append(woken)
            self.report.tried["workers woken up"] += 1
            return
        victim = self._workers.pop(self._random.randrange(len(self._workers)))
        if self.place.dsn and self._random.random() < 0.3:  # on SQLite, one that is frozen in a write keeps all waiting
            os.kill(victim.pid, signal.SIGSTOP)
            self._frozen.append(victim)
            self.report.tried["workers frozen"] += 1
        else:
            victim.kill()
            victim.communicate()
            self.report.tried["workers killed"] += 1
        if len(self._workers) < _WORKERS:
            self._workers.append(self._worker())

    def _answer(self, runner: DBOSRunner, seconds: float) -> None:
        """Answer pauses for a while, each twice: the second answer must be refused."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for view in runner.runs("paused", limit=1000):
                if view.pause is None:
                    continue
                try:
                    runner.answer(view.run_id, {"answer": answer_to(view.pause.value)}, pause=view.pause)
                    self.report.found["answers"] += 1
                    runner.answer(view.run_id, {"answer": -1}, pause=view.pause)
                    self.report.failures.append(f"{view.run_id}: a second answer was taken")
                except AnswerError:
                    self.report.found["answers refused"] += 1
            time.sleep(0.05)

    def _finish(self, runner: DBOSRunner, handles: list[TurnHandle], graph: StateGraph) -> None:
        """Wait until all runs end, without further faults. Frozen workers stay frozen."""
        until = time.monotonic() + _LONGEST
        while graph.store.count(status=RunStatus.COMPLETED) < len(handles) and time.monotonic() < until:
            self._answer(runner, 0.5)

    def _look(self, graph: StateGraph, inputs: dict[str, Data]) -> None:
        """Check that every run ended like an undisturbed one; a step runs at most once more for each lost worker."""
        kinds = kinds_of(self.place.seed)
        for run_id, data in inputs.items():
            state = graph.store.load(run_id)
            self.report.found[f"runs {state.status}"] += 1
            expected = dict(self.place.undisturbed(data))
            if state.status is not RunStatus.COMPLETED:
                self.report.failures.append(
                    f"{run_id} of {kinds} is {state.status} at step {state.step}: {state.error}"
                )
            elif expected != dict(state):
                self.report.failures.append(f"{run_id} of {kinds} ends with {dict(state)}, not with {expected}")
        steps = Counter((self.place.folder / "log").read_text(encoding="utf-8").splitlines())
        self.report.found["steps"] += len(steps)
        self.report.found["steps made again"] += sum(times - 1 for times in steps.values())
        most = max(steps.values(), default=0)
        if most > 1 + self.kills:
            self.report.failures.append(f"a step was made {most} times, with {self.kills} workers lost")


def prove(share: float, seed: int) -> list[Report]:
    """Disturb random graphs on both databases; at a small share, on one of them."""
    kills = max(1, round(KILLS * share))
    whole = Report("random graphs under DBOS, whose workers are killed and frozen, end as undisturbed ones")
    usable = ["sqlite", "postgres"] if SQLITE_SERVES else ["postgres"]
    kinds = usable if kills > 1 else [random.Random(seed).choice(usable)]  # noqa: S311
    for kind in kinds:
        for number, some in enumerate(_dealt(kills)):
            with tempfile.TemporaryDirectory(prefix="stategraph-proof-") as folder:
                place = Place(Path(folder), _server() if kind == "postgres" else "", seed + number)
                whole.add(_Disturbed(place, some, kind).run())
    return [whole]


def _dealt(kills: int) -> list[int]:
    """Return the number of kills for each graph."""
    return [5] * (kills // 5) + [kills % 5] * bool(kills % 5)


def _server() -> str:
    from tests.postgres_server import dsn  # imported when used: it starts a server

    return dsn()


if __name__ == "__main__":
    Place(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])).work()
