"""Sums of what a run spends are right to the call, wherever the run is killed.

Each call of `spend` has an amount under a name of its own. A call that returned is counted once; one that was under way
at a kill, once or not at all. A limit stops the run after at most one call of each thread.
"""

from __future__ import annotations

import os
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import attrs

from proof.children import Killer, lines_of
from proof.report import Report
from proof.workload import open_store
from stategraph import (
    CheckpointConfig,
    GraphConfig,
    LimitError,
    MapNode,
    NodeContext,
    ParallelNode,
    RetryPolicy,
    State,
    StateGraph,
)
from stategraph.config import Durability, Retention
from stategraph.errors import CheckpointNotFoundError
from stategraph.stores import CheckpointStore

KILLS = 1_000  # at full length
_PRICE = 0.1
_LIMIT = 1.5  # at first, and by how much it grows whenever it is reached
_ROUNDS = 3
_THREADS = 3
_RUN = "run"


@attrs.frozen
class Case:
    """How the run is saved."""

    durability: Durability
    interval: int
    retention: Retention


CASES = [
    Case("sync", 1, "latest"),
    Case("sync", 1, "full"),
    Case("sync", 3, "latest"),
    Case("async", 1, "latest"),
    Case("async", 1, "full"),
    Case("exit", 1, "latest"),
]


# --------------------------------------------------------------------------- the run


class _Nodes:
    """The nodes of a process, which write to a log what they spend: "b" before the call, "r" once it has returned."""

    def __init__(self, folder: Path, case: Case, store: CheckpointStore) -> None:
        self._log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._case, self._store, self._numbers = case, store, count()

    def spend(self, given: Any, context: NodeContext) -> dict[str, Any]:
        """Spend something."""
        name = f"{os.getpid()}-{next(self._numbers)}"
        os.write(self._log, f"b {name}\n".encode())  # one write: lines of other threads cannot split it
        try:
            context.spend(**{name: 1, "usd": _PRICE})
        except LimitError:
            os.write(self._log, f"r {name}\n".encode())
            raise
        os.write(self._log, f"r {name}\n".encode())
        return {}

    def fail_twice(self, given: Any, context: NodeContext) -> dict[str, Any]:
        """Spend something in three attempts, of which two fail."""
        self.spend(given, context)
        if context.attempt < 3:
            raise OSError("no connection")
        return {}

    def round(self, given: State) -> dict[str, Any]:
        """Begin a round."""
        return {"round": given.get("round", 0) + 1}

    def graph(self, name: str, nodes: dict[str, Any]) -> StateGraph:
        """Return a graph of nodes in a row."""
        case = self._case
        checkpoint = CheckpointConfig(
            interval=case.interval, durability=case.durability, retention=case.retention, preserve=True
        )
        graph = StateGraph(GraphConfig(name, checkpoint=checkpoint), store=self._store)
        names = [*nodes]
        for node, work in nodes.items():
            retry = RetryPolicy(max_attempts=3, initial_delay=0) if work == self.fail_twice else None
            graph.add_node(node, work, retry=retry)
        for source, target in pairwise(names):
            if source == "branches":
                graph.add_edge(source, "round", lambda state: state["round"] < _ROUNDS)
            graph.add_edge(source, target)
        graph.set_entry_point(names[0])
        graph.set_exit_point(names[-1])
        return graph

    def whole(self) -> StateGraph:
        """Return the graph of the run."""
        inner = self.graph("inner", {"first": self.spend, "fails": self.fail_twice})
        item = self.graph("item", {"one": self.spend, "two": self.spend})
        return self.graph(
            "spends",
            {
                "round": self.round,
                "alone": self.spend,
                "fails": self.fail_twice,
                "nested": inner.as_node(outputs={}),
                "items": MapNode(self.spend, "all", "done", _THREADS),
                "graphs": MapNode(item.as_node(outputs={}), "all", "made", _THREADS),
                "branches": ParallelNode({"left": self.spend, "right": self.spend}),
                "end": self.spend,
            },
        )


def live(folder: Path, case: Case) -> None:
    """Run or resume the run to its end, in a process that may be killed."""
    with open_store(folder) as store:
        graph = _Nodes(folder, case, store).whole()
        limit = _LIMIT * (1 + _spent(store).get("usd", 0) // _LIMIT)
        while True:
            try:
                graph.run(State({"all": [{"n": 1}, {"n": 2}, {"n": 3}, {"n": 4}]}, run_id=_RUN), limits={"usd": limit})
            except LimitError as error:
                over = error.spent["usd"] - limit
                # Another process may have spent in the step under way before the limit began to grow.
                if over < -1e-9 or (over > _THREADS * _PRICE and limit > error.state.spent.get("usd", 0) + _LIMIT):
                    raise AssertionError(f"the limit is {limit}: {error}") from error
                limit += _LIMIT
            else:
                return


def _spent(store: CheckpointStore) -> dict[str, float]:
    try:
        return dict(store.load(_RUN).spent)
    except CheckpointNotFoundError:
        return {}


# --------------------------------------------------------------------------- killing it


class _Killer(Killer):
    """Kills runs of one case, and compares their sums with the log."""

    def life(self, folder: Path) -> bool:
        """Run a process for a while; return whether the run has ended."""
        before, lines = len(_log(folder)), self.random.randint(0, 40)
        return self.lives(
            lambda: live(folder, self.case),
            lambda: self.kills > 0 and len(_log(folder)) >= before + lines,
            moment=self.random.uniform(0, 0.004),
        )

    def compare(self, folder: Path) -> None:
        """Check that what returned is counted once, and what did not at most once."""
        log = _log(folder)
        begun, returned = ({name for kind, name in log if kind == which} for which in "br")
        with open_store(folder) as store:
            state, left = store.load(_RUN), store.entries(_RUN)
        counted = {name: number for name, number in state.spent.items() if name != "usd"}
        if state.status != "completed" or left:
            self.fail(f"the run is {state.status}, and {len(left)} entries are left")
        if not returned <= counted.keys() <= begun or set(counted.values()) != {1}:
            lost, twice = returned - counted.keys(), [name for name, number in counted.items() if number != 1]
            self.fail(f"lost: {sorted(lost)[:5]}; twice: {twice[:5]}; unknown: {sorted(counted.keys() - begun)[:5]}")
        if state.spent["usd"] != round(_PRICE * len(counted), 6):
            self.fail(f"{len(counted)} calls at {_PRICE} are not {state.spent['usd']}")
        self.report.tried["runs"] += 1
        self.report.found["calls that returned, counted once"] += len(returned)
        self.report.found["calls under way at a kill, counted"] += len(counted.keys() - returned)
        self.report.found["calls under way at a kill, not counted"] += len(begun - counted.keys())


def _log(folder: Path) -> list[tuple[str, str]]:
    """Return what was written of each call, in all lives."""
    return [(line[0], line[2:]) for line in lines_of(folder / "log")]


def prove(share: float, seed: int) -> list[Report]:
    """Kill runs of every case."""
    title = "what a run spends is counted once, wherever it is killed, and limits stop it"
    return _Killer.prove(title, max(1, round(KILLS * share)), CASES, seed)
