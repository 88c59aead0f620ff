"""Rows and their measurement: every contender in turn, several rounds, medians."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pkgutil import resolve_name
from statistics import median
from traceback import print_exception

from attrs import frozen

from benchmarks import scratch

Run = Callable[[], object]
"""One execution of the work, ready to go: all that is in here is measured."""

Work = Callable[[int], Run]
"""Prepares one execution of that many steps: what happens here (building a graph, say) is not measured."""

Gauge = Callable[[Work, int], float]
"""Takes one sample of some work at that many steps, in seconds, calls or bytes."""


@frozen
class Unit:
    """How a value is shown: multiplied by `factor`, followed by `symbol`."""

    symbol: str
    factor: float = 1.0


MICROSECONDS = Unit("us", 1e6)
MILLISECONDS = Unit("ms", 1e3)
CALLS = Unit("calls")
BYTES = Unit("B")
KIBIBYTES = Unit("KiB", 1 / 1024)
MEGABYTES = Unit("MB", 1e-6)
TIMES = Unit("x")


class NotHere(Exception):  # noqa: N818 - nothing is wrong
    """Something cannot be measured on this machine; the text says what is missing."""


@frozen
class Goal:
    """The most a judged contender may take: times the floor, or in the row's unit where it is `absolute`."""

    limit: float
    absolute: bool = False


@frozen
class Contender:
    """One way to do a row's work.

    Args:
        steps: How many steps to run in place of the row's number (a slow contender needs fewer).
        rounds: The most rounds to take of it (a very slow one needs fewer).
        judged: Whether the row's goal is meant for it.
    """

    name: str
    work: Work
    steps: int | None = None
    judged: bool = False
    rounds: int | None = None


def _run_once(work: Work, steps: int) -> object:
    return work(steps)()


@frozen
class Row:
    """One line of figures: some work, its floor in plain Python, and who else does it.

    Args:
        steps: How many steps one sample runs.
        rounds: The most rounds worth taking (a count needs fewer than a time).
        compared: Whether a ratio to the floor says anything (it does not where the floor is next to nothing).
        slow: Whether it takes so long that only `--all` measures it.
        warm_up: Tries a contender before the first round; here it does the work, without the gauge.
    """

    title: str
    gauge: Gauge
    unit: Unit
    floor: Work
    contenders: Sequence[Contender]
    steps: int
    goal: Goal | None = None
    rounds: int | None = None
    compared: bool = True
    slow: bool = False
    warm_up: Callable[[Work, int], object] = _run_once

    def entrants(self) -> list[Contender]:
        """The floor first, then the contenders."""
        return [Contender("floor", self.floor), *self.contenders]


@frozen
class Effort:
    """How long to measure: the rounds of a row, and what its steps are divided by."""

    rounds: int = 11
    divisor: int = 1

    def rounds_of(self, row: Row, contender: Contender) -> int:
        """The rounds to take of this contender."""
        return min(self.rounds, row.rounds or self.rounds, contender.rounds or self.rounds)

    def steps_of(self, row: Row, contender: Contender) -> int:
        """The steps one sample of this contender runs."""
        return max(1, (contender.steps or row.steps) // self.divisor)


@frozen
class Figure:
    """The result of a contender in a row; `value` and `ratio` are None where there is nothing to show."""

    contender: Contender
    value: float | None = None
    ratio: float | None = None
    met: bool | None = None
    problem: str = ""


@frozen
class Result:
    """A row and its figures, the floor's first."""

    row: Row
    figures: Sequence[Figure]


@frozen
class Named:
    """Work by its name, imported only to run it: what it takes need not be installed."""

    path: str

    def __call__(self, steps: int) -> Run:
        return work_at(self.path)(steps)


def work_at(path: str) -> Work:
    """Return the work of that name, `package.module:function`."""
    work: Work = resolve_name(path)
    return work


def peer(path: str) -> Work:
    """The work `module:function` of `benchmarks.peers`."""
    return Named(f"benchmarks.peers.{path}")


def measure(row: Row, effort: Effort) -> Result:
    """Run every entrant of the row once to warm up, then in turn for several rounds."""
    floor, *others = row.entrants()
    problems = {entrant: _warm_up(row, entrant, effort) for entrant in (floor, *others)}
    values = _medians(row, [entrant for entrant, problem in problems.items() if not problem], effort)
    figures = [
        _figure(row, entrant, values[entrant], values[floor]) if entrant in values else _gap(entrant, problem)
        for entrant, problem in problems.items()
    ]
    return Result(row, figures)


def _medians(row: Row, entrants: Sequence[Contender], effort: Effort) -> dict[Contender, float]:
    samples: dict[Contender, list[float]] = {entrant: [] for entrant in entrants}
    # Round-robin: a minute in which the machine is slow is a slow minute for everybody.
    for round_ in range(effort.rounds):
        for entrant, taken in samples.items():
            if round_ < effort.rounds_of(row, entrant):
                with scratch.sample():
                    taken.append(row.gauge(entrant.work, effort.steps_of(row, entrant)))
    return {entrant: median(taken) for entrant, taken in samples.items()}


def _warm_up(row: Row, contender: Contender, effort: Effort) -> str:
    """Run a tenth of a sample; returns why this contender cannot be measured, or nothing."""
    try:
        with scratch.sample():
            row.warm_up(contender.work, max(1, effort.steps_of(row, contender) // 10))
    except NotHere as reason:
        return str(reason)
    except ModuleNotFoundError:
        return "not installed"
    except Exception as error:  # noqa: BLE001 - one broken peer must not cost the figures of all the others
        print_exception(error)
        return f"failed: {type(error).__name__}"
    return ""


def _gap(contender: Contender, problem: str) -> Figure:
    """Return the text for a contender without a value: a goal that was not measured is not reached."""
    return Figure(contender, met=False if contender.judged else None, problem=problem)


def _figure(row: Row, contender: Contender, value: float, floor: float) -> Figure:
    ratio = value / floor if row.compared and floor else None
    return Figure(contender, value, ratio, _met(row, contender, value, ratio))


def _met(row: Row, contender: Contender, value: float, ratio: float | None) -> bool | None:
    """Whether the goal is reached, or None for a contender it is not meant for."""
    if row.goal is None or not contender.judged:
        return None
    reached = value * row.unit.factor if row.goal.absolute else ratio
    return reached is not None and reached <= row.goal.limit
