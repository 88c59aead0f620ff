"""Every decision of a run, and none of its I/O.

`Engine.execute` and `Engine.resume` are generators. They yield commands (run this node, save this State); a driver
carries each one out and sends back what came of it, or throws what was raised; what the generator returns is the final
State. The pattern is known as sans-I/O (https://sans-io.readthedocs.io). Here it lets one engine serve two drivers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from inspect import isawaitable
from typing import Any, cast

import attrs

from stategraph.commands import (
    Amend,
    Await,
    Command,
    Delete,
    Escaped,
    Flush,
    Load,
    Notify,
    Parts,
    Retain,
    Save,
    Show,
    Stopped,
    StoreFailed,
    Task,
)
from stategraph.edges import Edge, NoWay, choose, describe_predicate
from stategraph.errors import (
    AnswerError,
    CheckpointError,
    CheckpointingDisabledError,
    CheckpointNotFoundError,
    CheckpointSaveError,
    ExecutionError,
    MaxIterationsError,
    NotSerializableError,
    RunCancelledError,
    RunExistsError,
    StepConflictError,
    describe_exception,
)
from stategraph.events import STATE_EVENTS, STEP_EVENTS, EventType
from stategraph.fitting import awake, check_fits, moved
from stategraph.frozen import lay_over
from stategraph.ids import check_run_id
from stategraph.nodes.base import NOTHING
from stategraph.nodes.context import NodeContext
from stategraph.nodes.function import data_from
from stategraph.plan import Plan, Stage
from stategraph.provenance import ErrorInfo, ParentStep, Part, Pause, Progress, RunStatus, evolved
from stategraph.services import Services
from stategraph.state import State, completed_by, data_of, evolve, with_data
from stategraph.visit import Visit, is_late

_RECENT = 100  # States behind the last saved one that are tried if the newest of them cannot be saved
PATH_LENGTH = 100  # nodes that the path of an error tells: a run of a million steps does not grow
_MESSAGE_LENGTH = 2000  # characters of an exception's text that a failed run keeps


@attrs.define(eq=False)
class Engine:
    """One call of execute or resume.

    Attributes:
        plan: The graph.
        services: What commands are made of.
        wanted: The types of events that the observer wants.
        state: The last completed State of the run.
        saved: The last State that the store has acknowledged.
        shows: Whether somebody iterates over the run.
        depth: How many graphs this one runs within.
        path: The last nodes entered.
        completed: The nodes completed in this call, while an observer wants events.
        recent: The last States that are not saved, where not every step is.
        unsaved_parts: Finished parts of the step that is being made, which are saved only if the run ends early.
    """

    plan: Plan
    services: Services
    wanted: frozenset[EventType]
    shows: bool = False
    depth: int = 0
    state: State = attrs.field(init=False)
    saved: State | None = attrs.field(default=None, init=False)
    path: deque[str] = attrs.field(factory=lambda: deque(maxlen=PATH_LENGTH), init=False)
    completed: set[str] = attrs.field(factory=set, init=False)
    unsaved_parts: list[Part] = attrs.field(factory=list, init=False)
    recent: deque[State] = attrs.field(factory=lambda: deque(maxlen=_RECENT), init=False)
    _joined: bool = attrs.field(default=False, init=False)

    # ------------------------------------------------------------------ starting

    def execute(self, state: State) -> Task[State]:
        """Run a State from the entry point to an exit point."""
        self.state = yield from self._admit(state)
        return (yield from self._run(None))

    def resume(
        self, run_id: str, updates: Mapping[str, Any], allow_changed: bool, migrate: Mapping[str, str] | None = None
    ) -> Task[State]:
        """Run on from the newest saved State of a run, with its data updated."""
        check_run_id(run_id)
        if not self.plan.saves:
            raise CheckpointingDisabledError(self.plan.graph)
        saved = yield (Load, self.services.load, run_id)
        yield from self._emit(EventType.CHECKPOINT_LOAD, saved)
        check_fits(self.plan, moved(saved, migrate or {}, self.plan), allow_changed)
        return (yield from self._go_on(moved(saved, migrate or {}, self.plan), updates, is_same=not migrate))

    def _go_on(self, saved: State, updates: Mapping[str, Any], *, is_same: bool = True) -> Task[State]:
        """Bring a saved State back to life, durably if it changes, and run on from it."""
        run_id = saved.run_id
        if saved.status is RunStatus.PAUSED:
            saved, updates = yield from self._woken(saved, updates)
            is_same = False
        yield (Retain, self.services.retain, run_id)
        self.state = self._stamp(with_data(saved, self._completed_data(lay_over(data_of(saved), updates))))
        if data_of(self.state) != data_of(saved) or updates or not is_same:
            yield from self._save((Amend, self.services.amend, self.state), self.state)
        if self.plan.loads_parts:
            yield (Parts, self.services.drop_parts, (run_id, saved.step, bool(updates) and is_same))
        yield from self._emit(EventType.CHECKPOINT_RESUME, self.state)
        return (yield from self._run(self.plan.stages.get(saved.checkpoint_node)))

    def _woken(self, saved: State, updates: Mapping[str, Any]) -> Task[tuple[State, Mapping[str, Any]]]:
        """-> a paused State as one that goes on at the node that paused, and the updates with an answer that will do.

        A run whose deadline has passed, with no answer for that case, fails here.
        """
        pause = cast(Pause, saved.pause)
        key, stage = pause.response_param, self.plan.stages[pause.node]
        asked = yield from stage.node.asked(Visit(self, stage, saved))
        if is_late(pause):
            if asked.otherwise is NOTHING:
                self.state = self.saved = saved
                raise (yield from self._expired(pause))
            if key in updates:
                raise AnswerError(saved.run_id, pause, "it comes too late: resume without an answer goes on")
            updates = {**updates, cast(str, key): asked.otherwise}
        elif key is not None:
            if key not in updates:
                raise AnswerError(saved.run_id, pause, "there is none")
            try:
                updates = {**updates, key: asked.accepted(updates[key])}
            except ValueError as error:
                raise AnswerError(saved.run_id, pause, str(error)) from error
        return awake(saved, pause), updates

    def _expired(self, pause: Pause) -> Task[ExecutionError]:
        """-> the error for a run that waited until its deadline; it is saved as failed."""
        cause = TimeoutError(f"nobody answered until {pause.deadline}")
        self.path.append(pause.node)
        error = self._failure(pause.node, f"failed: {describe_exception(cause)}", cause)
        error.state = evolve(error.state, pause=None)
        error.__cause__ = cause
        yield from self._rescue(error)
        return error

    def run_child(self, visit: Visit, plan: Plan, saved: State | None, inputs: Mapping[str, Any]) -> Task[State]:
        """-> the State that the run of a graph within this one ends with."""
        services = self.services.within(plan.graph)
        child = Engine(plan, services, self.wanted, self.shows, self.depth + 1)
        child.state = saved or child.begun_within(visit, inputs)
        try:
            return (yield from child.run_within(visit, saved))
        except RunCancelledError as error:
            raise Stopped(error.reason) from error.__cause__
        except CheckpointError as error:
            raise StoreFailed from error
        finally:  # whatever comes of it: what has answered within answers nothing out here any more
            visit.take_answers(key for key in child.answered if visit.shares(key, inputs))

    @property
    def answered(self) -> frozenset[str]:
        """The keys whose values have served as answers."""
        return self.state.progress.answered if self.state.progress else frozenset()

    def begun_within(self, visit: Visit, inputs: Mapping[str, Any]) -> State:
        """-> the State with which a run begins that is a step of another."""
        begun = evolve(State(inputs, run_id=visit.child_run_id()), progress=visit.progress_within(inputs))
        return evolve(self._stamp(begun), parent=ParentStep(visit.state.run_id, visit.state.step))

    def run_within(self, visit: Visit, saved: State | None) -> Task[State]:
        """As execute or, where a State of the run is saved, resume; answers come from the run that it is within."""
        if saved is None:
            if self.plan.saves:
                yield (Retain, self.services.retain, self.state.run_id)
            return (yield from self._run(None))
        if saved.status is RunStatus.COMPLETED:
            return saved
        check_fits(self.plan, saved, allow_changed=True)
        pause, answer = saved.pause, {}
        if pause is not None and visit.answers(pause):
            saved = awake(saved, pause)
            if pause.response_param is not None:
                answer = {pause.response_param: visit.state[pause.response_param]}
        elif pause is not None and not is_late(pause):
            return saved
        # A pause whose deadline has passed unanswered begins anew.
        return (yield from self._go_on(evolve(saved, status=RunStatus.ACTIVE), answer, is_same=pause is None))

    def _admit(self, state: State) -> Task[State]:
        """-> the State as it enters the graph; a State with a past is brought back to life durably."""
        started = evolve(self._stamp(with_data(state, self._completed_data(data_of(state)))), checkpoint_node="")
        if not self.plan.saves:
            return started
        if state.step == 0 and state.graph is None:
            yield from self._check_new(state)
            yield (Retain, self.services.retain, state.run_id)
        else:
            if state.progress is not None:
                started = evolve(started, progress=(yield from self._progress_of(state)))
            yield (Retain, self.services.retain, state.run_id)
            yield from self._save((Amend, self.services.amend, started), started)
        return started

    def _completed_data(self, data: dict[str, Any]) -> dict[str, Any]:
        """-> the data, with the graph's defaults where they have no value."""
        defaults = self.plan.defaults
        return data if defaults.keys() <= data.keys() else lay_over(dict(defaults), data)

    def _progress_of(self, state: State) -> Task[Progress | None]:
        """-> the progress of a run that is executed anew: values that are new to it can be answers again."""
        saved = yield (Load, self.services.load, state.run_id)
        given = {key for key in state if key not in saved or saved[key] != state[key]}
        progress = cast(Progress, state.progress)
        return evolved(progress, next_node="", woken=None, partial=None, answered=progress.answered - given)

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
        progress = state.progress and evolved(state.progress, partial=None)
        fresh = {"status": RunStatus.ACTIVE, "error": None, "pause": None, "progress": progress}
        return evolve(state, graph=plan.graph, structure=plan.structure, **fresh)

    # ------------------------------------------------------------------ running

    def _run(self, stage: Stage | None) -> Task[State]:
        """Run on from a stage that is completed (None: from the start), and see to what ends the run early."""
        try:
            yield from self._emit(EventType.GRAPH_START, self.state)
            yield from self._steps(stage, self.state.progress.next_node if self.state.progress else "")
            if self.state.status is not RunStatus.PAUSED:
                yield from self._complete()
        except GeneratorExit:  # the driver is gone: nobody is left to carry out a command
            raise
        except Stopped as stop:
            error = RunCancelledError(self.state, str(stop))
            yield from self._rescue(error)
            raise error from stop.__cause__
        except Escaped as escaped:
            yield from self._rescue(escaped)
            raise cast(BaseException, escaped.__cause__) from None
        except StoreFailed as failed:
            lost = cast(CheckpointError, failed.__cause__)
            yield from self._rescue(lost)
            raise lost from lost.__cause__
        except BaseException as error:
            yield from self._rescue(error)
            raise
        yield from self.show(self.state)
        return self.state

    def _steps(self, stage: Stage | None, following: str) -> Task[None]:  # noqa: PLR0912, PLR0915 - the one loop, best read in one piece
        """Step after step until an exit point or a pause: take an edge, run the node behind it, save what is due.

        `following` is the first node, where that is decided already.
        """
        plan, state = self.plan, self.state
        stages, interval, enter = plan.stages, plan.interval, self.path.append
        watched = self.shows or not self.wanted.isdisjoint(STEP_EVENTS)
        tells_saves = EventType.CHECKPOINT_SAVE in self.wanted
        save = self.services.save
        left = plan.max_iterations
        recent, keeps_recent = self.recent, plan.saves and interval != 1
        while following or stage is None or not stage.is_exit:
            if following:
                name, following = following, ""
            elif stage is None:
                name = plan.entry
            else:
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
            visit = None
            try:
                if stage.is_plain:
                    function = self._function(stage) if stage.wants_context else stage.function
                    result = yield (stage.kind, function, state)
                else:
                    visit = Visit(self, stage, state)
                    result = yield from visit.result()
                if type(result) is dict:  # the most frequent case by far
                    data = lay_over(data_of(state), result)
                else:
                    if type(result) is not State and isawaitable(result):
                        result = yield (Await, result, name)
                    if type(result) is State and result.pause is not None:
                        yield from self._pause(stage, result.pause)
                        return
                    data = data_from(result, state)
            except Exception as error:
                attempts = f" after {visit.attempt} attempts" if visit is not None and visit.attempt > 1 else ""
                failure = self._failure(name, f"failed{attempts}: {describe_exception(error)}", error)
                if stage.policies.on_error is None:
                    raise failure from error
                following, visit = stage.policies.on_error, visit or Visit(self, stage, state)
                data = lay_over(data_of(state), _error_data(failure))
            self.state = state = completed_by(name, state, data)
            if visit is not None:
                self.state = state = self._after(visit, state, following)
            if watched:
                self.completed.add(name)
                yield from self._emit(EventType.NODE_COMPLETE, state)
            # Saved before the edges are tried: a predicate that raises must not cost the node's work.
            if interval and state.step % interval == 0:
                yield (Save, save, state)
                self.saved = state
                recent.clear()
                if tells_saves:
                    yield from self._emit(EventType.CHECKPOINT_SAVE, state)
                if self._joined:
                    yield from self._drop_parts()
            elif keeps_recent:
                recent.append(state)
            if watched and not stage.is_exit:
                yield from self.show(state)

    def _after(self, visit: Visit, state: State, following: str) -> State:
        """-> the State after a visit, with what the run has to know of it."""
        self.unsaved_parts.clear()
        self._joined = self._joined or visit.stage.node.has_parts
        progress = visit.progress_after(state.progress)
        return evolve(state, progress=evolved(progress, next_node=following) if following else progress)

    def _drop_parts(self) -> Task[None]:
        """Forget parts that a saved State has joined."""
        self._joined = False
        if self.plan.keeps_parts:
            yield (Parts, self.services.drop_parts, (self.state.run_id, self.state.step, False))

    def _pause(self, stage: Stage, pause: Pause) -> Task[None]:
        """Save the run as one that waits."""
        if not self.plan.saves:
            raise self._failure(stage.name, "cannot pause: the graph saves nothing (checkpoint.interval is 0)")
        pause = attrs.evolve(pause, node=stage.name)
        self.state = state = evolve(self.state, status=RunStatus.PAUSED, pause=pause)
        yield from self._save((Save, self.services.save, state), state)
        yield from self._flush(state)
        yield from self._emit(EventType.GRAPH_PAUSE, state, reason=pause.reason, response_param=pause.response_param)

    def _function(self, stage: Stage) -> Callable[[State], Any]:
        """-> the function of a node that wants a context, with the context of the step that is being made."""
        state, function = self.state, stage.function
        context = NodeContext(state.run_id, self.plan.graph, stage.name, state.step + 1, generation=state.generation)
        return lambda state: function(state, context)

    def _complete(self) -> Task[None]:
        """The exit point is reached: keep the final State or forget the run, as configured."""
        self.state = state = evolve(self.state, status=RunStatus.COMPLETED)
        if self.plan.saves and self.plan.preserve:
            yield from self._save((Save, self.services.save, state), state)
            if self._joined:
                yield from self._drop_parts()
            yield from self._flush(state)
        elif self.plan.saves:
            yield (Delete, self.services.delete, state)
            yield from self._emit(EventType.CHECKPOINT_DELETE, state)
        yield from self._emit(EventType.GRAPH_COMPLETE, state)

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
                yield from self._save_last(state)
            elif isinstance(error, NotSerializableError):
                yield from self._save_newest_that_can_be()
            if self.unsaved_parts and self.plan.loads_parts:
                yield (Parts, self.services.save_parts, (state, self.unsaved_parts))
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
            yield from self._save_newest_that_can_be()
            raise

    def _save_newest_that_can_be(self) -> Task[None]:
        """Of the steps since the last save, keep as many as can be kept."""
        while self.recent:
            state = self.recent.pop()
            try:
                yield from self._save((Save, self.services.save, state), state)
            except NotSerializableError:
                continue
            return

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

    def tell(self, type: EventType, run_id: str, step: int, node: str, about: Mapping[str, Any]) -> Task[None]:
        """Tell the observer of something that happens within a step."""
        if type in self.wanted:
            yield (Notify, self.services.notify, (type, {"run_id": run_id, "step": step, "node": node, **about}))

    def show(self, state: State) -> Task[None]:
        """Show a State to whoever iterates over the run; not those of a graph within."""
        if self.shows:
            yield (Show, None, state)

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


def _error_data(failure: ExecutionError) -> dict[str, Any]:
    """-> what a handler of failures finds in the State."""
    error = cast(ErrorInfo, failure.state.error)
    return {"error": {"type": error.type, "message": error.message, "node": error.node}}
