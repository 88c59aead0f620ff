"""Ways through a syntax tree. They use a stack, not recursion: generated code nests deeper than the limit."""

import ast
from collections.abc import Iterator
from typing import TypeAlias

FunctionNode: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
Definition: TypeAlias = FunctionNode | ast.ClassDef

_BLOCKS = ("body", "handlers", "cases", "orelse", "finalbody")


def inner(node: ast.AST) -> Iterator[ast.AST]:
    """The statements directly inside one, its except and case clauses included, but no expressions."""
    for block in _BLOCKS:
        children = getattr(node, block, [])
        # The body of a lambda or of a conditional expression is no block.
        if isinstance(children, list):
            yield from children


def statements(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Every statement, with the prefix of the names it defines (PEP 3155: `Class.`, `function.<locals>.`)."""
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
    """Every node below a module or function, expressions included, but nothing of the functions inside it."""
    pending = list(ast.iter_child_nodes(unit))
    while pending:
        node = pending.pop()
        if not isinstance(node, FunctionNode):
            yield node
            pending.extend(ast.iter_child_nodes(node))
