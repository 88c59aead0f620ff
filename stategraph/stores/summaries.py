"""What stores report of runs and checkpoints without loading their data."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import attrs

from stategraph._values.provenance import ErrorInfo, ParentStep, Pause, RunStatus
from stategraph._values.sameness import is_same
from stategraph.errors import NotSerializableError
from stategraph.state import State


@attrs.frozen
class Summary:
    """A checkpoint without its data: one of the history of a run, or the newest of a run.

    Attributes:
        run_id: The run.
        graph: The graph that ran it, None if none has.
        step: How many nodes the run had completed.
        checkpoint_node: The last of them.
        timestamp: When; aware, in UTC.
        status: How the run stood.
        error: Why it had failed, if it had.
        parent: The step that the run was forked from, if it was.
        pause: What the run waited for, if it did.
        cursor: Where a list of runs goes on after this one: the ``after`` of `CheckpointStore.runs`.
    """

    run_id: str
    graph: str | None
    step: int
    checkpoint_node: str
    timestamp: datetime
    status: RunStatus
    error: ErrorInfo | None = None
    parent: ParentStep | None = None
    cursor: str | None = None
    pause: Pause | None = None

    @classmethod
    def of(cls, state: State, cursor: str | None = None) -> Summary:
        """Return the summary of a State."""
        return cls(
            state.run_id,
            state.graph,
            state.step,
            state.checkpoint_node,
            state.timestamp,
            state.status,
            state.error,
            state.parent,
            cursor,
            state.pause,
        )


@attrs.frozen
class Difference:
    """How the data of two checkpoints differ.

    Attributes:
        added: Keys that only the second has, with their values.
        removed: Keys that only the first has, with their values.
        changed: Keys that both have, with the first and the second value.
    """

    added: dict[str, Any]
    removed: dict[str, Any]
    changed: dict[str, tuple[Any, Any]]

    @classmethod
    def between(cls, first: State, second: State) -> Difference:
        """Return how the data of the second State differ from those of the first.

        Values are compared as a store tells them apart: 1, 1.0 and True are different, and nan is the same as nan.
        """
        both = first.keys() & second.keys()
        return cls(
            {key: value for key, value in second.items() if key not in both},
            {key: value for key, value in first.items() if key not in both},
            {key: (first[key], second[key]) for key in first if key in both and not _is_same(first[key], second[key])},
        )


def _is_same(one: Any, other: Any) -> bool:
    """Return whether a store would keep two values as the same bytes, whatever `==` of an object says or raises."""
    if one is other:
        return True
    from stategraph.stores._codec.values import encode_value  # imported when used: 20 ms

    try:
        return encode_value(one, "") == encode_value(other, "")
    except NotSerializableError:  # a store of somebody may keep what others do not
        return is_same(one, other)


@attrs.frozen
class Pruned:
    """What `CheckpointStore.prune` removed.

    Attributes:
        runs: The ids of runs whose time was over.
        checkpoints: How many checkpoints of other runs went.
        damaged: The ids of runs that were left as they are, for they are damaged.
    """

    runs: tuple[str, ...] = ()
    checkpoints: int = 0
    damaged: tuple[str, ...] = ()
