"""Configuration files."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stategraph._util.validators import encodable
from stategraph.errors import ConfigError

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
