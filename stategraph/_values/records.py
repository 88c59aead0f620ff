"""Records: attrs classes, dataclasses and Pydantic models, whose instances are told by their fields."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any

import attrs

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
