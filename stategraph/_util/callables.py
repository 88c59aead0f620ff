"""Functions of users: their kind, their version, their results and their exceptions."""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, MethodType, TracebackType
from typing import Any, TypeVar

from stategraph._text.shown import shorten
from stategraph.errors import StateGraphError

_Answer = TypeVar("_Answer")
_Class = TypeVar("_Class", bound=type)


def name_of(function: Callable[..., object]) -> str:
    """Return the name of a function, never its repr, which contains an address."""
    return getattr(function, "__qualname__", None) or type(function).__qualname__


def is_async_callable(function: object) -> bool:
    """Return whether the result of a call must be awaited, also for partials and an async ``__call__``."""
    return _is(function, inspect.iscoroutinefunction, inspect.isasyncgenfunction)


def is_generator_callable(function: object) -> bool:
    """Return whether a call returns a sync or async generator, also for partials and ``__call__``."""
    return _is(function, inspect.isgeneratorfunction, inspect.isasyncgenfunction)


def _is(function: Any, *tests: Callable[[Any], bool]) -> bool:
    while isinstance(function, partial | staticmethod):
        function = function.func if isinstance(function, partial) else function.__func__
    return any(test(function) or test(type(function).__call__) for test in tests)


_LEFT_OUT = {
    "bool": False,
    "max_recoveries": 10,
    "redo": (),
    "busy": "reject",
    "unfinished": "finish",
    "serializer": "msgpack",
    "verify_with": (),
}
"""What it means to leave out an option, by its type or its name; for others it is None."""


def showing_options(cls: _Class) -> _Class:
    """Decorate a class: `help` shows the options of its methods by name, instead of ``**how: Unpack[Options]``."""
    for method in vars(cls).values():
        hints = getattr(method, "__annotations__", {}).values()
        options = next((hint[len("Unpack[") : -1] for hint in hints if str(hint).startswith("Unpack[")), None)
        kind = vars(sys.modules[cls.__module__]).get(options or "")
        if kind is not None:
            signature = inspect.signature(method)
            parameters = [*[*signature.parameters.values()][:-1], *_options_of(kind)]
            method.__signature__ = signature.replace(parameters=parameters)
    return cls


@cache  # each kind is that of several methods
def _options_of(kind: type) -> list[inspect.Parameter]:
    """Return the options in a TypedDict as parameters."""
    hints = {name: hint.__forward_arg__ for name, hint in kind.__annotations__.items()}
    return [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=_LEFT_OUT.get(name, _LEFT_OUT.get(hint)), annotation=hint
        )
        for name, hint in hints.items()
    ]


# --------------------------------------------------------------------------- sync functions


def problem_of(function: object, arguments: int | None = None) -> str:
    """Return why an object is no sync function; empty if it is one.

    Nodes may be async or generators. The results of all other functions are used at once: an async predicate, for
    example, would always be true.

    Args:
        function: Any object.
        arguments: The number of positional arguments of the call; None if unknown.
    """
    if not callable(function):
        return "it cannot be called"
    if is_async_callable(function):
        return "it is async, and its result would not be awaited: define it with def"
    if is_generator_callable(function):
        return "it is a generator function: let it return its result instead of yielding it"
    if arguments is None:
        return ""
    try:
        signature = inspect.signature(function)
    except Exception:  # some builtins have none
        return ""
    try:
        signature.bind(*[None] * arguments)
    except TypeError as error:
        return f"it is called with {arguments} argument{'' if arguments == 1 else 's'}: {error}"
    return ""


def check_function(name: str, function: object, arguments: int, subject: str) -> None:
    """Raise TypeError, which names an argument, unless a function is sync and takes so many arguments: the subject."""
    problem = problem_of(function, arguments)
    if problem:
        raise TypeError(f"{name}: {shorten(function)} is not allowed; a sync function of {subject} is: {problem}")


def answered(answer: _Answer, name: str = "") -> _Answer:
    """Return the result of a function of the user. A plain function may still return a coroutine.

    Args:
        answer: The result.
        name: The name of the function, for the error.

    Raises:
        TypeError: The result must be awaited or iterated over.
    """
    if is_deferred(answer):
        found = f"{name and name + ': '}it returned a {type(answer).__name__}, and its result is needed at once"
        raise TypeError(f"{found}: use a sync function that calls no async or generator function")
    return answer


def is_deferred(answer: object) -> bool:
    """Return whether a result must be awaited or iterated over. If so, close it to prevent a warning of Python."""
    if not (inspect.isawaitable(answer) or inspect.isgenerator(answer) or inspect.isasyncgen(answer)):
        return False
    if hasattr(answer, "close"):
        answer.close()
    return True


def is_true(answer: object) -> bool:
    """Return the result of a predicate as a bool.

    Raises:
        TypeError: The result must be awaited or iterated over, or is a function that was not called.
    """
    if answer is True or answer is False:
        return answer
    answered(answer)
    if callable(answer):
        raise TypeError(f"it returned {name_of(answer)}, a function: call it and return its result")
    return bool(answer)


# --------------------------------------------------------------------------- failures


def failures() -> tuple[type[BaseException], ...]:
    """Return the exception classes that sync code of the user may raise.

    asyncio does not cancel sync code, so a CancelledError from it is a failure.
    """
    return Exception, *_cancelled_error()


def start(thread: threading.Thread) -> bool:
    """Start a thread; return False if the system has no more, or the process may be ending.

    A Ctrl-C while `Thread.start` waits for the thread may come out as a RuntimeError of its lock.
    """
    try:
        thread.start()
    except RuntimeError as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise error.__context__ from None
        return False
    return True


def failure_of(error: BaseException) -> BaseException:
    """Return an Exception for a CancelledError that no cancellation of the run caused; return others unchanged."""
    if isinstance(error, Exception) or not isinstance(error, _cancelled_error()):
        return error
    from stategraph._util.cancellation import CancelledError  # imported when used: asyncio takes 20 ms

    failure = CancelledError(*error.args)
    failure.__cause__ = error
    return failure


def _cancelled_error() -> tuple[type[BaseException], ...]:
    """Return the CancelledError of asyncio; nothing if asyncio was never imported."""
    module = sys.modules.get("asyncio.exceptions")
    found = getattr(module, "CancelledError", None)  # another thread may be importing it
    return () if found is None else (found,)


# --------------------------------------------------------------------------- versions of functions


_ATOMS = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis))


def version_of(things: Iterable[Any]) -> str:
    """Return 32 hexadecimal digits for functions and settings, the same in every process of one Python version.

    They are derived from compiled code, not from source, which may have changed after it was compiled and may hold
    several lambdas in a line. Comments and layout do not matter.
    """
    import hashlib  # imported when used: OpenSSL takes 4 ms

    text = "\n".join(_described(tuple(things), {}))
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:32]


def is_determined_by_code(thing: Any) -> bool:
    """Return whether the code of a function determines its behaviour. A method also depends on its object."""
    while isinstance(thing, partial):
        thing = thing.func
    if isinstance(thing, tuple):
        return all(map(is_determined_by_code, thing))
    if isinstance(thing, MethodType):
        return isinstance(thing.__self__, type)
    return not callable(thing) or isinstance(thing, FunctionType | BuiltinFunctionType | type)


def _described(value: Any, seen: dict[int, int]) -> Iterator[str]:
    """Yield a description that distinguishes a value from others; of a mutable object, only its class."""
    if isinstance(value, _ATOMS):
        yield f"{type(value).__name__} {value!r}"
    elif isinstance(value, tuple):
        yield from _listed("tuple", [_described(item, seen) for item in value])
    elif isinstance(value, frozenset):
        yield from _listed("frozenset", sorted(list(_described(item, seen)) for item in value))
    elif isinstance(value, CodeType | FunctionType | MethodType | partial):
        if id(value) in seen:  # a function that calls itself, or is used twice
            yield f"again {seen[id(value)]}"
            return
        seen[id(value)] = len(seen)
        yield from _listed("code", [_described(part, seen) for part in _parts_of(value)])
    elif isinstance(value, type):
        yield f"class {value.__module__}.{value.__qualname__}"
    else:
        yield f"object of {type(value).__module__}.{type(value).__qualname__}"
        call = type(value).__call__ if callable(value) else None
        if isinstance(call, FunctionType):
            yield from _described(call, seen)


def _listed(name: str, items: Iterable[Iterable[str]]) -> Iterator[str]:
    yield f"{name} ("
    for item in items:
        yield from item
        yield ","
    yield ")"


def _parts_of(value: Any) -> tuple[Any, ...]:
    """Return the parts of a function, a code object, a bound method or a partial."""
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
    """Return the contents of a cell of a closure."""
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return None


# --------------------------------------------------------------------------- tracebacks


_OURS = __name__.partition(".")[0]


class _WithoutCalls:
    """Raises each error of stategraph without the calls inside stategraph; its text says what to do."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: object, __: object) -> None:
        if isinstance(error, StateGraphError):
            error.__traceback__, error.__suppress_context__ = None, True


without_calls = _WithoutCalls()
"""Used in a ``with`` statement by the calls of users."""


def begin_with_users(error: BaseException) -> None:
    """Remove the calls before the user's first call from the traceback of an exception, and from those in a group.

    These are calls of stategraph and of the standard library. If there are no others, the last call stays.
    """
    error.__traceback__ = users_part(error.__traceback__)
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            begin_with_users(part)


def users_part(traceback: TracebackType | None) -> TracebackType | None:
    """Return a traceback from the user's first call on; its end if there is no such call."""
    at = after_ours = traceback
    while at is not None:
        room = _room_of(at.tb_frame)
        if room != _OURS and room not in sys.stdlib_module_names:
            return at
        if room == _OURS:
            after_ours = at.tb_next or at
        at = at.tb_next
    return after_ours


def module_of_caller() -> str:
    """Return the name of the module outside of stategraph that makes the current call; empty if it has no file."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and is_ours(frame):
        frame = frame.f_back
    name = imported_name("" if frame is None else str(frame.f_globals.get("__name__", "")))
    return "" if name == "__main__" else name


def imported_name(module: str) -> str:
    """Return the name by which others import a module: for a main script that of its file, without folders."""
    if module not in ("__main__", "__mp_main__"):
        return module
    from pathlib import PurePath  # imported when used

    main = sys.modules[module]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    return spec.name if spec else PurePath(file).stem if file else module


def is_ours(frame: FrameType) -> bool:
    """Return whether a call is one of stategraph."""
    return _room_of(frame) == _OURS


def _room_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def is_loop_running() -> bool:
    """Return whether an event loop is running in this thread."""
    # No loop runs if asyncio was never imported, or if another thread is just importing it.
    running = getattr(sys.modules.get("asyncio.events"), "_get_running_loop", None)
    return running is not None and running() is not None
