"""Values made to fit types by cattrs, strictly; what does not fit is reported with its place.

What fits a type already is the same object afterwards, and nothing is guessed: "no" is no bool, and "5" no int.
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping, MutableSequence, Sequence
from collections.abc import Set as AbstractSet
from enum import Enum
from operator import is_
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, Union, cast, get_args, get_origin

import attrs

from stategraph._text.shown import describe_exception, shorten
from stategraph._values.registered_types import field_types, is_model, is_record

if TYPE_CHECKING:
    from cattrs import Converter

Hook: TypeAlias = Callable[[Any, Any], Any]
"""``(value, type) -> value of the type``, as cattrs calls it."""


# --------------------------------------------------------------------------- what does not fit


@attrs.frozen
class Mismatch:
    """A value that does not fit: where it stands, what is expected there, what was found."""

    path: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.path!r}: expected {self.expected}, found {self.found}"


class MismatchError(ValueError):
    """A value does not fit a type. The paths of the mismatches begin at the value."""

    def __init__(self, *mismatches: Mismatch) -> None:
        super().__init__(*mismatches)


def _misfit(expected: Any, value: object) -> MismatchError:
    """Return the error about a value that is not of this type."""
    return MismatchError(Mismatch("", describe_type(expected), describe(value)))


def mismatches(error: Exception, path: str, expected: Any) -> Iterator[Mismatch]:
    """Return everything that did not fit, from the error that a hook for this type raised about the value at a path."""
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


# --------------------------------------------------------------------------- values of types


def structured(path: str, value: Any, expected: Any) -> Any:
    """Return the value as one of this type. Raises ValueError if it does not fit; the text says where."""
    hook = hook_for(expected)
    try:
        return hook(value, expected)
    except Exception as error:
        raise ValueError("; ".join(map(str, mismatches(error, path, expected)))) from error


def hook_for(expected: Any) -> Hook:
    """Return the function that makes a value fit this type, or raises what `mismatches` can explain.

    Raises:
        TypeError: nothing is known of the type, or of a type in it.
        NameError: the annotations of a class in it name something that is not there.
    """
    hook: Hook = _new_converter().get_structure_hook(expected)
    return hook


def classes_in(types: Iterable[Any]) -> list[type]:
    """Return the classes of records, and the enums, that values of these types are made of."""
    found: dict[type, None] = {}
    dicts: list[Any] = []
    ahead = list(types)
    while ahead:
        one = ahead.pop(0)
        ahead += map(type, get_args(one)) if _is_literal(one) else get_args(one)
        cls = get_origin(one) or getattr(one, "__supertype__", one)
        if isinstance(cls, type) and cls not in found and (_is_record(cls) or issubclass(cls, Enum)):
            found[cls] = None
            ahead += field_types(cls).values() if _is_record(cls) else ()
        elif typing.is_typeddict(cls) and cls not in dicts:
            dicts.append(cls)
            ahead += field_types(cls).values()
    return list(found)


# --------------------------------------------------------------------------- the converter


def _new_converter() -> Converter:
    """Return a converter for one type.

    It remembers hooks by type, and `int | float` equals `float | int`: shared by many types, it would try the members
    of one in the order of another.
    """
    from cattrs import Converter  # imported when used: 60 ms

    converter = Converter(forbid_extra_keys=True, structure_fallback_factory=_refuse)
    for predicate, factory in _FACTORIES:
        converter.register_structure_hook_factory(predicate, functools.partial(factory, converter))
    for cls in (str, bytes, int, float, Path):  # cattrs knows these before it asks a predicate
        converter.register_structure_hook(cls, _as_plain)
    return converter


def _refuse(expected: Any) -> Hook:
    raise TypeError(f"nothing is known of the type {describe_type(expected)}")


def _is_class(expected: Any) -> bool:
    is_special = typing.is_typeddict(expected) or getattr(expected, "_is_protocol", False)
    return isinstance(expected, type) and expected is not Any and get_origin(expected) is None and not is_special


def _plain_hook(converter: Converter, cls: type) -> Hook:
    return _as_plain


def _as_plain(value: Any, cls: Any) -> Any:
    """Return an instance as it is, a float for an int that equals it, and a member of an enum for its value."""
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
"""Up to here every int is a float."""


def _is_record(expected: Any) -> bool:
    return is_record(get_origin(expected) or expected)


def _record_hook(converter: Converter, expected: Any) -> Hook:
    """Return the hook for a class of records: it keeps an instance, and makes one of a mapping."""
    cls = get_origin(expected) or expected
    make = _model_of if is_model(cls) else converter.gen_structure_attrs_fromdict(expected)

    def hook(value: Any, _: Any) -> Any:
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise MismatchError(Mismatch("", f"{describe_type(expected)} or a mapping of its fields", describe(value)))
        return make(value, expected)

    return hook


def _is_union(expected: Any) -> bool:
    return get_origin(expected) in (Union, UnionType)


def _union_hook(converter: Converter, expected: Any) -> Hook:
    """Return the hook for a union: it takes the member that the value fits as it is, else the first that it can be."""
    hooks = [(member, converter.get_structure_hook(member)) for member in get_args(expected)]
    others = [member for member, _ in hooks if member is not NoneType]

    def hook(value: Any, _: Any) -> Any:
        made, errors = [], []
        for member, structure in hooks:
            try:
                result = structure(value, member)
            except Exception as error:  # noqa: BLE001 - what a class raises that is made of a mapping
                errors.append((member, error))
                continue
            if result is value:
                return value
            made.append(result)
        if made:
            return made[0]
        if len(others) == 1 and isinstance(value, Mapping | list | tuple):  # then it is clear what is meant
            raise next(error for member, error in errors if member is others[0])
        raise _misfit(expected, value)

    return hook


def _is_none(expected: Any) -> bool:
    return expected is None or expected is NoneType


def _none_hook(converter: Converter, expected: Any) -> Hook:
    def hook(value: Any, _: Any) -> Any:
        if value is not None:
            raise _misfit(None, value)
        return value

    return hook


def _is_literal(expected: Any) -> bool:
    return get_origin(expected) is Literal


def _literal_hook(converter: Converter, expected: Any) -> Hook:
    allowed = get_args(expected)

    def hook(value: Any, _: Any) -> Any:
        for one in allowed:
            if type(one) is type(value) and one == value:
                return value
        raise _misfit(expected, value)

    return hook


# --------------------------------------------------------------------------- containers


_SEQUENCES: tuple[Any, ...] = (Sequence, Collection, Iterable)
_LISTS: tuple[Any, ...] = (list, MutableSequence)
_SETS: tuple[Any, ...] = (set, frozenset, AbstractSet)
_MAPPINGS: tuple[Any, ...] = (dict, Mapping, MutableMapping)


def _is_array(expected: Any) -> bool:
    return get_origin(expected) in (*_SEQUENCES, *_LISTS, *_SETS)


def _array_hook(converter: Converter, expected: Any) -> Hook:
    """Return the hook for a list, a set and the like: it keeps the object if every item is kept."""
    origin, item = get_origin(expected), (*get_args(expected), Any)[0]
    structure = converter.get_structure_hook(item)
    taken: Any = (set, frozenset) if origin in _SETS else (list, tuple)
    kept = origin if origin in (set, frozenset) else list if origin in _LISTS else taken

    def hook(value: Any, _: Any) -> Any:
        if not isinstance(value, taken):
            raise _misfit(expected, value)
        made = _each(structure, item, value)
        if isinstance(value, kept) and all(map(is_, made, value)):
            return value
        return origin(made) if origin in _SETS[:2] else set(made) if origin in _SETS else made

    return hook


def _is_mapping(expected: Any) -> bool:
    return get_origin(expected) in _MAPPINGS


def _mapping_hook(converter: Converter, expected: Any) -> Hook:
    key_type, value_type = get_args(expected) or (Any, Any)
    key_hook, value_hook = converter.get_structure_hook(key_type), converter.get_structure_hook(value_type)

    def hook(value: Any, _: Any) -> Any:
        if not isinstance(value, Mapping):
            raise _misfit(expected, value)
        keys = _each(key_hook, key_type, value, value)
        values = _each(value_hook, value_type, value.values(), value)
        if isinstance(value, dict) and all(map(is_, keys, value)) and all(map(is_, values, value.values())):
            return value
        return dict(zip(keys, values, strict=True))

    return hook


def _is_tuple(expected: Any) -> bool:
    return get_origin(expected) is tuple


def _tuple_hook(converter: Converter, expected: Any) -> Hook:
    """Return the hook for a tuple, which it also makes of a list."""
    types = get_args(expected)
    is_open = types[1:] == (...,)
    hooks = [converter.get_structure_hook(one) for one in (types[:1] if is_open else types)]

    def hook(value: Any, _: Any) -> Any:
        if not isinstance(value, tuple | list) or not (is_open or len(value) == len(hooks)):
            raise _misfit(expected, value)
        if is_open:
            made = _each(hooks[0], types[0], value)
        else:
            each = zip(hooks, types, enumerate(value), strict=True)
            made = [_each(structure, of, [item], [place])[0] for structure, of, (place, item) in each]
        return value if isinstance(value, tuple) and all(map(is_, made, value)) else tuple(made)

    return hook


def _each(structure: Hook, of: Any, values: Collection[Any], labels: Iterable[Any] | None = None) -> list[Any]:
    """Return the values, structured; each that does not fit is reported with its label, or its place."""
    try:
        return [structure(value, of) for value in values]
    except Exception:  # noqa: BLE001 - done again, more slowly, to find all of them
        wrong: list[Mismatch] = []
        for label, value in zip(range(len(values)) if labels is None else labels, values, strict=True):
            try:
                structure(value, of)
            except Exception as error:  # noqa: BLE001 - reported as what does not fit
                wrong += mismatches(error, f"[{label!r}]", of)
        raise MismatchError(*wrong) from None


_FACTORIES: tuple[tuple[Callable[[Any], bool], Callable[[Converter, Any], Hook]], ...] = (
    (_is_class, _plain_hook),
    (_is_record, _record_hook),
    (_is_none, _none_hook),
    (_is_literal, _literal_hook),
    (_is_union, _union_hook),
    (_is_array, _array_hook),
    (_is_mapping, _mapping_hook),
    (_is_tuple, _tuple_hook),
)
"""Which types are structured how. cattrs asks the last one first."""


# --------------------------------------------------------------------------- Pydantic models


def _model_of(value: Mapping[str, Any], cls: Any) -> Any:
    """Return an instance of a model, made of a mapping of its fields.

    A field that the model does not have is an error, unless its ``model_config`` says what becomes of those.
    """
    if cls.model_config.get("extra") is None:
        known = {name for field in cls.model_fields.items() for name in _names_of(*field)}
        unknown = [key for key in value if key not in known]
        if unknown and not any(_is_deep(field) for field in cls.model_fields.values()):
            raise MismatchError(Mismatch("", f"the fields of {describe_type(cls)}", f"another one, {unknown[0]!r}"))
    return cls.model_validate(dict(value))


def _names_of(name: str, field: Any) -> list[str]:
    return [one for one in (name, field.alias, field.validation_alias) if isinstance(one, str)]


def _is_deep(field: Any) -> bool:
    """Return whether a field is looked for in more than one place."""
    return field.validation_alias is not None and not isinstance(field.validation_alias, str)
