"""Connections to a Redis server or to the nodes of a cluster: none waits longer than it may, or asks twice."""

from __future__ import annotations

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
from stategraph.errors import CheckpointCorruptError, CheckpointError, ConfigError
from stategraph.stores._redis.scripts import Script

_parsed: Callable[[str], dict[str, Any]] = parse_url
_OLDEST = (6, 2)
_MOST_HOPS = 8  # from node to node, until one has the partition
_SHORTEST = 0.001  # seconds that an answer may take in any case

Address: TypeAlias = "tuple[str, int] | None"
"""A node of a cluster; None for what the URL names."""


class Asked(NamedTuple):
    """What a server is asked for.

    Attributes:
        partition: Where.
        script: The script; None if `values` are a command as it is sent.
        values: What goes with it.
    """

    partition: int
    script: Script | None
    values: Sequence[Any]


class Nodes:
    """Where the partitions of a store are, as far as that is known.

    Args:
        url: Where the server is.
        prefix: What all keys begin with.
        partitions: How many there are.
        durable: Whether a server is refused that would lose what it acknowledges.
    """

    def __init__(self, url: str, prefix: str, partitions: int, *, durable: bool) -> None:
        self._options = _parsed(url)
        self._kind: Any = self._options.pop("connection_class", redis.Connection)
        self.count, self._durable = partitions, durable
        self.tags = [f"{{{prefix}:{partition}}}".encode() for partition in range(partitions)]
        self.where: dict[int, Address] = {}

    def partition_of(self, run_id: str) -> int:
        """Return the partition of a run, which is that of all that is nested in it."""
        return crc32(given_id(run_id).encode(errors="surrogateescape")) % self.count

    def command(self, run_id: str, name: str, kind: bytes, *values: Any) -> Asked:
        """Return a command on a key of a run: of a kind that ends in a colon, that with its id."""
        partition = self.partition_of(run_id)
        key = self.tags[partition] + kind + (run_id.encode() if kind.endswith(b":") else b"")
        return Asked(partition, None, (name, key, *values))

    def script(self, run_id: str, script: Script, *values: Any) -> Asked:
        """Return a script on a run."""
        return Asked(self.partition_of(run_id), script, (run_id, *values))

    def on_each(self, script: Script, *values: Any) -> list[Asked]:
        """Return a script on each partition."""
        return [Asked(partition, script, values) for partition in range(self.count)]

    def link(self, address: Address, give_up: float) -> Link:
        """Return a connection to a node.

        Raises:
            UnfitServerError: it would lose what it acknowledges.
            redis.RedisError: nobody answers there, or the server refuses.
        """
        left = _left(give_up)
        options = {**self._options, "retry": Retry(NoBackoff(), 0), "protocol": 2}
        options |= {"retry_on_timeout": False, "retry_on_error": [], "health_check_interval": 0}
        options |= {"socket_timeout": left, "decode_responses": False}
        kind = self._kind
        if address is not None:
            options["host"], options["port"] = address
            kind = redis.Connection if options.pop("path", None) else kind
        if "path" not in options:
            options["socket_connect_timeout"] = left
        link = Link(kind(**options))
        try:
            link.connection.connect()
            _check(link, give_up, durable=self._durable)
        except BaseException:
            link.close()
            raise
        return link


class Link:
    """A connection to one node."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def send(self, commands: Sequence[Sequence[Any]], give_up: float) -> None:
        """Send commands, in one piece: the server syncs after each piece that it reads."""
        self._limit(give_up)
        self.connection.send_packed_command([b"".join(self.connection.pack_commands(commands))], check_health=False)

    def read(self, give_up: float) -> Any:
        """Return the next answer, or the error that it is."""
        self._limit(give_up)
        try:
            return self.connection.read_response(disable_decoding=True)
        except redis.ResponseError as error:
            return error
        except redis.TimeoutError:
            raise SilentServerError("the server has not answered in time") from None

    def _limit(self, give_up: float) -> None:
        socket = self.connection._sock
        if socket is None:
            raise redis.ConnectionError("the connection was lost")
        socket.settimeout(_left(give_up))

    def close(self) -> None:
        """Close it."""
        self.connection.disconnect()


def _left(give_up: float) -> float:
    return max(_SHORTEST, min(give_up - time.monotonic(), threading.TIMEOUT_MAX))


class Links:
    """Connections for one thread at a time: to the server, or to each node of a cluster that it has to do with.

    Attributes:
        give_up: When to give up waiting, by the monotonic clock.
        is_usable: Whether nothing is left unanswered.
    """

    def __init__(self, nodes: Nodes, give_up: float) -> None:
        self._nodes, self.give_up = nodes, give_up
        self._links: dict[Address, Link] = {}
        self.is_usable = True

    def close(self) -> None:
        """Close all connections."""
        self.is_usable = False
        for link in list(self._links.values()):
            link.close()
        self._links.clear()

    discard = close

    def ask(self, several: Sequence[Asked], replicas: int = 0) -> list[Any]:
        """Return the answers to all of this, in one round trip to each node that has to do with it.

        An answer may be an error that the server has said.

        Args:
            several: What is asked for.
            replicas: How many replicas must have all that the nodes have written so far.

        Raises:
            TooFewReplicasError: they have not.
            redis.RedisError: not all was answered; what was asked for may have been done.
        """
        self.is_usable = False  # until all is read
        answers: list[Any] = [None] * len(several)
        waiting = list(range(len(several)))
        in_full: set[int] = set()  # scripts that the server does not know
        asking: dict[int, Address] = {}  # what is being moved just now
        for _ in range(_MOST_HOPS):
            by_node: dict[tuple[Address, bool], list[int]] = {}
            for place in waiting:
                address = asking[place] if place in asking else self._nodes.where.get(several[place].partition)
                by_node.setdefault((address, place in asking), []).append(place)
            for (address, is_asking), places in by_node.items():
                commands = [self._command(several[place], place in in_full) for place in places]
                found = self._round_trip(address, commands, replicas, is_asking=is_asking)
                for place, answer in zip(places, found, strict=True):
                    answers[place] = answer
            waiting = [place for place in waiting if self._goes_on(several, place, answers[place], in_full, asking)]
            if not waiting:
                break
        self.is_usable = not any(isinstance(answer, redis.ResponseError) and is_demoted(answer) for answer in answers)
        return answers

    def _goes_on(
        self, several: Sequence[Asked], place: int, answer: Any, in_full: set[int], asking: dict[int, Address]
    ) -> bool:
        """Return whether something is to be asked once more, as the one who was asked has not done it."""
        asking.pop(place, None)
        if isinstance(answer, NoScriptError):
            in_full.add(place)
        elif isinstance(answer, MovedError):
            self._nodes.where[several[place].partition] = answer.host, answer.port
        elif isinstance(answer, AskError):
            asking[place] = answer.host, answer.port
        else:
            return False
        return True

    def _command(self, asked: Asked, in_full: bool) -> Sequence[Any]:
        script = asked.script
        if script is None:
            return asked.values
        start = ("EVAL", script.text) if in_full else ("EVALSHA", script.sha)
        return (*start, 1, self._nodes.tags[asked.partition], *asked.values)

    def _round_trip(
        self, address: Address, commands: list[Sequence[Any]], replicas: int, *, is_asking: bool
    ) -> list[Any]:
        link = self._links.get(address)
        if link is None:
            link = self._links[address] = self._linked(address)
        sent = [one for command in commands for one in (("ASKING",), command)] if is_asking else commands
        if replicas:
            milliseconds = max(1, int(_left(self.give_up) * 900))  # it is to say so before it is given up
            sent = [*sent, ("WAIT", replicas, milliseconds)]
        link.send(sent, self.give_up)
        found = [link.read(self.give_up) for _ in sent]
        if replicas and not (type(count := found.pop()) is int and count >= replicas):
            why = f"{count if type(count) is int else 'none'} of {replicas} replicas have it in time"
            raise TooFewReplicasError(f"{why}; it is written, and may be lost if another server takes over")
        return found[1::2] if is_asking else found

    def _linked(self, address: Address) -> Link:
        try:
            return self._nodes.link(address, self.give_up)
        except redis.ConnectionError:
            if address is not None:  # a node that is gone: the one that the URL names knows who has taken over
                moved = [partition for partition, other in list(self._nodes.where.items()) if other == address]
                for partition in moved:
                    self._nodes.where.pop(partition, None)
            raise


# --------------------------------------------------------------------------- servers that forget


def _check(link: Link, give_up: float, *, durable: bool) -> None:
    """Raise UnfitServerError if a server is too old or, where it matters, would lose what it acknowledges."""
    names = ("appendfsync", "no-appendfsync-on-rewrite")
    commands = [("INFO",), *(("CONFIG", "GET", name) for name in names)] if durable else [("INFO",)]
    link.send(commands, give_up)
    found, *settings = [link.read(give_up) for _ in commands]
    if isinstance(found, redis.ResponseError):
        raise found
    info = dict(line.split(":", 1) for line in found.decode(errors="replace").splitlines() if ":" in line)
    if info.get("loading", "0") != "0":  # until it has read its log, it says that it has none
        raise BusyLoadingError("it is still reading what it has")
    version = info.get("redis_version", "0")
    if tuple(int(part) for part in version.split(".")[:2] if part.isdecimal()) < _OLDEST:
        raise UnfitServerError(f"it is Redis {version}; take 6.2 or newer")
    if durable:
        config = {name: _setting(name, answer) for name, answer in zip(names, settings, strict=True)}
        wrong = _weakness(info, config)
        if wrong is not None:
            raise UnfitServerError(wrong, is_replica=info.get("role") == "slave")


def _setting(name: str, answer: Any) -> str | None:
    """Return a setting; None if the server does not tell."""
    pair = None if isinstance(answer, redis.ResponseError) else answer
    return pair[1].decode() if pair and pair[0].decode() == name else None


def _weakness(info: dict[str, str], config: dict[str, str | None]) -> str | None:
    """Return how a server may lose what it acknowledges, and what to do; None if it does not."""
    policy, fsync = info.get("maxmemory_policy"), config["appendfsync"]
    if info.get("role") == "slave":
        return "it is a replica; name the primary"
    if info.get("maxmemory", "0") != "0" and policy != "noeviction":
        return f"with maxmemory-policy {policy} it throws runs away when memory is short; CONFIG SET it to noeviction"
    if info.get("aof_enabled") != "1":
        return "with appendonly no it forgets runs when it is started again; CONFIG SET appendonly yes"
    if fsync is None:
        return "it does not tell its appendfsync; let this user run CONFIG GET"
    if fsync != "always":
        return f"with appendfsync {fsync} it loses the last second in a crash; CONFIG SET appendfsync always"
    if config["no-appendfsync-on-rewrite"] == "yes":
        return "with no-appendfsync-on-rewrite yes it does not always sync; CONFIG SET it to no"
    return None


def unfit(error: UnfitServerError) -> ConfigError:
    """Return the error for a server that a store is not opened on."""
    allowed = f"a Redis server that keeps what it acknowledges: {error}; or durable=False for who takes that"
    return ConfigError("checkpoint.options.url", "this server", allowed)


# --------------------------------------------------------------------------- errors


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
