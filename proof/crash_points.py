"""Every point at which a store changes a file, as the point where the process is killed, or where the disk fails.

After each: the store opens in a fresh process; every save that was acknowledged is there and exact; an error reached
the caller, as one of stategraph; nothing hangs; and the store goes on, in the same process once the fault is over, and
in the next one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

from proof.faults.client import Servers, under_shim
from proof.faults.shim import Change, Fault
from proof.report import Report
from proof.workload import scripts

_TITLE = "acknowledged saves survive a kill or a failure at every change of a file"
_ALIKE = 60
"""Of a longer stretch of writes to one file, with no other change in between, so many are tried, evenly spread. That
shortens one thing: the growing of SQLite's log, thousands of writes of zeros when a store is opened."""

_NOT_REACHED = "point not reached: fewer changes than before"
"""Threads share more commits at one time than at another, and ids that are random lie on more pages, or on fewer."""
_MISSED, _FEW = 0.02, 2  # the share, or the number if that is more, of points that may be missed


@attrs.frozen
class _Kind:
    """One thing that can happen at a point: its name, the fault, and the kinds of changes that it can happen to."""

    name: str
    fault: Fault
    changes: str


_KINDS = (
    _Kind("kill", Fault.KILL, "WSFCTUND"),
    _Kind("kill halfway", Fault.TEAR, "W"),
    _Kind("write or other EIO once", Fault.FAIL_ONCE, "WCTUND"),
    _Kind("disk full from there on", Fault.FULL_FROM, "WCD"),
    _Kind("sync EIO once", Fault.FAIL_ONCE, "SF"),
)


def prove(share: float, seed: int) -> list[Report]:
    """Try all points at share 1.0, fewer, evenly spread, at a smaller one."""
    return under_shim(_TITLE, lambda servers: _prove(servers, share, seed))


def _prove(servers: Servers, share: float, seed: int) -> Report:
    report = Report(_TITLE)
    names = [name for name in scripts() if name != "all"]
    cases = [case for name in names for case in _cases(servers, name)]
    step = 1 / min(1.0, max(share, 1e-6))
    count = int(len(cases) / step)
    chosen = [cases[int((place + seed % 97 / 97) * step) % len(cases)] for place in range(max(1, count))]
    for request, answer in servers.ask_all(chosen):
        _judge(report, request, answer)
    missed = report.found[_NOT_REACHED]
    if missed > max(_FEW, _MISSED * len(chosen)):
        report.failures.append(f"{missed} of {len(chosen)} points were not reached")
    return report


def _cases(servers: Servers, script: str) -> Iterator[dict[str, Any]]:
    """-> a request for each kind of fault at each point of a script."""
    points = _points(servers, script)
    tried = _without_most_alike(points)
    for kind in _KINDS:
        for at in tried:
            if points[at - 1].kind in kind.changes:
                about = {"script": script, "fault": int(kind.fault), "at": at}
                yield {"work": "run_and_check", **about, "record": ""}


def _points(servers: Servers, script: str) -> list[Change]:
    """-> the changes of a script that has no faults, from where they may come."""
    root, made = servers.record(script)
    armed = next(place for place, change in enumerate(made) if change.path == f"{root}/armed")
    return [change for change in made[armed + 1 :] if Path(change.path).is_relative_to(root / "store")]


def _without_most_alike(points: list[Change]) -> list[int]:
    """-> the points to try, counted from 1."""
    tried: list[int] = []
    start = 0
    while start < len(points):
        end = start + 1
        while end < len(points) and _is_alike(points[start], points[end]):
            end += 1
        length = end - start
        kept = min(length, _ALIKE)
        tried += [start + 1 + place * length // kept for place in range(kept)]
        start = end
    return tried


def _is_alike(a: Change, b: Change) -> bool:
    return a.kind == b.kind == "W" and a.path == b.path


def _judge(report: Report, request: dict[str, Any], answer: dict[str, Any]) -> None:
    fault = Fault(request["fault"])
    wrong = list(answer["wrong"])
    if not answer["happened"] and answer["ended"] == "ended":
        report.found[_NOT_REACHED] += 1
    elif answer["ended"] != ("killed" if fault in {Fault.KILL, Fault.TEAR} else "ended"):
        wrong.append(f"the process {answer['ended']}: {answer['trace'][-300:]}")
    if fault is Fault.FAIL_ONCE:
        wrong += [f"fails though the fault is over: {problem}" for problem in answer["failed_twice"]]
    report.tried[fault.name.lower().replace("_", " ")] += 1
    report.found.update(answer["counts"])
    report.found["with nothing lost" if not wrong else "WRONG"] += 1
    if fault is Fault.FAIL_ONCE and not answer["counts"]:
        report.found["failure absorbed"] += 1
    where = f"{request['script']!r}, {fault.name} at {request['at']}"
    report.failures += [f"{where}: {problem}" for problem in wrong]
