"""DBOSRunner in one process with the real DBOS on PostgreSQL performs each order once."""

from __future__ import annotations

import base64
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime
from decimal import Decimal
from itertools import count
from typing import Any

import psycopg
import pytest

from stategraph import (
    AnswerError,
    CheckpointConfig,
    CheckpointingDisabledError,
    CheckpointNotFoundError,
    ConfigError,
    ExecutionError,
    GraphConfig,
    GraphMismatchError,
    RunBusyError,
    RunCancelledError,
    RunCompleteError,
    RunExistsError,
    RunStatus,
    State,
    StateGraph,
    UnknownNameError,
)
from stategraph.dbos import DBOSRunner, Queue
from tests.dbos_worker import Scene, wait_until
from tests.postgres_server import dsn

pytestmark = [
    pytest.mark.filterwarnings("default::ResourceWarning"),  # DBOS leaves connections to the garbage collection
]
NUMBERS = count()
LONG = 300.0  # seconds for a test that would never end


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """Graphs, and a runner that works."""
    scene = Scene(tmp_path_factory.mktemp("dbos"), dsn())
    with scene.runner() as scene.started:
        yield scene
    scene.store.close()


@pytest.fixture
def runner(scene):
    """The runner."""
    return scene.started


@pytest.fixture
def run_id():
    """An id that no other run has."""
    return f"run-{next(NUMBERS)}"


# --------------------------------------------------------------------------- runs


VALUES = {
    "when": datetime(2026, 1, 1, tzinfo=UTC),
    "price": Decimal("1.10"),
    "both": (1, [2.0, {"three"}], b"\0"),
    "big": 2**70,
}


def test_a_run_is_done_with_the_exact_types_it_was_given(scene, runner, run_id):
    """The result of the handle equals the saved State, with exact types."""
    final = runner.start(scene.work, State(VALUES, run_id=run_id), labels={"team": "red"}).result(LONG)

    assert final == scene.store.load(run_id)
    assert final.status is RunStatus.COMPLETED
    assert {key: final[key] for key in VALUES} == {key: State(VALUES)[key] for key in VALUES}
    assert repr([final[key] for key in VALUES]) == repr([*State(VALUES).values()])
    assert final.labels == {"team": "red"}
    assert scene.notes(run_id) == [f"{run_id} a", f"{run_id} b", f"{run_id} c"]


def test_a_run_that_is_ordered_again_is_done_once(scene, runner, run_id):
    """A second order with the same run id runs nothing; with other data it is refused."""
    state = State({"n": 1}, run_id=run_id)
    handles = [runner.start(graph, state) for graph in (scene.work, "work")]

    assert handles[0].result(LONG) == handles[1].result(LONG) == runner.handle(run_id).result(LONG)
    assert len(scene.notes(run_id)) == 3
    with pytest.raises(RunExistsError, match=r"database of DBOS: it has other data.* choose another run_id"):
        runner.start(scene.work, State({"n": 1.0}, run_id=run_id))
    with pytest.raises(RunExistsError):
        runner.start(scene.asks, state)


def test_a_run_that_waits_goes_on_when_it_is_due(scene, runner, run_id):
    """The runner orders the next turn of a run that is due, once, and not before its time."""
    waiting = runner.start(scene.waits_first, State({}, run_id=run_id)).result(LONG)
    assert waiting.status is RunStatus.PAUSED
    assert scene.notes(run_id) == [f"{run_id} a"]

    wait_until(lambda: scene.store.load(run_id).status is RunStatus.COMPLETED, "the run goes on")

    assert runner.handle(run_id).result(LONG).status is RunStatus.COMPLETED
    assert runner.handle(run_id).number == 2
    assert scene.notes(run_id) == [f"{run_id} a", f"{run_id} b", f"{run_id} c"]


def test_a_run_that_is_not_preserved_goes_once_it_is_done(scene, runner, run_id):
    """The turn keeps the final State of a deleted run, and the run does not begin again."""
    state = State(VALUES, run_id=run_id)
    final = runner.start(scene.brief, state).result(LONG)
    wait_until(lambda: run_id not in scene.store.list(), "the run is deleted")

    again = runner.start(scene.brief, state).result(LONG)

    assert again == final
    assert again["price"] == Decimal("1.10")
    assert len(scene.notes(run_id)) == 3
    for late in (runner.resume, runner.cancel):
        with pytest.raises(RunCompleteError):
            late(run_id)


def test_all_that_graphs_do_is_done_in_a_turn(scene, runner, run_id):
    """Async nodes, time limits, retries, generators, branches, maps in threads and processes, nested graphs."""
    final = runner.start(scene.rich, State({"numbers": [1, 2, 3]}, run_id=run_id)).result(LONG)

    assert (final["waited"], final["tried"], final["streamed"]) == (True, 3, True)
    assert (final["l"], final["r"], final["squares"], final["fourth"]) == (1, 2, [1, 4, 9], [1, 16, 81])
    assert final["c"] == 1


def test_a_run_that_fails_is_told_and_goes_on_when_it_is_resumed(scene, runner, run_id):
    """The error has the node and the State."""
    handle = runner.start(scene.work, State({"fails": "b"}, run_id=run_id))
    with pytest.raises(ExecutionError, match="ValueError: on request") as raised:
        handle.result(LONG)
    assert (raised.value.node_name, raised.value.state["a"]) == ("b", 1)
    assert [view.error for view in runner.runs("failed") if view.run_id == run_id] == ["ValueError: on request (at b)"]

    final = runner.resume(run_id, {"fails": None}).result(LONG)

    assert (final["a"], final["b"], final["c"]) == (1, 1, 1)
    with pytest.raises(RunCompleteError):
        runner.resume(run_id)


def test_a_node_that_exits_fails_its_run(scene, runner, run_id):
    """A SystemExit of a node ends the turn with an error, and the worker serves the next one."""
    scene.orders[run_id] = sys.exit

    with pytest.raises(ExecutionError, match="SystemExit") as raised:
        runner.start(scene.work, State(run_id=run_id)).result(LONG)

    assert (raised.value.node_name, scene.store.load(run_id).error.type) == ("b", "SystemExit")
    del scene.orders[run_id]
    assert runner.resume(run_id).result(LONG)["c"] == 1


# --------------------------------------------------------------------------- answers


def test_an_answer_counts_once(scene, runner, run_id):
    """Doubled ones, late ones, and those to something else are refused."""
    paused = runner.start(scene.asks, State(run_id=run_id)).result(LONG)
    assert paused.status is RunStatus.PAUSED
    with pytest.raises(AnswerError, match="over"):
        runner.answer(run_id, {"decision": "no"}, pause="0a1b")
    with pytest.raises(AnswerError, match="no answer is given"):
        runner.answer(run_id, {"n": 1})

    scene.hold(run_id)
    handle = runner.answer(run_id, {"decision": VALUES}, pause=paused.pause, by="ada")
    with pytest.raises(AnswerError):
        runner.answer(run_id, {"decision": "no"})
    scene.wait_for(f"{run_id} b")
    with pytest.raises(AnswerError):
        runner.answer(run_id, {"decision": "no"}, pause=paused.pause)
    scene.let_go(run_id)

    final = handle.result(LONG)
    assert repr(final["decision"]) == repr(State({"decision": VALUES})["decision"])
    assert (final["a"], final["b"]) == (1, 1)
    with pytest.raises(AnswerError):
        runner.answer(run_id, {"decision": "no"})


def test_paused_runs_hold_no_slot(scene, runner):
    """Fifteen of them wait that came through a queue for ten, and others go by."""
    ids = [f"many-{number}" for number in range(15)]
    handles = [runner.start(scene.asks, State(run_id=run_id), queue="ten") for run_id in ids]
    assert {handle.result(LONG).status for handle in handles} == {RunStatus.PAUSED}

    assert runner.start(scene.work, State(run_id="goes-by"), queue="ten").result(LONG).status is RunStatus.COMPLETED

    assert len(runner.runs("paused", scene.asks, limit=1000)) >= 15


# --------------------------------------------------------------------------- queues


def test_a_queue_lets_so_many_at_a_time(scene, runner):
    """Lower priority numbers run first, and none begins before the current run ends."""
    scene.hold("first")
    runner.start(scene.work, State(run_id="first"), queue="one")
    scene.wait_for("first b")
    later = [
        runner.start(scene.work, State(run_id=f"later-{priority}"), queue="one", priority=priority)
        for priority in (3, 1, 2)
    ]
    assert {view.status for view in runner.runs(limit=1000) if view.run_id.startswith("later-")} == {"queued"}
    scene.let_go("first")
    for handle in later:
        handle.result(LONG)

    order = [line.split()[0] for line in scene.notes() if line.endswith(" a") and line.startswith(("first", "later"))]
    assert order == ["first", "later-1", "later-2", "later-3"]


# --------------------------------------------------------------------------- cancelling


def begun(scene, runner, run_id, how):
    """Order a run, and bring it to where it is to be cancelled."""
    graph = scene.asks if how == "paused" else scene.work
    if how == "queued":
        scene.hold(f"{run_id}-blocks")
        runner.start(scene.work, State(run_id=f"{run_id}-blocks"), queue="late")
        scene.wait_for(f"{run_id}-blocks b")
    if how == "running":
        scene.hold(run_id)
    delay = 3600 if how == "delayed" else None
    handle = runner.start(graph, State({"n": 1}, run_id=run_id), queue="late", delay=delay)
    if how == "running":
        scene.wait_for(f"{run_id} b")
    if how == "paused":
        handle.result(LONG)
    return handle


@pytest.mark.parametrize("how", ["queued", "delayed", "running", "paused"])
def test_a_run_is_cancelled_wherever_it_is(scene, runner, run_id, how):
    """It is cancelled in its store, too, and resume takes it up."""
    handle = begun(scene, runner, run_id, how)
    runner.cancel(run_id, by="ada")
    if how == "running":
        scene.let_go(run_id)
    if how == "queued":
        scene.let_go(f"{run_id}-blocks")
    if how != "paused":
        with pytest.raises(RunCancelledError):
            handle.result(LONG)

    assert scene.store.load(run_id).status is RunStatus.CANCELLED
    assert [view.status for view in runner.runs(limit=1000) if view.run_id == run_id] == ["cancelled"]
    runner.cancel(run_id)  # once more changes nothing

    final = runner.resume(run_id, {"decision": "yes"} if how == "paused" else None).result(LONG)

    assert (final.status, final["n"], final["a"], final["c"]) == (RunStatus.COMPLETED, 1, 1, 1)
    with pytest.raises(RunCompleteError):
        runner.cancel(run_id)


def test_a_run_that_is_resumed_while_it_waits_or_works(scene, runner, run_id):
    """An answer goes to the pause. A run at work takes no updates; without any, the handle of its turn comes back."""
    runner.start(scene.asks, State(run_id=run_id)).result(LONG)
    scene.hold(run_id)
    handle = runner.resume(run_id, {"decision": "yes"})
    scene.wait_for(f"{run_id} b")
    with pytest.raises(TimeoutError, match="is not done after"):
        handle.result(0.05)
    with pytest.raises(RunBusyError):
        runner.resume(run_id, {"n": 1})
    assert repr(runner.resume(run_id)) == repr(handle)
    scene.let_go(run_id)

    assert handle.result(LONG)["decision"] == "yes"


def test_orders_that_are_refused(scene, runner, run_id):
    """They fail at the call, and nothing is ordered."""
    state = State(run_id=run_id)
    for error, call in (
        (TypeError, lambda: runner.start(scene.work, {"n": 1})),
        (UnknownNameError, lambda: runner.start(scene.work, state, queue="nowhere")),
        (ConfigError, lambda: runner.start(scene.work, state, priority=0)),
        (ConfigError, lambda: runner.start(scene.work, state, delay=-1)),
        (RuntimeError, lambda: scene.runner().start(scene.work, state)),
        (CheckpointNotFoundError, lambda: runner.handle(run_id)),
        (CheckpointNotFoundError, lambda: runner.answer(run_id, {"decision": "yes"})),
    ):
        with pytest.raises(error):
            call()


# --------------------------------------------------------------------------- changed graphs


def test_a_renamed_node_shows(scene, runner, run_id):
    """A renamed node fails the turn without retries; with the new name given, the run continues."""
    before = scene.chain("work", last="old")
    before.submit(State({"n": 1}, run_id=run_id))

    handle = runner.start(scene.work, State({"n": 1}, run_id=run_id))
    with pytest.raises(GraphMismatchError, match="'old'"):
        handle.result(LONG)

    assert handle.status == "ERROR"
    (view,) = (view for view in runner.runs(limit=1000) if view.run_id == run_id)
    assert (view.status, view.turn) == ("active", handle.id)
    assert view.error is not None
    assert "'old'" in view.error
    assert scene.notes(run_id) == []
    assert runner.resume(run_id, migrate={"old": "c"}).result(LONG).status is RunStatus.COMPLETED


# --------------------------------------------------------------------------- schedules


def test_runs_begin_by_the_clock(scene, runner):
    """A schedule begins each run once with its due time in exact types, and none after its end."""
    runner.schedule("tick", scene.work, "* * * * * *", lambda at: {"at": at, **VALUES}, labels={"by": "clock"})
    runner.schedule("own", "work", "* * * * * *", lambda at: State({"at": at}, run_id=f"own-{at:%S}"))
    wait_until(lambda: len(scene.store.runs("completed", prefix="tick-")) >= 1, "ticks")
    wait_until(lambda: len(scene.store.runs("completed", prefix="own-")) >= 1, "ticks")
    for name in ("tick", "own"):
        runner.unschedule(name)

    found = scene.store.load(scene.store.runs("completed", prefix="tick-")[0].run_id)
    assert found.run_id == f"tick-{found['at']:%Y%m%dT%H%M%SZ}"
    assert repr([found[key] for key in VALUES]) == repr([*State(VALUES).values()])
    assert found.labels == {"by": "clock"}
    assert max(Counter(line for line in scene.notes() if line.startswith(("tick-", "own-"))).values()) == 1


# --------------------------------------------------------------------------- what DBOS keeps


def test_dbos_keeps_no_pickle(scene, runner, run_id):
    """No column of any table has a pickle, and only workflows of schedules have steps."""
    with pytest.raises(ExecutionError):
        runner.start(scene.work, State({"fails": "a", **VALUES}, run_id=run_id)).result(LONG)
    kept = list(_texts_of(scene))

    assert len(kept) > 10
    for text in kept:
        assert "pickle" not in text
        assert not _decoded(text).startswith((b"\x80\x03", b"\x80\x04", b"\x80\x05")), text


def _texts_of(scene):
    """Yield all texts and bytes in the tables of DBOS."""
    schema = f"dbos_{scene.folder.name.replace('-', '_')}"
    with psycopg.connect(scene.dsn) as connection:
        query = "SELECT table_name FROM information_schema.tables WHERE table_schema = %s"
        tables = [name for (name,) in connection.execute(query, [schema])]
        rows = [row for table in tables for row in connection.execute(f'SELECT * FROM "{schema}"."{table}"')]
    for row in rows:
        yield from (str(value) for value in row if isinstance(value, str | bytes))


def _decoded(text):
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return b""


# --------------------------------------------------------------------------- how it is made


def test_wrong_arguments_of_a_runner_are_refused(scene):
    """Wrong arguments of a runner fail at once, not in a worker."""
    nothing_saved = StateGraph(GraphConfig("none", observer="noop", checkpoint=CheckpointConfig(interval=0)))
    wrongs: list[tuple[type[Exception], Any, dict[str, Any]]] = [
        (ConfigError, (), {}),
        (ConfigError, ("work",), {}),
        (ConfigError, (scene.work, scene.chain("work")), {}),
        (CheckpointingDisabledError, (nothing_saved,), {}),
        (ConfigError, (scene.work,), {"url": "here.db"}),
        (ConfigError, (scene.work,), {"lapse": 0}),
        (ConfigError, (scene.work,), {"poll": -1}),
        (ConfigError, (scene.work,), {"max_recoveries": 0}),
        (ConfigError, (scene.work,), {"url": "redis://:hush@here"}),
        (ConfigError, (scene.work,), {"url": "postgresql://ada:hush@here:port/runs"}),
        (ConfigError, (scene.work,), {"url": "NO_SUCH_NAME"}),
        (ConfigError, (scene.work,), {"queues": {"bank": 4}}),
        (UnknownNameError, (scene.work,), {"config": {"dbos_sys_schema": "mine"}}),
    ]
    for error, graphs, options in wrongs:
        with pytest.raises(error) as refused:
            DBOSRunner(*graphs, **{"url": "postgresql://unknown@nowhere/never", **options})
        assert "hush" not in str(refused.value)
    limits: list[dict[str, Any]] = [{"concurrency": 0}, {"per_worker": 1.5}, {"rate": (1, 0)}, {"rate": 5}]
    for wrong in limits:
        with pytest.raises(ConfigError):
            Queue(**wrong)


def test_without_dbos_the_error_says_what_to_install():
    """Nothing else of stategraph needs it."""
    program = "import sys; sys.modules['dbos'] = None; import stategraph.turns; import stategraph.dbos"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert 'pip install "durable-stategraph[dbos]"' in done.stderr.splitlines()[-1]
