"""ReadFile: a database that is only looked into. No file is made or changed for that, and nobody is kept waiting."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from stategraph.stores._files.ownership import side_files
from stategraph.stores._files.sqlite_files import OpenFiles, check_log, connect, is_unshareable

_Found = TypeVar("_Found")


class ReadFile:
    """A connection that reads a database.

    A database that nobody has open is read as a file that never changes, as SQLite would make an index of its log
    otherwise, and leave it there. Where it does change, it is opened anew.

    Args:
        file: The database.
        prepare: Is called with each connection before it is used; it raises what is wrong with the database.

    Attributes:
        connection: The connection, as it was used last.
        opened: Differs each time that the file is opened.
    """

    def __init__(self, file: Path, prepare: Callable[[sqlite3.Connection], None]) -> None:
        self._file, self._prepare = file, prepare
        self.open()

    def open(self) -> None:
        """Connect to the file as it is now."""
        if _is_at_rest(self._file):
            self._connect(is_fixed=True)
            return
        try:
            self._connect(is_fixed=False)
        except sqlite3.OperationalError as error:
            if not is_unshareable(error):
                raise
            check_log(self._file)
            self._connect(is_fixed=True)

    def _connect(self, *, is_fixed: bool) -> None:
        files = OpenFiles(self._file, is_fixed=is_fixed)  # first: whatever is changed from now on is noticed
        connection = connect(self._file, "ro&immutable=1" if is_fixed else "ro")
        try:
            self._prepare(connection)
            connection.execute("PRAGMA query_only = 1")
            if not is_fixed:
                files = OpenFiles(self._file)
        except BaseException:
            connection.close()
            raise
        self.connection, self._files, self.is_fixed = connection, files, is_fixed
        self.opened = os.urandom(4).hex()

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    @property
    def has_changed(self) -> bool:
        """Whether a file that was read as one that never changes has changed."""
        return self.is_fixed and not self._files.are_there

    def current(self) -> sqlite3.Connection:
        """Return the connection; another one, if the file has changed."""
        if self.has_changed:
            self.connection.close()
            self.open()
        return self.connection

    def ask(self, question: Callable[[sqlite3.Connection], _Found]) -> _Found:
        """Return the answer to a question, which is asked again if the file changed meanwhile."""
        while True:
            try:
                found = question(self.current())
            except (sqlite3.Error, UnicodeDecodeError):
                if self.has_changed:
                    continue
                raise
            if not self.has_changed:
                return found


def _is_at_rest(file: Path) -> bool:
    """Return whether nobody has a database open, and nothing of it stands in a log."""
    log, index, _ = side_files(file)
    return not log.exists() or (not index.exists() and not log.stat().st_size)
