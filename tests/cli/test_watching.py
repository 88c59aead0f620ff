"""The commands that take their time: watch, work and doctor."""

import json
import signal
import sqlite3
import subprocess
import sys
import time

import pytest

from stategraph.stores import SqliteStore
from tests.cli.shop import call, environment, listing, process, started
from tests.postgres_proxy import folder_of
from tests.postgres_server import dsn


def submitted(*states):
    """Submit letters, each with these data; their ids are letter-0, letter-1, ..."""
    program = (
        "import json, sys\nfrom app import letters\nfrom stategraph import State\ngraph = letters()\n"
        "for number, data in enumerate(json.loads(sys.argv[1])):\n"
        "    graph.submit(State(data, run_id=f'letter-{number}'))\ngraph.store.close()"
    )
    subprocess.run([sys.executable, "-c", program, json.dumps(states)], env=environment(), check=True, timeout=300)


# --------------------------------------------------------------------------- watch


def until_owned(run_id):
    with SqliteStore("letters.db", read_only=True) as store:
        while store.owner(run_id) is None:
            time.sleep(0.02)


def watched(shop, make_it_go_on):
    """Return the exit code of a watcher of the run "left", and the kinds of the rows that it prints."""
    with started("--store", "runs.db", "watch", "left", "--every", "0.05", "--json", cwd=shop) as watcher:
        rows = [json.loads(watcher.stdout.readline())]
        make_it_go_on()
        rows += map(json.loads, watcher.stdout)  # communicate() would miss the lines that are buffered
        watcher.wait(300)
    return watcher.returncode, [row["kind"] for row in rows]


def test_a_run_is_watched_until_it_pauses_and_until_it_ends(shop):
    """The watcher prints each row of another process once; its exit code gives the status of the run."""
    begun = ["input", "step", "pause"]

    assert watched(shop, lambda: process("resume", "left", "--graph", "app:graph", cwd=shop)) == (4, begun)
    assert process("answer", "left", "1", "--graph", "app:graph", cwd=shop).code == 0
    assert watched(shop, lambda: None) == (0, [*begun, "answer", "step", "step", "end"])


def test_a_watcher_says_that_the_process_at_work_was_killed(shop):
    """It keeps watching, since another process may resume the run."""
    submitted({"seconds": 60})
    watch = ["--store", "letters.db", "watch", "letter-0", "--every", "0.05"]
    with started("work", "app:letters", cwd=shop) as worker:
        until_owned("letter-0")
        with started(*watch, cwd=shop) as watcher:
            watcher.stdout.readline()
            worker.kill()
            printed = watcher.stderr.readline()
            assert watcher.poll() is None

    way_out = "stategraph resume letter-0 --graph MODULE:NAME"
    assert printed == f"left unfinished: no process is at work on it; to continue: {way_out}\n"


# --------------------------------------------------------------------------- work


def test_work_continues_submitted_runs(shop):
    """`work` continues each submitted run once and several at a time; a failure does not stop the others."""
    submitted({}, {}, {"bad": True}, {}, {}, {})

    done = process("work", "app:letters", "--concurrency", "4", "--once", "--json", cwd=shop)

    printed = {line["run_id"]: line for line in map(json.loads, done.out.splitlines())}
    assert done.code == 1, done.err
    assert len(done.out.splitlines()) == len(printed) == 6
    assert {run_id for run_id, line in printed.items() if line["status"] == "failed"} == {"letter-2"}
    assert "no ink" in printed["letter-2"]["error"]
    assert len(call("--store", "letters.db", "runs", "--status", "completed").out.splitlines()) == 5
    again = process("work", "app:letters", "--once", cwd=shop)
    assert (again.code, again.out) == (0, "")


def test_work_takes_up_runs_of_a_dead_worker_and_stops_at_a_signal(shop):
    """A signal stops the worker after its current run, a second one at once; saved steps stay saved."""
    submitted({"seconds": 60})
    with started("work", "app:letters", cwd=shop):
        until_owned("letter-0")
    with SqliteStore("letters.db") as opened:
        opened.rollback("letter-0", 0)
        state = opened.load("letter-0")
        opened.amend(state.set("seconds", 1.0))

    with started("work", "app:letters", "--every", "0.05", cwd=shop) as worker:
        until_owned("letter-0")
        worker.send_signal(signal.SIGTERM)
        out, err = worker.communicate(timeout=300)
    assert (worker.returncode, out) == (0, "letter-0  completed\n")
    assert err.startswith("stopping: ")

    with started("work", "app:letters", "--every", "0.05", cwd=shop) as submitted_again:
        with SqliteStore("letters.db") as opened:
            opened.fork("letter-0", "slow", 0)
            opened.amend(opened.load("slow").set("seconds", 60))
        until_owned("slow")
        submitted_again.send_signal(signal.SIGINT)
        time.sleep(0.3)
        submitted_again.send_signal(signal.SIGINT)
        assert submitted_again.wait(300) == 130


def test_a_run_at_work_has_an_owner_and_is_busy(shop):
    """Commands say who owns it, and which node is under way; they leave it alone, unless they take it over."""
    submitted({"seconds": 60})
    letters, busy = ["--store", "letters.db"], " owns it; wait until it is done "
    with started("work", "app:letters", cwd=shop) as worker:
        until_owned("letter-0")
        while not (owner := json.loads(call(*letters, "show", "letter-0", "--json").out)["owner"])["node"]:
            time.sleep(0.02)
        assert (owner["pid"], owner["node"]) == (worker.pid, "write")
        assert owner["node_since"] >= owner["since"]
        assert "under way: write, for " in call(*letters, "show", "letter-0").out
        assert f"at work: process {worker.pid} on " in call(*letters, "runs", "--owned").out

        for change in (["delete", "letter-0", "--yes"], ["rollback", "letter-0", "--step", "0", "--yes"]):
            refused = call(*letters, *change)
            assert (refused.code, busy in refused.err) == (5, True)
        resumed = process("resume", "letter-0", "--graph", "app:letters", cwd=shop)
        assert (resumed.code, busy in resumed.err) == (5, True)
        assert json.loads(call(*letters, "cancel", "letter-0", "--json").out)["at_once"] is False
        assert call(*letters, "delete", "letter-0", "--yes", "--take-over").code == 0
    assert call(*letters, "runs", "--owned").err == "no runs\n"


_STEPS = """
import os, pathlib, sys, time
from stategraph import CheckpointConfig, GraphConfig, State, StateGraph

where = {"dsn": "RUNS_DSN", "patience": 5} if "RUNS_DSN" in os.environ else {"path": "steps.db"}
kind = "postgres" if "RUNS_DSN" in os.environ else "sqlite"
keeps = {"preserve": True, "retention": "full", "interval": 1}
checkpoint = CheckpointConfig(store=kind, options=where, **keeps)
graph = StateGraph(GraphConfig("steps", observer="noop", checkpoint=checkpoint))

def slow(state):
    pathlib.Path("begun").touch()
    while not pathlib.Path("go on").exists():
        time.sleep(0.01)
    return {"slow": True}

graph.add_node("first", lambda state: {"first": True})
graph.add_node("slow", slow)
graph.add_node("last", lambda state: {"last": True})
graph.add_edge("first", "slow")
graph.add_edge("slow", "last")
graph.set_entry_point("first")
graph.set_exit_point("last")
if __name__ == "__main__":
    graph.submit(State(run_id="a"))
    graph.store.close()
"""


@pytest.fixture
def steps(shop):
    """Return the folder of a graph whose second node waits for the file "go on", with a run of it submitted."""
    (shop / "steps.py").write_text(_STEPS, encoding="utf-8")
    subprocess.run([sys.executable, "steps.py"], cwd=shop, env=environment(), check=True, timeout=300)
    return shop


def until_there(path):
    until = time.monotonic() + 300
    while not path.exists():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.parametrize("arguments", [["cancel", "a"], ["rollback", "a", "--step", "0", "--yes", "--take-over"]])
def test_a_run_that_others_have_taken_is_lost_and_no_failure(steps, arguments):
    """The worker reports a run that was taken over as lost, and a cancelled one as cancelled."""
    with started("work", "steps:graph", "--once", "--json", cwd=steps) as worker:
        until_there(steps / "begun")
        assert call("--store", "steps.db", *arguments).code == 0
        if arguments[0] == "rollback":  # without the cancellation this worker would continue it
            assert call("--store", "steps.db", "cancel", "a").code == 0
        (steps / "go on").touch()
        out, err = worker.communicate(timeout=300)

    (line,) = map(json.loads, out.splitlines())
    expected = ("cancelled", 1) if arguments[0] == "cancel" else ("lost", 0)
    assert (line["status"], worker.returncode) == expected, err


def test_a_worker_that_is_stopped_leaves_runs_that_take_longer_than_its_grace(steps):
    """The worker saves the current node, begins no other and frees the run, which the next worker continues."""
    with started("work", "steps:graph", "--grace", "0", "--json", cwd=steps) as worker:
        until_there(steps / "begun")
        worker.send_signal(signal.SIGTERM)
        assert worker.stderr.readline().startswith("stopping: ")
        time.sleep(0.5)  # until the grace is over
        (steps / "go on").touch()
        out, _ = worker.communicate(timeout=300)

    assert worker.returncode == 0
    assert json.loads(out) == {"run_id": "a", "status": "active", "step": 2, "error": None}
    left = json.loads(call("--store", "steps.db", "show", "a", "--json").out)
    assert (left["status"], left["step"], left["node"], left["owner"]) == ("active", 2, "slow", None)
    again = process("work", "steps:graph", "--once", cwd=steps)
    assert (again.code, again.out) == (0, "a  completed\n")


@pytest.fixture
def away(steps, monkeypatch):
    """Return the socket folder of a database that is not there yet."""
    folder = steps / "away"
    monkeypatch.setenv("RUNS_DSN", f"postgresql://postgres:@/postgres?host={folder}")
    return folder


def test_a_worker_waits_for_a_database_that_is_down(steps, away):
    """It says so, and works once it is up."""
    (steps / "go on").touch()
    with started("work", "steps:graph", "--every", "0.05", cwd=steps) as worker:
        while "trying again in " not in worker.stderr.readline():
            assert worker.poll() is None
        away.symlink_to(folder_of(dsn()))
        subprocess.run([sys.executable, "steps.py"], cwd=steps, env=environment(), check=True, timeout=300)
        assert worker.stdout.readline() == "a  completed\n"
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(300) == 0


def test_a_worker_that_the_database_refuses(steps, monkeypatch):
    """It says so and ends, because waiting does not help: a wrong name or password."""
    monkeypatch.setenv("RUNS_DSN", dsn().replace("postgres:@", "stranger:@"))
    refused = process("work", "steps:graph", cwd=steps)

    assert (refused.code, refused.out) == (1, "")
    assert 'role "stranger" does not exist' in refused.err


# --------------------------------------------------------------------------- doctor


def test_doctor_counts_what_there_is(store, shop):
    """It reads everything, and changes nothing."""
    before = listing(shop)

    printed = json.loads(call("doctor", "--json").out)

    assert printed["runs"] == {"active": 1, "completed": 1, "failed": 1, "paused": 1}
    assert printed["checkpoints"] == 17
    assert (printed["damaged"], printed["unreadable"]) == ([], [])
    assert (
        "4 runs (1 active, 1 completed, 1 failed, 1 paused), 0 nested in them\n17 checkpoints\n0 damaged\n"
        in call("doctor").out
    )
    assert listing(shop) == before


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE checkpoint SET payload = x'00' || substr(payload, 2) WHERE step = 1 AND kind = 'step'",
        "UPDATE checkpoint SET took_ns = 5 WHERE step = 1 AND kind = 'step'",
        "DELETE FROM checkpoint WHERE kind = 'answer'",
        "UPDATE run SET status = 'completed' WHERE status = 'paused'",
        "UPDATE run SET labels = 'no' WHERE run_id = 'done'",
    ],
)
def test_doctor_says_what_is_damaged(shop, change):
    """A byte, a column, a row that is missing: in whatever run, and though its newest State may be as it was."""
    database = sqlite3.connect("runs.db")
    with database:
        database.execute(change)
    database.close()

    result = call("--store", "runs.db", "doctor")
    printed = json.loads(call("--store", "runs.db", "doctor", "--json").out)

    assert result.code == 6
    assert printed["damaged"] != []
    for damage in printed["damaged"]:
        assert f"{damage['run_id']}: " in result.out


def test_doctor_checks_the_runs_of_a_graph(shop):
    """With a graph, it lists the runs that could not go on there; the exit code is for a pipeline."""
    (shop / "later.py").write_text(
        "import app\nfrom stategraph import StateGraph\ngraph = StateGraph(app.graph.config)\n"
        "for node, function in app.graph.nodes.items():\n"
        "    graph.add_node(node.replace('approve', 'allow'), function)\n"
        "graph.add_sequence('price', 'allow', 'ship')\n"
        "graph.set_entry_point('price')\ngraph.set_exit_point('ship')\ngraph.moved_from('app')\n"
    )

    fits = call("doctor", "--graph", "app:graph")
    refused = call("--store", "runs.db", "doctor", "--graph", "later:graph")
    printed = json.loads(call("doctor", "--graph", "later:graph", "--json").out)

    assert (fits.code, "3 runs of graph orders are not complete\n0 of them cannot go on" in fits.out) == (0, True)
    assert (refused.code, "--migrate approve=..." in refused.out) == (5, True)
    assert (printed["graph"], printed["runs"]) == ("orders", 3)
    assert {run["run_id"] for run in printed["refused"]} == {"left", "waiting", "burnt"}


def saved_by_plain(shop):
    """Save a run in other.db with a serializer that the module "plain" registers."""
    module = """
import json
from stategraph.stores import Serializer, register_serializer
class Plain(Serializer):
    dumps = staticmethod(lambda plain: json.dumps(plain).encode())
    loads = staticmethod(json.loads)
register_serializer("plain", Plain())
"""
    (shop / "plain.py").write_text(module, encoding="utf-8")
    program = """
import plain
from stategraph import State
from stategraph.stores import SqliteStore
with SqliteStore("other.db", serializer="plain") as store:
    store.save(State({"n": 1}, run_id="a", step=1))
"""
    subprocess.run([sys.executable, "-c", program], cwd=shop, env=environment(), check=True, timeout=300)


def test_a_module_that_is_imported_first_makes_it_readable(shop):
    """`--import` stands before or after the command, or a variable names the module."""
    saved_by_plain(shop)
    named, show = ["--store", "other.db"], ["show", "a", "--json"]

    expected = process(*named, "--import", "plain", *show, cwd=shop)
    assert (expected.code, expected.err) == (0, "")
    assert json.loads(expected.out)["data"] == {"n": 1}
    assert process(*named, *show, "--import", "json", "--import", "plain", cwd=shop) == expected
    assert process(*named, *show, cwd=shop, STATEGRAPH_IMPORT="json plain") == expected
    assert process(*named, "--import", "plain", "export", "a", cwd=shop).code == 0
    assert process(*named, "--import", "none", *show, cwd=shop).code == 2
