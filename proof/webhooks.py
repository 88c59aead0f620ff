"""A webhook is one turn, however often, and from however many processes that are killed, it is delivered.

Eight processes deliver each event many times at once, and are killed at random. A delivery without an answer is made
again, as services do. The event is in the conversation once, its turn begins once, and all answers are equal.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Literal, cast

from proof import TOP
from proof.report import Report
from stategraph import CheckpointConfig, GraphConfig, State, StateGraph
from stategraph.stores import CheckpointStore
from stategraph.stores.sqlite import SqliteStore
from tests import postgres_server, redis_server
from tests.postgres_server import postgres_at
from tests.redis_server import redis_at

PROCESSES, DELIVERIES, EVENTS = 8, 50, 6
ROUNDS = 20  # at full length, for each store
_RUN = "chat"
_LEASE = 1.0
_OPEN: dict[str, Callable[[Path], CheckpointStore]] = {
    "sqlite": lambda folder: SqliteStore(folder / "runs.db"),
    "postgres": lambda folder: postgres_at(folder, lease=_LEASE),
    "redis": lambda folder: redis_at(folder, lease=_LEASE),
}


def chat(store: CheckpointStore, folder: Path) -> StateGraph:
    """Return a graph that answers events, and logs each call of its node."""
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def answer(state: State) -> dict[str, Any]:
        os.write(log, f"{os.getpid()}\n".encode())
        time.sleep(0.05)
        return {"answered": [*state["answered"], state["event"]]}

    checkpoint = CheckpointConfig(interval=1, preserve=True, retention="full")
    graph = StateGraph(GraphConfig("chat", checkpoint=checkpoint), store=store)
    graph.add_node("answer", answer)
    graph.add_node("close", lambda state: {"closed": len(state["answered"])})
    graph.add_edge("answer", "close")
    graph.set_entry_point("answer")
    graph.set_exit_point("close")
    graph.set_defaults({"answered": []})
    return graph


def deliver(name: str, folder: Path) -> None:
    """Answer the events that come on stdin, in a process that may be killed."""
    with _OPEN[name](folder) as store:
        graph = chat(store, folder)
        for line in sys.stdin:
            event = line.strip()
            busy: Literal["enqueue", "reject"] = "enqueue" if int(event) % 2 else "reject"
            final = graph.turn(_RUN, {"event": event}, key=event, busy=busy, wait=60)
            print(json.dumps([event, final.step, final.status, final["answered"], final["closed"]]), flush=True)


class _Round:
    """The deliveries of some events, from several processes that are killed at random."""

    def __init__(self, name: str, folder: Path, seed: int, kills: int) -> None:
        self._name, self._folder, self._left = name, folder, kills
        self._random = random.Random(seed)  # noqa: S311 - no secret
        self._at_work: list[subprocess.Popen[str]] = []
        self.kills, self.failures = 0, list[str]()
        self.answers: dict[str, list[str]] = {}

    def run(self) -> None:
        """Deliver all events; each delivery is repeated until it is answered."""
        events = [str(number) for number in range(EVENTS)] * DELIVERIES
        self._random.shuffle(events)
        shares = [events[place::PROCESSES] for place in range(PROCESSES)]
        threads = [threading.Thread(target=self._deliver, args=(share,)) for share in shares]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            time.sleep(self._random.uniform(0.01, 0.1))
            calls = (self._folder / "log").read_text().split() if (self._folder / "log").exists() else []
            if self._at_work and self._left and calls:  # not while they are only starting
                self._left -= 1
                newest = [process for process in [*self._at_work] if str(process.pid) == calls[-1]]
                struck = self._random.choice(newest or self._at_work if self._left % 2 else self._at_work)
                struck.send_signal(signal.SIGKILL)
        for thread in threads:
            thread.join()

    def _deliver(self, events: list[str]) -> None:
        process = self._process()
        for event in events:
            while not (answer := _answer(process, event)):
                if process.wait() != -signal.SIGKILL:
                    self.failures.append(f"a process ended with {process.returncode}")
                    return
                self.kills += 1
                self._at_work.remove(process)
                process = self._process()
            self.answers.setdefault(event, []).append(answer)
        self._at_work.remove(process)
        process.communicate()

    def _process(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "proof.webhooks", self._name, str(self._folder)]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, cwd=TOP, stdin=pipe, stdout=pipe, text=True)  # noqa: S603 - itself
        self._at_work.append(process)
        return process


def _answer(process: subprocess.Popen[str], event: str) -> str:
    """Return the answer of a process to an event; "" if it was killed before."""
    given, taken = cast(IO[str], process.stdin), cast(IO[str], process.stdout)
    try:
        given.write(f"{event}\n")
        given.flush()
    except BrokenPipeError:
        return ""
    line = taken.readline()
    return line if line.endswith("\n") else ""


def _tried(name: str, folder: Path, seed: int, kills: int, report: Report) -> None:
    round_ = _Round(name, folder, seed, kills)
    round_.run()
    with _OPEN[name](folder) as store:
        state, history = store.load(_RUN), store.history(_RUN)
    calls = (folder / "log").read_text().split()
    begun = sum(row.kind == "input" for row in history)
    wrong = list(round_.failures)
    if sorted(state["answered"]) != [str(number) for number in range(EVENTS)] or begun != EVENTS:
        wrong.append(f"{begun} turns began, and answered {state['answered']}")
    for event, answers in round_.answers.items():
        if len(answers) != DELIVERIES or len(set(answers)) != 1:
            wrong.append(f"event {event} has {len(answers)} answers, {len(set(answers))} of them different")
    if len(calls) > EVENTS + round_.kills:
        wrong.append(f"{len(calls)} calls of the node after {round_.kills} kills")
    report.failures += [f"{name}, seed {seed}: {what}" for what in wrong]
    report.tried.update({"events": EVENTS, "deliveries": EVENTS * DELIVERIES, "kills": round_.kills})
    report.found["equal answers"] += sum(map(len, round_.answers.values()))
    report.found["calls of the node"] += len(calls)
    report.found["calls that a kill interrupted"] += len(calls) - EVENTS


def prove(share: float, seed: int) -> list[Report]:
    """Deliver events on each store that processes share."""
    os.environ.update({postgres_server.SERVER: postgres_server.dsn(), redis_server.SERVER: redis_server.url()})
    reports = []
    for name in _OPEN:
        report = Report(f"a webhook is one turn, whichever process delivers it and is killed ({name})")
        for number in range(max(2, round(ROUNDS * share))):  # the first one without kills
            with tempfile.TemporaryDirectory(prefix="stategraph-proof-") as folder:
                _tried(name, Path(folder), seed + number, 0 if number == 0 else 12, report)
        reports.append(report)
    return reports


if __name__ == "__main__":
    deliver(sys.argv[1], Path(sys.argv[2]))
