"""Access to the inside of a store, for tests that public methods cannot serve."""

from __future__ import annotations

import sqlite3
from typing import Any


def log_of(store: Any) -> Any:
    """Return the RunLog of a store of rows."""
    return store._log


def table_of(store: Any) -> Any:
    """Return the table of a store of rows."""
    return store._log.table


def connection_of(store: Any) -> sqlite3.Connection:
    """Return the connection to the database of a store of rows."""
    connection: sqlite3.Connection = store._log.table.database.connection
    return connection
