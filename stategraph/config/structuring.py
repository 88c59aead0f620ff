"""Mappings to configurations, by cattrs (https://catt.rs), with nothing coerced and nothing ignored."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, TypeVar

import attrs
import cattrs

from stategraph.errors import ConfigError

_Config = TypeVar("_Config")

_converter = cattrs.Converter(forbid_extra_keys=True, detailed_validation=False)
# Leaves are taken as they are: cattrs would make the interval "5" a 5, the attrs validators refuse it and say why.
for _leaf in (str, int, bool):
    _converter.register_structure_hook(_leaf, lambda value, _: value)
_OTHER_LEAVES: tuple[Any, ...] = (int | None, float | None, tuple[str, ...] | None, Any, Mapping[str, Any])
_converter.register_structure_hook_func(lambda kind: kind in _OTHER_LEAVES, lambda value, _: value)


def structure(cls: type[_Config], values: object) -> _Config:
    """Return the configuration that a mapping describes.

    Raises:
        ConfigError: it is no mapping, a key is unknown or missing, or a value is not allowed.
    """
    _check_keys(cls, values, "")
    return _converter.structure(values, cls)


def _check_keys(cls: type, values: object, path: str) -> None:
    """Raise ConfigError for a key that cattrs would refuse, with its path and what it may have meant."""
    if not isinstance(values, Mapping):
        where = path.rstrip(".") or "configuration"
        raise ConfigError(where, values, "a mapping (a table, in TOML)", is_shown=False)
    fields = attrs.fields_dict(cls)
    for key in values:
        if key not in fields:
            near = difflib.get_close_matches(str(key), fields, n=1)
            raise ConfigError(
                f"{path}{key}",
                values[key],
                f"there is no such key{f'; did you mean {near[0]}?' if near else ''} (keys: {', '.join(fields)})",
                is_shown=False,  # it may be a secret whose key is misspelled
            )
    for name, field in fields.items():
        if field.default is attrs.NOTHING and name not in values:
            raise ConfigError(f"{path}{name}", None, "it has no default; give it a value")
        if field.type is not None and name in values and attrs.has(_class_of(cls, name)):
            _check_keys(_class_of(cls, name), values[name], f"{name}.")


def _class_of(cls: type, name: str) -> type:
    """Return the class that a field is annotated with."""
    return attrs.fields_dict(attrs.resolve_types(cls))[name].type  # type: ignore[return-value]
