"""Observers, which receive events: the base class, the registry, and the observers of stategraph itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stategraph._values.events import Listener, MultiObserver, NoopObserver, Observer, check_observer
from stategraph._values.registry import Registry

__all__ = ["MultiObserver", "Observer", "get_observer", "register_observer"]


def _structlog(level: str = "info") -> Listener:
    from stategraph.observers.logging import StructlogObserver  # imported when used, as are the two below

    return StructlogObserver(level)


def _progress(every: float = 1.0) -> Listener:
    from stategraph.observers.progress import ProgressObserver

    return ProgressObserver(every=every)


def _opentelemetry() -> Listener:
    from stategraph.observers.opentelemetry import OpenTelemetryObserver

    return OpenTelemetryObserver()


_observers: Registry[Listener] = Registry(
    "observer",
    "stategraph.observers",
    is_instance=lambda entry: not isinstance(entry, type) and callable(getattr(entry, "on_event", None)),
)
_observers.register("noop", NoopObserver())
_observers.register("structlog", _structlog)
_observers.register("progress", _progress)
_observers.register("opentelemetry", _opentelemetry)


def register_observer(name: str, observer: Listener | Callable[..., Listener]) -> None:
    """Register an observer under a name, in place of an earlier observer of that name.

    It is an instance (anything with ``on_event``), or a class or function that makes one. An installed package can
    instead name its observers in the entry-point group ``stategraph.observers``.

    Raises:
        ConfigError: the name is empty, or the observer is async or no observer at all.
    """
    if hasattr(observer, "on_event") and not isinstance(observer, type):
        check_observer(observer, f"observer {name!r}")
    _observers.register(name, observer)


def get_observer(name: str, **options: Any) -> Listener:
    """Return the observer of a name. The same name and options give the same object.

    Raises:
        UnknownNameError: no observer has this name; the text lists the known names.
        ConfigError: the observer does not take these options, or is async.
    """
    return check_observer(_observers.get(name, options), f"observer {name!r}")


def with_others(observer: Listener, *others: Any) -> Listener:
    """Return an observer that passes events to others as well: observers, names of observers, or None."""
    each = [get_observer(other) if isinstance(other, str) else other for other in others if other is not None]
    added = [other for other in each if check_observer(other) is not observer]
    return MultiObserver(observer, *added) if added else observer
