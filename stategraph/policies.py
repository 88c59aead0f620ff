"""RetryPolicy and CachePolicy: retries of nodes, and caches of their results."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import attrs

from stategraph._text.shown import describe_exception, shorten
from stategraph._util.callables import answered, is_true, problem_of
from stategraph._util.validators import MOST, Allowed, check_fields, is_count, is_seconds, naming_arguments
from stategraph.errors import AsyncNodeError, ConfigError, ExecutionError, LimitError

RetryOn: TypeAlias = type[Exception] | tuple[type[Exception], ...] | Callable[[Any], bool]


# --------------------------------------------------------------------------- retries


def _is_number(value: Any, at_least: float = 0) -> bool:
    return type(value) in (int, float) and at_least <= value <= MOST


def _keys(value: tuple[str, ...] | list[str] | set[str]) -> Any:
    return _as_tuple(value)


def _classes(value: RetryOn | list[type[Exception]]) -> Any:
    return _as_tuple(value)


def _as_tuple(value: Any) -> Any:
    return value if isinstance(value, str) or not isinstance(value, Iterable) else tuple(value)


def _are_classes(value: Any) -> bool:
    types = value if isinstance(value, tuple) else (value,)
    return bool(types) and all(isinstance(one, type) and issubclass(one, Exception) for one in types)


def _longest(policy: Any) -> float:
    given = policy.initial_delay
    return float(given) if _is_number(given, 60) else 60.0


_NUMBER = "a finite, non-negative number"
_RETRY: Allowed = {
    "max_attempts": ("the number of attempts, a positive integer", lambda value: is_count(value, at_least=1)),
    "initial_delay": (_NUMBER, _is_number),
    "backoff_multiplier": ("a finite number of at least 1", lambda value: _is_number(value, 1)),
    "max_delay": (_NUMBER, _is_number),
    "jitter": (_NUMBER, _is_number),
}
_FUNCTIONS = {
    "retry_on": (1, "an exception class, several of them, or a sync function of the exception"),
    "random": (0, "a sync function that gives numbers from 0 up to 1"),
    "delay": (1, "a sync function of the exception that gives seconds, or None"),
}
"""The functions of a RetryPolicy: the number of arguments, and a description of the allowed values."""


@naming_arguments()
@attrs.frozen
class RetryPolicy:
    """When and how often a failed node is retried.

    The delay before attempt n + 1 is ``initial_delay * backoff_multiplier ** (n - 1)``, but at most `max_delay`.

    Attributes:
        max_attempts: The number of attempts, including the first.
        initial_delay: Seconds before the second attempt.
        backoff_multiplier: The factor between one delay and the next.
        max_delay: The longest delay in seconds; by default 60, or `initial_delay` if that is longer.
        jitter: The most seconds, chosen at random, that are added to a delay; the sum is at most `max_delay`.
        retry_on: The exceptions to retry: exception classes, or a sync function of the exception that returns whether
            to retry. Several failed parts of a node raise an ExceptionGroup: classes match a group if they match all
            exceptions in it. A nested graph raises an ExecutionError: classes match it if they match it or its cause.
        random: The source of the jitter: a function that returns numbers from 0 up to 1, such as
            ``random.Random(7).random``. By default ``random.random``.
        delay: A sync function of the exception that returns the seconds to wait, for example from a "Retry-After"
            header, without a limit by `max_delay`; or None to use the delay of the policy.

    Raises:
        ConfigError: A value is not allowed.
    """

    max_attempts: int = 3
    initial_delay: float = 1.0
    backoff_multiplier: float = 2.0
    max_delay: float = attrs.field(default=attrs.Factory(_longest, takes_self=True))
    jitter: float = 0.0
    retry_on: RetryOn = attrs.field(default=Exception, converter=_classes)
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
                raise ConfigError(f"retry.{name}", given, f"use {allowed}: {problem}")

    def delay_after(self, attempt: int, error: Exception) -> float | None:
        """Return the seconds to wait after an attempt failed with an error; None to give up.

        If a function of the policy fails, give up, too: the error of the node must not be hidden by that failure.
        """
        if attempt >= self.max_attempts:
            return None
        try:
            if not self._retries(error):
                return None
            seconds = None if self.delay is None else answered(self.delay(error))
            if seconds is None:
                seconds = min(self._backoff(attempt) + self._jitter(), self.max_delay)
            return _checked_seconds(seconds)
        except Exception as broken:  # noqa: BLE001 - functions of the user may raise anything
            error.add_note(f"It was not tried again: its RetryPolicy raised {describe_exception(broken)}")
            return None

    def _backoff(self, attempt: int) -> float:
        try:
            return min(self.initial_delay * float(self.backoff_multiplier) ** (attempt - 1), self.max_delay)
        except OverflowError:
            return self.max_delay if self.initial_delay else 0.0

    def _jitter(self) -> float:
        if not self.jitter:
            return 0.0
        from random import random  # imported when used: 5 ms

        return self.jitter * answered((self.random or random)())

    def _retries(self, error: Exception) -> bool:
        if isinstance(error, AsyncNodeError | LimitError):  # a retry would fail in the same way
            return False
        retry_on = self.retry_on
        if isinstance(retry_on, type | tuple):
            return any(_fits(cause, retry_on) for cause in _causes(error))
        return is_true(retry_on(error))


def _checked_seconds(seconds: Any) -> float:
    if not _is_number(seconds):
        raise ValueError(f"{shorten(seconds)} is no number of seconds")
    return float(seconds)


def _fits(error: BaseException, classes: Any) -> bool:
    return isinstance(error, classes) or (isinstance(error, ExceptionGroup) and error.split(classes)[1] is None)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error and, if a nested graph failed, its causes."""
    while error is not None:
        yield error
        error = error.__cause__ if isinstance(error, ExecutionError) else None


# --------------------------------------------------------------------------- caches


def _are_keys(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and all(isinstance(key, str) for key in value)


def _is_path(value: Any) -> bool:
    return isinstance(value, str | os.PathLike) and os.fspath(value) not in ("", b"", ":memory:")


_CACHE: Allowed = {
    "inputs": ('the keys that the node reads, such as ("question",)', _are_keys),
    "path": ("the path of a folder", _is_path),
    "ttl": ("a number of seconds above 0, or None", lambda value: value is None or is_seconds(value)),
    "version": ("a str, a whole number, or None", lambda value: value is None or type(value) in (str, int)),
}


@attrs.frozen
class CachePolicy:
    """Cache the results of a node, and reuse them for the same inputs instead of calling the node.

    The key of a result is the graph, the node, the version of its code, and the exact values of its inputs. A node that
    also reads other keys, a file or the time gets outdated results. Pauses, answers and failures are never cached, and
    chunks are not emitted again. If the cache cannot be read or written, or is damaged, the node is called.

    Attributes:
        inputs: The keys that the node reads. A missing key differs from None.
        path: The folder of the cache; ``~`` is the home of the user. Nodes, graphs and processes may share it.
        ttl: Seconds for which a result is used. Later writes remove expired results. None keeps results until the
            folder is deleted.
        version: The version of the node's code. By default it is derived from the code of the node's functions, of the
            functions that they contain or close over, and from their constants and defaults; not from functions that
            they call by global names.
        sign_with: The key that signs results (HMAC-SHA-256): a function that returns it, or the name of an environment
            variable. Results with another signature are not used. By default the key of the graph's store, if it has
            one.

    Raises:
        ConfigError: A value is not allowed.
    """

    inputs: tuple[str, ...] = attrs.field(converter=_keys)
    path: str | os.PathLike[str] = attrs.field(kw_only=True)
    ttl: float | None = attrs.field(default=None, kw_only=True)
    version: str | int | None = attrs.field(default=None, kw_only=True)
    sign_with: Callable[[], bytes] | str | None = attrs.field(default=None, kw_only=True, repr=False)

    def __attrs_post_init__(self) -> None:
        check_fields(self, "cache.", _CACHE)
        given: object = self.sign_with
        if not (given is None or callable(given) or (isinstance(given, str) and given)):
            allowed = "a function that gives the key, or the name of an environment variable that holds it"
            raise ConfigError("cache.sign_with", type(given), allowed)  # the value itself may be the key


def check_policies(retry: object, cache: object) -> None:
    """Raise ConfigError unless the policies of a node have the right types."""
    if retry is not None and not isinstance(retry, RetryPolicy):
        raise ConfigError("retry", retry, "a RetryPolicy, as in RetryPolicy(max_attempts=3)")
    if cache is not None and not isinstance(cache, CachePolicy):
        raise ConfigError("cache", cache, "a CachePolicy, as in CachePolicy(inputs=('key',))")
