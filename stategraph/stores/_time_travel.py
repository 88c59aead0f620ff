"""Time travel: the State of a run that is forked off another one, or taken back to an earlier step."""

from __future__ import annotations

from stategraph._progress.answers import asking_again, gives_back, waiting_anew
from stategraph._values.ids import check_given_id
from stategraph._values.provenance import ParentStep, RunStatus
from stategraph.state import State, evolve


def forked_from(source: State, new_run_id: str) -> State:
    """Return the newest State of a run that is forked off at `source`."""
    is_over = source.status is RunStatus.COMPLETED
    # The copy of a run that waits goes on, or waits again, where that waits.
    copy = asking_again(source) if source.pause is None else waiting_anew(source, source.pause)
    return evolve(
        copy,
        run_id=check_given_id(new_run_id),
        status=source.status if is_over else RunStatus.ACTIVE,
        error=None,
        parent=ParentStep(source.run_id, source.step),
    )


def keeps_nested(source: State) -> bool:
    """Return whether a copy of a run keeps what is nested in the step after: not if that was made with answers that
    the copy takes back."""
    return source.pause is not None or not gives_back(source)


def rolled_back(state: State) -> State:
    """Return the State of a run that is taken back to it."""
    return evolve(asking_again(state), generation=state.generation + 1)
