"""Many waits are due at one time: workers that are killed, and have wrong clocks, go on with each once and never early.

``python -m proof.timers KIND PLACE NOTES BACK`` is such a worker; its clock is BACK seconds behind.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from proof import TOP
from proof.report import Report
from stategraph import CheckpointConfig, CheckpointStore, GraphConfig, State, StateGraph, WaitNode
from stategraph._sweeps import until_due
from stategraph._values import clock
from stategraph.stores import get_checkpoint_store

WAITS = {"sqlite": 10_000, "postgres": 2_000, "redis": 2_000}
WORKERS = 8
BACK = (0, 0, 0, 0, 0, 1, 2, 3600)
"""How far the clock of each worker is behind, in seconds. At least one must be right, or no one goes on."""
KILLS_EVERY = 2.0  # seconds: a worker takes as long to begin on a slow machine


def prove(share: float, seed: int) -> list[Report]:
    """Try the stores whose servers can be started here."""
    return [_proved(kind, max(100, round(most * share)), seed) for kind, most in WAITS.items()]


def _proved(kind: str, waits: int, seed: int) -> Report:
    report = Report(f"{kind}: waits that are due at one time end once and never early")
    with tempfile.TemporaryDirectory() as folder:
        place = _place(kind, Path(folder))
        due = _begin(kind, place, waits)
        kills = _work(kind, place, Path(folder), due, waits, random.Random(seed))  # noqa: S311 - no secret
        _judge(report, kind, place, Path(folder), due, kills)
        report.tried.update({"waits": waits, "kills": kills})
    return report


def _place(kind: str, folder: Path) -> str:
    """Return what an empty store is opened with, as JSON."""
    if kind == "sqlite":
        return json.dumps({"path": str(folder / "runs.db")})
    from proof.serving.server import SERVERS  # imported when used: it starts a server

    return json.dumps(SERVERS[kind]().place())


def _store(kind: str, place: str) -> CheckpointStore:
    return get_checkpoint_store(kind, **json.loads(place))


def _graph(store: CheckpointStore, notes: int | None = None) -> StateGraph:
    """Return a graph that waits, and notes the run and the true time in a file."""

    def note(state: State) -> dict[str, Any]:
        os.write(notes or 0, f"{state.run_id} {time.time_ns()}\n".encode())
        return {}

    checkpoint = CheckpointConfig(interval=1, preserve=True, retention="full")
    graph = StateGraph(GraphConfig("timers", checkpoint=checkpoint), store=store)
    graph.add_node("wait", WaitNode(until="at"))
    graph.add_node("note", note)
    graph.add_edge("wait", "note")
    graph.set_entry_point("wait")
    graph.set_exit_point("note")
    return graph


def _begin(kind: str, place: str, waits: int) -> datetime:
    """Begin runs that are due at one time; return it."""
    due = datetime.now(UTC) + timedelta(seconds=20 + waits * 0.02)
    with _store(kind, place) as store:
        states = (State({"at": due}, run_id=f"run-{number}") for number in range(waits))
        with _graph(store).run_many(states, max_workers=16) as results:
            ends = Counter(
                str(result.error or (result.state is not None and result.state.status)) for result in results
            )
    if ends != {"paused": waits}:
        raise RuntimeError(f"the runs could not begin in time: {ends}")
    return due


def _work(kind: str, place: str, folder: Path, due: datetime, waits: int, randomness: random.Random) -> int:
    """Let workers go on with the runs, and kill one now and then; return how many were killed."""

    def begin(back: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "proof.timers", kind, place, str(folder / "notes"), str(back)]
        return subprocess.Popen(command, cwd=TOP)  # noqa: S603 - itself

    workers, kills = [begin(back) for back in BACK], 0
    try:
        time.sleep(max(0.0, (due - datetime.now(UTC)).total_seconds()))
        with _store(kind, place) as store:
            while store.count(status="completed") < waits:
                time.sleep(KILLS_EVERY)
                struck = randomness.randrange(WORKERS)
                workers[struck].send_signal(signal.SIGKILL)
                workers[struck].wait()
                workers[struck] = begin(BACK[struck])
                kills += 1
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    return kills


def _judge(report: Report, kind: str, place: str, folder: Path, due: datetime, kills: int) -> None:
    notes = [line.split() for line in (folder / "notes").read_text(encoding="utf-8").splitlines()]
    late = sorted(int(at) - clock.to_ns(due) for _, at in notes)
    if late[0] < 0:
        report.failures.append(f"a run went on {-late[0] / 1e9} s early")
    again = sum(count - 1 for count in Counter(run_id for run_id, _ in notes).values())
    if again > kills:  # a node that was killed before its save runs again
        report.failures.append(f"{again} notes were made twice, with {kills} kills")
    with _store(kind, place) as store:
        for run in store.runs(limit=100_000):
            rows = [(row.step, row.kind.value) for row in store.history(run.run_id)]
            steps = [step for step, what in rows if what == "step"]
            if steps[:1] != [1] or sorted(set(steps)) != steps or rows[-1] != (2, "end"):
                report.failures.append(f"run {run.run_id} has the history {rows}")
    report.found.update({"nodes run again after a kill": again})
    report.found["ms late, of 50 % at most"] = late[len(late) // 2] // 1_000_000
    report.found["ms late, of 99 % at most"] = late[len(late) * 99 // 100] // 1_000_000


def _main(kind: str, place: str, notes: str, back: str) -> None:
    clock.now_ns = lambda: time.time_ns() - int(back) * 1_000_000_000
    with _store(kind, place) as store:
        graph = _graph(store, os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND))
        while True:
            for recovered in graph.recover():
                if recovered.error is not None:
                    raise recovered.error
            time.sleep(until_due(store, graph.name, 1.0))


if __name__ == "__main__":
    _main(*sys.argv[1:])
