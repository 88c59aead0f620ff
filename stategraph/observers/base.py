"""The base class of observers, an observer that ignores all events, and one that passes them on to several."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from typing import Any, cast

from stategraph._values.events import Event, EventType, Listener, listener_problem, notify_of, wants
from stategraph.errors import ConfigError


class Observer:
    """Base for observers. Anything with ``on_event`` is one; this class adds the defaults.

    An observer may also have a method ``enter_node(call_id, run_id)``. It is called right before the function of a
    node, in the same thread or task, and returns a function to call afterwards. Context variables that it sets are
    visible to the node, and to threads and tasks that begin in the node.
    """

    def on_event(self, event: Event) -> None:
        """Receive an event, in order and in the thread of the run. An exception is logged once and ignored."""

    def wants(self, type: EventType) -> bool:
        """Return whether to receive events of this type.

        It is called when a run starts. An event that no observer wants is never built.
        """
        return True


class NoopObserver(Observer):
    """Ignores all events."""

    def wants(self, type: EventType) -> bool:
        return False


class MultiObserver(Observer):
    """Passes each event to several observers, in the order given, even if one of them raises.

    Args:
        observers: The observers, or one iterable of them.

    Raises:
        ConfigError: an observer is a class, async, or no observer at all.
    """

    def __init__(self, *observers: Listener | Iterable[Listener]) -> None:
        self.observers: tuple[Listener, ...] = tuple(observer for given in observers for observer in _each(given))
        entering = [observer for observer in self.observers if hasattr(observer, "enter_node")]
        if entering:
            self.enter_node: Callable[..., Callable[[], object]] = partial(_enter_all, entering)

    def on_event(self, event: Event) -> None:
        for observer in self.observers:
            if wants(observer, event.type):
                notify_of(observer, event)

    def wants(self, type: EventType) -> bool:
        return any(wants(observer, type) for observer in self.observers)


def _enter_all(observers: list[Any], call_id: str, run_id: str) -> Callable[[], object]:
    """Call `enter_node` of each observer; return a function that undoes all of it."""
    with ExitStack() as stack:
        for observer in observers:
            stack.callback(observer.enter_node(call_id, run_id))
        return stack.pop_all().close


def _each(given: Listener | Iterable[Listener]) -> Iterable[Listener]:
    is_one = hasattr(given, "on_event") or not isinstance(given, Iterable)
    observers = (cast(Listener, given),) if is_one else cast(Iterable[Listener], given)
    for observer in observers:
        problem = listener_problem(observer)
        if problem:
            raise ConfigError("observer", observer, problem)
        yield observer
