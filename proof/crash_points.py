"""Kill the process, or let the disk fail, at every point where a store changes a file.

After each fault the store opens in a new process and has every acknowledged save exactly. An error reaches the caller
as an error of stategraph, nothing hangs, and the store keeps working in the same process and in the next.
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
"""The most points that are tried in a sequence of writes to one file: SQLite grows its log with thousands of writes."""

_NOT_REACHED = "point not reached: fewer changes than before"
"""The number of changes varies, as threads share commits and random ids lie on different pages."""
_MISSED, _FEW = 0.02, 2  # the share, or the number if that is more, of points that may be missed


@attrs.frozen
class _Kind:
    """A kind of fault: its name, the fault, and the kinds of changes that it applies to."""

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
    """Try all points at share 1.0, and evenly spread ones at a smaller share."""
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
    """Yield a request for each kind of fault at each point of a script."""
    points = _points(servers, script)
    tried = _without_most_alike(points)
    for kind in _KINDS:
        for at in tried:
            if points[at - 1].kind in kind.changes:
                about = {"script": script, "fault": int(kind.fault), "at": at}
                yield {"work": "run_and_check", **about, "record": ""}


def _points(servers: Servers, script: str) -> list[Change]:
    """Return the changes of a script without faults, from the first point that is tried."""
    root, made = servers.record(script)
    armed = next(place for place, change in enumerate(made) if change.path == f"{root}/armed")
    return [change for change in made[armed + 1 :] if Path(change.path).is_relative_to(root / "store")]


def _without_most_alike(points: list[Change]) -> list[int]:
    """Return the points to try, counted from 1."""
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
