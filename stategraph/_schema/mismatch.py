"""What does not fit a type: where it stands, what is expected there, what was found."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin

import attrs

from stategraph._text.shown import describe_exception, shorten


@attrs.frozen
class Mismatch:
    """A value that does not fit: where it stands, what is expected there, what was found."""

    path: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.path!r}: expected {self.expected}, found {self.found}"


class MismatchError(ValueError):
    """A value does not fit a type: what is expected, and what was found."""

    def __init__(self, expected: str, found: str) -> None:
        super().__init__(expected, found)


def mismatches(error: Exception, path: str, expected: Any) -> Iterator[Mismatch]:
    """Return everything that did not fit, from the error that a hook for this type raised about the value at a path."""
    from cattrs.errors import AttributeValidationNote, BaseValidationError, ForbiddenExtraKeysError

    if isinstance(error, MismatchError):
        yield Mismatch(path, *error.args)
    elif isinstance(error, BaseValidationError):
        noted, others = cast(Any, error).group_exceptions()
        for cause, note in noted:
            is_attribute = isinstance(note, AttributeValidationNote)
            at = f"{path}.{note.name}" if is_attribute else f"{path}[{note.index!r}]"
            if is_attribute and type(cause) is KeyError:
                yield Mismatch(at, describe_type(note.type), "nothing")
            else:
                yield from mismatches(cause, at, note.type)
        for cause in others:
            yield from mismatches(cause, path, expected)
    elif isinstance(error, ForbiddenExtraKeysError):
        fields = f"the fields of {describe_type(error.cl)}"
        yield from (Mismatch(f"{path}.{name}", fields, "another one") for name in sorted(map(str, error.extra_fields)))
    elif type(error).__module__.startswith("pydantic"):
        yield from _of_model(cast(Any, error), path)
    else:
        yield Mismatch(path, describe_type(expected), describe_exception(error))


def _of_model(error: Any, path: str) -> Iterator[Mismatch]:
    """Return what a Pydantic model has refused."""
    for one in error.errors(include_url=False, include_context=False):
        loc = one["loc"][1:] if error.title and one["loc"][:1] == (path,) else one["loc"]  # of a field: it is the path
        at = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc)
        found = "nothing" if one["type"] == "missing" else describe(one["input"])
        yield Mismatch(f"{path}{at}", one["msg"], found)


def describe(value: object) -> str:
    """Return a value in words: its repr, cut, and its type."""
    return "None" if value is None else f"{shorten(value)} ({type(value).__name__})"


def describe_type(expected: Any) -> str:
    """Return a type as it is written in an annotation, without the modules of classes."""
    origin, args = get_origin(expected), get_args(expected)
    if expected is None or expected is NoneType:
        return "None"
    if expected is ...:
        return "..."
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, args))}]"
    if origin in (Union, UnionType):
        return " | ".join(map(describe_type, args))
    if origin is typing.Annotated:
        return describe_type(args[0])
    name = getattr(origin or expected, "__name__", None) or repr(expected)
    return f"{name}[{', '.join(map(describe_type, args))}]" if args else name
