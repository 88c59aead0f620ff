"""A node's rows and the State of its step are one commit: processes that write both are killed at random."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import tempfile
import time
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import attrs

from proof.children import forked
from proof.report import Report
from proof.stores import STORES
from stategraph import (
    CheckpointConfig,
    CheckpointNotFoundError,
    GraphConfig,
    NodeContext,
    RunCompleteError,
    State,
    StateGraph,
)
from stategraph.config import Durability
from stategraph.policies import RetryPolicy
from stategraph.stores import CheckpointStore, PostgresStore, SqliteStore

KILLS = 1_000  # at full length, over all cases
STEPS = 40
_RUN = "run"
_ROWS = "SELECT n FROM own_rows WHERE store = '{}' ORDER BY n"
_TABLE = "CREATE TABLE IF NOT EXISTS own_rows (store TEXT, n INTEGER)"


@attrs.frozen
class Case:
    """A store, a driver, and a durability."""

    store: str
    is_async: bool
    durability: Durability


_WAYS: list[tuple[bool, Durability]] = [(False, "sync"), (True, "async"), (False, "exit"), (True, "sync")]
CASES = [Case(store, is_async, durability) for store in ("sqlite", "postgres") for is_async, durability in _WAYS]


def _write(table: str, state: State, context: NodeContext) -> dict[str, Any]:
    """Write the number of this step; the first attempt of some steps fails when it has."""
    context.connection.execute(f"INSERT INTO own_rows VALUES ('{table}', {context.step})")  # noqa: S608 - a folder of ours
    if context.attempt == 1 and context.step % 5 == 0:
        raise ValueError("after it has written")
    return {"done": context.step}


def _graph(case: Case, store: CheckpointStore, table: str) -> StateGraph:
    checkpoint = CheckpointConfig(interval=1, preserve=True, durability=case.durability)
    graph = StateGraph(GraphConfig("own", checkpoint=checkpoint), store=store)

    async def write(state: State, context: NodeContext) -> dict[str, Any]:
        return _write(table, state, context)

    retry = RetryPolicy(max_attempts=2, initial_delay=0.0)
    graph.add_node("write", write if case.is_async else partial(_write, table), retry=retry)
    graph.add_node("end", lambda state: {})
    graph.add_edge("write", "write", lambda state: state["done"] < STEPS)
    graph.add_edge("write", "end")
    graph.set_entry_point("write")
    graph.set_exit_point("end")
    return graph


def _go_on(case: Case, store: CheckpointStore, table: str) -> None:
    """Begin or continue the run until it is complete."""
    graph = _graph(case, store, table)
    with suppress(RunCompleteError):  # it was killed after its last save
        if _RUN in store.list():
            resumed = graph.aresume(_RUN, take_over=True) if case.is_async else graph.resume(_RUN, take_over=True)
        else:
            resumed = graph.aexecute(State(run_id=_RUN)) if case.is_async else graph.execute(State(run_id=_RUN))
        if not isinstance(resumed, State):
            asyncio.run(resumed)


@attrs.define
class _Killer:
    case: Case
    kills: int
    seed: int
    report: Report = attrs.field(factory=lambda: Report(""))

    def run(self) -> Report:
        chance = random.Random(self.seed)  # noqa: S311 - not secret
        while self.report.found["killed"] < self.kills and not self.report.failures:
            with tempfile.TemporaryDirectory() as folder:
                self._one_run(Path(folder), chance)
        return self.report

    def _one_run(self, folder: Path, chance: random.Random) -> None:
        with closing(STORES[self.case.store](folder)) as store:
            reopen = _opener(store, folder)
            _alone(store, _TABLE)
        table = folder.name
        is_over = False
        while not is_over:
            child = forked(lambda: _go_on(self.case, reopen(), table))
            is_over = self._killed(child, chance)
            with closing(reopen()) as store:
                self._compare(store, table, is_over=is_over)
        self.report.tried["runs"] += 1

    def _killed(self, child: int, chance: random.Random) -> bool:
        """Kill a process after a while; return whether it has ended by itself."""
        if self.report.found["killed"] < self.kills:
            time.sleep(chance.uniform(0.02, 0.2))
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            self.report.found["killed"] += 1
            return False
        if os.WEXITSTATUS(status):
            self.report.failures.append(f"{self.case}, seed {self.seed}: a process ended in an error")
        return True

    def _compare(self, store: CheckpointStore, table: str, *, is_over: bool) -> None:
        """Check that the rows are those of the saved steps."""
        while True:  # a server may still commit for a killed process
            rows = _alone(store, _ROWS.format(table))
            try:
                done = store.load(_RUN).get("done", 0)
            except CheckpointNotFoundError:
                done = 0
            if rows == _alone(store, _ROWS.format(table)):
                break
        if rows != [*range(1, done + 1)] or (is_over and done != STEPS):
            self.report.failures.append(f"{self.case}, seed {self.seed}: the State knows {done} steps, the rows {rows}")
        self.report.found["compared"] += 1


def _opener(store: CheckpointStore, folder: Path) -> Any:
    if isinstance(store, PostgresStore):
        from tests.postgres_server import dsn  # imported when used: it starts a server

        return partial(PostgresStore, dsn(), schema=store._schema)
    return partial(SqliteStore, store.path)  # type: ignore[attr-defined]


def _alone(store: CheckpointStore, statement: str) -> list[int]:
    """Run a statement in a node of a run of its own; return the numbers that it finds."""
    found: list[int] = []

    def node(state: State, context: NodeContext) -> dict[str, Any]:
        cursor = context.connection.execute(statement)
        found.extend(n for (n,) in (cursor.fetchall() if cursor.description else ()))
        return {}

    graph = StateGraph("alone", store=store)
    graph.add_node("node", node)
    graph.set_entry_point("node")
    graph.set_exit_point("node")
    graph.execute(State())
    return found


def prove(share: float, seed: int) -> list[Report]:
    """Kill writing processes of each case."""
    whole = Report("what a node writes to its own tables and the State of its step are saved together, or neither is")
    for number, case in enumerate(CASES):
        kills = max(1, round(KILLS * share / len(CASES)))
        whole.add(_Killer(case, kills, seed + number).run())
    return [whole]
