"""The "disk" store: a folder with a SQLite database in it."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

from stategraph.errors import ConfigError, FormatError
from stategraph.stores._files.paths import absolute_path, secure_folder
from stategraph.stores._files.sqlite_files import check_read_only, check_version
from stategraph.stores._rows.sqlite_table import OLDEST, SqliteTable
from stategraph.stores._rows.store import RowStore
from stategraph.stores._rows.table import Identify


class DiskStore(RowStore):
    """Keeps runs in a folder. Processes and threads may share it.

    A folder from an older version is copied into a new database when it is first opened.

    Args:
        path: The folder; ``~`` is the home of the user. If it is missing, it is created with access for this user only.
        read_only: Inspect a folder that others write to, without creating or changing a file in it.
        options: As for RowStore.

    Raises:
        ConfigError: the path cannot be a folder for a store, others can write to it, SQLite is too old, or as RowStore.
        FormatError: the folder is not a store of stategraph, or it is from an older version and read_only is true.
    """

    kind = "disk"

    def __init__(self, path: str | os.PathLike[str], *, read_only: bool = False, **options: Any) -> None:
        check_version("checkpoint.store", "disk", OLDEST)
        check_read_only(read_only)

        def open_table(store: object, identify: Identify) -> SqliteTable:
            self.path = _folder(path, must_exist=read_only)
            return _table_in(self.path, store, identify, read_only=read_only)

        super().__init__(open_table, **options)


def _folder(path: str | os.PathLike[str], *, must_exist: bool) -> Path:
    folder = Path(absolute_path(path, "checkpoint.options.path", "a folder"))
    try:
        return folder if must_exist else secure_folder(folder)
    except OSError as error:
        allowed = f"a folder that can be made and written to ({error.strerror})"
        raise ConfigError("checkpoint.options.path", str(path), allowed) from error


def _has_content(file: Path) -> bool:
    try:
        return file.stat().st_size > 0
    except OSError:
        return False


def _table_in(folder: Path, store: object, identify: Identify, *, read_only: bool) -> SqliteTable:
    file, old = folder / "disk-store.db", folder / "cache.db"
    is_older = _has_content(old)
    if is_older and read_only and not file.exists():
        way_out = "open it once without read_only=True, which copies its runs into disk-store.db"
        raise FormatError("", f"{folder} was written by an older version of stategraph: {way_out}")
    open_table = partial(SqliteTable, store, file, identify, read_only=read_only, owners="owners")
    if read_only or not is_older:
        return open_table()
    from stategraph.stores._rows.diskcache_runs import copy_runs, remove_copied  # imported when used: few are older

    table = open_table(fill=partial(copy_runs, old))
    ((store_id,),) = table.query("", "SELECT id FROM store", ())
    remove_copied(old, store_id)
    return table
