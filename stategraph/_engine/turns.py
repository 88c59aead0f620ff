"""Turns of a conversation: one after the other, each once for its key, and those that come while the run is busy.

A turn with a key, and one that waits for the run, is an entry of the inbox. Its name is its key.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Mapping
from functools import partial
from math import inf
from typing import Any

import attrs

from stategraph._engine.context import RunContext, fitting, show
from stategraph._engine.ending import end_cancelled
from stategraph._engine.loop import begin, with_defaults
from stategraph._engine.owning import clear_cancellation, owning_saved
from stategraph._engine.resume import fitting_saved, resume_owned
from stategraph._engine.saving import check_not_of_another, newest_of, waiting_turns
from stategraph._graph.changed import off_removed
from stategraph._graph.versions import upgraded
from stategraph._protocol import Amend, Load, Task
from stategraph._values.entries import Entry
from stategraph._values.frozen import check_mapping
from stategraph._values.ids import check_given_id
from stategraph._values.progress import NO_PROGRESS, evolved
from stategraph._values.provenance import Kind, RunStatus
from stategraph.errors import (
    AnswerError,
    CheckpointError,
    CheckpointNotFoundError,
    ConfigError,
    EntriesNotKeptError,
    EntryExistsError,
    ExecutionError,
    RunBusyError,
)
from stategraph.state import State, data_of, evolve, taken_of, turns_of, with_data

_STORED = "the turn is stored: it runs after those before it, also if this call ends"


@attrs.define(eq=False)
class Turn:
    """A turn that a call executes.

    Attributes:
        run_id: The conversation.
        given: The input.
        key: The key of the turn, if given.
        busy: What happens if the run is busy: "reject", "enqueue", "interrupt" or "rollback".
        discards: Whether an interrupted turn before it is rolled back, not finished.
        entry: The turn in the inbox, if it is stored.
    """

    run_id: str
    given: Mapping[str, Any]
    key: str | None = None
    busy: str = "reject"
    discards: bool = False
    entry: Entry | None = None


def execute_turn(run: RunContext, turn: Turn, *, waits: bool) -> Task[State]:
    """Execute a run with new input after its previous turn has finished; begin the run if there is none.

    Without `waits`, a turn that is stored while the run is busy waits without limit.
    """
    check_given_id(turn.run_id)
    check_mapping(turn.given)
    task = owning_saved(run, turn.run_id, _executed(run, turn), takes_up=False)
    if not run.plan.preserve:
        allowed = "a conversation takes preserve=True: otherwise each turn would begin it again"
        raise ConfigError("checkpoint.preserve", False, allowed)
    if (turn.discards or turn.busy == "rollback") and not run.session.keeps_all:
        option = ("unfinished", "discard") if turn.discards else ("busy", turn.busy)
        raise ConfigError(*option, 'only retention="full" keeps the end of the turn before')
    if turn.key is None and turn.busy == "reject":
        return task
    if not run.session.store.keeps_entries:
        raise EntriesNotKeptError(turn.run_id, str(run.session.store), "append")
    if turn.busy != "reject":
        run.while_busy = partial(_store, run, turn)
        run.patience = run.patience if waits else inf
    return task if turn.key is None else _unless_known(run, turn, task)


def _unless_known(run: RunContext, turn: Turn, task: Task[State]) -> Task[State]:
    """Return the result of a turn that has ended; otherwise execute it."""
    found = yield from _result(run, turn, (yield from newest_of(run, turn.run_id)))
    return (yield from task if found is None else _shown(run, found))


def _shown(run: RunContext, state: State) -> Task[State]:
    """Show the State of a turn that has ended before, and return it."""
    yield from show(run, state)
    return state


def _executed(run: RunContext, turn: Turn) -> Task[State]:
    run.accepts = True
    state = yield from newest_of(run, turn.run_id)
    if state is not None:
        check_not_of_another(run, state)
    own = turn.entry is not None and state is not None and _serves(state) == turn.entry.seq
    if state is None or state.status is RunStatus.COMPLETED or own:
        yield from clear_cancellation(run)  # it was for a turn that is over, or an earlier run with this id
    elif run.session.is_cancelled:  # and the owner of the turn before has died: that turn is not finished
        state = yield from end_cancelled(run, state)
    if state is None:
        return (yield from _first(run, turn))
    if turn.key is not None:
        found = yield from _result(run, turn, state)
        if found is not None:
            return (yield from _shown(run, found))
    entry = turn.entry
    if entry is not None and entry.seq <= turns_of(state):
        is_over = state.status in (RunStatus.COMPLETED, RunStatus.PAUSED)
        if _serves(state) == entry.seq and not is_over:  # it was interrupted, or has failed
            return (yield from resume_owned(run, turn.run_id))
        return (yield from _shown(run, state))  # its end is not kept
    try:
        state = yield from serve(run, state, discards=turn.discards, until=entry)
    except ExecutionError as error:
        error.add_note(_of_turn_before(run, turn.run_id))
        raise
    if entry is None and turn.key is not None:
        known = run.session.inbox
        entry = yield from _append(run, turn, state)
        if entry.seq != known + 1:  # others came in between, or another call has stored this one
            return (yield from _executed(run, turn))
    return (yield from _begin(run, state, turn.given, entry))


def _of_turn_before(run: RunContext, run_id: str) -> str:
    discards = ', and turn(..., unfinished="discard") rolls it back' if run.session.keeps_all else ""
    return (
        "This is the failure of a turn before, which must end first: the turn of this call has not begun. Mend the "
        f"cause and call again, or finish that turn with other values, as in resume({run_id!r}, {{key: value}}); "
        f"cancel({run_id!r}) gives it up where it is{discards}."
    )


# --------------------------------------------------------------------------- turns in the inbox


def serve(run: RunContext, state: State, *, discards: bool = False, until: Entry | None = None) -> Task[State]:
    """End the turn under way, and execute those that wait, in order, up to an entry; return the State of the run.

    Raises:
        AnswerError: a turn waits for an answer.
    """
    if state.status is not RunStatus.COMPLETED:
        policies = {turn.value[1] for turn in (yield from waiting_turns(run, state))}
        state = yield from _ended(run, state, policies | ({"rollback"} if discards else set()))
    while turns := (yield from waiting_turns(run, state)):
        if until is not None and turns[0].seq >= until.seq:
            break
        given, _, deadline_ns = turns[0].value
        state = yield from _begin(_beside(run, turns[0].by, deadline_ns), state, given, turns[0])
        _check_answered(state)
    return state


def _beside(run: RunContext, by: str | None, deadline_ns: int = 0) -> RunContext:
    """Return the context of a separate call by the same owner."""
    session = run.session.nested(run.plan.persist)
    other = attrs.evolve(run, session=session, shows=False, by=by, deadline_ns=deadline_ns)
    other.is_job = run.is_job
    return other


def _store(run: RunContext, turn: Turn, busy: RunBusyError) -> Task[None]:
    """Store a turn, because another call is at work on the run; interrupt that call if the turn is to."""
    if turn.entry is None:
        state = yield from newest_of(run, turn.run_id)
        if state is None:  # it is just being begun
            return
        check_not_of_another(run, state)
        turn.entry = yield from _append(run, turn, state)
        state = (yield from newest_of(run, turn.run_id)) or state  # the turn may have begun: it cancels others
        if turn.busy != "enqueue" and turn.entry.seq > turns_of(state):
            yield (Amend, partial(run.session.store._cancel, turn.run_id), run.by)
    busy.add_note(_STORED)


def _append(run: RunContext, turn: Turn, state: State) -> Task[Entry]:
    """Append a turn to the inbox of its run, or return the one of its key."""
    given, kept = turn.given, run.plan.saved_of(turn.given)
    if turn.busy != "reject" and len(kept) < len(given):
        lost = min(given.keys() - kept.keys())
        raise ConfigError("busy", turn.busy, f'"reject": the key {lost!r} of the input is not saved (persist)')
    fitting(run, with_defaults(run, data_of(fitting_saved(run, upgraded(run.plan, state), given).update(given))), {})
    value = [kept, turn.busy, run.deadline_ns]
    entry = Entry("turn", value, name=turn.key or os.urandom(8).hex(), by=run.by)
    entry = attrs.evolve(entry, made_of=_digest(run, turn))
    append = partial(run.session.store.append, turn.run_id, [entry])
    (found,) = yield (Amend, run.session.write, (turn.run_id, append))
    if run.session.ownership is not None:
        run.session.ownership.inbox = max(run.session.inbox, found.seq)
    return _checked(run, turn, found)


def _digest(run: RunContext, turn: Turn) -> str:
    return run.plan.digest(run.plan.saved_of(turn.given))


def _checked(run: RunContext, turn: Turn, entry: Entry) -> Entry:
    if entry.made_of != _digest(run, turn):
        raise EntryExistsError(turn.run_id, "turn", entry.name)
    return entry


# --------------------------------------------------------------------------- beginning and ending


def _first(run: RunContext, turn: Turn) -> Task[State]:
    """Begin the run; a key is saved with its first State."""
    state = State(turn.given, run_id=turn.run_id)
    ownership = run.session.ownership
    if turn.key is not None and ownership is not None:
        entry = Entry("turn", [{}, turn.busy, 0], name=turn.key, made_of=_digest(run, turn), by=run.by, seq=1)
        ownership.brings = (entry,)
        state = evolve(state, progress=evolved(None, taken=1, turns=1, serves=1))
    return (yield from begin(run, state))


def _begin(run: RunContext, state: State, given: Mapping[str, Any], entry: Entry | None) -> Task[State]:
    """Execute a run with new input: that of an entry of its inbox, or that of a call."""
    state = fitting_saved(run, upgraded(run.plan, state), given).update(given)
    if entry is not None or state.progress is not None:
        seq, newest = (entry.seq, 0) if entry else (0, run.session.inbox)
        progress = evolved(state.progress, serves=seq, turns=max(seq, newest, turns_of(state)))
        if seq == taken_of(state) + 1:  # nothing else has come
            progress = evolved(progress, taken=seq)
        state = evolve(state, progress=progress)
    return (yield from begin(run, state, restart=True))


def _ended(run: RunContext, state: State, policies: set[str]) -> Task[State]:
    """Return the State at the end of a turn that was interrupted: rolled back, left as it is, or finished."""
    if state.status is RunStatus.PAUSED and off_removed(run.plan, state) is state:
        _check_answered(state)
    if "rollback" in policies:
        write = partial(_without_last_turn, run.session.store, state.run_id, run.by)
        state = yield (Amend, run.session.write, (state.run_id, write))
    elif state.status is not RunStatus.CANCELLED and "interrupt" not in policies:
        state = yield from resume_owned(_beside(run, None), state.run_id)
        _check_answered(state)
    return state


def _check_answered(state: State) -> None:
    if state.status is RunStatus.PAUSED and state.pause is not None:
        raise AnswerError(state.run_id, state.pause, "a new turn begins once the one before is finished")


def _without_last_turn(store: Any, run_id: str, by: str | None) -> State:
    """Roll a run back to the end of its last completed turn; return that State, empty if there is none."""
    rows = store.history(run_id)
    newest = rows[-1].step
    for row in reversed(rows):
        if row.status is RunStatus.COMPLETED and row.step <= newest:
            back: State = store.rollback(run_id, row.step, row.revision, by=by, repeat_effects=True)
            return back
        if row.kind is Kind.ROLLBACK:  # the steps after this one were rolled back before
            newest = min(newest, row.step)
    if rows[0].step or rows[0].kind is not Kind.INPUT:
        reason = 'the end of the turn before is not kept, as it was saved without retention="full"; finish this turn'
        raise CheckpointError(run_id, reason)
    return with_data(store.rollback(run_id, 0, rows[0].revision, by=by, repeat_effects=True), {})


# --------------------------------------------------------------------------- results


def _result(run: RunContext, turn: Turn, state: State | None) -> Task[State | None]:
    """Look up the turn of a key; return the State at its end, None if it has not ended or its end is not kept.

    Raises:
        EntryExistsError: The turn of the key has other input.
    """
    if state is None:
        return None
    entry = yield (Load, run.session.entry_named, (turn.run_id, "turn", turn.key or ""))
    if entry is None:
        return None
    turn.entry = entry = _checked(run, turn, entry)
    if entry.seq > turns_of(state):
        return None
    if _serves(state) == entry.seq:
        return None if state.status in (RunStatus.ACTIVE, RunStatus.FAILED) else state
    found: State | None = yield (Load, partial(_end_of, run.session.store, turn.run_id), entry.seq)
    return found


def _end_of(store: Any, run_id: str, seq: int) -> State | None:
    """Return the last State of a turn of the inbox, if it is kept."""
    rows = [row for row in store.history(run_id) if row.status is not RunStatus.ACTIVE]

    def load(row: Any) -> State:
        state: State = store.load(run_id, row.step, row.revision)
        return state

    try:
        for row in reversed(rows[: bisect_right(rows, seq, key=lambda row: turns_of(load(row)))]):
            state = load(row)
            if _serves(state) == seq or turns_of(state) < seq:
                return state if _serves(state) == seq else None
    except CheckpointNotFoundError:  # it was pruned in the meantime
        return None
    return None


def _serves(state: State) -> int:
    return (state.progress or NO_PROGRESS).serves
