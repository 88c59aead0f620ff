"""Checks of the arguments of a runner, before they reach DBOS or a worker."""

from __future__ import annotations

import asyncio
import math
import os
import sqlite3
import sys
from collections.abc import Mapping
from typing import Any
from zoneinfo import ZoneInfo

import dbos._dbos as inside_dbos
from dbos import DBOSConfig
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from stategraph._text.shown import shorten
from stategraph._util.validators import is_count, is_duration
from stategraph._values.provenance import RunStatus
from stategraph._values.sameness import differing_items
from stategraph.errors import CheckpointingDisabledError, ConfigError, UnknownNameError
from stategraph.graph import StateGraph
from stategraph.state import State
from stategraph.turns import Order

_URLS = "postgresql://... or sqlite:///..., or the name of an environment variable that holds it"
_LOWEST_PRIORITY = 2**31 - 1  # the largest number that DBOS accepts


def graphs_by_name(graphs: tuple[StateGraph, ...]) -> dict[str, StateGraph]:
    """Return the graphs of a runner by their names."""
    if not graphs:
        raise ConfigError("graphs", graphs, "one StateGraph at least")
    for graph in graphs:
        if not isinstance(graph, StateGraph):
            raise ConfigError("graphs", graph, "a StateGraph; several are given one after the other", is_shown=False)
        if not graph.config.checkpoint.interval:
            raise CheckpointingDisabledError(graph.config.name)
        graph.validate()
    by_name = {graph.config.name: graph for graph in graphs}
    if len(by_name) < len(graphs):
        raise ConfigError("graphs", [graph.config.name for graph in graphs], "graphs of different names")
    return by_name


def url_of(given: str | None, graphs: tuple[StateGraph, ...]) -> str:
    """Return the url of the database of DBOS: given, from an environment variable, or beside the first store on disk.

    A url may hold a password, so errors show only its scheme.
    """
    if given is None:
        return _beside(graphs)
    url = os.environ.get(given, given) if isinstance(given, str) else given
    try:
        backend = make_url(url).get_backend_name()
    except (ArgumentError, ValueError, TypeError):
        is_unset = isinstance(given, str) and url is given and given.isidentifier()
        problem = f"no environment variable is named {given}" if is_unset else "this one cannot be read"
        raise ConfigError("url", given, f"{_URLS}: {problem}", is_shown=False) from None
    if backend not in ("postgresql", "postgres", "cockroachdb", "sqlite"):
        raise ConfigError("url", given, f"{_URLS}: this one begins with {backend}://", is_shown=False)
    return _usable(str(url), given)


def _usable(url: str, given: str | None) -> str:
    """Return a url if DBOS can use that database here. DBOS needs a time function that SQLite 3.42 introduced."""
    if url.startswith("sqlite") and sys.version_info >= (3, 12) and sqlite3.sqlite_version_info < (3, 42):
        python = f"Python {sys.version_info.major}.{sys.version_info.minor}"
        allowed = f"DBOS takes SQLite 3.42 or newer under {python}, which has {sqlite3.sqlite_version} here: {_URLS}"
        raise ConfigError("url", given, allowed, is_shown=False)
    return url


def _beside(graphs: tuple[StateGraph, ...]) -> str:
    for graph in graphs:
        path = getattr(graph.store, "path", None)
        if path is not None:
            return _usable(f"sqlite:///{path}-dbos", None)
    raise ConfigError("url", None, f"as no store is on a disk, the database of DBOS has to be named: {_URLS}")


def config_of(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return more settings of DBOS, and refuse unknown names, which DBOS would ignore."""
    for name in given or {}:
        if name not in DBOSConfig.__annotations__:
            raise UnknownNameError("field of DBOSConfig", name, tuple(DBOSConfig.__annotations__))
    return dict(given or {})


def check_state(state: object) -> None:
    """Raise TypeError unless a run begins with a State."""
    if not isinstance(state, State):
        raise TypeError(f"a run begins with a State, not {type(state).__name__}: State({{...}}, run_id=...) makes one")


def begins_alike(before: Order, state: State) -> bool:
    """Return whether an order has the same data as this State."""
    return before.state is not None and before.state.keys() == state.keys() and not differing_items(before.state, state)


def check_when(priority: object, delay: object) -> None:
    """Raise ConfigError if the priority or delay of a turn is not allowed."""
    if priority is not None and not (is_count(priority, at_least=1) and priority <= _LOWEST_PRIORITY):  # type: ignore[operator]
        raise ConfigError("priority", priority, f"an integer from 1, which goes first, to {_LOWEST_PRIORITY}, or None")
    if delay is not None and not (is_duration(delay) and delay < math.inf):  # type: ignore[operator]
        raise ConfigError("delay", delay, "a number of seconds, or None")


def check_status(status: object) -> None:
    """Raise ValueError if no run can have this status."""
    known = ("queued", "delayed", *RunStatus)
    if status is not None and status not in known:
        raise ValueError(f"status: {shorten(status)} is not allowed; {', '.join(known)} are")


def check_times(cron: object, timezone: str | None) -> None:
    """Raise ConfigError if a schedule has an invalid cron or time zone."""
    cron_of_dbos = inside_dbos.croniter  # type: ignore[attr-defined]
    if not isinstance(cron, str) or not cron_of_dbos.is_valid(cron, second_at_beginning=True):
        raise ConfigError("cron", cron, 'five fields, such as "0 3 * * *", or six with seconds first')
    try:
        ZoneInfo(timezone or "UTC")
    except (LookupError, ValueError, OSError, TypeError):  # depends on the name
        raise ConfigError("timezone", timezone, 'the name of a time zone, such as "Europe/Berlin"') from None


def check_no_loop(call: str) -> None:
    """Raise RuntimeError if an event loop runs in this thread: the call would block it."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(
        f"{call} waits for the database, and an event loop runs in this thread: await asyncio.to_thread({call}, ...)"
    )
