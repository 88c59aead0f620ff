"""Process: DBOS in this process, from its launch to its end. DBOS allows one in each process."""

from __future__ import annotations

import os
import sqlite3
import uuid
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import attrs
import dbos._dbos as inside_dbos
from dbos import DBOS, DBOSConfig
from sqlalchemy import make_url
from sqlalchemy.exc import OperationalError

from stategraph._dbos.codec import Codec
from stategraph._dbos.keeper import Keeper
from stategraph._dbos.orders import TICK, TURN, WORKER, apart
from stategraph._dbos.worker import Worker, register
from stategraph._owners.holds import host_name
from stategraph._util.validators import is_count, is_seconds
from stategraph.errors import CheckpointError, ConfigError
from stategraph.graph import StateGraph

DEFAULT_QUEUE = "stategraph"
_PATIENCE = 30.0  # seconds to wait for whoever writes to a file of SQLite, as DBOS does
_RECOVERED = "_dbos_internal_queue"  # where DBOS puts what it recovers, if that was on no queue


def _is_count(queue: Queue, attribute: attrs.Attribute[Any], value: object) -> None:
    if value is not None and not is_count(value, at_least=1):
        raise ConfigError(f"queue.{attribute.name}", value, "a number of turns from 1 on, or None for any")


def _is_rate(queue: Queue, attribute: object, value: Any) -> None:
    is_pair = isinstance(value, tuple) and len(value) == 2 and is_count(value[0], at_least=1) and is_seconds(value[1])
    if value is not None and not is_pair:
        raise ConfigError("queue.rate", value, "how many turns in how many seconds, such as (50, 60.0)")


def _checked(queues: Mapping[str, Queue]) -> Mapping[str, Queue]:
    is_mapping = isinstance(queues, Mapping)
    if not is_mapping or not all(isinstance(queue, Queue) for queue in queues.values()):
        raise ConfigError("queues", queues, 'Queues by their names, such as {"bank": Queue(concurrency=4)}')
    return queues


@attrs.frozen
class Queue:
    """How many turns of a queue are performed.

    Attributes:
        concurrency: So many at the same time, by all workers; None for any number.
        per_worker: So many at the same time, by each worker; None for any number.
        rate: So many begin in so many seconds, as in ``(50, 60.0)``; None for any number.
    """

    concurrency: int | None = attrs.field(default=None, validator=_is_count)
    per_worker: int | None = attrs.field(default=None, validator=_is_count)
    rate: tuple[int, float] | None = attrs.field(default=None, validator=_is_rate)

    def declare(self, name: str, poll: float) -> None:
        """Make it known to DBOS by a name; workers look for turns every so many seconds."""
        limiter: Any = None if self.rate is None else {"limit": self.rate[0], "period": self.rate[1]}
        DBOS.register_queue(
            name,
            global_concurrency=self.concurrency,
            worker_concurrency=self.per_worker,
            limiter=limiter,
            polling_interval_sec=poll,
            on_conflict="always_update",
        )


class Process:
    """DBOS in this process.

    Args:
        name: The name of the application: those of one name, on one database, share the work.
        url: The database of DBOS.
        queues: The queues, by their names.
        poll: Seconds after which workers look again for turns.
        lapse: Seconds without a sign of life after which a worker is dead.
        config: More for DBOS, by the names in its `DBOSConfig`.
    """

    def __init__(
        self, name: str, url: str, queues: Mapping[str, Queue], poll: float, lapse: float, config: Mapping[str, Any]
    ) -> None:
        self.worker_name = f"{host_name()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self.queues = {DEFAULT_QUEUE: Queue(per_worker=8), **_checked(queues)}
        self._name, self._url, self._poll, self._lapse, self._config = name, url, poll, lapse, config
        self._pid = 0
        self._dbos: DBOS | None = None
        self._keeper: Keeper | None = None
        self._worker: Worker | None = None

    @property
    def is_launched(self) -> bool:
        """Whether it is there."""
        return self._dbos is not None

    @property
    def is_forked(self) -> bool:
        """Whether it is that of the process from which this one was forked: connections cannot be shared."""
        return self.is_launched and self._pid != os.getpid()

    def has_queue(self, name: str) -> bool:
        """Return whether there is a queue of this name, declared here or by others."""
        return name in self.queues or (self.is_launched and apart(DBOS.retrieve_queue, name) is not None)

    def launch(
        self, graphs: Mapping[str, StateGraph], max_recoveries: int, register_more: Callable[[], object], *, work: bool
    ) -> None:
        """Connect to the database, and begin to perform turns, unless this process is only to order some."""
        if inside_dbos._dbos_global_instance is not None:
            raise RuntimeError(
                "there is a DBOS in this process already, and it allows no second one: close it first; "
                "or, where this process was forked from one that had it, launch after the fork alone"
            )
        _share(self._url)
        config: dict[str, Any] = {
            "name": self._name,
            "system_database_url": self._url,
            "serializer": Codec(),
            "executor_id": self.worker_name,
            "application_version": f"{self._name}-turns",  # of one version for ever: nothing has to be deterministic
            "log_level": "WARNING",
            **self._config,
        }
        self._pid = os.getpid()
        self._dbos = dbos = DBOS(config=DBOSConfig(**config))  # type: ignore[typeddict-item]
        try:
            self._keeper = keeper = Keeper(self._name, self.worker_name, self._lapse, self._recover)
            self._worker = Worker(self.worker_name, graphs, max_recoveries, keeper.is_dead, self._give_back)
            register(self._worker)
            register_more()
            if not work:
                DBOS.listen_queues([])
            DBOS.launch()
            if work:
                keeper.start(self._worker, dbos.logger)
            for name, queue in self.queues.items():
                queue.declare(name, self._poll)
        except BaseException as error:
            self.close(0.0)
            if isinstance(error, OperationalError):
                reason = " ".join(str(error.orig).split())
                raise CheckpointError("", f"the database of DBOS, which url names, cannot be used: {reason}") from error
            raise

    def close(self, patience: float) -> bool:
        """Perform no more turns, give back those that are not done, and leave DBOS.

        Returns whether all turns have stopped within so many seconds. Those that have not are given back all the same:
        who gets them waits until the node returns that is running.
        """
        if self._dbos is None or self.is_forked:
            return True
        for event in self._dbos.background_thread_stop_events:  # no queue is looked at any more
            event.set()
        has_stopped = True
        try:
            if self._worker is not None:
                has_stopped = self._worker.stop(patience)
                for turn in self._worker.active:
                    self._give_back(turn)
                self._worker.settle(patience)
            if self._keeper is not None:
                self._keeper.stop()
        finally:
            for name in (TURN, TICK, WORKER):  # workflows of the user stay known, for a DBOS to come
                self._dbos._registry.workflow_info_map.pop(name, None)
            DBOS.destroy()
            self._dbos = self._keeper = self._worker = None
        return has_stopped

    def _recover(self, id: str, workers: list[str]) -> None:
        """Have a workflow performed anew, if DBOS has it down as one that one of these workers is at work on.

        DBOS does that by itself for workers that begin again under their names, and has no public name for it.
        """
        if self._dbos is not None:
            self._dbos._sys_db.reenqueue_for_recovery(id, workers, _RECOVERED)

    def _give_back(self, id: str) -> None:
        self._recover(id, [self.worker_name])


def _share(url: str) -> None:
    """Make a file of SQLite one that processes share well, and nobody else reads: DBOS would make a plain one."""
    parts = make_url(url)
    if parts.get_backend_name() != "sqlite" or not parts.database or parts.database == ":memory:":
        return
    path = Path(parts.database)
    path.touch(mode=0o600)
    with closing(sqlite3.connect(path, timeout=_PATIENCE)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
