"""Paths of stores and caches, as a config gives them."""

from __future__ import annotations

import os

from stategraph._util.validators import encodable
from stategraph.errors import ConfigError


def absolute_path(path: object, key: str, what: str) -> str:
    """Return a path that means the same in every working directory; a ``~`` at its start is the home of the user.

    Args:
        path: The path as it was given.
        key: The key path of the config, for the error.
        what: What the path is of, for the error: "a file" or "a folder".

    Raises:
        ConfigError: It is no path, or would lead elsewhere than it seems to.
    """
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str) or not text:
        raise ConfigError(key, path, f"the path of {what}")
    if text == ":memory:":
        raise ConfigError(key, path, f'the path of {what}; store "memory" keeps runs in memory')
    if any(character < " " for character in text):
        allowed = f"the path of {what}, without control characters: in TOML, one with \\ stands in 'single quotes'"
        raise ConfigError(key, path, allowed)
    name = encodable(text)
    if name is None:
        raise ConfigError(key, path, f"the path of {what}, of characters that a file name can have")
    if text.startswith("file:"):
        way_out = "its options have names of their own here, such as read_only"
        raise ConfigError(
            key, path, f"the path of {what} as it is, and no URI: {way_out}; write a name like this as ./{text}"
        )
    if text.partition("://")[0].isalnum() and "://" in text:
        raise ConfigError(key, path, f"the path of {what} alone, and no URL")
    home = text.partition(os.sep)[0]
    if text.startswith("~") and os.path.expanduser(home) == home:  # noqa: PTH111 - Path.expanduser raises
        allowed = f"the path of {what}: no user {home[1:]!r} has a home here; write a name like this as ./{text}"
        raise ConfigError(key, path, allowed)
    try:
        return os.path.abspath(os.path.expanduser(name))  # noqa: PTH111 - as PTH100
    except OSError as error:
        allowed = f"an absolute path: the working directory is not there any more ({error.strerror})"
        raise ConfigError(key, path, allowed) from error
