"""A graph that is named as ``module:attribute``."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stategraph._text.shown import describe_exception, with_article
from stategraph.cli._exits import Exit, Failure, exit_of, told
from stategraph.errors import FormatError

if TYPE_CHECKING:
    from stategraph.graph import StateGraph


def load_graph(name: str) -> StateGraph:
    """Return the graph that a module has under a name; a function without parameters is called for it.

    The module is looked for in the working directory first. To import it runs its code.

    Raises:
        Failure: there is no such graph.
    """
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise Failure(Exit.USAGE, f"{name!r} names no graph: give MODULE:NAME, such as app.flows:orders")
    found = imported(module_name)
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise Failure(Exit.USAGE, f"module {module_name} has no {attribute!r}") from None
    return _graph_of(found, name)


def imported(name: str) -> Any:
    """Return a module, which is looked for in the working directory first.

    Raises:
        Failure: it cannot be imported.
    """
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if name.endswith(".py"):
            better = name.removesuffix(".py").replace("/", ".")
            raise Failure(Exit.USAGE, f"{name!r} is a file: give its module, as {better}:NAME") from None
        if error.name and f"{name}.".startswith(f"{error.name}."):
            raise Failure(Exit.USAGE, f"there is no module {error.name!r} in {here}, nor is one installed") from None
        raise Failure(Exit.FAILED, f"to import {name} failed: {describe_exception(error)}") from error
    except Exception as error:
        raise _failure(f"to import {name}", error, _place(error)) from error


def _failure(work: str, error: Exception, place: str = "") -> Failure:
    """Return how the command ends because the user's code failed. Missing tables have a way out of their own."""
    if isinstance(error, FormatError) and error.statements:
        return Failure(exit_of(error), told(error)["error"]["message"])
    return Failure(Exit.FAILED, f"{work} failed: {describe_exception(error)}{place}")


def _place(error: Exception) -> str:
    """Return where an exception was raised."""
    calls = traceback.extract_tb(error.__traceback__)
    return f" ({calls[-1].filename}, line {calls[-1].lineno})" if calls else ""


def _graph_of(found: Any, name: str) -> StateGraph:
    from stategraph.graph import StateGraph

    if callable(found) and not isinstance(found, StateGraph):
        try:
            found = found()
        except Exception as error:
            raise _failure(f"to call {name}", error) from error
    if not isinstance(found, StateGraph):
        raise Failure(
            Exit.USAGE, f"{name} is {with_article(type(found).__name__)}, not a StateGraph or a function that makes one"
        )
    return found
