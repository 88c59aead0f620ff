"""Find the imports of a file, and when they run.

Only what is imported while a file is itself being imported can close an import cycle. An import in a function
runs later, one under `if TYPE_CHECKING` never, and one under `if __name__ == "__main__"` only in a script.
"""

import ast
from collections.abc import Iterator

from stdlib_audit.discover import package_name
from stdlib_audit.syntax import FunctionNode, inner

Import = ast.Import | ast.ImportFrom


def import_time_imports(tree: ast.Module) -> Iterator[Import]:
    """Return the import statements that run when the file is imported, including those of class bodies."""
    pending = list(inner(tree))
    while pending:
        node = pending.pop()
        if isinstance(node, Import):
            yield node
        pending.extend(_run_on_import(node))


def _run_on_import(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, FunctionNode):
        return iter(())
    if isinstance(node, ast.If) and _is_false_on_import(node.test):
        return iter(node.orelse)
    return inner(node)


def _is_false_on_import(test: ast.expr) -> bool:
    match test:
        case ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING"):
            return True
        case ast.Compare(left=ast.Name(id="__name__"), ops=[ast.Eq()]):
            return True
    return False


def imported_names(statement: Import, file: str) -> list[str]:
    """Return the absolute dotted names that a statement in `file` imports.

    `from a import b` asks for `a.b`: whether that is a module or a name in it shows only once all modules
    are known. A relative import that leaves its top package, which Python refuses too, asks for nothing.
    """
    if isinstance(statement, ast.Import):
        return [alias.name for alias in statement.names]
    source = _source(statement, package_name(file))
    if source is None:
        return []
    return [source if alias.name == "*" else f"{source}.{alias.name}" for alias in statement.names]


def _source(statement: ast.ImportFrom, package: str) -> str | None:
    if not statement.level:
        return statement.module
    # One dot is the package itself, each further one a package above it.
    parents = package.split(".") if package else []
    kept = len(parents) - (statement.level - 1)
    if kept < 1:
        return None
    return ".".join(parents[:kept] + ([statement.module] if statement.module else []))
