"""RowOperations: what a store of rows implements, and nothing else."""

from __future__ import annotations

import builtins
from abc import abstractmethod
from collections.abc import Sequence

from stategraph.stores._rows.records import Head, Row, Unreadable, Write
from stategraph.stores.base import CheckpointStore


class RowOperations(CheckpointStore):
    """Eight operations, and one that few stores need. `stategraph.stores._rows.store.RowStore` makes a store of them.

    They give what is there: whether it is as it was written is for the seals to tell.
    """

    @abstractmethod
    def _apply(self, writes: Sequence[Write]) -> Sequence[bool]:
        """Make writes in one transaction -> which of them were made.

        One is made if its run has the version, and the run around it the incarnation, that it expects; it is durable
        when this returns. If this raises, none is made; CheckpointSaveError is for what would keep any other from being
        made, too.
        """

    def _is_inside(self) -> bool:
        """Whether this thread reads or writes already, further down its stack: then it cannot apply anything."""
        return False

    @abstractmethod
    def _head(self, run_id: str) -> Head | None:
        """-> a run as a whole."""

    @abstractmethod
    def _heads(
        self, status: str | None, graph: str | None, limit: int, before: int | None
    ) -> builtins.list[Head | Unreadable]:
        """-> runs with this status and graph (None: any), with a number below `before`; the highest number first.

        What is within runs is left out. At most `limit` of them, all if it is negative.
        """

    @abstractmethod
    def _ids_within(self, run_id: str) -> builtins.list[str]:
        """-> the ids of all that is within a run, however deep."""

    @abstractmethod
    def _chain(self, run_id: str, step: int | None) -> builtins.list[Row]:
        """-> the row of a step (None: of the newest), and before it those that it builds on, in order, as they were at
        one time; empty if there is none."""

    @abstractmethod
    def _index(self, run_id: str) -> builtins.list[Row]:
        """-> all rows of a run, in order; their bodies may be left out."""

    @abstractmethod
    def _remove(self, run_id: str, version: int | None = None) -> bool:
        """Remove a run with its rows and all that is within it, if it has this version -> whether it was removed.

        None stands for whichever version, and for none: then what is within goes, whether or not there is a run.
        """

    @abstractmethod
    def _remove_damaged(self, run_id: str) -> bool:
        """Remove what stands in the place of a run under an id that none can have, as `_heads` tells of it -> whether
        anything did."""

    def _erase(self) -> None:
        """Overwrite what was removed where it stands besides, such as in a log. Here it does not."""
