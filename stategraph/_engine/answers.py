"""How a run continues after a pause: an answer is taken, or a deadline passes."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from datetime import datetime
from typing import Any, cast

from stategraph._engine.context import NOTHING_GIVEN, RunContext, fitting
from stategraph._engine.ending import handle, save_pending
from stategraph._engine.step import StepExecution
from stategraph._progress import awaited, awake, is_overdue, waiting_again
from stategraph._protocol import Parts, StoreFailed, Task
from stategraph._text.shown import shorten
from stategraph._values import clock
from stategraph._values.progress import DEADLINE, PERSON, Answer, Given, Pause, evolved
from stategraph._values.provenance import RunStatus
from stategraph.errors import AnswerError, ExecutionError
from stategraph.nodes.base import NOTHING, Question
from stategraph.state import State, completed_by, evolve


def take_answer(run: RunContext, saved: State, updates: Mapping[str, Any]) -> Task[tuple[State, Mapping[str, Any]]]:
    """Return a paused State prepared to continue at its paused node, and the updates with the validated answer.

    If the deadline has passed and the question has no default answer, the node has failed: the run continues at the
    node that handles the failure, or fails here.
    """
    pause = cast(Pause, saved.pause)
    key = pause.response_param
    if key is None and pause.goes_on:
        if not is_overdue(pause):
            raise not_yet(saved.run_id, pause)
        return awake(saved, pause), updates
    question = yield from _question(run, saved, pause)
    stored = run.answered
    by, at_ns, how = (stored.by, stored.at_ns, PERSON) if stored else (run.by, clock.now_ns(), PERSON)
    if is_overdue(pause, clock.to_datetime(at_ns)):
        if question.otherwise is NOTHING:
            return (yield from _expired(run, saved, pause)), updates
        if key in updates:
            raise after_deadline(saved.run_id, pause)
        updates = {**updates, cast(str, key): question.otherwise}
        by, at_ns, how = None, clock.to_ns(cast(datetime, pause.deadline)), DEADLINE
    elif key is not None and key not in updates:
        if question.is_gone:
            return waiting_again(saved, pause), updates
        given = ", ".join(map(shorten, updates))
        problem = f"the answer goes under {key!r}, not under {given}" if updates else "no answer is given"
        raise AnswerError(saved.run_id, pause, problem)
    if pause.effect:
        yield (Parts, run.session.settle_effect, (saved, pause, updates[cast(str, key)]))
        updates = {name: value for name, value in updates.items() if name != key}
    elif key is not None:
        updates = _with_checked_answer(run, saved, pause, question, updates, (by, at_ns, how))
    return awake(saved, pause, (by, at_ns, how)), updates


def take_answer_of_fork(
    run: RunContext, saved: State, updates: Mapping[str, Any]
) -> Task[tuple[State, Mapping[str, Any]]]:
    """Validate an answer to the pause from which a fork was made; return the State and the updates with it."""
    pause = awaited(saved)
    if pause is None or pause.response_param not in updates or pause.node not in run.plan.stages:
        return saved, updates
    question, given = (yield from _question(run, saved, pause)), (run.by, clock.now_ns(), PERSON)
    updates = _with_checked_answer(run, saved, pause, question, updates, given)
    return evolve(saved, progress=evolved(saved.progress, given=given)), updates


def _question(run: RunContext, saved: State, pause: Pause) -> Task[Question]:
    stage = run.plan.stages[pause.node]
    try:
        return (yield from stage.node.question(StepExecution(run, stage, saved)))
    except StoreFailed as failed:
        raise cast(BaseException, failed.__cause__) from None


def _with_checked_answer(
    run: RunContext, saved: State, pause: Pause, question: Question, updates: Mapping[str, Any], given: Given
) -> Mapping[str, Any]:
    """Return the updates with the validated answer. Raises AnswerError if the answer is invalid."""
    key, (by, at_ns, how) = cast(str, pause.response_param), given
    answer = Answer(updates[key], by, clock.to_datetime(at_ns), how)
    try:
        # Without a schema the answer is kept as given: the node that paused converts it.
        checked = fitting(run, {key: question.accepted(answer.value, answer)}, saved)
    except ValueError as error:
        raise AnswerError(saved.run_id, pause, str(error)) from error
    return updates if run.plan.schema is None else {**updates, **checked}


def _expired(run: RunContext, saved: State, pause: Pause) -> Task[State]:
    """Return the State of a run whose deadline has passed, for the node that handles failures of the paused node.

    If no node handles them, save the run as failed and raise the error.
    """
    name, stage = pause.node, run.plan.stages[pause.node]
    run.state = run.saved = before = evolve(saved, status=RunStatus.ACTIVE, pause=None)
    run.path.append(name)
    late = TimeoutError(f"no answer came until {pause.deadline}")
    try:
        handler, data = yield from handle(run, stage, None, late, clock.monotonic_ns())
    except ExecutionError as failure:
        yield from save_pending(run, failure)
        raise
    after = completed_by(name, before, data)
    progress = StepExecution(run, stage, before).progress_after(after, is_failed=True)
    return evolve(after, progress=evolved(progress, next_node=handler))


# --------------------------------------------------------------------------- matching answers to pauses


def check_answers(
    saved: State, updates: Mapping[str, Any], pause_id: str | None, waits_since: datetime | None = None
) -> None:
    """Raise AnswerError if an update answers a pause at which the run does not wait.

    Args:
        saved: The newest State of the run.
        updates: The updates given to resume.
        pause_id: The id of the pause to answer, if given.
        waits_since: When the call began to wait for the run. It cannot answer a later question.
    """
    pause = saved.pause if saved.status in (RunStatus.PAUSED, RunStatus.CANCELLED) else None  # cancelled, it waits on
    pauses = () if pause is None else pause.each
    answered = [other for other in pauses if other.response_param in updates]
    problem = ""
    if pause_id is not None and pause_id not in [other.id for other in pauses]:
        problem = f"the run does not wait at the given pause: it is {saved.status.value}, after step {saved.step}"
    elif closed := sorted(_answered(saved) & updates.keys() - {other.response_param for other in pauses}):
        problem = f"{shorten(closed[0])} has been answered before, and an answer counts once. {_WAY_OUT}"
    elif pause_id is None and waits_since is not None and any(other.at > waits_since for other in answered):
        problem = "the run paused here only while resume waited for it: read the question, then answer with pause=..."
    if problem:
        raise AnswerError(saved.run_id, pause, problem)


def chosen_pause(saved: State, pause_id: str | None) -> Pause:
    """Return the pause of a saved State that an answer is for.

    Raises:
        AnswerError: The run does not wait there; or it waits at several pauses, and none is named.
    """
    if saved.status is not RunStatus.PAUSED or saved.pause is None:
        raise AnswerError(saved.run_id, None, f"the run does not wait: it is {saved.status.value}")
    check_answers(saved, NOTHING_GIVEN, pause_id)
    if pause_id is None and saved.pause.others:
        problem = f"it waits at {len(saved.pause.each)} pauses: say which one is answered, by pause="
        raise AnswerError(saved.run_id, saved.pause, problem)
    return to_be_answered(saved, NOTHING_GIVEN, pause_id).pause or saved.pause


def after_deadline(run_id: str, pause: Pause) -> AnswerError:
    """Return the error for an answer that comes after the deadline of its pause."""
    problem = f"the answer comes too late: node {shorten(pause.node)} took one until {pause.deadline}"
    then = "goes on with the default answer" if pause.goes_on else "goes on: the node has failed"
    return AnswerError(run_id, pause, problem, f"resume({run_id!r}) {then}")


def not_yet(run_id: str, pause: Pause) -> AnswerError:
    """Return the error for a run that waits for a time, and not for an answer."""
    return AnswerError(run_id, pause, f"it waits until {pause.deadline}", "a sweep (recover, or a worker) goes on then")


def check_answer(run: RunContext, saved: State, pause: Pause, answer: Any, given: Given | None = None) -> Task[None]:
    """Raise AnswerError if a value, given now or as `given` says, is no valid answer to a pause of a saved State."""
    if pause.key_of_data is not None:
        at_pause = evolve(saved, pause=pause)
        question = yield from _question(run, at_pause, pause)
        given = given or (run.by, clock.now_ns(), PERSON)
        _with_checked_answer(run, at_pause, pause, question, {pause.key_of_data: answer}, given)


def to_be_answered(saved: State, updates: Mapping[str, Any], pause_id: str | None) -> State:
    """Reduce a State that waits at several pauses to the one that is answered.

    Without an answer, choose an overdue pause, otherwise the first one.

    Raises:
        AnswerError: several pauses wait, and the caller does not name one.
    """
    pauses = cast(Pause, saved.pause).each
    answered = [pause for pause in pauses if pause.response_param in updates]
    if pause_id is not None:
        found = [pause for pause in pauses if pause.id == pause_id]
    elif len(answered) > 1:
        parts = ", ".join([shorten(pause.part) for pause in answered[:5]] + ["..."] * (len(answered) > 5))
        problem = (
            f"parts {parts} ask for {answered[0].response_param!r}: say which of {len(answered)} is answered, by pause="
        )
        raise AnswerError(saved.run_id, saved.pause, problem)
    else:
        found = answered or [pause for pause in pauses if is_overdue(pause)] or [*pauses]
    return evolve(saved, pause=found[0])


_WAY_OUT = "To change it, take it back (store.rollback), or give it to a copy of the run (store.fork)"


def _answered(saved: State) -> AbstractSet[str]:
    """Return the keys whose pauses were answered, without answers that were withdrawn since.

    `answer` has the keys answered in this step, `answered` those used up before; a key in both was withdrawn. A fork
    that has not moved has no answers. An answer under a key that is not saved must be given again.
    """
    progress = saved.progress
    if progress is None or saved.status is RunStatus.COMPLETED:  # a complete run accepts no answers
        return frozenset()
    is_new_fork = saved.parent is not None and saved.parent.step == saved.step
    earlier = frozenset[str]() if is_new_fork else progress.answered - progress.answer.keys()
    return ((progress.answer.keys() - progress.answered) | earlier) - (progress.origins.keys() - saved.keys())
