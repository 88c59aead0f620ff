"""Validators that say what would be allowed."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from stategraph.errors import ConfigError

MOST = sys.float_info.max
"""A whole number beyond it is finite, and yet too large to count with."""


LONGEST_WAIT = 10_000_000_000
"""Seconds to a deadline at most, some 317 years: a time much farther from now cannot be written as a date."""


Allowed = Mapping[str, tuple[str, Callable[[Any], bool]]]
"""By field name, the allowed values: in words, and as a test."""


def check_fields(config: object, path: str, allowed: Allowed, hidden: str = "") -> None:
    """Raise ConfigError for the first field whose value is not allowed; that of `hidden` is not shown."""
    for name, (words, is_allowed) in allowed.items():
        value = getattr(config, name)
        if not is_allowed(value):
            raise ConfigError(f"{path}{name}", value, words, name != hidden)


def is_optional(cls: type) -> Any:
    """Return a validator of attrs for None or a value of this class."""
    return attrs.validators.optional(attrs.validators.instance_of(cls))


def is_name(value: object) -> bool:
    """Return whether a value is a str of 1 to 200 printable characters."""
    return isinstance(value, str) and 0 < len(value) <= 200 and value.isprintable()


def is_count(value: object, at_least: int) -> bool:
    """Return whether a value is an integer of at least `at_least`; True and False are not numbers here."""
    return type(value) is int and value >= at_least


def is_seconds(value: object) -> bool:
    """Return whether a value is a number above 0 that can be counted with."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= MOST


def encodable(path: str) -> str | None:
    """Return the path as system calls take it; None if no file can have this name.

    Where the locale has fewer characters than Unicode, such as "C", a name is UTF-8 as it is everywhere else.
    """
    if "\0" in path:
        return None
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        try:
            return os.fsdecode(path.encode("utf-8", "surrogateescape"))
        except UnicodeError:
            return None
    return path


def is_duration(value: Any) -> bool:
    """Return whether a value is a number of seconds that something may take."""
    return type(value) in (int, float) and (0 <= value <= MOST or value == math.inf)
