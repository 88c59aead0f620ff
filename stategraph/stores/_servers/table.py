"""ServerTable: a table on a server. Nobody waits for an answer for longer than patience lasts."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from queue import Empty
from typing import Generic, TypeVar

from stategraph._owners.leases import LAST_TRY, LeaseOwners
from stategraph.errors import CheckpointError
from stategraph.stores._rows.table import Table, closed_error, used_below
from stategraph.stores._servers.connections import Connections, Usable

_AGAIN = 0.05  # seconds after which a server that was not there is asked once more

_Connection = TypeVar("_Connection", bound=Usable)
_Answer = TypeVar("_Answer")


class ServerTable(Table, Generic[_Connection]):
    """A table on a server that many machines share.

    A question whose answer is lost is asked once more: what it has written tells whether it was answered before.

    Attributes:
        owners: Who owns which run, by leases; None once the table is closed.
        failures: The errors that a server, or its client, raises.
        more_connections: How to have more connections, for the error.
    """

    is_server = True
    closed = False
    owners: LeaseOwners | None
    failures: tuple[type[Exception], ...]
    more_connections: str = ""

    _connections: Connections[_Connection]
    _patience: float

    def close(self) -> None:
        if self.owners is not None:
            self.owners.leave()
        self.closed = True
        self.owners = None
        self._connections.close()

    def renew(self) -> None:
        self._connections.renew()

    @abstractmethod
    def _may_pass(self, error: Exception) -> bool:
        """Return whether it may go well to ask again after an error. What was asked for may be done all the same."""

    @abstractmethod
    def _explained(self, error: Exception, run_id: str, kind: type[CheckpointError]) -> Exception:
        """Return what to raise for an error of the server: of this kind, unless what is there is damaged."""

    def _ask(
        self,
        run_id: str,
        work: Callable[[_Connection], _Answer],
        kind: type[CheckpointError] = CheckpointError,
        patience: float | None = None,
    ) -> _Answer:
        """Return the result of some work with a connection, which is done again where it may go well then.

        Raises:
            CheckpointError: `kind`, unless what is there is damaged.
        """
        if self._connections.is_in_use_here():
            raise used_below(self.store, run_id, kind)
        give_up = time.monotonic() + (self._patience if patience is None else patience)
        while True:
            if self.closed:
                raise closed_error(self.store, run_id)
            try:
                with self._connections.use(give_up) as connection:
                    return work(connection)
            except Empty:
                reason = f"all of its connections are in use, and none was free in time{self.more_connections}"
                raise kind(run_id, f"the {self.store} failed: {reason}") from None
            except self.failures as error:
                if not self._may_pass(error) or time.monotonic() + 2 * _AGAIN > give_up:
                    raise self._explained(error, run_id, kind) from error
            time.sleep(_AGAIN)

    def _ask_surely(
        self,
        run_ids: Sequence[str],
        work: Callable[[_Connection], _Answer],
        kind: type[CheckpointError] = CheckpointError,
    ) -> _Answer:
        """Ask for runs as `_ask`, and no longer than this process surely owns those of them that it owns.

        Raises:
            CheckpointError: others may have taken them.
        """
        owners, run_id = self.owners, run_ids[0] if len(run_ids) == 1 else ""
        if owners is None:
            return self._ask(run_id, work, kind)
        try:
            answer = self._ask(run_id, work, kind, min(self._patience, *map(owners.patience, run_ids)))
            if not owners.is_sure():
                owners.make_sure()
        except CheckpointError as error:
            if min(map(owners.patience, run_ids)) > LAST_TRY:
                raise
            raise owners.in_doubt(error) from error.__cause__
        return answer
