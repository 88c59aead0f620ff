"""The "sqlite" store: one database file, with only the standard library.

Other tools can read the file: the tables ``run`` and ``checkpoint`` have descriptive columns, and the view
``checkpoints`` joins them for the sqlite3 shell.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from stategraph.stores._checks import check_flags
from stategraph.stores._files.paths import absolute_path
from stategraph.stores._files.sqlite_files import check_version
from stategraph.stores._rows.sqlite_table import OLDEST, SqliteTable
from stategraph.stores._rows.store import RowStore
from stategraph.stores._rows.table import Identify


class SqliteStore(RowStore):
    """Keeps runs in a SQLite database, with a write-ahead log and a sync for every commit. Threads that save at the
    same time share a commit, and processes may share the file.

    Args:
        path: The file; ``~`` is the home of the user. If it is missing, it is created with access for this user only.
        read_only: Inspect a database that others write to, without changing it; it may be of an older version. This
            creates no file, unless the newest checkpoints are in a log whose index is missing.
        options: As for RowStore.

    Raises:
        ConfigError: the path cannot be a database, others can write to it, SQLite is too old, or as RowStore.
        FormatError: the file is not a database of stategraph, or is from a newer version.
    """

    kind = "sqlite"

    def __init__(self, path: str | os.PathLike[str], *, read_only: bool = False, **options: Any) -> None:
        check_version("checkpoint.store", "sqlite", OLDEST)
        check_flags(read_only=read_only)

        def open_table(identify: Identify) -> SqliteTable:
            self.path = Path(absolute_path(path, "checkpoint.options.path", "a file"))
            return SqliteTable(str(self), self.path, identify, read_only=read_only)

        super().__init__(open_table, **options)
