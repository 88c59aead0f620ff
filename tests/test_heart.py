"""The heart is small: a run that uses no capability imports none, and what it imports is read in one sitting."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import stategraph
from stategraph import CheckpointConfig, GraphConfig, State, StateGraph, key_equals

PACKAGE = Path(stategraph.__file__).parent

BARE = """
from stategraph import CheckpointConfig, GraphConfig, State, StateGraph, key_equals
graph = StateGraph(GraphConfig("bare", observer="noop", checkpoint=CheckpointConfig(interval=1)))
graph.add_node("a", lambda state: {"n": 1})
graph.add_node("b", lambda state: state.set("n", 2))
graph.add_edge("a", "b", key_equals("n", 1))
graph.set_entry_point("a")
graph.set_exit_point("b")
graph.execute(State({"x": 1}))
"""

RESUMED = """
from stategraph import CheckpointConfig, ExecutionError, GraphConfig, State, StateGraph, key_exists
graph = StateGraph(GraphConfig("bare", observer="noop", checkpoint=CheckpointConfig(interval=1)))
graph.add_node("a", lambda state: {"n": 1})
graph.add_node("b", lambda state: {"m": state["given"]})
graph.add_edge("a", "b", key_exists("n"))
graph.set_entry_point("a")
graph.set_exit_point("b")
try:
    graph.execute(State(run_id="r"))
except ExecutionError:
    graph.resume("r", {"given": 1})
"""

MOST_LINES = 4_275  # of code that a bare run imports: no blank lines, comments or docstrings
MOST_LINES_RESUMED = 4_770

MOST_FILES = 34  # that a durable run goes through, once its graph is compiled

CAPABILITIES = """
    _capabilities _progress _schema policies
    _drivers.aio _drivers.blocking _drivers.iteration _drivers.limits _drivers.one_task _drivers.rides
    _drivers.streams _drivers.threads _drivers.together
    _engine.pauses _engine.recompute _engine.result_cache _engine.selective_store _engine.step _engine.subgraphs
    _engine.announce _engine.placing _engine.calling _engine.node_context _engine.parts _engine.past _graph.checks
    _util.cancellation _util.code_version _values.progress
    _graph.renaming _values.reporting
    config.reading observers._bundled observers.logging observers.multi observers.opentelemetry observers.progress
    nodes._generators nodes._parts nodes.context nodes.interrupt nodes.map nodes.parallel
    nodes.schema_calls nodes.step nodes.subgraph picture
    stores._codec stores.disk stores.serializers stores.sqlite stores.summaries stores.toolkit stores.write_behind
    stores.writer
""".split()
"""Rooms and modules that no bare run needs."""

OTHERS = "asyncio attr cattrs decimal diskcache hashlib logging ormsgpack random sqlite3 structlog tomllib".split()
"""What takes long to import. Only attrs is everywhere."""


def imported_by(code: str) -> dict[str, str | None]:
    """Return the modules that a fresh process has imported after some code, with their files."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    environment["PYTHONPATH"] = str(PACKAGE.parent)
    files = "{name: getattr(module, '__file__', None) for name, module in sys.modules.items()}"
    command = [sys.executable, "-c", f"{code}\nimport json, sys\nprint(json.dumps({files}))"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    modules: dict[str, str | None] = json.loads(done.stdout.splitlines()[-1])
    return modules


def lines_of_code(path: Path) -> int:
    """Return how many lines of a file are neither blank nor a comment nor in a docstring."""
    source = path.read_text(encoding="utf-8")
    docs: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and type(first.value.value) is str:
                docs.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    lines = enumerate(source.splitlines(), 1)
    return sum(1 for number, line in lines if number not in docs and line.strip() and not line.strip().startswith("#"))


def ours(modules: dict[str, str | None]) -> dict[str, Path]:
    """Return the modules of stategraph among them, by their names below it."""
    return {
        name.removeprefix("stategraph."): Path(file)
        for name, file in modules.items()
        if file is not None and name.split(".")[0] == "stategraph"
    }


@pytest.fixture(scope="module")
def bare() -> dict[str, str | None]:
    """Return what a bare run imports."""
    return imported_by(BARE)


def test_a_bare_run_imports_no_capability(bare):
    """They are rooms around the heart, imported by the graphs that use them."""
    found = [name for name in ours(bare) for capability in CAPABILITIES if f"{name}.".startswith(f"{capability}.")]

    assert found == []


def test_a_bare_run_imports_nothing_that_takes_long(bare):
    """Neither of the libraries that stategraph stands on, nor of those of Python."""
    assert sorted(set(OTHERS) & {name.split(".")[0] for name in bare}) == ["attr"]


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_a_capability_is_there(capability):
    """Or the list above would not say anything about it."""
    path = PACKAGE / capability.replace(".", "/")

    assert path.is_dir() or path.with_suffix(".py").is_file()


@pytest.mark.parametrize(("code", "most"), [(BARE, MOST_LINES), (RESUMED, MOST_LINES_RESUMED)], ids=["bare", "resumed"])
def test_the_heart_is_read_in_one_sitting(code, most):
    """Whoever adds to it takes from it."""
    assert most - 200 < sum(map(lines_of_code, ours(imported_by(code)).values())) <= most


def test_a_durable_run_goes_through_few_files(tmp_path):
    """Whoever follows one from `execute` to the file on the disk has these to read."""
    checkpoint = CheckpointConfig(store="sqlite", interval=1, options={"path": str(tmp_path / "runs.db")})
    graph = StateGraph(GraphConfig("durable", observer="noop", checkpoint=checkpoint))
    graph.add_node("a", lambda state: {"n": 1})
    graph.add_node("b", lambda state: {})
    graph.add_edge("a", "b", key_equals("n", 1))
    graph.set_entry_point("a")
    graph.set_exit_point("b")
    graph.execute(State())
    files = set()

    def note(frame, event, _):
        if frame.f_code.co_filename.startswith(str(PACKAGE)):
            files.add(frame.f_code.co_filename)

    state, before = State({"x": 1}), sys.getprofile()
    sys.setprofile(note)
    try:
        graph.execute(state)
    finally:
        sys.setprofile(before)
    graph.store.close()

    assert len(files) <= MOST_FILES, sorted(files)


def test_the_root_imports_nothing():
    """Names are imported when they are asked for."""
    assert list(ours(imported_by("import stategraph"))) == ["stategraph"]


def test_type_checkers_see_the_names_that_there_are():
    """In the file that they read in place of the root."""
    tree = ast.parse((PACKAGE / "__init__.pyi").read_text(encoding="utf-8"))
    told = {
        f"{node.module}.{alias.name}" for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    homes: dict[str, str] = vars(stategraph)["_HOMES"]

    assert told == {f"stategraph.{home}.{name}" for home, names in homes.items() for name in names.split()}
