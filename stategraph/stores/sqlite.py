"""The "sqlite" store: one database file, with nothing but the standard library.

A file that others understand: the tables ``run`` and ``checkpoint`` say what they are, and the view ``checkpoints``
puts them together for the sqlite3 shell.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from stategraph.stores._files.paths import absolute_path
from stategraph.stores._files.sqlite_files import check_read_only, check_version
from stategraph.stores._rows.sqlite_table import OLDEST, SqliteTable
from stategraph.stores._rows.store import RowStore
from stategraph.stores._rows.table import Identify


class SqliteStore(RowStore):
    """Keeps runs in a SQLite database: write-ahead log, a sync for every commit, threads that save at the same time
    share one. Processes may share the file.

    Args:
        path: The file, with ``~`` for the user's home. It is made if it is not there, for its owner only.
        read_only: Look into a database that others write to, and change nothing; it may be of an older version. No
            file is made for that, unless what was saved last stands in a log whose index is missing.
        options: As for RowStore.

    Raises:
        ConfigError: the path cannot be a database, others can write to it, SQLite is too old, or as RowStore.
        FormatError: what is there is not a database of stategraph, or one of a newer version.
    """

    kind = "sqlite"

    def __init__(self, path: str | os.PathLike[str], *, read_only: bool = False, **options: Any) -> None:
        check_version("checkpoint.store", "sqlite", OLDEST)
        check_read_only(read_only)

        def open_table(store: object, identify: Identify) -> SqliteTable:
            self.path = Path(absolute_path(path, "checkpoint.options.path", "a file"))
            return SqliteTable(store, self.path, identify, read_only=read_only)

        super().__init__(open_table, **options)
