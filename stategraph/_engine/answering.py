"""What an answer answers: the pause that was shown, once, and no other."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from datetime import datetime
from typing import Any, cast

from stategraph._progress.answers import is_overdue
from stategraph._text.shown import shorten
from stategraph._values.progress import Pause
from stategraph._values.provenance import RunStatus
from stategraph.errors import AnswerError
from stategraph.state import State, evolve


def check_answers(
    saved: State, updates: Mapping[str, Any], pause_id: str | None, waits_since: datetime | None = None
) -> None:
    """Raise AnswerError if one of the updates answers a pause at which the run does not wait.

    Args:
        saved: The newest State of the run.
        updates: What a resume is given.
        pause_id: The id of the pause that these are to answer, if that is said.
        waits_since: Since when the call had to wait for the run: it cannot answer what was asked later.
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
    """Return a State that waits for several things as one that waits for what is answered alone.

    Without an answer, that is what has waited until its deadline.

    Raises:
        AnswerError: it is not said which of several is answered.
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
    """Return the keys whose pauses have been answered, unless the answer was taken back since.

    Answers of the step that is being made are in `answer`, those of earlier steps in `answered`, and those that were
    taken back in both. Nobody has answered a fork that stands where it was made. An answer that is not saved, because
    of its key, has to be given again.
    """
    progress = saved.progress
    if progress is None or saved.status is RunStatus.COMPLETED:  # nothing at all is taken then
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
