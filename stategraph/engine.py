"""Every decision of a run, and none of its I/O.

`Engine.execute` and `Engine.resume` are generators. They yield commands (run this node, save this State); a driver
carries each one out and sends back what came of it, or throws what was raised; what the generator returns is the final
State. The pattern is known as sans-I/O (https://sans-io.readthedocs.io). Here it lets one engine serve two drivers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Mapping
from inspect import isawaitable
from typing import Any, TypeAlias, TypeVar, cast

import attrs

from stategraph.commands import Amend, Await, Command, Delete, Escaped, Flush, Load, Notify, Retain, Save, Stopped
from stategraph.edges import Edge, NoWay, choose, describe_predicate
from stategraph.errors import (
    CheckpointingDisabledError,
    CheckpointNotFoundError,
    CheckpointSaveError,
    ExecutionError,
    GraphMismatchError,
    MaxIterationsError,
    NotSerializableError,
    RunCancelledError,
    RunCompleteError,
    RunExistsError,
    StepConflictError,
    describe_exception,
)
from stategraph.events import STATE_EVENTS, STEP_EVENTS, EventType
from stategraph.frozen import lay_over
from stategraph.ids import check_run_id
from stategraph.nodes.context import NodeContext
from stategraph.nodes.function import data_from
from stategraph.plan import Plan, Stage
from stategraph.services import Services
from stategraph.state import ErrorInfo, RunStatus, State, completed_by, data_of, evolve, with_data

PATH_LENGTH = 100  # nodes that the path of an error tells: a run of a million steps does not grow
_MESSAGE_LENGTH = 2000  # characters of an exception's text that a failed run keeps

_Answer = TypeVar("_Answer")
Task: TypeAlias = Generator[Command, Any, _Answer]
"""A part of a run: yields commands, is sent their answers, returns its own."""


@attrs.define(eq=False)
class Engine:
    """One call of execute or resume.

    Attributes:
        plan: The graph.
        services: What commands are made of.
        wanted: The types of events that the observer wants.
        state: The last completed State of the run.
        saved: The last State that the store has acknowledged.
        path: The last nodes entered.
        completed: The nodes completed in this call, while an observer wants events.
    """

    plan: Plan
    services: Services
    wanted: frozenset[EventType]
    state: State = attrs.field(init=False)
    saved: State | None = attrs.field(default=None, init=False)
    path: deque[str] = attrs.field(factory=lambda: deque(maxlen=PATH_LENGTH), init=False)
    completed: set[str] = attrs.field(factory=set, init=False)

    # ------------------------------------------------------------------ starting

    def execute(self, state: State) -> Task[State]:
        """Run a State from the entry point to an exit point."""
        self.state = yield from self._admit(state)
        return (yield from self._run(None))

    def resume(self, run_id: str, updates: Mapping[str, Any], allow_changed: bool) -> Task[State]:
        """Run on from the newest saved State of a run, with its data updated."""
        check_run_id(run_id)
        if not self.plan.saves:
            raise CheckpointingDisabledError(self.plan.graph)
        saved = yield (Load, self.services.load, run_id)
        yield from self._emit(EventType.CHECKPOINT_LOAD, saved)
        _check_fits(self.plan, saved, allow_changed)
        yield (Retain, self.services.retain, run_id)
        self.state = self._stamp(with_data(saved, lay_over(data_of(saved), updates)))
        if updates:
            yield from self._save((Amend, self.services.amend, self.state), self.state)
        yield from self._emit(EventType.CHECKPOINT_RESUME, self.state)
        return (yield from self._run(self.plan.stages.get(saved.checkpoint_node)))

    def _admit(self, state: State) -> Task[State]:
        """-> the State as it enters the graph; a State with a past is brought back to life durably."""
        started = evolve(self._stamp(state), checkpoint_node="")
        if not self.plan.saves:
            return started
        if state.step == 0 and state.graph is None:
            yield from self._check_new(state)
            yield (Retain, self.services.retain, state.run_id)
        else:
            yield (Retain, self.services.retain, state.run_id)
            yield from self._save((Amend, self.services.amend, started), started)
        return started

    def _check_new(self, state: State) -> Task[None]:
        """Raise RunExistsError if the store holds another State of a run that is to begin."""
        try:
            saved = yield (Load, self.services.load, state.run_id)
        except CheckpointNotFoundError:
            return
        if saved != state:
            raise RunExistsError(state.run_id, self.plan.store)

    def _stamp(self, state: State) -> State:
        """-> the State as one that runs on this graph."""
        plan = self.plan
        if state.observer is None and not self.wanted.isdisjoint(STATE_EVENTS):
            state = evolve(state, observer=self.services.observer)
        return evolve(state, graph=plan.graph, structure=plan.structure, status=RunStatus.ACTIVE, error=None)

    # ------------------------------------------------------------------ running

    def _run(self, stage: Stage | None) -> Task[State]:
        """Run on from a stage that is completed (None: from the start), and see to what ends the run early."""
        try:
            yield from self._emit(EventType.GRAPH_START, self.state)
            yield from self._steps(stage)
            return (yield from self._complete())
        except GeneratorExit:  # the driver is gone: nobody is left to carry out a command
            raise
        except Stopped as stop:
            error = RunCancelledError(self.state, str(stop))
            yield from self._rescue(error)
            raise error from stop.__cause__
        except Escaped as escaped:
            yield from self._rescue(escaped)
            raise cast(BaseException, escaped.__cause__) from None
        except BaseException as error:
            yield from self._rescue(error)
            raise

    def _steps(self, stage: Stage | None) -> Task[None]:  # noqa: PLR0912 - the one loop, best read in one piece
        """Step after step until an exit point: take an edge, run the node behind it, save what is due."""
        plan, state = self.plan, self.state
        stages, interval, enter = plan.stages, plan.interval, self.path.append
        watched = not self.wanted.isdisjoint(STEP_EVENTS)
        tells_saves = EventType.CHECKPOINT_SAVE in self.wanted
        save = self.services.save
        left = plan.max_iterations
        while stage is None or not stage.is_exit:
            name = plan.entry
            if stage is not None:
                edge = choose(stage.edges, state)
                if watched:
                    yield from self._announce_edges(stage, edge)
                if type(edge) is NoWay:
                    raise self._stuck(stage, edge)
                name = edge.target
            enter(name)
            if not left:
                raise self._endless(name)
            left -= 1
            if watched:
                yield from self._announce(name)
            stage = stages[name]
            try:
                result = yield (
                    stage.kind,
                    self._function(stage) if stage.node.wants_context else stage.function,
                    state,
                )
                if type(result) is dict:  # the most frequent case by far
                    data = lay_over(data_of(state), result)
                else:
                    if type(result) is not State and isawaitable(result):
                        result = yield (Await, result, name)
                    data = data_from(result, state)
            except Exception as error:
                raise self._failure(name, f"failed: {describe_exception(error)}", error) from error
            self.state = state = completed_by(name, state, data)
            if watched:
                self.completed.add(name)
                yield from self._emit(EventType.NODE_COMPLETE, state)
            # Saved before the edges are tried: a predicate that raises must not cost the node's work.
            if interval and state.step % interval == 0:
                yield (Save, save, state)
                self.saved = state
                if tells_saves:
                    yield from self._emit(EventType.CHECKPOINT_SAVE, state)

    def _function(self, stage: Stage) -> Callable[[State], Any]:
        """-> the function of a node that wants a context, with the context of the step that is being made."""
        state, function = self.state, stage.function
        context = NodeContext(state.run_id, self.plan.graph, stage.name, state.step + 1, generation=state.generation)
        return lambda state: function(state, context)

    def _complete(self) -> Task[State]:
        """The exit point is reached: keep the final State or forget the run, as configured -> the final State."""
        self.state = state = evolve(self.state, status=RunStatus.COMPLETED)
        if self.plan.saves and self.plan.preserve:
            yield from self._save((Save, self.services.save, state), state)
            yield from self._flush(state)
        elif self.plan.saves:
            yield (Delete, self.services.delete, state)
            yield from self._emit(EventType.CHECKPOINT_DELETE, state)
        yield from self._emit(EventType.GRAPH_COMPLETE, state)
        return state

    # ------------------------------------------------------------------ ending early

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

    def _failure(
        self, name: str, reason: str, cause: Exception | None = None, kind: type[ExecutionError] = ExecutionError
    ) -> ExecutionError:
        """-> the error for a node or engine that failed, with the State as it is to be left."""
        info = ErrorInfo((kind if cause is None else type(cause)).__name__, _message(cause, reason), name)
        path = tuple(self.path) if self.path and self.path[-1] == name else (*self.path, name)[-PATH_LENGTH:]
        return kind(name, evolve(self.state, status=RunStatus.FAILED, error=info), path, reason)

    def _rescue(self, error: BaseException) -> Task[None]:
        """Before an error goes up, save what is not saved yet; a second failure becomes a note on the first."""
        state = error.state if isinstance(error, ExecutionError) else self.state
        unsaved = self.plan.saves and state is not self.saved and not isinstance(error, _SAVE_ERRORS)
        try:
            if unsaved:
                yield from self._save((Save, self.services.save, state), state)
        except BaseException as second:
            error.add_note(f"While the run was being stopped: {describe_exception(second)}")
        try:
            yield from self._flush(state)
        except BaseException as third:
            error.add_note(f"While its last saves were waited for: {describe_exception(third)}")
        try:
            yield from self._emit(EventType.GRAPH_ERROR, state, error=describe_exception(error))
        except BaseException as fourth:
            error.add_note(f"While its observer was being told: {describe_exception(fourth)}")

    def _save(self, command: Command, state: State) -> Task[None]:
        yield command
        self.saved = state
        yield from self._emit(EventType.CHECKPOINT_SAVE, state)

    def _flush(self, state: State) -> Task[None]:
        if self.plan.saves_behind:
            yield (Flush, self.services.flush, state)

    # ------------------------------------------------------------------ events

    def _emit(self, type: EventType, state: State, **more: object) -> Task[None]:
        if type in self.wanted:
            provenance = {"run_id": state.run_id, "step": state.step, "node": state.checkpoint_node}
            yield (Notify, self.services.notify, (type, {**provenance, "status": state.status.value, **more}))

    def _announce(self, name: str) -> Task[None]:
        about = {"run_id": self.state.run_id, "step": self.state.step + 1, "node": name}
        if EventType.CYCLE_DETECTED in self.wanted and name in self.completed:
            yield (Notify, self.services.notify, (EventType.CYCLE_DETECTED, about))
        if EventType.NODE_START in self.wanted:
            yield (Notify, self.services.notify, (EventType.NODE_START, about))

    def _announce_edges(self, stage: Stage, chosen: Edge | NoWay) -> Task[None]:
        tried = chosen.tried if isinstance(chosen, NoWay) else stage.edges.index(chosen) + 1
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


def _message(cause: Exception | None, reason: str) -> str:
    """-> what a failed run keeps of an exception: its text, cut, and without what cannot be stored as UTF-8."""
    text = reason if cause is None else describe_exception(cause).removeprefix(f"{type(cause).__name__}: ")
    return text[:_MESSAGE_LENGTH].encode("utf-8", "backslashreplace").decode()


def _check_fits(plan: Plan, saved: State, allow_changed: bool) -> None:
    """Raise unless the saved State can go on in this graph."""
    if saved.graph is not None and saved.graph != plan.graph:
        change = f"it is a run of graph {saved.graph!r}, not of {plan.graph!r}"
        raise GraphMismatchError(saved.run_id, (change,), "Resume it with that graph.")
    if saved.status is RunStatus.COMPLETED:
        raise RunCompleteError(saved.run_id, saved.checkpoint_node)
    if saved.checkpoint_node and saved.checkpoint_node not in plan.stages:
        change = f"it stands at node {saved.checkpoint_node!r}, which the graph does not have"
        raise GraphMismatchError(saved.run_id, (change,), f"Its nodes are {', '.join(plan.stages)}.")
    if saved.structure is not None and not allow_changed and saved.fingerprint != plan.structure.fingerprint:
        raise GraphMismatchError(
            saved.run_id,
            plan.structure.changes_since(saved.structure),
            "If it may go on all the same, resume it with allow_changed=True.",
        )
