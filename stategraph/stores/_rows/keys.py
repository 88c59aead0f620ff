"""Keys that rows are signed with, as the options `sign_with` and `verify_with` give them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from stategraph._util.callables import answered, problem_of
from stategraph.errors import ConfigError
from stategraph.stores.base import SigningKey

SHORTEST_KEY = 16
"""Bytes of a key at least: 128 bits cannot be guessed, and a short password can."""


def signing_key(sign_with: Any, option: str = "checkpoint.options.sign_with") -> SigningKey | None:
    """Return what gives a key: a function, or the value of the environment variable of this name.

    Raises:
        ConfigError: it is neither, or the variable is not set or too short. The text does not show it: it may be the
            key.
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
    """Return what gives the keys that rows may have been signed with before, each as `signing_key` takes it.

    Raises:
        ConfigError: this is no list of them.
    """
    option = "checkpoint.options.verify_with"
    if not isinstance(verify_with, list | tuple) or None in verify_with:
        raise ConfigError(option, verify_with, "a list of former keys, each as sign_with takes it")
    keys = (signing_key(one, f"{option}[{place}]") for place, one in enumerate(verify_with))
    return tuple(key for key in keys if key is not None)


def _given(function: Callable[[], object], option: str) -> bytes:
    """Return the key that a function gives; the text of an error of it is not shown, for it may hold the key."""
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
