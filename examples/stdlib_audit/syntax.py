"""Walk syntax trees with a stack, because generated code nests deeper than the recursion limit."""

import ast
from collections.abc import Iterator
from typing import TypeAlias

FunctionNode: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
Definition: TypeAlias = FunctionNode | ast.ClassDef

_BLOCKS = ("body", "handlers", "cases", "orelse", "finalbody")


def inner(node: ast.AST) -> Iterator[ast.AST]:
    """Return the statements directly inside a statement, including except and case clauses, without expressions."""
    for block in _BLOCKS:
        children = getattr(node, block, [])
        # The body of a lambda or a conditional expression is not a block.
        if isinstance(children, list):
            yield from children


def statements(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Yield every statement, with the prefix of the names it defines (PEP 3155: `Class.`, `function.<locals>.`)."""
    pending = [("", node) for node in inner(tree)]
    while pending:
        prefix, node = pending.pop()
        yield prefix, node
        below = prefix + _own_prefix(node)
        pending += [(below, child) for child in inner(node)]


def _own_prefix(node: ast.AST) -> str:
    if isinstance(node, FunctionNode):
        return f"{node.name}.<locals>."
    return f"{node.name}." if isinstance(node, ast.ClassDef) else ""


def own_nodes(unit: ast.AST) -> Iterator[ast.AST]:
    """Yield every node below a module or function, including expressions, without the functions inside it."""
    pending = list(ast.iter_child_nodes(unit))
    while pending:
        node = pending.pop()
        if not isinstance(node, FunctionNode):
            yield node
            pending.extend(ast.iter_child_nodes(node))
