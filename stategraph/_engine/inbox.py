"""The inbox of a run: messages are taken in between two steps, and a stored answer by the next call that resumes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from stategraph._engine.context import RunContext, described, fitting, with_origins
from stategraph._engine.ending import failure_at
from stategraph._engine.saving import amend, inbox_after, save
from stategraph._protocol import Task
from stategraph._text.shown import shorten
from stategraph._values.entries import Entry
from stategraph._values.frozen import check_mapping, lay_over, plain_key
from stategraph._values.progress import evolved
from stategraph._values.provenance import Kind
from stategraph.errors import AnswerError
from stategraph.state import State, data_of, evolve, recorded, taken_of, with_data


def unread(run: RunContext, state: State) -> Task[list[Entry]]:
    """Return the messages and answers in the inbox that a State has not taken in."""
    return [entry for entry in (yield from inbox_after(run, state, taken_of(state))) if entry.kind != "turn"]


def updates_of(run: RunContext, state: State, entries: Sequence[Entry]) -> tuple[dict[str, Any], str | None]:
    """Return the values that messages among some entries set in a State, and their author if they have one.

    Raises:
        ExecutionError: `on_message` or the schema refuses a message.
    """
    messages = [entry for entry in entries if entry.kind == "message"]
    updates: dict[str, Any] = {}
    for message in messages:
        try:
            given = message.value if run.plan.on_message is None else run.plan.on_message(state, message.value)
            given = checked_message(run, given, state)
        except Exception as error:
            by = f" of {message.by}" if message.by else ""
            why = f"is left, and message {message.seq}{by} cannot be taken in: {described(run, error)}"
            way_out = "on_message of the graph may return {} for it"
            raise failure_at(run, state.checkpoint_node or run.plan.entry, f"{why}; {way_out}", error) from error
        state = with_data(state, lay_over(data_of(state), given))
        updates |= given
    authors = {message.by for message in messages}
    return updates, authors.pop() if len(authors) == 1 else None


def checked_message(run: RunContext, given: Any, state: State) -> Mapping[str, Any]:
    """Return the updates of a message, as the schema of the graph takes them.

    Raises:
        TypeError, ValueError: they are no updates; or would be lost, as their keys are not saved.
    """
    check_mapping(given)
    given = fitting(run, {plain_key(key): value for key, value in given.items()}, state)
    lost = sorted(given.keys() - run.plan.persist) if run.plan.persist is not None else []
    if lost:
        way_out = "name it in checkpoint.persist, or give it to resume"
        raise ValueError(f"a message cannot set {shorten(lost[0])}, which is not saved: {way_out}")
    return cast(Mapping[str, Any], given)


def take_in(run: RunContext, state: State) -> Task[State]:
    """Take in the messages that have come since the last step; return the State with them, which is saved."""
    entries = yield from unread(run, state)
    if not entries:
        return state
    if state is not run.saved and state is not run.found:
        yield from save(run, state)
    updates, by = updates_of(run, state, entries)
    answered = state.progress.answered - updates.keys() if state.progress else ()  # new values may answer again
    after = evolve(state, progress=evolved(state.progress, taken=entries[-1].seq, answered=answered))
    after = with_origins(run, with_data(after, lay_over(data_of(after), updates)), after, updates.keys())
    return (yield from amend(run, recorded(after, Kind.UPDATE, by)))


def stored_answers(saved: State, entries: Sequence[Entry]) -> list[Entry]:
    """Return the stored answers to pauses at which a run waits, those given before their deadlines."""
    waiting = {pause.id: pause.deadline for pause in saved.pause.each} if saved.pause else {}
    answers = [entry for entry in entries if entry.kind == "answer" and entry.place in waiting]
    return [entry for entry in answers if (until := waiting[entry.place]) is None or entry.at <= until]


def answered_before(run_id: str, entry: Entry) -> AnswerError:
    """Return the error for a second answer to a pause."""
    who = f" by {entry.by}" if entry.by else ""
    problem = (
        f"the pause was answered{who} at {entry.at:%Y-%m-%d %H:%M:%S} UTC, and an answer counts once; "
        f"resume({run_id!r}) goes on with it"
    )
    return AnswerError(run_id, None, problem)
