"""register_type: classes that a State may hold."""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from types import MemberDescriptorType
from typing import Any, TypeAlias, TypeVar, overload

import attrs

from stategraph._text.shown import describe_exception, shorten
from stategraph._util.callables import answered, check_function, imported_name
from stategraph._values.provenance import ErrorInfo

_Class = TypeVar("_Class", bound=type)

Upgrade: TypeAlias = Callable[[dict[str, Any], int], Mapping[str, Any]]
"""Returns the fields of the current version, from saved fields and their version."""


Older: TypeAlias = dict[int, tuple[object, int, dict[str, Any]]]
"""Instances that were made of older fields, by their ids, each with the version and the fields that were loaded."""

_noted: ContextVar[Older | None] = ContextVar("stategraph_noted", default=None)
_as_stored: ContextVar[Older] = ContextVar("stategraph_as_stored", default={})  # noqa: B039 - never changed


@contextmanager
def noting_older(found: Older) -> Iterator[None]:
    """In the block and in this thread, note instances that are made of older fields."""
    token = _noted.set(found)
    try:
        yield
    finally:
        _noted.reset(token)


@contextmanager
def as_stored(older: Older) -> Iterator[None]:
    """In the block and in this thread, encode these instances as they were loaded."""
    token = _as_stored.set(older)
    try:
        yield
    finally:
        _as_stored.reset(token)


@attrs.frozen
class RegisteredType:
    """A registered class.

    Attributes:
        cls: The class.
        name: Its name in stored bytes.
        fields: The names of its fields; empty for an enum.
        version: The version of its fields, saved with every value.
        upgrade: Converts fields of an older version.
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
            ValueError: The instance has attributes that are not fields and would be lost.
        """
        in_slots = [name for name in _slots_of(self.cls) if hasattr(instance, name) and not name.startswith(_PYDANTIC)]
        others = [name for name in (*getattr(instance, "__dict__", ()), *in_slots) if name not in self.fields]
        extra = [name for name in others if not isinstance(getattr(self.cls, name, None), functools.cached_property)]
        if extra:
            raise ValueError(f"it has attributes that are not fields of {self.name}: {', '.join(extra)}")
        return {name: getattr(instance, name) for name in self.fields if hasattr(instance, name)}

    def restore(self, values: dict[str, Any], version: int) -> object:
        """Return an instance with these fields. Of the class, only `upgrade` and defaults of new fields are called.

        Args:
            values: The saved fields.
            version: Their version.

        Raises:
            ValueError: The version is newer than the registered one, or the fields, after an upgrade, are not those of
                the class.
        """
        if version > self.version:
            raise ValueError(
                f"it holds a {self.name} of version {version}, and version {self.version} is registered here: "
                "load it with the code that saved it, or update this one"
            )
        upgrade, noted = self.upgrade if version < self.version else None, _noted.get()
        stored = values if upgrade is None else {**values}  # it may change them
        if upgrade is not None:
            values = self._upgraded(upgrade, values, version)
        values = self._with_defaults(values)
        if set(values) != set(self.fields):
            origin = f"its upgrade from version {version} returned" if upgrade else f"{self.name} was saved with"
            raise ValueError(
                f"{origin} fields {sorted(values)}, and {self.name} has {sorted(self.fields)}: use "
                f"register_type(cls, name={self.name!r}, version={max(version + 1, self.version)}, upgrade=function), "
                "where function(values, version) returns the new fields"
            )
        instance = self._made(values)
        if noted is not None and (version, stored.keys()) != (self.version, values.keys()):
            noted[id(instance)] = instance, version, stored
        return instance

    def stored_form(self, instance: object) -> tuple[int, dict[str, Any]]:
        """Return the version and the fields of an instance; in a block of `as_stored`, those that were loaded."""
        _, version, values = _as_stored.get().get(id(instance), (None, self.version, None))
        return version, self.values_of(instance) if values is None else values

    def _made(self, values: dict[str, Any]) -> object:
        """Return an instance with these fields, without a call of its class."""
        if is_model(self.cls):
            return restored_model(self.cls, values)
        instance: object = object.__new__(self.cls)
        if isinstance(getattr(self.cls, _CACHED_HASH, None), MemberDescriptorType):
            object.__setattr__(instance, _CACHED_HASH, None)
        for name, value in values.items():
            object.__setattr__(instance, name, value)
        return instance

    def _upgraded(self, upgrade: Upgrade, values: dict[str, Any], version: int) -> dict[str, Any]:
        try:
            return dict(answered(upgrade(values, version)))
        except Exception as error:  # functions of the user may raise anything
            reason = f"the upgrade of {self.name} from version {version} raised {describe_exception(error)}"
            raise ValueError(reason) from error

    def _with_defaults(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the fields and, if all that are missing have defaults, these."""
        missing = [name for name in self.fields if name not in values]
        defaults = _defaults_of(self.cls) if missing else {}
        if not missing or not defaults.keys() >= set(missing):
            return values
        try:
            return {**values, **{name: answered(defaults[name]()) for name in missing}}
        except Exception as error:  # functions of the user may raise anything
            reason = f"the default of a field that {self.name} did not have yet raised {describe_exception(error)}"
            raise ValueError(reason) from error


_FACTORY: Any = attrs.Factory  # a class; for type checkers a function


@functools.cache
def _defaults_of(cls: Any) -> dict[str, Callable[[], Any]]:
    """Return functions that make the defaults of the fields of a record class, by name.

    A default that is made from other fields of the instance does not count.
    """
    if is_model(cls):
        return {
            name: functools.partial(field.get_default, call_default_factory=True)
            for name, field in cls.model_fields.items()
            if not field.is_required() and not getattr(field, "default_factory_takes_validated_data", False)
        }
    found: dict[str, Callable[[], Any]] = {}
    fields: tuple[Any, ...] = attrs.fields(cls) if attrs.has(cls) else dataclasses.fields(cls)
    for field in fields:
        default: Any = field.default
        factory: Any = getattr(field, "default_factory", dataclasses.MISSING)
        if isinstance(default, _FACTORY):
            default, factory = attrs.NOTHING, dataclasses.MISSING if default.takes_self else default.factory
        if factory is not dataclasses.MISSING:
            found[field.name] = factory
        elif default is not attrs.NOTHING and default is not dataclasses.MISSING:
            found[field.name] = functools.partial(lambda value: value, default)
    return found


_PYDANTIC = "__pydantic_"  # prefix of attributes of every model
_CACHED_HASH = "_attrs_cached_hash"  # the slot of attrs for the hash of an instance, with cache_hash=True


@functools.cache
def _slots_of(cls: type) -> tuple[str, ...]:
    """Return the slots of classes that attrs did not make: slots of attrs classes are fields or caches."""
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
    """Let States hold instances of an attrs class, a dataclass, a Pydantic model or an enum. Also a class decorator.

    An instance is saved by its fields and restored without calling ``__init__``, with exactly the saved fields. A field
    that was added since gets its default. When the fields change in another way, increase the version and convert older
    fields with `upgrade`::

        @register_type(name="shop.Order", version=2, upgrade=lambda values, version: {**values, "currency": "EUR"})

    Args:
        cls: The class.
        name: Its name in stored bytes; by default its module and qualified name. Keep it when the class moves. The
            module of a main script is named after its file.
        version: The version of its fields, a positive integer, saved with every value.
        upgrade: Returns the fields of this version, from the fields and the version of an older value. Without it,
            older values are loaded if they have the same fields, except new ones with defaults.

    Raises:
        TypeError: The class is of another kind; or it is an enum, and a version or an upgrade is given.
        ValueError: Another class has this name, or the version is not a positive integer.
    """
    if cls is None:
        return functools.partial(register_type, name=name, version=version, upgrade=upgrade)
    fields = _fields_of(cls)
    _check_version(cls, version, upgrade)
    own_name = _name_of(cls)
    registered = RegisteredType(cls, name or own_name, fields, version, upgrade)
    known = _by_name.get(registered.name)
    if known is not None and _name_of(known.cls) != own_name:
        raise ValueError(f"the name {registered.name!r} is taken by {known.cls!r}; give another one with name=")
    _by_class[cls] = _by_name[registered.name] = registered
    if name is None:
        _by_name[f"{cls.__module__}.{cls.__qualname__}"] = registered
    return cls


def _name_of(cls: type) -> str:
    """Return the module and the name of a class. The module of a main script is the one that others import."""
    return f"{imported_name(cls.__module__)}.{cls.__qualname__}"


def _check_version(cls: type, version: object, upgrade: object) -> None:
    if type(version) is not int or version < 1:
        raise ValueError(f"version: {version!r} is not allowed; a positive integer is")
    if upgrade is not None:
        check_function("upgrade", upgrade, 2, "the fields and their version")
    if issubclass(cls, Enum) and (version != 1 or upgrade is not None):
        raise TypeError(f"{cls!r} is an enum and has no version: keep the names of its members, new ones as aliases")


find_by_class: Callable[[type], RegisteredType | None] = _by_class.get
"""Returns the registration of exactly this class."""

find_by_name: Callable[[str], RegisteredType | None] = _by_name.get
"""Returns the registration with this name."""


def forms_in(values: Iterable[Any]) -> dict[str, str]:
    """Return the versions and the fields of the classes with fields that values hold, by name."""
    ahead, seen, forms = [*values], dict[int, Any](), dict[str, str]()
    while ahead:
        part = ahead.pop()
        if id(part) in seen:
            continue
        seen[id(part)] = part
        registered = find_by_class(type(part))
        if registered is not None and registered.fields:
            forms[registered.name] = f"{registered.version} {' '.join(registered.fields)}"
            ahead += [getattr(part, name, None) for name in registered.fields]
        elif isinstance(part, dict):
            ahead += [*part, *part.values()]
        elif isinstance(part, list | tuple | set | frozenset):
            ahead += part
    return forms


def can_be_registered(cls: type) -> bool:
    """Return whether `register_type` accepts the class."""
    return issubclass(cls, Enum) or is_record(cls)


_IS_PYTHON_CLASS = 1 << 9  # Py_TPFLAGS_HEAPTYPE


def _fields_of(cls: object) -> tuple[str, ...]:
    if not isinstance(cls, type) or not can_be_registered(cls):
        raise TypeError(f"{cls!r} cannot be registered: only attrs classes, dataclasses, Pydantic models and enums can")
    if issubclass(cls, Enum):
        return ()
    for base in cls.__mro__[:-1]:
        if not base.__flags__ & _IS_PYTHON_CLASS:
            raise TypeError(f"{cls!r} cannot be registered: as a {base.__name__} it holds more than its fields")
    if not is_model(cls):
        return field_names(cls)
    model: Any = cls
    if model.__private_attributes__ or model.model_config.get("extra") == "allow":
        raise TypeError(f"{cls!r} cannot be registered: its private attributes or extra fields would not be saved")
    return *field_names(cls), FIELDS_SET


# --------------------------------------------------------------------------- records: attrs, dataclasses, Pydantic

FIELDS_SET = "model_fields_set"
"""The attribute of a Pydantic model that names the fields that were given."""


def is_record(cls: object) -> bool:
    """Return whether an object is an attrs class, a dataclass or a Pydantic model."""
    return isinstance(cls, type) and (attrs.has(cls) or dataclasses.is_dataclass(cls) or is_model(cls))


def is_model(cls: object) -> bool:
    """Return whether an object is a Pydantic model, without importing Pydantic."""
    return isinstance(cls, type) and any(
        (base.__module__, base.__name__) == ("pydantic.main", "BaseModel") for base in cls.__mro__[:-1]
    )


def field_names(cls: Any) -> tuple[str, ...]:
    """Return the names of the fields of a record class."""
    if attrs.has(cls):
        return tuple(field.name for field in attrs.fields(cls))
    if is_model(cls):
        return tuple(cls.model_fields)
    return tuple(field.name for field in dataclasses.fields(cls))


def field_types(cls: Any) -> Mapping[str, Any]:
    """Return the types of the fields of a record class or a TypedDict, by name.

    Raises:
        NameError: An annotation contains an unknown name.
    """
    if is_model(cls):
        return {name: field.annotation for name, field in cls.model_fields.items()}
    return typing.get_type_hints(cls, include_extras=not typing.is_typeddict(cls))


def restored_model(cls: Any, values: Mapping[str, Any]) -> Any:
    """Return an instance of a Pydantic model with these fields, without calling methods of the model."""
    instance = cls.__new__(cls)
    fields = {name: value for name, value in values.items() if name != FIELDS_SET}
    given = values.get(FIELDS_SET, fields)
    if not isinstance(given, dict | set | frozenset | list | tuple) or not all(type(name) is str for name in given):
        raise ValueError(f"its {FIELDS_SET} is {shorten(given)}, and no set of names")
    parts = {"__dict__": fields, "__pydantic_fields_set__": set(given)}
    for name, value in {**parts, "__pydantic_extra__": None, "__pydantic_private__": None}.items():
        object.__setattr__(instance, name, value)
    return instance


register_type(ErrorInfo, name="stategraph.ErrorInfo")  # what MapNode collects
