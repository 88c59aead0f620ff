"""Values that stores return about runs and checkpoints, besides States."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, cast

import attrs

from stategraph._values import clock
from stategraph._values.progress import Pause
from stategraph._values.provenance import ErrorInfo, Kind, ParentStep, RunStatus
from stategraph.errors import NotSerializableError
from stategraph.state import State, due_ns_of, effects_of, took_ns_of


def as_time(ns: int | None) -> datetime | None:
    """Return a time in nanoseconds since 1970 as a datetime."""
    return None if ns is None else clock.to_datetime(ns)


@attrs.frozen(slots=False)  # a history has many of them, and slots take longer to set
class Summary:
    """A checkpoint without its data: an entry of the history of a run, or its newest checkpoint.

    Attributes:
        run_id: The run.
        graph: The graph that ran it, None if none has.
        step: The number of nodes that the run had completed.
        checkpoint_node: The last completed node.
        timestamp: When it was saved; aware, in UTC.
        status: The status of the run.
        error: The error of a failed run, with the calls that led to it.
        parent: The step that the run was forked from, if any.
        pause: The pause of a paused run.
        cursor: The ``after`` that continues after this summary: of `CheckpointStore.runs` if that returned it,
            otherwise of `CheckpointStore.history`.
        kind: Why the checkpoint was saved: "input" of a turn, "step", "pause", "answer", "update", "failure",
            "cancel", "end" of a turn, "rollback", or "redact".
        revision: Counts the checkpoints of a step, from 0.
        by: The name that the caller gave for this change, if any: of the person who answered, for instance.
        took: The duration of the step, in seconds; None if there was no step, or if it is unknown.
        attempts: The number of attempts at the step.
        owner: The process that saved it, as "host:pid", if known.
        created: When the run began, if the store knows; aware, in UTC.
        labels: The labels of the run.
        due: The time from which on the run can go on by itself, if it is one of `CheckpointStore.runs` and waits for
            a time or has a stored answer.
        effects: The keys of the effects that the step did, with those of its parts and nested graphs.
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
    kind: Kind = Kind.STEP
    revision: int = 0
    by: str | None = None
    took: float | None = None
    attempts: int = 1
    owner: str | None = None
    created: datetime | None = None
    labels: Mapping[str, str] = attrs.field(factory=dict)
    due: datetime | None = None
    effects: tuple[str, ...] = ()

    @property
    def began(self) -> datetime | None:
        """When the step began; None if there was no step, or if it is unknown."""
        return None if self.took is None else self.timestamp - timedelta(seconds=self.took)

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
            kind=state.kind,
            by=state.by,
            took=None if took_ns_of(state) is None else cast(int, took_ns_of(state)) / 1e9,
            attempts=1 if state.facts is None else state.facts.attempts,
            labels=dict(state.labels),
            due=as_time(due_ns_of(state)),
            effects=effects_of(state),
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
        """Compare the data of the second State with those of the first.

        Values are compared in their stored form: 1 differs from 1.0 and from True, and nan equals nan.
        """
        both = first.keys() & second.keys()
        return cls(
            {key: value for key, value in second.items() if key not in both},
            {key: value for key, value in first.items() if key not in both},
            {key: (first[key], second[key]) for key in first if key in both and not _is_same(first[key], second[key])},
        )


@attrs.frozen
class Replayed:
    """A step of a run that has run again; see `StateGraph.replay`.

    Attributes:
        step: Its number.
        node: Its node.
        before: The State after the step, as it is kept.
        after: The same with the data that the step has now; None if it failed.
        difference: How the data after the step have changed; None if it failed.
        error: Why the step failed, or could not run again.
    """

    step: int
    node: str
    before: State
    after: State | None
    difference: Difference | None
    error: Exception | None = None


def _is_same(first: Any, second: Any) -> bool:
    """Return whether two values have the same stored bytes, whatever their ``==`` returns or raises."""
    if first is second:
        return True
    from stategraph.stores._codec.msgpack import encode_value  # imported when used: 20 ms

    try:
        return encode_value(first, "") == encode_value(second, "")
    except NotSerializableError:  # a third-party store may keep values that the built-in stores refuse
        from stategraph._values.sameness import is_same

        return is_same(first, second)


@attrs.frozen
class UnderWay:
    """What is known of the step under way of a run. Items and branches are named as in "map/3".

    Attributes:
        run_id: The run.
        step: The number that the step will have.
        node: The node; empty if it is not known.
        since: When the step began, if known; aware, in UTC.
        done: The finished items and branches, and nested graphs.
        failed: Those that have failed, also those whose errors are collected.
        at_work: Those known to be at work: nested runs, and parts that were retried, or have a status or effects.
        effects: The effects, by place and key as in "pay/charge": "done", or "intended" if the outcome is not known.
        statuses: The newest status of the node and of each part, by place; see `NodeContext.status`.
        messages: How many messages wait to be taken in.
        nested: The steps under way in nested runs that are not complete, by the node or the part.
    """

    run_id: str
    step: int
    node: str = ""
    since: datetime | None = None
    done: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    at_work: tuple[str, ...] = ()
    effects: Mapping[str, str] = attrs.field(factory=dict)
    statuses: Mapping[str, str] = attrs.field(factory=dict)
    messages: int = 0
    nested: Mapping[str, UnderWay] = attrs.field(factory=dict)


@attrs.frozen
class Damage:
    """A defect of a run.

    Attributes:
        run_id: The run; empty for the store as a whole.
        reason: The defect.
    """

    run_id: str
    reason: str


@attrs.frozen
class Verified:
    """The report of `CheckpointStore.verify`.

    Attributes:
        runs: The number of runs by status.
        nested: The number of nested runs; 0 if the store does not read them, as the memory store.
        checkpoints: The number of checkpoints that were read, with those of these nested runs.
        damaged: The damaged runs.
        unreadable: Runs that are intact but cannot be read here: a newer version wrote them, or they need a serializer
            or a package that this process does not have.
    """

    runs: Mapping[str, int] = attrs.field(factory=dict)
    nested: int = 0
    checkpoints: int = 0
    damaged: tuple[Damage, ...] = ()
    unreadable: tuple[Damage, ...] = ()


@attrs.frozen
class Rekeyed:
    """The report of `rekey` of a durable store.

    Attributes:
        runs: The number of runs that were signed and encrypted again, with nested runs and the parts of steps.
        left: The runs that were left as they are, and why.
        plain: The ids of runs of which something was not encrypted before.
    """

    runs: int = 0
    left: tuple[Damage, ...] = ()
    plain: tuple[str, ...] = ()


@attrs.frozen
class Pruned:
    """The report of `CheckpointStore.prune`.

    Attributes:
        runs: The ids of the removed runs, whose ``ttl`` had passed.
        checkpoints: The number of checkpoints removed from other runs.
        damaged: The ids of damaged runs, which were left as they are.
    """

    runs: tuple[str, ...] = ()
    checkpoints: int = 0
    damaged: tuple[str, ...] = ()
