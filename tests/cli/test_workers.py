"""Workers that survive their nodes: ends of threads and processes, runs that are refused, and health checks."""

import json
import os
import signal
from typing import Any

import pytest

from stategraph import State
from stategraph.stores import SqliteStore
from tests.cli.shop import process

PROGRAM = """
import os, sys, time
from stategraph import CheckpointConfig, GraphConfig, MapNode, State, StateGraph

class Panic(BaseException):
    pass

def act(state):
    how = state["how"]
    if how == "exit":
        sys.exit(3)
    if how == "panic":
        raise Panic("in the library")
    if how == "kill":
        time.sleep(0.2)
        os._exit(9)
    time.sleep(state.get("seconds", 0))
    return {"done": how}

async def aact(state):
    return act(state)

def make(checkpoint=None, node=act):
    checkpoint = CheckpointConfig(store="sqlite", preserve=True, options={"path": "runs.db"})
    graph = StateGraph(GraphConfig("jobs", observer="noop", checkpoint=checkpoint))
    graph.add_node("start", lambda state: {})
    graph.add_node("act", node)
    graph.add_edge("start", "act")
    graph.set_entry_point("start")
    graph.set_exit_point("act")
    return graph

graph = make()
"""


@pytest.fixture
def jobs(tmp_path, monkeypatch):
    """Return a module with a graph whose runs do what their States say, in the working directory."""
    (tmp_path / "jobs.py").write_text(PROGRAM, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    space: dict[str, Any] = {"__name__": "jobs"}
    exec(PROGRAM, space)
    return space


def submit(graph, **how):
    """Submit runs, named after their ids, in this order; close the store for the processes that come."""
    for run_id, data in how.items():
        graph.submit(State(data, run_id=run_id))
    graph.store.close()


def states(path="runs.db"):
    """Return the newest States of all runs."""
    with SqliteStore(path) as store:
        return {run.run_id: store.load(run.run_id) for run in store.runs()}


EXITS = {"one": {"how": "exit"}, "two": {"how": "panic"}, "three": {"how": "fine"}}


class TestNodesThatExit:
    """An exception of a node that is no Exception, such as SystemExit, fails the run, and not its worker."""

    @staticmethod
    def check(found):
        """Check what is saved of the runs."""
        assert {run_id: str(state.status) for run_id, state in found.items()} == {
            "one": "failed",
            "two": "failed",
            "three": "completed",
        }
        assert [(found[run_id].error.type, found[run_id].error.node) for run_id in ("one", "two")] == [
            ("SystemExit", "act"),
            ("Panic", "act"),
        ]
        assert found["two"].error.message == "in the library"
        assert found["one"].step == 1

    @pytest.mark.parametrize("threads", ["1", "3"])
    def test_a_worker_goes_on(self, jobs, tmp_path, threads):
        """`stategraph work` reports the runs as failed, does the others, and exits with 1."""
        submit(jobs["graph"], **EXITS)

        ended = process("work", "jobs:graph", "--once", "--json", "--concurrency", threads, cwd=tmp_path)

        assert ended.code == 1, ended.err
        told = {line["run_id"]: line["status"] for line in map(json.loads, ended.out.splitlines())}
        assert told == {"one": "failed", "two": "failed", "three": "completed"}
        self.check(states())

    @pytest.mark.parametrize("kind", ["act", "aact"])
    def test_a_sweep_goes_on(self, jobs, kind):
        """`recover` yields the failure, and continues the next run."""
        graph = jobs["make"](node=jobs[kind])
        submit(graph, **EXITS)

        results = {recovered.run_id: recovered for recovered in jobs["make"](node=jobs[kind]).recover()}

        assert "SystemExit" in str(results["one"].error)
        assert isinstance(results["one"].error.__cause__, SystemExit)
        self.check(states())

    def test_a_signal_of_the_program_stops_the_sweep(self, jobs):
        """A SystemExit that a handler of signals raises is no failure of the run: the next sweep continues it."""
        submit(jobs["graph"], one={"how": "fine"})

        def kill(state):
            os.kill(os.getpid(), signal.SIGTERM)
            return {}

        before = signal.signal(signal.SIGTERM, lambda *_: exit_now())
        try:
            with pytest.raises(SystemExit):
                list(jobs["make"](node=kill).recover())
        finally:
            signal.signal(signal.SIGTERM, before)
        assert [run.run_id for run in jobs["make"]().recover()] == ["one"]

    def test_execute_raises_it(self, jobs):
        """A program that runs a State gets the exception itself, and can resume the run."""
        graph = jobs["make"]()

        with pytest.raises(SystemExit):
            graph.execute(State({"how": "exit"}, run_id="one"))

        assert str(graph.store.load("one").status) == "active"


def exit_now():
    """Exit as a handler of signals does."""
    raise SystemExit(0)


def test_a_run_that_kills_its_process_fails_alone(jobs, tmp_path):
    """Runs that were at work beside one that kills its process are completed, however often it does."""
    innocent = {f"run-{number}": {"how": "fine", "seconds": 0.4} for number in range(3)}
    submit(
        jobs["graph"], **dict(list(innocent.items())[:3]), killer={"how": "kill"}, **dict(list(innocent.items())[3:])
    )
    work = ("work", "jobs:graph", "--once", "--concurrency", "4", "--max-recoveries", "3")

    codes = [process(*work, cwd=tmp_path).code for _ in range(5)]

    found = {run_id: str(state.status) for run_id, state in states().items()}
    assert found == {**dict.fromkeys(innocent, "completed"), "killer": "failed"}
    assert 9 in codes
