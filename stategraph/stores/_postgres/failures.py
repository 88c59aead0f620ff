"""What errors of PostgreSQL mean for a store."""

from __future__ import annotations

import psycopg
from psycopg import errors

from stategraph.errors import CheckpointCorruptError, CheckpointError

_PASSING = ("40001", "40P01", "55P03", "57P01", "57P02", "57P03", "25006")
"""Conflicts, deadlocks, rows that others have locked; a server that stops, starts, or was not promoted yet."""
_MISSING = (errors.UndefinedTable, errors.UndefinedColumn, errors.InvalidSchemaName)


def is_passing(error: Exception) -> bool:
    """Return whether it may go well to ask again. What was asked for may have been done all the same."""
    if not isinstance(error, psycopg.Error):
        return False
    code = error.sqlstate
    if code is None:
        return isinstance(error, psycopg.OperationalError)
    return code in _PASSING or code.startswith("08")


def is_refused_connection(error: Exception) -> bool:
    """Return whether the server lets nobody in like this: a password, a role or a database is wrong."""
    text = str(error)
    return isinstance(error, psycopg.OperationalError) and any(reason in text for reason in _REFUSED)


_REFUSED = ("authentication failed", "does not exist", "no pg_hba.conf entry", "no password supplied")


def explained(error: Exception, run_id: str, store: object, kind: type[CheckpointError]) -> CheckpointError:
    """Return an error of PostgreSQL as one of stategraph; what brought it about is raised as its cause by the caller.

    No connection string is in it: libpq shows parts of one where it cannot be read.
    """
    if isinstance(error, _MISSING):
        way_out = "put back a copy of it, or open it once with migrate=True"
        return CheckpointCorruptError(run_id, f"the {store} is damaged: {_text(error)}; {way_out}")
    if isinstance(error, errors.InsufficientPrivilege):
        way_out = "GRANT USAGE on its schema, and SELECT, INSERT, UPDATE, DELETE on all tables in it"
        return kind(run_id, f"the {store} failed: {_text(error)}; an administrator can {way_out}")
    return kind(run_id, f"the {store} failed: {_text(error)}")


def _text(error: Exception) -> str:
    """Return what the server says in one line."""
    message = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    return " ".join((message or str(error) or type(error).__name__).split())
