"""Configuration files."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stategraph.errors import ConfigError

_READERS: dict[str, Callable[[str], Any]] = {".toml": tomllib.loads, ".json": json.loads}


def read(path: Path) -> Any:
    """-> what the file says.

    Raises:
        ConfigError: its name does not end in .toml or .json, or it cannot be read.
    """
    try:
        parse = _READERS[path.suffix.lower()]
    except KeyError:
        raise ConfigError("file", str(path), f"a name that ends in {' or '.join(_READERS)}") from None
    try:
        return parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError("file", str(path), f"a readable {path.suffix} file ({error})") from error
