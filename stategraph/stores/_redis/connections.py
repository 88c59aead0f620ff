"""Connections to a Redis server or to the nodes of a cluster, with a limit on every wait, and the meaning of errors."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias
from zlib import crc32

import redis
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.exceptions import (
    AskError,
    AuthorizationError,
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    TryAgainError,
)
from redis.retry import Retry

from stategraph._values.ids import given_id
from stategraph.errors import CheckpointCorruptError, CheckpointError
from stategraph.stores._redis.scripts import TEXTS
from stategraph.stores._servers import TCP_LIMITS

_parsed: Callable[[str], dict[str, Any]] = parse_url
_OLDEST = (6, 2)
_MAX_HOPS = 8  # from node to node of a cluster
_MIN_TIMEOUT = 0.001  # seconds
_TCP_NAMES = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")  # some systems have other ones
_TCP = {
    getattr(socket, name): limit for name, limit in zip(_TCP_NAMES, TCP_LIMITS, strict=True) if hasattr(socket, name)
}

Address: TypeAlias = "tuple[str, int] | None"
"""A node of a cluster; None for the address in the URL."""


class Command(NamedTuple):
    """A command for the server of a partition.

    Attributes:
        partition: The partition.
        words: The name of the command and its arguments.
    """

    partition: int
    words: Sequence[Any]


class Nodes:
    """The partitions of a store, and the nodes that have them, as far as that is known.

    Args:
        url: The address of the server.
        prefix: The beginning of all keys.
        count: The number of partitions.
        durable: Whether to refuse a server that may lose acknowledged data.
    """

    def __init__(self, url: str, prefix: str, count: int, *, durable: bool) -> None:
        self._options = _parsed(url)
        self._kind: Any = self._options.pop("connection_class", redis.Connection)
        self._options.pop("max_connections", None)  # for pools of redis-py
        self._options |= {"retry": Retry(NoBackoff(), 0), "protocol": 2}
        self.count, self.durable = count, durable
        self.tags = [f"{{{prefix}:{partition}}}".encode() for partition in range(count)]
        self.where: dict[int, Address] = {}

    def partition_of(self, run_id: str) -> int:
        """Return the partition of a run, which is also that of its nested runs."""
        return crc32(given_id(run_id).encode(errors="surrogateescape")) % self.count

    def command(self, run_id: str, name: str, kind: bytes, *values: Any) -> Command:
        """Return a command on a key of a run: a kind that ends with a colon is followed by the id."""
        partition = self.partition_of(run_id)
        key = self.tags[partition] + kind + (run_id.encode() if kind.endswith(b":") else b"")
        return Command(partition, (name, key, *values))

    def script(self, run_id: str, script: str, *values: Any) -> Command:
        """Return the call of a script on a run."""
        return self.script_on(self.partition_of(run_id), script, run_id, *values)

    def script_on(self, partition: int, script: str, *values: Any) -> Command:
        """Return the call of a script on a partition."""
        return Command(partition, ("EVALSHA", script, 1, self.tags[partition], *values))

    def on_each(self, script: str, *values: Any) -> list[Command]:
        """Return the calls of a script on all partitions."""
        return [self.script_on(partition, script, *values) for partition in range(self.count)]

    def connected(self, address: Address, timeout: float) -> Any:
        """Return a connection to a node. Raises redis.RedisError if that fails."""
        options, kind = {**self._options, "socket_timeout": timeout}, self._kind
        if address is not None:
            options["host"], options["port"] = address
            kind = redis.Connection if options.pop("path", None) else kind
        if "path" not in options:
            options = {"socket_keepalive": True, "socket_keepalive_options": _TCP, **options}
            options["socket_connect_timeout"] = timeout
        connection = kind(**options)
        connection.connect()
        return connection

    def forget(self, address: Address) -> None:
        """Forget the partitions of a node that is gone. The node in the URL knows their new one."""
        for partition in [partition for partition, other in list(self.where.items()) if other == address]:
            self.where.pop(partition, None)


class _Hop(NamedTuple):
    """An attempt at a command.

    Attributes:
        address: The node.
        commands: The words of the command. ASKING comes first if the node is just taking over the partition.
    """

    address: Address
    commands: Sequence[Sequence[Any]]


class Links:
    """Connections of one thread: to the server, or to several nodes of a cluster.

    Attributes:
        give_up, last: As of `Usable`.
        is_usable: Whether all answers have been read.
    """

    def __init__(self, nodes: Nodes, give_up: float) -> None:
        self._nodes, self.give_up, self.last = nodes, give_up, give_up
        self._connections: dict[Address, Any] = {}
        self.is_usable = True

    def close(self) -> None:
        """Close all connections."""
        self.is_usable = False
        for connection in self._connections.values():
            connection.disconnect()

    def ask(self, commands: Sequence[Command], replicas: int = 0) -> list[Any]:
        """Return the answers to commands, in one round trip to each node. An answer may be an error of the server.

        Args:
            commands: The commands.
            replicas: How many replicas must have everything that the nodes have written so far.

        Raises:
            redis.RedisError: an answer is missing, or there are too few replicas. The commands may be carried out.
        """
        self.is_usable = False  # until all answers are read
        answers: dict[int, Any] = {}
        where = self._nodes.where
        hops = {place: _Hop(where.get(partition), [words]) for place, (partition, words) in enumerate(commands)}
        for _ in range(_MAX_HOPS):
            for address in {hop.address for hop in hops.values()}:
                places = [place for place, hop in hops.items() if hop.address == address]
                found = self._answers(address, [hops[place] for place in places], replicas)
                answers.update(zip(places, found, strict=True))
            following = {place: self._following(hops[place], commands[place], answers[place]) for place in hops}
            hops = {place: hop for place, hop in following.items() if hop is not None}
            if not hops:
                break
        self.is_usable = not any(isinstance(answer, Exception) and _is_read_only(answer) for answer in answers.values())
        return [answers[place] for place in range(len(commands))]

    def _following(self, hop: _Hop, command: Command, answer: Any) -> _Hop | None:
        """Return the next attempt at a command, if this answer says that the node did not carry it out."""
        if isinstance(answer, NoScriptError):
            *asking, (_, script, *values) = hop.commands
            return hop._replace(commands=[*asking, ("EVAL", TEXTS[script], *values)])
        if isinstance(answer, MovedError):  # a kind of AskError
            self._nodes.where[command.partition] = answer.host, answer.port
        if isinstance(answer, AskError):
            asking = [] if isinstance(answer, MovedError) else [("ASKING",)]
            return _Hop((answer.host, answer.port), [*asking, command.words])
        return None

    def _answers(self, address: Address, hops: Sequence[_Hop], replicas: int) -> list[Any]:
        commands = [words for hop in hops for words in hop.commands]
        if replicas:
            milliseconds = max(1, int((self.last - time.monotonic()) * 900))  # less than the client waits
            commands.append(("WAIT", replicas, milliseconds))
        answers = self._round_trip(self._connection(address), commands)
        if replicas and not (type(count := answers.pop()) is int and count >= replicas):
            why = f"{count if type(count) is int else 'none'} of {replicas} replicas have it in time"
            raise redis.RedisError(f"{why}; it is written, and may be lost if another server takes over")
        found = iter(answers)
        return [[next(found) for _ in hop.commands][-1] for hop in hops]

    def _connection(self, address: Address) -> Any:
        if address not in self._connections:
            try:
                self._connections[address] = self._nodes.connected(address, self._left())
            except redis.ConnectionError:
                if address is not None:
                    self._nodes.forget(address)
                raise
            self._check(self._connections[address])
        return self._connections[address]

    def _round_trip(self, connection: Any, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Send commands in one piece, because the server syncs after each piece; return the answers."""
        self._limit(connection)
        connection.send_packed_command([b"".join(connection.pack_commands(commands))], check_health=False)
        answers = []
        for _ in commands:
            self._limit(connection)
            try:
                answers.append(connection.read_response(disable_decoding=True))
            except redis.ResponseError as error:
                answers.append(error)
            self.give_up = self.last  # the server answers; it may still wait for replicas
        return answers

    def _limit(self, connection: Any) -> None:
        if connection._sock is None:
            raise redis.ConnectionError("the connection was lost")
        connection._sock.settimeout(self._left())

    def _left(self) -> float:
        return max(_MIN_TIMEOUT, min(self.give_up - time.monotonic(), threading.TIMEOUT_MAX))

    def _check(self, connection: Any) -> None:
        """Raise UnfitServerError if a server is too old or, where that matters, may lose acknowledged data."""
        commands: list[Sequence[str]] = [("INFO",)]
        if self._nodes.durable:
            commands.append(("CONFIG", "GET", "*appendfsync*"))
        found, *settings = self._round_trip(connection, commands)
        if isinstance(found, redis.ResponseError):
            raise found
        info = dict(line.split(":", 1) for line in found.decode(errors="replace").splitlines() if ":" in line)
        if info.get("loading", "0") != "0":  # until its log is read, it says that it has none
            raise BusyLoadingError("it is still reading its data")
        version = info.get("redis_version", "0")
        if tuple(int(part) for part in version.split(".")[:2] if part.isdecimal()) < _OLDEST:
            raise UnfitServerError(f"it is Redis {version}; use 6.2 or newer")
        if self._nodes.durable:
            texts = [text.decode() for text in settings[0]] if isinstance(settings[0], list) else []
            _check_durable(info, dict(zip(texts[::2], texts[1::2], strict=True)))


def _check_durable(info: dict[str, str], config: dict[str, str]) -> None:
    """Raise UnfitServerError if a server may lose acknowledged data."""
    policy, fsync = info.get("maxmemory_policy"), config.get("appendfsync")
    if info.get("role") == "slave":
        raise ReplicaError("it is a replica; use the address of the primary")
    if info.get("maxmemory", "0") != "0" and policy != "noeviction":
        reason = f"with maxmemory-policy {policy} it evicts runs when memory is short; CONFIG SET it to noeviction"
    elif info.get("aof_enabled") != "1":
        reason = "with appendonly no it forgets runs at a restart; CONFIG SET appendonly yes"
    elif fsync is None:
        reason = "it does not report its appendfsync; allow CONFIG GET to this user"
    elif fsync != "always":
        reason = f"with appendfsync {fsync} it loses the last second in a crash; CONFIG SET appendfsync always"
    elif config.get("no-appendfsync-on-rewrite") == "yes":
        reason = "with no-appendfsync-on-rewrite yes it does not always sync; CONFIG SET it to no"
    else:
        return
    raise UnfitServerError(reason)


# --------------------------------------------------------------------------- errors


class UnfitServerError(redis.RedisError):
    """The server may lose acknowledged data."""


class ReplicaError(UnfitServerError):
    """The server is a replica. It may become the primary, or another server may."""


_PASSING = ("LOADING", "READONLY", "BUSY ", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "NOREPLICAS")
_PASSING_KINDS = (ReadOnlyError, TryAgainError, ClusterDownError, MasterDownError, ReplicaError)
"""A server that starts, has become a replica, runs a long script or has too few replicas; a cluster that moves keys or
is incomplete. redis-py has classes for some of these. Servers before Redis 7 quote the others in errors of scripts.
"""


def is_passing(error: Exception) -> bool:
    """Return whether a retry may succeed. The command may have been carried out already."""
    if isinstance(error, redis.ResponseError | UnfitServerError):
        return isinstance(error, _PASSING_KINDS) or any(word in str(error) for word in _PASSING)
    is_refused = isinstance(error, redis.AuthenticationError | AuthorizationError)
    return isinstance(error, redis.ConnectionError | redis.TimeoutError) and not is_refused


def _is_read_only(error: Exception) -> bool:
    """Return whether the server has become a replica: a new connection may lead to the primary."""
    return isinstance(error, ReadOnlyError) or "READONLY" in str(error)


def explained(error: Exception, run_id: str, store: object, kind: type[CheckpointError]) -> CheckpointError:
    """Translate an error of Redis to an error of stategraph."""
    text = " ".join(str(error).split()) or type(error).__name__
    if "WRONGTYPE" in text:
        return CheckpointCorruptError(run_id, f"the {store} is damaged: {text}; put back a copy of it")
    if isinstance(error, redis.TimeoutError):
        text = "the server has not answered in time"
    if isinstance(error, OutOfMemoryError) or "OOM " in text:
        text = (
            f"its memory is full, and nothing was written; raise maxmemory, or make room with prune and delete ({text})"
        )
    return kind(run_id, f"the {store} failed: {text}")
