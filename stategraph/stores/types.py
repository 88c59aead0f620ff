"""Classes that a State may hold because their author registered them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from enum import Enum
from typing import Any, TypeVar, overload

import attrs

_Class = TypeVar("_Class", bound=type)


@attrs.frozen
class RegisteredType:
    """A registered class: its name in stored bytes and, unless it is an enum, its fields."""

    cls: type
    name: str
    fields: tuple[str, ...]

    @property
    def is_enum(self) -> bool:
        return issubclass(self.cls, Enum)

    def values_of(self, instance: object) -> dict[str, Any]:
        """-> the values of its fields.

        Raises:
            ValueError: the instance has attributes that are not fields; they would be lost.
        """
        extra = [name for name in getattr(instance, "__dict__", ()) if name not in self.fields and not self._is_cached(name)]
        if extra:
            raise ValueError(f"it has attributes that are not fields of {self.name}: {', '.join(extra)}")
        return {name: getattr(instance, name) for name in self.fields if hasattr(instance, name)}

    def restore(self, values: dict[str, Any]) -> object:
        """-> an instance with these values, made without calling anything of the class.

        Raises:
            ValueError: these are not the fields of the class as it is now.
        """
        if set(values) != set(self.fields):
            raise ValueError(f"{self.name} was saved with fields {sorted(values)} and now has {sorted(self.fields)}")
        instance: object = object.__new__(self.cls)
        for name, value in values.items():
            object.__setattr__(instance, name, value)
        return instance

    def _is_cached(self, name: str) -> bool:
        return isinstance(getattr(self.cls, name, None), functools.cached_property)


_by_class: dict[type, RegisteredType] = {}
_by_name: dict[str, RegisteredType] = {}


@overload
def register_type(cls: _Class, *, name: str | None = None) -> _Class: ...
@overload
def register_type(*, name: str | None = None) -> Callable[[_Class], _Class]: ...
def register_type(cls: Any = None, *, name: str | None = None) -> Any:
    """Let States hold instances of an attrs class, a dataclass or an enum. Works as a class decorator.

    An instance is saved by its fields and restored without calling ``__init__``: what is loaded is what was saved.

    Args:
        cls: The class.
        name: What stands for it in stored bytes; module and qualified name if not given. Keep it when the class moves.

    Raises:
        TypeError: it is neither an attrs class, a dataclass nor an enum.
        ValueError: another class has this name.
    """
    if cls is None:
        return functools.partial(register_type, name=name)
    registered = RegisteredType(cls, name or f"{cls.__module__}.{cls.__qualname__}", _fields_of(cls))
    known = _by_name.get(registered.name)
    if known is not None and (known.cls.__module__, known.cls.__qualname__) != (cls.__module__, cls.__qualname__):
        raise ValueError(f"the name {registered.name!r} is taken by {known.cls!r}; give another one with name=")
    _by_class[cls] = _by_name[registered.name] = registered
    return cls


def find_by_class(cls: type) -> RegisteredType | None:
    """-> the registration of exactly this class."""
    return _by_class.get(cls)


def find_by_name(name: str) -> RegisteredType:
    """-> the registration of this name.

    Raises:
        ValueError: there is none.
    """
    if not isinstance(name, str) or name not in _by_name:
        raise ValueError(f"it holds a {name!r}, which is not registered here: register_type(cls, name={name!r})")
    return _by_name[name]


def can_be_registered(cls: type) -> bool:
    """Whether `register_type` takes the class."""
    return issubclass(cls, Enum) or attrs.has(cls) or dataclasses.is_dataclass(cls)


def _fields_of(cls: object) -> tuple[str, ...]:
    if not isinstance(cls, type) or not can_be_registered(cls):
        raise TypeError(f"{cls!r} cannot be registered: only attrs classes, dataclasses and enums can")
    if issubclass(cls, Enum):
        return ()
    if attrs.has(cls):
        return tuple(field.name for field in attrs.fields(cls))
    return tuple(field.name for field in dataclasses.fields(cls))  # type: ignore[arg-type]
