"""Strict conversion of values to types with cattrs. Errors have the paths of the values that do not fit.

A value that fits its type is returned unchanged. Nothing is guessed: "no" is no bool, and "5" no int.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping, MutableSequence, Sequence
from collections.abc import Set as AbstractSet
from enum import Enum
from itertools import count, repeat
from operator import call, is_
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, Union, cast, get_args, get_origin

import attrs

from stategraph._text.shown import describe_exception, shorten
from stategraph._values.registered_types import call_for, field_types, is_model, is_record

if TYPE_CHECKING:
    from cattrs import Converter

Hook: TypeAlias = Callable[[Any, Any], Any]
"""A hook of cattrs: ``(value, type) -> value of the type``."""


# --------------------------------------------------------------------------- mismatches


@attrs.frozen
class Mismatch:
    """A value that does not fit: its path, a description of the expected type, and a description of the value."""

    path: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.path!r}: expected {self.expected}, found {self.found}"


class MismatchError(ValueError):
    """A value does not fit a type. The paths of its mismatches are relative to the value."""

    def __init__(self, *mismatches: Mismatch) -> None:
        super().__init__(*mismatches)


def _misfit(expected: Any, value: object) -> MismatchError:
    """Return the error for a value that does not fit a type."""
    return MismatchError(Mismatch("", describe_type(expected), describe(value)))


def mismatches(error: Exception, path: str, expected: Any) -> Iterator[Mismatch]:
    """Yield all mismatches from the error of a hook.

    Args:
        error: The error.
        path: The path of the value.
        expected: The type of the hook.
    """
    from cattrs.errors import BaseValidationError, ForbiddenExtraKeysError

    if isinstance(error, MismatchError):
        yield from (attrs.evolve(one, path=f"{path}{one.path}") for one in error.args)
    elif isinstance(error, BaseValidationError):
        noted, others = cast(Any, error).group_exceptions()
        for cause, note in noted:
            at = f"{path}.{note.name}"
            if type(cause) is KeyError:
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
    """Yield the mismatches in an error of a Pydantic model."""
    for detail in error.errors(include_url=False, include_context=False):
        loc = detail["loc"]
        if error.title and loc[:1] == (path,):  # the error of a field begins with its name
            loc = loc[1:]
        at = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc)
        found = "nothing" if detail["type"] == "missing" else describe(detail["input"])
        yield Mismatch(f"{path}{at}", detail["msg"], found)


def describe(value: object) -> str:
    """Return a description of a value: its shortened repr and its type."""
    return "None" if value is None else f"{shorten(value)} ({type(value).__name__})"


def describe_type(expected: Any) -> str:
    """Return a type as in an annotation, without the modules of classes."""
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


# --------------------------------------------------------------------------- conversion


def structured(path: str, value: Any, expected: Any) -> Any:
    """Return the value converted to a type. Raises ValueError with all mismatches if it does not fit."""
    hook = hook_for(expected)
    try:
        return hook(value, expected)
    except Exception as error:
        raise ValueError("; ".join(map(str, mismatches(error, path, expected)))) from error


def hook_for(expected: Any) -> Hook:
    """Return the function that converts values to a type. It raises errors that `mismatches` can read.

    Raises:
        TypeError: The type, or a type in it, is not supported.
        NameError: An annotation of a class in it contains an unknown name.
    """
    hook: Hook = _new_converter().get_structure_hook(expected)
    return hook


def classes_in(types: Iterable[Any]) -> list[type]:
    """Return the record classes, the enums and the classes of other libraries in types, at all levels."""
    found: dict[type, None] = {}
    dicts: list[Any] = []
    ahead = list(types)
    while ahead:
        expected = ahead.pop(0)
        args = get_args(expected)
        ahead += map(type, args) if get_origin(expected) is Literal else args
        cls = get_origin(expected) or getattr(expected, "__supertype__", expected)
        if (
            isinstance(cls, type)
            and cls not in found
            and (_is_record(cls) or issubclass(cls, Enum) or _is_foreign(cls))
        ):
            found[cls] = None
            ahead += field_types(cls).values() if _is_record(cls) else ()
        elif typing.is_typeddict(cls) and cls not in dicts:
            dicts.append(cls)
            ahead += field_types(cls).values()
    return list(found)


def _is_foreign(cls: type) -> bool:
    """Return whether a class is one of `stategraph.types`. A TypedDict of their libraries has plain dicts."""
    return bool(call_for(cls)) and not hasattr(cls, "__required_keys__")


# --------------------------------------------------------------------------- the converter


def _new_converter() -> Converter:
    """Return a converter for a single type.

    A shared converter would confuse `int | float` and `float | int`: they are equal, so they would share a hook, but
    their members are tried in different orders.
    """
    from cattrs import Converter  # imported when used: 60 ms

    converter = Converter(forbid_extra_keys=True, structure_fallback_factory=_refuse)
    converter.register_structure_hook_factory(
        lambda expected: _factory_of(expected) is not None,
        lambda expected: cast(_Factory, _factory_of(expected))(converter, expected),
    )
    for cls in (str, bytes, int, float, Path):  # cattrs has hooks for these, which precede factories
        converter.register_structure_hook(cls, _as_plain)
    return converter


_Factory: TypeAlias = Callable[["Converter", Any], Hook]


def _factory_of(expected: Any) -> _Factory | None:
    """Return the function that makes the hook for a type; None for types that cattrs handles."""
    origin = get_origin(expected)
    if origin in _MAPPINGS:
        return _mapping_hook
    if origin in _ARRAYS:
        return _array_hook
    if origin in (Union, UnionType):
        return _union_hook
    if origin is Literal or expected is None or expected is NoneType:
        return _literal_hook
    if _is_record(expected):
        return _record_hook
    return (lambda converter, cls: _as_plain) if _is_class(expected) else None


def _refuse(expected: Any) -> Hook:
    raise TypeError(f"{describe_type(expected)} is not a type that can be checked")


def _is_class(expected: Any) -> bool:
    is_special = typing.is_typeddict(expected) or getattr(expected, "_is_protocol", False)
    return isinstance(expected, type) and expected is not Any and get_origin(expected) is None and not is_special


def _as_plain(value: Any, cls: Any) -> Any:
    """Return an instance unchanged, an equal float for an int, or the member of an enum for its value."""
    if isinstance(value, cls) and (type(value) is not bool or cls not in (int, float)):
        return value
    if cls is float and type(value) is int and abs(value) <= _EXACT:
        return float(value)
    if issubclass(cls, Enum):
        for member in cls:
            if type(member.value) is type(value) and member.value == value:
                return member
    raise _misfit(cls, value)


_EXACT = 1 << 53
"""All ints up to this one are exact as floats."""


def _is_record(expected: Any) -> bool:
    return is_record(get_origin(expected) or expected)


def _record_hook(converter: Converter, expected: Any) -> Hook:
    """Return the hook for a record class. It returns an instance unchanged, and converts a mapping."""
    cls = get_origin(expected) or expected
    make = _model_of if is_model(cls) else converter.gen_structure_attrs_fromdict(expected)

    def hook(value: Any, _: Any) -> Any:
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise MismatchError(Mismatch("", f"{describe_type(expected)} or a mapping of its fields", describe(value)))
        return make(value, expected)

    return hook


def _union_hook(converter: Converter, expected: Any) -> Hook:
    """Return the hook for a union. It prefers a member that the value fits unchanged, then the first that it fits."""
    hooks = [(member, converter.get_structure_hook(member)) for member in get_args(expected)]
    others = [member for member, _ in hooks if member is not NoneType]

    def hook(value: Any, _: Any) -> Any:
        converted, errors = [], []
        for member, structure in hooks:
            try:
                result = structure(value, member)
            except Exception as error:  # noqa: BLE001 - the constructor of a class may raise anything
                errors.append((member, error))
                continue
            if result is value:
                return value
            converted.append(result)
        if converted:
            return converted[0]
        if len(others) == 1 and isinstance(value, Mapping | list | tuple):  # the intended member is clear
            raise next(error for member, error in errors if member is others[0])
        raise _misfit(expected, value)

    return hook


def _literal_hook(converter: Converter, expected: Any) -> Hook:
    allowed = get_args(expected) or (None,)

    def hook(value: Any, _: Any) -> Any:
        if any(type(member) is type(value) and member == value for member in allowed):
            return value
        raise _misfit(expected, value)

    return hook


# --------------------------------------------------------------------------- containers


_MAPPINGS: tuple[Any, ...] = (dict, Mapping, MutableMapping)
_LISTS: Any = (list, tuple)
_SETS: Any = (set, frozenset)
_ARRAYS: dict[Any, tuple[Any, Any, type]] = {
    tuple: (_LISTS, tuple, tuple),
    **dict.fromkeys((list, MutableSequence), (_LISTS, list, list)),
    **dict.fromkeys((Sequence, Collection, Iterable), (_LISTS, _LISTS, list)),
    set: (_SETS, set, set),
    frozenset: (_SETS, frozenset, frozenset),
    AbstractSet: (_SETS, _SETS, set),
}
"""The classes that a type accepts, those of them that it keeps, and the class into which it converts the others."""


def _array_hook(converter: Converter, expected: Any) -> Hook:
    """Return the hook for lists, tuples, sets and similar types."""
    origin, types = get_origin(expected), get_args(expected)
    accepted, kept, made = _ARRAYS[origin]
    is_fixed = origin is tuple and types[1:] != (...,)
    if is_fixed:
        items_of: Iterable[Any] = types
        hooks: Iterable[Hook] = [converter.get_structure_hook(item) for item in types]
    else:
        item = (*types, Any)[0]
        items_of, hooks = repeat(item), repeat(converter.get_structure_hook(item))

    def hook(value: Any, _: Any) -> Any:
        if not isinstance(value, accepted) or (is_fixed and len(value) != len(types)):
            raise _misfit(expected, value)
        items = _each(value, hooks, items_of)
        return value if isinstance(value, kept) and all(map(is_, items, value)) else made(items)

    return hook


def _mapping_hook(converter: Converter, expected: Any) -> Hook:
    key_type, value_type = get_args(expected) or (Any, Any)
    key_hook, value_hook = converter.get_structure_hook(key_type), converter.get_structure_hook(value_type)

    def hook(value: Any, _: Any) -> Any:
        if not isinstance(value, Mapping):
            raise _misfit(expected, value)
        keys = _each(value, repeat(key_hook), repeat(key_type), value)
        values = _each(value.values(), repeat(value_hook), repeat(value_type), value)
        if isinstance(value, dict) and all(map(is_, keys, value)) and all(map(is_, values, value.values())):
            return value
        return dict(zip(keys, values, strict=True))

    return hook


def _each(
    values: Iterable[Any], hooks: Iterable[Hook], types: Iterable[Any], labels: Iterable[Any] | None = None
) -> list[Any]:
    """Return converted values. Mismatches are reported with the label or the index of the value."""
    try:
        return list(map(call, hooks, values, types))
    except Exception:  # noqa: BLE001 - repeated, more slowly, to find all mismatches
        wrong: list[Mismatch] = []
        for label, value, structure, of in zip(labels or count(), values, hooks, types, strict=False):
            try:
                structure(value, of)
            except Exception as error:  # noqa: BLE001 - reported as a mismatch
                wrong += mismatches(error, f"[{label!r}]", of)
        raise MismatchError(*wrong) from None


# --------------------------------------------------------------------------- Pydantic models


def _model_of(value: Mapping[str, Any], cls: Any) -> Any:
    """Return an instance of a Pydantic model from a mapping of its fields.

    Unknown fields are an error unless the ``model_config`` of the model determines how they are treated.
    """
    if cls.model_config.get("extra") is None:
        names = [key for name, field in cls.model_fields.items() for key in (name, field.alias, field.validation_alias)]
        unknown = [key for key in value if key not in names]
        # A field may be found in several places, which its alias describes.
        if unknown and all(name is None or isinstance(name, str) for name in names):
            raise MismatchError(Mismatch("", f"the fields of {describe_type(cls)}", f"another one, {unknown[0]!r}"))
    return cls.model_validate(dict(value))
