"""The "disk" store: a folder, kept by diskcache (https://grantjenks.com/docs/diskcache/).

What makes a store of a cache is in `stategraph.stores._files.safe_diskcache`.
"""

from __future__ import annotations

import os
from typing import Any

from stategraph.stores._files.safe_diskcache import OLDEST, cache_folder
from stategraph.stores._files.sqlite_files import check_version
from stategraph.stores._rows.disk_table import DiskTable
from stategraph.stores._rows.store import RowStore
from stategraph.stores._rows.table import Identify


class DiskStore(RowStore):
    """Keeps runs in a folder. Processes and threads may share it.

    Args:
        path: The folder, with ``~`` for the user's home. It is made if it is not there, for its owner only.
        options: As for RowStore.

    Raises:
        ConfigError: the path cannot be a folder for a store, others can write to it, SQLite is too old, or as RowStore.
        FormatError: what is there is not a store of stategraph.
    """

    kind = "disk"

    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        check_version("checkpoint.store", "disk", OLDEST)

        def open_table(store: object, identify: Identify) -> DiskTable:
            self.path = cache_folder(path)
            return DiskTable(store, self.path, identify)

        super().__init__(open_table, **options)
