"""DBOSRunner takes over runs of dead workers, and turns keep errors exactly."""

from __future__ import annotations

import base64
import json
import sqlite3
import threading
from contextlib import closing, suppress
from datetime import UTC, datetime

import attrs
import pytest
from dbos import DBOS

from stategraph import (
    AnswerError,
    CheckpointError,
    CheckpointNotFoundError,
    ExecutionError,
    GraphMismatchError,
    Owner,
    Pause,
    RunBusyError,
    RunCancelledError,
    RunLostError,
    SchemaError,
    State,
    UnknownNameError,
)
from stategraph._dbos import workers as worker_module
from stategraph._dbos.orders import Codec
from stategraph.dbos import DBOSRunner
from stategraph.stores import register_serializer
from stategraph.stores.serializers import Serializer
from tests.dbos_worker import Scene, wait_until

pytestmark = [pytest.mark.filterwarnings("default::ResourceWarning")]
LONG = 60.0  # seconds for a test that would never end


@pytest.fixture
def scene(tmp_path):
    """Graphs over a database of their own."""
    scene = Scene(tmp_path)
    yield scene
    scene.store.close()


def kept(scene, query, *values):
    """Return what DBOS keeps."""
    with closing(sqlite3.connect(f"{scene.folder}/runs.db-dbos", timeout=30)) as connection:
        return connection.execute(query, values).fetchall()


# --------------------------------------------------------------------------- data that a store encrypts


class Reversed(Serializer):
    """Reverses bytes, in place of a cipher."""

    def dumps(self, plain):
        return json.dumps(plain).encode()[::-1]

    def loads(self, payload):
        return json.loads(payload[::-1])


def everything(scene):
    """Return all that DBOS keeps, decoded."""
    tables = [name for (name,) in kept(scene, "SELECT name FROM sqlite_master WHERE type = 'table'")]
    for value in (value for table in tables for row in kept(scene, f'SELECT * FROM "{table}"') for value in row):
        with suppress(ValueError, TypeError):
            yield base64.b64decode(value, validate=True)
        yield str(value).encode()


def test_data_that_the_store_encrypts_is_not_plain_in_dbos(tmp_path):
    """Start States, answers and final States go through the serializer of the store; errors show no parameters."""
    register_serializer("reversed", Reversed())
    scene, secret = Scene(tmp_path, serializer="reversed"), "4000-1234-5678"
    with closing(scene.store), scene.runner() as runner:
        final = runner.start(scene.brief, State({"card": secret}, run_id="brief")).result(LONG)
        runner.start(scene.asks, State({"card": secret}, run_id="asks")).result(LONG)
        answered = runner.answer("asks", {"decision": secret}).result(LONG)

        assert (final["card"], answered["decision"]) == (secret, secret)
        found = b"\n".join(everything(scene))
        assert b"brief#1" in found
        assert secret.encode() not in found
        assert secret[::-1].encode() in found

        kept(scene, "ALTER TABLE workflow_status RENAME TO elsewhere")
        try:
            with pytest.raises(Exception, match="hidden due to hide_parameters"):
                runner.start(scene.brief, State({"card": secret}, run_id="late"))
        finally:
            kept(scene, "ALTER TABLE elsewhere RENAME TO workflow_status")


# --------------------------------------------------------------------------- runs of dead workers


def test_a_run_that_was_to_be_deleted_is_deleted_by_the_next_worker(scene, monkeypatch):
    """The next worker deletes a run whose worker died between its completion in DBOS and the deletion."""
    with monkeypatch.context() as patched, scene.runner() as runner:
        patched.setattr(worker_module, "forget", lambda order, graphs: None)
        runner.start(scene.brief, State(run_id="run")).result(LONG)
        scene.store.save(State(run_id="by-hand", graph="brief", step=1, status="completed"))
    assert scene.store.list() == ["by-hand", "run"]

    with scene.runner():
        wait_until(lambda: scene.store.list() == ["by-hand"], "the run is deleted")


def test_a_run_that_is_taken_over_ends_its_turn(scene):
    """It is no worker that has taken it: the error shows."""
    with scene.runner() as runner:
        scene.hold("run")
        handle = runner.start(scene.work, State(run_id="run"))
        scene.wait_for("run b")
        scene.store.delete("run", take_over=True)
        scene.let_go("run")

        with pytest.raises(RunLostError):
            handle.result(LONG)

    assert scene.store.list() == []


def test_a_turn_that_is_cancelled_in_dbos_stops(scene):
    """A turn that is cancelled in DBOS stops before its next node, and the run can be resumed."""
    with scene.runner(lapse=1.0) as runner:
        scene.hold("run")
        handle = runner.start(scene.work, State(run_id="run"))
        scene.wait_for("run b")
        DBOS.cancel_workflow(handle.id)
        worker = runner._worker
        wait_until(lambda: all(cancel.is_set() for cancel in worker._active), "the worker notices")
        scene.let_go("run")
        with pytest.raises(RunCancelledError):
            handle.result(LONG)
        wait_until(lambda: not worker.active, "the turn is over")
        assert scene.notes("run") == ["run a", "run b"]

        assert runner.resume("run").result(LONG)["b"] == 1


def test_a_run_at_work_by_hand_is_waited_for(scene):
    """The turn waits for a call that owns the run, and completes it afterwards."""
    with scene.runner() as runner:
        scene.hold("run")
        by_hand = threading.Thread(target=scene.work.execute, args=[State(run_id="run")])
        by_hand.start()
        scene.wait_for("run b")
        worker = runner._worker
        checked, is_dead = [], worker._fleet.is_dead

        def note(owner):
            checked.append(owner)
            return is_dead(owner)

        worker._fleet.is_dead = note
        handle = runner.start(scene.work, State(run_id="run"))
        wait_until(lambda: len(checked) > 1, "it is delivered, and looks again and again who owns the run")
        scene.let_go("run")
        by_hand.join()

        assert handle.result(LONG) == scene.store.load("run")

    assert len(scene.notes("run")) == 3


def test_a_node_that_does_not_end_does_not_keep_the_runner_open(scene):
    """Closing gives the turn of the node back, and the next worker waits for the run."""
    runner = scene.runner().launch()
    scene.hold("run")
    handle = runner.start(scene.work, State(run_id="run"))
    scene.wait_for("run b")

    assert runner.close(patience=0.05) is False

    assert kept(scene, "SELECT status FROM workflow_status WHERE workflow_uuid = ?", handle.id) == [("ENQUEUED",)]
    with scene.runner() as runner:
        scene.let_go("run")
        assert runner.handle("run").result(LONG)["c"] == 1


def test_workflows_of_the_user_run_beside_turns(scene):
    """Every runner that is launched after a workflow was decorated knows it."""

    @DBOS.workflow(name="twice")
    def twice(number):
        return 2 * number

    for number in range(2):
        with scene.runner() as runner:
            final = runner.start(scene.work, State(run_id=f"run-{number}"))
            assert DBOS.start_workflow(twice, number).get_result() == 2 * number
            assert final.result(LONG)["c"] == 1
    DBOS.destroy(destroy_registry=True)


# --------------------------------------------------------------------------- errors


PAUSE = Pause("why", "ask", {"a": (1,)}, "decision", datetime(2026, 1, 1, tzinfo=UTC), None, "0a1b")


@pytest.mark.parametrize(
    "error",
    [
        GraphMismatchError("run", ("it has no node 'a'",), "Say migrate."),
        AnswerError("run", PAUSE, "no answer is given"),
        RunBusyError("run", Owner("host", 5, datetime(2026, 1, 1, tzinfo=UTC))),
        UnknownNameError("graph", "wrok", ("work",)),
        SchemaError("a", "Order", "total", "an int", "a str", ("b",)),
        CheckpointNotFoundError("run", "store"),
        ExecutionError("a", State({"n": 1}, run_id="run", step=3), ("a",), "failed: ValueError: no"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_comes_back_as_it_was(error):
    """An error keeps its class, text and fields, and the run and step of its State."""
    again = Codec().deserialize(Codec().serialize(error))

    assert (type(again), str(again)) == (type(error), str(error))
    for field in attrs.fields(type(error)):
        if field.init and field.name != "state":
            assert getattr(again, field.name) == getattr(error, field.name)


def test_a_database_that_is_not_there_is_told_by_the_launch(scene):
    """The error names the database of DBOS without the password, and the next runner can be launched."""
    url = "postgresql://ada:hush@127.0.0.1:1/runs"
    with pytest.raises(CheckpointError, match=r"database of DBOS.*127\.0\.0\.1") as refused:
        DBOSRunner(scene.work, url=url).launch()
    assert "hush" not in str(refused.value)

    with scene.runner() as runner:
        assert runner.runs() == []


# --------------------------------------------------------------------------- schedules
