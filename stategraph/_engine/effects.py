"""Effects: calls of a node that are kept one by one, so that a repeated step does not repeat them.

An effect is an entry of the journal of its step. Its value is a mapping: empty if the call is known not to have taken
effect; otherwise "awaits" says whether the call is async, and "result", once it is known, is the result.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping
from functools import partial
from inspect import CORO_CREATED, getcoroutinestate, isawaitable, iscoroutine
from typing import Any, TypeAlias, cast

import attrs

from stategraph._protocol import OutcomeUnknown
from stategraph._text.shown import shorten
from stategraph._util.callables import is_async_callable
from stategraph._values.entries import Entry
from stategraph._values.ids import given_id
from stategraph._values.progress import Pause, pause_of
from stategraph.errors import NotSerializableError

_Journal: TypeAlias = Any
"""A `stategraph._engine.journal.StepJournal`, which calls this module."""

_Work: TypeAlias = Generator[Callable[[], Any] | Awaitable[Any], Any, Any]
"""Yields calls of the store and what is to be awaited; receives the results."""


def effect(journal: _Journal, key: str, call: Callable[[], Any], confirm: Callable[[str], Any] | None) -> Any:
    """Do what `NodeContext.effect` does; return the result, or an awaitable of it if the call is async."""
    if not isinstance(key, str) or not key:
        raise ValueError(f"the key of an effect is a str that names it, not {key!r}")
    wrong = [function for function in (call, confirm or call) if not callable(function)]
    if wrong:
        way_out = "give it one, as in effect(key, lambda: pay(order))"
        raise TypeError(f"effect {key!r} calls a function, not {shorten(wrong[0])}: {way_out}")
    _use(journal, key)
    if not journal.is_kept:
        return call()
    work = _effect(journal, key, call, confirm)
    if not is_async_callable(call):
        return _driven(work)
    later = journal.used[key] = _awaited(work, None)
    return later


def check_awaited(journal: _Journal) -> None:
    """Raise RuntimeError if a sync node has returned and an async effect of it was not begun."""
    for key, later in journal.used.items():
        if iscoroutine(later) and getcoroutinestate(later) == CORO_CREATED:
            later.close()
            way_out = "let an async node await it, or give effect() a sync function"
            raise RuntimeError(f"effect {key!r} was not awaited, so nothing was called: {way_out}")


def ask(journal: _Journal, questions: Mapping[str, tuple[str, Any]]) -> dict[str, Any]:
    """Return the answers to questions by key; a question is a reason to ask, and a value to show.

    An answer is kept as the result of an effect is. If one is missing, the run pauses, with a pause for each.

    Raises:
        RuntimeError: Nothing of the run is saved, so it cannot pause.
    """
    if not journal.is_kept:
        raise RuntimeError(f"{next(iter(questions))!r} waits for an answer, but the run is not saved: give it a store")
    answers: dict[str, Any] = {}
    pauses: list[Pause] = []
    for key, (reason, value) in questions.items():
        _use(journal, key)
        kept = _kept(journal, key) or _keep(journal, key, awaits=False)
        if "result" in kept:
            answers[key] = kept["result"]
        else:
            pauses.append(attrs.evolve(_asking(journal, key), reason=reason, value=value))
    if pauses:
        raise OutcomeUnknown(pause_of(pauses))
    return answers


def _use(journal: _Journal, key: str) -> None:
    if not journal.claim(key):
        raise ValueError(f"this attempt has done effect {key!r} before: a key is for one effect, give each its own")
    journal.check_open(f"effect {key!r}")


def _effect(journal: _Journal, key: str, call: Callable[[], Any], confirm: Callable[[str], Any] | None) -> _Work:
    kept: Mapping[str, Any] | None = yield partial(_kept, journal, key)
    awaits = (kept or {}).get("awaits", is_async_callable(call))
    if awaits:
        yield _Switch()
    if kept is not None and "result" not in kept:
        if confirm is not None:
            happened = confirm(key)
            happened = (yield happened) if isawaitable(happened) else happened
            if happened is not None:
                kept = yield partial(_keep, journal, key, awaits=awaits, result=happened)
        elif kept:
            raise OutcomeUnknown(_asking(journal, key))
    if kept and "result" in kept:
        return kept["result"]
    yield partial(_keep, journal, key, awaits=awaits)
    try:
        result = call()
        if isawaitable(result):
            if not awaits:  # nothing has happened yet; who finds this effect must know that its caller awaits
                yield partial(_keep, journal, key, awaits=True)
                awaits = True
            result = yield result
    except Exception:  # others, such as a cancellation, leave the outcome unknown
        yield partial(_keep, journal, key)
        journal.used.pop(key, None)  # the attempt may try again
        raise
    return (yield partial(_keep, journal, key, awaits=awaits, result=result))["result"]


def _driven(work: _Work) -> Any:
    """Return the result of an effect, or an awaitable of it once there is something to await."""
    value = None
    while True:
        try:
            step = work.send(value)
        except StopIteration as end:
            return end.value
        if isawaitable(step):
            return _awaited(work, step)
        value = step()


async def _awaited(work: _Work, step: Any) -> Any:
    import asyncio  # imported when used: 20 ms

    go_on: Callable[[Any], Any] = work.send
    value: Any = None
    while True:
        try:
            if step is not None:
                value = await (step if isawaitable(step) else asyncio.to_thread(step))
            go_on = work.send
        except BaseException as error:
            go_on, value = work.throw, error
        try:
            step = go_on(value)
        except StopIteration as end:
            return end.value


class _Switch:
    """Is awaited first if the caller awaits the effect, so that the rest of it waits for that."""

    def __await__(self) -> Generator[Any, Any, None]:
        yield from ()


# --------------------------------------------------------------------------- entries


def _kept(journal: _Journal, key: str) -> Mapping[str, Any] | None:
    """Return what is kept of an effect; None if it has not begun.

    Raises:
        RuntimeError: The step or the attempt is over.
    """
    run = journal.run
    journal.check_open(f"effect {key!r}")
    journal.save_input()
    with run.input_lock:
        found = run.effects.get(journal.step)
        if found is None:
            entries = journal.entries_of_step("effect")
            found = run.effects[journal.step] = {(entry.place, entry.name): entry for entry in entries}
            run.did.update(dict.fromkeys(entry.name for entry in entries if entry.value))
    entry = found.get((journal.place, key))
    return None if entry is None else cast(Mapping[str, Any], entry.value)


_HAS_HAPPENED = (
    "The effect has happened, but its result is not kept: let call and confirm return what can be saved. Resume the "
    "run: this step does not call again, and takes the result from confirm, or from the answer to a pause"
)


def _keep(journal: _Journal, key: str, **value: Any) -> Mapping[str, Any]:
    try:
        kept = journal.append("effect", value, key)
    except NotSerializableError as error:  # of the result: nothing else may be refused
        error.reason = f"{error.reason}. {_HAS_HAPPENED}"
        raise
    journal.run.effects[journal.step][journal.place, key] = kept
    if value:
        journal.run.did[key] = None
    else:
        journal.run.did.pop(key, None)
    return cast(Mapping[str, Any], kept.value)


def _asking(journal: _Journal, key: str) -> Pause:
    """Return the pause that asks for the outcome of an effect. Each call returns the same pause."""
    kept: Entry = journal.run.effects[journal.step][journal.place, key]
    run_id = journal.state.run_id
    at: tuple[Any, ...] = run_id.removeprefix(given_id(run_id)), kept.step, kept.place
    asked = {"effect": [run_id, *at[1:], kept.name], "at": kept.at_ns, "generation": journal.state.generation}
    pause = Pause("the outcome of an effect is unknown", journal.node, kept.name, kept.name, kept.at)
    return attrs.evolve(pause, id=journal.run.plan.digest(asked), effect=at)
