"""RunContext, the state of one call of execute or resume; and the NodeContext that a node receives."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from time import monotonic
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import attrs

from stategraph._engine.io import RunIO
from stategraph._graph.compiled import CompiledGraph
from stategraph._values.events import EventType
from stategraph.nodes.context import NodeContext
from stategraph.state import State

if TYPE_CHECKING:
    from stategraph._values.progress import Part

PATH_LENGTH = 100  # nodes in the path of an error: the path stays short in a run of a million steps
_RECENT = 100  # unsaved States to try if the newest one cannot be saved

LOOK_AGAIN = 0.05
"""Seconds between two checks for cancellation in a run that saves nothing."""

NOTHING_GIVEN: Mapping[str, Any] = MappingProxyType({})


@attrs.define(eq=False)
class RunContext:
    """One call of execute or resume.

    Attributes:
        plan: The graph.
        services: The store and the observer, for commands.
        wanted: The types of events that the observer wants.
        state: The last completed State of the run.
        saved: The last State that the store has acknowledged.
        found: The State to continue from, if it differs from the loaded State only in its status.
        shows: Whether the caller iterates over the run.
        patience: Seconds to wait for another owner of the run.
        takes_over: Whether to take the run from another owner.
        waits_since: The time at which the call began to wait for another owner, if it had to.
        signal: Stops the call; a `stategraph._drivers.limits.StopSignal`, or None. The engine only passes it to nodes.
        by: The name of the caller, if given.
        labels: The labels of the run, if this call begins it.
        allow_changed: Whether runs continue although the graph, or a nested one, has changed since they were saved.
        migrate: New names of nodes by their old ones.
        began_ns: When the call began, in clock.monotonic_ns, while an observer wants events.
        path: The last nodes entered.
        completed: The nodes completed in this call, while an observer wants events.
        recent: The last unsaved States, if the graph does not save every step.
        nested_path: The path from the outermost graph to this one: names of nodes, each followed by a slash.
        outermost: The name of the outermost graph; empty if this graph is the outermost.
        outer_step: The StepExecution of the outer run, if the run is nested.
        renamed_nested: The new names of nodes of nested graphs, by the node that runs the graph.
        unsaved_parts: Finished parts of the current step that are saved only if the run ends early.
        has_joined_parts: Whether an unsaved State has joined saved parts.
    """

    plan: CompiledGraph
    services: RunIO
    wanted: frozenset[EventType]
    shows: bool = False
    patience: float = 0.0
    takes_over: bool = False
    signal: Any = None
    by: str | None = None
    labels: Mapping[str, str] = NOTHING_GIVEN
    allow_changed: bool = False
    migrate: Mapping[str, str] = NOTHING_GIVEN
    waits_since: datetime | None = attrs.field(default=None, init=False)
    state: State = attrs.field(init=False)
    saved: State | None = attrs.field(default=None, init=False)
    found: State | None = attrs.field(default=None, init=False)
    began_ns: int | None = attrs.field(default=None, init=False)
    path: deque[str] = attrs.field(factory=partial(deque, maxlen=PATH_LENGTH), init=False)
    completed: set[str] = attrs.field(factory=set, init=False)
    nested_path: str = attrs.field(default="", init=False)
    outermost: str = attrs.field(default="", init=False)
    outer_step: Any = attrs.field(default=None, init=False)
    renamed_nested: dict[str, dict[str, str]] = attrs.field(factory=dict, init=False)
    unsaved_parts: list[Part] = attrs.field(factory=list, init=False)
    recent: deque[State] = attrs.field(factory=partial(deque, maxlen=_RECENT), init=False)
    has_joined_parts: bool = attrs.field(default=False, init=False)

    def under_way(self) -> tuple[str, datetime] | tuple[()]:
        """Return the current node and the time at which it began; an empty tuple before the first node."""
        return (self.path[-1], self.state.timestamp) if self.path else ()


def fitting(run: RunContext, data: Mapping[str, Any], beside: Mapping[str, Any], node: str = "") -> Mapping[str, Any]:
    """Validate data from outside the run against the schema of the graph and return it. Raises SchemaError."""
    schema = run.plan.schema
    return data if schema is None else schema.checked(node, data, beside)


# --------------------------------------------------------------------------- the NodeContext of a step


def context_of(run: RunContext, name: str, state: State, attempt: int = 1, part: str = "") -> NodeContext:
    """Return the NodeContext of a node's step or, with `part`, of one part of that step."""
    step = (state.run_id, run.plan.graph, name, state.step + 1, attempt, state.generation, part)
    asks = StopQuestion(run.services, run.signal)
    return NodeContext(*step, kept_name=kept_name(name, state), outermost=run.outermost, is_stopping=asks)


class StopQuestion:
    """Answer a node that checks whether its run should stop.

    A node may check often, so the store is queried for requests of other processes only once in a while. A process that
    executes a part of the step has no access to this information.
    """

    __slots__ = ("_look_at", "_services", "_signal")

    def __init__(self, services: RunIO, signal: Any) -> None:
        self._services, self._signal = services, signal
        self._look_at = 0.0

    def __call__(self) -> bool:
        if self._services.is_cancelled or (self._signal is not None and self._signal.is_due()):
            return True
        now = monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + LOOK_AGAIN
        return self._services.hears_of_cancel()

    def __reduce__(self) -> tuple[Any, ...]:
        return partial, (bool,)


def kept_name(name: str, state: State) -> str:
    """Return the name under which a step keeps its parts and nested run: the name of the node when the step began."""
    return name if state.progress is None else state.progress.kept_name(name)
