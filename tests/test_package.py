"""The package: its public names, which way its imports point, what importing it costs, what is in its archives."""

import ast
import importlib
import json
import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import stategraph

PACKAGE = Path(stategraph.__file__).parent
REPOSITORY = PACKAGE.parent
MODULES = sorted(str(path.relative_to(PACKAGE).with_suffix("")).replace("/", ".") for path in PACKAGE.rglob("*.py"))

PUBLIC = """
    AnswerError AsyncNodeError CachePolicy CheckpointConfig CheckpointCorruptError CheckpointError
    CheckpointNotFoundError CheckpointSaveError CheckpointStore CheckpointingDisabledError ConfigError Edge
    ErrorInfo Event EventType ExecutionError FormatError GraphConfig GraphError GraphMismatchError InterruptNode
    InvalidRunIdError MapNode MaxIterationsError MultiObserver NodeContext NotSerializableError Observer
    Owner ParallelNode ParentStep Partial Pause RecomputeError Recovered RetryPolicy RunBusyError RunCancelledError
    RunCompleteError RunExistsError RunLostError RunStatus SchemaError State StateGraph StateGraphError
    StepConflictError UnknownNameError UnknownNodeError Updates
    always and_ get_checkpoint_store get_observer key_equals key_exists not_ or_ register_checkpoint_store
    register_observer register_type
""".split()

MEMBERS = {
    "State": """
        run_id checkpoint_node timestamp step status graph error pause parent partial observer get keys values items
        set update remove merge clone set_checkpoint_node checkpoint paused
    """,
    "StateGraph": """
        name nodes edges fingerprint add_node add_edge set_entry_point set_exit_point validate
        execute resume aexecute aresume run arun turn aturn submit recover arecover cancel
        stream astream stream_resume astream_resume as_node set_defaults picture
    """,
    "GraphConfig": "from_dict to_dict from_file merge",
    "CheckpointStore": "save load delete list close",
    "Observer": "on_event",
    "Event": "type timestamp source data",
    "RunStatus": "ACTIVE PAUSED COMPLETED FAILED CANCELLED",
}


# --------------------------------------------------------------------------- names


def test_the_public_names_are_those_listed_here() -> None:
    """A new one is a decision, not an accident."""
    assert sorted(stategraph.__all__) == sorted(PUBLIC)
    assert len(set(stategraph.__all__)) == len(stategraph.__all__)


def test_a_public_name_says_what_it_is_for() -> None:
    """And is one of stategraph's own."""
    things = {name: getattr(stategraph, name) for name in PUBLIC}

    assert [name for name, thing in things.items() if not thing.__doc__] == []
    assert [name for name, thing in things.items() if not thing.__module__.startswith("stategraph.")] == []


@pytest.mark.parametrize("name", MEMBERS)
def test_the_public_members_are_there(name: str) -> None:
    """The names that users write."""
    assert [member for member in MEMBERS[name].split() if not hasattr(getattr(stategraph, name), member)] == []


def test_a_name_that_is_not_there_is_told_as_by_any_module() -> None:
    """Although names are looked up when they are asked for."""
    with pytest.raises(AttributeError, match="module 'stategraph' has no attribute 'Graph'"):
        _ = stategraph.Graph  # type: ignore[attr-defined]


def test_modules_of_the_root_can_be_reached_from_it() -> None:
    """As where all of them had been imported."""
    assert stategraph.errors.GraphError is stategraph.GraphError
    assert {"errors", "StateGraph", "__version__"} <= set(dir(stategraph))


@pytest.mark.parametrize("package", ["stores", "config", "observers", "picture", "testing", "cli"])
def test_each_package_lists_its_names(package: str) -> None:
    """And all that it lists is there."""
    module = importlib.import_module(f"stategraph.{package}")

    assert sorted(module.__all__) == sorted(set(module.__all__))
    assert all(hasattr(module, name) for name in module.__all__)


# --------------------------------------------------------------------------- what importing costs


def modules_after(code: str) -> set[str]:
    """-> the modules that a fresh process has imported after some code; nobody measures it, for that imports, too."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    command = [sys.executable, "-c", f"{code}\nimport json, sys\nprint(json.dumps(list(sys.modules)))"]
    return set(
        json.loads(
            subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout.splitlines()[-1]
        )
    )


HEAVY = {
    "structlog",
    "cattrs",
    "diskcache",
    "ormsgpack",
    "asyncio",
    "sqlite3",
    "pickle",
    "logging",
    "tomllib",
    "hashlib",
}


def test_importing_stategraph_imports_nothing_heavy() -> None:
    """What a run does not use is imported when it is used."""
    assert HEAVY & modules_after("import stategraph") == set()


_SMALL_RUN = """
from stategraph import *
graph = StateGraph(GraphConfig("g", checkpoint=CheckpointConfig(interval=1)))
graph.add_node("a", lambda state: {"a": 1})
graph.set_entry_point("a")
graph.set_exit_point("a")
graph.execute(State())
"""


def test_a_small_run_imports_only_what_it_uses() -> None:
    """A sync run with the memory store needs no codec, no database, nor more than a line of text to log."""
    assert {"structlog", "cattrs", "diskcache", "ormsgpack", "sqlite3"} & modules_after(_SMALL_RUN) == set()


_IMPORT_EACH_FIRST = """
import attr._make, functools, importlib, json, sys, types
attr._make.compile = functools.cache(compile)  # what attrs makes of a class is the same each time
package, *modules = sys.argv[1:]
failed = {}
for module in modules:
    for name in [name for name in sys.modules if name.partition(".")[0] == "stategraph"]:
        del sys.modules[name]
    # In place of the package, whose __init__ imports nearly all of it, stands one that imports nothing.
    root = sys.modules["stategraph"] = types.ModuleType("stategraph")
    root.__path__ = [package]
    try:
        if not importlib.import_module(f"stategraph.{module}").__doc__:
            failed[module] = "has no docstring"
    except Exception as error:
        failed[module] = repr(error)
print(json.dumps(failed))
"""


def test_each_module_can_be_imported_first() -> None:
    """Before anything else of stategraph, so that no module needs another one to have been imported before it."""
    modules = [module.removesuffix(".__init__") for module in MODULES if module != "__init__"]
    command = [sys.executable, "-c", _IMPORT_EACH_FIRST, str(PACKAGE), *modules]
    result = subprocess.run(command, check=True, capture_output=True, text=True)

    assert json.loads(result.stdout) == {}


# --------------------------------------------------------------------------- archives

_PYPROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
SHIPPED: list[str] = _PYPROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["only-include"]
"""What the sdist is made of."""

_BUILD = """
import sys
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder
for builder in (WheelBuilder, SdistBuilder):
    print(*builder(sys.argv[1]).build(directory=sys.argv[2], versions=["standard"]))
"""


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """-> the names of all files in the wheel and in the sdist."""
    pytest.importorskip("hatchling", reason="builds the archives")
    if not (REPOSITORY / "pyproject.toml").is_file():
        pytest.skip("this is an installed package")
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-c", _BUILD, str(REPOSITORY), str(folder)]
    built = subprocess.run(command, check=False, capture_output=True, text=True, cwd=folder)
    assert built.returncode == 0, built.stderr
    wheel, sdist = next(folder.glob("*.whl")), next(folder.glob("*.tar.gz"))
    with zipfile.ZipFile(wheel) as zipped, tarfile.open(sdist) as tarred:
        return {
            "wheel": zipped.namelist(),
            "sdist": [member.name.partition("/")[2] for member in tarred if not member.isdir()],
        }


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_an_archive_holds_each_file_once(archives: dict[str, list[str]], kind: str) -> None:
    """The links at the top of the repository are not followed."""
    names = archives[kind]

    assert [name for name, count in Counter(names).items() if count > 1] == []
    assert {name for name in names if name.startswith("stategraph/")} == {
        str(path.relative_to(REPOSITORY))
        for path in PACKAGE.rglob("*")
        if path.is_file() and path.suffix in (".py", ".pyi", ".typed")
    }
    assert not [name for name in names if name.startswith(("stores", "config"))]


def test_the_sdist_holds_what_its_files_need(archives: dict[str, list[str]]) -> None:
    """All folders whose modules they import, with every file that the folder of the repository has."""
    tops = {Path(name).parts[0] for name in archives["sdist"]}

    assert set(SHIPPED) <= tops
    for folder in (name for name in SHIPPED if (REPOSITORY / name).is_dir()):
        code = {str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / folder).rglob("*.py")}
        assert code <= set(archives["sdist"]), folder


def test_what_shipped_files_import_is_shipped() -> None:
    """Whoever unpacks the sdist can run its tests: no folder is missing that one of its modules imports from."""
    repository = Path(__file__).parents[1]
    folders = {path.name for path in repository.iterdir() if path.is_dir() and not path.is_symlink()}
    shipped = {path for name in SHIPPED for path in (repository / name).rglob("*.py")}

    needed = {
        name.partition(".")[0]
        for path in shipped
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else _plainly_imported(node))
    }

    assert {"stategraph", "tests", "proof"} <= needed & folders <= set(SHIPPED)
    assert [name for name in SHIPPED if not (repository / name).exists()] == []


def _plainly_imported(node: ast.AST) -> list[str]:
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []


def test_the_wheel_installs_one_package(archives: dict[str, list[str]]) -> None:
    """And nothing that another package might be named."""
    tops = {name.partition("/")[0] for name in archives["wheel"]}

    assert {top for top in tops if not top.endswith(".dist-info")} == {"stategraph"}
    assert "stategraph/py.typed" in archives["wheel"]


def test_no_archive_holds_what_a_tool_left_behind(archives: dict[str, list[str]]) -> None:
    """Caches and databases stay at home."""
    for names in archives.values():
        others = [name for name in names if "tests/golden/" not in name]
        folders = [folder for name in others for folder in Path(name).parts[:-1]]
        assert not [folder for folder in folders if folder.endswith("cache") or folder == "__pycache__"]
        assert not [name for name in others if ".db" in name]


def test_type_checkers_are_told_of_the_annotations() -> None:
    """PEP 561."""
    assert (PACKAGE / "py.typed").is_file()


def test_the_links_at_the_top_lead_into_the_package() -> None:
    """They are for readers; nobody imports them."""
    for name in ("stores", "config"):
        link = REPOSITORY / name
        if link.exists():
            assert link.is_symlink()
            assert link.resolve() == PACKAGE / name


def test_the_version_is_one() -> None:
    """Three numbers."""
    version: Any = stategraph.__version__

    assert [part.isdigit() for part in version.split(".")] == [True] * 3
