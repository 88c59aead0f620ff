"""Nightly jobs on several workers: jobs are submitted once, and any number of processes share the work.

    python examples/nightly.py submit 2026-03-01    repeat it freely: each job of a night exists once
    python examples/nightly.py work                 in several terminals; kill them at any time
    python examples/nightly.py status

A worker runs the submitted jobs, and those that a killed worker left unfinished. It ends when no job is left.
"""

import argparse
import sqlite3
import zlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stategraph import CheckpointConfig, GraphConfig, RetryPolicy, RunBusyError, RunExistsError, State, StateGraph

Updates = dict[str, Any]

SHOPS = ("aachen", "bremen", "chemnitz", "dresden", "essen", "freiburg", "gera", "halle")


def collect(state: State) -> Updates:
    """Node: return the sales of a shop, computed from its name and the date."""
    seed = zlib.crc32(f"{state['shop']} {state['night']}".encode())
    return {"sales": [(seed >> shift) % 500 for shift in range(0, 24, 2)]}


def check(state: State) -> Updates:
    """Node: leave out impossible sales."""
    return {"sales": tuple(amount for amount in state["sales"] if amount < 480)}


def book(state: State) -> Updates:
    """Node: write the sales to the ledger.

    A crash may come after that and before the step is saved: then it is done again, and changes nothing.
    """
    with sqlite3.connect(state["ledger"], timeout=30) as ledger:
        ledger.execute("CREATE TABLE IF NOT EXISTS booked (shop TEXT, night TEXT, total INTEGER, UNIQUE (shop, night))")
        values = (state["shop"], state["night"], sum(state["sales"]))
        ledger.execute("INSERT INTO booked VALUES (?, ?, ?) ON CONFLICT DO NOTHING", values)
    ledger.close()
    return {"total": values[2]}


def night_graph(folder: Path = Path()) -> StateGraph:
    """Return the graph of one job: collect -> check -> book. Completed jobs are kept, so that none runs twice."""
    options = {"path": str(folder / "jobs.db")}
    checkpoint = CheckpointConfig(store="sqlite", interval=1, preserve=True, options=options)
    graph = StateGraph(GraphConfig(name="nightly", checkpoint=checkpoint))
    graph.add_sequence(collect, check)
    graph.add_node("book", book, retry=RetryPolicy(max_attempts=3, retry_on=sqlite3.OperationalError))
    graph.add_edge("check", "book")
    graph.set_entry_point("collect")
    graph.set_exit_point("book")
    return graph


def submit(graph: StateGraph, folder: Path, night: str, shops: Iterable[str] = SHOPS) -> None:
    """Submit the jobs of a night that do not exist yet."""
    for shop in shops:
        data = {"shop": shop, "night": night, "ledger": str(folder / "ledger.db")}
        try:
            graph.submit(State(data, run_id=f"{night}:{shop}"), labels={"night": night})
        except (RunBusyError, RunExistsError):  # a worker runs it, or has run it
            continue
    print(f"{night}: {graph.store.count(labels={'night': night})} jobs")


def work(graph: StateGraph) -> None:
    """Run jobs without an owner until none is left."""
    for job in graph.recover():
        print(f"{job.run_id}: {job.error or (job.state and job.state.get('total'))}", flush=True)


def status(graph: StateGraph) -> None:
    """Print the status of the jobs."""
    for (night, how), count in sorted(Counter((run.labels["night"], str(run.status)) for run in _runs(graph)).items()):
        print(f"{night}: {count} {how}")


def _runs(graph: StateGraph) -> Iterable[Any]:
    return graph.store.iter_runs(graph=graph.name)


def main() -> None:
    """Run the command that was given."""
    parser = argparse.ArgumentParser(description="Nightly jobs over several workers.")
    parser.add_argument("--folder", type=Path, default=Path())
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("submit").add_argument("night")
    commands.add_parser("work")
    commands.add_parser("status")
    given = parser.parse_args()
    graph = night_graph(given.folder)
    with graph.store:
        if given.command == "submit":
            submit(graph, given.folder, given.night)
        else:
            {"work": work, "status": status}[given.command](graph)


if __name__ == "__main__":
    main()
