"""DBOS on SQLite or PostgreSQL: a workflow of steps. It keeps what each step returned, and has no State."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import Any

from benchmarks import postgres, scratch
from benchmarks.counters import below
from benchmarks.measure import Run

DBOS: Any = import_module("dbos").DBOS  # it has types of its own that differ from version to version


@DBOS.step()
def count(n: int) -> int:
    """Count one up."""
    return n + 1


@DBOS.workflow()
def count_up(steps: int) -> int:
    """Count up to the number of steps."""
    unfinished = below(steps)
    n = 0
    while unfinished({"n": n}):
        n = count(n)
    return n


def saved_steps(steps: int) -> Run:
    """A row for every step."""
    _launch(f"sqlite:///{scratch.folder() / 'dbos.db'}")
    return lambda: count_up(steps)


def steps_saved_on_postgres(steps: int) -> Run:
    """A row for every step, in a schema of its own."""
    _launch(postgres.dsn().replace("postgres:@/", "postgres@/"), dbos_system_schema=postgres.new_schema())
    return lambda: count_up(steps)


def _launch(url: str, **more: Any) -> None:
    DBOS(
        config={
            "name": "benchmark",
            "system_database_url": url,
            "log_level": "CRITICAL",
            "run_admin_server": False,
            **more,
        }
    )
    scratch.at_end(DBOS.destroy)
    DBOS.launch()
    logging.getLogger("dbos").setLevel(logging.CRITICAL)
