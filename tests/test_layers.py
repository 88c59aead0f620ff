"""Imports point one way through the rooms of the package, including imports for type checkers."""

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import stategraph

PACKAGE = Path(stategraph.__file__).parent

ROOMS = """
    _text errors _util _values types _owners state _progress edges policies _protocol _schema nodes _graph _engine
    _drivers config observers stores picture _calls _batches _sweeps _following _replaying _plan graph turns agents
    _dbos dbos __init__ testing cli web
""".split()
"""From the bottom to the top. A room imports rooms before it, and itself."""

STRANGERS = {
    "stores": {"edges", "_protocol", "_schema", "nodes", "_graph", "_engine", "_drivers", "config"},
    "observers": {"state", "edges", "policies", "_schema", "nodes", "_graph", "_engine", "_drivers", "config"},
    "config": {"_values", "state", "edges", "policies", "_schema", "nodes", "_graph", "_engine", "_drivers"},
}
"""Earlier rooms that a room may not import."""

EXCEPTIONS = {
    ("state", "_schema.schema"): "`State.to` needs a schema only when it is called",
    ("state", "stores.serializers"): "`State.to_json` needs the JSON of stores only when it is called",
    ("stores._files.results", "stores._rows.seals"): "the key of a cache is checked as that of a store is",
    ("stores._codec.states", "stores.serializers"): "the bytes of a State name their serializer",
}
"""Imports that point upward, or close a circle, each with its reason. Those of State are by name, when it is used."""

PUBLIC = """
    __init__ agents.__init__ agents.pydantic_ai.__init__ config dbos edges errors graph nodes observers picture
    policies state testing turns types
    stores.__init__ stores.base stores.disk stores.memory stores.postgres stores.redis stores.registry
    stores.serializers stores.sqlite stores.summaries stores.toolkit cli.__init__ web.__init__
""".split()
"""Modules that users may import, and packages whose modules they may. All others are private by their names."""


def _module_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


MODULES = {_module_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


@cache
def imports_of(module: str) -> list[tuple[str, int]]:
    """Return the modules of stategraph that a module imports anywhere, each with the line."""
    return [*_imports_in(module)]


def _imports_in(module: str) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "stategraph":
                    yield _known(alias.name), node.lineno
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}:{node.lineno}: an import from stategraph is by its full name"
            if (node.module or "").split(".")[0] == "stategraph":
                for alias in node.names:
                    yield _known(f"{node.module}.{alias.name}", str(node.module)), node.lineno
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "import_module":
            name = ast.literal_eval(node.args[0]) if isinstance(node.args[0], ast.Constant) else ""
            if name.startswith("stategraph."):
                yield _known(name), node.lineno


def _argued(module: str) -> Iterator[tuple[str, int]]:
    """Yield the same, without the exceptions."""
    return ((imported, line) for imported, line in imports_of(module) if (module, imported) not in EXCEPTIONS)


def _known(*names: str) -> str:
    """Return the module that one of the names is of, as MODULES has it."""
    for name in names:
        path = name.removeprefix("stategraph").removeprefix(".")
        for module in (path, f"{path}.__init__".removeprefix(".")):
            if module in MODULES:
                return module
    raise AssertionError(f"there is no module {names[-1]}")


def room_of(module: str) -> str:
    """Return the room that a module is in."""
    return module.split(".", maxsplit=1)[0]


def test_every_module_has_a_room():
    """Every module has a room, and every room has modules."""
    assert {room_of(module) for module in MODULES} == set(ROOMS)


def test_imports_point_one_way():
    """A room knows the rooms below it, and nothing of those above."""
    wrong = []
    for module in MODULES:
        room = room_of(module)
        for imported, line in _argued(module):
            other = room_of(imported)
            if ROOMS.index(other) > ROOMS.index(room) or other in STRANGERS.get(room, ()):
                wrong.append(f"{module}:{line} imports {imported}")

    assert wrong == []


def test_no_modules_import_each_other():
    """No modules import each other, neither within a room nor inside functions."""
    _check_circles({module: {other for other, _ in _argued(module)} for module in MODULES})


def test_no_folders_of_a_room_import_each_other():
    """The folders and modules of a room, such as `stores/_rows`, have an order too."""
    graph: dict[str, set[str]] = {}
    for module in MODULES:
        others = {_folder_of(other) for other, _ in _argued(module) if room_of(other) == room_of(module)}
        graph.setdefault(_folder_of(module), set()).update(others - {_folder_of(module)})
    _check_circles(graph)


def test_exceptions_are_used():
    """An exception is removed with the import that it argues for."""
    used = {(module, imported) for module in MODULES for imported, _ in imports_of(module)}

    assert EXCEPTIONS.keys() <= used


def _folder_of(module: str) -> str:
    return ".".join(module.split(".")[:2])


def _check_circles(graph: dict[str, set[str]]) -> None:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


def test_nothing_is_imported_from_the_root():
    """A name is imported from where it is defined."""
    importers = [module for module in MODULES if "__init__" in dict(imports_of(module))]

    assert [module for module in importers if module != "__init__"] == []


def test_private_modules_have_private_names():
    """A reader sees from the path of a module whether it may be relied on."""
    unnamed = [
        module
        for module in MODULES
        if not any(part.startswith("_") and part != "__init__" for part in module.split("."))
    ]

    assert [module for module in unnamed if module not in PUBLIC and room_of(module) not in PUBLIC] == []
