"""Addresses of stores: a file, a folder or an URL in place of a name and options."""

from __future__ import annotations

import os
from typing import Any

from stategraph.errors import ConfigError

_SCHEMES = {
    "postgresql": ("postgres", "dsn"),
    "postgres": ("postgres", "dsn"),
    "redis": ("redis", "url"),
    "rediss": ("redis", "url"),
}
"""The stores that an URL of a scheme is of, and their options for it."""


PLACES = ("path", *{option: None for _, option in _SCHEMES.values()})
"""The options of stores that say where they are."""


_KINDS = ("sqlite", "disk", "postgres", "redis")


def store_at(address: str | os.PathLike[str]) -> tuple[str, dict[str, Any]]:
    """Return the name of the store at an address, and its options.

    A folder is a disk store, "memory" the memory store, and any other path the file of a sqlite store.

    Raises:
        ConfigError: it is an URL of something else, or the name of a kind of store.
    """
    text = os.fspath(address)
    scheme, separator, _ = text.partition("://")
    if separator:
        if scheme not in _SCHEMES:
            raise ConfigError("store", f"{scheme}://", f"no store has such URLs; {', '.join(_SCHEMES)} have")
        kind, option = _SCHEMES[scheme]
        return kind, {option: text}
    if text == "memory":
        return text, {}
    if text in _KINDS:
        allowed = (
            f'a file, a folder or an URL is: "{text}.db" for a file; CheckpointConfig(store={text!r}, ...) has kinds'
        )
        raise ConfigError("store", text, allowed)
    is_folder = text.endswith(("/", os.sep)) or os.path.isdir(os.path.expanduser(text))  # noqa: PTH111, PTH112 - pathlib takes 4 ms
    return "disk" if is_folder else "sqlite", {"path": text}
