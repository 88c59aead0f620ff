"""Tests go through public doors; one that looks inside says so with the mark ``inside``."""

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent
VALUES = "stategraph._values."
"""Values are what a store or a node is given, whichever module defines them."""
NO_PRIVATES = {"_exit", "_replace", "_repr_html_", "_secret"}
"""Public names of Python, and of notebooks, that begin with an underscore, and a field of a class that a test has."""


def imported(tree: ast.Module) -> Iterator[str]:
    """Yield the names under which a module has imported what is private of stategraph."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "stategraph":
            for alias in node.names:
                full_name = f"{node.module}.{alias.name}"
                if "._" in full_name and not full_name.startswith(VALUES):
                    yield alias.asname or alias.name


def touches(node: ast.AST, private: set[str]) -> bool:
    """Tell whether a node of the syntax tree, or one below it, touches something private."""
    for part in ast.walk(node):
        match part:
            case ast.Name(id=name) | ast.arg(arg=name) if name in private:
                return True
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                continue
            case ast.Attribute(attr=name) if name.startswith("_") and not name.startswith("__"):
                if name not in NO_PRIVATES:
                    return True
    return False


def names_of(statement: ast.stmt) -> set[str]:
    """Return the names that a statement at the top of a module gives to something."""
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.Assign(targets=targets):
            return {target.id for target in targets if isinstance(target, ast.Name)}
        case ast.AnnAssign(target=ast.Name(id=name)):
            return {name}
    return set()


def inside_of(tree: ast.Module) -> set[str]:
    """Return the names of a module that are private of stategraph, or helpers and fixtures that touch what is."""
    private, before = set(imported(tree)), -1
    while len(private) > before:
        before = len(private)
        for statement in tree.body:
            names = names_of(statement)
            if not any(name.lower().startswith("test") for name in names) and touches(statement, private):
                private |= names
    return private


def that_look_inside(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the tests of a module that look inside."""
    private = inside_of(tree)
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                if name.startswith("test") and touches(node, private):
                    yield node


def is_all_inside(tree: ast.Module) -> bool:
    """Tell whether a module is marked as a whole."""
    marks = (ast.unparse(node) for node in tree.body if names_of(node) == {"pytestmark"})
    return any("pytest.mark.inside" in mark for mark in marks)


def test_who_looks_inside_says_so() -> None:
    """Also one that has a helper do it. What such a test asserts may change with the code."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(TESTS.rglob("test_*.py"))}
    unmarked = [
        f"{path.relative_to(TESTS)}:{test.lineno}: {test.name}"
        for path, tree in trees.items()
        if not is_all_inside(tree)
        for test in that_look_inside(tree)
        if "pytest.mark.inside" not in map(ast.unparse, test.decorator_list)
    ]

    assert unmarked == []
