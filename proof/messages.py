"""Each acknowledged message is in exactly one step, in order; and a deadline or an answer decides a pause, never both.

Eight processes send messages to one run, whose owners are killed at random. Threads answer pauses at their deadlines,
while others resume the runs.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from proof import TOP
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
_PACE = 0.02  # seconds between two messages of a sender, so that owners work in the meantime
_FEW = 500  # messages that are saved under one key
_LEAST, _MOST = 0.02, 1.0  # seconds that an owner works until it is killed


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


def send(store: CheckpointStore, name: int, count: int) -> list[tuple[int, int]]:
    """Send messages; return when each was begun and acknowledged, by the clock of the machine."""
    times = []
    for number in range(count):
        began = time.monotonic_ns()
        store.send(RUN, {"message": [name, number]})
        times.append((began, time.monotonic_ns()))
        time.sleep(_PACE)
    return times


def main(role: str, kind: str, options: str, name: str, count: str) -> None:
    """Run a process: a sender, or an owner until it is killed or has all messages."""
    store = opened(kind, json.loads(options))
    if role == "send":
        print(json.dumps(send(store, int(name), int(count))))
    else:
        print("ready", flush=True)
        graph_of(store, int(count)).resume(RUN, take_over=True)


def _process(role: str, kind: str, options: Any, name: int, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "proof.messages", role, kind, json.dumps(options), str(name), str(count)]
    return subprocess.Popen(command, cwd=TOP, stdout=subprocess.PIPE, text=True)  # noqa: S603 - itself


def _sent(kind: str, options: Any, each: int, randomness: random.Random, report: Report) -> None:
    """Send messages to a run whose owners are killed, and check where they are."""
    store, total = opened(kind, options), SENDERS * each
    graph_of(store, total).submit(State({"count": 0}, run_id=RUN))
    senders = [_process("send", kind, options, name, each) for name in range(SENDERS)]
    times: dict[int, Any] = {}
    readers = [
        threading.Thread(target=lambda name=name: times.update({name: json.loads(senders[name].communicate()[0])}))
        for name in range(SENDERS)
    ]
    for reader in readers:
        reader.start()
    while True:
        owner = _process("own", kind, options, 0, total)
        if owner.stdout is not None:
            owner.stdout.readline()
        are_sending = any(reader.is_alive() for reader in readers)
        try:
            code = owner.wait(randomness.uniform(_LEAST, _MOST) if are_sending else 300)
        except subprocess.TimeoutExpired:
            owner.kill()
            owner.communicate()
            report.found["owners killed"] += 1
            continue
        owner.communicate()
        if code == 0:
            break
        report.failures.append(f"{kind}: an owner ended with {code}")
        break
    for reader in readers:
        reader.join()
    report.tried[f"messages on {kind}"] += total
    _check(kind, store.load(RUN), times, report)


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


if __name__ == "__main__":
    main(*sys.argv[1:])
