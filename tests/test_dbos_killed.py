"""Other workers continue the runs of killed and frozen workers of DBOSRunner, and repeat no saved step."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

from stategraph import RunStatus, State
from tests.dbos_worker import Scene, wait_until

pytestmark = pytest.mark.filterwarnings("default::ResourceWarning")  # DBOS leaves connections to the collection
LONG = 300.0  # seconds for a test that would never end


class Workers:
    """Processes that perform turns, and this one, which only orders them."""

    def __init__(self, folder, dsn):
        self.scene = Scene(folder, dsn)
        self.processes = []

    def start(self, habit=""):
        """Start a worker, and wait until it works."""
        command = [sys.executable, "-m", "tests.dbos_worker", str(self.scene.folder), self.scene.dsn or "", str(habit)]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
        self.processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        return process

    def end(self, process):
        """End a worker in order."""
        process.communicate(timeout=LONG)

    def close(self):
        for process in self.processes:
            process.kill()
            self.end(process)
        self.scene.store.close()


@pytest.fixture
def workers(request, tmp_path_factory):
    """No workers yet, over databases of their own, which are SQLite where a test asks for nothing else."""
    dsn = None
    if getattr(request, "param", "sqlite") == "postgres":
        from tests.postgres_server import dsn as server

        dsn = server()
    workers = Workers(tmp_path_factory.mktemp("killed"), dsn)
    yield workers
    workers.close()


@pytest.mark.parametrize("workers", ["postgres"], indirect=True)
def test_another_worker_completes_the_runs_of_a_killed_one(workers):
    """Another worker completes all runs, repeats only the running steps, and keeps answers."""
    scene = workers.scene
    victim = workers.start()
    with scene.runner().launch(work=False) as runner:
        pause = runner.start(scene.asks, State(run_id="asked")).result(LONG).pause
        scene.hold("asked")
        answered = runner.answer("asked", {"decision": "yes"}, pause=pause)
        scene.wait_for("asked b")
        survivor = workers.start()
        handles = [
            runner.start(scene.work, State({"seconds": 0.05}, run_id=f"run-{number:02}")) for number in range(12)
        ]
        wait_until(lambda: notes_of(scene, victim.pid) > 6, "the victim works")
        os.kill(victim.pid, signal.SIGKILL)
        scene.let_go("asked")

        finals = [handle.result(LONG) for handle in [answered, *handles]]

    assert {final.status for final in finals} == {RunStatus.COMPLETED}
    assert finals[0]["decision"] == "yes"
    assert all(final[node] == 1 for final in finals for node in "abc")
    times = Counter(scene.notes())
    assert times["asked b"] == 2
    for text in [text for text, done in times.items() if done > 1]:
        pids = [int(line.split()[-1]) for line in scene.lines() if line.startswith(f"{text} ")]
        assert pids == [victim.pid, survivor.pid], text


def notes_of(scene, pid):
    """Return how many notes a process has made."""
    return sum(line.endswith(f" {pid}") for line in scene.lines())


@pytest.mark.parametrize("workers", ["postgres"], indirect=True)
def test_a_frozen_worker_writes_nothing_after_it_was_taken_for_dead(workers):
    """It wakes up in the middle of a node; what that returns is not saved, and it makes no further step."""
    scene = workers.scene
    frozen = workers.start()
    with scene.runner().launch(work=False) as runner:
        scene.hold("run")
        handle = runner.start(scene.work, State(run_id="run"))
        scene.wait_for("run b")
        os.kill(frozen.pid, signal.SIGSTOP)
        other = workers.start()
        scene.wait_for("run b", times=2)
        scene.let_go("run")
        final = handle.result(LONG)

        os.kill(frozen.pid, signal.SIGCONT)
        workers.end(frozen)

    assert scene.store.load("run") == final
    assert [line.rpartition(" ")[::2] for line in scene.lines()] == [
        ("run a", str(frozen.pid)),
        ("run b", str(frozen.pid)),
        ("run b", str(other.pid)),
        ("run c", str(other.pid)),
    ]


def test_a_worker_that_dies_after_the_last_save_has_done_it_all(workers):
    """DBOS has the turn done once more; no node runs again, whether runs are preserved or not."""
    scene = workers.scene
    dying = workers.start(habit=2)
    with scene.runner().launch(work=False) as runner:
        handles = [runner.start(graph, State(run_id=graph.name)) for graph in (scene.work, scene.brief)]
        assert dying.wait(LONG) == -signal.SIGKILL
        assert scene.store.load("brief").status is RunStatus.COMPLETED
        assert {handle.status for handle in handles} == {"PENDING"}

        workers.start()
        finals = [handle.result(LONG) for handle in handles]
        wait_until(lambda: scene.store.list() == ["work"], "runs without preserve are deleted")

    assert [final["c"] for final in finals] == [1, 1]
    assert len(scene.lines()) == 6


def test_a_worker_that_ends_in_order_gives_back_what_it_has(workers):
    """Other workers get it at once, before they notice that the worker has ended."""
    scene = workers.scene
    scene.hold("run")
    with scene.runner(lapse=3600.0) as runner:
        handle = runner.start(scene.work, State(run_id="run"))
        scene.wait_for("run b")
        threading.Timer(0.2, scene.let_go, ["run"]).start()
    assert scene.store.load("run").step == 2

    with scene.runner(lapse=3600.0) as runner:
        final = runner.handle("run").result(LONG)

    assert (handle.id, final.status) == ("run#1", RunStatus.COMPLETED)
    assert scene.notes() == ["run a", "run b", "run c"]
