"""What a run imports: a bare run imports nothing that takes long."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import stategraph

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


@pytest.fixture(scope="module")
def bare() -> dict[str, str | None]:
    """Return what a bare run imports."""
    return imported_by(BARE)


def test_a_bare_run_imports_nothing_that_takes_long(bare):
    """Neither of the libraries that stategraph stands on, nor of those of Python."""
    assert sorted(set(OTHERS) & {name.split(".")[0] for name in bare}) == ["attr"]


def test_the_root_imports_nothing():
    """Names are imported when they are asked for."""
    assert [name for name in imported_by("import stategraph") if name.split(".")[0] == "stategraph"] == ["stategraph"]


def test_type_checkers_see_the_names_that_there_are():
    """In the file that they read in place of the root."""
    tree = ast.parse((PACKAGE / "__init__.pyi").read_text(encoding="utf-8"))
    told = {
        f"{node.module}.{alias.name}" for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    homes: dict[str, str] = vars(stategraph)["_HOMES"]

    assert told == {f"stategraph.{home}.{name}" for home, names in homes.items() for name in names.split()}
