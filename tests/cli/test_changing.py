"""The commands that change something: effects, confirmations and exit codes."""

import json
import sqlite3
import subprocess
import sys
import uuid

import psycopg
import pytest

from tests.cli.shop import at_terminal, call, environment, listing, process
from tests.postgres_server import dsn

ANSWER = ["answer", "waiting", "--graph", "app:graph"]


def status_of(run_id, store="runs.db"):
    """Return how a run stands."""
    return json.loads(call("--store", store, "show", run_id, "--json").out)["status"]


# --------------------------------------------------------------------------- with a graph


def test_an_answer_goes_on_with_the_run(shop):
    """`answer` continues the run in its own process, and the history names the person."""
    result = process(*ANSWER, "true", "--by", "carol", cwd=shop)

    assert (result.code, result.out) == (0, "waiting  completed  step 3\n")
    rows = json.loads(call("--store", "runs.db", "history", "waiting", "--json").out)
    assert [(row["kind"], row["by"]) for row in rows if row["kind"] == "answer"] == [("answer", "carol")]
    assert process(*ANSWER, "true", cwd=shop).code == 5


def test_an_answer_is_json_or_text(shop):
    """A value that is not JSON is taken as text."""
    given = {"waiting": '{"paid": [1, 2.5]}', "second": "yes please"}
    assert call("--store", "runs.db", "fork", "waiting", "second").code == 0
    assert process("resume", "second", "--graph", "app:make", cwd=shop).code == 4  # a copy asks again
    for run_id, value in given.items():
        assert process("answer", run_id, value, "--graph", "app:make", cwd=shop).code == 0

    data = [json.loads(call("--store", "runs.db", "show", run_id, "--json").out)["data"] for run_id in given]
    assert [one["shipped"] for one in data] == [{"paid": [1, 2.5]}, "yes please"]


def test_a_message_is_sent(shop):
    """The run has it once it goes on; the same key again is the same message, and needs no graph."""
    for _ in range(2):
        sent = call("--store", "runs.db", "send", "waiting", "note=be quick", "boxes=[1, 2]", "--key", "mail-7")
        assert (sent.code, sent.out) == (0, "waiting: sent\n")
    assert process(*ANSWER, "true", cwd=shop).code == 0

    data = json.loads(call("--store", "runs.db", "show", "waiting", "--json").out)["data"]
    assert (data["note"], data["boxes"], data["shipped"]) == ("be quick", [1, 2], True)
    assert call("--store", "runs.db", "send", "waiting", "note=too late").code == 5
    assert call("--store", "runs.db", "send", "none", "note=x").code == 3
    assert call("--store", "runs.db", "send", "waiting", "note").code == 2


def test_only_the_pause_that_was_meant_is_answered(shop):
    """Another one is a conflict, and the run waits as before; the beginning of its id will do."""
    pause = json.loads(call("--store", "runs.db", "show", "waiting", "--json").out)["pause"]["id"]

    refused = process(*ANSWER, "true", "--pause", "another", cwd=shop)
    assert (refused.code, f"it waits at {pause}\n" in refused.err) == (5, True)
    assert status_of("waiting") == "paused"
    assert process(*ANSWER, "true", "--pause", pause[:6], cwd=shop).code == 0


def test_one_of_several_questions_is_answered(shop):
    """With several questions the command needs to know which; `show` prints how to name it."""
    begin = "import app; app.many().execute(app.State({'orders': [{}, {}]}, run_id='many'))"
    subprocess.run([sys.executable, "-c", begin], cwd=shop, env=environment(), check=True)
    answer = ["answer", "many", "--graph", "app:many"]
    pauses = json.loads(call("--store", "runs.db", "show", "many", "--json").out)["pause"]
    other = pauses["others"][0]
    assert (pauses["part"], other["part"]) == ("0", "1")
    shown = call("--store", "runs.db", "show", "many").out
    assert f"stategraph answer many VALUE --graph MODULE:NAME --pause {other['id']}" in shown

    refused = process(*answer, "true", cwd=shop)
    assert refused.code == 2
    assert "choose one of the pauses that stategraph show many lists, with --pause: it waits at " in refused.err
    assert process(*answer, "second", "--pause", other["id"], cwd=shop).code == 4
    assert process(*answer, "first", cwd=shop).code == 0
    data = json.loads(call("--store", "runs.db", "show", "many", "--json").out)["data"]
    assert data["shipped"] == [{"shipped": "first"}, {"shipped": "second"}]


def test_a_run_is_resumed(shop):
    """`resume` takes other data; it exits with 1 for a failed run and with 4 for a paused one."""
    resume = ["resume", "burnt", "--graph", "app:graph"]

    failed = process(*resume, "--json", cwd=shop)
    assert failed.code == 1
    assert json.loads(failed.err)["error"]["type"] == "ExecutionError"
    paused = process("resume", "left", "--graph", "app:graph", cwd=shop)
    assert (paused.code, paused.out) == (4, "left  paused  step 1: more than 40\n")
    assert process(*resume, "--set", "approved=true", cwd=shop).code == 5  # an answer counts once
    assert process(*resume, "--set", "limit=[1]", "--by", "ann", cwd=shop).code == 1
    assert json.loads(call("--store", "runs.db", "show", "burnt", "--json").out)["data"]["limit"] == [1]
    assert process("resume", "done", "--graph", "app:graph", cwd=shop).code == 5  # it is complete


@pytest.mark.parametrize(
    ("graph", "code", "said"),
    [
        ("app:nothing", 2, "has no 'nothing'"),
        ("app:broken", 1, "no graph today"),
        ("app:MapNode", 2, "name a StateGraph, or a function without parameters that returns one"),
        ("bad:graph", 1, "ZeroDivisionError"),
        ("no_module:graph", 2, "No module named 'no_module'"),
        ("needs:graph", 1, "needs.py, line 1"),
    ],
)
def test_a_graph_that_cannot_be_had(shop, graph, code, said):
    """The error gives the reason in one line."""
    (shop / "bad.py").write_text("1 / 0\n", encoding="utf-8")
    (shop / "needs.py").write_text("import no_module\n", encoding="utf-8")

    result = process("resume", "left", "--graph", graph, cwd=shop)

    assert (result.code, result.out) == (code, "")
    assert said in result.err
    assert "Traceback" not in result.err


def test_the_graph_has_a_store_of_its_own(shop):
    """A store that is named beside it is refused, not ignored."""
    assert process("--store", "other.db", *ANSWER, "true", cwd=shop).code == 2
    assert "leave --store out" in process(*ANSWER, "true", "--store", "other.db", cwd=shop).err
    for address, is_noted in (("other.db", True), ("postgresql://here/runs", True), ("runs.db", False)):
        noted = process(*ANSWER, cwd=shop, STATEGRAPH_STORE=address).err
        assert ("STATEGRAPH_STORE is ignored: the graph keeps its runs in" in noted) == is_noted
    printed = process("--config", "other.toml", "resume", "done", "--graph", "app:graph", cwd=shop)
    assert (printed.code, printed.err.splitlines()[0].partition(": the graph keeps")[0]) == (
        5,
        "stategraph: --config is ignored",
    )
    assert process("--store", "./runs.db", "resume", "done", "--graph", "app:graph", cwd=shop).code == 5
    assert process(*ANSWER, cwd=shop).code == 2  # without a value
    assert process("answer", "done", "1", "--graph", "app:graph", cwd=shop).code == 5
    assert process("answer", "unknown", "1", "--graph", "app:graph", cwd=shop).code == 3


# --------------------------------------------------------------------------- without one


def test_a_run_is_forked(store):
    """A fork copies the stored values, even of classes that are not registered here."""
    assert call("fork", "done", "copy", "--step", "1").out == "copy: active, at step 1\n"
    printed = json.loads(call("show", "copy", "--json").out)
    assert printed["parent"] == {"run_id": "done", "step": 1}
    assert printed["data"]["order"]["value"][0] == "shop.Order"
    assert call("fork", "done", "copy").code == 5
    assert call("fork", "unknown", "copy2").code == 3


def test_a_run_is_taken_back(store):
    """A rollback needs --yes or a confirmation, and the history names its author."""
    assert call("rollback", "done", "--step", "1").code == 2
    assert call("rollback", "done", "--yes").code == 2
    assert call("rollback", "done", "--step", "1", "--by", "ann", "--yes").out == "done: back at step 1, active\n"
    last = json.loads(call("history", "done", "--json").out)[-1]
    assert (last["kind"], last["step"], last["by"]) == ("rollback", 1, "ann")


def test_a_run_is_cancelled(store):
    """A run without an owner is cancelled at once; a complete run is refused."""
    assert call("cancel", "left", "--by", "ann").out == "left: cancelled\n"
    assert call("cancel", "waiting", "--json").code == 0
    printed = json.loads(call("show", "left", "--json").out)
    assert (printed["status"], printed["kind"], printed["by"]) == ("cancelled", "cancel", "ann")
    assert call("cancel", "left").code == 0
    assert (call("cancel", "done").code, call("cancel", "unknown").code) == (5, 3)


def test_a_run_is_forgotten(store):
    """`delete` needs --yes where there is no terminal to ask."""
    refused = call("delete", "done")
    assert (refused.code, refused.out) == (2, "")
    assert "give --yes" in refused.err
    assert call("show", "done").code == 0
    assert json.loads(call("delete", "done", "--yes", "--json").out) == {"run_id": "done", "deleted": True}
    assert (call("show", "done").code, call("delete", "done", "--yes").code) == (3, 3)


def test_a_damaged_run_is_forgotten(shop):
    """`delete` removes damaged runs, even those with a damaged id."""
    database = sqlite3.connect("runs.db")
    with database:
        database.execute("UPDATE run SET status = 'completed' WHERE run_id = 'waiting'")
        database.execute("UPDATE run SET run_id = 'a b' WHERE run_id = 'burnt'")
    database.close()
    assert json.loads(call("--store", "runs.db", "doctor", "--json").out)["runs"]["damaged"] == 1
    assert call("--store", "runs.db", "show", "waiting").code == 6

    for run_id in ("waiting", "a b"):
        assert call("--store", "runs.db", "delete", run_id, "--yes").code == 0
        assert call("--store", "runs.db", "delete", run_id, "--yes").code in (2, 3)

    printed = json.loads(call("--store", "runs.db", "doctor", "--json").out)
    assert (printed["damaged"], printed["runs"]) == ([], {"active": 1, "completed": 1})


def test_prune_prints_how_much_it_removed(store):
    """`prune` prints how much it removed."""
    assert call("prune").code == 2
    assert json.loads(call("prune", "--yes", "--json").out) == {"runs": [], "checkpoints": 0, "damaged": []}
    assert call("prune", "--yes").out == "0 runs, and 0 checkpoints of others\n"


@pytest.mark.parametrize(("typed", "code"), [("\x03", 130), ("y\n", 0)])
def test_a_person_is_asked(shop, typed, code):
    """At a terminal the command asks, and changes nothing unless the answer is yes."""
    before = listing(shop)["runs.db"]

    result = at_terminal("--store", "runs.db", "delete", "done", cwd=shop, typed=typed, NO_COLOR="1")

    assert result.code == code
    assert "delete done (completed, step 3)? [y/N]" in result.out
    assert (call("--store", "runs.db", "show", "done").code == 3) == (code == 0)
    assert code == 0 or listing(shop)["runs.db"][1] == before[1]


# --------------------------------------------------------------------------- to a server


@pytest.fixture
def database(shop, monkeypatch):
    """Return the URL of an empty database on a server, which the module "moved" has its graph in."""
    name = f"test_{uuid.uuid4().hex}"
    with psycopg.connect(dsn(), autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name} TEMPLATE template0")
    (shop / "moved.py").write_text("import app\ngraph = app.make('postgres', 'RUNS_DSN')\n", encoding="utf-8")
    url = dsn().replace("/postgres?", f"/{name}?")
    monkeypatch.setenv("RUNS_DSN", url)
    yield url
    with psycopg.connect(dsn(), autocommit=True) as admin:
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_all_runs_move_to_an_empty_database(shop, database):
    """The import creates the tables; the runs are listed there and can be resumed."""
    assert call("--store", "runs.db", "export", "--all", "-o", "all.jsonl").code == 0

    moved = call("--store", database, "import", "all.jsonl")

    assert (moved.code, moved.err) == (0, "")
    assert moved.out.split() == ["waiting", "done", "burnt", "left"]
    before, after = (json.loads(call("--store", store, "runs", "--json").out) for store in ("runs.db", database))
    assert after["runs"] == before["runs"]
    assert process("resume", "left", "--graph", "moved:graph", cwd=shop).code == 4
    assert process("answer", "waiting", "true", "--graph", "moved:graph", cwd=shop).code == 0
    assert status_of("waiting", database) == "completed"


@pytest.mark.parametrize(
    "command", [["runs"], ["show", "a"], ["doctor"], ["delete", "a", "--yes"], ["export", "--all"]]
)
def test_a_database_without_tables_is_a_store_that_is_not_there(database, command):
    """The error names the command that creates the tables, in one sentence, and no table is created."""
    for _ in range(2):
        result = call("--store", database, *command)
        assert (result.code, result.out, len(result.err.splitlines())) == (3, "", 1)
        assert "stategraph migrate" in result.err
    error = json.loads(call("--store", database, *command, "--json").err)["error"]
    assert (error["code"], error["exit"]) == ("not_found", 3)
    assert "CREATE" not in error["message"]


def test_a_store_is_made_by_migrate(shop, database):
    """A file as well; once more, it changes nothing, and --print makes nothing."""
    assert call("--store", "new.db", "migrate", "--print").code == 3
    assert not (shop / "new.db").exists()
    for store in (database, "new.db"):
        for _ in range(2):
            assert call("--store", store, "migrate").code == 0
        assert json.loads(call("--store", store, "migrate", "--json").out)["migrated"]
        assert json.loads(call("--store", store, "runs", "--json").out)["runs"] == []


def test_import_makes_no_tables_if_the_configuration_forbids_it(shop, database):
    """`migrate` makes them, which an administrator runs."""
    options = 'options = {dsn = "RUNS_DSN", migrate = false}'
    config = f'name = "orders"\n[checkpoint]\nstore = "postgres"\n{options}\n'
    (shop / "own.toml").write_text(config, encoding="utf-8")
    (shop / "none.jsonl").touch()
    refused = call("--config", "own.toml", "import", "none.jsonl")
    assert refused.code == 3
    assert "stategraph migrate" in refused.err

    assert call("--config", "own.toml", "migrate").code == 0
    assert call("--config", "own.toml", "import", "none.jsonl").code == 0


def test_migrate_prints_what_an_administrator_runs(shop, database):
    """A role that may not create tables is referred to `migrate`, whose statements are all that is needed."""
    role = f"app_{uuid.uuid4().hex}"
    with psycopg.connect(database, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {role} LOGIN")
        as_app = database.replace("postgres:@", f"{role}@")
        for command in (["migrate"], ["import", str(shop / "graph.jsonl")]):
            (shop / "graph.jsonl").touch()
            refused = call("--store", as_app, *command)
            assert (refused.code, len(refused.err.splitlines())) == (3, 1)
            assert "migrate --print" in refused.err
        printed = call("--store", as_app, "migrate", "--print")
        assert json.loads(call("--store", as_app, "migrate", "--print", "--json").out)["statements"]
        assert call("--store", database, "runs").code == 3

        admin.execute(printed.out)
        again = call("--store", database, "migrate", "--print")
        assert (again.code, again.out, json.loads(call("--store", database, "runs", "--json").out)["runs"]) == (
            0,
            "",
            [],
        )
        assert json.loads(call("--store", database, "migrate", "--print", "--json").out) == {"statements": []}
        admin.execute(f"DROP ROLE {role}")
