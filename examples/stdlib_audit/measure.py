"""Measure one file from its syntax tree. Audited files are never imported."""

import ast
import warnings
from pathlib import Path
from typing import Any, TypeAlias

from stdlib_audit.discover import module_name
from stdlib_audit.imports import Import, import_time_imports, imported_names
from stdlib_audit.syntax import Definition, FunctionNode, own_nodes, statements

Measurement: TypeAlias = dict[str, Any]

_BRANCHES = (ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.match_case)


def measure(root: Path, file: str) -> Measurement:
    """Measure one file below `root`.

    The result is plain data:

    - file, module, lines
    - functions, classes: how many it defines, at any depth
    - complexity: of the whole file; complexity_max and most_complex: of and in its most complex function
    - missing_docstrings: public definitions, the module included, that have none
    - imports: the dotted names it asks for when it is imported
    - deferred_imports: how many import statements do not run then
    - error: None, or why it could not be parsed; what needs its syntax tree is zero then
    """
    try:
        source = (root / file).read_bytes()
    except OSError as error:
        return _measurement(file, b"", {"error": type(error).__name__})
    try:
        tree = _parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return _measurement(file, source, {"error": _reason(error)})
    return _measurement(file, source, _of_tree(tree, file))


def _measurement(file: str, source: bytes, known: Measurement) -> Measurement:
    unknown = {
        "functions": 0,
        "classes": 0,
        "complexity": 0,
        "complexity_max": 0,
        "most_complex": "",
        "missing_docstrings": 0,
        "imports": [],
        "deferred_imports": 0,
        "error": None,
    }
    return {"file": file, "module": module_name(file), "lines": len(source.splitlines())} | unknown | known


def _parse(source: bytes) -> ast.Module:
    with warnings.catch_warnings():
        # The standard library's own tests are full of code that warns on purpose.
        warnings.simplefilter("ignore")
        return ast.parse(source)


def _reason(error: Exception) -> str:
    # The str of a SyntaxError repeats where it happened, which differs between versions of the parser.
    return f"{type(error).__name__}: {error.msg if isinstance(error, SyntaxError) else error}"


def _of_tree(tree: ast.Module, file: str) -> Measurement:
    inside = list(statements(tree))
    defined = [(prefix + node.name, node) for prefix, node in inside if isinstance(node, Definition)]
    now = list(import_time_imports(tree))
    return {
        "classes": sum(isinstance(node, ast.ClassDef) for _, node in defined),
        "missing_docstrings": _missing_docstrings(defined) + _undocumented(tree, module_name(file)),
        "imports": sorted({name for statement in now for name in imported_names(statement, file)}),
        "deferred_imports": sum(isinstance(node, Import) for _, node in inside) - len(now),
        **_complexities(tree, defined),
    }


def _complexities(tree: ast.Module, defined: list[tuple[str, Definition]]) -> Measurement:
    each = [(complexity(node), name) for name, node in defined if isinstance(node, FunctionNode)]
    most, name = max(each, default=(0, ""))
    return {
        "functions": len(each),
        "complexity": complexity(tree) + sum(value for value, _ in each),
        "complexity_max": most,
        "most_complex": name,
    }


def complexity(unit: ast.AST) -> int:
    """Return the cyclomatic complexity of a module or function, after McCabe: one, plus one for each decision.

    A decision is an if, a loop, an except or case clause, a conditional expression, each operand of `and` and
    `or` after the first, and each loop and condition of a comprehension. Functions inside it count apart.
    """
    return 1 + sum(map(_decisions, own_nodes(unit)))


def _decisions(node: ast.AST) -> int:
    if isinstance(node, _BRANCHES):
        return 1
    if isinstance(node, ast.BoolOp):
        return len(node.values) - 1
    return 1 + len(node.ifs) if isinstance(node, ast.comprehension) else 0


def _missing_docstrings(defined: list[tuple[str, Definition]]) -> int:
    return sum(_undocumented(node, name) for name, node in defined)


def _undocumented(node: Definition | ast.Module, name: str) -> bool:
    # A name inside a function begins with <locals>, which makes it as private as an underscore does.
    public = not any(part.startswith(("_", "<")) for part in name.split("."))
    return public and ast.get_docstring(node, clean=False) is None
