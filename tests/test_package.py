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
from collections.abc import Iterator
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
    ParallelNode ParentStep Partial Pause RecomputeError RetryPolicy RunCancelledError RunCompleteError
    RunExistsError RunStatus SchemaError State StateGraph StateGraphError StepConflictError UnknownNameError
    UnknownNodeError
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
        execute resume aexecute aresume stream astream stream_resume astream_resume as_node set_defaults
    """,
    "GraphConfig": "from_dict to_dict from_file merge",
    "CheckpointStore": "save load delete list close",
    "Observer": "on_event",
    "Event": "type timestamp source data",
    "RunStatus": "ACTIVE PAUSED COMPLETED FAILED",
}


# --------------------------------------------------------------------------- names


def test_the_public_names_are_those_listed_here() -> None:
    """A new one is a decision, not an accident."""
    assert sorted(stategraph.__all__) == sorted(PUBLIC)
    assert len(set(stategraph.__all__)) == len(stategraph.__all__)


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_is_there(name: str) -> None:
    """And says what it is for."""
    thing = getattr(stategraph, name)

    assert thing.__doc__
    assert thing.__module__.startswith("stategraph.")


@pytest.mark.parametrize(
    ("name", "member"), [(name, part) for name, parts in MEMBERS.items() for part in parts.split()]
)
def test_a_public_member_is_there(name: str, member: str) -> None:
    """The names that users write."""
    assert hasattr(getattr(stategraph, name), member)


def test_nothing_else_stands_in_the_root() -> None:
    """Besides modules and what Python puts there."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}

    assert imported == set(PUBLIC)


@pytest.mark.parametrize("package", ["stores", "config", "observers", "testing"])
def test_each_package_lists_its_names(package: str) -> None:
    """And all that it lists is there."""
    module = importlib.import_module(f"stategraph.{package}")

    assert sorted(module.__all__) == sorted(set(module.__all__))
    assert all(hasattr(module, name) for name in module.__all__)


# --------------------------------------------------------------------------- which way imports point

LAYERS = [
    ["hidden"],
    ["clock", "errors", "callables", "mismatches", "code_version", "dropped", "cancellation"],
    ["failures"],
    ["ids", "structure", "events", "frozen", "registry", "commands", "nodes.context", "checks", "typed", "sameness"],
    ["provenance"],
    ["state"],
    ["persist", "watching", "answers"],
    ["edges", "nodes", "schema", "services", "config", "policies"],
    ["stores", "observers", "plan", "validation", "fitting", "visit"],
    ["blueprint", "caching", "recompute"],
    ["run"],
    ["waking"],
    ["starting"],
    ["engine"],
    ["drivers"],
    ["graph"],
    ["testing"],
    ["__init__"],
]
"""From the bottom to the top. A module imports modules of lower layers, and those of its own package or line."""

ALLOWED: dict[str, set[str]] = {
    "config": {"checks", "errors", "hidden"},
    "observers": {"errors", "events", "registry"},
    "stores": {
        *("answers", "callables", "checks", "clock", "dropped", "errors", "frozen", "hidden", "ids", "provenance"),
        *("registry", "sameness", "state"),
        "structure",
    },
    "run": {
        *("commands", "edges", "errors", "events", "frozen", "nodes", "nodes.context", "plan", "provenance", "schema"),
        *("services", "state", "visit"),
    },
    "starting": {
        *("answers", "commands", "errors", "events", "fitting", "frozen", "ids", "persist", "plan"),
        *("provenance", "waking", "recompute", "run", "sameness", "state", "visit"),
    },
    "engine": {
        *("commands", "edges", "errors", "events", "frozen", "nodes", "nodes.context", "plan", "provenance", "run"),
        *("starting", "state", "visit"),
    },
    "nodes": {
        *(
            "answers",
            "callables",
            "cancellation",
            "checks",
            "commands",
            "dropped",
            "errors",
            "frozen",
            "ids",
            "nodes.context",
            "provenance",
            "sameness",
            "schema",
            "state",
            "typed",
            "watching",
        ),
    },
    "drivers": {
        *("callables", "cancellation", "commands", "dropped", "engine", "errors", "failures", "provenance", "state"),
    },
    "state": {"checks", "clock", "errors", "events", "frozen", "ids", "provenance", "structure"},
    "errors": {"hidden"},
    "clock": set(),
    "dropped": set(),
}
"""What the more important ones may import besides themselves."""

KNOWS_THE_WORLD = ("graph", "testing", "__init__")
"""Who may import stores, config and observers."""


def unit_of(module: str) -> str:
    """-> the module, or the package where that is what LAYERS speaks of."""
    module = module.removesuffix(".__init__")
    known = {name for layer in LAYERS for name in layer}
    while module not in known and "." in module:
        module = module.rpartition(".")[0]
    return module


def imports_of(module: str) -> Iterator[tuple[str, ast.ImportFrom | ast.Import]]:
    """-> the modules of stategraph that a module imports at run time, functions included."""
    tree = ast.parse((PACKAGE / f"{module.replace('.', '/')}.py").read_text())
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, node) for alias in node.names if alias.name.split(".")[0] == "stategraph")
        if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").split(".")[0] == "stategraph"):
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                is_module = submodule.removeprefix("stategraph.") in {m.removesuffix(".__init__") for m in MODULES}
                yield (submodule if is_module else node.module or "", node)


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_down(module: str) -> None:
    """A module knows what stands below it, and nothing of what stands above."""
    height = {name: number for number, layer in enumerate(LAYERS) for name in layer}
    unit = unit_of(module)
    if module == "nodes.__init__":
        return
    assert unit in height, f"{module} has no place in LAYERS yet"

    for imported, node in imports_of(module):
        other = unit_of(imported.removeprefix("stategraph").removeprefix(".") or "__init__")
        where = f"{module}.py:{node.lineno} imports {imported}"
        if other == unit:
            continue
        assert height[other] <= height[unit], where
        assert unit not in ALLOWED or other in ALLOWED[unit], where
        assert other not in ("stores", "config", "observers") or unit in KNOWS_THE_WORLD, where


@pytest.mark.parametrize("module", [module for module in MODULES if module != "__init__"])
def test_nothing_is_imported_from_the_root(module: str) -> None:
    """But modules: a name is imported from where it is defined, and by its full path."""
    for imported, node in imports_of(module):
        assert imported != "stategraph", f"{module}.py:{node.lineno}"
        assert not (isinstance(node, ast.ImportFrom) and node.level), f"{module}.py:{node.lineno} is relative"


def test_no_modules_import_each_other() -> None:
    """Not inside functions either, where Python would not notice."""
    graph = {
        module.removesuffix(".__init__"): {
            imported.removeprefix("stategraph.") for imported, _ in imports_of(module) if imported != "stategraph"
        }
        for module in MODULES
    }
    for module, imported in graph.items():
        seen: set[str] = set()
        ahead = list(imported)
        while ahead:
            other = ahead.pop()
            if other in seen or other not in graph:
                continue
            seen.add(other)
            # A package is made of its modules; that it imports them is no circle.
            ahead += [name for name in graph[other] if not name.startswith(f"{other}.")]
        assert module not in seen, f"{module} imports itself in the end"


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
graph = StateGraph(GraphConfig("g", observer="noop", checkpoint=CheckpointConfig(interval=1)))
graph.add_node("a", lambda state: {"a": 1})
graph.set_entry_point("a")
graph.set_exit_point("a")
graph.execute(State())
"""


def test_a_small_run_imports_only_what_it_uses() -> None:
    """A sync run with the memory store needs no codec, no database, no log."""
    assert {"structlog", "cattrs", "diskcache", "ormsgpack", "sqlite3"} & modules_after(_SMALL_RUN) == set()


@pytest.mark.parametrize("module", [module.removesuffix(".__init__") for module in MODULES if module != "__init__"])
def test_each_module_can_be_imported_first(module: str) -> None:
    """In whatever order an application imports them."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text())

    assert ast.get_docstring(tree)
    assert importlib.import_module(f"stategraph.{module}").__doc__


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
        if path.is_file() and path.suffix in (".py", ".typed")
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
