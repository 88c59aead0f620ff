"""Several observers as one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from stategraph._values.events import Event, EventType, Listener, listener_problem, notify_of, wants
from stategraph.errors import ConfigError
from stategraph.observers.base import Observer


class MultiObserver(Observer):
    """Passes events to several observers, in the order given. One that raises does not keep an event from the others.

    Args:
        observers: The observers, or one iterable of them.

    Raises:
        ConfigError: one of them is a class, async, or no observer at all.
    """

    def __init__(self, *observers: Listener | Iterable[Listener]) -> None:
        self.observers: tuple[Listener, ...] = tuple(observer for given in observers for observer in _each(given))

    def on_event(self, event: Event) -> None:
        for observer in self.observers:
            if wants(observer, event.type):
                notify_of(observer, event)

    def wants(self, type: EventType) -> bool:
        return any(wants(observer, type) for observer in self.observers)


def _each(given: Listener | Iterable[Listener]) -> Iterable[Listener]:
    is_one = hasattr(given, "on_event") or not isinstance(given, Iterable)
    observers = (cast(Listener, given),) if is_one else cast(Iterable[Listener], given)
    for observer in observers:
        problem = listener_problem(observer)
        if problem:
            raise ConfigError("observer", observer, problem)
        yield observer
