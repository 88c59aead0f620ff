"""What it does to the State of a paused run that it is answered, and that its answer is taken back."""

from __future__ import annotations

from stategraph.provenance import Pause, RunStatus, evolved
from stategraph.state import State, data_of, evolve, with_data


def awaited(state: State) -> Pause | None:
    """-> what a State waits for, or had waited for where it stands now; None if neither."""
    progress = state.progress
    if state.pause is not None or progress is None or progress.woken is None or not progress.answer:
        return state.pause
    (key,) = progress.answer
    return Pause("it has to be answered anew", progress.next_node, None, key, progress.woken)


def awake(paused: State, pause: Pause) -> State:
    """-> a paused State as one that goes on at the node that paused; the answer that it awaits can be given now."""
    answered = paused.progress.answered if paused.progress else frozenset()
    key = pause.response_param
    answer = {} if key is None else {key: (paused[key],) if key in paused else ()}
    progress = evolved(paused.progress, next_node=pause.node, woken=pause.at, answer=answer, answered=answered - {key})
    return evolve(paused, status=RunStatus.ACTIVE, pause=None, progress=progress)


def asking_again(state: State) -> State:
    """-> the State of a run that goes back to it: without an answer with which it was resumed there, so that it asks
    again."""
    progress = state.progress
    if progress is None or not progress.answer:
        return state
    data = {key: value for key, value in data_of(state).items() if key not in progress.answer}
    data |= {key: old[0] for key, old in progress.answer.items() if old}
    answered = progress.answered | progress.answer.keys()
    return evolve(with_data(state, data), progress=evolved(progress, answered=answered))
