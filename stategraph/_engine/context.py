"""Run: what the engine knows of a run, how it saves it and tells of it, and how it ends before its time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import attrs

from stategraph._engine.io import Services
from stategraph._engine.step import Visit
from stategraph._graph.compiled import Plan, Stage
from stategraph._protocol.commands import (
    CannotAwait,
    Command,
    Escaped,
    Flush,
    Load,
    Notify,
    Parts,
    Save,
    Show,
    Stopped,
    StoreFailed,
    Task,
)
from stategraph._values.events import EventType
from stategraph._values.provenance import ErrorInfo, Part, RunStatus, evolved
from stategraph.edges import Edge, NoWay, describe_predicate, place_of
from stategraph.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    CheckpointSaveError,
    ExecutionError,
    MaxIterationsError,
    NotSerializableError,
    RunCancelledError,
    StateGraphError,
    StepConflictError,
    describe_exception,
)
from stategraph.state import State, evolve

_Error = TypeVar("_Error", bound=BaseException)
_RECENT = 100  # States behind the last saved one that are tried if the newest of them cannot be saved
PATH_LENGTH = 100  # nodes that the path of an error tells: a run of a million steps does not grow


@attrs.define(eq=False)
class Run:
    """One call of execute or resume.

    Attributes:
        plan: The graph.
        services: What commands are made of.
        wanted: The types of events that the observer wants.
        state: The last completed State of the run.
        saved: The last State that the store has acknowledged.
        found: The step and the generation that the store had of the run before this call; None if it had none.
        shows: Whether somebody iterates over the run.
        hand_over: Takes what is left to do of a run whose driver is gone. It is called in finalisers.
        path: The last nodes entered.
        completed: The nodes completed in this call, while an observer wants events.
        recent: The last States that are not saved, where not every step is.
        within: What leads to its graph from the outermost one: names of nodes, each with a slash behind it.
        outermost: The name of that one; empty if it is its own.
        around: The step of another run that it belongs to, if it does.
        allow_changed: Whether runs go on although the graph, or one within, has changed since they were saved.
        renamed_within: The new names of nodes of graphs within, by the node that runs the graph.
        unsaved_parts: Finished parts of the step that is being made, which are saved only if the run ends early.
    """

    plan: Plan
    services: Services
    wanted: frozenset[EventType]
    shows: bool = False
    hand_over: Callable[[Task[None]], object] = id
    state: State = attrs.field(init=False)
    saved: State | None = attrs.field(default=None, init=False)
    found: tuple[int, int] | None = attrs.field(default=None, init=False)
    path: deque[str] = attrs.field(factory=lambda: deque(maxlen=PATH_LENGTH), init=False)
    completed: set[str] = attrs.field(factory=set, init=False)
    within: str = attrs.field(default="", init=False)
    outermost: str = attrs.field(default="", init=False)
    around: Visit | None = attrs.field(default=None, init=False)
    allow_changed: bool = attrs.field(default=False, init=False)
    renamed_within: dict[str, dict[str, str]] = attrs.field(factory=dict, init=False)
    unsaved_parts: list[Part] = attrs.field(factory=list, init=False)
    recent: deque[State] = attrs.field(factory=lambda: deque(maxlen=_RECENT), init=False)
    _joined: bool = attrs.field(default=False, init=False)

    def run_child(
        self, visit: Visit, plan: Plan, saved: State | None, inputs: Mapping[str, Any], updates: Mapping[str, Any]
    ) -> Task[State]:
        """-> the State that the run of a graph within ends with: begun with inputs, or gone on with updates."""
        raise NotImplementedError

    # ------------------------------------------------------------------ saving

    def _save_last(self, state: State) -> Task[None]:
        """Save the State with which the run ends."""
        try:
            yield from self._save((Save, self.services.save, state), state)
            yield from self._flush(state)
        except StepConflictError:
            if self.saved is None or self.saved.step != state.step:
                raise
            # A node changed an object in its State before it failed: what is saved stays, how the run stands is new.
            kept = yield (Load, self.services.load, state.run_id)
            if kept.step != state.step:
                raise
            state = evolve(kept, status=state.status, error=state.error)
            yield from self._save((Save, self.services.save, state), state)
        except NotSerializableError:
            yield from self._keep_what_can_be(state)
            raise

    def _keep_what_can_be(self, last: State) -> Task[None]:
        """Where the last State cannot be kept, keep as many of the steps before it as can be, and how the run ended."""
        ends = {"status": last.status, "error": last.error}
        bare = evolve(last, pause=None, progress=evolved(last.progress, partial=None))  # it may be these that cannot be
        tried = [*self.recent, bare]
        self.recent.clear()
        while tried:
            state = evolve(tried.pop(), **ends)
            try:
                yield from self._save((Save, self.services.save, state), state)
                yield from self._flush(state)
            except NotSerializableError:
                continue
            return
        try:
            kept = yield (Load, self.services.load, last.run_id)
        except CheckpointNotFoundError:
            return
        if kept.step <= last.step:
            state = evolve(kept, **ends)
            yield from self._save((Save, self.services.save, state), state)

    def _save(self, command: Command, state: State) -> Task[None]:
        if self.around is not None:  # first: a run that begins anew must never find what was nested in a lost one
            yield from self.around.keep_incoming(at_last=True)
        yield command
        self.saved = state
        yield from self._emit(EventType.CHECKPOINT_SAVE, state)

    def _flush(self, state: State) -> Task[None]:
        if self.plan.saves_behind:
            yield (Flush, self.services.flush, state)

    def _fitting(self, data: Mapping[str, Any], beside: Mapping[str, Any], node: str = "") -> Mapping[str, Any]:
        """-> data that did not come from a visit, as the schema of the graph wants them. Raises SchemaError."""
        schema = self.plan.schema
        return data if schema is None else schema.checked(node, data, beside)

    # ------------------------------------------------------------------ ending early

    def _end_early(self, error: BaseException) -> Task[None]:
        """Save what is to be saved, and raise what an exception that only drivers and visits know stands for."""
        if isinstance(error, Stopped):
            stop = with_notes(RunCancelledError(self.state, str(error)), error)
            yield from self._rescue(stop)
            raise stop from error.__cause__
        if isinstance(error, Escaped):
            yield from self._rescue(error)
            raise cast(BaseException, error.__cause__) from None
        if isinstance(error, StoreFailed | CannotAwait):
            cause = cast(StateGraphError, error.__cause__)
            yield from self._rescue(cause)
            raise cause from cause.__cause__
        yield from self._rescue(error)

    def _end_dropped(self) -> Task[None]:
        """End a run whose driver is gone, unless the store tells that somebody else has gone on with it, or ended it: a
        collection may find it late."""
        if self.plan.saves:
            known = self.found if self.saved is None else (self.saved.step, self.saved.generation)
            try:
                newest = yield (Load, self.services.load, self.state.run_id)
                now = newest.step, newest.generation
            except CheckpointNotFoundError:
                now = None
            except CheckpointError:  # what came of saving behind the run, too: to save once more will tell
                now = known
            if now != known:
                return
        yield from self._end_early(Stopped("it was dropped before its end"))

    def _endless(self, name: str) -> ExecutionError:
        """-> the error for one node too many."""
        reason = (
            f"is not entered: this call has run {self.plan.max_iterations} nodes (max_iterations) without reaching "
            "an exit point; if that is not an endless loop, raise max_iterations or go on with resume"
        )
        return self._failure(name, reason, kind=MaxIterationsError)

    def _stuck(self, stage: Stage, no_way: NoWay) -> ExecutionError:
        """-> the error for a node that cannot be left."""
        cause = no_way.error
        if cause is not None:
            edge = stage.edges[no_way.tried - 1]
            reason = f"cannot be left: the predicate of edge {edge} failed: {describe_exception(cause)}"
        else:
            reason = f"cannot be left: no edge passes (tried {', '.join(map(str, stage.edges)) or 'none: it has none'})"
        error = self._failure(stage.name, reason, cause)
        error.__cause__ = cause
        return error

    def _failed(self, visit: Visit, error: Exception) -> ExecutionError:
        """-> the error for a node that failed, as often as it was tried."""
        attempts = f" after {visit.attempt} attempts" if visit.attempt > 1 else ""
        failure = self._failure(visit.stage.name, f"failed{attempts}: {describe_exception(error)}", error)
        if attempts:
            info = cast(ErrorInfo, failure.state.error)
            told = attrs.evolve(info, message=f"{info.message} ({attempts.strip()})".lstrip())
            failure.state = evolve(failure.state, error=told)
        return failure

    def _failure(
        self, name: str, reason: str, cause: Exception | None = None, kind: type[ExecutionError] = ExecutionError
    ) -> ExecutionError:
        """-> the error for a node or engine that failed, with the State as it is to be left."""
        info = ErrorInfo.said(kind.__name__, reason, name) if cause is None else ErrorInfo.of(cause, name)
        path = tuple(self.path) if self.path and self.path[-1] == name else (*self.path, name)[-PATH_LENGTH:]
        return kind(name, evolve(self.state, status=RunStatus.FAILED, error=info), path, reason)

    def _rescue(self, error: BaseException) -> Task[None]:
        """Before an error goes up, save what is not saved yet; a second failure becomes a note on the first."""
        try:
            yield from self._last_saves(error)
        except GeneratorExit:  # the driver is gone: another one begins anew
            self.hand_over(self._last_saves(error))
            raise

    def _last_saves(self, error: BaseException) -> Task[None]:
        state = error.state if isinstance(error, ExecutionError) else self.state
        yield from _noting(error, "While the run was being stopped", self._save_unsaved(error, state))
        yield from _noting(error, "While its last saves were waited for", self._flush(state))
        told = self._emit(EventType.GRAPH_ERROR, state, error=describe_exception(error))
        yield from _noting(error, "While its observer was being told", told)

    def _save_unsaved(self, error: BaseException, state: State) -> Task[None]:
        if self.plan.saves and state is not self.saved and not isinstance(error, _SAVE_ERRORS):
            yield from self._save_last(state)
        elif isinstance(error, NotSerializableError):
            info = ErrorInfo.of(error, self.path[-1] if self.path else state.checkpoint_node)
            yield from self._keep_what_can_be(evolve(state, status=RunStatus.FAILED, error=info))
        if self.unsaved_parts and self.plan.loads_parts:
            yield (Parts, self.services.save_parts, (state, self.unsaved_parts))

    # ------------------------------------------------------------------ events

    def _emit(self, type: EventType, state: State, **more: object) -> Task[None]:
        if type in self.wanted:
            provenance = {"run_id": state.run_id, "step": state.step, "node": state.checkpoint_node}
            yield (Notify, self.services.notify, (type, {**provenance, "status": state.status.value, **more}))

    def tell(self, type: EventType, run_id: str, step: int, node: str, about: Mapping[str, Any]) -> Task[None]:
        """Tell the observer of something that happens within a step."""
        if type in self.wanted:
            yield (Notify, self.services.notify, (type, {"run_id": run_id, "step": step, "node": node, **about}))

    def show(self, state: State) -> Task[None]:
        """Show a State to whoever iterates over the run; a graph within shows nothing, being one step."""
        if self.shows:
            yield (Show, None, state)

    def _announce(self, name: str) -> Task[None]:
        about = {"run_id": self.state.run_id, "step": self.state.step + 1, "node": name}
        if EventType.CYCLE_DETECTED in self.wanted and name in self.completed:
            yield (Notify, self.services.notify, (EventType.CYCLE_DETECTED, about))
        if EventType.NODE_START in self.wanted:
            yield (Notify, self.services.notify, (EventType.NODE_START, about))

    def _announce_handler(self, stage: Stage, handler: str) -> Task[None]:
        """Tell of the way to a handler of failures. There is none to a node that goes on after a pause."""
        progress = self.state.progress
        if (progress is None or progress.woken is None) and stage.policies.on_error == handler:
            way = {"source": stage.name, "target": handler, "edge": "on_error", "predicate": "on_error"}
            about = {"run_id": self.state.run_id, "step": self.state.step, **way}
            if EventType.EDGE_TRANSITION in self.wanted:
                yield (Notify, self.services.notify, (EventType.EDGE_TRANSITION, about))

    def _announce_edges(self, stage: Stage, chosen: Edge | NoWay) -> Task[None]:
        tried = chosen.tried if isinstance(chosen, NoWay) else place_of(chosen, stage.edges) + 1
        for edge in stage.edges[:tried]:
            about = {
                "run_id": self.state.run_id,
                "step": self.state.step,
                "source": edge.source,
                "target": edge.target,
                "edge": edge.name,
                "predicate": describe_predicate(edge.predicate),
            }
            if EventType.EDGE_EVALUATE in self.wanted:
                yield (Notify, self.services.notify, (EventType.EDGE_EVALUATE, {**about, "result": edge is chosen}))
            if EventType.EDGE_TRANSITION in self.wanted and edge is chosen:
                yield (Notify, self.services.notify, (EventType.EDGE_TRANSITION, about))


_SAVE_ERRORS = (CheckpointSaveError, NotSerializableError, StepConflictError)
"""What a save ends with when trying it again would end the same."""


def _noting(error: BaseException, when: str, task: Task[None]) -> Task[None]:
    """Do a task; what it raises becomes a note on an error."""
    try:
        yield from task
    except GeneratorExit:
        raise
    except BaseException as second:
        error.add_note(f"{when}: {describe_exception(second)}")


def with_notes(error: _Error, other: BaseException) -> _Error:
    """-> the error with the notes of another one that it stands for: failures that came on top of it."""
    for note in getattr(other, "__notes__", ()):
        error.add_note(note)
    return error


def error_data(failure: ExecutionError) -> dict[str, Any]:
    """-> what a handler of failures finds in the State."""
    error = cast(ErrorInfo, failure.state.error)
    return {"error": {"type": error.type, "message": error.message, "node": error.node}}
