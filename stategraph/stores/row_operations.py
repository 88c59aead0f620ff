"""RowOperations: what a store of rows implements, and nothing else."""

from __future__ import annotations

import builtins
from abc import abstractmethod
from collections.abc import Sequence

from stategraph.stores.base import CheckpointStore
from stategraph.stores.rows import Head, Row, Write


class RowOperations(CheckpointStore):
    """Seven operations. `stategraph.stores.row_store.RowStore` makes a store of them."""

    @abstractmethod
    def _apply(self, writes: Sequence[Write]) -> Sequence[bool]:
        """Make writes in one transaction -> which of them were made.

        One is made if its run has the version that it expects; it is durable when this returns. If this raises, none is
        made; CheckpointSaveError is for what would keep any other from being made, too.
        """

    def _is_inside(self) -> bool:
        """Whether this thread reads or writes already, further down its stack: then it cannot apply anything."""
        return False

    @abstractmethod
    def _head(self, run_id: str) -> Head | None:
        """-> a run as a whole."""

    @abstractmethod
    def _heads(self, status: str | None, graph: str | None, limit: int, before: int | None) -> builtins.list[Head]:
        """-> runs with this status and graph (None: any), with a number below `before`; the highest number first."""

    @abstractmethod
    def _inner(self, run_id: str) -> builtins.list[tuple[str, Head | None]]:
        """-> the ids of runs between those of `ids_within`, each with the run as a whole; None if that is damaged."""

    @abstractmethod
    def _chain(self, run_id: str, step: int | None) -> builtins.list[Row]:
        """-> the row of a step (None: of the newest), and before it those that it builds on, in order, as they were at
        one time; empty if there is none."""

    @abstractmethod
    def _index(self, run_id: str) -> builtins.list[Row]:
        """-> all rows of a run, in order; their bodies may be left out."""

    @abstractmethod
    def _remove(self, run_id: str, version: int | None = None) -> bool:
        """Remove a run and all of its rows, if it has this version (None: whichever) -> whether it was removed."""


def ids_within(run_id: str) -> tuple[str, str]:
    """-> the bounds between which the ids of runs within a run are, and those of runs that somebody named so."""
    return f"{run_id}/", f"{run_id}0"  # in the order of texts, 0 comes next behind the slash
