"""Guarding a class of stores that knows nothing of owners: what writes to a run is for its owner only."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import wraps
from typing import Any

from stategraph._owners.holds import held

_WRITES = ("save", "save_many", "amend", "delete", "_discard", "rollback", "save_parts", "drop_parts")


def guard_writes(store: type, contract: type) -> None:
    """Guard all methods by which a class of stores writes to runs, except those that it has from the contract."""
    for name in _WRITES:
        method = getattr(store, name)
        if method is not vars(contract)[name] and not hasattr(method, "is_guarded"):
            setattr(store, name, _guarded(method))


def _guarded(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of a store that writes to a run as one for its owner only. A State of it, or several, or its id
    is the first argument."""

    @wraps(method)
    def write(store: Any, *arguments: Any, take_over: bool = False, **named: Any) -> Any:
        about = next(iter((*arguments, *named.values())), None)
        first = about[0] if isinstance(about, list | tuple) and about else about  # of several States
        run_id = first if isinstance(first, str) else getattr(first, "run_id", None)
        if not isinstance(run_id, str):
            return method(store, *arguments, **named)  # which says what is wrong with it
        with held(store, run_id, take_over=take_over) as hold, hold.lock or nullcontext():
            hold.check()
            return method(store, *arguments, **named)

    write.is_guarded = True  # type: ignore[attr-defined]
    return write
