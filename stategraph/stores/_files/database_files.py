"""The files of a SQLite database: whether they are safe to open, and still in their place once they are open."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from stategraph.errors import CheckpointSaveError, ConfigError
from stategraph.stores._files.ownership import check_side_files, log_of, secure_file, side_files


def database_file(path: Path, must_exist: bool) -> Path:
    """Return the file to open, with links resolved.

    Raises:
        ConfigError: It cannot be used, or other users can write to it.
    """
    try:
        return secure_file(path, must_exist=must_exist)
    except OSError as error:
        raise _unusable(path, error) from error


def _unusable(path: Path, error: OSError) -> ConfigError:
    return ConfigError("checkpoint.options.path", str(path), f"a file that can be used ({error.strerror})")


def check_log(file: Path) -> None:
    """Check that the newest checkpoints are not in a write-ahead log, which cannot be read without its index.

    Raises:
        ConfigError: They are.
    """
    log = log_of(file)
    if log.exists() and log.stat().st_size:
        allowed = f"a file in a folder that can be written to: its newest checkpoints are in {log.name}; copy both"
        raise ConfigError("checkpoint.options.path", str(file), allowed)


class OpenFiles:
    """The files that a connection has open. If they are moved or replaced, nobody finds what is written to them.

    Args:
        file: The database.
        is_fixed: Whether the database is read as a file that never changes; then a changed file is another one.

    Raises:
        ConfigError: Other users can write to a file that SQLite keeps beside it. These were checked before they were
            opened, but in a folder such as /tmp, others may have made one since.
    """

    def __init__(self, file: Path, *, is_fixed: bool = False) -> None:
        self._paths = tuple(map(str, (file, *side_files(file)[:2])))
        self._is_fixed = is_fixed
        self._opened = _found(self._paths, is_fixed)
        try:
            check_side_files(file)
        except OSError as error:
            raise _unusable(file, error) from error

    @property
    def are_there(self) -> bool:
        """Return whether they are where they were when they were opened."""
        return _found(self._paths, self._is_fixed) == self._opened

    def check(self) -> None:
        """Check, after a commit, that it can be found by others.

        Raises:
            CheckpointSaveError: It cannot.
        """
        if _found(self._paths, self._is_fixed) != self._opened:
            file, *others = map(Path, self._paths)
            left = [] if file.exists() else [other.name for other in others if other.exists()]
            raise CheckpointSaveError(
                "",
                f"{file}, or its log, was moved, removed or replaced while it was open, and what is saved in it is "
                "lost with this process: put it back as it was or, where that cannot be, close the store"
                f"{''.join(f', move {name} away' for name in left)} and make the graph anew: it opens a fresh one, in "
                "which the run begins anew, or goes on by resume once error.state is saved in it",
            )


def _found(paths: Sequence[str], with_content: bool) -> list[int | None]:
    """Return the identities of the files under these names: others that replace them have other ones."""
    found: list[int | None] = []
    for path in paths:  # after every commit: a loop over os.stat takes a third of the time of path.stat() in a list
        try:
            status = os.stat(path)  # noqa: PTH116
        except OSError:
            found.append(None)
            continue
        found += (status.st_dev, status.st_ino)
        if with_content:
            found += (status.st_size, status.st_mtime_ns)
    return found
