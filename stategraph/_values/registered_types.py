"""register_type: classes that a State may hold."""

from __future__ import annotations

import copy
import dataclasses
import functools
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from enum import Enum
from types import MemberDescriptorType
from typing import Any, TypeAlias, TypeVar, overload

import attrs

from stategraph._text.shown import describe_exception, shorten
from stategraph._util.callables import answered, check_function, imported_name
from stategraph._values.provenance import ErrorInfo

_Class = TypeVar("_Class", bound=type)

Upgrade: TypeAlias = Callable[[Any, int], Any]
"""Returns the fields of the current version, or its data if the class has an `encode`, from saved ones and their
version."""


Older: TypeAlias = dict[int, tuple[object, int, Any]]
"""Instances that were made of older fields, by their ids, each with the version and the fields that were loaded."""

_noted: ContextVar[Older | None] = ContextVar("stategraph_noted", default=None)
_carried: ContextVar[list[str] | None] = ContextVar("stategraph_carried", default=None)
_as_stored: ContextVar[Older] = ContextVar("stategraph_as_stored", default={})  # noqa: B039 - never changed


@contextmanager
def noting_older(found: Older) -> Iterator[None]:
    """In the block and in this thread, note instances that are made of older fields, and carry values whose classes
    are not there."""
    token, others = _noted.set(found), _carried.set([])
    try:
        yield
    finally:
        _noted.reset(token)
        _carried.reset(others)


problems_carried: Callable[[], list[str] | None] = _carried.get
"""Returns why values could not be made that this block carries; None outside of a block of `noting_older`."""


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
        fields: The names of its fields; empty for an enum, and with an `encode`.
        version: The version of its fields, saved with every value.
        upgrade: Converts fields of an older version.
        encode: Returns the data of a value, in place of its fields.
        decode: Returns the value of such data.
        subclasses: Whether subclasses are registered as well: with an `encode` under this name, otherwise each by its
            own name and fields.
        proven: The classes of the values that `decode` has been seen to bring back.
    """

    cls: type
    name: str
    fields: tuple[str, ...]
    version: int = 1
    upgrade: Upgrade | None = None
    encode: Callable[[Any], Any] | None = None
    decode: Callable[[Any], Any] | None = None
    subclasses: bool = False
    proven: set[type] = attrs.field(factory=set, eq=False)

    @property
    def is_enum(self) -> bool:
        return self.encode is None and issubclass(self.cls, Enum)

    def values_of(self, instance: object) -> Any:
        """Return the values of the fields of an instance, or its data if the class has an `encode`.

        Raises:
            ValueError: The instance has attributes that are not fields and would be lost; or `encode` raised.
        """
        if self.encode is not None:
            return self._called("encode", self.encode, instance)
        in_slots = [name for name in _slots_of(self.cls) if hasattr(instance, name) and not name.startswith(_PYDANTIC)]
        others = [name for name in (*getattr(instance, "__dict__", ()), *in_slots) if name not in self.fields]
        beside = beside_fields(instance, others) if is_model(self.cls) else {}
        extra = [
            name
            for name in others
            if name not in beside.get(PRIVATE, ())
            and not isinstance(getattr(self.cls, name, None), functools.cached_property)
        ]
        if extra:
            raise ValueError(f"it has attributes that are not fields of {self.name}: {', '.join(extra)}")
        return {**{name: getattr(instance, name) for name in self.fields if hasattr(instance, name)}, **beside}

    def _called(self, name: str, function: Callable[[Any], Any], given: Any) -> Any:
        try:
            return answered(function(given))
        except Exception as error:  # functions of the user may raise anything
            raise ValueError(f"the {name} of {self.name} raised {describe_exception(error)}") from error

    def restore(self, values: Any, version: int) -> object:
        """Return an instance with these fields, or of this data. Of the class, only `decode`, `upgrade` and defaults of
        new fields are called.

        Args:
            values: The saved fields, or the data.
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
        stored = values if upgrade is None else copy.copy(values)  # it may change them
        if upgrade is not None:
            values = self._upgraded(upgrade, values, version)
        if self.decode is None:
            instance, same = self._of_fields(values, version, upgrade), {*stored} - _BESIDE == {*self.fields}
        else:
            instance, same = self._called("decode", self.decode, values), True
        if noted is not None and not (same and version == self.version):
            noted[id(instance)] = instance, version, stored
        return instance

    def _of_fields(self, values: Any, version: int, upgrade: Upgrade | None) -> object:
        if type(values) is not dict:
            raise ValueError(f"it holds {shorten([version, values])} where a version and fields should be")
        values = self._with_defaults(values)
        if {*values} - _BESIDE != {*self.fields}:
            origin = f"its upgrade from version {version} returned" if upgrade else f"{self.name} was saved with"
            raise ValueError(
                f"{origin} fields {sorted(values)}, and {self.name} has {sorted(self.fields)}: use "
                f"register_type(cls, name={self.name!r}, version={max(version + 1, self.version)}, upgrade=function), "
                "where function(values, version) returns the new fields"
            )
        return self._made(values)

    def stored_form(self, instance: object) -> tuple[int, Any]:
        """Return the version and the fields of an instance; in a block of `as_stored`, those that were loaded."""
        _, version, values = _as_stored.get().get(id(instance), (None, self.version, None))
        return version, self.values_of(instance) if values is None else values

    def _made(self, values: dict[str, Any]) -> object:
        """Return an instance with these fields, without a call of its class."""
        if is_model(self.cls):
            return restored_model(self.cls, values)
        if issubclass(self.cls, tuple):
            return tuple.__new__(self.cls, [values[name] for name in self.fields])
        instance: object = object.__new__(self.cls)
        if isinstance(getattr(self.cls, _CACHED_HASH, None), MemberDescriptorType):
            object.__setattr__(instance, _CACHED_HASH, None)
        for name, value in values.items():
            object.__setattr__(instance, name, value)
        return instance

    def _upgraded(self, upgrade: Upgrade, values: Any, version: int) -> Any:
        try:
            newer = answered(upgrade(values, version))
            return dict(newer) if self.decode is None else newer
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
    if is_named_tuple(cls):
        return {name: functools.partial(lambda value: value, value) for name, value in cls._field_defaults.items()}
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


CALLS = {name: name for name in ("numpy", "openai", "pandas", "polars", "pydantic_ai")} | {
    "langchain_core": "langchain"
}
"""The functions of `stategraph.types` that have not been called, by the package whose classes they register."""


def call_for(cls: type) -> str:
    """Return the call that lets States hold instances of a class of another library; empty if there is none."""
    packages = [base.__module__.partition(".")[0] for base in cls.__mro__]
    name = next((CALLS[package] for package in packages if package in CALLS), "")
    return name and f"stategraph.types.{name}()"


_by_class: dict[type, RegisteredType] = {}
_by_name: dict[str, RegisteredType] = {}
_open: dict[type, RegisteredType] = {}  # those whose subclasses are registered as well


class _Options(typing.TypedDict, total=False):
    name: str | None
    version: int
    encode: Callable[[Any], Any] | None
    decode: Callable[[Any], Any] | None
    upgrade: Upgrade | None
    subclasses: bool


@overload
def register_type(cls: _Class, **options: typing.Unpack[_Options]) -> _Class: ...
@overload
def register_type(**options: typing.Unpack[_Options]) -> Callable[[_Class], _Class]: ...
def register_type(
    cls: Any = None,
    *,
    name: str | None = None,
    version: int = 1,
    encode: Callable[[Any], Any] | None = None,
    decode: Callable[[Any], Any] | None = None,
    upgrade: Upgrade | None = None,
    subclasses: bool = False,
) -> Any:
    """Let States hold instances of a class. Also a class decorator.

    An instance of an attrs class, a dataclass, a Pydantic model, a named tuple or an enum is saved by its fields and
    restored without calling ``__init__``, with exactly the saved fields. A field that was added since gets its default.
    When the fields change in another way, increase the version and convert older fields with `upgrade`::

        @register_type(name="shop.Order", version=2, upgrade=lambda values, version: {**values, "currency": "EUR"})

    Instances of any other class are saved as `encode` says::

        register_type(Version, encode=str, decode=Version)

    Args:
        cls: The class.
        name: Its name in stored bytes; by default its module and qualified name. Keep it when the class moves. The
            module of a main script is named after its file.
        version: The version of its fields or data, a positive integer, saved with every value.
        encode: Returns data of types that a State may hold. The first save of a class checks that `decode` brings the
            value back: equal, of the same class, and with the same data.
        decode: Returns a value of that data.
        upgrade: Returns the fields (the data) of this version, from those and the version of an older value. Without
            it, older values are loaded if they have the same fields, except new ones with defaults.
        subclasses: Also instances of subclasses: with `encode` and `decode` as those of the class, otherwise each by
            its own fields, under its own name.

    Raises:
        TypeError: The class has no fields and no `encode`; or it is an enum, and a version or an upgrade is given.
        ValueError: Another class has this name, or the version is not a positive integer.
    """
    if cls is None:
        options = _Options(name=name, version=version, encode=encode, decode=decode, upgrade=upgrade)
        return functools.partial(register_type, **options, subclasses=subclasses)
    for kind, function in (("encode", encode), ("decode", decode)):
        if encode is not None or decode is not None:
            check_function(kind, function, 1, "one argument")
    fields = _fields_of(cls) if encode is None or not isinstance(cls, type) else ()
    _check_version(cls, version, upgrade, is_enum=encode is None and issubclass(cls, Enum))
    own_name = _name_of(cls)
    registered = RegisteredType(cls, name or own_name, fields, version, upgrade, encode, decode, subclasses)
    known = _by_name.get(registered.name)
    if known is not None and _name_of(known.cls) != own_name:
        raise ValueError(f"the name {registered.name!r} is taken by {known.cls!r}; give another one with name=")
    _by_class[cls] = _by_name[registered.name] = registered
    if subclasses:
        _open[cls] = registered
    else:
        _open.pop(cls, None)
    if name is None:
        _by_name[f"{cls.__module__}.{cls.__qualname__}"] = registered
    return cls


def _name_of(cls: type) -> str:
    """Return the module and the name of a class. The module of a main script is the one that others import."""
    return f"{imported_name(cls.__module__)}.{cls.__qualname__}"


def _check_version(cls: type, version: object, upgrade: object, *, is_enum: bool) -> None:
    if type(version) is not int or version < 1:
        raise ValueError(f"version: {version!r} is not allowed; a positive integer is")
    if upgrade is not None:
        check_function("upgrade", upgrade, 2, "the fields and their version")
    if is_enum and (version != 1 or upgrade is not None):
        raise TypeError(f"{cls!r} is an enum and has no version: keep the names of its members, new ones as aliases")


def find_by_class(cls: type) -> RegisteredType | None:
    """Return the registration of exactly this class, or of a base whose subclasses are registered as well."""
    found = _by_class.get(cls)
    return found if found is not None or not _open else _as_subclass(cls)


def _as_subclass(cls: type) -> RegisteredType | None:
    base = next((_open[base] for base in cls.__mro__ if base in _open), None)
    if base is None or base.encode is not None:
        return base
    with suppress(TypeError, ValueError):  # it cannot be registered: the encoder says so
        register_type(cls)
    return _by_class.get(cls)


def find_by_name(name: str) -> RegisteredType | None:
    """Return the registration with this name. It may be of a class that exists as a subclass of a registered one."""
    ahead = [*_open] if name not in _by_name else []
    while ahead:
        cls = ahead.pop()
        if _name_of(cls) == name and find_by_class(cls) is not None:
            break
        ahead += type.__subclasses__(cls)
    return _by_name.get(name)


def forms_in(values: Iterable[Any]) -> dict[str, str]:
    """Return the versions and the fields of the classes with fields that values hold, by name."""
    found = [registered for part in parts_in(values) if (registered := find_by_class(type(part))) is not None]
    return {each.name: f"{each.version} {' '.join(each.fields)}" for each in found if not each.is_enum}


def parts_in(values: Iterable[Any]) -> Iterator[Any]:
    """Yield values and the parts of containers and objects in them, each object once."""
    ahead, seen = [*values], dict[int, Any]()
    while ahead:
        part = ahead.pop()
        if id(part) in seen:
            continue
        seen[id(part)] = part
        yield part
        registered = find_by_class(type(part))
        if registered is not None:
            ahead += [getattr(part, name, None) for name in registered.fields]
        elif isinstance(part, dict):
            ahead += [*part, *part.values()]
        elif isinstance(part, list | tuple | set | frozenset):
            ahead += part


def can_be_registered(cls: type) -> bool:
    """Return whether `register_type` accepts the class without an `encode`."""
    return issubclass(cls, Enum) or is_record(cls) or is_named_tuple(cls)


_IS_PYTHON_CLASS = 1 << 9  # Py_TPFLAGS_HEAPTYPE


def _fields_of(cls: object) -> tuple[str, ...]:
    if not isinstance(cls, type) or not can_be_registered(cls):
        kinds = "only attrs classes, dataclasses, Pydantic models, named tuples and enums can"
        raise TypeError(f"{cls!r} cannot be registered: {kinds}; for others pass encode= and decode=")
    if issubclass(cls, Enum):
        return ()
    if is_named_tuple(cls):
        return tuple(cls._fields)  # type: ignore[attr-defined]
    for base in cls.__mro__[:-1]:
        if not base.__flags__ & _IS_PYTHON_CLASS:
            reason = f"as a {base.__name__} it holds more than its fields; pass encode= and decode="
            raise TypeError(f"{cls!r} cannot be registered: {reason}")
    return *field_names(cls), *([FIELDS_SET] if is_model(cls) else [])


def is_named_tuple(cls: type) -> bool:
    """Return whether a class is a named tuple."""
    return issubclass(cls, tuple) and hasattr(cls, "_field_defaults") and hasattr(cls, "_fields")


# --------------------------------------------------------------------------- records: attrs, dataclasses, Pydantic

FIELDS_SET = "model_fields_set"
"""The attribute of a Pydantic model that names the fields that were given."""

EXTRA, PRIVATE = "model_extra", "__pydantic_private__"
"""Under these a model is saved with its extra fields, and with its private and other attributes that begin with _."""

_BESIDE = frozenset({EXTRA, PRIVATE})


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


def beside_fields(instance: Any, others: Iterable[str]) -> dict[str, Any]:
    """Return what a Pydantic model holds beside its fields; `others` are its other attributes."""
    private = {name: getattr(instance, name) for name in others if name.startswith("_")}
    private |= instance.__pydantic_private__ or {}
    parts = {EXTRA: dict(instance.__pydantic_extra__ or {}), PRIVATE: dict(sorted(private.items()))}
    return {name: part for name, part in parts.items() if part}


def restored_model(cls: Any, values: Mapping[str, Any]) -> Any:
    """Return an instance of a Pydantic model with these fields, without calling methods of the model."""
    instance = cls.__new__(cls)
    fields = {name: value for name, value in values.items() if name != FIELDS_SET and name not in _BESIDE}
    given, others = values.get(FIELDS_SET, fields), dict(values.get(PRIVATE, {}))
    if not isinstance(given, dict | set | frozenset | list | tuple) or not all(type(name) is str for name in given):
        raise ValueError(f"its {FIELDS_SET} is {shorten(given)}, and no set of names")
    extra = dict(values.get(EXTRA, {})) if cls.model_config.get("extra") == "allow" else None
    private = {
        name: others.pop(name, attribute.get_default()) for name, attribute in cls.__private_attributes__.items()
    }
    private = {name: value for name, value in private.items() if type(value).__name__ != "PydanticUndefinedType"}
    parts = {"__dict__": {**fields, **others}, "__pydantic_fields_set__": set(given), "__pydantic_extra__": extra}
    for name, value in {**parts, PRIVATE: private if cls.__private_attributes__ else None}.items():
        if value is not None or not cls.__pydantic_root_model__:  # a root model has no place for the last two
            object.__setattr__(instance, name, value)
    return instance


register_type(ErrorInfo, name="stategraph.ErrorInfo")  # what MapNode collects
