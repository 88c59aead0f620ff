"""Classes that a State may hold because their author registered them."""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from types import MemberDescriptorType
from typing import Any, TypeAlias, TypeVar, overload

import attrs

from stategraph._text.shown import describe_exception
from stategraph._util.callables import answered, problem_of
from stategraph._values.provenance import ErrorInfo

_Class = TypeVar("_Class", bound=type)

Upgrade: TypeAlias = Callable[[dict[str, Any], int], Mapping[str, Any]]
"""Is called with saved fields and the version they had; returns the fields of the current version."""


@attrs.frozen
class RegisteredType:
    """A registered class.

    Attributes:
        cls: The class.
        name: Its name in stored bytes.
        fields: The names of its fields; none if it is an enum.
        version: The version of its fields, saved with every value.
        upgrade: Makes them from those of an older version.
    """

    cls: type
    name: str
    fields: tuple[str, ...]
    version: int = 1
    upgrade: Upgrade | None = None

    @property
    def is_enum(self) -> bool:
        return issubclass(self.cls, Enum)

    def values_of(self, instance: object) -> dict[str, Any]:
        """Return the values of the fields of an instance.

        Raises:
            ValueError: The instance has attributes that are not fields; they would be lost.
        """
        in_slots = [name for name in _slots_of(self.cls) if hasattr(instance, name) and not name.startswith(_PYDANTIC)]
        names = [*getattr(instance, "__dict__", ()), *in_slots]
        extra = [name for name in names if name not in self.fields and not self._is_cached(name)]
        if extra:
            raise ValueError(f"it has attributes that are not fields of {self.name}: {', '.join(extra)}")
        return {name: getattr(instance, name) for name in self.fields if hasattr(instance, name)}

    def restore(self, values: dict[str, Any], version: int) -> object:
        """Return an instance with these fields, made without calling anything of the class but `upgrade`.

        Args:
            values: The fields that were saved.
            version: The version of the class that they were saved with.

        Raises:
            ValueError: The version is newer than the registered one, or the fields, upgraded or not, are not those of
                the class.
        """
        if version > self.version:
            raise ValueError(
                f"it holds a {self.name} of version {version}, and version {self.version} is registered here: "
                "load it with the code that saved it, or update this one"
            )
        if version < self.version and self.upgrade is not None:
            values = self._upgraded(self.upgrade, values, version)
        if set(values) != set(self.fields):
            raise ValueError(self._mismatch(values, version))
        if is_model(self.cls):
            return made_again(self.cls, values)
        instance: object = object.__new__(self.cls)
        if isinstance(getattr(self.cls, _CACHED_HASH, None), MemberDescriptorType):
            object.__setattr__(instance, _CACHED_HASH, None)
        for name, value in values.items():
            object.__setattr__(instance, name, value)
        return instance

    def _upgraded(self, upgrade: Upgrade, values: dict[str, Any], version: int) -> dict[str, Any]:
        try:
            return dict(answered(upgrade(values, version)))
        except Exception as error:  # it is the user's
            reason = f"the upgrade of {self.name} from version {version} raised {describe_exception(error)}"
            raise ValueError(reason) from error

    def _mismatch(self, values: dict[str, Any], version: int) -> str:
        if version < self.version and self.upgrade is not None:
            made = f"made {sorted(values)} of it, not {sorted(self.fields)}"
            return f"the upgrade of {self.name} from version {version} {made}"
        return (
            f"{self.name} was saved with fields {sorted(values)} and now has {sorted(self.fields)}: use "
            f"register_type(cls, name={self.name!r}, version={max(version + 1, self.version)}, upgrade=function), "
            "where function(values, version) returns the new fields"
        )

    def _is_cached(self, name: str) -> bool:
        return isinstance(getattr(self.cls, name, None), functools.cached_property)


_PYDANTIC = "__pydantic_"  # begins the names of what every model has
_CACHED_HASH = "_attrs_cached_hash"  # where attrs keeps the hash of an instance, with cache_hash=True and slots


@functools.cache
def _slots_of(cls: type) -> tuple[str, ...]:
    """Return the names in ``__slots__`` of classes that attrs has not made: of its own, all are fields or caches."""
    plain = [base for base in cls.__mro__ if "__attrs_attrs__" not in vars(base)]
    return tuple(name for base in plain for name, kind in vars(base).items() if isinstance(kind, MemberDescriptorType))


_by_class: dict[type, RegisteredType] = {}
_by_name: dict[str, RegisteredType] = {}


@overload
def register_type(
    cls: _Class, *, name: str | None = None, version: int = 1, upgrade: Upgrade | None = None
) -> _Class: ...
@overload
def register_type(
    *, name: str | None = None, version: int = 1, upgrade: Upgrade | None = None
) -> Callable[[_Class], _Class]: ...
def register_type(cls: Any = None, *, name: str | None = None, version: int = 1, upgrade: Upgrade | None = None) -> Any:
    """Let States hold instances of an attrs class, a dataclass, a Pydantic model or an enum; a class decorator, too.

    An instance is saved by its fields and restored without calling ``__init__``: what is loaded is what was saved. When
    the fields of the class change, raise the version and say how the values that were saved before become new ones::

        @register_type(name="shop.Order", version=2, upgrade=lambda values, version: {**values, "currency": "EUR"})

    Args:
        cls: The class.
        name: Its name in stored bytes; module and qualified name if not given. Keep it when the class moves.
        version: The version of its fields, a positive int; saved with every value.
        upgrade: Is called with the fields and the version of an older value, and returns the fields of this version.
            Without it, older values are loaded if they have the same fields.

    Raises:
        TypeError: It is none of these; or an enum with a version: it has no fields.
        ValueError: Another class has this name, or the version is not a positive int.
    """
    if cls is None:
        return functools.partial(register_type, name=name, version=version, upgrade=upgrade)
    fields = _fields_of(cls)
    _check_version(cls, version, upgrade)
    registered = RegisteredType(cls, name or f"{cls.__module__}.{cls.__qualname__}", fields, version, upgrade)
    known = _by_name.get(registered.name)
    if known is not None and (known.cls.__module__, known.cls.__qualname__) != (cls.__module__, cls.__qualname__):
        raise ValueError(f"the name {registered.name!r} is taken by {known.cls!r}; give another one with name=")
    _by_class[cls] = _by_name[registered.name] = registered
    return cls


def _check_version(cls: type, version: object, upgrade: object) -> None:
    if type(version) is not int or version < 1:
        raise ValueError(f"version: {version!r} is not allowed; a whole number from 1 on")
    problem = "" if upgrade is None else problem_of(upgrade, 2)
    if problem:
        raise TypeError(
            f"upgrade: {upgrade!r} is not allowed; a sync function of the fields and their version: {problem}"
        )
    if issubclass(cls, Enum) and (version != 1 or upgrade is not None):
        raise TypeError(f"{cls!r} is an enum and has no version: keep the names of its members, new ones as aliases")


def find_by_class(cls: type) -> RegisteredType | None:
    """Return the registration of exactly this class."""
    return _by_class.get(cls)


def find_by_name(name: str) -> RegisteredType | None:
    """Return the registration with this name."""
    return _by_name.get(name)


def can_be_registered(cls: type) -> bool:
    """Return whether `register_type` takes the class."""
    return issubclass(cls, Enum) or is_record(cls)


_IS_PYTHON_CLASS = 1 << 9  # Py_TPFLAGS_HEAPTYPE


def _fields_of(cls: object) -> tuple[str, ...]:
    if not isinstance(cls, type) or not can_be_registered(cls):
        what = "attrs classes, dataclasses, Pydantic models and enums"
        raise TypeError(f"{cls!r} cannot be registered: only {what} can")
    if issubclass(cls, Enum):
        return ()
    for base in cls.__mro__[:-1]:
        if not base.__flags__ & _IS_PYTHON_CLASS:
            raise TypeError(f"{cls!r} cannot be registered: as a {base.__name__} it holds more than its fields")
    if not is_model(cls):
        return field_names(cls)
    if problem := problem_of_model(cls):
        raise TypeError(f"{cls!r} cannot be registered: {problem}")
    return *field_names(cls), FIELDS_SET


# --------------------------------------------------------------------------- records

FIELDS_SET = "model_fields_set"
"""What a Pydantic model knows besides its fields: which of them were given, and are no defaults."""


def is_record(cls: object) -> bool:
    """Return whether it is a class of records."""
    return isinstance(cls, type) and (attrs.has(cls) or dataclasses.is_dataclass(cls) or is_model(cls))


def is_model(cls: object) -> bool:
    """Return whether it is a Pydantic model. Pydantic is not imported to find out."""
    return isinstance(cls, type) and any(
        (base.__module__, base.__name__) == ("pydantic.main", "BaseModel") for base in cls.__mro__[:-1]
    )


def field_names(cls: Any) -> tuple[str, ...]:
    """Return the names of the fields of a class of records."""
    if attrs.has(cls):
        return tuple(field.name for field in attrs.fields(cls))
    if is_model(cls):
        return tuple(cls.model_fields)
    return tuple(field.name for field in dataclasses.fields(cls))


def field_types(cls: Any) -> Mapping[str, Any]:
    """Return the types of the fields of a class of records, or of a TypedDict, by their names.

    Raises:
        NameError: an annotation names something that is not there.
    """
    if is_model(cls):
        return {name: field.annotation for name, field in cls.model_fields.items()}
    return typing.get_type_hints(cls, include_extras=not typing.is_typeddict(cls))


def made_again(cls: Any, values: Mapping[str, Any]) -> Any:
    """Return an instance of a Pydantic model with these fields, made without calling anything of the model."""
    instance = cls.__new__(cls)
    fields = {name: value for name, value in values.items() if name != FIELDS_SET}
    parts = {"__dict__": fields, "__pydantic_fields_set__": set(values.get(FIELDS_SET, fields))}
    for name, value in {**parts, "__pydantic_extra__": None, "__pydantic_private__": None}.items():
        object.__setattr__(instance, name, value)
    return instance


def problem_of_model(cls: Any) -> str:
    """Return why instances of a Pydantic model hold more than their fields; empty if they do not."""
    if cls.__private_attributes__:
        return f"it has private attributes, which are not saved: {', '.join(cls.__private_attributes__)}"
    return "its model_config allows extra fields" if cls.model_config.get("extra") == "allow" else ""


register_type(ErrorInfo, name="stategraph.ErrorInfo")  # what MapNode collects
