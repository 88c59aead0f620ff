"""Paths of stores and caches, as they are given in a config."""

from __future__ import annotations

import os

from stategraph.errors import ConfigError
from stategraph.stores._files.paths import absolute


def absolute_path(path: object, key: str, what: str) -> str:
    """Return a path as it means the same in every working directory; a ``~`` at its start is the home of the user.

    Args:
        path: The path as it was given.
        key: What it was given for.
        what: Of what it is to be the path.

    Raises:
        ConfigError: it is none, or one that would not be where its author means it to be.
    """
    found = absolute(path, key, what)
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
    beginning = text.partition(os.sep)[0]
    if text.startswith("file:"):
        way_out = "its options have names of their own here, such as read_only"
        raise ConfigError(
            key, path, f"the path of {what} as it is, and no URI: {way_out}; write a name like this as ./{text}"
        )
    if text.partition("://")[0].isalnum() and "://" in text:
        raise ConfigError(key, path, f"the path of {what} alone, and no URL")
    if text.startswith("~") and os.path.expanduser(beginning) == beginning:  # noqa: PTH111 - Path.expanduser raises
        allowed = f"the path of {what}: no user {beginning[1:]!r} has a home here; write a name like this as ./{text}"
        raise ConfigError(key, path, allowed)
    return found
