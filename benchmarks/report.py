"""The results as text: one table, aligned or in Markdown, and a line about the machine."""

from __future__ import annotations

import os
import platform
import sqlite3
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version

from benchmarks import scratch
from benchmarks.measure import Figure, Goal, Result, Row, Unit

HEADINGS = ("work", "contender", "median", "x floor", "goal", "")
LEFT_ALIGNED = 2

LIBRARIES = (
    "durable-stategraph", "attrs", "structlog", "ormsgpack",
    "langgraph", "langgraph-checkpoint-sqlite", "apache-burr", "pydantic-graph", "dbos",
)  # fmt: skip

Cells = Sequence[str]


def aligned(results: Iterable[Result]) -> str:
    """The table in columns, a blank line before each row of figures."""
    groups: list[list[Cells]] = [[HEADINGS], *(cells_of(result) for result in results)]
    widths = [max(len(line[column]) for group in groups for line in group) for column in range(len(HEADINGS))]
    return "\n\n".join("\n".join(_padded(line, widths) for line in group) for group in groups)


def markdown(results: Iterable[Result]) -> str:
    """The table in Markdown."""
    rule = ("---",) * LEFT_ALIGNED + ("---:",) * (len(HEADINGS) - LEFT_ALIGNED)
    lines: list[Cells] = [HEADINGS, rule, *(line for result in results for line in cells_of(result))]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def machine() -> str:
    """Return the machine of the figures: cores, file system, and the versions of Python, SQLite and every library."""
    versions = ", ".join(f"{name} {_version(name)}" for name in LIBRARIES)
    return (
        f"{_cores()} cores ({platform.machine()}, {platform.system()}), {scratch.file_system()}, "
        f"{platform.python_implementation()} {platform.python_version()}, SQLite {sqlite3.sqlite_version}; {versions}"
    )


def cells_of(result: Result) -> list[Cells]:
    """The lines of one row of figures; its title and goal are in the first."""
    lines = [_line(result.row, figure) for figure in result.figures]
    first = (result.row.title, *lines[0][1:4], _goal(result.row.goal, result.row.unit), "")
    return [first, *lines[1:]]


def _line(row: Row, figure: Figure) -> Cells:
    value = figure.problem if figure.value is None else quantity(figure.value, row.unit)
    ratio = "" if figure.ratio is None else _digits(figure.ratio)
    mark = {None: "", True: "pass", False: "MISS"}[figure.met]
    return ("", figure.contender.name, value, ratio, "", mark)


def _goal(goal: Goal | None, unit: Unit) -> str:
    if goal is None:
        return ""
    return f"<= {goal.limit:g} {unit.symbol if goal.absolute else 'x floor'}"


def quantity(value: float, unit: Unit) -> str:
    """Return a value as it is shown."""
    return f"{_digits(value * unit.factor)} {unit.symbol}"


def _digits(number: float) -> str:
    """Three significant digits, and never more than two decimals."""
    before_the_point = len(str(abs(int(number))))
    return f"{number:,.{max(0, 3 - before_the_point)}f}"


def _padded(line: Cells, widths: Sequence[int]) -> str:
    cells = [
        cell.ljust(width) if column < LEFT_ALIGNED else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(line, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()


def _cores() -> int:
    """The cores this process may use, which can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "(not installed)"
