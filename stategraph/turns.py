"""Turns: the interface for an engine that distributes work.

A turn continues a run until it completes, pauses, fails or is cancelled. An `Order` describes a turn as plain data that
any queue can carry. `perform` carries it out, and may be called as often as the queue delivers the order. The store of
the graph is the only journal: saved steps are not repeated. See the page "Many workers".
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import attrs

from stategraph._calls import TurnCall
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
    LimitError,
    MaxIterationsError,
    RunCancelledError,
    UnknownNameError,
)
from stategraph.graph import StateGraph
from stategraph.state import State

__all__ = ["Graphs", "Order", "forget", "from_bytes", "next_number", "perform", "to_bytes"]

Graphs: TypeAlias = Mapping[str, StateGraph] | Iterable[StateGraph]
"""The graphs of a worker: a mapping by name, or an iterable."""


def _name_of(graph: object) -> Any:
    return graph.config.name if isinstance(graph, StateGraph) else graph


def _id_of(pause: object) -> Any:
    return pause.id if isinstance(pause, Pause) else pause


def _numbered(order: Order, attribute: object, value: object) -> None:
    if not is_count(value, at_least=1):
        raise ConfigError("number", value, "the number of the turn, a positive integer")


def _begins(order: Order, attribute: object, value: State | None) -> None:
    if value is not None and value.run_id != order.run_id:
        raise ConfigError(
            "state", value.run_id, f"a State of run {order.run_id!r}: State(..., run_id={order.run_id!r})"
        )


@attrs.frozen
class Order:
    """One turn of a run, as plain data.

    Attributes:
        graph: The name of the graph; the graph itself is accepted, too.
        run_id: The run.
        number: The number of the turn, from 1. Each number is used once, however often the order is delivered, and not
            after a later number. `next_number` returns the next one.
        state: The input of the run, if it does not exist.
        updates: New values of keys of an existing run; for a paused run, the answer.
        pause: The id of the pause to answer. The updates answer no other pause.
        by: The author of the order, for the history.
        labels: The labels of the run, if it begins.
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
    migrate: Mapping[str, str] = attrs.field(factory=dict, kw_only=True, converter=freeze_items)


def perform(
    order: Order,
    graphs: Graphs,
    *,
    cancel: threading.Event | None = None,
    wait: float | None = None,
    take_over: bool = False,
    max_recoveries: int = 10,
) -> State:
    """Carry out an order. A second call continues where the first one stopped.

    Saved steps are not repeated, and updates are applied once. A completed run stays in the store, even if its graph
    does not preserve runs: call `forget` after the completion of the order is recorded elsewhere.

    Args:
        order: The order.
        graphs: The graphs of the worker.
        cancel: Stops the run before the next node once it is set. The order is then incomplete.
        wait: Seconds to wait while another call owns the run.
        take_over: Take the run from the call that owns it.
        max_recoveries: The most workers that one step of the run may lose before the run fails.

    Returns:
        The State in which the run completed, paused or was cancelled.

    Raises:
        UnknownNameError: There is no such graph.
        ExecutionError: The run failed, now or in an earlier call.
        AnswerError, RunCompleteError: The order is too late. The run has not changed.
        RunBusyError: Another call owns the run. Nothing has changed.
        RunCancelledError: `cancel` was set. The order is incomplete: perform it again.
        And all other errors of `StateGraph.execute` and `StateGraph.resume`.
    """
    graph = graph_of(order.graph, graphs)
    how = TurnCall(cancel=cancel, wait=wait, take_over=take_over, by=order.by, labels=order.labels)
    how |= TurnCall(allow_changed=order.allow_changed, migrate=order.migrate)
    if not is_count(max_recoveries, at_least=1):
        raise ConfigError("max_recoveries", max_recoveries, "a positive integer: the most workers that a step may lose")
    try:
        run = graph._new_run(how, TurnCall, blocks=True)
        state = drive(take_turn(run, order, max_recoveries), run.signal)
    except RunCancelledError as stopped:
        state = _cancelled(graph, order.run_id, stopped)
    if state.status is RunStatus.FAILED:
        raise failure_of(state)
    return state


def forget(order: Order, graphs: Graphs) -> None:
    """Delete the run of a completed order, if the run is complete and its graph does not preserve runs.

    Call it after the completion of the order is recorded: if the order were delivered again, it would begin the deleted
    run again.
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
    """Return the number of the next turn of a saved run; 1 if there is no such run."""
    try:
        return turn_of(graph.store.load(run_id)) + 1
    except CheckpointNotFoundError:
        return 1


def graph_of(name: str, graphs: Graphs) -> StateGraph:
    """Return the graph with a name. Raises UnknownNameError if there is none."""
    by_name = graphs if isinstance(graphs, Mapping) else by_names(graphs)
    try:
        return by_name[name]
    except KeyError:
        raise UnknownNameError("graph", name, tuple(by_name)) from None


def by_names(graphs: Iterable[StateGraph]) -> dict[str, StateGraph]:
    """Return graphs by their names, old ones included."""
    graphs = [*graphs]
    former = {name: graph for graph in graphs for name in graph.names}
    return former | {graph.name: graph for graph in graphs}


def failure_of(state: State) -> ExecutionError:
    """Return the error of a failed run."""
    error = state.error
    if error is None:
        return ExecutionError(state.checkpoint_node, state, (), "failed")
    for kind in (MaxIterationsError, LimitError):
        if error.type == kind.__name__:
            return kind(error.node, state, (error.node,), error.message)
    reason = error.message if error.type == ExecutionError.__name__ else f"failed: {error.type}: {error.message}"
    return ExecutionError(error.node, state, (error.node,), reason)


def _cancelled(graph: StateGraph, run_id: str, stopped: RunCancelledError) -> State:
    """Return the State of a cancelled run. Raise the error that stopped the run if it was not cancelled."""
    try:
        saved = graph.store.load(run_id)
    except CheckpointNotFoundError:
        raise stopped from stopped.__cause__
    if saved.status is RunStatus.CANCELLED:
        return saved
    raise stopped from stopped.__cause__


# --------------------------------------------------------------------------- bytes


def to_bytes(order: Order, serializer: str = "msgpack") -> bytes:
    """Return an order as bytes, for a queue that carries only bytes. Values keep their exact types.

    Args:
        order: The order.
        serializer: The name of the serializer of its State and updates, such as one that encrypts.

    Raises:
        NotSerializableError: A value cannot be saved exactly.
    """
    from stategraph.stores._codec import msgpack  # imported when used: an engine may carry objects
    from stategraph.stores.toolkit import state_to_bytes

    fields = {field.name: getattr(order, field.name) for field in attrs.fields(Order)}
    fields["state"] = None if order.state is None else state_to_bytes(order.state, serializer)
    if order.updates and serializer != "msgpack":
        fields["updates"] = state_to_bytes(State(order.updates, run_id=order.run_id), serializer)
    return msgpack.encode([fields])


def from_bytes(kept: bytes) -> Order:
    """Return an order from the bytes of `to_bytes`.

    Raises:
        FormatError: The bytes are no order, or hold a type that is not registered here.
        CheckpointCorruptError: The State in them is damaged.
    """
    from stategraph.stores._codec import msgpack  # imported when used
    from stategraph.stores.toolkit import state_from_bytes

    try:
        (fields,) = msgpack.decode(kept)
        if fields["state"] is not None:
            fields["state"] = state_from_bytes(fields["run_id"], fields["state"])
        if isinstance(fields["updates"], bytes):
            fields["updates"] = dict(state_from_bytes(fields["run_id"], fields["updates"]))
        return Order(**fields)
    except (TypeError, ValueError, LookupError) as error:
        way_out = "take what to_bytes returned, with the same version of stategraph and the same registered types"
        raise FormatError("", f"{shorten(kept)} is no order of a turn ({error}); {way_out}") from error
