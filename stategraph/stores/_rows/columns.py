"""Columns to rows and heads: what a store holds of them, in this order, whatever it writes for their parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from stategraph._values.provenance import ErrorInfo, ParentStep, RunStatus
from stategraph.errors import CheckpointCorruptError
from stategraph.stores._rows.records import Head, Row, checked_head, checked_row
from stategraph.stores.retention import Policy

_STATUS = {status.value: status for status in RunStatus}
# What comes of reading what nobody wrote; RecursionError of a text that is nested without end.
_NOT_READ = (TypeError, ValueError, LookupError, AttributeError, RecursionError, OverflowError)


@attrs.frozen
class Columns:
    """ReadSet rows and heads of a store that writes their parts in its own way: as lists, or as texts.

    Args:
        error, parent, policy: Make them of what the store writes for them.
    """

    error: Callable[[Any], ErrorInfo]
    parent: Callable[[Any], ParentStep]
    policy: Callable[[Any], Policy]

    def row(self, run_id: str, found: Sequence[Any]) -> Row:
        """-> the row in these columns. Raises CheckpointCorruptError if they hold none."""
        try:
            step, base, node, time_ns, status, error, version, encoding, body, seal, pause = found
            info = None if error is None else self.error(error)
            row = Row(step, base, node, time_ns, _STATUS[status], info, version, encoding, body, seal, pause)
        except _NOT_READ as wrong:
            raise no_checkpoint(run_id, wrong) from wrong
        return checked_row(run_id, row)

    def head(self, run_id: str, found: Sequence[Any]) -> Head:
        """-> the head in these columns. Raises CheckpointCorruptError if they hold none."""
        try:
            number, version, step, node, time_ns, status, error, graph, parent, policy, pause, *sealed = found
            incarnation, tip, seal = sealed
            head = Head(
                run_id=run_id,
                number=number,
                version=version,
                step=step,
                node=node,
                time_ns=time_ns,
                status=_STATUS[status],
                error=None if error is None else self.error(error),
                graph=graph,
                parent=None if parent is None else self.parent(parent),
                policy=self.policy(policy),
                pause=pause,
                incarnation=incarnation,
                tip=tip,
                seal=seal,
            )
        except _NOT_READ as wrong:
            raise no_run(run_id, wrong) from wrong
        return checked_head(head)


def no_checkpoint(run_id: str, error: Exception) -> CheckpointCorruptError:
    """-> the error to raise for what cannot be read as a row."""
    return CheckpointCorruptError(run_id, f"what the store holds for it is no checkpoint: {error}")


def no_run(run_id: str, error: Exception) -> CheckpointCorruptError:
    """-> the error to raise for what cannot be read as a head."""
    return CheckpointCorruptError(str(run_id), f"what the store holds for it is no run: {error}")
