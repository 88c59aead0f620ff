"""The inbox of a run: messages are taken in between two steps, and a stored answer by the next call that resumes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import attrs

from stategraph._engine.context import RunContext, fitting
from stategraph._engine.ending import failure_at
from stategraph._engine.loop import check_not_of_another, with_origins
from stategraph._engine.saving import amend, check_saves, save
from stategraph._progress import is_overdue
from stategraph._protocol import Amend, Load, Task
from stategraph._values.entries import Entry
from stategraph._values.frozen import check_mapping, lay_over
from stategraph._values.ids import check_given_id
from stategraph._values.progress import Pause, evolved
from stategraph._values.provenance import Kind, RunStatus
from stategraph.errors import AnswerError, EntryExistsError, RunCompleteError
from stategraph.state import State, data_of, evolve, recorded, taken_of, with_data

# --------------------------------------------------------------------------- from outside of the run


def send(run: RunContext, run_id: str, updates: Mapping[str, Any], key: str | None) -> Task[None]:
    """Append a message to the inbox of a run of this graph."""
    check_mapping(updates)
    check_saves(run.plan)
    saved: State = yield (Load, run.session.load, check_given_id(run_id))
    check_not_of_another(run, saved)
    if saved.status is RunStatus.COMPLETED:
        raise RunCompleteError(run_id, saved.checkpoint_node)
    fitting(run, updates, saved)
    yield from append(run, run_id, Entry("message", dict(updates), name=key or "", by=run.by))


def answer(run: RunContext, run_id: str, value: Any, pause: Pause | str | None, key: str | None) -> Task[None]:
    """Append an answer to the inbox of a run that waits for it."""
    from stategraph._engine.resume import check_answer, chosen_pause, compatible  # which look into the inbox

    check_saves(run.plan)
    saved: State = yield (Load, run.session.load, check_given_id(run_id))
    check_not_of_another(run, saved)
    pause_id = pause.id if isinstance(pause, Pause) else pause
    kept = None if key is None else (yield (Load, run.session.entry_named, (run_id, "answer", key)))
    if kept is None:
        asked = chosen_pause(saved, pause_id)
        if is_overdue(asked):
            raise AnswerError(run_id, asked, f"the answer comes too late: it was awaited until {asked.deadline}")
        yield from check_answer(run, (yield from compatible(run, saved)), asked, value)
        pause_id = asked.id
    made_of = run.plan.digest({"value": value})
    yield from append(run, run_id, Entry("answer", [pause_id, value], name=key or "", made_of=made_of, by=run.by))


def append(run: RunContext, run_id: str, entry: Entry) -> Task[Entry]:
    """Append an entry to the inbox of a run, durably; return it, or an earlier one of its key.

    Raises:
        EntryExistsError: There is one of its key with other content.
    """
    entry = attrs.evolve(entry, made_of=entry.made_of or run.plan.digest({"value": entry.value}))
    (kept,) = yield (Amend, run.session.append, (run_id, [entry]))
    if kept.made_of != entry.made_of:
        raise EntryExistsError(run_id, entry.kind, entry.name)
    return cast(Entry, kept)


# --------------------------------------------------------------------------- in the run


def unread(run: RunContext, state: State) -> Task[list[Entry]]:
    """Return the entries of the inbox that a State has not taken in; none if the store keeps no entries."""
    ownership = run.session.ownership
    if ownership is None or run.outer_step is not None or not run.session.store.keeps_entries:
        return []
    entries: list[Entry] = yield (Load, run.session.unread, (state.run_id, taken_of(state)))
    ownership.inbox = entries[-1].seq if entries else taken_of(state)
    return entries


def with_messages(run: RunContext, state: State, entries: Sequence[Entry]) -> tuple[State, dict[str, Any], str | None]:
    """Return the State that has taken entries in; the values that messages among them have set; and their author."""
    messages = [entry for entry in entries if entry.kind == "message"]
    updates: dict[str, Any] = {}
    before = state
    for message in messages:
        try:
            given = message.value if run.plan.on_message is None else run.plan.on_message(state, message.value)
            check_mapping(given)
            given = fitting(run, given, state)
        except Exception as error:
            why = f"cannot take in message {message.seq}{f' of {message.by}' if message.by else ''}: {error}"
            way_out = "on_message of the graph may return {} for it"
            raise failure_at(run, state.checkpoint_node, f"{why}; {way_out}", error) from error
        state = with_data(state, lay_over(data_of(state), given))
        updates |= given
    progress = evolved(before.progress, taken=entries[-1].seq)
    authors = {message.by for message in messages}
    return evolve(before, progress=progress), updates, authors.pop() if len(authors) == 1 else None


def take_in(run: RunContext, state: State) -> Task[State]:
    """Take in the messages that have come since the last step; return the State with them, which is saved."""
    entries = yield from unread(run, state)
    if not entries:
        return state
    if state is not run.saved and state is not run.found:
        yield from save(run, state)
    after, updates, by = with_messages(run, state, entries)
    progress = after.progress
    if progress is not None:  # new values may answer again
        after = evolve(after, progress=evolved(progress, answered=progress.answered - updates.keys()))
    after = with_origins(run, with_data(after, lay_over(data_of(after), updates)), after, updates.keys())
    return (yield from amend(run, recorded(after, Kind.UPDATE, by)))


def stored_answer(saved: State, entries: Sequence[Entry]) -> Entry | None:
    """Return the first stored answer to a pause at which a run waits, given before its deadline."""
    waiting = {pause.id: pause for pause in saved.pause.each} if saved.pause else {}
    for entry in entries:
        if entry.kind == "answer" and isinstance(entry.value, list) and entry.value[0] in waiting:
            deadline = waiting[entry.value[0]].deadline
            if deadline is None or entry.at <= deadline:
                return entry
    return None


def with_stored_answer(
    saved: State, pause: Pause | None, entry: Entry, updates: Mapping[str, Any], pause_id: str | None
) -> tuple[Mapping[str, Any], str]:
    """Return the updates of a resume with a stored answer, and the id of the pause that it answers.

    Raises:
        AnswerError: The resume answers the same pause: an answer counts once.
    """
    waiting, answer = entry.value
    key = None if pause is None else pause.response_param
    if pause_id == waiting or (pause_id is None and key in updates):
        who = f" by {entry.by}" if entry.by else ""
        raise AnswerError(saved.run_id, pause, f"it was answered{who} at {entry.at:%Y-%m-%d %H:%M:%S} UTC")
    return (updates if key is None else {**updates, key: answer}), waiting


def has_unread(run: RunContext, state: State) -> bool:
    """Return whether the inbox is known to have entries that a State has not taken in."""
    ownership = run.session.ownership
    return ownership is not None and (ownership.inbox or 0) > taken_of(state)
