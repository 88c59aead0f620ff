"""Trials of owners: frozen, killed and woken, with clocks that are off; sweepers against each other."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import IO, Any, cast

import attrs

from proof import TOP
from proof.report import Report
from proof.serving.owner import IN_DOUBT, graph_of
from proof.serving.server import Options, Server
from proof.workers import limited
from stategraph import CheckpointStore, State
from stategraph.errors import RunBusyError

LEASE = 1.5  # seconds
TAKEOVER = LEASE + 2.0  # and from then on, when a run is in other hands at the latest
TOGETHER = 5  # runs of a process
_HOURS = (-1, 0, 1)


@attrs.define
class Process:
    """A process of another machine.

    Attributes:
        process: The process.
        name: Its name.
    """

    process: subprocess.Popen[str]
    name: str

    @classmethod
    def start(
        cls, server: Server, options: Options, name: str, run_ids: list[str], *, hours: int, is_elsewhere: bool
    ) -> Process:
        """Start a process that owns the runs or, without any, sweeps when `tell` is called."""
        about: dict[str, Any] = {"server": server.kind, "options": options, "name": name, "run_ids": run_ids}
        about |= {"hours": hours, "is_elsewhere": is_elsewhere}
        command = [sys.executable, "-m", "proof.serving.owner", json.dumps(about)]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        return cls(subprocess.Popen(command, cwd=TOP, **pipes), name)  # noqa: S603 - ours

    def tell(self) -> None:
        """Let it continue."""
        stdin = cast(IO[str], self.process.stdin)
        stdin.write("\n")
        stdin.flush()

    def ended(self) -> dict[str, str]:
        """Wait for its end; return the outcome of each run."""
        said = self.process.communicate()[0].splitlines()
        return dict(line.split() for line in said if " " in line)


# --------------------------------------------------------------------------- frozen and killed


def struck(server: Server, count: int, seed: int) -> Report:
    """Freeze or kill owners, take their runs over, and wake them."""
    title = "the run of an owner that is frozen or killed is free within its lease and 2 s, and stays intact"
    report = Report(f"{server.kind}: {title}")
    choice = random.Random(f"struck {seed}")  # noqa: S311 - no secret
    options = server.place() | {"lease": LEASE}
    with closing(server.open(options, pool=TOGETHER)) as store:
        for number in range(max(2, count // TOGETHER)):
            how = (signal.SIGSTOP, signal.SIGKILL)[number % 2]
            run_ids = [f"run-{number}-{place}" for place in range(TOGETHER)]
            hours, is_elsewhere = choice.choice(_HOURS), how is signal.SIGSTOP or choice.random() < 0.5
            about: dict[str, Any] = {"hours": hours, "is_elsewhere": is_elsewhere}
            with limited(90):
                owner = Process.start(server, options, f"owner-{number}", run_ids, **about)
                wrong = _strike(store, owner, run_ids, how, TAKEOVER if is_elsewhere else 2.0, report)
            if hours:
                report.tried[f"with a clock {hours:+} h off"] += TOGETHER
            report.failures += [f"{owner.name} ({how.name}, {about}): {one}" for one in wrong]
    return report


def _strike(
    store: CheckpointStore, owner: Process, run_ids: list[str], how: signal.Signals, most: float, report: Report
) -> list[str]:
    """Freeze or kill an owner and continue its runs; return the problems."""
    _wait_for_steps(store, run_ids)
    wrong = _not_busy(store, run_ids[0])
    owner.process.send_signal(how)
    began = time.monotonic()
    with ThreadPoolExecutor(TOGETHER) as threads:
        taken = list(threads.map(lambda run_id: _taken_over(store, run_id, began), run_ids))
    if how is signal.SIGSTOP:
        owner.process.send_signal(signal.SIGCONT)
    ends = owner.ended()
    report.tried["frozen and woken" if how is signal.SIGSTOP else "killed"] += len(run_ids)
    for run_id, (state, took) in zip(run_ids, taken, strict=True):
        if took > most:
            wrong.append(f"{run_id} was taken over after {took:.1f} s")
        report.found["runs that were in doubt"] += ends.get(run_id) == IN_DOUBT
        if how is signal.SIGSTOP and ends.get(run_id) not in ("RunLostError", IN_DOUBT):
            wrong.append(f"the owner of {run_id} got {ends.get(run_id)}")
        if store.load(run_id) != state:
            wrong.append(f"{run_id} was written over: {dict(store.load(run_id))}")
        if sum(state["made"].values()) != state.step - 1:
            wrong.append(f"{run_id}: steps were lost or made twice: {dict(state['made'])}, step {state.step}")
    longest = "tenths of a second until all were taken over, at most"
    report.found[longest] = max(report.found[longest], round(10 * max(took for _, took in taken)))
    return wrong


def _wait_for_steps(store: CheckpointStore, run_ids: list[str]) -> None:
    """Wait until each run has been begun."""
    while not set(run_ids) <= set(store.list()):
        time.sleep(0.05)


def _not_busy(store: CheckpointStore, run_id: str) -> list[str]:
    """Return a problem if a run with a live owner can be resumed."""
    try:
        graph_of(store, "thief").resume(run_id)
    except RunBusyError:
        return []
    return [f"{run_id} was taken from an owner that lives"]


def _taken_over(store: CheckpointStore, run_id: str, began: float) -> tuple[State, float]:
    """Continue a run once it is free; return its State, and the seconds until then."""
    graph, took = graph_of(store, "heir", steps=0, pause=0.0), 0.0
    with graph.stream_resume(run_id, wait=30) as states:
        for _ in states:
            took = took or time.monotonic() - began
    return store.load(run_id), took


# --------------------------------------------------------------------------- sweepers


def sweepers(server: Server, orphans: int, seed: int) -> Report:
    """Let six processes continue abandoned runs."""
    report = Report(f"{server.kind}: of sweepers at the same time, one goes on with each run")
    options = server.place()
    with limited(120), closing(server.open(options)) as store:
        run_ids = [f"run-{number}" for number in range(orphans)]
        for run_id in run_ids:
            with graph_of(store, "first", steps=3, pause=0.0).stream(State(run_id=run_id)) as states:
                next(states)
        swept = [
            Process.start(server, options, f"sweeper-{number}", [], hours=_HOURS[number % 3], is_elsewhere=False)
            for number in range(6)
        ]
        for one in swept:
            cast(IO[str], one.process.stdout).readline()
        for one in swept:
            one.tell()
        ends = [one.ended() for one in swept]
        times = Counter(run_id for end in ends for run_id in end)
        left = store.count(status="active")
    report.failures += [f"{run_id} was continued {times[run_id]} times" for run_id in run_ids if times[run_id] != 1]
    ended = {how for end in ends for how in end.values()}
    if ended != {"done"} or left:
        report.failures.append(f"runs ended with {ended}, and {left} are left")
    report.tried["runs"] += orphans
    report.found["sweepers that came to any"] += sum(1 for end in ends if end)
    return report
