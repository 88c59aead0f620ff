"""The "structlog" observer: events as log lines (https://www.structlog.org)."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog

from stategraph._values.events import Event, EventType
from stategraph.errors import ConfigError
from stategraph.observers.base import Observer

_LEVELS = {
    EventType.GRAPH_START: logging.INFO,
    EventType.GRAPH_COMPLETE: logging.INFO,
    EventType.GRAPH_PAUSE: logging.INFO,
    EventType.GRAPH_ERROR: logging.ERROR,
    EventType.NODE_RETRY: logging.WARNING,
    EventType.CHECKPOINT_RESUME: logging.INFO,
    EventType.LEASE_LATE: logging.WARNING,
}  # everything else is for debugging


class StructlogObserver(Observer):
    """Logs the life of a run at info, retries and late leases at warning, failures at error, and all else at debug.

    Lines go where structlog is configured to send them; if it is not configured, to stderr, so that a program's output
    stays its own.

    Args:
        level: The lowest level to log: "debug", "info", "warning" or "error". Events below it are not even built.
    """

    def __init__(self, level: str = "info") -> None:
        threshold = logging.getLevelNamesMapping().get(level.upper()) if isinstance(level, str) else None
        if threshold is None:
            raise ConfigError("level", level, "one of debug, info, warning, error")
        self._threshold = threshold

    def wants(self, type: EventType) -> bool:
        return _level(type) >= self._threshold

    def on_event(self, event: Event) -> None:
        _logger().log(_level(event.type), event.type.value, graph=event.source, **event.data)


def _level(type: EventType) -> int:
    return _LEVELS.get(type, logging.DEBUG)


def _logger() -> Any:
    if structlog.is_configured():
        return structlog.get_logger("stategraph")
    return structlog.wrap_logger(structlog.PrintLogger(sys.stderr))
