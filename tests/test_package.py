"""The package: its public names, the cost of its imports, and the contents of its archives."""

import ast
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections import Counter
from importlib import metadata
from pathlib import Path

import pytest

import stategraph

PACKAGE = Path(stategraph.__file__).parent
REPOSITORY = PACKAGE.parent
LOCKS = Path(__file__).parents[1] / "tools" / "locks"
_PYPROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))

PUBLIC = """
    Answer AnswerError AsyncNodeError CachePolicy CheckpointConfig CheckpointCorruptError CheckpointError
    CheckpointNotFoundError CheckpointSaveError CheckpointStore CheckpointingDisabledError ConfigError Edge
    EffectsError EntriesNotKeptError EntryExistsError
    ErrorInfo Event EventType ExecutionError FileRef FormatError GraphConfig GraphError GraphMismatchError InterruptNode
    InvalidRunIdError LimitError MapNode MaxIterationsError MultiObserver NodeContext NotSerializableError Observer
    Owner ParallelNode ParentStep Partial Pause RecomputeError Recovered Repeat RetryPolicy RunBusyError
    RunCancelledError RunCheck
    RunCompleteError RunExistsError RunLostError RunStatus SchemaError State StateGraph StateGraphError
    StepConflictError UnknownNameError UnknownNodeError Updates WaitNode
    always and_ get_checkpoint_store get_observer id_of key_equals key_exists not_ or_ register_checkpoint_store
    register_observer register_type
""".split()

# --------------------------------------------------------------------------- names


def test_the_public_names_are_those_listed_here() -> None:
    """A new one is a decision, not an accident."""
    assert sorted(stategraph.__all__) == sorted(PUBLIC)
    assert len(set(stategraph.__all__)) == len(stategraph.__all__)


# --------------------------------------------------------------------------- what importing costs


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
"""Libraries that take long to import; only attrs is always imported."""


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
    """A bare run imports no slow library, neither a dependency nor one of Python."""
    assert sorted(set(OTHERS) & {name.split(".")[0] for name in bare}) == ["attr"]


def test_the_root_imports_nothing():
    """The root imports a name on its first use."""
    assert [name for name in imported_by("import stategraph") if name.split(".")[0] == "stategraph"] == ["stategraph"]


def test_type_checkers_see_the_names_that_there_are():
    """The stub of the root has all public names."""
    tree = ast.parse((PACKAGE / "__init__.pyi").read_text(encoding="utf-8"))
    typed = {
        f"{node.module}.{alias.name}" for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    homes: dict[str, str] = vars(stategraph)["_HOMES"]

    assert typed == {f"stategraph.{home}.{name}" for home, names in homes.items() for name in names.split()}


# --------------------------------------------------------------------------- the distribution

_ELSEWHERE = re.compile(r"""['"]\.\[[a-z]|(?<![\w/])docs/|\bREADME|\b(?:AGENTS|ARCHITECTURE|CHANGELOG|SECURITY)\.md""")


def test_the_package_names_nothing_that_the_wheel_lacks():
    """No message and no docstring leads to a file of the repository, or to an install from a clone of it."""
    sources = [path for ending in ("py", "pyi", "html", "js") for path in PACKAGE.rglob(f"*.{ending}")]

    assert [
        f"{path.relative_to(PACKAGE)}:{number}: {line.strip()}"
        for path in sources
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if _ELSEWHERE.search(line)
    ] == []


def test_one_distribution_brings_the_package():
    """It is durable-stategraph, and nothing that an older checkout has installed stays beside it."""
    found = [info for info in metadata.distributions() if info.name.endswith("stategraph")]

    assert {(info.name, info.version) for info in found} == {("durable-stategraph", stategraph.__version__)}


def test_the_locks_have_what_pyproject_names():
    """They have the backend that pyproject.toml pins, and a version of all that the bill of materials names."""
    locked = {name: _names_in(LOCKS / f"{name}.txt") for name in ("release", "others", "free-threads", "package")}
    project = _PYPROJECT["project"]
    extras = [requirement for extra in project["optional-dependencies"].values() for requirement in extra]

    for name in ("release", "others", "free-threads"):
        assert set(_PYPROJECT["build-system"]["requires"]) <= locked[name], name
    assert {re.split(r"[\[<>=]", requirement)[0] for requirement in [*project["dependencies"], *extras]} <= {
        pin.partition("==")[0] for pin in locked["package"]
    }


def _names_in(lock: Path) -> set[str]:
    """Return the pins of a lock, as in `name==1.0`."""
    return set(re.findall(r"^[\w.-]+==[\w.]+", lock.read_text(encoding="utf-8"), re.MULTILINE))


# --------------------------------------------------------------------------- archives

SHIPPED: list[str] = _PYPROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["only-include"]
"""The contents of the sdist."""

_BUILD = """
import sys
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder
for builder in (WheelBuilder, SdistBuilder):
    print(*builder(sys.argv[1]).build(directory=sys.argv[2], versions=["standard"]))
"""


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Return the names of all files in the wheel and in the sdist."""
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


def test_no_archive_holds_what_a_tool_left_behind(archives: dict[str, list[str]]) -> None:
    """Caches and databases stay at home."""
    for names in archives.values():
        others = [name for name in names if "tests/golden/" not in name]
        folders = [folder for name in others for folder in Path(name).parts[:-1]]
        assert not [folder for folder in folders if folder.endswith("cache") or folder == "__pycache__"]
        assert not [name for name in others if ".db" in name]
