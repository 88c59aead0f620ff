"""Each acknowledged message is in exactly one step, in order; and a deadline or an answer decides a pause, never both.

Eight processes send messages to one run, whose owners are killed at random. Threads answer pauses at their deadlines,
while others resume the runs.
"""

from __future__ import annotations

import json
import os
import random
import signal
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, cast

from proof.children import forked
from proof.report import Report
from proof.serving.server import SERVERS
from stategraph import (
    AnswerError,
    CheckpointStore,
    InterruptNode,
    Pause,
    RunCompleteError,
    RunStatus,
    State,
    StateGraph,
)
from stategraph.stores import SqliteStore
from tests.scenarios import RUN, in_threads, make_graph

SENDERS, MESSAGES, RACES = 8, 10_000, 1_000  # at full length
KINDS = ("sqlite", *SERVERS)
_PACE = 0.1  # seconds between two messages of a sender, so that owners work in the meantime
_FEW = 500  # messages that are saved under one key
_LEAST, _MOST = 0.02, 0.25  # seconds that an owner works until it is killed


def opened(kind: str, options: Any) -> CheckpointStore:
    """Return a store, once more each time."""
    return SqliteStore(options["path"]) if kind == "sqlite" else SERVERS[kind]().open(options)


def graph_of(store: CheckpointStore, total: int) -> StateGraph:
    """Return a graph that works until it has so many messages, which it keeps in order."""

    def keep(state: State, updates: Mapping[str, Any]) -> dict[str, Any]:
        count = state["count"]
        key = f"log-{count // _FEW}"
        return {"count": count + 1, key: [*state.get(key, ()), updates["message"]]}

    def work(state: State) -> dict[str, Any]:
        time.sleep(0.002)
        return {}

    nodes = {"work": work, "end": lambda state: {}}
    edges = [("work", "end", lambda state: state["count"] >= total), ("work", "work")]
    graph = make_graph(nodes, edges, store=store, preserve=True, max_iterations=10**9)
    graph.on_message(keep)
    return graph


# --------------------------------------------------------------------------- processes


def send(kind: str, options: Any, name: int, count: int, times: Path) -> None:
    """Send messages; write when each was begun and acknowledged, by the clock of the machine."""
    noted = []
    with opened(kind, options) as store:
        for number in range(count):
            began = time.monotonic_ns()
            store.send(RUN, {"message": [name, number]})
            noted.append((began, time.monotonic_ns()))
            time.sleep(_PACE)
    times.write_text(json.dumps(noted))


def own(kind: str, options: Any, total: int) -> None:
    """Work on the run until it has all messages."""
    with opened(kind, options) as store, suppress(RunCompleteError):  # it was killed after its last save
        graph_of(store, total).resume(RUN, take_over=True)


def _sent(kind: str, options: Any, each: int, randomness: random.Random, report: Report) -> None:
    """Send messages to a run whose owners are killed, and check where they are."""
    total = SENDERS * each
    with tempfile.TemporaryDirectory() as folder:
        with opened(kind, options) as store:  # closed before a process is forked
            graph_of(store, total).submit(State({"count": 0}, run_id=RUN))
        files = [Path(folder) / str(name) for name in range(SENDERS)]
        senders = [forked(partial(send, kind, options, name, each, file)) for name, file in enumerate(files)]
        _owned(kind, options, total, senders, randomness, report)
        times = {name: json.loads(file.read_text()) for name, file in enumerate(files) if file.exists()}
    report.tried[f"messages on {kind}"] += total
    with opened(kind, options) as store:
        _check(kind, store.load(RUN), times, report)


def _owned(kind: str, options: Any, total: int, senders: list[int], randomness: random.Random, report: Report) -> None:
    """Let owners work, one after the other, and kill each; the one after the last message ends by itself."""
    while True:
        owner = forked(partial(own, kind, options, total))
        if senders:
            time.sleep(randomness.uniform(_LEAST, _MOST))
            os.kill(owner, signal.SIGKILL)
        status = os.waitpid(owner, 0)[1]
        report.found[f"owners killed on {kind}"] += os.WIFSIGNALED(status)
        if not os.WIFSIGNALED(status):
            break
        ended = {sender: status for sender in senders for pid, status in [os.waitpid(sender, os.WNOHANG)] if pid}
        report.failures += [f"{kind}: a sender ended with {status}" for status in ended.values() if status]
        senders = [sender for sender in senders if sender not in ended]
    if status:
        report.failures.append(f"{kind}: an owner ended with {status}")
    for sender in senders:  # they have sent all, but may not have noted it
        if status := os.waitpid(sender, 0)[1]:
            report.failures.append(f"{kind}: a sender ended with {status}")


def _check(kind: str, final: State, times: dict[int, Any], report: Report) -> None:
    """Find messages that are lost, doubled or out of order."""
    logs = sorted((key for key in final if key.startswith("log-")), key=lambda key: int(key[4:]))
    taken = [tuple(message) for key in logs for message in final[key]]
    for name, sent in times.items():
        numbers = [number for sender, number in taken if sender == name]
        if numbers != [*range(len(sent))]:
            report.failures.append(f"{kind}: the messages of sender {name} are {numbers[:20]} ...")
    soonest = None
    for sender, number in reversed(taken):
        began, acknowledged = times[sender][number]
        if soonest is not None and soonest < began:
            report.failures.append(f"{kind}: message {number} of sender {sender} was taken in too early")
        soonest = acknowledged if soonest is None else min(soonest, acknowledged)
    report.found["steps" if final.status is RunStatus.COMPLETED else "incomplete runs"] += final.step


# --------------------------------------------------------------------------- deadlines


def _race(kind: str, stores: list[CheckpointStore], run_id: str, randomness: random.Random, report: Report) -> None:
    """Answer a pause at its deadline, while another call resumes the run."""
    limit = randomness.uniform(0.02, 0.05)
    nodes = {"ask": InterruptNode(None, "go", deadline=limit, otherwise="late"), "end": lambda state: {}}
    answers, resumes = (make_graph(nodes, store=store, preserve=True) for store in stores)
    paused = answers.execute(State(run_id=run_id))
    asked = cast(Pause, paused.pause)
    until, acknowledged = cast(datetime, asked.deadline).timestamp(), list[bool]()
    early = randomness.uniform(-0.004, 0.02)

    def answer() -> None:
        time.sleep(max(0.0, until - early - time.time()))
        answers.answer(run_id, "yes")
        acknowledged.append(True)

    def go_on() -> None:
        time.sleep(max(0.0, until - 0.002 - time.time()))
        for _ in range(1000):
            try:
                resumes.resume(run_id)
            except AnswerError:
                time.sleep(0.0005)
            except RunCompleteError:
                return

    raised = [error for error in in_threads(answer, go_on) if not isinstance(error, AnswerError | RunCompleteError)]
    final = stores[0].load(run_id)
    how = "answer" if acknowledged else "deadline"
    report.found[f"decided by the {how}"] += 1
    if raised or final.get("go") != ("yes" if acknowledged else "late"):
        report.failures.append(f"{kind}: {run_id}: {how}, but {final!r} has {dict(final)}; {raised}")


def prove(share: float, seed: int) -> list[Report]:
    """Send messages to killed owners, and let answers race with deadlines."""
    sent = Report("each acknowledged message is in exactly one step, in order, whenever owners are killed")
    raced = Report("the deadline decides a pause, or an answer that was acknowledged: never both, never none")
    randomness = random.Random(seed)  # noqa: S311 - no secret
    with tempfile.TemporaryDirectory() as folder:
        for kind in KINDS:
            places = [{"path": str(Path(folder) / f"{name}.db")} for name in ("sent", "raced")]
            if kind != "sqlite":
                places = [SERVERS[kind]().place() for _ in places]
            _sent(kind, places[0], max(20, round(MESSAGES * share / SENDERS)), randomness, sent)
            stores = [opened(kind, places[1]) for _ in range(2)]
            races = max(10, round(RACES * share))
            for number in range(races):
                _race(kind, stores, f"run-{number}", randomness, raced)
            raced.tried[f"races on {kind}"] += races
            for store in stores:
                store.close()
    return [sent, raced]
