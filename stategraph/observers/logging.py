"""The "structlog" observer: events as log lines (https://www.structlog.org)."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TextIO

from stategraph._text.shown import clean
from stategraph._values.events import Event, EventType, Observer
from stategraph.errors import ConfigError

_DEBUG, _INFO, _WARNING, _ERROR = 10, 20, 30, 40  # as in the standard library, whose logging takes 5 ms to import
_NAMES = {_DEBUG: "debug", _INFO: "info", _WARNING: "warning", _ERROR: "error"}
_THRESHOLDS = {name: level for level, name in _NAMES.items()}
_LEVELS = {
    EventType.GRAPH_START: _INFO,
    EventType.GRAPH_COMPLETE: _INFO,
    EventType.GRAPH_PAUSE: _INFO,
    EventType.GRAPH_ERROR: _ERROR,
    EventType.NODE_RETRY: _WARNING,
    EventType.CHECKPOINT_RESUME: _INFO,
    EventType.LEASE_LATE: _WARNING,
}  # all others have debug


class StructlogObserver(Observer):
    """Logs starts and ends of runs at info, retries and late leases at warning, failures at error, all else at debug.

    If structlog is configured, it decides where lines go. Otherwise they go to stderr.

    Args:
        level: The lowest level to log: "debug", "info", "warning" or "error". Events below it are never built.
    """

    def __init__(self, level: str = "info") -> None:
        threshold = _THRESHOLDS.get(level.lower()) if isinstance(level, str) else None
        if threshold is None:
            raise ConfigError("level", level, "one of debug, info, warning, error")
        self._wanted = frozenset(kind for kind in EventType if _level(kind) >= threshold)

    def wants(self, type: EventType) -> bool:
        return type in self._wanted

    def on_event(self, event: Event) -> None:
        err, data = sys.stderr, {"graph": event.source, **event.data}
        shows = err is not None and err.isatty()  # a terminal shows the lines in colours
        if shows:
            data = {key: clean(value) if isinstance(value, str) else value for key, value in data.items()}
        if shows or "structlog" in sys.modules:
            import structlog  # imported when used: it takes 20 ms, and plain lines do not need it

            is_configured = structlog.is_configured()
            if shows or is_configured:
                plain: Any = structlog.PrintLogger(err)
                logger = structlog.get_logger("stategraph") if is_configured else structlog.wrap_logger(plain)
                logger.log(_level(event.type), event.type.value, **data)
                return
            data = {**structlog.contextvars.get_contextvars(), **data}
        if err is not None:
            _write(err, event, data)


def _level(type: EventType) -> int:
    return _LEVELS.get(type, _DEBUG)


_HEADS = {kind: f"[{_NAMES[_level(kind)]:9}] {kind.value:30}" for kind in EventType}


def _write(err: TextIO, event: Event, data: Mapping[str, Any]) -> None:
    """Write the line that structlog writes by default, without importing it."""
    pairs = " ".join([f"{key}={_shown(value)}" for key, value in sorted(data.items())])
    err.write(f"{_when(int(event.timestamp.timestamp()))} {_HEADS[event.type]} {pairs}\n")


@lru_cache(maxsize=1)  # lines of one second share it
def _when(seconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _shown(value: object) -> str:
    if not isinstance(value, str) or not value.isprintable():
        return repr(value)
    is_quoted = " " in value or "=" in value or '"' in value or "'" in value
    return repr(value) if is_quoted else value
