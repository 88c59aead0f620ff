"""Common mishaps: killed and failed runs, and slips in ids and names."""

import json
import subprocess
import sys

import pytest

from tests.cli.shop import call, environment, process

_PAGES = """
import os
import signal
from stategraph import CheckpointConfig, ExecutionError, GraphConfig, MapNode, State, StateGraph

def read(page):
    if page == 17:
        raise ValueError("page 17 is torn")
    return page

def die(state):
    os.kill(os.getpid(), signal.SIGKILL)

checkpoint = CheckpointConfig(store="sqlite", retention="full", preserve=True, options={"path": "pages.db"})
graph = StateGraph(GraphConfig("pages", observer="noop", checkpoint=checkpoint))
graph.add_node("list", lambda state: {"pages": list(range(30))})
graph.add_node("read", MapNode(read, over="pages", into="texts", max_workers=1))
graph.add_node("die", die)
graph.add_edge("list", "die", lambda state: state["is_killed"])
graph.add_edge("list", "read")
graph.set_entry_point("list")
graph.set_exit_point("read")
graph.set_exit_point("die")
if __name__ == "__main__":
    try:
        graph.execute(State({"is_killed": False}, run_id="torn"))
    except ExecutionError:
        graph.execute(State({"is_killed": True}, run_id="killed"))
"""


_ORDERS = """
import sys
from dataclasses import dataclass

from stategraph import ExecutionError, State, StateGraph, register_type

@register_type
@dataclass
class Order:
    number: int

def fail(state):
    if "--fail" in sys.argv:
        raise ValueError("no")
    return {"seen": type(state["order"]).__name__}

graph = StateGraph("orders", store="orders.db", preserve=True)
graph.add_sequence(fail)
graph.set_entry_point("fail")
graph.set_exit_point("fail")
if __name__ == "__main__":
    try:
        graph.run(State({"order": Order(7)}, run_id="o-7"))
    except ExecutionError:
        pass
    assert isinstance(graph.store.load("o-7")["order"], Order)
"""


def test_a_class_of_a_script_is_known_to_a_command_that_imports_the_script(tmp_path):
    """A run that the script began is resumed by the command, and what this saves is loaded by the script."""
    (tmp_path / "orders.py").write_text(_ORDERS, encoding="utf-8")
    resume = ["-m", "stategraph.cli", "resume", "o-7", "--graph", "orders:graph", "--json"]

    for program in (["orders.py", "--fail"], resume, ["orders.py"]):
        subprocess.run([sys.executable, *program], cwd=tmp_path, env=environment(), check=True, timeout=300)


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["shw", "waiting"], "No such command 'shw'. Did you mean 'show'?"),
        (["resume", "waiting", "--graph", "app:grap"], "module app has no 'grap'; did you mean 'graph'?"),
        (["--store", ".", "runs"], "there is no disk store at .\n"),
    ],
    ids=["command", "graph", "store"],
)
def test_slips_in_names(shop, arguments, hint):
    """A similar name is suggested, if there is one."""
    done = process(*arguments, cwd=shop)

    assert done.code in (2, 3)
    assert hint in done.err


def test_an_empty_new_name_is_a_mistake_of_usage(shop, store):
    """It is no node of any graph."""
    done = process("resume", "waiting", "--graph", "app:graph", "--migrate", "ask=", cwd=shop)

    assert done.code == 2
    assert "migrate: {'ask': ''} is not allowed" in done.err


@pytest.fixture(scope="module")
def made_pages(tmp_path_factory):
    """Return a folder with a store of two runs: one failed at item 17, the process of the other was killed."""
    folder = tmp_path_factory.mktemp("pages")
    (folder / "pages.py").write_text(_PAGES, encoding="utf-8")
    done = subprocess.run([sys.executable, "pages.py"], cwd=folder, env=environment(), check=False, timeout=300)
    assert done.returncode == -9
    return folder


@pytest.fixture
def pages(made_pages, monkeypatch):
    """Make that folder the working directory, and its store the one to look into."""
    monkeypatch.chdir(made_pages)
    monkeypatch.setenv("STATEGRAPH_STORE", "pages.db")


def test_a_run_that_was_killed_says_so_and_how_it_goes_on(pages):
    """`runs` and `show` report a killed run as left unfinished; a fork that never ran is not."""
    shown = call("show", "killed").out
    call("fork", "killed", "forked")
    forked = call("runs", "--prefix", "forked").out
    call("delete", "forked", "--yes")

    assert forked.endswith("\tno process is at work on it\n")
    assert call("runs", "--prefix", "killed").out.endswith("\tleft unfinished: no process is at work on it\n")
    assert "\nleft unfinished: no process is at work on it\n" in shown
    assert "continue: stategraph resume killed --graph MODULE:NAME\n" in shown


def test_the_item_that_failed_is_told_first(pages):
    """Wherever there is room for a few words alone."""
    failed = "part 17: ValueError: page 17 is torn"

    assert call("runs", "--prefix", "torn").out.endswith(f"\tread\t{_time_of('torn')}\t{failed}\n")
    assert call("history", "torn").out.splitlines()[-1].endswith(f"\t{failed}")
    assert "part 17#58; ValueError" in call("draw", "torn").out
    assert "2 runs (1 active, 1 failed), 0 nested in them\n" in call("doctor").out  # kept items are no runs
    assert "continue: stategraph resume torn --graph MODULE:NAME\n" in call("show", "torn").out


def _time_of(run_id):
    (run,) = json.loads(call("runs", "--json", "--prefix", run_id).out)["runs"]
    return run["timestamp"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["show", "waitin"], "; did you mean waiting?\n"),
        (["show", "done", "--key", "totl"], "done has no key 'totl'; it has key, order, total, log, "),
        (["show", "done", "--step", "9"], "; stategraph history done lists the steps that it holds\n"),
        (["resume", "done", "--graph", "app:graph"], "it ended at 'ship'): stategraph show shows its State\n"),
        (["fork", "done", "burnt"], "choose another id, or delete it with stategraph delete\n"),
        (
            ["resume", "waiting", "--graph", "app:graph"],
            " VALUE --graph MODULE:NAME, where VALUE is JSON (true, 12) or text\n",
        ),
        (["resume", "waiting", "--graph", "app.py:graph"], "No module named 'app.py'; 'app' is not a package; "),
        (["xyzzy"], "No such command 'xyzzy'.\nTry 'stategraph --help'.\n"),
    ],
    ids=str,
)
def test_messages_name_commands_as_the_way_out(shop, monkeypatch, arguments, expected):
    """A user of the command line need not know the calls of Python."""
    monkeypatch.setenv("STATEGRAPH_STORE", "runs.db")

    # A graph is imported elsewhere: it registers types, which other tests look at as unknown ones.
    error = process(*arguments, cwd=shop).err if "--graph" in arguments else call(*arguments).err

    assert error.startswith("stategraph: ")
    assert expected in error
    assert "store." not in error


def test_an_export_of_several_runs_is_imported_into_a_store_that_is_not_there(shop):
    """`export` takes all runs or the named ones; `import` may be repeated, and refuses a file that was cut off."""
    assert call("--store", "runs.db", "export").code == 2
    assert call("--store", "runs.db", "export", "done", "--all").code == 2
    assert call("--store", "runs.db", "export", "--all", "-o", "all.jsonl").code == 0
    assert call("--store", "new.db", "import", "all.jsonl").out == "waiting\ndone\nburnt\nleft\n"
    assert call("--store", "runs.db", "export", "done", "left", "-o", "two.jsonl").code == 0

    again = call("--store", "new.db", "import", "two.jsonl")
    assert (again.code, again.out) == (0, "done\nleft\n")
    lines = (shop / "two.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (shop / "cut.jsonl").write_text("".join(lines[:3]), encoding="utf-8")
    cut = call("--store", "other.db", "import", "cut.jsonl")
    assert (cut.code, cut.out) == (6, "")
    assert "lines are missing: 'done' has " in cut.err


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("run.db", "there is no sqlite store at run.db; did you mean runs.db?"),
        ("runs.db/", "there is no disk store at runs.db; did you mean runs.db?"),
    ],
)
def test_a_store_with_a_slip_in_its_name(shop, address, expected):
    """The error suggests a store with a similar name in the same folder, or says what is wrong."""
    result = call("--store", address, "runs")

    assert (result.code, result.err) == (3, f"stategraph: {expected}\n")


def test_a_node_that_was_renamed_is_named_on_the_command_line(shop):
    """The message says how."""
    (shop / "renamed.py").write_text(
        (shop / "app.py").read_text(encoding="utf-8").replace('"price"', '"cost"'), encoding="utf-8"
    )
    resume = ["resume", "waiting", "--graph", "renamed:graph", "--set", "approved=true"]

    refused = process(*resume, cwd=shop)
    assert refused.code == 5
    assert "if it was renamed, resume with --migrate price=" in refused.err
    assert process(*resume, "--migrate", "price", cwd=shop).code == 2
    assert process(*resume, "--migrate", "price=cost", cwd=shop).code == 0


def test_an_answer_to_a_run_of_a_changed_graph(shop):
    """`answer` takes the options with which `resume` continues it."""
    code = (shop / "app.py").read_text(encoding="utf-8").replace('"price"', '"cost"')
    (shop / "renamed.py").write_text(code, encoding="utf-8")
    answer = ["answer", "waiting", "true", "--graph", "renamed:graph"]

    assert process(*answer, cwd=shop).code == 5
    assert process(*answer, "--allow-changed", "--migrate", "price=cost", cwd=shop).code == 0
