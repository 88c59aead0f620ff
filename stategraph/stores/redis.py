"""The "redis" store: runs in a Redis server, or a cluster, that many machines share.

The page "Redis" describes its keys, and the losses of a failover.
"""

from __future__ import annotations

from typing import Unpack

from stategraph._owners.leases import LEASE
from stategraph._util.validators import is_count, is_name
from stategraph.errors import ConfigError
from stategraph.stores._checks import check_flags
from stategraph.stores._rows.store import RowOptions, RowStore
from stategraph.stores._rows.table import Identify, Table
from stategraph.stores._servers import address_of, check_seconds

_MAX_PARTITIONS = 1024
_MAX_PREFIX = 100  # characters; the prefix is in every key


class RedisStore(RowStore):
    """Keeps runs in Redis. Machines, processes and threads may share it; each run has one owner.

    A save is one script and one round trip. A failover of Redis may lose acknowledged saves and leases: where that
    matters, use "postgres".

    Args:
        url: The address of the server, as redis-py takes it: redis://, rediss:// (TLS) or unix://; or the name of an
            environment variable that holds it. It is never shown.
        prefix: The beginning of all keys.
        partitions: The number of slots of a cluster over which the runs are spread. A store keeps the number that it
            was created with.
        replicas: How many replicas must have a save before it returns.
        durable: Refuse a server that would lose or evict acknowledged data.
        patience: Seconds to wait for the server before giving up.
        lease: Seconds after which a process that does not renew its lease loses its runs.
        options: As for RowStore.

    Raises:
        ConfigError: an option is not allowed, redis-py is not installed, or the server is not durable.
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
        **options: Unpack[RowOptions],
    ) -> None:
        if not (is_name(prefix) and len(prefix) <= _MAX_PREFIX) or "{" in prefix or "}" in prefix:
            raise ConfigError("checkpoint.options.prefix", prefix, f"1 to {_MAX_PREFIX} characters without braces")
        if not is_count(partitions, at_least=1) or partitions > _MAX_PARTITIONS:
            raise ConfigError("checkpoint.options.partitions", partitions, f"1 to {_MAX_PARTITIONS}")
        if not is_count(replicas, at_least=0):
            raise ConfigError("checkpoint.options.replicas", replicas, "a non-negative number of replicas")
        check_seconds(patience=patience, lease=lease)
        check_flags(durable=durable)
        self._prefix = prefix
        address = address_of("redis", "url", url, ("redis", "rediss", "unix"), _parse)

        def open_table(identify: Identify) -> Table:
            from stategraph.stores._redis.connections import Nodes  # imported when used: redis-py takes 100 ms
            from stategraph.stores._redis.table import RedisTable

            nodes = Nodes(address, prefix, partitions, durable=durable)
            return RedisTable(str(self), identify, nodes, replicas=replicas, patience=patience, lease=lease)

        super().__init__(open_table, **options)

    def __str__(self) -> str:
        return f"redis store with prefix {self._prefix}"


def _parse(url: str) -> None:
    from redis import ConnectionPool

    ConnectionPool.from_url(url).make_connection()  # checks the options, and connects to nothing
