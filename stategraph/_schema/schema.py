"""Schema: the keys of a graph's States and the types of their values, as a class says them."""

from __future__ import annotations

import copy
import dataclasses
import functools
import typing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import attrs

from stategraph._schema.structuring import Hook, Mismatch, classes_in, describe_type, hook_for, mismatches
from stategraph._text.shown import describe_exception
from stategraph._util.callables import answered
from stategraph._values.frozen import changed_items, freeze, is_settled, lay_over
from stategraph._values.registered_types import (
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
    """A key, and what its values are.

    Attributes:
        name: The key.
        argument: What the class takes it as.
        type: What its values are.
        is_required: Whether an object cannot be made without it.
        hook: Makes a value fit the type.
        attribute: What attrs knows of it; None of a dataclass.
    """

    name: str
    argument: str
    type: Any
    is_required: bool
    hook: Hook
    attribute: attrs.Attribute[Any] | None = None


@attrs.frozen(eq=False)
class Schema:
    """A class that says what the States of a graph hold: of records, or a TypedDict.

    Attributes:
        cls: The class.
        fields: Its fields by name: the keys that a State may have.
    """

    cls: type
    fields: Mapping[str, Field]

    @property
    def name(self) -> str:
        """The name of the class."""
        return self.cls.__name__

    @property
    def has_objects(self) -> bool:
        """Whether nodes may take and return objects of it. Of a TypedDict, the State is one as it is."""
        return not typing.is_typeddict(self.cls)

    @property
    def classes(self) -> list[type]:
        """The classes that values are made of, which a store has to know."""
        return classes_in(field.type for field in self.fields.values())

    def __reduce__(self) -> tuple[Any, ...]:
        return schema_of, (self.cls,)  # a process of a ParallelNode makes its own

    # ------------------------------------------------------------------ checking

    def checked(self, node: str, data: Mapping[str, Any], beside: Mapping[str, Any]) -> dict[str, Any]:
        """Return the data with every value as its field wants it.

        Args:
            node: What gave the data; empty for the caller.
            data: Some keys of a State.
            beside: All others, for validators that look at them.

        Raises:
            SchemaError: a key is no field, or a value does not fit; it lists all of them.
        """
        made: dict[str, Any] = {}
        wrong: list[Mismatch] = []
        for key, value in data.items():
            field = self.fields.get(key)
            if field is None:
                wrong.append(self._no_field(key))
                continue
            try:
                made[key] = field.hook(value, field.type)
            except Exception as error:  # noqa: BLE001 - reported as what does not fit
                wrong += mismatches(error, key, field.type)
        self._raise(node, wrong or list(self._refused(made, {**beside, **made})))
        return made

    def checked_result(self, node: str, result: Any, state: State) -> Any:
        """Return what a node returned, with its changes as the fields want them. Raises as `checked` does."""
        if isinstance(result, State):
            if result.pause is not None or result.run_id != state.run_id:  # none of its data are used
                return result
            changed = changed_items(data_of(state), result)
            return with_data(result, lay_over(data_of(result), self.checked(node, changed, result)))
        return self.checked(node, result, state) if isinstance(result, Mapping) else result

    def checked_item(self, node: str, key: str, place: str, item: Any) -> Any:
        """Return what is to stand at a place of the list under a key.

        Raises as `checked` does, but only about the item: the list as a whole is checked when it is complete.
        """
        field = self.fields[key]
        first = f"{key}[0]"
        try:
            return field.hook([item], field.type)[0]
        except Exception as error:  # noqa: BLE001 - reported as what does not fit
            found = [one for one in mismatches(error, key, field.type) if one.path.startswith(first)]
            self._raise(
                node, [attrs.evolve(one, path=f"{key}[{place}]{one.path.removeprefix(first)}") for one in found]
            )
        return item

    def problems(self, keys: Mapping[str, str]) -> Iterator[str]:
        """Return what keeps it from working with nodes that write these keys; the values say what writes them."""
        for key, who in keys.items():
            if key not in self.fields:
                no_field = self._no_field(key)
                yield f"{who} {key!r}, which is no field of {self.name}: expected {no_field.expected}"

    def _no_field(self, key: object) -> Mismatch:
        import difflib  # imported when used

        near = difflib.get_close_matches(str(key)[:80], self.fields, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        fields = f"one of its fields ({', '.join(self.fields)}{hint})"
        return Mismatch(str(key), fields, "another key")

    def _refused(self, made: Mapping[str, Any], data: Mapping[str, Any]) -> Iterator[Mismatch]:
        """Return what the validators of an attrs class refuse.

        A validator that looks at a missing field is called later, when an object is made.
        """
        validated = [field for name, field in self.fields.items() if name in made and field.attribute is not None]
        if attrs.validators.get_disabled() or not any(field.attribute.validator for field in validated):  # type: ignore[union-attr]
            return
        instance: Any = object.__new__(self.cls)
        for name in self.fields.keys() & data.keys():
            object.__setattr__(instance, name, data[name])
        for field in validated:
            attribute = typing.cast("attrs.Attribute[Any]", field.attribute)
            try:
                if attribute.validator is not None:
                    answered(attribute.validator(instance, attribute, made[field.name]))
            except Exception as error:  # noqa: BLE001 - reported as what does not fit
                if not (isinstance(error, AttributeError) and error.name in self.fields.keys() - data.keys()):
                    expected = f"{describe_type(field.type)} that its validator takes"
                    yield Mismatch(field.name, expected, describe_exception(error))

    def _raise(self, node: str, wrong: Sequence[Mismatch]) -> None:
        if wrong:
            first, *others = wrong
            told = tuple(map(str, others))
            raise SchemaError(node, self.name, first.path, first.expected, first.found, told)

    # ------------------------------------------------------------------ objects

    def made_of(self, node: str, data: Mapping[str, Any]) -> Any:
        """Return an instance of the class with the data; defaults stand in for keys that are missing.

        Raises:
            SchemaError: a required field is missing, or the class does not take the values.
        """
        nothing = "nothing: neither the input nor a node before has set it"
        self._raise(
            node,
            [
                Mismatch(name, describe_type(field.type), nothing)
                for name, field in self.fields.items()
                if field.is_required and name not in data
            ],
        )
        given = {field.argument: data[name] for name, field in self.fields.items() if name in data}
        try:
            return self.cls(**given)
        except Exception as error:
            raise SchemaError(node, self.name, "", "values that it takes", describe_exception(error)) from error

    def snapshot(self, instance: Any) -> dict[str, Any]:
        """Return the values of an instance as they are now, whatever changes them later."""
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
    except Exception:  # noqa: BLE001 - what cannot be copied counts as changed
        return _NOTHING


def schema_of(cls: Any) -> Schema:
    """Return the schema that a class describes, and register the classes of its values.

    Raises:
        ConfigError: it is neither an attrs class nor a dataclass, or nothing is known of the types of its fields.
    """
    if not is_record(cls) and not typing.is_typeddict(cls):
        kinds = "an attrs class, a dataclass, a Pydantic model or a TypedDict"
        raise ConfigError("schema", cls, f"{kinds}, whose fields are the keys of the States")
    schema = _schema_of(cls)
    for one in schema.classes:
        if find_by_class(one) is None:
            with suppress(TypeError, ValueError):  # a graph that saves anything says so when it is validated
                register_type(one)
    return schema


@functools.lru_cache(maxsize=64)  # for processes, which are sent the class with every branch
def _schema_of(cls: type) -> Schema:
    try:
        types = field_types(cls)
    except Exception as error:
        allowed = f"a class whose annotations can be resolved where it is defined ({describe_exception(error)})"
        raise ConfigError("schema", cls, allowed) from error
    return Schema(cls, {field.name: field for field in _fields_of(cls, types)})


def _fields_of(cls: Any, types: Mapping[str, Any]) -> Iterator[Field]:
    if typing.is_typeddict(cls):
        for name, of in types.items():
            yield Field(name, name, of, name in cls.__required_keys__, _hook(cls, name, of))
        return
    if is_model(cls):
        for name, one in cls.model_fields.items():
            yield Field(name, _argument_of(cls, name, one), types[name], one.is_required(), _field_check(cls, name))
        return
    is_attrs = attrs.has(cls)
    missing = attrs.NOTHING if is_attrs else dataclasses.MISSING
    fields: tuple[Any, ...] = attrs.fields(cls) if is_attrs else dataclasses.fields(cls)
    for one in fields:
        if one.init:
            of = types.get(one.name, one.type or Any)
            is_required = one.default is missing and getattr(one, "default_factory", missing) is missing
            argument = getattr(one, "alias", one.name)
            yield Field(one.name, argument, of, is_required, _hook(cls, one.name, of), one if is_attrs else None)


def _hook(cls: type, name: str, expected: Any) -> Hook:
    try:
        return hook_for(expected)
    except Exception as error:
        allowed = f"a class with types that cattrs knows; field {name!r}: {describe_exception(error)}"
        raise ConfigError("schema", cls, allowed) from error


def _argument_of(cls: Any, name: str, field: Any) -> str:
    """Return what a model takes a field as."""
    by_name = cls.model_config.get("populate_by_name") or cls.model_config.get("validate_by_name")
    alias = field.validation_alias if field.validation_alias is not None else field.alias
    return name if by_name or not isinstance(alias, str) else alias


def _field_check(cls: Any, name: str) -> Hook:
    """Return the function that makes a value fit a field of a model: with its constraints and its validators.

    Validators of the whole model are called when an object is made: other fields may be missing before.
    """
    from pydantic import TypeAdapter, ValidationError

    open_cls = type(cls.__name__, (cls,), {"__module__": cls.__module__, "__doc__": cls.__doc__}, frozen=False)
    field = cls.model_fields[name]
    alone = TypeAdapter(field.rebuild_annotation())

    def check(value: Any, _: Any) -> Any:
        instance = restored_model(open_cls, {})
        try:
            open_cls.__pydantic_validator__.validate_assignment(instance, name, value)  # type: ignore[attr-defined]
        except ValidationError as error:
            if any(one["loc"][:1] == (name,) for one in error.errors(include_url=False)):
                raise
        except Exception:  # noqa: BLE001 - a validator of the model misses other fields
            return alone.validate_python(value)
        return vars(instance).get(name, value)

    return check
