"""Observer."""

from __future__ import annotations

from stategraph._values.events import Event, EventType


class Observer:
    """Base for observers. Anything with ``on_event`` is one; this class adds the defaults."""

    def on_event(self, event: Event) -> None:
        """Hear of an event, in the thread of the run, in order. What this raises is logged once and breaks nothing."""

    def wants(self, type: EventType) -> bool:
        """Return whether to be told of events of this type.

        It is asked when a run starts; an event that nobody wants is never built.
        """
        return True


class NoopObserver(Observer):
    """Ignores all events."""

    def wants(self, type: EventType) -> bool:
        return False
