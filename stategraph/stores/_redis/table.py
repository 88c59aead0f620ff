"""The records and leases of a "redis" store."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from heapq import merge
from itertools import chain, count, islice, product
from math import inf
from time import monotonic
from typing import Any

import attrs
import redis

from stategraph._owners.base import Fence, NewEntriesError
from stategraph._owners.leases import Claim, Known, Lease, LeaseOwners, Worker, has_ended
from stategraph._values import clock
from stategraph._values.ids import given_id, nested_range
from stategraph._values.provenance import Kind, RunStatus
from stategraph.errors import (
    CheckpointCorruptError,
    CheckpointError,
    CheckpointSaveError,
    ConfigError,
    FormatError,
)
from stategraph.stores._checks import RunFilter
from stategraph.stores._redis import scripts
from stategraph.stores._redis.connections import Command, Links, Nodes, UnfitServerError, explained, is_passing
from stategraph.stores._rows.records import (
    MAX_STEP,
    Appended,
    CheckpointRecord,
    EntryRecord,
    Removal,
    RunRecord,
    Unreadable,
    Write,
    WriteBatch,
    no_checkpoint,
    no_run,
    pack_entry,
    pack_row,
    pack_run,
    required_inbox,
    unpack_entry,
    unpack_row,
    unpack_run,
)
from stategraph.stores._rows.table import Identify
from stategraph.stores._servers import SHORT_PATIENCE, Connections, ServerTable

_CONNECTIONS = 8  # how many threads use one at the same time
_LAYOUT = 2  # the version of the keys: 1 had no entries
_WRITTEN, _WAS_WRITTEN = 1, 2  # answers to a save
_PAGE = 500  # runs per request and partition
_MAX_VALUE = 512 * 1024 * 1024  # bytes that a server accepts by default
_LOOK_AGAIN = 1.0  # seconds between two searches for runs of dead processes
_SPARE = 4  # runs beyond the share of a partition, because runs are not spread evenly


class RedisTable(ServerTable[Links]):
    """Records and leases in a Redis database.

    The record of a process is in one partition, so one clock decides when its leases expire.

    Args:
        store: The name of the store, for error messages.
        identify: Called with the id of the store.
        nodes: The partitions.
        replicas: How many replicas must have each write.
        patience: Seconds to wait for the server before giving up.
        lease: Seconds after which a process that does not renew its lease loses its runs.

    Raises:
        ConfigError: the server is not durable, or the store has another number of partitions.
        FormatError: the keys are of a newer version.
        CheckpointError: the server does not answer.
    """

    failures = (redis.RedisError, UnicodeError)

    def __init__(
        self, store: str, identify: Identify, nodes: Nodes, *, replicas: int, patience: float, lease: float
    ) -> None:
        self.store, self._nodes = store, nodes
        self._replicas, self._patience = replicas, patience
        self._is_open = False
        self._connections = Connections(partial(Links, nodes), _CONNECTIONS)
        self.owners = LeaseOwners(self, lease, patience, self)
        self._found: dict[str, _Found] = {}  # by graph
        try:
            identify(self._store_id())
        except BaseException:
            self.close()
            raise
        self._is_open = True

    def _store_id(self) -> bytes:
        """Return the id of the store; create it for a new store."""
        key, count = self._nodes.tags[0] + b":store", self._nodes.count
        new = {"partitions": count, "layout": _LAYOUT, "id": os.urandom(16)}
        commands = [*(("HSETNX", key, *item) for item in new.items()), ("HMGET", key, *new)]
        *_, (partitions, layout, store_id) = self._query("", *(Command(0, words) for words in commands))
        if int(layout) > _LAYOUT:
            reads = f"this version of stategraph reads up to {_LAYOUT}; update it"
            raise FormatError("", f"the {self.store} has keys of version {int(layout)} and {reads}")
        if int(partitions) != count:
            allowed = f"{int(partitions)}: the {self.store} was made with so many"
            raise ConfigError("checkpoint.options.partitions", count, allowed)
        if int(layout) < _LAYOUT:  # an older version must not write beside this one
            self._change("", self._nodes.script_on(0, scripts.RAISE_LAYOUT, _LAYOUT))
        return bytes(store_id)

    # ------------------------------------------------------------------ requests

    def _is_passing(self, error: Exception) -> bool:  # a store does not wait for a replica to open
        return is_passing(error) and (self._is_open or not isinstance(error, UnfitServerError))

    def _explained(self, error: Exception, run_id: str, kind: type[CheckpointError]) -> CheckpointError | ConfigError:
        if isinstance(error, UnfitServerError) and not self._is_open:
            allowed = f"a Redis server that keeps acknowledged data: {error}; or durable=False to accept the loss"
            return ConfigError("checkpoint.options.url", "this server", allowed)
        return explained(error, run_id, self.store, kind)

    def _query(self, run_id: str, *commands: Command, patience: float = inf, replicas: int = 0) -> list[Any]:
        """Return the answers to commands, once so many replicas have what they write."""
        return self._ask(run_id, lambda links: _checked(links.ask(commands, replicas)), patience=patience)

    def _change(self, run_id: str, command: Command) -> Any:
        """Return the answer to a command that writes and may be repeated, once enough replicas have it."""
        return self._query(run_id, command, replicas=self._replicas)[0]

    # ------------------------------------------------------------------ writing

    def apply(self, writes: Sequence[Write]) -> Sequence[bool | Exception]:
        """Make writes in one round trip, as `Table.apply`: each one atomically, whether or not the others succeed."""
        outcomes: list[bool | Exception] = [False] * len(writes)
        commands: dict[int, Command] = {}
        for place, write in enumerate(writes):
            try:
                if not write.is_lost:
                    commands[place] = _script_of(write, self._nodes, self.store)
            except CheckpointSaveError as error:
                outcomes[place] = error
        attempts = count()

        def send(links: Links) -> None:
            was_sent = next(attempts) > 0
            answers = links.ask([*commands.values()], self._replicas)
            if any(isinstance(answer, Exception) and is_passing(answer) for answer in answers):
                _checked(answers)
            for place, answer in zip(commands, answers, strict=True):
                outcomes[place] = self._outcome(writes[place], answer, was_sent)

        if commands:
            self._ask(writes[0].run_id if len(writes) == 1 else "", send, CheckpointSaveError)
        return outcomes

    def _outcome(self, write: Write, answer: Any, was_sent: bool) -> bool | Exception:
        if isinstance(answer, Exception):
            error = explained(answer, "", self.store, CheckpointSaveError)
            error.__cause__ = answer
            return error
        code, is_cancelled, inbox = answer
        ownership = write.ownership
        if is_cancelled and ownership is not None:
            ownership.is_cancelled = True
        if ownership is not None and ownership.inbox is not None and write.run_id == ownership.run_id:
            required, ownership.inbox = required_inbox(write), max(inbox, ownership.inbox)
            if code == 0 and required not in (None, ownership.inbox):
                return NewEntriesError(write.run_id)
        # If the answer to the first request was lost, it may have made the write.
        is_written = code == _WRITTEN or (code == _WAS_WRITTEN and was_sent)
        return is_written and not write.is_lost

    def remove_damaged(self, run_id: str) -> bool:
        try:
            key = run_id.encode(errors="surrogateescape")
        except UnicodeEncodeError:  # `runs` never reports such an id
            return False
        answers = self._query(run_id, *self._nodes.on_each(scripts.REMOVE, key, "", "", 0, 0, ""))
        return any(code == _WRITTEN for code, *_ in answers)

    # ------------------------------------------------------------------ reading

    def run(self, run_id: str) -> RunRecord | None:
        ((number, record),) = self._query(run_id, self._record(run_id))
        return None if number is None and record is None else _run_of(run_id, number, record)

    def _record(self, run_id: str) -> Command:
        return self._nodes.command(run_id, "HMGET", b":run:", "n", "d")

    def runs(self, which: RunFilter, limit: int, before: int | None) -> list[RunRecord | Unreadable]:
        late = None if which.overdue is None else dict(self._due("", limit=-1, until_ms=which.now_ns // 1_000_000))
        if which.overdue and late is not None:
            found: Iterable[RunRecord | Unreadable] = map(partial(_with_due, late), self._among(sorted(late), before))
        elif which.only_ids is None:
            found = self._listed(which, limit, before)
        else:
            found = self._among(sorted(which.only_ids), before)
        if which.overdue is False and late is not None:
            found = (run for run in found if run.run_id not in late)
        return list(islice(found, None if limit < 0 else limit))

    def due(self, graph: str, limit: int) -> list[tuple[int, str]]:
        return sorted((due_ns, run_id) for run_id, due_ns in self._due(f"={graph}", limit, "+inf"))[:limit]

    def _due(self, graph: str, limit: int, until_ms: int | str) -> Iterator[tuple[str, int]]:
        """Yield the runs that are due first, and when, of each partition; all until a time if `limit` is negative."""
        most = 2**53 if limit < 0 else limit
        for found in self._query("", *self._nodes.on_each(scripts.DUE, graph, most, until_ms)):
            for key, ms in zip(found[::2], found[1::2], strict=True):
                yield key.decode(errors="surrogateescape"), int(float(ms)) * 1_000_000

    def _among(self, run_ids: Sequence[str], before: int | None) -> Iterable[RunRecord | Unreadable]:
        """Return the runs with these ids, highest number first."""
        records = self._query("", *map(self._record, run_ids))
        found = [
            _run_or_unreadable(run_id, *record)
            for run_id, record in zip(run_ids, records, strict=True)
            if record != [None, None]
        ]
        return sorted((run for run in found if before is None or _number(run) < before), key=_number, reverse=True)

    def _listed(self, which: RunFilter, limit: int, before: int | None) -> Iterable[RunRecord | Unreadable]:
        """Return the runs of all partitions, highest number first."""
        wanted = [None if value is None else f"={value}" for value in (which.status, which.graph, which.parent)]
        values = [*(value or "" for value in wanted), which.prefix or ""]
        indexes = [f":status:{which.status}" if which.status else ":runs"]
        if which.parent is not None:
            indexes = [":runs", ":within"]
        sources = list(product(range(self._nodes.count), indexes))
        size = _PAGE if limit < 0 else min(_PAGE, limit // len(sources) + _SPARE)

        def page(partition: int, index: str, start: str | bytes) -> Command:
            return self._nodes.script_on(partition, scripts.LIST, index, start, size, *values)

        start = "+inf" if before is None else f"({before}"
        first = self._query("", *(page(*source, start) for source in sources))
        pages = [self._from(answer, partial(page, *source)) for answer, source in zip(first, sources, strict=True)]
        return merge(*pages, key=_number, reverse=True)

    def _from(self, answer: list[Any], page: Callable[[bytes], Command]) -> Iterator[RunRecord | Unreadable]:
        """Yield the runs of a page, and of the pages after it."""
        while True:
            start, *found = answer
            for key, number, record in zip(found[::3], found[1::3], found[2::3], strict=True):
                yield _run_or_unreadable(key.decode(errors="surrogateescape"), number, record)
            if not start:
                return
            (answer,) = self._query("", page(start))

    def change_token(self) -> str:
        commands = (Command(partition, ("GET", tag + b":changes")) for partition, tag in enumerate(self._nodes.tags))
        return "-".join((count or b"0").decode() for count in self._query("", *commands))

    def nested_ids(self, *run_ids: str) -> list[str]:
        between = ((run_id, *map("({}".format, nested_range(run_id))) for run_id in sorted(run_ids))
        nested = [self._nodes.command(run_id, "ZRANGEBYLEX", b":nested", *ends) for run_id, *ends in between]
        found = chain.from_iterable(self._query(run_ids[0], *nested))
        return [nested_id.decode(errors="surrogateescape") for nested_id in found]

    def short(self, run_ids: Sequence[str]) -> dict[str, list[CheckpointRecord]]:
        chains = [self._nodes.script(run_id, scripts.CHAIN, MAX_STEP) for run_id in run_ids]
        counts = [self._nodes.command(run_id, "ZCARD", b":rows:") for run_id in run_ids]
        entries = [self._nodes.command(run_id, "EXISTS", b":entry:") for run_id in run_ids]
        answers = iter(self._query("", *chains, *counts, *entries))
        found = zip(*([*islice(answers, len(run_ids))] for _ in range(3)), strict=True)
        return {
            run_id: [_row_of(run_id, *each) for each in zip(members, payloads, strict=True)]
            for run_id, ((members, payloads), count, has_entries) in zip(run_ids, found, strict=True)
            if count == len(members) and not has_entries
        }

    def chain(self, run_id: str, sequence: int | None) -> list[CheckpointRecord]:
        last = MAX_STEP if sequence is None else sequence
        ((members, payloads),) = self._query(run_id, self._nodes.script(run_id, scripts.CHAIN, last))
        rows = [_row_of(run_id, member, payload) for member, payload in zip(members, payloads, strict=True)]
        return rows if rows and sequence in (None, rows[-1].sequence) else []

    def index(self, run_id: str, first: int = 0, last: int = MAX_STEP) -> list[CheckpointRecord]:
        (members,) = self._query(run_id, self._nodes.command(run_id, "ZRANGEBYSCORE", b":rows:", first, last))
        rows = (_row_of(run_id, member, b"") for member in members)
        return [row for row in rows if first <= row.sequence <= last]

    def entries(self, run_id: str, first: int, last: int, after: int = 0) -> list[EntryRecord]:
        (found,) = self._query(run_id, self._nodes.command(run_id, "HGETALL", b":entry:"))
        kept = (unpack_entry(run_id, value) for field, value in _pairs(found) if field[:1].isdigit())
        chosen = (entry for entry in kept if first <= entry.step <= last and entry.seq > after)
        return sorted(chosen, key=lambda entry: entry[:2])

    def entry_named(self, run_id: str, kind: str, name: str) -> EntryRecord | None:
        entry = self._nodes.command(run_id, "HGET", b":entry:", f"={kind} {name}")
        (field,) = self._query(run_id, entry)
        if field is None:
            return None
        (value,) = self._query(run_id, self._nodes.command(run_id, "HGET", b":entry:", field))
        return None if value is None else unpack_entry(run_id, value)

    def inbox(self, run_id: str) -> int:
        ((count,),) = self._query(run_id, self._nodes.command(run_id, "HMGET", b":run:", "m"))
        return int(count or 0)

    def now_ns(self) -> int:
        ((seconds, microseconds),) = self._query("", Command(0, ("TIME",)))
        return (int(seconds) * 1_000_000 + int(microseconds)) * 1000

    # ------------------------------------------------------------------ leases

    def fence(self, run_id: str) -> Fence:
        worker, fence, cancelled = self._of_lease(run_id, "worker", "fence", "cancelled")
        return (int(fence) if worker and fence else 0), cancelled is not None

    def set_cancelled(self, run_id: str, is_cancelled: bool, by: str | None = None) -> None:
        cancel = self._nodes.script(run_id, scripts.CANCEL, "" if by is None else f"={by}")
        self._change(run_id, cancel if is_cancelled else self._nodes.script(run_id, scripts.TAKE_UP))

    def cancelled_by(self, run_id: str) -> str | None:
        (by,) = self._of_lease(run_id, "by")
        return None if by is None else by.decode()

    def acquire(self, run_id: str, worker: Worker, fence: int, instead: int) -> bool | None:
        """Lease a run, as `Leases.acquire`."""
        found = self._change(run_id, self._nodes.script(run_id, scripts.ACQUIRE, worker.id, fence, instead))
        return None if found is None else bool(found)

    def lease(self, run_id: str) -> Lease | None:
        """Return the lease of a run."""
        worker_id, fence, since = self._of_lease(run_id, "worker", "fence", "since")
        if worker_id is None or fence is None:
            return None
        worker, until_us, is_running = self._workers(worker_id)[worker_id]
        until = None if until_us is None else clock.to_datetime(until_us * 1000)
        return Lease(int(fence), worker, clock.to_datetime(int(since or 0) * 1000), until, is_running)

    def leases(self) -> list[tuple[str, int, Worker]]:
        """Return the leases that have not expired, as `Leases.leases`."""
        return [(run_id.decode(), fence, worker) for run_id, fence, worker, is_running in self._leased() if is_running]

    def _leased(self) -> list[tuple[bytes, int, Worker, bool]]:
        found = [lease for leases in self._query("", *self._nodes.on_each(scripts.LEASES)) for lease in leases]
        workers = self._workers(*{worker_id for _, _, worker_id in found})
        return [(run_id, int(fence), workers[by][0], workers[by][2]) for run_id, fence, by in found]

    def claim(self, graph: str, worker: Worker, fence: int, known: Known) -> Claim:
        """Lease the oldest abandoned run, as `Claims.claim`.

        The partitions are searched now and then, and when there seem to be no more runs. Otherwise a claim is one
        script, which takes the oldest run of a partition, so that claims neither wait for each other nor fail.
        """
        found, has_looked = self._found.get(graph), False
        while True:
            if found is None or (not has_looked and not found.is_good):
                self._found[graph] = found = self._look(graph, known)
                has_looked = True
            oldest = found.oldest.copy()
            if not oldest:
                return Claim(found.left if has_looked else known)
            partition = min(oldest, key=lambda each: _number_of(oldest[each]) or 0)
            values = worker.id, fence, self._known(partition, known), found.dead, oldest[partition]
            start, _, claimed = self._change("", self._nodes.script_on(partition, scripts.CLAIM, graph, *values))
            found.move(partition, start)
            if claimed:
                number, version, run_id, is_cancelled = claimed
                left = found.left if has_looked else known
                return Claim(left, _number_of(number), int(version), run_id.decode(), bool(is_cancelled))

    def _look(self, graph: str, known: Known) -> _Found:
        dead = {each.id: 1 for _, _, each, is_running in self._leased() if not is_running or has_ended(each)}
        found = _Found(json.dumps(dead))
        values = [(graph, "", "", self._known(each, known), found.dead, "-inf") for each in range(self._nodes.count)]
        looks = (self._nodes.script_on(each, scripts.CLAIM, *given) for each, given in enumerate(values))
        for partition, (start, left, _) in enumerate(self._query("", *looks)):
            found.move(partition, start)
            found.left.update(map(int, left))
        return found

    def _known(self, partition: int, known: Known) -> str:
        count = self._nodes.count
        return json.dumps({number: str(known[number] or "") for number in known if number % count == partition})

    def _workers(self, *worker_ids: bytes) -> dict[bytes, tuple[Worker, int | None, bool]]:
        """Return processes, the times in microseconds until which they count as alive, and whether they do now."""
        names = [worker_id.decode() for worker_id in worker_ids]
        about = [self._nodes.command(name, "HMGET", b":worker:", "host", "pid", "place", "until") for name in names]
        clocks = (Command(each.partition, ("TIME",)) for each in about)
        answers = self._query("", *about, *clocks) if about else []
        found: dict[bytes, tuple[Worker, int | None, bool]] = {}
        for name, (host, pid, place, until), now in zip(names, answers, answers[len(names) :], strict=False):
            worker = Worker(name, (host or b"?").decode(), int(pid or 0), (place or b"").decode())
            until_us = None if until is None else int(until)
            is_running = until_us is not None and until_us > int(now[0]) * 1_000_000 + int(now[1])
            found[name.encode()] = worker, until_us, is_running
        return found

    def free(self, run_id: str, fence: int) -> None:
        """Release a run, if this is still its fence. Without an id, release the run of an interrupted claim."""
        claimed = (key.decode() for key, leased, *_ in self._leased() if leased == fence) if not run_id else (run_id,)
        for each in claimed:
            self._query(each, self._nodes.script(each, scripts.FREE, fence), patience=SHORT_PATIENCE)

    def renew_worker(self, worker: Worker, seconds: float, patience: float) -> None:
        """Record that a process stays alive for so many seconds, as `Leases.renew_worker`."""
        about = worker.host, worker.pid, worker.place, round(seconds * 1_000_000)
        renew = self._nodes.script(worker.id, scripts.RENEW, *about)
        self._query("", renew, patience=patience)

    def end_worker(self, worker: Worker) -> None:
        """Record that a process has ended, which frees its runs."""
        self._query("", self._nodes.command(worker.id, "DEL", b":worker:"), patience=SHORT_PATIENCE)

    def _of_lease(self, run_id: str, *names: str) -> list[bytes | None]:
        return list(self._query(run_id, self._nodes.command(run_id, "HMGET", b":lease:", *names))[0])


@attrs.define
class _Found:
    """What a search for abandoned runs of a graph found. Claims that use it together lose nothing: it is only a hint.

    Attributes:
        dead: The dead processes that still have leases, as JSON.
        oldest: The number from which on a partition may have such runs.
        left: The known runs that are active.
    """

    dead: str
    oldest: dict[int, bytes] = attrs.field(factory=dict)
    left: set[int] = attrs.field(factory=set)
    _at: float = attrs.field(factory=monotonic)

    @property
    def is_good(self) -> bool:
        """Whether it is recent, and there may be more runs."""
        return bool(self.oldest) and monotonic() < self._at + _LOOK_AGAIN

    def move(self, partition: int, start: bytes) -> None:
        """Record where the next run of a partition may be; b"" if it has none."""
        if start:
            self.oldest[partition] = start
        else:
            self.oldest.pop(partition, None)


def _with_due(due: Mapping[str, int], run: RunRecord | Unreadable) -> RunRecord | Unreadable:
    """Return a run with the time at which it is due: its record does not know of answers."""
    return run._replace(due_ns=due.get(run.run_id)) if isinstance(run, RunRecord) else run


def _number(run: RunRecord | Unreadable) -> int:
    return run.number or 0


def _checked(answers: list[Any]) -> list[Any]:
    """Return answers. Raises the first one that is an error."""
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return answers


# --------------------------------------------------------------------------- records


def _script_of(write: Write, nodes: Nodes, store: object) -> Command:
    """Return the script that makes a write.

    Raises:
        CheckpointSaveError: Redis cannot hold it.
    """
    run_id, ownership = write.run_id, write.ownership
    # 0 compares nothing, 1 compares the fence, and 2 requires that the run has no owner.
    guard = (0, 0) if ownership is None else (1, ownership.fence) if ownership.fence else (2, 0)
    if isinstance(write, Removal):
        version = _or_empty(write.version)
        return nodes.script(run_id, scripts.REMOVE, version, given_id(run_id), *guard, _or_empty(required_inbox(write)))
    if isinstance(write, Appended):
        inbox, due_ms = _or_empty(write.inbox), _ms(write.due_ns)
        takes = write.version or ("" if write.may_be_complete else "open")
        values = write.incarnation, inbox, write.cut_journal, takes, due_ms, *_entry_values(write.put)
        return nodes.script(run_id, scripts.APPEND, given_id(run_id), *guard, *values)
    try:
        return nodes.script(run_id, scripts.SAVE, given_id(run_id), *guard, *_values(write, nodes))
    except (TypeError, ValueError, CheckpointCorruptError) as error:
        cause = ValueError(str(error))
        cause.__cause__ = error
        raise CheckpointSaveError(run_id, f"the {store} cannot hold it: {error}") from cause


def _values(batch: WriteBatch, nodes: Nodes) -> list[Any]:
    run, old = batch.run, batch.old
    values: list[Any] = [
        *(batch.outer or b"", b"" if old is None else _version_of(old), _version_of(run)),
        *(pack_run(run), run.incarnation, run.status._value_, run.graph or "", run.parent.run_id if run.parent else ""),
        *(nodes.count, nodes.partition_of(run.run_id), batch.cut_below),
        _or_empty(batch.cut_above),
        "parts" if batch.cut_parts else "",
        *(batch.cut_journal, batch.taken, _due_after(batch), len(batch.entries)),
        *(_or_empty(old and required_inbox(batch)), *(batch.cut_nested or ("", "")), *_entry_values(batch.entries)),
    ]
    for row in batch.put:
        if len(row.payload) > _MAX_VALUE:
            raise ValueError(f"its data are {len(row.payload)} bytes; the limit of Redis is {_MAX_VALUE}")
        about = pack_row(row._replace(payload=b""))
        values += row.sequence, b"%d %d %d %d %b" % (row.sequence, row.base, row.step, row.revision, about), row.payload
    return values


def _due_after(batch: WriteBatch) -> int | str:
    """Return the time at which a run is due after a change; "=" if it stays: an answer may have made it due."""
    run, old = batch.run, batch.old
    if old is None or batch.taken or old.due_ns != run.due_ns:
        return _ms(run.due_ns)
    is_changed_while_paused = run.kind is Kind.UPDATE and run.status is RunStatus.PAUSED
    return "=" if run.time_ns == old.time_ns or is_changed_while_paused else _ms(run.due_ns)


def _or_empty(number: int | None) -> int | str:
    """Return a number as an argument of a script, which gets "" for None."""
    return "" if number is None else number


def _ms(due_ns: int | None) -> int | str:
    """Return a time in milliseconds, rounded down: a sorted set keeps no more digits."""
    return _or_empty(due_ns and due_ns // 1_000_000)


def _entry_values(entries: Sequence[EntryRecord]) -> Iterator[Any]:
    for entry in entries:
        is_named = entry.step == 0 and entry.name
        mark = b" c" if entry.kind == "chunk" else b" " if is_named else b""
        yield b"%d %d%b" % (entry.step, entry.seq, mark)
        yield f"={entry.kind} {entry.name}" if is_named else ""
        yield pack_entry(entry)


def _pairs(found: Any) -> Iterable[tuple[bytes, bytes]]:
    """Return the items of a hash, which one version of the protocol answers as a list."""
    return found.items() if isinstance(found, dict) else zip(found[::2], found[1::2], strict=True)


def _version_of(run: RunRecord) -> bytes:
    """Return the version and the seal of a run: after a failover, another run may have the same version."""
    return b"%d %b" % (run.version, run.seal)


def _row_of(run_id: str, member: bytes, payload: bytes | None) -> CheckpointRecord:
    """Return a row of a run. Raises CheckpointCorruptError if it is damaged, or its payload is missing."""
    *numbers, about = member.split(b" ", 4)
    row = unpack_row(run_id, about)
    if numbers != [b"%d" % number for number in (row.sequence, row.base, row.step, row.revision)]:
        raise no_checkpoint(run_id, ValueError(f"it is kept as {numbers}"))
    if payload is None:
        raise CheckpointCorruptError(run_id, f"the data of its checkpoint number {row.sequence} are missing")
    return row._replace(payload=payload)


def _run_or_unreadable(run_id: str, number: bytes | None, record: bytes | None) -> RunRecord | Unreadable:
    """Return the run with these values, or the reason why it cannot be read."""
    try:
        return _run_of(run_id, number, record)
    except CheckpointCorruptError as error:
        return Unreadable(run_id, _number_of(number), error)


def _run_of(run_id: str, number: bytes | None, record: bytes | None) -> RunRecord:
    """Return the run with these values. Raises CheckpointCorruptError if they are damaged."""
    if record is None:
        raise no_run(run_id, "its record is missing")
    position = _number_of(number)
    if position is None:
        raise no_run(run_id, f"its number is {number!r}")
    return unpack_run(run_id, record)._replace(number=position)


def _number_of(text: bytes | None) -> int | None:
    try:
        number = int(min(float(text or b""), 2.0**53 - 1))  # of an infinite score, which others may have set
    except (ValueError, OverflowError):
        return None
    return number if number > 0 else None
