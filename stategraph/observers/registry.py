"""Observers by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stategraph._values.events import Listener, listener_problem
from stategraph._values.registry import Registry
from stategraph.errors import ConfigError
from stategraph.observers.base import MultiObserver, NoopObserver


def _structlog(level: str = "info") -> Listener:
    from stategraph.observers.logging import StructlogObserver  # imported when used: structlog takes 50 ms

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
    """Make an observer known by name: an instance (anything with ``on_event``), or a class or function that makes one.

    An observer known by that name before is replaced. An installed package can instead name its observers in the
    entry-point group ``stategraph.observers``.

    Raises:
        ConfigError: the name is empty, or `observer` is neither, or async.
    """
    if hasattr(observer, "on_event") and not isinstance(observer, type):
        _checked(name, observer)
    _observers.register(name, observer)


def get_observer(name: str, **options: Any) -> Listener:
    """Return the observer of that name: for the same name and options the same object.

    Raises:
        UnknownNameError: no observer has this name; the text lists those that exist.
        ConfigError: the observer does not take these options, or is async.
    """
    return _checked(name, _observers.get(name, options))


def with_progress(observer: Listener) -> Listener:
    """Return an observer and, unless it is that, the one that shows how runs go on."""
    shown = get_observer("progress")
    return observer if observer is shown else MultiObserver(observer, shown)


def checked_observer(observer: object) -> Listener:
    """Return an observer that was given in place of a name. Raises ConfigError if it is none."""
    problem = listener_problem(observer)
    if problem:
        raise ConfigError("observer", observer, f"{problem} (names go into GraphConfig(observer=...))")
    return observer  # type: ignore[return-value]


def _checked(name: str, observer: Any) -> Listener:
    problem = listener_problem(observer)
    if problem:
        raise ConfigError(f"observer {name!r}", observer, problem)
    return observer  # type: ignore[no-any-return]
