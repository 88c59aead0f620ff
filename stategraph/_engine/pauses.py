"""Waking: what becomes of a pause when its run is resumed. It is answered, or its time is over, or it goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import attrs

from stategraph._engine.context import Run, error_data
from stategraph._engine.step import Visit, is_overdue
from stategraph._protocol.commands import StoreFailed, Task
from stategraph._values.answers import awaited, awake
from stategraph._values.frozen import lay_over
from stategraph._values.provenance import Pause, RunStatus, evolved
from stategraph.errors import AnswerError, ExecutionError, describe_exception, shorten
from stategraph.nodes.base import NOTHING, Question
from stategraph.state import State, completed_by, data_of, evolve


@attrs.define(eq=False)
class Waking(Run):
    """The ways on from a pause."""

    def _woken(self, saved: State, updates: Mapping[str, Any]) -> Task[tuple[State, Mapping[str, Any]]]:
        """-> a paused State as one that goes on at the node that paused, and updates with an answer that will do.

        Where the deadline has passed, with no answer for that case, the node has failed: the run goes on at the node
        that handles this, or fails here.
        """
        pause = cast(Pause, saved.pause)
        key = pause.response_param
        question = yield from self._question(saved, pause)
        if is_overdue(pause):
            if question.otherwise is NOTHING:
                return (yield from self._expired(saved, pause)), updates
            if key in updates:
                raise AnswerError(saved.run_id, pause, "it comes too late: resume without an answer goes on")
            updates = self._with_checked_answer(saved, pause, question, {**updates, cast(str, key): question.otherwise})
        elif key is not None:
            if key not in updates:
                raise AnswerError(saved.run_id, pause, _none_among(updates))
            updates = self._with_checked_answer(saved, pause, question, updates)
        return awake(saved, pause), updates

    def _answered_anew(self, saved: State, updates: Mapping[str, Any]) -> Task[Mapping[str, Any]]:
        """-> updates for a State that stands where it had paused, as a fork does, with an answer that will do if they
        have one."""
        pause = awaited(saved)
        if pause is None or pause.response_param not in updates or pause.node not in self.plan.stages:
            return updates
        question = yield from self._question(saved, pause)
        return self._with_checked_answer(saved, pause, question, updates)

    def _question(self, saved: State, pause: Pause) -> Task[Question]:
        stage = self.plan.stages[pause.node]
        try:
            return (yield from stage.node.asked(Visit(self, stage, saved)))
        except StoreFailed as failed:
            raise cast(BaseException, failed.__cause__) from None

    def _with_checked_answer(
        self, saved: State, pause: Pause, question: Question, updates: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """-> updates with an answer that will do. Raises AnswerError if theirs will not."""
        key = cast(str, pause.response_param)
        try:
            # Without a schema it is kept as it was given: the node that asked makes of it what it will be.
            fitting = self._fitting({key: question.accepted(updates[key])}, saved)
        except ValueError as error:
            raise AnswerError(saved.run_id, pause, str(error)) from error
        return updates if self.plan.schema is None else {**updates, **fitting}

    def _expired(self, saved: State, pause: Pause) -> Task[State]:
        """-> the State of a run that waited until its deadline, for the node that handles failures of the one that
        paused. Where none does, the run is saved as failed, and the error raised."""
        self.state = self.saved = saved
        cause = TimeoutError(f"nobody answered until {pause.deadline}")
        self.path.append(pause.node)
        failure = self._failure(pause.node, f"failed: {describe_exception(cause)}", cause)
        failure.state = evolve(failure.state, pause=None)
        stage = self.plan.stages[pause.node]
        if stage.policies.on_error is None:
            failure.__cause__ = cause
            yield from self._rescue(failure)
            raise failure
        visit = Visit(self, stage, evolve(saved, status=RunStatus.ACTIVE, pause=None))
        return self._handled(visit, failure, stage.policies.on_error)

    def _handled(self, visit: Visit, failure: ExecutionError, handler: str) -> State:
        """-> the State after the step of a node that has failed."""
        before, name = visit.state, visit.stage.name
        data = lay_over(data_of(before), self._fitting(error_data(failure), before, name))
        after = completed_by(name, before, data)
        return evolve(after, progress=evolved(visit.progress_after(after, is_failed=True), next_node=handler))


def _none_among(updates: Mapping[str, Any]) -> str:
    """-> that no answer is given, with what is given."""
    return f"there is none among {', '.join(map(shorten, updates))}" if updates else "there is none"
