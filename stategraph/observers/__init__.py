"""Observers, which hear of events: the base class, the registry, and those that come with stategraph."""

from typing import TYPE_CHECKING, Any

from stategraph.observers.base import Observer
from stategraph.observers.registry import get_observer, register_observer

if TYPE_CHECKING:
    from stategraph.observers.multi import MultiObserver

__all__ = ["MultiObserver", "Observer", "get_observer", "register_observer"]


def __getattr__(name: str) -> Any:
    if name == "MultiObserver":
        from stategraph.observers.multi import MultiObserver  # imported when used

        return MultiObserver
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
