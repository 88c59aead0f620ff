"""What tests must look at, or change, inside of a store. All else goes through its public methods."""

from __future__ import annotations

import sqlite3
from typing import Any, cast

from stategraph.stores._rows.disk_table import DiskTable
from stategraph.stores._rows.sqlite_table import SqliteTable


def log_of(store: Any) -> Any:
    """Return the RunLog of a store of rows."""
    return store._log


def table_of(store: Any) -> Any:
    """Return the table of a store of rows."""
    return store._log.table


def connection_of(store: Any) -> sqlite3.Connection:
    """Return the connection of this thread to the database of a store of rows."""
    table: SqliteTable | DiskTable = store._log.table
    return table.connection if isinstance(table, SqliteTable) else cast(sqlite3.Connection, table.cache._con)
