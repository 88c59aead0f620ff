"""Graphs for the tests of DBOSRunner, whose nodes log what they do, over either pair of databases.

As a program it is a worker: ``python -m tests.dbos_worker FOLDER DSN TURNS``. It ends when its input does, or dies once
it has done so many turns.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import pytest

from stategraph import (
    CheckpointConfig,
    CheckpointStore,
    GraphConfig,
    InterruptNode,
    MapNode,
    NodeContext,
    ParallelNode,
    RetryPolicy,
    State,
    StateGraph,
    Updates,
    WaitNode,
    dbos,
)
from stategraph._dbos.workers import Worker
from stategraph.dbos import DBOSRunner, Queue
from stategraph.stores import PostgresStore, SqliteStore

LAPSE = 4.0  # seconds; on SQLite, DBOS may tell time in whole seconds
QUEUES = {
    "one": Queue(concurrency=1),
    "ten": Queue(per_worker=10),
    "few": Queue(rate=(2, 3600.0)),
    "late": Queue(concurrency=1),
}


SQLITE_SERVES = sys.version_info < (3, 12) or sqlite3.sqlite_version_info >= (3, 42)
"""Whether DBOS can keep its tables in SQLite here."""


@attrs.frozen
class Newer:
    """The schema of the graph "typed"."""

    spent: str = ""
    decision: str = ""


class Scene:
    """Graphs over a store, a place where nodes note what they do, and the runner of this process.

    Args:
        folder: Where notes and files are.
        dsn: The PostgreSQL server; None for SQLite.
        options: Options of the store in SQLite.
    """

    def __init__(self, folder: Path, dsn: str | None = None, **options: Any) -> None:
        if dsn is None and not SQLITE_SERVES:
            pytest.skip(f"DBOS takes SQLite 3.42 with this Python, and it has {sqlite3.sqlite_version}")
        self.folder, self.dsn = folder, dsn
        self.orders: dict[str, Callable[[], object]] = {}  # what the node "b" of a run does besides
        self.store: CheckpointStore
        if dsn is None:
            self.store = SqliteStore(folder / "runs.db", **options)
        else:
            self.store = PostgresStore(dsn, schema=f"runs_{folder.name.replace('-', '_')}")
        self.started: DBOSRunner  # where the tests share one
        self.work = self.chain("work")
        self.brief = self.chain("brief", preserve=False)
        self.asks = self.chain("asks", question=True)
        self.waits_first = self.chain("waits_first", waits=True)
        self.rich = self.make_rich()
        self.typed = self.make_typed()

    def runner(self, *more: StateGraph, **options: Any) -> DBOSRunner:
        """Return a runner for all of the graphs."""
        config: dict[str, Any] = {"notification_listener_polling_interval_sec": 0.05}  # how long closing it may take
        if self.dsn is not None:
            options["url"] = self.dsn
            config["dbos_system_schema"] = f"dbos_{self.folder.name.replace('-', '_')}"
        options = {"config": config, "queues": QUEUES, "poll": 0.05, "lapse": LAPSE, **options}
        graphs = (self.work, self.brief, self.asks, self.waits_first, self.rich, self.typed)
        return DBOSRunner(*graphs, *more, **options)

    # ------------------------------------------------------------------ notes

    def note(self, text: str) -> None:
        """Note something, in one line with the process."""
        with (self.folder / "notes").open("a", encoding="utf-8") as file:
            file.write(f"{text} {os.getpid()}\n")

    def notes(self, run_id: str = "") -> list[str]:
        """Return what nodes of a run have noted, without the processes."""
        return [text.rpartition(" ")[0] for text in self.lines() if text.startswith(f"{run_id} " if run_id else "")]

    def lines(self) -> list[str]:
        """Return all notes, with the processes."""
        path = self.folder / "notes"
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    def wait_for(self, text: str, *, times: int = 1) -> None:
        """Wait until something is noted."""
        wait_until(lambda: sum(text in line for line in self.lines()) >= times, text)

    def hold(self, run_id: str) -> None:
        """Have the node "b" of a run wait once it has begun."""
        (self.folder / f"hold-{run_id}").touch()

    def let_go(self, run_id: str) -> None:
        """Let a held run continue."""
        (self.folder / f"hold-{run_id}").unlink()

    # ------------------------------------------------------------------ graphs

    def step(self, state: State, context: NodeContext) -> dict[str, Any]:
        """Do what the State says that this node is to do."""
        self.note(f"{context.run_id} {context.node}")
        if context.node == "b":
            self.orders.get(context.run_id, bool)()
        if context.node == state.get("fails"):
            raise ValueError("on request")
        while context.node == "b" and (self.folder / f"hold-{context.run_id}").exists():
            time.sleep(0.01)
        time.sleep(state.get("seconds", 0.0))
        return {context.node: state.get(context.node, 0) + 1}

    def chain(
        self, name: str, *, question: bool = False, waits: bool = False, last: str = "c", **checkpoint: Any
    ) -> StateGraph:
        """Return a graph of three nodes, perhaps with a question or a wait before the second."""
        checkpoint = {"preserve": True, **checkpoint}
        graph = StateGraph(
            GraphConfig(name, observer="noop", checkpoint=CheckpointConfig(interval=1, **checkpoint)), store=self.store
        )
        names = ["a", *(["ask"] if question else []), *(["wait"] if waits else []), "b", last]
        for node in names:
            others = {"ask": InterruptNode("a", "decision"), "wait": WaitNode(1.0)}
            graph.add_node(node, others.get(node, self.step))
        for pair in pairwise(names):
            graph.add_edge(*pair)
        graph.set_entry_point("a")
        graph.set_exit_point(last)
        return graph

    def make_typed(self) -> StateGraph:
        """Return a graph that asks before anything has written data."""
        config = GraphConfig("typed", observer="noop", checkpoint=CheckpointConfig(interval=1, preserve=True))
        graph = StateGraph(config, store=self.store, schema=Newer)
        graph.add_node("ask", InterruptNode(None, "decision"))
        graph.set_entry_point("ask")
        graph.set_exit_point("ask")
        return graph

    def make_rich(self) -> StateGraph:
        """Return a graph with what a turn has to carry besides plain functions."""
        config = GraphConfig("rich", observer="noop", checkpoint=CheckpointConfig(interval=1, preserve=True))
        graph = StateGraph(config, store=self.store)
        graph.add_node("waits", self.waits, timeout=30.0)
        graph.add_node("tries", self.tries, retry=RetryPolicy(max_attempts=3, initial_delay=0))
        graph.add_node("streams", self.streams)
        graph.add_node("branches", ParallelNode({"left": lambda state: {"l": 1}, "right": lambda state: {"r": 2}}))
        graph.add_node("threads", MapNode(square, over="numbers", into="squares"))
        graph.add_node("processes", MapNode(square, over="squares", into="fourth", max_workers=1, processes=True))
        graph.add_node("nested", self.chain("inside").as_node())
        names = list(graph.nodes)
        for pair in pairwise(names):
            graph.add_edge(*pair)
        graph.set_entry_point(names[0])
        graph.set_exit_point(names[-1])
        return graph

    async def waits(self, state: State) -> dict[str, Any]:
        """Wait on an event loop."""
        await asyncio.sleep(0)
        return {"waited": True}

    def tries(self, state: State, context: NodeContext) -> dict[str, Any]:
        """Fail twice."""
        if context.attempt < 3:
            raise ConnectionError("once more")
        return {"tried": context.attempt}

    def streams(self, state: State) -> Iterator[Any]:
        """Emit chunks."""
        yield "one "
        yield Updates({"streamed": True})


def square(number: int) -> int:
    """Return the square; a module-level function, because another process finds it by its name."""
    return number * number


def wait_until(is_so: Any, what: str) -> None:
    """Wait until something is so. The limit is there for a test that would never end."""
    until = time.monotonic() + 300
    while not is_so():
        assert time.monotonic() < until, what
        time.sleep(0.01)


# --------------------------------------------------------------------------- as a program


def die_when_done(turns: int) -> None:
    """Have this process die once so many turns are done, before DBOS can know of it."""
    done = threading.Barrier(turns)

    class Dying(Worker):
        def take_turn(self, id: str, kept: bytes) -> dict[str, Any]:
            super().take_turn(id, kept)
            done.wait()
            os.kill(os.getpid(), signal.SIGKILL)
            return {}

    vars(dbos)["Worker"] = Dying


def main(folder: str, dsn: str, habit: str) -> None:
    """Work until the input ends."""
    scene = Scene(Path(folder), dsn or None)
    if habit:
        die_when_done(int(habit))
    with scene.runner():
        print("ready", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
