"""What can be told of a function without calling it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any


def name_of(function: Callable[..., object]) -> str:
    """-> the name of a function: never its repr, which holds an address."""
    return getattr(function, "__qualname__", None) or type(function).__qualname__


def is_async_callable(function: object) -> bool:
    """Whether what calling it gives has to be awaited; sees through partials and objects with an async ``__call__``."""
    return _is(inspect.iscoroutinefunction, function) or _is(inspect.isasyncgenfunction, function)


def is_generator_callable(function: object) -> bool:
    """Whether calling it gives a generator, sync or async; sees through the same."""
    return _is(inspect.isgeneratorfunction, function) or _is(inspect.isasyncgenfunction, function)


def _is(test: Callable[[Any], bool], function: Any) -> bool:
    while isinstance(function, partial):
        function = function.func
    return test(function) or test(type(function).__call__)
