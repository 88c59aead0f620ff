"""Configurations from mappings and files: by cattrs (https://catt.rs), with nothing coerced and nothing ignored."""

from __future__ import annotations

import difflib
import json
import os
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import attrs
import cattrs

from stategraph._util.validators import encodable
from stategraph.config.checkpoint import Durability, Persist, Retention
from stategraph.errors import ConfigError

_Config = TypeVar("_Config")

_converter = cattrs.Converter(forbid_extra_keys=True, detailed_validation=False)
# Leaves are taken as they are: cattrs would make the interval "5" a 5, the attrs validators refuse it and say why.
for _leaf in (str, int, bool):
    _converter.register_structure_hook(_leaf, lambda value, _: value)
_WORDS = Durability, Retention
_OTHER_LEAVES: tuple[Any, ...] = (*_WORDS, int | None, float | None, Persist, Any, Mapping[str, Any])
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


# --------------------------------------------------------------------------- one laid over another


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
        if not field.init or (field.name == "interval" and config._is_usual):
            continue
        if attrs.has(type(value)):
            values[field.name] = not_default(value)
        elif field.default is attrs.NOTHING or value != _default_of(field, config):
            values[field.name] = value
    return values


def _default_of(field: attrs.Attribute[Any], config: Any) -> Any:
    default: Any = field.default
    if not hasattr(default, "factory"):
        return default
    return default.factory(config) if default.takes_self else default.factory()


# --------------------------------------------------------------------------- files


_READERS: dict[str, Callable[[str], Any]] = {".toml": tomllib.loads, ".json": json.loads}


def read(path: object) -> Any:
    """Return the contents of a configuration file.

    Raises:
        ConfigError: this is no path, its name does not end in .toml or .json, or it cannot be read.
    """
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    name = encodable(text) if isinstance(text, str) else None
    if name is None:
        raise ConfigError("file", path, "the path of a file")
    file = Path(name)
    try:
        parse = _READERS[file.suffix.lower()]
    except KeyError:
        raise ConfigError("file", name, f"a name that ends in {' or '.join(_READERS)}") from None
    try:
        return parse(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        there = file.parent.absolute()
        missing = f"it is not in {there}" if there.is_dir() else f"there is no folder {there}"
        where = "" if file.is_absolute() else "; a path begins in the working directory, or is to be absolute"
        raise ConfigError("file", name, f"the name of a file that is there: {missing}{where}") from error
    except (OSError, ValueError, RecursionError) as error:
        is_path = isinstance(error, tomllib.TOMLDecodeError) and str(error).startswith(("Invalid hex", "Unescaped"))
        hint = "; text with \\, such as a path of Windows, stands in 'single quotes'" if is_path else ""
        raise ConfigError("file", name, f"a readable {file.suffix} file ({error}{hint})") from error
