"""What a store can do that has only the four methods of its own, and time travel: forks and rollbacks of States."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

from stategraph._owners.holds import held
from stategraph._progress.answers import asking_again, gives_back, waiting_anew
from stategraph._text.shown import shorten
from stategraph._values.ids import check_given_id, generation_of, step_of
from stategraph._values.provenance import Kind, Owner, ParentStep, RunStatus
from stategraph.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    FormatError,
    RunBusyError,
    RunCompleteError,
    RunExistsError,
)
from stategraph.state import State, evolve, told
from stategraph.stores._checks import RunFilter, check_number
from stategraph.stores.summaries import Damage, Difference, Summary, Verified


def history(store: Any, run_id: str) -> list[Summary]:
    """Return the newest checkpoint of a run, if there is one."""
    try:
        return [Summary.of(store.load(run_id))]
    except CheckpointNotFoundError:
        return []


def runs(store: Any, which: RunFilter, limit: int, after: int | None) -> list[Summary]:
    """Return the newest checkpoint of each run, in the order of their ids."""
    numbered = list(enumerate(store.list(), 1))[after or 0 :]
    found = (Summary.of(store.load(run_id), str(number)) for number, run_id in numbered if which.takes_id(run_id))
    return list(itertools.islice((run for run in found if which.takes(run, store.owner)), limit))


def loaded(store: Any, run_id: str, step: int | None, revision: int | None) -> State:
    """Load a State of a run. Only a store that keeps revisions is asked for one."""
    state: State = store.load(run_id, step) if revision is None else store.load(run_id, step, revision)
    return state


def fork(store: Any, run_id: str, new_run_id: str, step: int | None, revision: int | None) -> State:
    """Save a State of a run as the newest of another one."""
    forked = forked_from(loaded(store, run_id, step, revision), new_run_id)
    if new_run_id in store.list():
        raise RunExistsError(new_run_id, str(store))
    store.save(forked)
    return forked


def rollback(store: Any, run_id: str, step: int, revision: int | None, by: str | None) -> State:
    """Put the State of a step in place of the newest one."""
    state = rolled_back(loaded(store, run_id, step, revision), store.load(run_id).parent, by)
    store.amend(state)
    return state


def diff(store: Any, run_id: str, a: int, b: int, other: str | None) -> Difference:
    """Load two steps of a run, or of two, and compare their data."""
    for name, step in (("a", a), ("b", b)):
        check_number(step, name)
    return Difference.between(store.load(run_id, a), store.load(run_id if other is None else other, b))


def cancel(store: Any, run_id: str, by: str | None, tell: Callable[[str, str | None], None]) -> Owner | None:
    """Save a run as cancelled; if it has an owner, tell that, and return it."""
    try:
        _save_cancelled(store, run_id, by)
    except RunBusyError as busy:
        tell(run_id, by)
        owner: Owner = busy.owner
    else:
        return None
    try:  # once more: its owner may have let go of it before it could be told
        _save_cancelled(store, run_id, by)
    except (RunBusyError, CheckpointNotFoundError, RunCompleteError):
        return owner
    return None


def _save_cancelled(store: Any, run_id: str, by: str | None) -> None:
    with held(store, check_given_id(run_id)):
        state: State = store.load(run_id)
        if state.status is RunStatus.COMPLETED:
            raise RunCompleteError(run_id, state.checkpoint_node)
        if state.status is not RunStatus.CANCELLED:
            store.save(evolve(told(state, by=by), status=RunStatus.CANCELLED))


# --------------------------------------------------------------------------- looking


def verify(store: Any) -> Verified:
    """Load every checkpoint of every run."""
    statuses: Counter[str] = Counter()
    checkpoints = 0
    damaged: list[Damage] = []
    unreadable: list[Damage] = []
    for run_id in store.list():
        status = "damaged"
        try:
            rows = store.history(run_id)
            for row in rows:
                status = row.status.value
                loaded(store, run_id, row.step, row.revision if len(rows) > 1 else None)
                checkpoints += 1
        except CheckpointNotFoundError:  # it was deleted meanwhile
            continue
        except FormatError as error:
            unreadable.append(Damage(run_id, error.reason))
        except CheckpointError as error:
            damaged.append(Damage(run_id, error.reason))
        statuses[status] += 1
    return Verified(dict(sorted(statuses.items())), 0, checkpoints, tuple(damaged), tuple(unreadable))


def changed_since(store: Any, token: str | None, run_id: str | None) -> str | None:
    """Compare what is told of all runs, or of one."""
    from hashlib import sha256  # imported when used: OpenSSL takes 4 ms

    told = store.iter_runs() if run_id is None else store.history(run_id)[-1:]
    now = sha256("\n".join(map(repr, told)).encode(errors="backslashreplace")).hexdigest()
    return None if now == token else now


# --------------------------------------------------------------------------- time travel


def forked_from(source: State, new_run_id: str) -> State:
    """Return the newest State of a run that is forked off at `source`."""
    is_over = source.status is RunStatus.COMPLETED
    # The copy of a run that waits goes on, or waits again, where that waits.
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
    """Return whether a copy of a run keeps what is nested in the step after: not if that was made with answers that
    the copy takes back."""
    return source.pause is not None or not gives_back(source)


def rolled_back(state: State, parent: ParentStep | None, by: str | None = None) -> State:
    """Return the State of a run with this parent that is taken back to it. One that waited asks anew: it is another
    pause then."""
    if by is not None and not isinstance(by, str):
        raise TypeError(f"by is a str that says who, not {shorten(by)}")
    back = asking_again(state)
    back = back if back.pause is None else waiting_anew(back, back.pause)
    return told(evolve(back, generation=state.generation + 1, parent=parent), Kind.ROLLBACK, by)


def is_in_story(nested_id: str, step: int, generation: int) -> bool:
    """Return whether a run that is nested directly in a run, which stands at this step, tells of steps it has made."""
    return step_of(nested_id) <= step or generation_of(nested_id) != generation
