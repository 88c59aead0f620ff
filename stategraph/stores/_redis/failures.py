"""What errors of Redis mean for a store."""

from __future__ import annotations

import redis
from redis.exceptions import (
    AuthorizationError,
    ClusterDownError,
    MasterDownError,
    OutOfMemoryError,
    ReadOnlyError,
    TryAgainError,
)

from stategraph.errors import CheckpointCorruptError, CheckpointError


class SilentServerError(redis.RedisError):
    """The server has not answered in time. What it was asked for it may have done, or may yet do."""


class UnfitServerError(redis.RedisError):
    """The server would lose what it acknowledges.

    Args:
        why: What it does, and the way out.
        is_replica: Whether it does so because it is a replica: another one is the primary, or this one will be.
    """

    def __init__(self, why: str, *, is_replica: bool = False) -> None:
        super().__init__(why)
        self.is_replica = is_replica


class TooFewReplicasError(redis.RedisError):
    """The server has written it, and fewer replicas than were asked for have it."""


_PASSING = ("LOADING", "READONLY", "BUSY ", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "NOREPLICAS")
_PASSING_KINDS = (ReadOnlyError, TryAgainError, ClusterDownError, MasterDownError)
"""A server that starts, is a replica by now, runs a long script, has too few replicas to write; a cluster that moves
keys, or is incomplete. Servers before Redis 7 have it somewhere in the text when it comes from a script; of others
redis-py makes an error of its own.
"""


def is_passing(error: Exception) -> bool:
    """Return whether it may go well to ask again. What was asked for may have been done all the same."""
    if isinstance(error, UnfitServerError):
        return error.is_replica
    if isinstance(error, redis.ResponseError):
        return isinstance(error, _PASSING_KINDS) or any(word in str(error) for word in _PASSING)
    is_refused = isinstance(error, redis.AuthenticationError | AuthorizationError)
    return isinstance(error, redis.ConnectionError | redis.TimeoutError | SilentServerError) and not is_refused


def is_demoted(error: Exception) -> bool:
    """Return whether the server does not take writes any more: a new connection may lead to one that does."""
    return isinstance(error, ReadOnlyError) or "READONLY" in str(error)


def explained(error: Exception, run_id: str, store: object, kind: type[CheckpointError]) -> CheckpointError:
    """Return an error of Redis as one of stategraph; what brought it about is raised as its cause by the caller."""
    text = " ".join(str(error).split()) or type(error).__name__
    if "WRONGTYPE" in text:
        return CheckpointCorruptError(run_id, f"the {store} is damaged: {text}; put back a copy of it")
    if isinstance(error, OutOfMemoryError) or "OOM " in text:
        reason = "its memory is full, and nothing was written; raise maxmemory, or make room with prune and delete"
        return kind(run_id, f"the {store} failed: {reason} ({text})")
    return kind(run_id, f"the {store} failed: {text}")
