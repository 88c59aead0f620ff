"""The commands that look: their output for people and programs; they change nothing."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest

import stategraph
from stategraph import ErrorInfo, MapNode, Pause, State, StateGraph, WaitNode
from stategraph._values.progress import Progress
from stategraph.stores import PostgresStore, RetentionPolicy, SqliteStore
from tests.cli.shop import TOML, at_terminal, call, commands, completed, environment, listing, process
from tests.postgres_server import dsn

is_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
LOOKS = [
    ["runs"],
    ["show", "waiting"],
    ["history", "done"],
    ["diff", "done", "1", "3"],
    ["export", "done"],
    ["draw", "done"],
]


# --------------------------------------------------------------------------- output


def test_runs_lists_the_newest_first(store):
    """A line each, with tabs, for other tools to cut: nothing is shortened in a pipe."""
    result = call("runs")

    rows = [line.split("\t") for line in result.out.splitlines()]
    assert (result.code, result.err) == (0, "")
    assert [row[:5] for row in rows] == [
        ["left", "active", "orders", "0", ""],
        ["burnt", "failed", "orders", "2", "ship"],
        ["done", "completed", "orders", "3", "ship"],
        ["waiting", "paused", "orders", "1", "approve"],
    ]
    assert [row[6] for row in rows] == [
        "no process is at work on it",
        "ValueError: the van\\x1b[31m burns",
        "",
        "waits: more than 40",
    ]


def test_runs_as_json_tells_all_that_is_known_of_them(store):
    """The output is one object; the value of a pause is exact, even of a class that is not registered here."""
    printed = json.loads(call("runs", "--json").out)

    assert printed["next"] is None
    by_id = {run["run_id"]: run for run in printed["runs"]}
    assert set(by_id) == {"left", "burnt", "done", "waiting"}
    assert by_id["waiting"]["pause"]["reason"] == "more than 40"
    assert by_id["waiting"]["pause"]["value"] == {
        "$type": "object",
        "value": ["shop.Order", 1, {"id": 7, "note": "two chairs"}],
    }
    assert by_id["burnt"]["error"] | {"traceback": ""} == {
        "type": "ValueError",
        "message": "the van\x1b[31m burns",
        "node": "ship",
        "traceback": "",
    }
    assert by_id["done"]["labels"] == {"customer": "c-done"}
    assert by_id["left"]["owner"] is None


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--status", "paused"], ["waiting"]),
        (["--graph", "orders", "--prefix", "d"], ["done"]),
        (["--graph", "letters"], []),
        (["--label", "customer=c-burnt"], ["burnt"]),
        (["--since", "2100-01-01"], []),
        (["--since", "2100-01-01 09:30"], []),
        (["--since", "365d", "--prefix", "d"], ["done"]),
        (["--since", "0 s"], []),
        (["--left"], ["left"]),
        (["--left", "--status", "failed"], ["burnt"]),
        (["--owned"], []),
        (["--limit", "2"], ["left", "burnt"]),
        (["--parent", "done"], []),
    ],
)
def test_runs_are_narrowed_down(store, options, found):
    """Runs are filtered by everything that the store lists of them."""
    assert [run["run_id"] for run in json.loads(call("runs", "--json", *options).out)["runs"]] == found


def test_pages_of_runs_follow_each_other(store):
    """A page names the start of the next one, in both formats."""
    first = json.loads(call("runs", "--json", "--limit", "3").out)
    second = json.loads(call("runs", "--json", "--limit", "3", "--after", first["next"]).out)

    assert [len(first["runs"]), len(second["runs"]), second["next"]] == [3, 1, None]
    assert call("runs", "--limit", "3").err == f"there are more: --after {first['next']}\n"


def test_show_tells_how_a_run_stands_and_its_data(store):
    """`show` prints the question, the way to answer it, and values of unregistered types as they are stored."""
    out = call("show", "waiting").out

    assert "waiting  paused  step 1 at price" in out
    assert "asks: shop.Order(id=7, note='two chairs')" in out
    assert "answer: stategraph answer waiting VALUE --graph MODULE:NAME" in out
    assert "order = shop.Order(id=7, note='two chairs')\n" in out
    assert "labels: customer=c-waiting" in out
    failed = call("show", "burnt").out
    assert "failed at ship: ValueError\n  the van\\x1b[31m burns\n" in failed
    assert " in ship\n" in failed  # with the calls that led to it


def test_show_asks_for_no_answer_where_a_run_waits_for_a_time(store):
    """A worker goes on with it; an answer would be refused."""
    graph = StateGraph("reminders", store=store)
    graph.add_node("wait", WaitNode(86_400))
    graph.set_entry_point("wait")
    graph.set_exit_point("wait")
    graph.execute(State(run_id="later"))

    out = call("show", "later").out
    assert call("runs", "--prefix", "later").out.endswith("\twaits: for a time\n")
    assert "goes on: stategraph work MODULE:NAME\n" in out
    assert "answer: " not in out
    assert "asks: " not in out


def test_show_tells_when_a_submitted_run_begins(store):
    """A worker leaves it alone until then."""
    graph = StateGraph("reports", store=store)
    graph.add_node("write", dict)
    graph.set_entry_point("write")
    graph.set_exit_point("write")
    graph.submit(State(run_id="night"), at=datetime(2100, 1, 1, tzinfo=UTC))

    assert "due: 2100-01-01T00:00:00" in call("show", "night").out


def test_show_tells_what_was_at_work_when_a_process_died(store):
    """Nothing is at work in a run without an owner."""
    graph = StateGraph("files", store=store)
    graph.add_node("read", MapNode(dies_at_2, over="files", into="texts", max_workers=1))
    graph.set_entry_point("read")
    graph.set_exit_point("read")
    with suppress(KeyboardInterrupt):
        graph.execute(State({"files": [1, 2]}, run_id="cut"))

    assert "was at work: 1: read/1\n" in call("show", "cut").out


def dies_at_2(file, context):
    """Stop where a crash would."""
    context.status("reads")
    if file == 2:
        raise KeyboardInterrupt


def test_show_tells_what_a_run_has_spent(store):
    """By name, as numbers."""
    with StateGraph("orders", store=store).store as opened:
        opened.save(State(run_id="paid", progress=Progress(spent={"usd": "1/50", "tokens": "1200"})))

    assert "spent: tokens 1,200, usd 0.02\n" in call("show", "paid").out
    assert json.loads(call("show", "paid", "--json").out)["spent"] == {"usd": 0.02, "tokens": 1200}


def test_history_tells_the_story(store):
    """Each row has the kind, the step, the revision and the author."""
    rows = [line.split("\t") for line in call("history", "done").out.splitlines()]
    printed = json.loads(call("history", "done", "--json").out)

    assert [row[0] for row in rows] == ["0", "1", "1.1", "1.2", "2", "3", "3.1"]
    assert [row["kind"] for row in printed] == ["input", "step", "pause", "answer", "step", "step", "end"]
    assert (rows[0][5], rows[2][5], rows[3][5]) == ("by ann", "more than 40", "by bob")
    assert [row[2] for row in rows] == ["", "price", "approve", "", "approve", "ship", "ship"]
    assert [row["kind"] for row in json.loads(call("history", "done", "--last", "2", "--json").out)] == ["step", "end"]


def test_diff_tells_what_changed(store):
    """Between steps of a run, or of two."""
    printed = json.loads(call("diff", "done", "1", "3", "--json").out)

    assert printed == {
        "added": {"shipped": True},
        "removed": {},
        "changed": {"log": [["priced"], ["priced", "shipped"]]},
    }
    assert "~ log: ['priced'] -> ['priced', 'shipped']\n" in call("diff", "done", "1", "3").out
    assert "- shipped = True\n" in call("diff", "done", "3", "1", "--other", "waiting").out


# --------------------------------------------------------------------------- which store


def test_options_name_the_store_before_the_environment_and_a_file_in_the_folder(shop, monkeypatch):
    """The store is chosen in this order; without any, the error says how to name one."""
    assert call("runs").code == 2
    assert "give --store" in call("runs").err.lower()
    for url in ("mysql://host/runs", "http://host"):
        assert call("--store", url, "runs").code == 2
        assert "postgresql" in call("--store", url, "runs").err
    (shop / "graph.toml").write_text('name = "orders"\n', encoding="utf-8")
    assert call("runs").code == 2
    assert "does not outlive its process" in call("runs").err

    (shop / "graph.toml").write_text(TOML, encoding="utf-8")
    assert call("runs").out.count("\n") == 4
    (shop / "other.toml").write_text(TOML.replace("runs.db", "none.db"), encoding="utf-8")
    assert call("runs", "--config", "other.toml").code == 3
    monkeypatch.setenv("STATEGRAPH_STORE", "runs")
    assert call("runs").code == 0
    assert call("runs", "--config", "other.toml").code == 3
    assert call("runs", "--store", "none.db").code == 3
    assert call("--store", "none.db", "runs").code == 3


@pytest.mark.parametrize(
    "theirs",
    [
        lambda file: file.chmod(0o666),
        lambda file: file.parent.chmod(0o777),
        pytest.param(lambda file: os.chown(file, 65534, -1), marks=is_root),
        pytest.param(lambda file: os.chown(file.parent, 65534, -1), marks=is_root),
    ],
    ids=["mode", "mode of the folder", "owner", "owner of the folder"],
)
def test_a_configuration_of_another_user_in_the_folder_is_not_obeyed(shop, theirs):
    """A file that others own, or can change or replace, is only used if an option names it."""
    file = shop / "graph.toml"
    file.write_text(TOML, encoding="utf-8")
    file.chmod(0o600)
    theirs(file)

    refused = call("runs")
    assert (refused.code, refused.out) == (2, "")
    assert "graph.toml in this folder is not used" in refused.err
    assert "--config graph.toml" in refused.err
    assert completed("stategraph", "show", "", cwd=shop) == []
    shop.chmod(0o700)
    os.chown(shop, os.geteuid(), -1)
    assert call("runs", "--config", "graph.toml").out.count("\n") == 4


def test_completion_connects_to_no_server_that_a_configuration_names(shop):
    """Otherwise pressing TAB would send $PGPASSWORD to it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"postgresql://127.0.0.1:{server.getsockname()[1]}/runs?connect_timeout=2"
        toml = TOML.replace("sqlite", "postgres").replace('path = "runs.db"', f'dsn = "{address}"')
        (shop / "graph.toml").write_text(toml, encoding="utf-8")

        assert completed("stategraph", "show", "", cwd=shop) == []
        assert completed("stategraph", "--config", "graph.toml", "show", "", cwd=shop) == []
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()


def test_a_store_on_a_server(shop, monkeypatch):
    """By a configuration that names the variable with its address; by an URL, in the schema that is the default."""
    monkeypatch.setenv("RUNS_DSN", dsn())
    toml = TOML.replace("sqlite", "postgres").replace('path = "runs.db"', 'dsn = "RUNS_DSN"\nschema = "of_cli"')
    (shop / "graph.toml").write_text(toml, encoding="utf-8")
    assert call("runs").code == 3  # looking creates no table
    with PostgresStore(dsn(), schema="of_cli") as server:
        server.import_runs(call("--store", "runs.db", "export", "waiting").out.splitlines())

    assert call("runs").out.startswith("waiting\tpaused")
    assert "shop.Order(id=7" in call("show", "waiting").out
    assert call("cancel", "waiting").out == "waiting: cancelled\n"
    assert json.loads(call("doctor", "--json").out)["runs"] == {"cancelled": 1}
    assert call("delete", "waiting", "--yes").code == 0
    monkeypatch.setenv("RUNS_DSN", "postgresql://unknown:hush@127.0.0.1:1/none")
    (shop / "graph.toml").write_text(f"{toml}\npatience = 0.5\n", encoding="utf-8")
    unknown = call("runs")
    assert unknown.code == 1
    assert "hush" not in unknown.err


# --------------------------------------------------------------------------- nothing is changed


@pytest.mark.parametrize("arguments", LOOKS, ids=" ".join)
def test_looking_changes_no_file_and_makes_none(store, shop, arguments):
    """Looking changes no byte, no time and no entry of the folder."""
    before = listing(shop)

    assert call(*arguments).code == 0
    assert listing(shop) == before


@pytest.mark.parametrize("missing", ["none.db", "none/none.db", "empty"])
def test_a_store_that_is_not_there_is_not_made(shop, missing):
    """No command creates a store, neither to look nor to change."""
    (shop / "empty").mkdir()
    before = listing(shop)

    for arguments in (["runs"], ["delete", "done", "--yes"]):
        assert call("--store", missing, *arguments).code == 3
    assert listing(shop) == before


def test_saves_of_a_killed_writer_are_seen(shop):
    """Though it stands in the log alone; the database and its log stay as they are."""
    program = (
        "import os, signal, sys\nfrom stategraph import State\nfrom stategraph.stores import SqliteStore\n"
        "store = SqliteStore('runs.db')\nstore.save(State(run_id='new', step=1))\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run([sys.executable, "-c", program], env=environment(), check=False)
    assert killed.returncode == -signal.SIGKILL
    before = listing(shop)

    assert "new\tactive" in call("--store", "runs.db", "runs").out
    after = listing(shop)
    assert after.keys() == before.keys()
    assert {name: after[name] for name in after if not name.endswith("-shm")} == {
        name: before[name] for name in before if not name.endswith("-shm")
    }


# --------------------------------------------------------------------------- exit codes


@pytest.mark.parametrize(
    ("arguments", "code", "name"),
    [
        (["show", "unknown"], 3, "not_found"),
        (["history", "unknown"], 3, "not_found"),
        (["show", "done", "--key", "nothing"], 3, "not_found"),
        (["show", "done", "--step", "99"], 3, "not_found"),
        (["diff", "done", "1", "99"], 3, "not_found"),
        (["export", "unknown"], 3, "not_found"),
        (["show", "a b"], 2, "usage"),
        (["draw", "done", "-o", "a.foo"], 2, "usage"),
        (["show"], 2, "usage"),
        (["nothing"], 2, "usage"),
        (["runs", "--limit", "0"], 2, "usage"),
        (["runs", "--label", "customer"], 2, "usage"),
        (["runs", "--after", "x"], 2, "usage"),
        (["runs", "--since", "yesterday"], 2, "usage"),
        (["runs", "--since", "999999d"], 2, "usage"),
    ],
    ids=str,
)
def test_errors_have_exit_codes_and_names(store, arguments, code, name):
    """Errors go to stderr, as text or one JSON object, and leave stdout empty."""
    result, as_json = call(*arguments), call("--json", *arguments)

    assert (result.code, result.out) == (as_json.code, as_json.out) == (code, "")
    assert result.err.startswith("stategraph: ")
    error = json.loads(as_json.err)["error"]
    assert (error["code"], error["exit"]) == (name, code)


# --------------------------------------------------------------------------- at a terminal


def test_a_table_fits_the_terminal_and_has_colours(shop):
    """At any width; colours are switched off by NO_COLOR."""
    for width in (60, 120):
        shown = at_terminal("--store", "runs.db", "runs", cwd=shop, width=width, NO_COLOR="1")
        assert shown.code == 0
        assert "\x1b" not in shown.out
        assert max(map(len, shown.out.splitlines())) <= width
        assert " ago" in shown.out or " now " in shown.out

    assert "\x1b[31mfailed" in at_terminal("--store", "runs.db", "runs", cwd=shop).out


@pytest.mark.parametrize("width", [40, 80, 100, 200])
def test_a_list_shows_whole_ids_and_why_a_run_waits_or_failed(width, tmp_path):
    """At any width: an id can be copied, and nothing hides behind it."""
    ids = [f"018f2b3c-7d1e-7000-8000-{number:012x}" for number in range(2)] + ["nightly/" + "long-" * 20]
    pause = Pause("waits for the signature", "approve", None, "answer", datetime.now(UTC))
    with SqliteStore(tmp_path / "runs.db") as opened:
        opened.save(State(run_id=ids[0], step=1, graph="document-review", status="paused", pause=pause))
        error = ErrorInfo("ConnectionError", "the server of the archive is gone", "publish")
        for run_id in ids[1:]:
            opened.save(State(run_id=run_id, step=12, graph="document-review", status="failed", error=error))

    shown = at_terminal("--store", "runs.db", "runs", cwd=tmp_path, width=width, NO_COLOR="1").out

    assert all(run_id in shown.replace("\n", "") for run_id in ids)
    assert "for the signature" in " ".join(shown.split())
    assert "ConnectionError" in shown


def test_a_pipe_that_no_one_reads_any_longer_ends_the_command(shop):
    """Without a traceback."""
    command = f"{sys.executable} -m stategraph.cli --store runs.db export done | head -c 1"
    done = subprocess.run(command, shell=True, env=environment(), capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, "{", "")


# --------------------------------------------------------------------------- hostile values

HOSTILE = {
    "screen": "\x1b[2J\x1b]0;owned\x07\r\x9b31m",
    "turned\u202e": "\u202egnp.exe\u2028\u0000",
    "lone": "\ud800",
    "big": "x" * 3_000_000,
    "deep": [[[["y" * 1000] * 1000]]],
    "number": 10**6000,
    "[red]markup[/red]": "[bold]not bold[/bold]",
}


@pytest.mark.parametrize("command", ["runs", "show hostile"])
def test_hostile_values_do_not_reach_the_terminal(shop, command):
    """Nothing that a terminal acts on comes from a value, and the screen stays small; JSON is ASCII."""
    arguments, evil = command.split(), "\x1b[2J"
    provenance: dict[str, Any] = {"graph": f"g{evil}", "checkpoint_node": f"n{evil}", "labels": {f"l{evil}": evil}}
    error = ErrorInfo(f"Bad{evil}", f"{evil}\nline\x07", f"no{evil}de")
    with SqliteStore("hostile.db") as opened:
        opened.retain("hostile", RetentionPolicy("full"))
        opened.save(State(run_id="hostile", step=1, **provenance))
        opened.save(State(HOSTILE, run_id="hostile", step=2, status="failed", error=error, **provenance))

    shown = at_terminal("--store", "hostile.db", *arguments, cwd=shop, NO_COLOR="1")
    piped = call("--store", "hostile.db", *arguments)

    assert shown.code == piped.code == 0
    for text in (shown.out, piped.out):
        assert all(char.isprintable() or char in "\n\t" for char in text)
        assert len(text) < 20_000
    as_json = call("--store", "hostile.db", *arguments, "--json").out
    assert as_json.isascii()
    json.loads(as_json)


FORGER = """
from stategraph import State, StateGraph

def fail(state):
    raise ValueError("no\\nforged: all is well\\rforged\\x0bforged\\x85forged\\u2028forged\\x1b[2K\\u202eforged")

graph = StateGraph("forger", store="forged.db", preserve=True)
graph.add_node("fail", fail)
graph.set_entry_point("fail")
graph.set_exit_point("fail")
if __name__ == "forged":
    fail(None)
if __name__ == "__main__":
    graph.submit(State(run_id="a"))
"""


def test_texts_of_exceptions_forge_no_lines(shop):
    """No line of the output begins with a text of others, and no character of theirs moves the cursor."""
    for name in ("forger.py", "forged.py"):
        (shop / name).write_text(FORGER, encoding="utf-8")
    subprocess.run([sys.executable, "forger.py"], cwd=shop, env=environment(), check=True, timeout=300)
    shown = ("runs", "show a", "history a", "--import forged runs", "watch a")
    changed = ("work forger:graph --once", "resume a --graph forger:graph")

    for command in (*changed, *shown):
        options = ["--store", "forged.db"] if command in shown else []
        done = process(*options, *command.split(), cwd=shop)
        text = f"{done.out}\n{done.err}"
        assert "all is well" in text, command
        assert not [line for line in text.splitlines() if line.lstrip().startswith("forged")], command
        assert all(char.isprintable() or char in "\n\t" for char in text), command


# --------------------------------------------------------------------------- pictures


def test_a_graph_is_drawn_without_a_run(shop):
    """It needs no store. A graph and a run at once are refused."""
    drawn = process("draw", "--graph", "app:graph", cwd=shop)

    assert (drawn.code, drawn.err) == (0, "")
    assert "approve" in drawn.out
    assert process("draw", cwd=shop).code == 2
    assert process("draw", "done", "--graph", "app:graph", cwd=shop).code == 2


# --------------------------------------------------------------------------- lines of JSON


def test_written_files_are_private(store, shop):
    """What an export or a picture holds is as secret as the store; a file that is there keeps its mode."""
    for number, command in enumerate(("export done -o", "draw done -o")):
        assert call(*command.split(), f"{number}.svg").code == 0
        assert stat.S_IMODE((shop / f"{number}.svg").stat().st_mode) == 0o600
        (shop / f"{number}.svg").chmod(0o644)
        assert call(*command.split(), f"{number}.svg").code == 0
        assert stat.S_IMODE((shop / f"{number}.svg").stat().st_mode) == 0o644


def test_an_export_is_read_back(store, shop):
    """Into a store of another kind: the same history, values and revisions, and the same lines again.

    The same import again changes nothing; another run with the id is refused.
    """
    SqliteStore("copy.db", serializer="json").close()
    exported = call("export", "done").out
    (shop / "done.jsonl").write_text(exported, encoding="utf-8")

    assert call("--store", "copy.db", "import", "done.jsonl").out == "done\n"
    assert call("--store", "copy.db", "export", "done").out == exported
    assert json.loads(call("export", "done", "--json").out) == [json.loads(line) for line in exported.splitlines()]
    for command in ("history done --json", "show done --json", "show done --step 0 --json"):
        assert call("--store", "copy.db", *command.split()).out == call(*command.split()).out
    assert call("--store", "copy.db", "import", "done.jsonl").out == "done\n"
    assert call("--store", "copy.db", "rollback", "done", "--step", "0", "--yes").code == 0
    assert call("--store", "copy.db", "import", "done.jsonl").code == 5


def test_a_configuration_names_the_key_of_an_encrypted_store(shop, monkeypatch):
    """By the name of a variable: all commands read the store then. Without it, the error names the option."""
    pytest.importorskip("cryptography")
    monkeypatch.setenv("JUNE_KEY", "5a" * 32)
    options = 'path = "secret.db"\nencrypt_with = { june = "JUNE_KEY" }\n'
    (shop / "secret.toml").write_text(f'name = "shop"\n[checkpoint]\nstore = "sqlite"\n[checkpoint.options]\n{options}')
    (shop / "done.jsonl").write_text(call("--store", "runs.db", "export", "done").out, encoding="utf-8")
    ours = ("--config", "secret.toml")

    assert call(*ours, "import", "done.jsonl").out == "done\n"
    for command in ("history done --json", "show done --json"):
        assert call(*ours, *command.split()).out == call("--store", "runs.db", *command.split()).out
    assert call(*ours, "doctor").code == 0
    exported = call(*ours, "export", "done", "--encrypted").out
    assert exported.count("\n") == 1
    assert "approved" not in exported
    refused = call("--store", "secret.db", "show", "done")
    assert refused.code == 6
    assert "open it with encrypt_with" in refused.err


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: ["no json", *lines],
        lambda lines: lines[1:],
        lambda lines: [lines[0], lines[2], lines[1], *lines[3:]],
        lambda lines: [lines[0], *(line.replace('"kind":"step"', '"kind":"lie"') for line in lines[1:])],
        lambda lines: [lines[0], lines[1].replace('"changes":[', '"changes":[{"$type":"os.system"},'), *lines[2:]],
    ],
)
def test_lines_that_are_no_run_are_refused(shop, change):
    """With the exit code of damage, and nothing begins."""
    lines = call("--store", "runs.db", "export", "done").out.splitlines()
    SqliteStore("copy.db").close()
    (shop / "bad.jsonl").write_text("\n".join(change(lines)), encoding="utf-8")

    result = call("--store", "copy.db", "import", "bad.jsonl")

    assert result.code == 6, result.err
    assert json.loads(call("--store", "copy.db", "runs", "--json").out)["runs"] == []


# --------------------------------------------------------------------------- around it


def test_without_the_extra_it_says_what_to_install(tmp_path):
    """In one line."""
    hidden = "import importlib.util\nimportlib.util.find_spec = lambda name: None"
    command = [sys.executable, "-c", f"{hidden}\nfrom stategraph.cli import main\nmain(['runs'])"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "stategraph: the command line needs click and rich: pip install 'durable-stategraph[cli]'\n"


def test_help_has_examples_and_the_version_is_that_of_the_package():
    """For the command, and for each of its commands."""
    assert call("--version").out == f"{stategraph.__version__}\n"
    assert "Exit codes: 0 ok" in call("--help").out
    assert len(commands()) > 10
    for name in commands():
        examples = call(name, "--help").out.partition("Examples:\n")[2].partition("\n\n")[0].splitlines()
        assert examples, name
        assert all(line.startswith("    stategraph ") for line in examples), name


def test_a_list_in_a_pipe_imports_nothing_heavy(shop):
    """Of a list in a pipe: neither rich nor asyncio nor the network."""
    heavy = "{'rich', 'asyncio', 'cattrs', 'structlog', 'diskcache'}"
    program = f"""
import sys
from stategraph.cli import main
try:
    main(['--store', 'runs.db', 'runs'])
except SystemExit:
    print(sorted({heavy} & set(sys.modules)))
"""
    env = {name: value for name, value in environment().items() if not name.startswith("COVERAGE")}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[-1] == "[]"
