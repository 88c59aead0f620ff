"""The observers that come with the library and do something: each is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from stategraph._values.events import Listener


def _structlog(level: str = "info") -> Listener:
    from stategraph.observers.logging import StructlogObserver  # imported when used: structlog takes 50 ms

    return StructlogObserver(level)


def _progress(every: float = 1.0) -> Listener:
    from stategraph.observers.progress import ProgressObserver

    return ProgressObserver(every=every)


def _opentelemetry() -> Listener:
    from stategraph.observers.opentelemetry import OpenTelemetryObserver

    return OpenTelemetryObserver()


BUNDLED: Mapping[str, tuple[Callable[..., Listener], Callable[[Mapping[str, Any]], Mapping[str, Any]]]] = {
    "structlog": (_structlog, dict),
    "progress": (_progress, dict),
    "opentelemetry": (_opentelemetry, dict),
}
"""Each with what brings options that mean the same into the same form."""
