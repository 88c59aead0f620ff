"""Pauses: how a run waits, and how it continues after an answer or a deadline."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from datetime import datetime
from typing import Any, cast

import attrs

from stategraph._engine.context import RunContext, fitting
from stategraph._engine.endings import failure_at, handled_data, rescue
from stategraph._engine.events import emit
from stategraph._engine.saving import heed_cancel, save, save_with_next
from stategraph._engine.step import StepExecution
from stategraph._graph.compiled import CompiledNode
from stategraph._progress.answers import awaited, awake, is_overdue
from stategraph._protocol.commands import StoreFailed, Task
from stategraph._text.shown import describe_exception, shorten
from stategraph._values import clock
from stategraph._values.events import EventType
from stategraph._values.progress import Pause, evolved, pause_of
from stategraph._values.provenance import RunStatus
from stategraph.errors import AnswerError
from stategraph.nodes.base import NOTHING
from stategraph.nodes.step import Question
from stategraph.state import State, completed_by, evolve, time_ns_of, told


def take_answer(run: RunContext, saved: State, updates: Mapping[str, Any]) -> Task[tuple[State, Mapping[str, Any]]]:
    """Return a paused State prepared to continue at its paused node, and the updates with the validated answer.

    If the deadline has passed and the question has no default answer, the node has failed: the run continues at the
    node that handles the failure, or fails here.
    """
    pause = cast(Pause, saved.pause)
    key = pause.response_param
    question = yield from _question(run, saved, pause)
    if is_overdue(pause):
        if question.otherwise is NOTHING:
            return (yield from _expired(run, saved, pause)), updates
        if key in updates:
            raise AnswerError(saved.run_id, pause, "the answer comes too late: resume without an answer goes on")
        updates = {**updates, cast(str, key): question.otherwise}
    elif key is not None and key not in updates:
        given = f"no answer is among {', '.join(map(shorten, updates))}" if updates else "no answer is given"
        raise AnswerError(saved.run_id, pause, given)
    if key is not None:
        updates = _with_checked_answer(run, saved, pause, question, updates)
    return awake(saved, pause), updates


def take_answer_of_fork(run: RunContext, saved: State, updates: Mapping[str, Any]) -> Task[Mapping[str, Any]]:
    """Validate an answer to the pause from which a fork was made; return the updates."""
    pause = awaited(saved)
    if pause is None or pause.response_param not in updates or pause.node not in run.plan.stages:
        return updates
    question = yield from _question(run, saved, pause)
    return _with_checked_answer(run, saved, pause, question, updates)


def _question(run: RunContext, saved: State, pause: Pause) -> Task[Question]:
    stage = run.plan.stages[pause.node]
    try:
        return (yield from stage.node.asked(StepExecution(run, stage, saved)))
    except StoreFailed as failed:
        raise cast(BaseException, failed.__cause__) from None


def _with_checked_answer(
    run: RunContext, saved: State, pause: Pause, question: Question, updates: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return the updates with the validated answer. Raises AnswerError if the answer is invalid."""
    key = cast(str, pause.response_param)
    try:
        # Without a schema the answer is kept as given: the node that asked converts it.
        checked = fitting(run, {key: question.accepted(updates[key])}, saved)
    except ValueError as error:
        raise AnswerError(saved.run_id, pause, str(error)) from error
    return updates if run.plan.schema is None else {**updates, **checked}


def _expired(run: RunContext, saved: State, pause: Pause) -> Task[State]:
    """Return the State of a run whose deadline has passed, for the node that handles failures of the paused node.

    If no node handles them, save the run as failed and raise the error.
    """
    run.state = run.saved = saved
    name, cause = pause.node, TimeoutError(f"nobody answered until {pause.deadline}")
    run.path.append(name)
    failure = failure_at(run, name, f"failed: {describe_exception(cause)}", cause)
    failure.state = evolve(failure.state, pause=None)
    stage = run.plan.stages[name]
    handler = stage.policies.on_error
    if handler is None:
        failure.__cause__ = cause
        yield from rescue(run, failure)
        raise failure
    before = evolve(saved, status=RunStatus.ACTIVE, pause=None)
    after = completed_by(name, before, handled_data(run, failure, before, name))
    progress = StepExecution(run, stage, before).progress_after(after, is_failed=True)
    return evolve(after, progress=evolved(progress, next_node=handler))


def pause_at(run: RunContext, stage: CompiledNode, pause: Pause) -> Task[None]:
    """Save the run as paused."""
    if not run.plan.saves:
        why = "checkpoint.interval is 0 or, within a graph, the store keeps no parts"
        raise failure_at(run, stage.name, f"cannot pause: nothing is saved ({why})")
    schema, keys = run.plan.schema, [one.response_param for one in pause.each]
    lost = [key for key in keys if schema is not None and key is not None and key not in schema.fields]
    if schema is not None and lost:
        why = f"the answer is to come under {lost[0]!r}, which is no field of {schema.name}"
        raise failure_at(run, stage.name, f"cannot pause: {why}")
    save_with_next(run, run.state)
    pause = pause_of([_identified(run, attrs.evolve(one, node=stage.name)) for one in pause.each])
    at = max(clock.to_ns(pause.at), time_ns_of(run.state))  # the pause of a nested graph may have begun earlier
    run.state = state = evolve(told(run.state), status=RunStatus.PAUSED, pause=pause, _time_ns=at)
    about = {"pause_node": pause.node, "reason": pause.reason, "response_param": pause.response_param}
    yield from save(run, state)
    if run.plan.write_behind or run.services.is_cancelled:
        yield from heed_cancel(run)
    yield from emit(run, EventType.GRAPH_PAUSE, state, run.began_ns, **about)


def _identified(run: RunContext, pause: Pause) -> Pause:
    """Return a pause with its id. A pause of a nested run keeps its id: it is the same pause.

    If no store of stategraph can keep its value, the id depends on the time alone.
    """
    if pause.id:
        return pause
    state = run.state
    shown = {"reason": pause.reason, "node": pause.node, "response_param": pause.response_param, "at": pause.at}
    asked = {**shown, "run_id": state.run_id, "step": state.step, "generation": state.generation}
    return attrs.evolve(pause, id=run.plan.digest({**asked, "value": pause.value}) or run.plan.digest(asked))


# --------------------------------------------------------------------------- matching answers to pauses


def check_answers(
    saved: State, updates: Mapping[str, Any], pause_id: str | None, waits_since: datetime | None = None
) -> None:
    """Raise AnswerError if an update answers a pause at which the run does not wait.

    Args:
        saved: The newest State of the run.
        updates: The updates given to resume.
        pause_id: The id of the pause to answer, if given.
        waits_since: When the call began to wait for the run. It cannot answer a question asked after that.
    """
    pause = saved.pause if saved.status is RunStatus.PAUSED else None
    pauses = () if pause is None else pause.each
    asked = [one for one in pauses if one.response_param in updates]
    problem = ""
    if pause_id is not None and pause_id not in [one.id for one in pauses]:
        problem = f"the pause that is to be answered is over: {_what_came_of_it(saved)}"
    elif closed := sorted(_answered(saved) & updates.keys() - {one.response_param for one in pauses}):
        problem = f"{shorten(closed[0])} has been answered before, and an answer counts once. {_WAY_OUT}"
    elif pause_id is None and waits_since is not None and any(one.at > waits_since for one in asked):
        problem = "it has asked this only while resume waited for the run: look at it, then answer with pause=..."
    if problem:
        raise AnswerError(saved.run_id, pause, problem)


def to_be_answered(saved: State, updates: Mapping[str, Any], pause_id: str | None) -> State:
    """Reduce a State that waits at several pauses to the one that is answered.

    Without an answer, choose an overdue pause, otherwise the first one.

    Raises:
        AnswerError: several pauses wait, and the caller does not name one.
    """
    pauses = cast(Pause, saved.pause).each
    asked = [pause for pause in pauses if pause.response_param in updates]
    if pause_id is not None:
        found = [pause for pause in pauses if pause.id == pause_id]
    elif len(asked) > 1:
        parts = ", ".join([shorten(pause.part) for pause in asked[:5]] + ["..."] * (len(asked) > 5))
        problem = f"parts {parts} ask for {asked[0].response_param!r}: say which of {len(asked)} is answered, by pause="
        raise AnswerError(saved.run_id, saved.pause, problem)
    else:
        found = asked or [pause for pause in pauses if is_overdue(pause)] or [*pauses]
    return evolve(saved, pause=found[0])


_WAY_OUT = "To change it, take it back (store.rollback), or give it to a copy of the run (store.fork)"


def _answered(saved: State) -> AbstractSet[str]:
    """Return the keys whose pauses were answered, without answers that were withdrawn since.

    Answers of the current step are in `answer`, those of earlier steps in `answered`, withdrawn answers in both. A fork
    that has not moved has no answers. An answer under a key that is not saved must be given again.
    """
    progress = saved.progress
    if progress is None or saved.status is RunStatus.COMPLETED:  # a complete run accepts no answers
        return frozenset()
    is_new_fork = saved.parent is not None and saved.parent.step == saved.step
    earlier = frozenset[str]() if is_new_fork else progress.answered - progress.answer.keys()
    return ((progress.answer.keys() - progress.answered) | earlier) - (progress.origins.keys() - saved.keys())


def _what_came_of_it(saved: State) -> str:
    if saved.status is RunStatus.COMPLETED:
        return f"the run is complete, after step {saved.step}"
    if saved.status is RunStatus.PAUSED:
        return "the run waits at another one"
    progress = saved.progress
    if progress is None or progress.woken is None:
        return f"the run has gone on, and is {saved.status.value} after step {saved.step}"
    if progress.answer and progress.answered.issuperset(progress.answer):
        return "the run was taken back to where it asks, and asks again when it is resumed without an answer"
    return f"it has been answered, and the run is {saved.status.value} at node {shorten(progress.next_node)}"
