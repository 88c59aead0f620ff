"""The version of functions: digits that change when their code does.

It is taken from the compiled code, never from the source: that may have been edited since it was compiled, and several
lambdas share a line. Comments and layout do not count; another version of Python makes other code, and so another
version.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
from typing import Any

_ATOMS = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis))


def version_of(things: Iterable[Any]) -> str:
    """Return 32 hexadecimal digits for functions and settings: the same in every process of one version of Python."""
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
