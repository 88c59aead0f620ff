"""NodePolicies: all that a node does beyond being called."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from stategraph._text.shown import shorten
from stategraph._util.validators import is_seconds
from stategraph.errors import ConfigError

if TYPE_CHECKING:
    from stategraph.policies import CachePolicy, RetryPolicy


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
    cache: CachePolicy | None = None
    on_error: str | None = None

    @property
    def is_at_work(self) -> bool:
        """Whether a call takes more than calling the node. A handler of failures does not make it so."""
        return self.retry is not None or self.timeout is not None or self.cache is not None

    def __attrs_post_init__(self) -> None:
        if self.timeout is not None and not is_seconds(self.timeout):
            raise ConfigError("timeout", self.timeout, "a number of seconds above 0")
        if self.retry is not None or self.cache is not None:
            self._check_classes()
        if self.on_error is not None and not isinstance(self.on_error, str):
            raise ConfigError("on_error", shorten(self.on_error), "the name of a node")

    def _check_classes(self) -> None:
        from stategraph.policies import CachePolicy, RetryPolicy  # imported when used: few nodes have any

        if self.retry is not None and not isinstance(self.retry, RetryPolicy):
            raise ConfigError("retry", self.retry, "a RetryPolicy")
        if self.cache is not None and not isinstance(self.cache, CachePolicy):
            raise ConfigError("cache", self.cache, "a CachePolicy")
