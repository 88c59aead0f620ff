"""What can be told of a function without calling it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial


def name_of(function: Callable[..., object]) -> str:
    """-> the name of a function: never its repr, which holds an address."""
    return getattr(function, "__qualname__", None) or type(function).__qualname__


def is_async_callable(function: object) -> bool:
    """Whether calling it gives a coroutine; sees through partials and objects with an async ``__call__``."""
    while isinstance(function, partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
