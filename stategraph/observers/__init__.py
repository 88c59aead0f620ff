"""Observers, which hear of events: the base class, the registry, and those that come with stategraph."""

from stategraph.observers.base import MultiObserver, Observer
from stategraph.observers.registry import get_observer, register_observer

__all__ = ["MultiObserver", "Observer", "get_observer", "register_observer"]
