"""Time travel: the States of forks and of rollbacks."""

from __future__ import annotations

from stategraph._progress import asking_again, gives_back, waiting_anew
from stategraph._text.shown import shorten
from stategraph._values.ids import check_given_id, generation_of, step_of
from stategraph._values.provenance import Kind, ParentStep, RunStatus
from stategraph.state import State, evolve, told


def forked_from(source: State, new_run_id: str) -> State:
    """Return the newest State of a run that is forked from `source`."""
    is_over = source.status is RunStatus.COMPLETED
    # The copy of a paused run pauses at the same place, or continues from there.
    copy = asking_again(source) if source.pause is None else waiting_anew(source, source.pause)
    return evolve(
        copy,
        facts=None,
        _took_ns=None,
        run_id=check_given_id(new_run_id),
        status=source.status if is_over else RunStatus.ACTIVE,
        error=None,
        parent=ParentStep(source.run_id, source.step),
    )


def keeps_nested(source: State) -> bool:
    """Return whether a fork keeps the nested runs of the next step: not if they used answers that the fork takes
    back."""
    return source.pause is not None or not gives_back(source)


def rolled_back(state: State, parent: ParentStep | None, by: str | None = None) -> State:
    """Return the State of a run with this parent after a rollback to `state`. If that waited for an answer, it asks
    again, with a new pause."""
    if by is not None and not isinstance(by, str):
        raise TypeError(f"by is a str that says who, not {shorten(by)}")
    back = asking_again(state)
    back = back if back.pause is None else waiting_anew(back, back.pause)
    return told(evolve(back, generation=state.generation + 1, parent=parent), Kind.ROLLBACK, by)


def is_in_story(nested_id: str, step: int, generation: int) -> bool:
    """Return whether a directly nested run belongs to steps that its outer run, now at this step, has made."""
    return step_of(nested_id) <= step or generation_of(nested_id) != generation
