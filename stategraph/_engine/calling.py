"""Calls that look at a run first: run, turn, take_turn, submit, send, answer, recover and cancel."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Any, cast

import attrs

from stategraph._engine.answers import after_deadline, check_answer, chosen_pause, not_yet
from stategraph._engine.context import RunContext
from stategraph._engine.ending import end_cancelled, failure_at, noting
from stategraph._engine.inbox import answered_before, checked_message, stored_answers, unread
from stategraph._engine.loop import admit, begin, digest_of_input, exists, id_of
from stategraph._engine.owning import LATEST, SOONEST, check_saves, clear_cancellation, owning, owning_saved
from stategraph._engine.resume import compatible, fitting_saved, resume_owned
from stategraph._engine.saving import amend, check_not_of_another, flush, newest_of, save
from stategraph._graph.changed import began_elsewhere, other_graph, other_module
from stategraph._graph.compiled import CompiledGraph
from stategraph._graph.versions import version_of
from stategraph._owners.base import Ownership
from stategraph._owners.company import company
from stategraph._progress import is_late, is_overdue
from stategraph._protocol import Amend, Load, Sleep, Stopped, Task
from stategraph._values import clock
from stategraph._values.entries import Entry, message_of
from stategraph._values.ids import check_given_id
from stategraph._values.progress import Pause, evolved
from stategraph._values.provenance import Kind, RunStatus
from stategraph.errors import (
    AnswerError,
    CheckpointError,
    CheckpointNotFoundError,
    EntryExistsError,
    GraphMismatchError,
    RunBusyError,
    RunCancelledError,
    RunCompleteError,
    SchemaError,
)
from stategraph.state import State, evolve, recorded

_LOOK_AGAIN = 0.02  # seconds between two looks whether a run may begin beside others
LONGEST_ALONE = 30.0
"""Seconds that a run waits until it may begin: one that is at work may wait for this one."""


@attrs.frozen
class Recovered:
    """The result of a run that `StateGraph.recover` or `StateGraph.run_many` executed.

    Attributes:
        run_id: The run.
        state: The State with which it completed or paused. After an error, the last State the error holds, if any.
        error: The error that ended the run, if it failed.
    """

    run_id: str
    state: State | None
    error: Exception | None = None


@attrs.frozen
class RunCheck:
    """Whether a stored run can go on in a graph; see `StateGraph.check_runs`.

    Attributes:
        run_id: The run.
        ok: Whether it can.
        problems: Why it cannot, of the run and of runs nested in it, each with what helps.
    """

    run_id: str
    ok: bool
    problems: tuple[str, ...] = ()


# --------------------------------------------------------------------------- run, and ordered turns


def run_once(run: RunContext, state: State) -> Task[State]:
    """Run a State; if its run exists, continue the run or return its State."""
    return owning(run, Ownership(id_of(state)), _run_once(run, state), takes_up=False)


def _run_once(run: RunContext, state: State) -> Task[State]:
    run.accepts = True
    saved = yield from _begun(run, state.run_id, state)
    if saved is None:
        return (yield from begin(run, state))
    if saved.status is RunStatus.PAUSED and (yield from _goes_on(run, saved)):
        return (yield from resume_owned(run, state.run_id))
    if saved.status in (RunStatus.COMPLETED, RunStatus.PAUSED, RunStatus.CANCELLED):
        return saved
    if run.session.is_cancelled and saved.status is RunStatus.ACTIVE:
        return (yield from end_cancelled(run, saved))
    return (yield from resume_owned(run, state.run_id))


def _begun(run: RunContext, run_id: str, given: State | None) -> Task[State | None]:
    """Return the newest State of a run to continue; None if the run has not begun.

    Raises:
        GraphMismatchError: the run belongs to another graph.
        RunExistsError: the run began with other data than these, if any are given.
    """
    saved = yield from newest_of(run, run_id)
    if saved is None or saved.graph is None:
        yield from clear_cancellation(run)  # an earlier run with this id may have been cancelled
        return None
    if saved.graph not in run.plan.names:
        raise other_graph(run.plan, saved, "Run the State under a run_id of its own.")
    if given is not None and _is_other_input(run, saved, given):
        raise exists(run, saved, "it began with other data; ")
    return saved


def _is_other_input(run: RunContext, saved: State, given: State) -> bool:
    """Return whether the data of a State are known to be neither the input of a saved run nor its newest data."""
    digest = str(digest_of_input(run, given))
    if not digest or saved.input_digest in ("", digest) or version_of(saved) != run.plan.structure.version:
        return False
    forms, before = (dict(form.split("=") for form in text.split(" ")[1:]) for text in (digest, saved.input_digest))
    if any(forms[name] != before[name] for name in forms.keys() & before.keys()):  # a class has changed since
        return False
    return given.graph is None or digest != str(digest_of_input(run, saved))


def turn_of(state: State) -> int:
    """Return the number of the newest turn of a run. The call that began the run began turn 1."""
    return (state.progress.turn if state.progress else 0) or 1


def take_turn(run: RunContext, turn: Any, max_recoveries: int) -> Task[State]:
    """Execute a turn of a run once per turn number; return the State of the run. A complete run is never deleted.

    Args:
        run: The call.
        turn: The turn, a `stategraph.turns.Order`.
        max_recoveries: The number of owners that one step of the run may crash.
    """
    task = owning_saved(run, turn.run_id, _take_turn(run, turn, max_recoveries), takes_up=False)
    run.plan, run.is_job = attrs.evolve(run.plan, preserve=True), True
    return task


def _take_turn(run: RunContext, turn: Any, max_recoveries: int) -> Task[State]:
    saved = yield from _begun(run, turn.run_id, turn.state)
    if saved is None:
        if turn.state is None:
            raise CheckpointNotFoundError(turn.run_id, run.plan.store)
        return (yield from _in_company(run, turn.state, begin(run, turn.state)))
    is_of_turn = turn_of(saved) == turn.number
    is_due = is_of_turn and saved.status is RunStatus.PAUSED and (yield from _goes_on(run, saved))
    if turn_of(saved) > turn.number or (is_of_turn and saved.status is not RunStatus.ACTIVE and not is_due):
        return saved  # the turn ended before
    _check_own(run, saved)
    if is_of_turn:
        return (yield from _taken_up(run, saved, max_recoveries))
    waits = saved.status is RunStatus.PAUSED and saved.pause is not None and saved.pause.due is not None
    if waits and not (turn.updates or turn.pause or (yield from _goes_on(run, saved))):
        return saved  # it was ordered by a clock that is ahead
    yield from clear_cancellation(run)
    resumed = resume_owned(run, turn.run_id, turn.updates, turn.pause, turn=turn.number)
    return (yield from _in_company(run, saved, resumed))


# --------------------------------------------------------------------------- submit and cancel


def submit(run: RunContext, state: State) -> Task[State]:
    """Save a State for a later run; return it as saved."""
    return owning_saved(run, id_of(state), _submit(run, state), is_brief=True)


def _submit(run: RunContext, state: State) -> Task[State]:
    is_new = state.step == 0 and state.graph is None
    state = yield from admit(run, state)
    if is_new and state is not run.found:  # otherwise it is saved already
        return (yield from save(run, state))
    yield from flush(run, state)
    return state


def cancel(run: RunContext, run_id: str, wait: float | None = None) -> Task[RunStatus | None]:
    """Cancel a run: at once if it has no owner, otherwise through its owner.

    With `wait`, wait until it has no owner, so many seconds at most, and return its status.
    """
    check_saves(run.plan)
    check_not_of_another(run, (yield from newest_of(run, check_given_id(run_id))))
    yield (Amend, run.session.write, (run_id, partial(run.session.store.cancel, run_id, by=run.by)))
    if wait is None:
        return None
    until, delay = monotonic() + wait, SOONEST
    while (yield (Load, run.session.store.owner, run_id)) is not None and monotonic() < until:
        yield (Sleep, None, delay)
        delay = min(2 * delay, LATEST)
    saved = yield from newest_of(run, run_id)
    return RunStatus.COMPLETED if saved is None else saved.status  # a complete run may be deleted


# --------------------------------------------------------------------------- messages and answers


def send(run: RunContext, run_id: str, updates: Mapping[str, Any], key: str | None) -> Task[None]:
    """Append a message to the inbox of a run of this graph."""
    message_of(updates, key, run.by)  # raises TypeError
    check_saves(run.plan)
    saved: State = yield (Load, run.session.load, check_given_id(run_id))
    check_not_of_another(run, saved)
    sent = (yield (Load, run.session.entry_named, (run_id, "message", key))) if key else None
    if sent is None:  # otherwise it was checked then, and the run may have ended since
        _check_message(run, saved, updates)
    sending = partial(run.session.store.send, run_id, updates, by=run.by, key=key)
    yield (Amend, run.session.write, (run_id, sending))


def _check_message(run: RunContext, saved: State, updates: Mapping[str, Any]) -> None:
    """Raise an error if a run takes no messages any more, or not these updates."""
    if saved.status is RunStatus.COMPLETED:
        raise RunCompleteError(saved.run_id, saved.checkpoint_node)
    if run.plan.on_message is None:
        pauses = saved.pause.each if saved.pause else ()
        asked = next((pause for pause in pauses if pause.response_param in updates), None)
        if asked is not None:
            raise AnswerError(saved.run_id, asked, f"a message is no answer; answer({saved.run_id!r}, value) gives one")
        checked_message(run, updates, saved)


def answer(run: RunContext, run_id: str, value: Any, pause: Pause | str | None, key: str | None) -> Task[None]:
    """Append an answer to the inbox of a run that waits for it."""
    check_saves(run.plan)
    saved: State = yield (Load, run.session.load, check_given_id(run_id))
    check_not_of_another(run, saved)
    pause_id = pause.id if isinstance(pause, Pause) else pause
    given = Entry("answer", [value, key], made_of=run.plan.digest({"value": value}), by=run.by)
    inbox = [] if key is None else (yield (Load, run.session.unread, (run_id, 0)))
    if _is_given_again(run_id, given, [entry for entry in inbox if entry.kind == "answer"]):
        return
    if saved.status is RunStatus.COMPLETED:
        raise RunCompleteError(run_id, saved.checkpoint_node)
    asked = chosen_pause(saved, pause_id)
    if is_overdue(asked, given.at):
        raise after_deadline(run_id, asked)
    if asked.response_param is None and asked.goes_on:
        raise not_yet(run_id, asked)
    saved = yield from compatible(run, saved)  # its nodes may be renamed
    yield from check_answer(run, saved, chosen_pause(saved, asked.id), value)
    given = attrs.evolve(given, place=asked.id, name=asked.id)  # named: a pause has one answer
    append = partial(run.session.store.append, run_id, [given])
    (kept,) = yield (Amend, run.session.write, (run_id, append))
    if attrs.evolve(kept, seq=0) != given and not _is_given_again(run_id, given, [kept]):
        raise answered_before(run_id, kept)


def _is_given_again(run_id: str, given: Entry, answers: Sequence[Entry]) -> bool:
    """Return whether an answer is one of others, with the same key.

    Raises:
        EntryExistsError: Another answer has had the key.
    """
    key = given.value[1]
    same = next((entry for entry in answers if key is not None and entry.value[1] == key), None)
    if same is not None and same.made_of != given.made_of:
        raise EntryExistsError(run_id, "answer", key)
    return same is not None


# --------------------------------------------------------------------------- recover


class LeftAloneError(Exception):
    """A sweep has found a run of a graph of another module, or of a version that it does not serve."""


def recover(run: RunContext, ownership: Ownership, max_recoveries: int) -> Task[Recovered | None]:
    """Continue a run if it is unfinished and has no owner."""
    run.is_job = True
    try:
        state = yield from owning(run, ownership, _recover(run, ownership.run_id, max_recoveries), takes_up=False)
    except RunBusyError:
        return None
    except Exception as error:
        return Recovered(ownership.run_id, getattr(error, "state", None), error)
    return None if state is None else Recovered(ownership.run_id, state)


def _goes_on(run: RunContext, saved: State) -> Task[bool]:
    """Return whether a saved run goes on without a caller: now, by the clock of this process, or by a stored answer."""
    now, progress = clock.now_ns(), saved.progress
    if saved.status is RunStatus.ACTIVE:
        return progress is None or progress.due_ns <= now or is_late(saved)
    if saved.status is not RunStatus.PAUSED or saved.pause is None:
        return False
    if is_late(saved) or any(pause.goes_on and is_overdue(pause) for pause in saved.pause.each):
        return True
    return bool(stored_answers(saved, (yield from unread(run, saved))))


def _recover(run: RunContext, run_id: str, max_recoveries: int) -> Task[State | None]:
    saved = yield from newest_of(run, run_id)
    if saved is None or saved.graph not in run.plan.names:
        return None
    try:
        _check_own(run, saved)
    except GraphMismatchError as error:
        why = f"{error} It is left alone."
        warnings.warn(why, stacklevel=2)
        raise LeftAloneError(why) from error
    if saved.status in (RunStatus.COMPLETED, RunStatus.CANCELLED):
        from stategraph._engine.turns import serve  # imported when used: few runs have turns that wait

        yield from clear_cancellation(run)  # it was for a turn that is over, not for those that wait
        served = yield from serve(run, saved)
        return None if served is saved else served
    if not (yield from _goes_on(run, saved)):
        return None
    state = yield from _taken_up(run, saved, max_recoveries)
    return None if state.status is RunStatus.CANCELLED else state


def _taken_up(run: RunContext, saved: State, max_recoveries: int) -> Task[State]:
    """Continue a run that goes on without a caller, or save it as cancelled."""
    if run.session.is_cancelled:
        return (yield from end_cancelled(run, saved))
    if saved.status is RunStatus.PAUSED:
        return (yield from _in_company(run, saved, resume_owned(run, saved.run_id)))
    return (yield from _continue_lost(run, saved, max_recoveries))


def _check_own(run: RunContext, saved: State) -> None:
    """Check that a run that a worker has found is its to continue.

    Raises:
        GraphMismatchError: A graph of this name in another module began it.
        LeftAloneError: It is of a version that the worker does not serve.
    """
    module = "" if run.allow_changed else other_module(run.plan, saved)
    if module:
        way_out = f"If the graph has moved, declare graph.moved_from({module!r}), or sweep with allow_changed=True."
        raise GraphMismatchError(saved.run_id, (began_elsewhere(run.plan, module),), way_out)
    version = version_of(saved) or 1
    if run.serves is not None and version not in run.serves:
        served = ", ".join(map(str, sorted(run.serves))) or "none"
        raise LeftAloneError(f"run {saved.run_id!r} is of version {version}, and only these are served: {served}")


def check_run(run: RunContext, run_id: str, loads: Callable[[], State]) -> Task[RunCheck | None]:
    """Check whether a run can go on, with everything nested in it; None if it is gone or complete. Nothing is run."""
    found: list[Exception] = []
    try:
        saved = yield (Load, partial(run.session.load, run_id), loads)
        _check_own(run, saved)
        yield from _fitting(run, saved, found)
    except (CheckpointNotFoundError, RunCompleteError):
        return None
    except (GraphMismatchError, SchemaError, CheckpointError, LeftAloneError) as error:
        found.append(error)
    return RunCheck(run_id, not found, tuple(map(str, found)))


def _fitting(run: RunContext, saved: State, found: list[Exception] | None = None) -> Task[State]:
    """Return a saved State for the graph, after a check of the nested runs of its step under way, as `check_nested`."""
    fitting = yield from compatible(run, saved)
    fitting_saved(run, fitting, {})
    if run.plan.loads_parts and any(stage.node.graphs for stage in run.plan.stages.values()):
        from stategraph._engine.subgraphs import check_nested  # imported when used: few graphs have nested ones

        yield from check_nested(run, fitting, found)
    return fitting


def _continue_lost(run: RunContext, saved: State, max_recoveries: int) -> Task[State]:
    """Continue a run whose owner was lost, and count the recovery, unless the run does not fit the graph."""
    fitting = yield from _fitting(run, saved)
    recoveries = saved.progress.recoveries if saved.progress else 0
    # Plus the owner that saved this State, if a node made it: it was lost before anything was counted.
    lost = recoveries + 1 if recoveries and saved.checkpoint_node else recoveries
    if lost >= max_recoveries:
        yield from _fail(run, fitting, lost)
    return (yield from _in_company(run, saved, _resume_counted(run, saved, recoveries), is_suspect=recoveries > 0))


def _in_company(run: RunContext, state: State, task: Task[State], *, is_suspect: bool = False) -> Task[State]:
    """Run a task once its run may be at work beside the others of this process.

    Raises:
        RunCancelledError: the call was stopped before.
    """
    ownership = cast(Ownership, run.session.ownership)
    until = monotonic() + LONGEST_ALONE
    try:
        while not company.admit(ownership, is_suspect=is_suspect, at_once=monotonic() >= until):
            try:
                yield (Sleep, None, _LOOK_AGAIN)
            except Stopped as stopped:
                raise RunCancelledError(state, str(stopped)) from stopped.__cause__
        return (yield from task)
    finally:
        company.leave(ownership)


def _resume_counted(run: RunContext, saved: State, recoveries: int) -> Task[State]:
    """Count a recovery and resume the run. Its owner survives whatever is raised: then the count is reset."""
    yield from _count(run, saved, recoveries + 1)
    try:
        return (yield from resume_owned(run, saved.run_id))
    except (CheckpointError, GeneratorExit):  # the store would refuse the count as well, or the driver is gone
        raise
    except BaseException as error:
        yield from noting(error, "While the count of recoveries was reset", _survive(run, saved.run_id))
        raise


def _survive(run: RunContext, run_id: str) -> Task[None]:
    """Count no recoveries of a step any more: its owner is stopped, but has survived it."""
    newest = yield from newest_of(run, run_id)
    if newest is not None and newest.progress and newest.progress.recoveries:
        yield from _count(run, newest, 0)


def _count(run: RunContext, saved: State, recoveries: int) -> Task[State]:
    counted = evolve(saved, progress=evolved(saved.progress, recoveries=recoveries, due_ns=0))
    return amend(run, recorded(counted, Kind.UPDATE))


def _fail(run: RunContext, saved: State, lost: int) -> Task[None]:
    """Fail a run that crashes each owner that continues it."""
    run.state = saved
    reason = (
        f"has taken down {lost} owners of the run, one after the other (max_recoveries): the run is failed, and "
        f"recover leaves it alone; resume({saved.run_id!r}) goes on with it"
    )
    names = _next_nodes(run.plan, saved)
    if len(names) > 1:
        reason = f"or another one after {saved.checkpoint_node!r} ({', '.join(names[1:])}) {reason}"
    failure = failure_at(run, names[0], reason)
    failure.state = evolve(failure.state, progress=evolved(saved.progress, recoveries=0))
    yield from save(run, failure.state)
    raise failure


def _next_nodes(plan: CompiledGraph, saved: State) -> list[str]:
    """Return the nodes that may come next. No predicate is called: a predicate may be the cause of the crash."""
    if saved.progress and saved.progress.next_node:
        return [saved.progress.next_node]
    if not saved.checkpoint_node:
        return [plan.entry]
    targets = dict.fromkeys(edge.target for edge in plan.stages[saved.checkpoint_node].edges)
    return list(targets) or [saved.checkpoint_node]
