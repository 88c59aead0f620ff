"""The keys of signatures, from the options `sign_with` and `verify_with`."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from stategraph._util.callables import answered, problem_of
from stategraph.errors import ConfigError
from stategraph.stores.base import SigningKey

SHORTEST_KEY = 16
"""The fewest bytes of a key: 128 bits cannot be guessed, a short password can."""


def signing_key(sign_with: Any, option: str = "checkpoint.options.sign_with") -> SigningKey | None:
    """Return the function that returns the key: the given one, or one for the environment variable of this name.

    Raises:
        ConfigError: it is neither, or the variable is not set or too short. The message does not show it: it may be
            the key.
    """
    if sign_with is None:
        return None
    if callable(sign_with):
        problem = problem_of(sign_with, 0)
        if problem:
            raise ConfigError(option, sign_with, f"a sync function that gives the key: {problem}")
        return lambda: _given(sign_with, option)
    key = os.environ.get(sign_with) if isinstance(sign_with, str) and sign_with else None
    if not key:
        allowed = "a function that gives the key, or the name of an environment variable that is set and holds it"
        raise ConfigError(option, sign_with, allowed)
    checked = _checked_key(key.encode(errors="surrogateescape"), option, f"the environment variable {sign_with} holds")
    return lambda: checked


def former_keys(verify_with: Any) -> tuple[SigningKey, ...]:
    """Return the functions that return former keys, each from an entry as for `signing_key`.

    Raises:
        ConfigError: it is not a list of such entries.
    """
    option = "checkpoint.options.verify_with"
    if not isinstance(verify_with, list | tuple) or None in verify_with:
        raise ConfigError(option, verify_with, "a list of former keys, each as sign_with takes it")
    keys = (signing_key(entry, f"{option}[{place}]") for place, entry in enumerate(verify_with))
    return tuple(key for key in keys if key is not None)


def _given(function: Callable[[], object], option: str) -> bytes:
    """Return the key that a function returns. The text of an error is not shown: it may contain the key."""
    try:
        key = function()
    except Exception as error:
        allowed = f"a function that gives the key; it raised {type(error).__name__}"
        raise ConfigError(option, function, allowed) from error
    return _checked_key(answered(key, option), option, "its function returned")


def _checked_key(key: object, option: str, origin: str) -> bytes:
    if type(key) is bytes and len(key) >= SHORTEST_KEY:
        return key
    found = f"{len(key)} bytes" if type(key) is bytes else f"a {type(key).__name__}, which is to be encoded"
    made = f"at least {SHORTEST_KEY} bytes, such as secrets.token_bytes(32) makes"
    raise ConfigError(option, key, f"a key is {made}, and {origin} {found}")
