"""Schema: a class whose fields are the keys of the States of a graph."""

from __future__ import annotations

import copy
import dataclasses
import functools
import typing
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import attrs

from stategraph._schema.structuring import (
    Hook,
    Mismatch,
    MismatchError,
    classes_in,
    describe,
    describe_type,
    hook_for,
    mismatches,
)
from stategraph._text.shown import describe_exception, meant
from stategraph._util.callables import answered
from stategraph._values.frozen import Carried, changed_items, freeze, is_settled, lay_over
from stategraph._values.registered_types import (
    call_for,
    field_types,
    find_by_class,
    is_model,
    is_record,
    register_type,
    restored_model,
)
from stategraph._values.sameness import is_same
from stategraph.errors import ConfigError, SchemaError
from stategraph.state import State, data_of, with_data


@attrs.frozen(eq=False)
class Field:
    """A field of a schema.

    Attributes:
        name: The key.
        argument: The name of the argument of the class.
        type: The type of its values.
        is_required: Whether the class requires it.
        hook: Converts a value to the type.
        attribute: The attribute of an attrs class; None for other classes.
        has_validators: Whether functions of the user may make other values of the given ones.
    """

    name: str
    argument: str
    type: Any
    is_required: bool
    hook: Hook
    attribute: attrs.Attribute[Any] | None = None
    has_validators: bool = False


@attrs.frozen(eq=False)
class Schema:
    """A record class or a TypedDict that describes the States of a graph.

    Attributes:
        cls: The class.
        fields: Its fields by name: the keys that a State may have.
        saved: The keys that are saved, and checked again when a run is resumed.
    """

    cls: type
    fields: Mapping[str, Field]
    saved: Container[str] = ()

    @property
    def name(self) -> str:
        """The name of the class."""
        return self.cls.__name__

    @property
    def has_objects(self) -> bool:
        """Whether nodes may take and return instances. A State serves as an instance of a TypedDict."""
        return not typing.is_typeddict(self.cls)

    @property
    def classes(self) -> list[type]:
        """The classes of its values, which must be registered to be saved."""
        return classes_in(field.type for field in self.fields.values())

    def __reduce__(self) -> tuple[Any, ...]:
        return schema_of, (self.cls,)  # hooks cannot be pickled for the processes of a ParallelNode

    # ------------------------------------------------------------------ checking

    def checked(self, node: str, data: Mapping[str, Any], beside: Mapping[str, Any]) -> dict[str, Any]:
        """Return the data with values converted to the types of their fields.

        Args:
            node: The node that returned the data; empty for data from the caller.
            data: Some items of a State.
            beside: The other items, for validators that read them.

        Raises:
            SchemaError: A key is no field, or a value does not fit; the error lists all of them.
        """
        checked: dict[str, Any] = {}
        wrong: list[Mismatch] = []
        for key, value in data.items():
            field = self.fields.get(key)
            if field is None:
                wrong.append(self._no_field(key))
                continue
            try:
                checked[key] = value if type(value) is Carried else self._made(field, value)
            except Exception as error:  # noqa: BLE001 - reported as a mismatch
                wrong += mismatches(error, key, field.type)
        beside = data_of(beside) if isinstance(beside, State) else beside
        self._raise(node, wrong or list(self._refused(checked, {**beside, **checked})))
        return checked

    def checked_result(self, node: str, result: Any, state: State) -> Any:
        """Return the result of a node with its changes converted. Raises the errors of `checked`."""
        if isinstance(result, State):
            if result.run_id != state.run_id:  # its data are not used
                return result
            changed = changed_items(data_of(state), data_of(result))
            if result.pause is not None and not changed:
                return result
            return with_data(result, lay_over(data_of(result), self.checked(node, changed, result)))
        return self.checked(node, result, state) if isinstance(result, Mapping) else result

    def checked_item(self, node: str, key: str, place: str, item: Any) -> Any:
        """Return an item for a list under a key, converted. `place` is its index, for errors.

        Raises the errors of `checked` for the item. Validators of the list run when the list is complete.
        """
        field = self.fields[key]
        first = f"{key}[0]"
        try:
            return self._made(field, [item])[0]
        except Exception as error:  # noqa: BLE001 - reported as a mismatch
            wrong = [
                attrs.evolve(mismatch, path=f"{key}[{place}]{mismatch.path.removeprefix(first)}")
                for mismatch in mismatches(error, key, field.type)
                if mismatch.path.startswith(first)
            ]
            self._raise(node, wrong)
        return item

    def _made(self, field: Field, value: Any) -> Any:
        """Return a value made to fit a field. Raises MismatchError if it would not fit, or change, once it is saved."""
        made = field.hook(value, field.type)
        if made is value or not field.has_validators or field.name not in self.saved or is_same(made, value):
            return made
        try:
            found = "" if is_same(made, field.hook(made, field.type)) else "is changed again"
        except Exception as error:  # noqa: BLE001 - a validator may raise anything
            found = f"is refused: {next(mismatches(error, field.name, field.type)).expected}"
        if found:
            expected = "a value that passes unchanged when it is checked again, as saved; let the validator accept it"
            raise MismatchError(Mismatch("", expected, f"{describe(value)}, made {describe(made)}, which {found}"))
        return made

    def problems(self, keys: Mapping[str, str]) -> Iterator[str]:
        """Yield a problem for each key that is no field. The values of `keys` describe their use."""
        for key, use in keys.items():
            if key not in self.fields:
                yield f"{use} {key!r}, which is no field of {self.name}: expected {self._no_field(key).expected}"

    def _no_field(self, key: object) -> Mismatch:
        near = meant(str(key), self.fields)
        fields = f"one of its fields ({', '.join(self.fields)}{near and '; ' + near})"
        return Mismatch(str(key), fields, "another key")

    def _refused(self, checked: Mapping[str, Any], data: Mapping[str, Any]) -> Iterator[Mismatch]:
        """Yield the values that validators of an attrs class refuse.

        A validator that reads a missing field is called later, when an instance is made.
        """
        attributes = [field.attribute for name, field in self.fields.items() if name in checked]
        validated = [attribute for attribute in attributes if attribute is not None and attribute.validator is not None]
        if attrs.validators.get_disabled() or not validated:
            return
        instance: Any = object.__new__(self.cls)
        for name in self.fields.keys() & data.keys():
            object.__setattr__(instance, name, data[name])
        for attribute in validated:
            try:
                answered(typing.cast(Any, attribute.validator)(instance, attribute, checked[attribute.name]))
            except Exception as error:  # noqa: BLE001 - reported as a mismatch
                if not (isinstance(error, AttributeError) and error.name in self.fields.keys() - data.keys()):
                    expected = f"{describe_type(self.fields[attribute.name].type)} that its validator takes"
                    yield Mismatch(attribute.name, expected, describe_exception(error))

    def _raise(self, node: str, wrong: Sequence[Mismatch]) -> None:
        if wrong:
            first, *others = wrong
            raise SchemaError(node, self.name, first.path, first.expected, first.found, tuple(map(str, others)))

    # ------------------------------------------------------------------ instances

    def made_of(self, node: str, data: Mapping[str, Any]) -> Any:
        """Return an instance of the class with the data. Missing keys have their defaults.

        Raises:
            SchemaError: A required field is missing, or the class does not accept the values.
        """
        nothing = "nothing: neither the input nor a node before has set it"
        missing = [
            Mismatch(name, describe_type(field.type), nothing)
            for name, field in self.fields.items()
            if field.is_required and name not in data
        ]
        self._raise(node, missing)
        given = {field.argument: data[name] for name, field in self.fields.items() if name in data}
        try:
            return self.cls(**given)
        except Exception as error:
            raise SchemaError(node, self.name, "", "values that it takes", describe_exception(error)) from error

    def object_of(self, data: Mapping[str, Any]) -> Any:
        """Return an instance with the data, converted. Raises the errors of `checked` and `made_of`."""
        return self.made_of("", self.checked("", data, data))

    def snapshot(self, instance: Any) -> dict[str, Any]:
        """Return copies of the values of an instance, which later changes do not affect."""
        return {name: _snapshot(getattr(instance, name)) for name in self.fields}

    def changes(self, instance: Any, before: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of an instance whose values differ from before."""
        values = {name: getattr(instance, name) for name in self.fields}
        return {name: value for name, value in values.items() if not is_same(before.get(name, _NOTHING), value)}


_NOTHING = object()


def _snapshot(value: Any) -> Any:
    try:
        frozen = freeze(value)
        return frozen if is_settled(frozen) else freeze(copy.deepcopy(value))
    except Exception:  # noqa: BLE001 - a value that cannot be copied counts as changed
        return _NOTHING


def schema_of(cls: Any) -> Schema:
    """Return the schema of a class, and register the classes of its values.

    Raises:
        ConfigError: The class is no record class or TypedDict, or the types of its fields are not supported.
    """
    if not is_record(cls) and not typing.is_typeddict(cls):
        kinds = "an attrs class, a dataclass, a Pydantic model or a TypedDict"
        raise ConfigError("schema", cls, f"{kinds}, whose fields are the keys of the States")
    schema = _schema_of(cls)
    for value_class in schema.classes:
        if find_by_class(value_class) is None and not call_for(value_class):
            with suppress(TypeError, ValueError):  # reported by the validation of a graph that saves anything
                register_type(value_class)
    return schema


@functools.lru_cache(maxsize=64)  # for processes, which receive the class with every branch
def _schema_of(cls: type) -> Schema:
    try:
        types = field_types(cls)
    except Exception as error:
        allowed = f"a class whose annotations can be resolved where it is defined ({describe_exception(error)})"
        raise ConfigError("schema", cls, allowed) from error
    return Schema(cls, {field.name: field for field in _fields_of(cls, types)})


def _fields_of(cls: Any, types: Mapping[str, Any]) -> Iterator[Field]:
    if typing.is_typeddict(cls):
        for name, expected in types.items():
            yield Field(name, name, expected, name in cls.__required_keys__, _hook(cls, name, hook_for, expected))
        return
    if is_model(cls):
        for name, info in cls.model_fields.items():
            hook = _hook(cls, name, _field_check, cls, name)
            argument, has_validators = _argument_of(cls, name, info), _has_validators(cls)
            yield Field(name, argument, types[name], info.is_required(), hook, has_validators=has_validators)
        return
    is_attrs = attrs.has(cls)
    missing = attrs.NOTHING if is_attrs else dataclasses.MISSING
    fields: tuple[Any, ...] = attrs.fields(cls) if is_attrs else dataclasses.fields(cls)
    for field in fields:
        if field.init:
            name, expected = field.name, types.get(field.name, field.type or Any)
            is_required = field.default is missing and getattr(field, "default_factory", missing) is missing
            argument = getattr(field, "alias", name)
            attribute = field if is_attrs else None
            yield Field(name, argument, expected, is_required, _hook(cls, name, hook_for, expected), attribute)


def _hook(cls: type, name: str, make: Callable[..., Hook], *about: Any) -> Hook:
    """Return the hook that a function makes for a field. Raises ConfigError if its type is not supported."""
    try:
        return make(*about)
    except Exception as error:
        known_by = "Pydantic" if is_model(cls) else "cattrs"
        why = describe_exception(error).partition(". ")[0]
        allowed = f"a class with types that {known_by} knows; field {name!r}: {why}; Any leaves a field unchecked"
        raise ConfigError("schema", cls, allowed) from error


@functools.lru_cache(maxsize=64)
def _has_validators(cls: Any) -> bool:
    """Return whether a model, or a type in it, has functions that may change values."""
    return "'function-" in repr(cls.__pydantic_core_schema__)


def _argument_of(cls: Any, name: str, field: Any) -> str:
    """Return the name of the argument of a model for a field."""
    by_name = cls.model_config.get("populate_by_name") or cls.model_config.get("validate_by_name")
    alias = field.validation_alias if field.validation_alias is not None else field.alias
    return name if by_name or not isinstance(alias, str) else alias


def _field_check(cls: Any, name: str) -> Hook:
    """Return the function that converts a value to a field of a model, with its constraints and validators.

    Validators of the whole model are called when an instance is made, because other fields may be missing now.
    """
    from pydantic import TypeAdapter, ValidationError

    cls.model_rebuild()  # raises if an annotation names nothing; does nothing if the model is complete
    open_cls = type(cls.__name__, (cls,), {"__module__": cls.__module__, "__doc__": cls.__doc__}, frozen=False)
    field = cls.model_fields[name]
    alone = TypeAdapter(field.rebuild_annotation())

    def check(value: Any, _: Any) -> Any:
        instance = restored_model(open_cls, {})
        try:
            open_cls.__pydantic_validator__.validate_assignment(instance, name, value)  # type: ignore[attr-defined]
        except ValidationError as error:
            if any(detail["loc"][:1] == (name,) for detail in error.errors(include_url=False)):
                raise
        except Exception:  # noqa: BLE001 - a validator of the model may read missing fields
            return alone.validate_python(value)
        return vars(instance).get(name, value)

    return check
