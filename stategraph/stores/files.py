"""Files that belong to their owner only."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from stategraph.errors import ConfigError


def absolute(path: object, key: str, what: str) -> str:
    """-> a path as it means the same in every working directory; a ``~`` at its start is the home of the user.

    Raises:
        ConfigError: there is none. `key` says what it was given for, `what` of what it is to be the path.
    """
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str) or not text:
        raise ConfigError(key, path, f"the path of {what}")
    if text == ":memory:":
        raise ConfigError(key, path, f'the path of {what}; store "memory" keeps runs in memory')
    return os.path.abspath(os.path.expanduser(text))  # noqa: PTH111 - as PTH100


def make_private(file: Path) -> None:
    """Make a file for its owner only, before SQLite makes one that all can read.

    One that is there is not opened: to close it again would end the locks that this process has on it by other handles.

    Raises:
        OSError: it cannot be made, or read and written to.
    """
    with suppress(FileExistsError):
        os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    if not os.access(file, os.R_OK | os.W_OK):
        raise PermissionError(13, os.strerror(13), str(file))
    if not file.is_file():
        raise IsADirectoryError(21, os.strerror(21), str(file))
