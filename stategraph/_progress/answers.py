"""How answers to a pause, their withdrawal, and updates of a resume change a State."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from stategraph._values import clock
from stategraph._values.progress import Pause, evolved
from stategraph._values.provenance import RunStatus
from stategraph.state import State, data_of, evolve, with_data


def awaited(state: State) -> Pause | None:
    """Return the pause at which a State waits; None if it does not wait.

    After a resume in which no node has completed yet, it is the answered pause.
    """
    progress = state.progress
    if state.pause is not None or progress is None or progress.woken is None or not progress.answer:
        return state.pause
    return progress.woken


def awake(paused: State, pause: Pause) -> State:
    """Return a paused State prepared to continue at its paused node; the answer can be added next."""
    answered = paused.progress.answered if paused.progress else frozenset()
    key = pause.response_param
    answer = dict(paused.progress.answer) if paused.progress else {}
    if key is not None:  # last, as the newest; the value that the key had before the step stays recorded
        answer[key] = answer.pop(key, (paused[key],) if key in paused else ())
    woken = attrs.evolve(pause, value=None, others=())
    progress = evolved(paused.progress, next_node=pause.node, woken=woken, answer=answer, answered=answered - {key})
    return evolve(paused, status=RunStatus.ACTIVE, pause=None, progress=progress)


def waiting_anew(paused: State, pause: Pause) -> State:
    """Return a paused State that waits again, without an answer yet.

    If it waits at several pauses, an answer applies to none of them: it asks them all first.
    """
    pause = attrs.evolve(pause, id="", response_param=None) if pause.others else pause
    state, key = awake(paused, pause), pause.response_param
    answered = state.progress.answered if state.progress else frozenset()
    return evolve(state, progress=evolved(state.progress, answered=answered if key is None else answered | {key}))


def gives_back(state: State) -> bool:
    """Return whether a State holds answers that are withdrawn when a run returns to it."""
    return state.progress is not None and bool(state.progress.answer)


def asking_again(state: State) -> State:
    """Return the State for a run that returns to it, without the answers given there: it asks again."""
    progress = state.progress
    if progress is None or not progress.answer:
        return state
    if state.pause is not None:  # for a further answer: the step begins again
        state = evolve(state, status=RunStatus.ACTIVE, pause=None)
    answered = progress.answered | progress.answer.keys()
    return evolve(without_answers(state), progress=evolved(progress, answered=answered))


def without_answers(state: State) -> State:
    """Return the State with its data from before the answers of the current step."""
    progress = state.progress
    if progress is None or not progress.answer:
        return state
    return _with_old_values(state, progress.answer)


def is_overdue(pause: Pause) -> bool:
    """Return whether the deadline of a pause has passed."""
    return pause.deadline is not None and clock.to_datetime(clock.now_ns()) > pause.deadline


def before_updates(state: State) -> State | None:
    """Return the State without the updates of a resume that nested runs have not received; None if there are none."""
    replaced = state.progress.replaced if state.progress else None
    if not replaced:
        return None
    return _with_old_values(state, replaced)


def _with_old_values(state: State, olds: Mapping[str, tuple[Any, ...]]) -> State:
    """Return the State with the earlier values of some keys, given as tuples; an empty tuple removes the key."""
    data = {key: olds.get(key, (value,)) for key, value in data_of(state).items()}  # in the order of the State
    data |= {key: olds[key] for key in sorted(olds.keys() - data.keys())}
    return with_data(state, {key: old[0] for key, old in data.items() if old})
