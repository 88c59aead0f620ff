"""The hot loop, and the beginning of a run.

The engine decides everything and does no I/O. Its tasks are generators: they yield commands (run this node, save this
State). A driver executes each command and sends its result back, or throws its exception; the task of a run returns the
final State. The pattern is known as sans-I/O (https://sans-io.readthedocs.io). Here it lets one engine serve two
drivers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from inspect import isawaitable
from time import monotonic
from typing import Any, TypeAlias, cast

import attrs

from stategraph._engine.context import (
    NOTHING_GIVEN,
    Keys,
    RunContext,
    announce_completion,
    announce_entry,
    context_of,
    emit,
    fitting,
    observed,
    show,
    with_origins,
)
from stategraph._engine.ending import complete, end_early, handle, no_way_on, pause_at, too_many_nodes
from stategraph._engine.io import LOOK_AGAIN
from stategraph._engine.owning import owning
from stategraph._engine.saving import amend, check_not_of_another, drop_joined_parts, newest_of, save, save_at_node
from stategraph._engine.spending import check_limits, counting, recall
from stategraph._graph.compiled import CompiledNode
from stategraph._graph.versions import upgraded, version_of
from stategraph._owners.base import NewEntriesError, Ownership
from stategraph._protocol import Await, Load, OutcomeUnknown, Save, Stopped, Task, Until, Watch, pause_asked_by
from stategraph._values import clock
from stategraph._values.events import STATE_EVENTS, STEP_EVENTS, EventType
from stategraph._values.frozen import are_settled, changed_items, freeze_items, lay_over, plain_key
from stategraph._values.ids import check_given_id
from stategraph._values.progress import Pause, Progress, evolved
from stategraph._values.provenance import Facts, InputDigest, RunStatus
from stategraph._values.registered_types import forms_in
from stategraph._values.sameness import differing_items
from stategraph.edges import NoWay, choose
from stategraph.errors import RunExistsError, StepConflictError
from stategraph.nodes.function import FunctionNode, data_from
from stategraph.state import (
    State,
    check_successor,
    completed_by,
    data_of,
    effects_of,
    evolve,
    recorded,
    taken_of,
    time_ns_of,
    turns_of,
    with_data,
)

_Pausing: TypeAlias = tuple[CompiledNode, Pause, State | None]
"""A node that pauses the run, its Pause, and the State with its changes, if there are any."""

_MANY_KEYS = 500  # of a State: with fewer, comparing all keys is faster than tracking the changed ones


def run_from(run: RunContext, stage: CompiledNode | None, entering: Task[State] | None = None) -> Task[State]:
    """Run from the node after a completed one (None: from the start), and handle whatever ends the run early.

    The run begins with the answer of `entering`, if given.
    """
    if entering is not None:
        run.state = yield from entering
    progress = run.state.progress
    try:
        if progress is not None and progress.deadline_ns and run.outer_step is None:
            run.signal = yield (Until, None, progress.deadline_ns)
        steps = _steps(run, stage, run.state.progress.next_node if run.state.progress else "")
        if run.wanted:
            run.began_ns = clock.monotonic_ns()
            yield from emit(run, EventType.GRAPH_START, run.state)
            if hasattr(run.observer, "enter_node"):
                steps = observed(run, steps)
        pausing = yield from steps
        if pausing is None:
            yield from _complete(run)
        else:
            run.session.roll_back()
            yield from pause_at(run, *pausing)
    except BaseException as error:
        run.session.roll_back()
        yield from end_early(run, error)
        raise
    yield from show(run, run.state)
    return run.state


def _complete(run: RunContext) -> Task[None]:
    """Complete the run, after it has taken in the messages that came during its last step."""
    while True:
        step = run.state
        try:
            return (yield from complete(run))
        except NewEntriesError:
            from stategraph._engine.inbox import take_in  # imported when used: few runs get messages

            run.state = step
            run.state = yield from take_in(run, step)


def _steps(run: RunContext, stage: CompiledNode | None, name: str) -> Task[_Pausing | None]:  # noqa: PLR0912, PLR0915 - the one loop, best read in one piece
    """Execute steps until an exit point: follow an edge, run its target, save when a save is due.

    `name` is the first node, if it is already decided.
    """
    plan, state = run.plan, run.state
    stages, interval, left = plan.stages, plan.interval, plan.max_iterations
    enter, save_state, ownership = run.path.append, run.session.save, run.session.ownership
    watched = run.shows or not run.wanted.isdisjoint(STEP_EVENTS)
    emits_saves = EventType.CHECKPOINT_SAVE in run.wanted
    is_timed = plan.saves or run.shows or bool(run.wanted)
    monotonic_ns, now_ns = clock.monotonic_ns, clock.now_ns
    checks_cancellation, session = plan.saves and (interval != 1 or plan.write_behind), run.session
    session.look_at = monotonic() + LOOK_AGAIN
    session.watch_inbox(run)
    if ownership is not None and run.outer_step is None:
        yield (Watch, partial(session.look_out, run), None)
    data, overtakes = data_of(state), state.progress is not None and bool(state.progress.kept_names)
    limits, spending, is_nested, emits = run.limits, run.spending, run.outer_step is not None, run.emits
    records_nodes = not is_nested and interval == 1 and not plan.write_behind
    owners = ownership.owners if records_nodes and ownership is not None else None
    record_node = None if owners is None or ownership is None else owners.node_recorder(ownership)
    if stage is None:
        name, stage = name or plan.entry, stages[plan.entry]
    while name or not stage.is_exit:
        edge = None
        if not name:
            edge = stage.sure_edge or choose(stage.edges, state)
            if type(edge) is NoWay:
                raise (yield from no_way_on(run, stage, edge))
            name = edge.target
        enter(name)
        if record_node is not None:
            try:
                record_node(now_ns(), name.encode("utf-8", "replace"))
            except TypeError:  # its memory is unmapped: this process was forked from that of the owner
                record_node = None
        if watched:
            yield from announce_entry(run, stage, edge, name, begins=left > 0)
        if not left:
            raise too_many_nodes(run, name)
        if limits:
            check_limits(run, name)
        left -= 1
        stage, step, keys, handler = stages[name], None, None, ""
        began = monotonic_ns() if is_timed else 0
        try:
            if stage.execution is None and (stage.function is not None or not emits):
                result = yield (stage.kind, stage.function or _function(run, stage), state)
            else:
                step = _execution(run, stage, state)
                result = yield from step.result()
                data = data_of(step.state)  # a retry may have begun with copies
            if type(result) is dict:  # by far the most frequent case
                if len(data) > _MANY_KEYS:
                    result = result.copy()  # the node may keep the dict and change it
                    keys = tuple(map(plain_key, result))
                data = lay_over(data, result)
            else:
                if type(result) is not State and isawaitable(result):
                    result = yield (Await, result, name)
                if type(result) is State and result.pause is not None and result.run_id == state.run_id:
                    # An unserializable pause is no failure of the node.
                    return stage, result.pause, _with_changes(run, step, result)
                data = data_from(result, state if step is None else step.state)
        except Exception as error:
            session.roll_back()
            keys, (handler, data) = None, (yield from handle(run, stage, step, error, began))
        except (OutcomeUnknown, BaseExceptionGroup) as error:
            return stage, pause_asked_by(error), None
        before = state
        state = completed_by(name, state, data, monotonic_ns() - began if is_timed else None, keys)
        if step is not None:
            state = step.completed(state, is_failed=bool(handler))
        if run.did or (is_nested and before.facts is not None):
            state = _having_done(run, before, state)
        if overtakes:
            state = _overtaking(run, before, state)
        if handler:
            state = evolve(state, progress=evolved(state.progress, next_node=handler))
        if spending.is_new and not is_nested:
            state = counting(run, state)
        run.state = state  # in one piece: an interrupt saves all of the step, or nothing of it
        if watched:
            yield from announce_completion(run, handler)
        if ownership is not None and ownership.transaction is not None:
            yield from save_at_node(run, state)
        if stage.is_exit and not handler:  # `complete` saves or deletes it
            return None
        # Saved before the edges are tried: a predicate that raises must not cost the node's work.
        if interval == 1 or (interval and state.step % interval == 0):
            began = monotonic_ns() if emits_saves else 0
            if state is not run.saved:
                yield (Save, save_state, state)
                run.saved = state
                if emits_saves:
                    yield from emit(run, EventType.CHECKPOINT_SAVE, state, began)
            if run.has_joined_parts:
                yield from drop_joined_parts(run, state)
            if ownership is not None and ownership.is_cancelled:
                raise Stopped("it was cancelled")
        if checks_cancellation and monotonic() >= session.look_at:
            yield (Load, session.stop_if_cancelled, state)
        if watched:
            yield from show(run, state)
        if ownership is not None and ownership.inbox and ownership.inbox > taken_of(state):
            from stategraph._engine.inbox import take_in  # imported when used: few runs get messages

            run.state = state = yield from take_in(run, state)
            data = data_of(state)
        name = handler
    return None


def _overtaking(run: RunContext, before: State, state: State) -> State:
    """Record the values that a node has changed before a node that was under way earlier; see `Progress.kept_names`."""
    if not run.plan.loads_parts or state.progress is None or not state.progress.kept_names:
        return state
    from stategraph._progress import old_values

    changed = old_values(run.plan.persist, data_of(before), data_of(state))
    return evolve(state, progress=evolved(state.progress, overtaken={**changed, **state.progress.overtaken}))


def _having_done(run: RunContext, before: State, state: State) -> State:
    """Record the keys of the effects of a step; of a nested run, those of all steps, for the step around it."""
    effects = dict.fromkeys(effects_of(before) if run.outer_step is not None else ()) | run.did
    run.did.clear()
    run.effects.clear()
    return evolve(state, facts=attrs.evolve(state.facts or Facts(), effects=effects)) if effects else state


def _with_changes(run: RunContext, step: Any, result: State) -> State | None:
    """Return the State of the run with the changes of a node that pauses it; None if there are none."""
    before, after = data_of(run.state if step is None else step.state), data_of(result)
    if before.keys() == after.keys() and not changed_items(before, after):
        return None
    state = with_data(run.state, after)
    progress = state.progress if step is None else step.progress_after(state, is_failed=False)
    return _overtaking(run, run.state, evolve(state, progress=progress and progress.after_changes()))


def _function(run: RunContext, stage: CompiledNode) -> Callable[[State], Any]:
    """Return the function of a node that takes a context, bound to the context of the current step."""
    context, function = context_of(run, stage.name, run.state), cast(FunctionNode, stage.node).function
    return lambda state: context._journal.returned(function(state, context))


def _execution(run: RunContext, stage: CompiledNode, state: State) -> Any:
    """Return the execution of a node that is more than a function call, or whose chunks someone wants."""
    if stage.execution is None:
        from stategraph._engine.step import StepExecution  # imported when used: few graphs need it

        return StepExecution(run, stage, state)
    return stage.execution(run, stage, state)


# --------------------------------------------------------------------------- beginning


def execute(run: RunContext, state: State, *, restart: bool = False) -> Task[State]:
    """Run a State from the entry point to an exit point; `restart` also allows a State of an incomplete run."""
    return owning(run, Ownership(id_of(state)), begin(run, state, restart=restart))


def id_of(state: object) -> str:
    """Return the run id of the State that a run begins with. Raises TypeError if it is not a State."""
    if not isinstance(state, State):
        raise TypeError(f"a graph runs a State, not {type(state).__name__}: State({{...}}) makes one of a mapping")
    return check_given_id(state.run_id)


def begin(run: RunContext, state: State, *, restart: bool = False) -> Task[State]:
    """Do what `execute` does, as the owner of the run."""
    return run_from(run, None, admit(run, state, restart=restart))


def admit(run: RunContext, state: State, *, restart: bool = False) -> Task[State]:
    """Return the State as it enters the graph. A State with a past is saved first."""
    is_new = state.step == 0 and state.graph is None
    before = state
    put: Keys = ()
    gone: Keys = ()
    if is_new:
        state = _as_input(run, state)
    else:
        before, state, put, gone = yield from _continued(run, state, restart=restart)
    given = data_of(state)
    if run.plan.schema is not None:
        given = freeze_items(fitting(run, given, {}))
    started = evolve(prepared(run, with_data(state, with_defaults(run, given))), checkpoint_node="")
    if run.labels:
        started = evolve(started, labels=run.labels)
    started = with_origins(run, started, before, put, gone)
    if started.progress is not None or run.due_ns or run.deadline_ns:
        started = _timed(started, run.due_ns, run.deadline_ns)
    if not run.plan.saves:
        return started
    if is_new:
        return (yield from _as_submitted(run, state, started))
    run.has_joined_parts = run.plan.loads_parts  # possibly: an earlier call may have crashed before
    return (yield from amend(run, started))


def _timed(state: State, due_ns: int, deadline_ns: int) -> State:
    return evolve(state, progress=evolved(state.progress, due_ns=due_ns, deadline_ns=deadline_ns))


def digest_of_input(run: RunContext, data: Mapping[str, Any]) -> InputDigest:
    """Return a digest of data that a caller gives, which recognises them when they are given again.

    Keys that are not saved do not count: they may be secrets. It is empty if a value cannot be saved.
    """
    counted = run.plan.saved_of(data)
    if are_settled(counted.values()):
        return InputDigest(partial(run.plan.digest, counted))
    # Made now: nodes may change the objects. It has the forms of their classes, as other forms cannot be compared.
    text, digest = run.plan.digest(counted), run.plan.digest
    found = sorted(forms_in(counted.values()).items())
    forms = [f" {digest({'': name})[:8]}={digest({'': form})[:8]}" for name, form in found]
    return InputDigest(None, "".join([text, *forms]) if text else "")


def _as_input(run: RunContext, state: State) -> State:
    """Return the State with which a run begins, with the digest of its data."""
    return evolve(state, input_digest=digest_of_input(run, data_of(state))) if run.plan.saves else state


def with_defaults(run: RunContext, data: dict[str, Any]) -> dict[str, Any]:
    """Return the data, with defaults of the graph for missing keys."""
    defaults = run.plan.defaults
    return data if defaults.keys() <= data.keys() else lay_over(dict(defaults), data)


def prepared(run: RunContext, state: State) -> State:
    """Return the State prepared to run on this graph."""
    plan = run.plan
    if state.observer is None and not run.wanted.isdisjoint(STATE_EVENTS):
        state = evolve(state, observer=run.observer)
    progress = state.progress and state.progress.changed(partial=None, recoveries=0, due_ns=0)
    fresh: dict[str, Any] = {"status": RunStatus.ACTIVE, "error": None, "pause": None, "progress": progress}
    return recorded(state, by=run.by, graph=plan.graph, structure=plan.structure, **fresh)


def _as_submitted(run: RunContext, state: State, started: State) -> Task[State]:
    """Return the State that begins a run, or its saved form if the same run was submitted or begun before.

    Raises:
        RunExistsError: The store has another run with this id.
    """
    saved = yield from newest_of(run, state.run_id)
    if saved is not None:
        yield from recall(run, saved)
        if saved.progress is not None and (saved.progress.due_ns or saved.progress.deadline_ns):
            started = _timed(started, saved.progress.due_ns, saved.progress.deadline_ns)
        as_saved = state if saved.graph is None else evolve(started, _time_ns=time_ns_of(saved))
        has_same_data = saved.keys() == as_saved.keys() and not differing_items(saved, as_saved)
        if not has_same_data or with_data(saved, {}) != with_data(as_saved, {}):  # objects may not support comparison
            raise exists(run, saved)
        if not run.labels:
            started = evolve(started, labels=saved.labels)
        if saved.graph is not None and (saved.status, saved.labels) == (started.status, started.labels):
            run.found = evolve(started, _time_ns=time_ns_of(saved))
            return run.found
    if run.accepts:  # the input is durable before the first node
        return (yield from save(run, started))
    run.session.save_with_next(started)
    return started


def exists(run: RunContext, saved: State, but: str = "") -> RunExistsError:
    """Return the error for a caller with a State that is not the input of the saved run of the same id."""
    loaded = f"execute(store.load({saved.run_id!r})"
    if saved.status is RunStatus.COMPLETED:
        ways = f"turn({saved.run_id!r}, {{...}}) gives it new input, {loaded}) begins it again"
    else:
        ways = f"resume({saved.run_id!r}) continues it, {loaded}, restart=True) begins it again"
    way_out = f"{but}it is {saved.status}; {ways}, and new work takes another run_id"
    return RunExistsError(saved.run_id, run.plan.store, way_out=way_out)


# --------------------------------------------------------------------------- States with a past


def _continued(run: RunContext, state: State, *, restart: bool) -> Task[tuple[State, State, Keys, Keys]]:
    """Compare a State that has a past with its checkpoint.

    Values that are new to the run can be answers again. A run that was deleted on completion has no known values.

    Returns:
        The checkpoint and the State, both complete, and the keys that were set and removed between them.

    Raises:
        GraphMismatchError: the call would discard an incomplete run of another graph.
        RunExistsError: the run is not complete, and `restart` is false.
    """
    newest = yield from newest_of(run, state.run_id)
    check_not_of_another(run, newest)
    if version_of(state) != run.plan.structure.version:  # the saved State is of the same version, or newer
        state, newest = upgraded(run.plan, state), newest and upgraded(run.plan, newest)
    yield from recall(run, state if newest is None else newest)
    if newest is None:
        state = _as_input(run, state)
    else:
        run.did.clear()  # the step under way is given up
        if not restart:
            _check_complete(run, newest, state)
        try:
            check_successor(newest, state, same_data=True)  # before the parts of its step are dropped
        except StepConflictError as error:  # or the run is lost
            yield (Load, run.session.end_save, (state, error))
        state = evolve(state, progress=_with_inbox_of(newest, state))
    progress = state.progress
    if progress is None:
        return state, state, (), ()
    new = set() if newest is None else differing_items(newest, state).keys()
    left = evolved(progress.without_step(), answered=progress.answered - new)
    # If the State is not of the newest saved step, all its keys are new.
    is_newest = newest is not None and newest.step == state.step
    saved = evolve(newest if newest is not None and is_newest else with_data(state, {}), progress=left)
    all_keys, changes = yield from with_all_keys(run, saved, differing_items(saved, state))
    recomputed = {key: value for key, value in data_of(all_keys).items() if key not in saved and key not in state}
    state = evolve(with_data(state, {**data_of(state), **recomputed}), progress=all_keys.progress)
    return all_keys, state, changes.keys(), saved.keys() - state.keys()


def _with_inbox_of(newest: State, state: State) -> Progress | None:
    """Return the progress of a State with what its run has taken in, and with the turn of its inbox that it begins."""
    taken, turns = (max(each(newest), each(state)) for each in (taken_of, turns_of))
    serves = state.progress.serves if state.progress is not None and turns > turns_of(newest) else 0
    return evolved(state.progress, taken=taken, turns=turns, serves=serves)


def _check_complete(run: RunContext, newest: State, state: State) -> None:
    """Raise RunExistsError if the call would leave behind a run that has begun and is not complete.

    A State that the caller constructed for a step after the newest one is accepted.
    """
    is_of_run = state.graph is not None or state.step <= newest.step
    if is_of_run and newest.graph is not None and newest.status is not RunStatus.COMPLETED:
        raise RunExistsError(newest.run_id, run.plan.store, newest.status.value)


def with_all_keys(
    run: RunContext, saved: State, updates: Mapping[str, Any], inputs: Mapping[str, Any] = NOTHING_GIVEN
) -> Task[tuple[State, Mapping[str, Any]]]:
    """Return a saved State with its unsaved keys, and the updates that still apply.

    Args:
        run: The run.
        saved: The State.
        updates: Keys that are given.
        inputs: The input of the run, if known.
    """
    if saved.progress is None or not saved.progress.origins:
        return saved, updates
    from stategraph._engine.recomputing import with_unsaved_keys

    return (yield from with_unsaved_keys(run, saved, updates, inputs))
