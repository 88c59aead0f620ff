"""Workers that survive their nodes: ends of threads and processes, runs that are refused, and health checks."""

import contextlib
import json
import os
import re
import signal
import socket
import threading
import time
import urllib.request
from typing import Any

import pytest

from stategraph import State
from stategraph.cli._health import Health
from stategraph.stores import SqliteStore
from tests.cli.shop import process, started

pytestmark = pytest.mark.timeout(120)

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

    def test_a_run_that_fails_twice_is_reported_twice(self, jobs, tmp_path):
        """A worker does not mistake a new failure of a run for one that it has reported."""
        graph = jobs["make"]()
        graph.submit(State({"how": "exit"}, run_id="one"))
        with started("work", "jobs:graph", "--every", "0.1", "--json", cwd=tmp_path) as worker:
            first = json.loads(worker.stdout.readline())
            graph.store.delete("one")
            graph.submit(State({"how": "exit"}, run_id="one"))

            assert json.loads(worker.stdout.readline()) == first
        graph.store.close()
        assert first["status"] == "failed"

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


def test_a_worker_sleeps_until_a_run_is_due(jobs, tmp_path):
    """A worker goes on with a run at its time, however rarely it searches for runs; `runs --overdue` lists it then."""
    graph = jobs["graph"]
    graph.submit(State({"how": "fine"}, run_id="later"), at=6)
    graph.submit(State({"how": "fine"}, run_id="tomorrow"), at=86_400)
    assert json.loads(process("--store", "runs.db", "--json", "runs", "--overdue", cwd=tmp_path).out)["runs"] == []

    with started("work", "jobs:graph", "--every", "3600", cwd=tmp_path) as worker:
        while graph.store.load("later").status != "completed":
            assert worker.poll() is None
            time.sleep(0.1)
        worker.send_signal(signal.SIGTERM)
        worker.wait()
    assert graph.store.load("tomorrow").step == 0
    graph.store.close()


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


def refuse(jobs):
    """Submit a run that does not fit the graph of the program, and return its id."""
    other = jobs["make"]()
    other.add_node("gone", dict)
    other.add_edge("start", "gone", lambda state: True)
    other.set_exit_point("gone")
    submit(other, misfit={"how": "fine"})
    return "misfit"


class TestHealth:
    """A worker answers health checks, and says in its log what it does, when it ends and why."""

    def test_a_port(self, jobs, tmp_path):
        """A worker with --health PORT answers in JSON: alive, its last sweep, runs under way, refused runs."""
        refuse(jobs)
        submit(jobs["make"](), slow={"how": "fine", "seconds": 60})
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]

        with started("work", "jobs:graph", "--concurrency", "2", "--health", str(port), cwd=tmp_path) as worker:
            at_work = {"run_id": "slow", "node": "act"}
            health = until(
                lambda: asked(port), lambda found: any(at_work.items() <= run.items() for run in found["at_work"])
            )
            assert health["alive"]
            assert not health["stopping"]
            health = until(lambda: asked(port), lambda found: found["last_sweep"] and found["refused"])
            assert [each["run_id"] for each in health["refused"]] == ["misfit"]
            assert "does not fit" in health["refused"][0]["error"]
            worker.send_signal(signal.SIGTERM)
            until(lambda: asked(port), lambda found: found["stopping"])

    def test_a_file(self, jobs, tmp_path):
        """A worker with --health FILE keeps the file whole, and removes it at its end."""
        refuse(jobs)
        file = tmp_path / "health.json"
        with started("work", "jobs:graph", "--health", str(file), "--log", "lines", cwd=tmp_path) as worker:
            health = until(lambda: json.loads(file.read_text()), lambda found: found["refused"])
            assert (health["alive"], health["at_work"]) == (True, [])
            worker.send_signal(signal.SIGTERM)
            _, log = worker.communicate(timeout=300)

        assert (worker.returncode, file.exists()) == (0, False)
        lines = log.splitlines()
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00 info +began .*", lines[0])
        assert " warning run misfit: " in log
        assert lines[-1].endswith("ended: it was stopped by SIGTERM")

    def test_a_file_that_is_being_written(self, tmp_path):
        """Its last version does not come back after the end of the worker."""
        begins = threading.Event()

        def look():
            if threading.current_thread() is not threading.main_thread():
                begins.set()
                time.sleep(0.2)
            return {"alive": True}

        before, file = threading.enumerate(), tmp_path / "health.json"
        health = Health(str(file), look)
        assert begins.wait(300)
        health.end()

        for thread in set(threading.enumerate()) - {*before}:
            thread.join(300)
        assert [*tmp_path.iterdir()] == []

    def test_a_log_in_json(self, jobs, tmp_path):
        """With --log json, each line of stderr is a JSON document; a run that is refused is active, and no success."""
        refuse(jobs)
        submit(jobs["make"](), fine={"how": "fine"})

        ended = process("work", "jobs:graph", "--once", "--json", "--log", "json", cwd=tmp_path)

        log = [json.loads(line) for line in ended.err.splitlines()]
        assert all({"time", "level", "message"} <= line.keys() for line in log)
        assert [(line["level"], line.get("run_id")) for line in log[1:-1]] == [("warning", "misfit"), ("info", "fine")]
        message = "ended: no run is left to continue; runs left alone, because they do not fit the graph: 1"
        assert (log[-1]["message"], log[-1]["exit"], ended.code) == (message, 1, 1)
        told = {line["run_id"]: (line["status"], line["error"]) for line in map(json.loads, ended.out.splitlines())}
        assert told["fine"] == ("completed", None)
        assert told["misfit"][0] == "active"
        assert "does not fit" in told["misfit"][1]

    def test_runs_of_another_module(self, jobs, tmp_path):
        """They are left alone, which is no failure: the health lists them, and the last line counts them."""
        (tmp_path / "moved.py").write_text(PROGRAM, encoding="utf-8")
        submit(jobs["graph"], one={"how": "fine"}, two={"how": "fine"})

        with started("work", "moved:graph", "--health", "health.json", cwd=tmp_path) as worker:
            file = tmp_path / "health.json"
            health = until(lambda: json.loads(file.read_text()), lambda found: len(found["refused"]) == 2)
            assert {each["run_id"] for each in health["refused"]} == {"one", "two"}
            assert "of module 'jobs' began it" in health["refused"][0]["error"]
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(60) == 0
        ended = process("work", "moved:graph", "--once", cwd=tmp_path)

        assert (ended.code, ended.out) == (0, "")
        assert "; runs left alone, because they do not fit the graph: 2\n" in ended.err

    def test_versions_that_it_does_not_serve(self, jobs, tmp_path):
        """With --serves, a worker leaves runs of other versions alone; `doctor` lists those that no process serves."""
        submit(jobs["graph"], old={"how": "fine"})
        newer = PROGRAM.replace('("jobs", ', '("jobs", version=2, ')
        (tmp_path / "jobs.py").write_text(newer, encoding="utf-8")
        space: dict[str, Any] = {"__name__": "jobs"}
        exec(newer, space)
        submit(space["graph"], new={"how": "fine"})
        serves = ("--serves", "2,3")

        unserved = process("doctor", "--graph", "jobs:graph", *serves, "--json", cwd=tmp_path)
        ended = process("work", "jobs:graph", "--once", *serves, cwd=tmp_path)

        assert (unserved.code, [each["run_id"] for each in json.loads(unserved.out)["refused"]]) == (5, ["old"])
        assert (ended.code, "left alone, because they do not fit the graph: 1\n" in ended.err) == (0, True)
        assert {run_id: str(state.status) for run_id, state in states().items()} == {
            "old": "active",
            "new": "completed",
        }
        wrong = [
            ("work", "jobs:graph", "--serves", "new"),
            ("work", "jobs:graph", "--serves", "0"),
            ("doctor", *serves),
        ]
        assert [process(*each, cwd=tmp_path).code for each in wrong] == [2, 2, 2]

    def test_a_place_that_cannot_be_used(self, jobs, tmp_path):
        """The worker does not begin."""
        submit(jobs["graph"], one={"how": "fine"})
        for place in ("0.0.0.0.0:1", "127.0.0.1:99999", "no/such/folder/health"):
            ended = process("work", "jobs:graph", "--once", "--health", place, cwd=tmp_path)
            assert (ended.code, ended.out, place in ended.err) == (2, "", True)


def asked(port):
    """Return the health of a worker."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/") as answer:
        assert answer.headers["Content-Type"] == "application/json"
        return json.load(answer)


def until(look, is_enough):
    """Look until that is enough; return it."""
    while True:
        with contextlib.suppress(OSError):
            found = look()
            if is_enough(found):
                return found
        time.sleep(0.05)
