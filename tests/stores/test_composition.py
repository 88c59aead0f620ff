"""What the stores are made of: objects that know each other by their public names, none of them large."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import stategraph
from stategraph.stores.disk import DiskStore
from stategraph.stores.memory import MemoryStore
from stategraph.stores.sqlite import SqliteStore

ROOT = Path(stategraph.__file__).parent / "stores"
FILES = sorted(ROOT.rglob("*.py"))

# Of named tuples, enums and locks, as the standard library has them; of connections of redis-py: it has no other way.
FOREIGN = {"_fields", "_replace", "_value_", "_is_owned", "_sock"}
MOST_METHODS = 45
MOST_LINES = 50


def private_names(tree: ast.AST) -> set[str]:
    """Return the private names that a module asks of objects, and does not define itself."""
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    asked = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr.startswith("_"))
    others = (node for node in asked if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")))
    return {node.attr for node in others if not node.attr.endswith("__")} - own


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_an_object_asks_others_for_public_names_only(file):
    """`_discard` and `_save_runs` are what a run may ask of a store, and so may what stands before one."""
    asked = private_names(ast.parse(file.read_text(encoding="utf-8")))

    assert asked - FOREIGN - {"_discard", "_save_runs"} == set()


@pytest.mark.parametrize("store", [MemoryStore, SqliteStore, DiskStore])
def test_no_store_is_large(store):
    """Its own methods and those it inherits."""
    names = {name for kind in store.__mro__[:-1] for name, value in vars(kind).items() if callable(value)}

    assert len(names) <= MOST_METHODS


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_a_function_fits_a_glance(file):
    tree = ast.parse(file.read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]

    assert [one.name for one in functions if (one.end_lineno or 0) - one.lineno >= MOST_LINES] == []
