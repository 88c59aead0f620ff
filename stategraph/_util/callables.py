"""What can be told of the users' functions: without calling one, of what it has answered, and of what it has raised."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

_Answer = TypeVar("_Answer")


def name_of(function: Callable[..., object]) -> str:
    """Return the name of a function: never its repr, which holds an address."""
    return getattr(function, "__qualname__", None) or type(function).__qualname__


def is_async_callable(function: object) -> bool:
    """Return whether what a call returns has to be awaited; sees through partials and an async ``__call__``."""
    return _is(inspect.iscoroutinefunction, function) or _is(inspect.isasyncgenfunction, function)


def is_generator_callable(function: object) -> bool:
    """Return whether a call gives a generator, sync or async; sees through the same."""
    return _is(inspect.isgeneratorfunction, function) or _is(inspect.isasyncgenfunction, function)


def _is(test: Callable[[Any], bool], function: Any) -> bool:
    while isinstance(function, partial | staticmethod):
        function = function.func if isinstance(function, partial) else function.__func__
    return test(function) or test(type(function).__call__)


# --------------------------------------------------------------------------- functions that answer at once


def problem_of(function: object, arguments: int | None = None) -> str:
    """Return what keeps a function that is handed in from answering at once; empty if nothing does.

    Nodes may be async and yield chunks. Everything else that is handed in is called for its answer, by code that
    neither awaits nor iterates over it: of an async predicate, every answer would be a yes.

    Args:
        function: What was handed in.
        arguments: How many it will be called with, all positional; None where that is not known.
    """
    if not callable(function):
        return "it cannot be called"
    if is_async_callable(function):
        return "it is async, and nobody would await its answer: define it with def"
    if is_generator_callable(function):
        return "it is a generator function: let it return its answer instead of yielding it"
    return "" if arguments is None else _arity_problem(function, arguments)


def _arity_problem(function: Callable[..., object], arguments: int) -> str:
    try:
        signature = inspect.signature(function)
    except Exception:
        return ""
    try:
        signature.bind(*[None] * arguments)
    except TypeError as error:
        return f"it is called with {arguments} argument{'' if arguments == 1 else 's'}: {error}"
    return ""


def answered(answer: _Answer, name: str = "") -> _Answer:
    """Return what a function that is handed in has answered. A plain function may still return a coroutine.

    Args:
        answer: The answer.
        name: Names the function, for the error.

    Raises:
        TypeError: it has to be awaited, or iterated over.
    """
    if is_deferred(answer):
        found = f"{name and name + ': '}it returned a {type(answer).__name__}, and has to answer at once"
        raise TypeError(f"{found}: a sync function does that calls no async or generator function")
    return answer


def is_deferred(answer: object) -> bool:
    """Return whether an answer has to be awaited or iterated over.

    If so, it is closed, or Python would warn that nobody did.
    """
    if not (inspect.isawaitable(answer) or inspect.isgenerator(answer) or inspect.isasyncgen(answer)):
        return False
    if hasattr(answer, "close"):
        answer.close()
    return True


def is_true(answer: object) -> bool:
    """Return the answer of a function that decides something as a bool.

    Raises:
        TypeError: it has to be awaited or iterated over, or is a function: a call was forgotten.
    """
    if answer is True or answer is False:
        return answer
    answered(answer)
    if callable(answer):
        raise TypeError(f"it returned {name_of(answer)}, a function, and not what that would answer: call it")
    return bool(answer)


# --------------------------------------------------------------------------- what counts as a failure


def failures() -> tuple[type[BaseException], ...]:
    """Return the classes of exceptions that are failures, to be caught.

    Only for sync code, which no cancellation of asyncio cuts off: a CancelledError out of it is its own.
    """
    return Exception, *_cancelled_error()


def failure_of(error: BaseException) -> BaseException:
    """Return what stands for an exception in the engine and in groups of exceptions, if nobody has cancelled the run.

    That is an Exception in place of a CancelledError, which is none.
    """
    if isinstance(error, Exception) or not isinstance(error, _cancelled_error()):
        return error
    from stategraph._util.cancellation import CancelledError  # imported when used: asyncio takes 20 ms

    failure = CancelledError(*error.args)
    failure.__cause__ = error
    return failure


def _cancelled_error() -> tuple[type[BaseException], ...]:
    """Return the CancelledError of asyncio; nothing where asyncio was never imported, for nobody can have raised it."""
    module = sys.modules.get("asyncio.exceptions")
    found = getattr(module, "CancelledError", None)  # another thread may be importing it
    return () if found is None else (found,)
