"""Turns: what an engine that hands out work has to know of stategraph, and all that it has to call.

A turn is one run taken on until it completes, pauses, fails or is cancelled. An `Order` says which, as plain data that
any queue carries; `perform` does it, and may be called as often as the queue delivers the order. The store of the
graph is the only journal: what it has is not done again. See docs/many-workers.md.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import attrs

from stategraph._drivers.options import TurnCall, signal_of
from stategraph._drivers.sync import drive
from stategraph._engine.calling import take_turn, turn_of
from stategraph._text.shown import shorten
from stategraph._util.validators import is_count
from stategraph._values.frozen import freeze_items
from stategraph._values.ids import check_given_id
from stategraph._values.progress import Pause
from stategraph._values.provenance import RunStatus, checked_labels
from stategraph.errors import (
    CheckpointNotFoundError,
    ConfigError,
    ExecutionError,
    FormatError,
    MaxIterationsError,
    RunCancelledError,
    UnknownNameError,
)
from stategraph.graph import StateGraph
from stategraph.state import State

__all__ = ["Graphs", "Order", "forget", "from_bytes", "next_number", "perform", "to_bytes"]

Graphs: TypeAlias = Mapping[str, StateGraph] | Iterable[StateGraph]
"""The graphs that a worker has: by their names, or one after the other."""


def _name_of(graph: object) -> Any:
    return graph.config.name if isinstance(graph, StateGraph) else graph


def _id_of(pause: object) -> Any:
    return pause.id if isinstance(pause, Pause) else pause


def _renamed(migrate: Mapping[str, str]) -> dict[str, str]:
    return dict(migrate)


def _numbered(order: Order, attribute: object, value: object) -> None:
    if not is_count(value, at_least=1):
        raise ConfigError("number", value, "which turn of the run it is, from 1 on")


def _begins(order: Order, attribute: object, value: State | None) -> None:
    if value is not None and value.run_id != order.run_id:
        raise ConfigError(
            "state", value.run_id, f"a State of run {order.run_id!r}: State(..., run_id={order.run_id!r})"
        )


@attrs.frozen
class Order:
    """What is to be done with a run: one turn of it, as plain data.

    Attributes:
        graph: The name of the graph; it may be given as the graph itself.
        run_id: The run.
        number: Which turn of the run it is, from 1 on: each number is taken up once, however often it is delivered,
            and none after a later one. `next_number` says which comes next.
        state: What the run begins with, if it is not there yet.
        updates: Laid over the data of a run that is there; the answer of one that is paused.
        pause: The id of the pause that the updates answer: another one is not answered.
        by: Who orders it, for the history.
        labels: What the run is labelled with, if it begins.
        allow_changed: As for `StateGraph.resume`.
        migrate: As for `StateGraph.resume`.
    """

    graph: str = attrs.field(converter=_name_of, validator=attrs.validators.instance_of(str))
    run_id: str = attrs.field(converter=check_given_id)
    number: int = attrs.field(default=1, validator=_numbered)
    state: State | None = attrs.field(
        default=None, kw_only=True, validator=[attrs.validators.optional(attrs.validators.instance_of(State)), _begins]
    )
    updates: Mapping[str, Any] = attrs.field(factory=dict, kw_only=True, converter=freeze_items)
    pause: str | None = attrs.field(default=None, kw_only=True, converter=_id_of)
    by: str | None = attrs.field(default=None, kw_only=True)
    labels: Mapping[str, str] = attrs.field(factory=dict, kw_only=True, converter=checked_labels)
    allow_changed: bool = attrs.field(default=False, kw_only=True)
    migrate: Mapping[str, str] = attrs.field(factory=dict, kw_only=True, converter=_renamed)


def perform(
    order: Order,
    graphs: Graphs,
    *,
    cancel: threading.Event | None = None,
    wait: float | None = None,
    take_over: bool = False,
    max_recoveries: int = 10,
) -> State:
    """Take a run on as it was ordered; done twice, the second time goes on where the first one has stopped.

    No node runs again whose step is saved, and updates are laid over the data once. A run that is complete stays in the
    store, even if its graph does not preserve runs: `forget` it once it is noted elsewhere that the order is done.

    Args:
        order: What is to be done.
        graphs: The graphs there are.
        cancel: Stops the run before the next node once it is set. The order is not done then.
        wait: Seconds to wait for the run while another call is at work on it.
        take_over: Take the run away from a call that is at work on it.
        max_recoveries: How many workers one step of the run may take down, one after the other; then the run is failed.

    Returns:
        The State with which the run has completed, paused, or been cancelled.

    Raises:
        UnknownNameError: there is no such graph.
        ExecutionError: the run has failed, now or when the order was performed before.
        AnswerError, RunCompleteError: the order comes too late. The run stays as it is.
        RunBusyError: another call is at work on the run. Nothing has been done.
        RunCancelledError: `cancel` was set. The order is not done: it is to be performed again.
        And all else that `StateGraph.execute` and `StateGraph.resume` raise.
    """
    graph = graph_of(order.graph, graphs)
    how = TurnCall(cancel=cancel, wait=wait, take_over=take_over, by=order.by, labels=order.labels)
    how |= TurnCall(allow_changed=order.allow_changed, migrate=order.migrate)
    if not is_count(max_recoveries, at_least=1):
        raise ConfigError("max_recoveries", max_recoveries, "how many workers a step may take down, from 1 on")
    try:
        state = drive(take_turn(graph._sync_run(how, TurnCall), order, max_recoveries), signal_of(how))
    except RunCancelledError as stopped:
        state = _cancelled(graph, order.run_id, stopped)
    if state.status is RunStatus.FAILED:
        raise failure_of(state)
    return state


def forget(order: Order, graphs: Graphs) -> None:
    """Delete the run of an order that is done, if it is complete and its graph does not preserve runs.

    Call it after it is noted that the order is done: an order that is delivered again finds a run that has gone, and
    begins it anew.
    """
    graph = graph_of(order.graph, graphs)
    if graph.config.checkpoint.preserve:
        return
    try:
        saved = graph.store.load(order.run_id)
    except CheckpointNotFoundError:
        return
    if saved.status is RunStatus.COMPLETED and turn_of(saved) <= order.number:
        graph.store.delete(order.run_id)


def next_number(graph: StateGraph, run_id: str) -> int:
    """Return the number of the next turn of a run, as far as its store knows; 1 if there is no such run."""
    try:
        return turn_of(graph.store.load(run_id)) + 1
    except CheckpointNotFoundError:
        return 1


def graph_of(name: str, graphs: Graphs) -> StateGraph:
    """Return the graph of a name. Raises UnknownNameError if there is none."""
    by_name = graphs if isinstance(graphs, Mapping) else {graph.config.name: graph for graph in graphs}
    try:
        return by_name[name]
    except KeyError:
        raise UnknownNameError("graph", name, tuple(by_name)) from None


def failure_of(state: State) -> ExecutionError:
    """Return the error that tells of a run that has failed."""
    error = state.error
    if error is None:
        return ExecutionError(state.checkpoint_node, state, (), "failed")
    if error.type == MaxIterationsError.__name__:
        return MaxIterationsError(error.node, state, (error.node,), error.message)
    reason = error.message if error.type == ExecutionError.__name__ else f"failed: {error.type}: {error.message}"
    return ExecutionError(error.node, state, (error.node,), reason)


def _cancelled(graph: StateGraph, run_id: str, stopped: RunCancelledError) -> State:
    """Return the State of a run that somebody has cancelled; raise what stopped it, if it was something else."""
    try:
        saved = graph.store.load(run_id)
    except CheckpointNotFoundError:
        raise stopped from stopped.__cause__
    if saved.status is RunStatus.CANCELLED:
        return saved
    raise stopped from stopped.__cause__


# --------------------------------------------------------------------------- as bytes


def to_bytes(order: Order) -> bytes:
    """Return an order as bytes, for a queue that carries nothing else. Values keep their exact types.

    Raises:
        NotSerializableError: a value cannot be kept exactly.
    """
    from stategraph.stores._codec import msgpack  # imported when used: an engine may carry objects
    from stategraph.stores.toolkit import state_to_bytes

    fields = {field.name: getattr(order, field.name) for field in attrs.fields(Order)}
    fields["state"] = None if order.state is None else state_to_bytes(order.state)
    return msgpack.encode([fields])


def from_bytes(kept: bytes) -> Order:
    """Return the order that `to_bytes` made these bytes of.

    Raises:
        FormatError: They are no order, or one with a type that is not registered here.
        CheckpointCorruptError: The State in them is damaged.
    """
    from stategraph.stores._codec import msgpack  # imported when used
    from stategraph.stores.toolkit import state_from_bytes

    try:
        (fields,) = msgpack.decode(kept)
        if fields["state"] is not None:
            fields["state"] = state_from_bytes(fields["run_id"], fields["state"])
        return Order(**fields)
    except (TypeError, ValueError, LookupError) as error:
        way_out = "take what to_bytes returned, with the same version of stategraph and the same registered types"
        raise FormatError("", f"{shorten(kept)} is no order of a turn ({error}); {way_out}") from error
