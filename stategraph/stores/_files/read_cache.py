"""ReadCache: what there is to read of the cache of a "disk" store, without diskcache, which writes to what it opens."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from stategraph.stores._files.reading import ReadFile
from stategraph.stores._files.safe_diskcache import BytesDisk, check_schema, kept_under
from stategraph.stores._rows.access import Access


class ReadCache:
    """Reads a cache. All threads share one connection.

    Args:
        file: Its database.

    Attributes:
        access: That to the connection.
        disk: Reads what stands in its rows.
    """

    def __init__(self, file: Path) -> None:
        self._file, self._pid = file, os.getpid()
        self.disk = BytesDisk(str(file.parent))
        self.renew()
        self._database = ReadFile(file, partial(check_schema, path=file))

    def renew(self) -> None:
        """Take locks of its own, in a forked child."""
        self.access, self._snapshot = Access(), threading.Lock()

    def at_rest(self) -> AbstractContextManager[object]:
        """Keep other threads from using the connection."""
        return self.access.guard

    def shut(self) -> None:
        """Close it for good."""
        self._database.close()

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection, as it was used last."""
        return self._database.connection

    @contextmanager
    def reading(self, store: object) -> Iterator[None]:
        """Have the connection for this thread."""
        with self.access.to_read(store):
            if self._pid != os.getpid():  # it must not be used on both sides of a fork
                self._database.close()
                self._database.open()
                self._pid = os.getpid()
            if not self._snapshot.locked():
                self._database.current()
            yield

    @contextmanager
    def snapshot(self, store: object) -> Iterator[None]:
        """Read everything as it was at one time, whoever writes meanwhile."""
        with self.reading(store):
            if self._snapshot.locked():  # by this thread, further down its stack
                yield
                return
            with self._snapshot:
                self.connection.execute("BEGIN")
                try:
                    yield
                finally:
                    self.connection.rollback()

    def change_token(self, store: object) -> str:
        """Return what differs whenever somebody has committed something since."""
        with self.reading(store):
            (version,) = self.connection.execute("PRAGMA data_version").fetchone()
            return f"{self._database.opened}-{version}"

    def get(self, key: str, default: bytes | None = None) -> Any:
        """Return what is kept under a key, within `reading` or `snapshot`."""
        kept = kept_under(key, self.connection, self.disk)
        return default if kept is None else kept
