"""Validators of arguments and fields, whose errors name the allowed values."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeVar, cast

import attrs

from stategraph._text.shown import meant
from stategraph._util.callables import without_calls
from stategraph.errors import ConfigError

MOST = sys.float_info.max
"""The largest number that a float can hold; an int may be larger."""


LONGEST_WAIT = 10_000_000_000
"""The longest time to a deadline in seconds, some 317 years: dates end with the year 9999."""


Allowed = Mapping[str, tuple[str, Callable[[Any], bool]]]
"""The allowed values of each field: a description, and a test."""


def check_fields(config: object, path: str, allowed: Allowed, hidden: str = "") -> None:
    """Raise ConfigError for the first field whose value is not allowed. The value of field `hidden` is not shown."""
    for name, (words, is_allowed) in allowed.items():
        value = getattr(config, name)
        if not is_allowed(value):
            raise ConfigError(f"{path}{name}", value, words, name != hidden)


_Called = TypeVar("_Called", bound=Callable[..., Any])


def naming_arguments(hint: str = "") -> Callable[[_Called], _Called]:
    """Decorate a method or a class: the TypeError for a wrong argument says which was meant, or what to do.

    Args:
        hint: Says what to do if no argument has a similar name; by default, the names of all arguments.
    """

    def decorate(function: Any) -> Any:
        if isinstance(function, type):
            function.__init__ = decorate(function.__init__)  # type: ignore[misc]
            return function
        code, name = function.__code__, function.__qualname__.removesuffix(".__init__").rpartition(".")[2]
        known, most = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount], code.co_argcount - 1

        @wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            try:
                with without_calls:
                    return function(*arguments, **named)
            except TypeError:
                others = ", ".join(known[most:][:5])
                if len(arguments) > most + 1 and others:
                    raise TypeError(f"{name}() has too many arguments without names; name them: {others}") from None
                given = next((given for given in named if given not in known), None)
                if given is None:
                    raise
                way_out = meant(given, known) or hint or f"it takes {', '.join(known)}"
                raise TypeError(f"{name}() has no argument {given!r}; {way_out}") from None

        return call

    return decorate


def is_optional(cls: type) -> Any:
    """Return a validator of attrs for None or a value of this class."""
    return attrs.validators.optional(attrs.validators.instance_of(cls))


def is_name(value: object) -> bool:
    """Return whether a value is a str of 1 to 200 printable characters."""
    return isinstance(value, str) and 0 < len(value) <= 200 and value.isprintable()


def maps_texts(value: object) -> bool:
    """Return whether a value is a mapping of str to str."""
    return isinstance(value, Mapping) and all(isinstance(text, str) for item in value.items() for text in item)


def is_utf8(text: str) -> bool:
    """Return whether a str has no lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def are_labels(value: object) -> bool:
    """Return whether a value is a mapping of str to str that every store can save."""
    return maps_texts(value) and all(is_utf8(text) for item in cast(Mapping[str, str], value).items() for text in item)


def is_author(value: object) -> bool:
    """Return whether a value is None or a str that every store can save."""
    return value is None or (isinstance(value, str) and is_utf8(value))


def is_count(value: object, at_least: int) -> bool:
    """Return whether a value is an integer of at least `at_least`; True and False are not."""
    return type(value) is int and value >= at_least


AMOUNT = "a finite, non-negative number (int, float or Decimal)"


def is_amount(value: object) -> bool:
    """Return whether a value is an `AMOUNT`."""
    from decimal import Decimal  # imported when used

    return (
        isinstance(value, int | float | Decimal) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
    )


LIMITS = "a mapping of names of amounts to positive numbers"


def are_limits(value: object) -> bool:
    """Return whether a value is a mapping of names to positive amounts."""
    return isinstance(value, Mapping) and all(
        isinstance(name, str) and is_amount(amount) and amount > 0 for name, amount in value.items()
    )


def is_seconds(value: object) -> bool:
    """Return whether a value is a positive, finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= MOST


def encodable(path: str) -> str | None:
    """Return the path in a form that system calls accept; None if no file can have this name.

    If the encoding of the locale lacks a character, as that of "C" may, the name is encoded as UTF-8.
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
    """Return whether a value is a non-negative number of seconds; it may be infinite."""
    return type(value) in (int, float) and (0 <= value <= MOST or value == math.inf)
