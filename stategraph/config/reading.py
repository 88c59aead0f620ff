"""Configurations from mappings and files: nothing is coerced, and nothing is ignored."""

from __future__ import annotations

import difflib
import json
import os
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import attrs

from stategraph._util.validators import encodable
from stategraph.errors import ConfigError

_Config = TypeVar("_Config", bound=attrs.AttrsInstance)


def configured(cls: type[_Config], values: object, path: str = "", **nested: type[attrs.AttrsInstance]) -> _Config:
    """Return the configuration that a mapping describes.

    Args:
        cls: The class of the configuration.
        values: The mapping.
        path: Leads to the mapping from the outermost one.
        nested: The classes of fields that are configurations themselves.

    Raises:
        ConfigError: it is no mapping, a key is unknown or missing, or a value is not allowed.
    """
    given = checked_mapping(path.rstrip(".") or "configuration", values)
    fields = {name: field for name, field in attrs.fields_dict(cls).items() if field.init}
    for key in given:
        if key not in fields:
            near = difflib.get_close_matches(str(key), fields, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            allowed = f"there is no such key{hint} (keys: {', '.join(fields)})"
            raise ConfigError(f"{path}{key}", given[key], allowed, is_shown=False)  # a secret whose key is misspelled?
    for name, field in fields.items():
        if field.default is attrs.NOTHING and name not in given:
            raise ConfigError(f"{path}{name}", None, "it has no default; give it a value")
    parts = {name: configured(part, given[name], f"{name}.") for name, part in nested.items() if name in given}
    return cls(**{**given, **parts})


def checked_mapping(key: str, values: object) -> Mapping[str, Any]:
    """Return the values. Raises ConfigError unless they are a mapping."""
    if not isinstance(values, Mapping):
        raise ConfigError(key, values, "a mapping (a table, in TOML)", is_shown=False)
    return values


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
