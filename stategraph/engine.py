"""Every decision of a run, and none of its I/O.

`Engine.execute` and `Engine.resume` are generators. They yield commands (run this node, save this State); a driver
carries each one out and sends back what came of it, or throws what was raised; what the generator returns is the final
State. The pattern is known as sans-I/O (https://sans-io.readthedocs.io). Here it lets one engine serve two drivers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from inspect import isawaitable
from types import MappingProxyType
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
    AsyncNodeError,
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
from stategraph.frozen import freeze_items, lay_over
from stategraph.ids import check_run_id
from stategraph.nodes.base import NOTHING
from stategraph.nodes.context import NodeContext
from stategraph.nodes.function import FunctionNode, data_from
from stategraph.persist import Written, accounted
from stategraph.plan import Plan, Stage
from stategraph.provenance import ErrorInfo, ParentStep, Part, Pause, Progress, RunStatus, evolved
from stategraph.recompute import restored
from stategraph.services import Services
from stategraph.state import State, completed_by, data_of, evolve, with_data
from stategraph.visit import Visit, is_late

_RECENT = 100  # States behind the last saved one that are tried if the newest of them cannot be saved
_NOTHING: Mapping[str, Any] = MappingProxyType({})
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
        path: The last nodes entered.
        completed: The nodes completed in this call, while an observer wants events.
        recent: The last States that are not saved, where not every step is.
        before: The State that was resumed as it was without the updates, if there are any.
        unsaved_parts: Finished parts of the step that is being made, which are saved only if the run ends early.
    """

    plan: Plan
    services: Services
    wanted: frozenset[EventType]
    shows: bool = False
    state: State = attrs.field(init=False)
    saved: State | None = attrs.field(default=None, init=False)
    path: deque[str] = attrs.field(factory=lambda: deque(maxlen=PATH_LENGTH), init=False)
    completed: set[str] = attrs.field(factory=set, init=False)
    unsaved_parts: list[Part] = attrs.field(factory=list, init=False)
    recent: deque[State] = attrs.field(factory=lambda: deque(maxlen=_RECENT), init=False)
    before: State | None = attrs.field(default=None, init=False)
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

    def _go_on(
        self, saved: State, updates: Mapping[str, Any], inputs: Mapping[str, Any] = _NOTHING, *, is_same: bool = True
    ) -> Task[State]:
        """Bring a saved State back to life, durably if it changes, and run on from it.

        `inputs` are what the run began with, where that is known.
        """
        run_id = saved.run_id
        if saved.status is RunStatus.PAUSED:
            saved, updates = yield from self._woken(saved, updates)
            is_same = False
        saved = _with_answers(saved, updates)
        self.before = saved if updates else None
        updates = self._fitting(updates, saved)
        whole, changes = yield from self._whole(saved, updates, inputs)
        yield (Retain, self.services.retain, run_id)
        data = lay_over(data_of(whole), changes)
        if self.plan.persist is not None:  # those that are not saved come again
            data = self._completed_data(data)
        self.state = self._accounted(self._stamp(with_data(whole, data)), whole, Written(changes))
        if self.plan.loads_parts:  # first: parts that were made of other data must never be found behind these
            yield (Parts, self.services.drop_parts, (run_id, saved.step, bool(updates)))
        if updates or not is_same:
            yield from self._save((Amend, self.services.amend, self.state), self.state)
        yield from self._emit(EventType.CHECKPOINT_RESUME, self.state)
        return (yield from self._run(self.plan.stages.get(saved.checkpoint_node)))

    def _whole(
        self, saved: State, updates: Mapping[str, Any], inputs: Mapping[str, Any] = _NOTHING
    ) -> Task[tuple[State, Mapping[str, Any]]]:
        """-> a saved State with the keys that were not saved, and the updates that remain to be laid over it.

        While they are computed the run stays as it is saved, so that it can be resumed in the same way again.
        """
        if saved.progress is None or not saved.progress.origins:
            return saved, updates
        self.state = self.saved = evolve(saved, progress=evolved(saved.progress, partial=None))
        try:
            whole = yield from restored(self, self.state, updates, inputs)
        except GeneratorExit:
            raise
        except BaseException as error:
            yield from self._end_early(error)
            raise
        self.saved = None
        return whole

    def _accounted(self, state: State, before: State, written: Written) -> State:
        """-> the State with the origins of its keys, after something else than a node has written."""
        return accounted(state, before, written, self.plan.persist, self.plan.defaults)

    def _woken(self, saved: State, updates: Mapping[str, Any]) -> Task[tuple[State, Mapping[str, Any]]]:
        """-> a paused State as one that goes on at the node that paused, and updates with an answer that will do.

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
                # Without a schema it is kept as it was given: the node that asked makes of it what it will be.
                fitting = self._fitting({key: asked.accepted(updates[key])}, saved)
                updates = updates if self.plan.schema is None else {**updates, **fitting}
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

    def run_child(
        self, visit: Visit, plan: Plan, saved: State | None, inputs: Mapping[str, Any], updates: Mapping[str, Any]
    ) -> Task[State]:
        """-> the State that the run of a graph within ends with: begun with inputs, or gone on with updates."""
        services = self.services.within(plan.graph, plan.persist)
        child = Engine(plan, services, self.wanted)
        child.state = saved or child.begun_within(visit, inputs)
        try:
            return (yield from child.run_within(visit, saved, inputs, updates))
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
        parent, progress = ParentStep(visit.state.run_id, visit.state.step), visit.progress_within(inputs)
        data = self._completed_data(freeze_items(self._fitting(inputs, {})))
        begun = self._stamp(State(data, run_id=visit.child_run_id(), parent=parent, progress=progress))
        return self._accounted(begun, begun, Written())

    def run_within(
        self, visit: Visit, saved: State | None, inputs: Mapping[str, Any], updates: Mapping[str, Any]
    ) -> Task[State]:
        """As execute or, where a State of the run is saved, resume; answers come from the run that it is within."""
        if saved is None:
            if self.plan.saves:
                yield (Retain, self.services.retain, self.state.run_id)
            return (yield from self._run(None))
        if saved.status is RunStatus.COMPLETED:  # and the step that it is part of was not saved any more
            return saved
        check_fits(self.plan, saved, allow_changed=True)
        pause, updates = saved.pause, {**updates}
        if pause is not None and visit.answers(pause):
            saved = awake(saved, pause)
            if pause.response_param is not None:
                updates[pause.response_param] = visit.state[pause.response_param]
        elif pause is not None and not is_late(pause):
            return saved
        # A pause whose deadline has passed unanswered begins anew.
        return (yield from self._go_on(evolve(saved, status=RunStatus.ACTIVE), updates, inputs, is_same=pause is None))

    def _admit(self, state: State) -> Task[State]:
        """-> the State as it enters the graph; a State with a past is brought back to life durably."""
        is_new = state.step == 0 and state.graph is None
        before, written = state, Written()
        if not is_new and state.progress is not None:
            before, state, written = yield from self._continued(state)
        given = data_of(state)
        if self.plan.schema is not None:
            given = freeze_items(self._fitting(given, {}))
        started = self._stamp(with_data(state, self._completed_data(given)))
        started = self._accounted(evolve(started, checkpoint_node=""), before, written)
        if not self.plan.saves:
            return started
        if is_new:
            yield from self._check_new(state)
            yield (Retain, self.services.retain, state.run_id)
        else:
            yield (Retain, self.services.retain, state.run_id)
            if self.plan.loads_parts:  # what is within the step that did not complete was made of other data
                yield (Parts, self.services.drop_parts, (state.run_id, state.step + 1, True))
            yield from self._save((Amend, self.services.amend, started), started)
        return started

    def _completed_data(self, data: dict[str, Any]) -> dict[str, Any]:
        """-> the data, with the graph's defaults where they have no value."""
        defaults = self.plan.defaults
        return data if defaults.keys() <= data.keys() else lay_over(dict(defaults), data)

    def _fitting(self, data: Mapping[str, Any], beside: Mapping[str, Any], node: str = "") -> Mapping[str, Any]:
        """-> data that did not come from a visit, as the schema of the graph wants them. Raises SchemaError."""
        schema = self.plan.schema
        return data if schema is None else schema.checked(node, data, beside)

    def _continued(self, state: State) -> Task[tuple[State, State, Written]]:
        """-> of a State with a past: what was saved, the State, each with all of its keys, and what is different.

        Values that are new to the run can be answers again; of one that was deleted when it completed, none is known.
        """
        progress, newest = cast(Progress, state.progress), (yield from self._newest_of(state))
        new = set() if newest is None else _changes(newest, state).keys()
        answered = progress.answered - new
        left = evolved(progress, next_node="", woken=None, partial=None, answered=answered)
        # Where it is not what was saved last, all keys are new.
        is_newest = newest is not None and newest.step == state.step
        saved = evolve(newest if newest and is_newest else with_data(state, {}), progress=left)
        whole, changes = yield from self._whole(saved, _changes(saved, state))
        made = {key: value for key, value in data_of(whole).items() if key not in saved and key not in state}
        state = evolve(with_data(state, {**data_of(state), **made}), progress=whole.progress)
        return whole, state, Written(changes, saved.keys() - state.keys())

    def _newest_of(self, state: State) -> Task[State | None]:
        """-> the newest saved State of the run, if there is one."""
        if not self.plan.saves:
            return None
        try:
            saved: State = yield (Load, self.services.load, state.run_id)
        except CheckpointNotFoundError:
            return None
        return saved

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
        except BaseException as error:
            yield from self._end_early(error)
            raise
        yield from self.show(self.state)
        return self.state

    def _end_early(self, error: BaseException) -> Task[None]:
        """Save what is to be saved, and raise what an exception that only drivers and visits know stands for."""
        if isinstance(error, Stopped):
            stop = RunCancelledError(self.state, str(error))
            yield from self._rescue(stop)
            raise stop from error.__cause__
        if isinstance(error, Escaped):
            yield from self._rescue(error)
            raise cast(BaseException, error.__cause__) from None
        if isinstance(error, StoreFailed):
            lost = cast(CheckpointError, error.__cause__)
            yield from self._rescue(lost)
            raise lost from lost.__cause__
        yield from self._rescue(error)

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
        pause: Pause | None = None
        recent, keeps_recent = self.recent, plan.saves and interval != 1
        name = following
        if stage is None:
            name, stage = following or plan.entry, stages[plan.entry]
        while name or not stage.is_exit:
            if not name:
                edge = choose(stage.edges, state)
                if watched:
                    yield from self._announce_edges(stage, edge)
                if type(edge) is NoWay:
                    raise self._stuck(stage, edge)
                name = edge.target
            elif watched:
                yield from self._announce_handler(stage, name)
            enter(name)
            if not left:
                raise self._endless(name)
            left -= 1
            if watched:
                yield from self._announce(name)
            stage = stages[name]
            visit = None
            following = ""
            try:
                if stage.is_plain:
                    result = yield (stage.kind, stage.function or self._function(stage), state)
                else:
                    visit = Visit(self, stage, state)
                    result = yield from visit.result()
                if type(result) is dict:  # the most frequent case by far
                    data = lay_over(data_of(state), result)
                else:
                    if type(result) is not State and isawaitable(result):
                        result = yield (Await, result, name)
                    if type(result) is State and result.pause is not None:
                        pause = result.pause
                        break
                    data = data_from(result, state)
            except Exception as error:
                visit = Visit(self, stage, state) if visit is None else visit
                yield from visit.tell_failure(error)
                failure = self._failed(visit, error)
                if stage.policies.on_error is None or isinstance(error, AsyncNodeError):
                    raise failure from error
                following = stage.policies.on_error
                data = lay_over(data_of(state), self._fitting(_error_data(failure), state, name))
            self.state = state = completed_by(name, state, data)
            if visit is not None:
                self.state = state = self._after(visit, state, following)
            if watched:
                self.completed.add(name)
                yield from self._emit(EventType.NODE_COMPLETE, state)
            # Saved before the edges are tried: a predicate that raises must not cost the node's work.
            if interval == 1 or (interval and state.step % interval == 0):
                yield (Save, save, state)
                self.saved = state
                if recent:
                    recent.clear()
                if tells_saves:
                    yield from self._emit(EventType.CHECKPOINT_SAVE, state)
                if self._joined:
                    yield from self._drop_parts()
            elif keeps_recent:
                recent.append(state)
            if watched and (following or not stage.is_exit):
                yield from self.show(state)
            name = following
        if stage is not None and pause is not None:  # out here: what cannot be saved is no failure of the node
            yield from self._pause(stage, pause)

    def _after(self, visit: Visit, state: State, following: str) -> State:
        """-> the State after a visit, with what the run has to know of it."""
        self.unsaved_parts.clear()
        self._joined = self._joined or visit.stage.node.has_parts
        progress = visit.progress_after(state, is_failed=bool(following))
        return evolve(state, progress=evolved(progress, next_node=following) if following else progress)

    def _drop_parts(self) -> Task[None]:
        """Forget parts that a saved State has joined."""
        self._joined = False
        if self.plan.loads_parts:
            yield (Parts, self.services.drop_parts, (self.state.run_id, self.state.step, False))

    def _pause(self, stage: Stage, pause: Pause) -> Task[None]:
        """Save the run as one that waits."""
        pause = attrs.evolve(pause, node=stage.name)
        self.state = state = evolve(self.state, status=RunStatus.PAUSED, pause=pause)
        if self.plan.saves:
            yield from self._save((Save, self.services.save, state), state)
            yield from self._flush(state)
        else:
            self.state = evolve(state, status=RunStatus.ACTIVE, pause=None)
            raise self._failure(stage.name, "cannot pause: the graph saves nothing (checkpoint.interval is 0)")
        yield from self._emit(EventType.GRAPH_PAUSE, state, reason=pause.reason, response_param=pause.response_param)

    def _function(self, stage: Stage) -> Callable[[State], Any]:
        """-> the function of a node that wants a context, with the context of the step that is being made."""
        state, function = self.state, cast(FunctionNode, stage.node).function
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
        """Show a State to whoever iterates over the run. Those of a graph within have a run_id of their own."""
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


def _with_answers(saved: State, updates: Mapping[str, Any]) -> State:
    """-> the State, in which the values that are given now can be answers."""
    progress = saved.progress
    if progress is None or progress.answered.isdisjoint(updates):
        return saved
    return evolve(saved, progress=evolved(progress, answered=progress.answered - updates.keys()))


_SAVE_ERRORS = (CheckpointSaveError, NotSerializableError, StepConflictError)
"""What a save ends with when trying it again would end the same."""


def _changes(saved: State | None, state: State) -> dict[str, Any]:
    """-> what a State has that was not saved, or with another value."""
    if saved is None:
        return dict(data_of(state))
    return {
        key: value
        for key, value in data_of(state).items()
        if key not in saved or type(saved[key]) is not type(value) or saved[key] != value
    }


def _message(cause: Exception | None, reason: str) -> str:
    """-> what a failed run keeps of an exception: its text, cut, and without what cannot be stored as UTF-8."""
    text = reason if cause is None else describe_exception(cause).removeprefix(f"{type(cause).__name__}: ")
    return text[:_MESSAGE_LENGTH].encode("utf-8", "backslashreplace").decode()


def _error_data(failure: ExecutionError) -> dict[str, Any]:
    """-> what a handler of failures finds in the State."""
    error = cast(ErrorInfo, failure.state.error)
    return {"error": {"type": error.type, "message": error.message, "node": error.node}}
