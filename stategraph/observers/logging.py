"""The "structlog" observer: events as log lines (https://www.structlog.org)."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TextIO

from stategraph._values.events import Event, EventType
from stategraph.errors import ConfigError
from stategraph.observers.base import Observer

_DEBUG, _INFO, _WARNING, _ERROR = 10, 20, 30, 40  # as in the standard library, whose logging takes 5 ms to import
_NAMES = {_DEBUG: "debug", _INFO: "info", _WARNING: "warning", _ERROR: "error"}
_THRESHOLDS = {name: level for level, name in _NAMES.items()} | {"notset": 0, "warn": _WARNING, "critical": 50}
_LEVELS = {
    EventType.GRAPH_START: _INFO,
    EventType.GRAPH_COMPLETE: _INFO,
    EventType.GRAPH_PAUSE: _INFO,
    EventType.GRAPH_ERROR: _ERROR,
    EventType.NODE_RETRY: _WARNING,
    EventType.CHECKPOINT_RESUME: _INFO,
    EventType.LEASE_LATE: _WARNING,
}  # everything else is for debugging


class StructlogObserver(Observer):
    """Logs the life of a run at info, retries and late leases at warning, failures at error, and all else at debug.

    Lines go where structlog is configured to send them; if it is not configured, to stderr, so that a program's output
    stays its own.

    Args:
        level: The lowest level to log: "debug", "info", "warning" or "error". Events below it are not even built.
    """

    def __init__(self, level: str = "info") -> None:
        threshold = _THRESHOLDS.get(level.lower()) if isinstance(level, str) else None
        if threshold is None:
            raise ConfigError("level", level, "one of debug, info, warning, error")
        self._wanted = frozenset(kind for kind in EventType if _level(kind) >= threshold)

    def wants(self, type: EventType) -> bool:
        return type in self._wanted

    def on_event(self, event: Event) -> None:
        err = sys.stderr
        shows = err is not None and err.isatty()  # a person sees the lines in colours
        if shows or "structlog" in sys.modules:
            import structlog  # imported when used: it takes 20 ms, and lines without colours can do without

            if structlog.is_configured():
                _log(structlog.get_logger("stategraph"), event)
            elif shows:
                _log(structlog.wrap_logger(structlog.PrintLogger(err)), event)
            else:
                _write(err, event, {**structlog.contextvars.get_contextvars(), "graph": event.source, **event.data})
        else:
            _write(err, event, {"graph": event.source, **event.data})


def _level(type: EventType) -> int:
    return _LEVELS.get(type, _DEBUG)


def _log(logger: Any, event: Event) -> None:
    logger.log(_level(event.type), event.type.value, graph=event.source, **event.data)


_HEADS = {kind: f"[{_NAMES[_level(kind)]:9}] {kind.value:30}" for kind in EventType}


def _write(err: TextIO | None, event: Event, data: Mapping[str, Any]) -> None:
    """Write a line as structlog does where it is not configured."""
    if err is not None:
        pairs = " ".join([f"{key}={_shown(value)}" for key, value in sorted(data.items())])
        err.write(f"{_when(int(event.timestamp.timestamp()))} {_HEADS[event.type]} {pairs}\n")


@lru_cache(maxsize=1)  # many lines have the same
def _when(seconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _shown(value: object) -> str:
    if not isinstance(value, str) or not value.isprintable():
        return repr(value)
    is_quoted = " " in value or "=" in value or '"' in value or "'" in value
    return repr(value) if is_quoted else str(value)
