"""Items and branches that are graphs and ask people get their own answers, killed anywhere, in any order.

An answer names its question, so the proof finds one that reaches another part or a part twice.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from typing import Any

import attrs

from proof.report import Report
from stategraph import InterruptNode, MapNode, ParallelNode, State, StateGraph
from stategraph.stores import CheckpointStore, MemoryStore
from stategraph.testing import Killed, MortalStore
from tests.scenarios import DRIVERS, HOW, RUN, as_async, as_sync, make_graph

CASES = 600
"""Random runs, at full length."""


@attrs.frozen
class Case:
    """A run.

    Attributes:
        questions: The number of questions of each item.
        branches: Whether a step with two branches that ask follows.
        workers: The number of simultaneous parts.
        deaths: The write at which each process dies; the last process lives.
        drivers: The driver of each process.
        is_async: Whether the nodes are async.
        how: The configuration of checkpoints.
        order: A seed that chooses the next question to answer.
    """

    questions: tuple[int, ...]
    branches: bool
    workers: int
    deaths: tuple[int, ...]
    drivers: tuple[str, ...]
    is_async: bool
    how: str
    order: int

    @classmethod
    def chosen(cls, chance: random.Random) -> Case:
        """Return a random case."""
        deaths = tuple(chance.randint(1, 25) for _ in range(chance.randint(0, 5)))
        return cls(
            questions=tuple(chance.randint(0, 3) for _ in range(chance.randint(0, 5))),
            branches=chance.random() < 0.4,
            workers=chance.randint(1, 4),
            deaths=deaths,
            drivers=tuple(chance.choice(list(DRIVERS)) for _ in range(len(deaths) + 1)),
            is_async=chance.random() < 0.5,
            how=chance.choice(list(HOW)),
            order=chance.randrange(2**32),
        )


class _Run:
    """A run of a case.

    Attributes:
        done: How often each question was acted on.
        problems: The wrong answers.
    """

    def __init__(self, case: Case) -> None:
        self._case, self._lock = case, threading.Lock()
        self.done: Counter[str] = Counter()
        self.problems: list[str] = []

    def graph(self, store: CheckpointStore) -> StateGraph:
        """Return the graph of a process."""
        case = self._case
        nodes: dict[str, Any] = {}
        for count in sorted({*case.questions}):
            nodes[f"items-{count}"] = MapNode(
                self._asking(count, store), f"items {count}", f"done {count}", case.workers
            )
        if case.branches:
            branches: dict[str, Any] = {
                name: self._asking(count, store).as_node(outputs={name: "got"})
                for name, count in (("left", 1), ("right", 2))
            }
            branches["plain"] = lambda state: {"plain": sorted(state)[:1]}
            nodes["both"] = ParallelNode(branches, case.workers)
        nodes["end"] = lambda state: {}
        return make_graph(nodes, store=store, name="outer", preserve=True, **HOW[case.how])

    def _asking(self, count: int, store: CheckpointStore) -> StateGraph:
        """Return a graph that asks several times and checks the answers."""

        def taking(number: int) -> Any:
            def take(state: State) -> dict[str, Any]:
                meant, answer = f"{state.run_id}.{number}", state["answer"]
                with self._lock:
                    self.done[meant] += 1
                    if answer != meant:
                        self.problems.append(f"{answer} was given to {meant}")
                return {"got": [*state.get("got", ()), number], "shown": f"{state.run_id}.{number + 1}"}

            return (as_async if self._case.is_async else as_sync)(take)

        nodes: dict[str, Any] = {"begin": lambda state: {"shown": f"{state.run_id}.0", "got": []}}
        for number in range(count):
            nodes |= {f"ask {number}": InterruptNode("shown", "answer"), f"take {number}": taking(number)}
        return make_graph(nodes, store=store, name=f"asks {count} times", **HOW[self._case.how])

    def live(self) -> State:
        """Run one process after the other; return the final State."""
        kept, chance = MemoryStore(), random.Random(self._case.order)  # noqa: S311 - no secret
        for death, driver in zip((*self._case.deaths, None), self._case.drivers, strict=True):
            try:
                return self._process(MortalStore(kept, death), driver, chance)
            except Killed:
                continue
        raise AssertionError("the last process has no end")

    def _process(self, store: CheckpointStore, driver: str, chance: random.Random) -> State:
        questions = self._case.questions
        data = {f"items {count}": [{"n": n}] * questions.count(count) for n, count in enumerate({*questions})}
        graph, call = self.graph(store), DRIVERS[driver]
        state = call(graph, "run", State(data, run_id=RUN))
        while state.pause is not None:
            pause = chance.choice(state.pause.each)
            state = call(graph, "resume", RUN, {"answer": pause.value}, pause=pause)
        return state


def problems_of(case: Case, report: Report) -> list[str]:
    """Return the problems of a run."""
    run = _Run(case)
    final = run.live()
    problems = run.problems
    for count in {*case.questions}:
        got = [list(item["got"]) for item in final[f"done {count}"]]
        if got != [list(range(count))] * case.questions.count(count):
            problems.append(f"items of {count} questions ended with {got}")
    if case.branches and (list(final["left"]), list(final["right"])) != ([0], [0, 1]):
        problems.append(f"the branches ended with {final['left']} and {final['right']}")
    expected = sum(case.questions) + (3 if case.branches else 0)
    repeated = sum(run.done.values()) - len(run.done)
    if len(run.done) != expected:
        problems.append(f"{len(run.done)} questions were answered, of {expected}")
    if repeated > len(case.deaths) * _at_stake(case):
        problems.append(f"{repeated} answers were acted on again, after {len(case.deaths)} deaths")
    report.tried.update({"runs": 1, "processes that died": len(case.deaths), "answers": expected})
    report.found.update({"answers that were acted on again after a death": repeated})
    return problems


def _at_stake(case: Case) -> float:
    """Return how many answers a death may undo: the latest one, or all that are not saved yet."""
    return 1 if HOW[case.how].get("durability", "sync") == "sync" else float("inf")


def prove(share: float, first_seed: int) -> list[Report]:
    """Try random runs; return one report."""
    report = Report("a part that is a graph gets the answers that are meant for it, each once")
    for seed in range(first_seed, first_seed + max(20, round(CASES * share))):
        case = Case.chosen(random.Random(seed))  # noqa: S311 - no secret
        report.failures += [f"seed {seed}: {problem} ({case})" for problem in problems_of(case, report)]
    return [report]
