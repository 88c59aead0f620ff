"""Laying one configuration over another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from stategraph.errors import ConfigError


def laid_over(values: Mapping[str, Any], changes: object) -> dict[str, Any]:
    """Return the values of a configuration with changes laid over them.

    Raises:
        ConfigError: the changes are no mapping, or those of its checkpoint.
    """
    if not isinstance(changes, Mapping):
        raise ConfigError("merge", changes, "a GraphConfig or a mapping", is_shown=False)
    checkpoint = changes.get("checkpoint", {})
    if not isinstance(checkpoint, Mapping):
        raise ConfigError("checkpoint", checkpoint, "a mapping", is_shown=False)
    return {**values, **changes, "checkpoint": {**values["checkpoint"], **checkpoint}}


def not_default(config: Any) -> dict[str, Any]:
    """Return the values of a configuration that differ from the defaults; its name always does."""
    values = {}
    for field in attrs.fields(type(config)):
        value = getattr(config, field.name)
        if attrs.has(type(value)):
            values[field.name] = not_default(value)
        elif field.default is attrs.NOTHING or value != _default_of(field):
            values[field.name] = value
    return values


def _default_of(field: attrs.Attribute[Any]) -> Any:
    default: Any = field.default
    return default.factory() if hasattr(default, "factory") else default
