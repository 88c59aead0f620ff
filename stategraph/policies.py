"""Retrying nodes and caching their results: RetryPolicy and CachePolicy."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias, TypeVar

import attrs

from stategraph._text.shown import describe_exception, shorten
from stategraph._util.callables import answered, is_true, problem_of
from stategraph._util.validators import MOST, Allowed, check_fields, encodable, is_count, is_seconds, naming_arguments
from stategraph.errors import AsyncNodeError, ConfigError, ExecutionError

_Answer = TypeVar("_Answer")
RetryOn: TypeAlias = type[Exception] | tuple[type[Exception], ...] | Callable[[Exception], bool]


# --------------------------------------------------------------------------- trying again


def _is_number(value: Any, at_least: float = 0) -> bool:
    return type(value) in (int, float) and at_least <= value <= MOST


def _listed(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _are_classes(value: Any) -> bool:
    types = value if isinstance(value, tuple) else (value,)
    return bool(types) and all(isinstance(one, type) and issubclass(one, Exception) for one in types)


_NUMBER = "a finite number from 0 on"
_RETRY: Allowed = {
    "max_attempts": ("how many times a node is tried in all, from 1 on", lambda value: is_count(value, at_least=1)),
    "initial_delay": (_NUMBER, _is_number),
    "backoff_multiplier": ("a finite number from 1 on", lambda value: _is_number(value, 1)),
    "max_delay": (_NUMBER, _is_number),
    "jitter": (_NUMBER, _is_number),
}
_FUNCTIONS = {
    "retry_on": (1, "an exception class, several of them, or a sync function of the exception"),
    "random": (0, "a sync function that gives numbers from 0 up to 1"),
    "delay": (1, "a sync function of the exception that gives seconds, or None"),
}
"""The functions of a RetryPolicy: how many arguments each takes, and what else is allowed in words."""


@naming_arguments()
@attrs.frozen
class RetryPolicy:
    """When and how often a node that failed is tried again.

    The delay before attempt n + 1 is ``initial_delay * backoff_multiplier ** (n - 1)``, but at most `max_delay`.

    Attributes:
        max_attempts: How many times it is tried in all.
        initial_delay: Seconds before the second attempt.
        backoff_multiplier: What the delay is multiplied by from one attempt to the next.
        max_delay: Seconds that no delay exceeds.
        jitter: Up to so many seconds, at random, are added to each delay.
        retry_on: What is tried again: exception classes, or a function of the exception. The parts of a node fail
            together, as an ExceptionGroup: classes fit one if they fit all that is in it. A nested graph fails with an
            ExecutionError: classes fit one if they fit what it came from.
        random: Where the jitter comes from: a function that gives numbers from 0 up to 1, such as
            ``random.Random(7).random``. By default it is that of the module random.
        delay: A function of the exception that gives the seconds to wait, such as those of a "Retry-After"; they are
            waited for, whatever `max_delay` says. For None, they are those of the policy.

    Raises:
        ConfigError: a value is not allowed.
    """

    max_attempts: int = 3
    initial_delay: float = 1.0
    backoff_multiplier: float = 2.0
    max_delay: float = 60.0
    jitter: float = 0.0
    retry_on: RetryOn = attrs.field(default=Exception, converter=_listed)
    random: Callable[[], float] | None = attrs.field(default=None, kw_only=True)
    delay: Callable[[Any], float | None] | None = attrs.field(default=None, kw_only=True)

    def __attrs_post_init__(self) -> None:
        check_fields(self, "retry.", _RETRY)
        for name, (arguments, allowed) in _FUNCTIONS.items():
            given = getattr(self, name)
            if _are_classes(given) if name == "retry_on" else given is None:
                continue
            problem = problem_of(given, arguments) or ("it is a class" if isinstance(given, type) else "")
            if problem:
                raise ConfigError(f"retry.{name}", given, f"{allowed} is: {problem}")

    def delay_after(self, attempt: int, error: Exception) -> float | None:
        """Return the seconds to wait after this attempt failed with this error; None to give up.

        If a function of the policy fails, it gives up as well: the error that was to be judged is the one to be seen.
        """
        if attempt >= self.max_attempts:
            return None
        try:
            if not self._is_to_be_retried(error):
                return None
            given = None if self.delay is None else _asked("delay", self.delay, error)
            if given is not None:
                return _seconds_given(given)
            return min(self._backoff(attempt) + self._jitter(), float(self.max_delay))
        except _BrokenError as broken:
            error.add_note(f"It was not tried again: {broken}")
            return None

    def _backoff(self, attempt: int) -> float:
        if not self.initial_delay:  # 0 times what is too large for a float would be the longest delay
            return 0.0
        try:
            delay = float(self.initial_delay) * float(self.backoff_multiplier) ** (attempt - 1)
        except OverflowError:
            return float(self.max_delay)
        return float(min(delay, self.max_delay))

    def _jitter(self) -> float:
        if not self.jitter:
            return 0.0
        if self.random is None:
            from random import random  # imported when used: 5 ms

            return self.jitter * random()  # noqa: S311 - nothing secret
        share = _asked("random", self.random)
        if not isinstance(share, int | float) or not 0 <= share <= 1:
            raise _BrokenError(f"random returned {shorten(share)}, which is no number from 0 up to 1")
        return self.jitter * share

    def _is_to_be_retried(self, error: Exception) -> bool:
        if isinstance(error, AsyncNodeError):  # it would be the same again
            return False
        if isinstance(self.retry_on, type | tuple):
            return any(_fits(one, self.retry_on) for one in _causes(error))
        return _asked("retry_on", _decided, self.retry_on, error)


def _seconds_given(given: Any) -> float:
    if type(given) not in (int, float) or not 0 <= given <= MOST:
        raise _BrokenError(f"delay returned {shorten(given)}, which is no number of seconds from 0 on")
    return float(given)


class _BrokenError(Exception):
    """A function of a policy has failed."""


def _asked(name: str, function: Callable[..., _Answer], *arguments: Any) -> _Answer:
    try:
        return answered(function(*arguments))
    except Exception as broken:  # the user's code may raise anything
        raise _BrokenError(f"{name} raised {describe_exception(broken)}") from broken


def _decided(function: Callable[[Exception], object], error: Exception) -> bool:
    return is_true(function(error))


def _fits(error: BaseException, classes: Any) -> bool:
    return isinstance(error, classes) or (isinstance(error, ExceptionGroup) and error.split(classes)[1] is None)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error and, if that is one of a nested graph, what it came from."""
    while error is not None:
        yield error
        error = error.__cause__ if isinstance(error, ExecutionError) else None


# --------------------------------------------------------------------------- keeping results


def _as_tuple(value: object) -> object:
    return value if isinstance(value, str) or not isinstance(value, Iterable) else tuple(value)


def _are_keys(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and all(isinstance(key, str) for key in value)


def _is_path(value: Any) -> bool:
    if not isinstance(value, str | os.PathLike) or not isinstance(os.fspath(value), str):
        return False
    return os.fspath(value) not in ("", ":memory:") and encodable(os.fspath(value)) is not None


_CACHE: Allowed = {
    "inputs": ('the keys that the node reads, such as ("question",)', _are_keys),
    "path": ("the path of a folder", _is_path),
    "ttl": ("a number of seconds above 0, or None", lambda value: value is None or is_seconds(value)),
    "version": ("a str, a whole number, or None", lambda value: value is None or type(value) in (str, int)),
}


@attrs.frozen
class CachePolicy:
    """Keep the results of a node, and use them again for the same inputs instead of calling it.

    What the node changed is kept under its name and graph, the version of its code, and the exact values of its
    inputs. So a result depends on nothing but these: a node that reads other keys, a file or the time gets old answers.
    What pauses, waits for an answer or fails is never kept, and chunks are not emitted again. A cache that cannot be
    read or written, or whose contents are damaged, costs a call of the node and nothing else.

    Attributes:
        inputs: The keys that the node reads. One that is missing differs from one that is None.
        path: The folder of the cache, with ``~`` for the user's home; nodes, graphs and processes may share it.
        ttl: Seconds for which a result is used, and after which it is removed as others are kept; None for ever, and
            it stays until the folder is deleted.
        version: Names the version of what the node does. By default it comes from its code: its own functions, those
            that they contain or close over, and their constants and defaults; but not what they call by global names.
        sign_with: Results are signed (HMAC-SHA-256) with the key that this function gives, or that the environment
            variable of this name holds; others are not used. By default they are signed if the store of the graph
            signs, with its key.

    Raises:
        ConfigError: a value is not allowed.
    """

    inputs: tuple[str, ...] = attrs.field(converter=_as_tuple)
    path: str | os.PathLike[str] = attrs.field(kw_only=True)
    ttl: float | None = attrs.field(default=None, kw_only=True)
    version: str | int | None = attrs.field(default=None, kw_only=True)
    sign_with: Callable[[], bytes] | str | None = attrs.field(default=None, kw_only=True, repr=False)

    def __attrs_post_init__(self) -> None:
        check_fields(self, "cache.", _CACHE)
        given: object = self.sign_with
        if not (given is None or callable(given) or (isinstance(given, str) and given)):
            allowed = "a function that gives the key, or the name of an environment variable that holds it"
            raise ConfigError("cache.sign_with", type(given), allowed)  # not the value: it may be the key


def check_policies(retry: object, cache: object) -> None:
    """Raise ConfigError if what is given as the policies of a node is something else."""
    if retry is not None and not isinstance(retry, RetryPolicy):
        raise ConfigError("retry", retry, "a RetryPolicy")
    if cache is not None and not isinstance(cache, CachePolicy):
        raise ConfigError("cache", cache, "a CachePolicy")
