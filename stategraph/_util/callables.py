"""Functions of users: what they are, which version they are, what they have answered, what they have raised."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, TracebackType
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

    If so, it is closed: Python would warn otherwise.
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
    """Return the failure that stands for an exception, where no cancellation of the run caused it.

    That is an Exception in place of a CancelledError, which is none.
    """
    if isinstance(error, Exception) or not isinstance(error, _cancelled_error()):
        return error
    from stategraph._util.cancellation import CancelledError  # imported when used: asyncio takes 20 ms

    failure = CancelledError(*error.args)
    failure.__cause__ = error
    return failure


def _cancelled_error() -> tuple[type[BaseException], ...]:
    """Return the CancelledError of asyncio; nothing where asyncio was never imported: it cannot have been raised."""
    module = sys.modules.get("asyncio.exceptions")
    found = getattr(module, "CancelledError", None)  # another thread may be importing it
    return () if found is None else (found,)


# --------------------------------------------------------------------------- the version of functions


_ATOMS = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis))


def version_of(things: Iterable[Any]) -> str:
    """Return 32 hexadecimal digits for functions and settings: the same in every process of one version of Python.

    They come from the compiled code, never from the source: that may have been edited since it was compiled, and
    several lambdas share a line. Comments and layout do not count; another version of Python makes another version.
    """
    import hashlib  # imported when used: OpenSSL takes 4 ms

    return hashlib.sha256("\n".join(_told(tuple(things), set())).encode("utf-8", "backslashreplace")).hexdigest()[:32]


def is_told(thing: Any) -> bool:
    """Return whether the code of a thing shows all that it does.

    That of a method of an object does not: what the object holds decides, too.
    """
    while isinstance(thing, partial):
        thing = thing.func
    if isinstance(thing, tuple):
        return all(map(is_told, thing))
    if isinstance(thing, MethodType):
        return isinstance(thing.__self__, type)
    return not callable(thing) or isinstance(thing, FunctionType | BuiltinFunctionType | type)


def _told(value: Any, seen: set[int]) -> Iterator[str]:
    """Yield what distinguishes a value from others: of mutable objects only the class, for their contents change."""
    if isinstance(value, _ATOMS):
        yield f"{type(value).__name__} {value!r}"
    elif isinstance(value, tuple):
        yield from _listed("tuple", [_told(item, seen) for item in value])
    elif isinstance(value, frozenset):
        yield from _listed("frozenset", sorted(list(_told(item, seen)) for item in value))
    elif isinstance(value, CodeType | FunctionType | MethodType | partial):
        if id(value) in seen:  # a function that calls itself
            yield "again"
            return
        seen.add(id(value))
        yield from _listed("code", [_told(part, seen) for part in _parts_of(value)])
    elif isinstance(value, type):
        yield f"class {value.__module__}.{value.__qualname__}"
    else:
        yield f"object of {type(value).__module__}.{type(value).__qualname__}"
        call = type(value).__call__ if callable(value) else None
        if isinstance(call, FunctionType):
            yield from _told(call, seen)


def _listed(name: str, items: Iterable[Iterable[str]]) -> Iterator[str]:
    yield f"{name} ("
    for item in items:
        yield from item
        yield ","
    yield ")"


def _parts_of(value: Any) -> tuple[Any, ...]:
    """Return what a function, its code, a bound method or a partial consists of."""
    if isinstance(value, CodeType):
        signature = value.co_argcount, value.co_kwonlyargcount, value.co_flags, value.co_varnames
        return (*signature, value.co_code, value.co_consts, value.co_names, value.co_freevars, value.co_exceptiontable)
    if isinstance(value, FunctionType):
        defaults = value.__defaults__, tuple(sorted((value.__kwdefaults__ or {}).items()))
        return value.__code__, *defaults, tuple(map(_content, value.__closure__ or ()))
    if isinstance(value, MethodType):
        return value.__func__, value.__self__
    return value.func, value.args, tuple(sorted(value.keywords.items()))


def _content(cell: Any) -> Any:
    """Return what a closure has in one of its cells."""
    try:
        return cell.cell_contents
    except ValueError:  # nothing yet
        return None


# --------------------------------------------------------------------------- tracebacks


_OURS = __name__.partition(".")[0]


def begin_with_users(error: BaseException) -> None:
    """Leave out of a traceback, and out of those of the exceptions in a group, the calls before the users' first one.

    They are ours, and those of the standard library that we make. Of an error that is all ours, the last call stays.
    """
    error.__traceback__ = users_part(error.__traceback__)
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            begin_with_users(part)


def users_part(traceback: TracebackType | None) -> TracebackType | None:
    """Return a traceback from the users' first call on; of one that is all ours, its end."""
    at = behind_ours = traceback
    while at is not None:
        room = _room_of(at)
        if room != _OURS and room not in sys.stdlib_module_names:
            return at
        if room == _OURS:
            behind_ours = at.tb_next or at
        at = at.tb_next
    return behind_ours


def is_ours(traceback: TracebackType) -> bool:
    """Return whether the first call of a traceback is one of stategraph."""
    return _room_of(traceback) == _OURS


def _room_of(traceback: TracebackType) -> str:
    return str(traceback.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
