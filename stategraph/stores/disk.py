"""The "disk" store: a folder, kept by diskcache (https://grantjenks.com/docs/diskcache/).

What makes a store of a cache is in `stategraph.stores._files.safe_diskcache`.
"""

from __future__ import annotations

import os
from typing import Any

from stategraph.stores._files.safe_diskcache import OLDEST, cache_folder
from stategraph.stores._files.sqlite_files import check_read_only, check_version
from stategraph.stores._rows.disk_table import DiskTable
from stategraph.stores._rows.store import RowStore
from stategraph.stores._rows.table import Identify


class DiskStore(RowStore):
    """Keeps runs in a folder. Processes and threads may share it.

    Args:
        path: The folder, with ``~`` for the user's home. It is made if it is not there, for its owner only.
        read_only: Look into a folder that others write to: no file in it is made or changed.
        options: As for RowStore.

    Raises:
        ConfigError: the path cannot be a folder for a store, others can write to it, SQLite is too old, or as RowStore.
        FormatError: what is there is not a store of stategraph.
    """

    kind = "disk"

    def __init__(self, path: str | os.PathLike[str], *, read_only: bool = False, **options: Any) -> None:
        check_version("checkpoint.store", "disk", OLDEST)
        check_read_only(read_only)

        def open_table(store: object, identify: Identify) -> DiskTable:
            self.path = cache_folder(path, must_exist=read_only)
            return DiskTable(store, self.path, identify, read_only=read_only)

        super().__init__(open_table, **options)
