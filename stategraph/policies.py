"""What a node does about failure, time and repetition: RetryPolicy and CachePolicy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import attrs

from stategraph.checks import is_count
from stategraph.errors import ConfigError, shorten

RetryOn: TypeAlias = type[Exception] | tuple[type[Exception], ...] | Callable[[Exception], bool]


def is_timeout(value: object) -> bool:
    """Whether it is a number of seconds above 0."""
    return type(value) in (int, float) and 0 < value < float("inf")  # type: ignore[operator]


def _seconds(key: str, *, at_least: float = 0) -> Any:
    def validate(_: object, __: attrs.Attribute[Any], value: object) -> None:
        if type(value) not in (int, float) or not at_least <= value < float("inf"):  # type: ignore[operator]
            raise ConfigError(f"retry.{key}", value, f"a finite number from {at_least} on")

    return validate


def _is_max_attempts(_: object, __: attrs.Attribute[Any], value: object) -> None:
    if not is_count(value, at_least=1):
        raise ConfigError("retry.max_attempts", value, "how many times a node is tried in all, from 1 on")


def _is_retry_on(_: object, __: attrs.Attribute[Any], value: object) -> None:
    types = value if isinstance(value, tuple) else (value,)
    if not callable(value) and not all(isinstance(one, type) and issubclass(one, Exception) for one in types):
        raise ConfigError(
            "retry.retry_on", value, "an exception class, several of them, or a function of the exception"
        )


@attrs.frozen
class RetryPolicy:
    """When and how often a node that failed is tried again. The waiting times are tenacity's.

    Attributes:
        max_attempts: How many times it is tried in all.
        initial_delay: Seconds before the second attempt.
        backoff_multiplier: What the delay is multiplied with from one attempt to the next.
        max_delay: Seconds that no delay exceeds.
        jitter: Up to so many seconds, at random, are added to each delay.
        retry_on: What is tried again: exception classes, or a function of the exception.

    Raises:
        ConfigError: a value is not allowed.
    """

    max_attempts: int = attrs.field(default=3, validator=_is_max_attempts)
    initial_delay: float = attrs.field(default=1.0, validator=_seconds("initial_delay"))
    backoff_multiplier: float = attrs.field(default=2.0, validator=_seconds("backoff_multiplier", at_least=1))
    max_delay: float = attrs.field(default=60.0, validator=_seconds("max_delay"))
    jitter: float = attrs.field(default=0.0, validator=_seconds("jitter"))
    retry_on: RetryOn = attrs.field(default=Exception, validator=_is_retry_on)

    def delay_after(self, attempt: int, error: Exception) -> float | None:
        """-> the seconds to wait after this attempt failed with this error; None to give up."""
        if attempt >= self.max_attempts or not self._is_to_be_retried(error):
            return None
        import tenacity  # imported when used: 30 ms

        wait = tenacity.wait_exponential(self.initial_delay, self.max_delay, self.backoff_multiplier)
        call = tenacity.RetryCallState(tenacity.Retrying(), None, (), {})
        call.attempt_number = attempt
        delay = wait(call) + (tenacity.wait_random(0, self.jitter)(call) if self.jitter else 0.0)
        return min(delay, self.max_delay)

    def _is_to_be_retried(self, error: Exception) -> bool:
        if isinstance(self.retry_on, type | tuple):
            return isinstance(error, self.retry_on)
        return bool(self.retry_on(error))


@attrs.frozen
class NodePolicies:
    """What a node does beyond being called.

    Attributes:
        retry: Try it again when it fails.
        timeout: Seconds that one attempt may take.
        cache: Keep its results.
        on_error: The node that a run goes to when it has failed.
    """

    retry: RetryPolicy | None = None
    timeout: float | None = None
    cache: Any = None
    on_error: str | None = None

    @property
    def is_at_work(self) -> bool:
        """Whether a call takes more than calling the node. A handler of failures does not."""
        return self.retry is not None or self.timeout is not None or self.cache is not None

    def __attrs_post_init__(self) -> None:
        if self.timeout is not None and not is_timeout(self.timeout):
            raise ConfigError("timeout", self.timeout, "a number of seconds above 0")
        if self.retry is not None and not isinstance(self.retry, RetryPolicy):
            raise ConfigError("retry", self.retry, "a RetryPolicy")
        if self.on_error is not None and not isinstance(self.on_error, str):
            raise ConfigError("on_error", shorten(self.on_error), "the name of a node")


@attrs.frozen
class CachePolicy:
    """How the results of a node are kept, to be used again for the same inputs."""
