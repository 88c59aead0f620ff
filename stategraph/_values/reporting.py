"""Observers that raise: each is reported once."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from functools import partial

_MOST_REPORTED = 1_000  # observers that have raised; an older one may be reported once more
_reported: dict[int, Callable[[], object]] = {}  # by id, because observers need not be hashable


def _forget(key: int, _: object) -> None:
    _reported.pop(key, None)


def report(listener: object, error: BaseException) -> None:
    """Log what an observer has raised, unless something of it was logged before."""
    known = _reported.get(id(listener))
    if known is not None and known() is listener:  # an id can be used again once its object is gone
        return
    try:
        _reported[id(listener)] = weakref.ref(listener, partial(_forget, id(listener)))
    except TypeError:  # an object without __weakref__ is kept, but not for ever
        _reported[id(listener)] = lambda: listener
    for key in list(_reported)[:-_MOST_REPORTED]:
        _reported.pop(key, None)
    logging.getLogger("stategraph").error(
        "observer %s raised; the run goes on, and further errors of this observer are not reported",
        type(listener).__qualname__,
        exc_info=error,
    )
