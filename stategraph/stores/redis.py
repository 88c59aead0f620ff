"""The "redis" store: runs in a Redis server, or a cluster, that many machines share.

What its keys hold stands in docs/redis.md, and what a failover loses.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from stategraph._owners.leases import LEASE
from stategraph._text.shown import Hidden, unreadable
from stategraph._util.validators import is_count, is_seconds
from stategraph.errors import ConfigError
from stategraph.stores._rows.store import RowStore
from stategraph.stores._rows.table import Identify, Table

_MOST_PARTITIONS = 1024
_MOST_NAMED = 100  # characters of a prefix, which is in every key


class RedisStore(RowStore):
    """Keeps runs in Redis. Machines, processes and threads may share it; one owner has each run.

    A save is one script and one round trip; threads that save at the same time share it. A failover of Redis may lose
    saves and leases that were acknowledged: where that matters, use "postgres".

    Args:
        url: Where the server is, as redis-py takes it: redis://, rediss:// (TLS) or unix://; or the name of an
            environment variable that holds that. It is never shown.
        prefix: What all keys begin with.
        partitions: Over how many slots of a cluster the runs are spread. A store keeps the number that it was made
            with.
        replicas: How many replicas must have a save before it returns.
        durable: Whether a server is refused that would lose or evict what it acknowledges.
        patience: Seconds until whatever waits for the server gives up.
        lease: Seconds after which a process that is not heard of has lost its runs.
        options: As for RowStore.

    Raises:
        ConfigError: an option is not allowed, redis-py is not installed, or the server does not keep what it
            acknowledges.
        FormatError: the keys are of a newer version.
        CheckpointError: the server does not answer.
    """

    kind = "redis"

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "stategraph",
        partitions: int = 16,
        replicas: int = 0,
        durable: bool = True,
        patience: float = 60,
        lease: float = LEASE,
        **options: Any,
    ) -> None:
        _check_options(prefix, {"patience": patience, "lease": lease}, partitions, replicas, durable)
        self._prefix = prefix
        where = _url_of(url)

        def open_table(store: object, identify: Identify) -> Table:
            from stategraph.stores._redis.connections import Nodes  # imported when used: redis-py takes 100 ms
            from stategraph.stores._redis.table import RedisTable

            nodes = Nodes(where, prefix, partitions, durable=durable)
            table = RedisTable(store, nodes, replicas=replicas, patience=patience, lease=lease)
            try:
                table.open(identify)
            except BaseException:
                table.close()
                raise
            return table

        super().__init__(open_table, **options)

    def __str__(self) -> str:
        return f"redis store with prefix {self._prefix}"


def _check_options(
    prefix: object, seconds: Mapping[str, object], partitions: object, replicas: object, durable: object
) -> None:
    """Raise ConfigError unless these options are allowed."""
    is_name = isinstance(prefix, str) and prefix.isprintable() and 0 < len(prefix) <= _MOST_NAMED
    if not is_name or any(brace in str(prefix) for brace in "{}"):
        raise ConfigError("checkpoint.options.prefix", prefix, f"1 to {_MOST_NAMED} characters without braces")
    if not is_count(partitions, at_least=1) or int(str(partitions)) > _MOST_PARTITIONS:
        raise ConfigError("checkpoint.options.partitions", partitions, f"1 to {_MOST_PARTITIONS}")
    if not is_count(replicas, at_least=0):
        raise ConfigError("checkpoint.options.replicas", replicas, "how many replicas have each save, from 0 on")
    for name, value in seconds.items():
        if not is_seconds(value):
            raise ConfigError(f"checkpoint.options.{name}", value, "seconds, more than 0")
    if type(durable) is not bool:
        raise ConfigError("checkpoint.options.durable", durable, "true or false")


def _url_of(given: object) -> str:
    """Return the URL that was given, or that an environment variable of this name holds.

    Raises:
        ConfigError: there is none, it cannot be read, or redis-py is not installed.
    """
    key = "checkpoint.options.url"
    allowed = "an URL such as redis://host:6379/0, or the environment variable that holds one"
    if not isinstance(given, str) or not given.strip():
        raise ConfigError(key, Hidden.of(given), allowed)
    text = given
    if given.isidentifier():
        text = os.environ.get(given, "")
        if not text:
            raise ConfigError(key, given, f"{allowed}: no environment variable is named {given}")
    try:
        from redis import ConnectionPool
    except ImportError as error:
        way_out = "redis-py comes first, as the extra stategraph[redis] brings it"
        raise ConfigError("checkpoint.store", "redis", f"a store that can be used: {way_out}") from error
    try:
        ConnectionPool.from_url(text).make_connection()  # which connects to nothing yet
    except (ValueError, TypeError):  # TypeError: it has an option that there is not
        raise ConfigError(key, Hidden.of(given), f"{allowed}: {unreadable(text, 'redis', 'rediss', 'unix')}") from None
    return text
