"""Pydantic models, as values and as schemas. What fits, and what is made of what does not, they say themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from stategraph._schema.mismatch import MismatchError, describe_type
from stategraph._values.registered_types import made_again


def model_of(value: Mapping[str, Any], cls: Any) -> Any:
    """Return an instance of a model, made of a mapping of its fields.

    A field that the model does not have is an error, unless its ``model_config`` says what becomes of those.
    """
    if cls.model_config.get("extra") is None:
        known = {name for field in cls.model_fields.items() for name in _names_of(*field)}
        unknown = [key for key in value if key not in known]
        if unknown and not any(_is_deep(field) for field in cls.model_fields.values()):
            raise MismatchError(f"the fields of {describe_type(cls)}", f"another one, {unknown[0]!r}")
    return cls.model_validate(dict(value))


def argument_of(cls: Any, name: str, field: Any) -> str:
    """Return what a model takes a field as."""
    by_name = cls.model_config.get("populate_by_name") or cls.model_config.get("validate_by_name")
    alias = field.validation_alias if field.validation_alias is not None else field.alias
    return name if by_name or not isinstance(alias, str) else alias


def field_check(cls: Any, name: str) -> Callable[[Any, Any], Any]:
    """Return the function that makes a value fit a field of a model: with its constraints and its validators.

    Validators of the whole model are asked when an object is made: what they look at may not be there yet.
    """
    from pydantic import TypeAdapter, ValidationError

    open_cls = type(cls.__name__, (cls,), {"__module__": cls.__module__, "__doc__": cls.__doc__}, frozen=False)
    field = cls.model_fields[name]
    alone = TypeAdapter(field.rebuild_annotation())

    def check(value: Any, _: Any) -> Any:
        instance = made_again(open_cls, {})
        try:
            open_cls.__pydantic_validator__.validate_assignment(instance, name, value)  # type: ignore[attr-defined]
        except ValidationError as error:
            if any(one["loc"][:1] == (name,) for one in error.errors(include_url=False)):
                raise
        except Exception:  # noqa: BLE001 - a validator of the model misses other fields
            return alone.validate_python(value)
        return vars(instance).get(name, value)

    return check


def _names_of(name: str, field: Any) -> list[str]:
    return [one for one in (name, field.alias, field.validation_alias) if isinstance(one, str)]


def _is_deep(field: Any) -> bool:
    """Return whether a field is looked for in more than one place."""
    return field.validation_alias is not None and not isinstance(field.validation_alias, str)
