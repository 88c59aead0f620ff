"""Checks of the arguments of a runner, before they reach DBOS or a worker."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Mapping
from typing import Any

from dbos import DBOSConfig
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from stategraph._util.validators import is_count, is_duration
from stategraph.errors import CheckpointingDisabledError, ConfigError, UnknownNameError
from stategraph.graph import StateGraph
from stategraph.turns import by_names

_BACKENDS = ("postgresql", "postgres", "cockroachdb", "sqlite")
_LOWEST_PRIORITY = 2**31 - 1  # the largest number that DBOS accepts


def graphs_by_name(graphs: tuple[StateGraph, ...]) -> dict[str, StateGraph]:
    """Return the graphs of a runner by their names."""
    for graph in graphs:
        if not isinstance(graph, StateGraph):
            raise ConfigError("graphs", graph, "a StateGraph; several are given one after the other", is_shown=False)
        if not graph.config.checkpoint.interval:
            raise CheckpointingDisabledError(graph.config.name)
        graph.validate()
    by_name = by_names(graphs)
    if not graphs or any(by_name[graph.name] is not graph for graph in graphs):
        raise ConfigError("graphs", list(by_name), "at least one StateGraph, with different names")
    return by_name


def url_of(given: str | None, graphs: tuple[StateGraph, ...]) -> str:
    """Return the url of the database of DBOS: given, from an environment variable, or beside the first store on disk.

    A url may hold a password, so errors do not show it.
    """
    paths = [graph.store.path for graph in graphs if hasattr(graph.store, "path")]
    url = f"sqlite:///{paths[0]}-dbos" if given is None and paths else os.environ.get(given or "", given or "")
    try:
        backend = make_url(url).get_backend_name()
    except (ArgumentError, ValueError):
        backend = ""
    if backend not in _BACKENDS:
        allowed = "postgresql://... or sqlite:///..., or the name of an environment variable that holds it"
        raise ConfigError("url", given, f"{allowed}; without a store on a disk, it has to be given")
    return url


def config_of(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return more settings of DBOS, and refuse unknown names, which DBOS would ignore."""
    for name in given or {}:
        if name not in DBOSConfig.__annotations__:
            raise UnknownNameError("field of DBOSConfig", name, tuple(DBOSConfig.__annotations__))
    return dict(given or {})


def check_when(priority: object, delay: object) -> None:
    """Raise ConfigError if the priority or delay of a turn is not allowed."""
    if priority is not None and not (is_count(priority, at_least=1) and priority <= _LOWEST_PRIORITY):  # type: ignore[operator]
        raise ConfigError("priority", priority, f"an integer from 1, which goes first, to {_LOWEST_PRIORITY}, or None")
    if delay is not None and not (is_duration(delay) and delay < math.inf):  # type: ignore[operator]
        raise ConfigError("delay", delay, "a number of seconds, or None")


def check_no_loop(call: str) -> None:
    """Raise RuntimeError if an event loop runs in this thread: the call would block it."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(
        f"{call} waits for the database, and an event loop runs in this thread: await asyncio.to_thread({call}, ...)"
    )
