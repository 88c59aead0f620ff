"""Calls of a store that several runs of an event loop make at once: one thread makes them, and saves in one go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stategraph._drivers.calls import Asked, Outcome, outcome_of
from stategraph._engine.io import RunIO


def make_calls(calls: Sequence[Asked]) -> list[Outcome]:
    """Make the calls of several runs, saves last; return the outcome of each."""
    if len(calls) == 1:
        run, function, argument = calls[0]
        return [run(outcome_of, function, argument)]
    _save_queued([io.queue for call in calls if (io := _io_of(RunIO.flush, call)) is not None])
    outcomes: list[Outcome] = [(None, None)] * len(calls)
    saves: list[tuple[int, RunIO]] = []
    for place, (run, function, argument) in enumerate(calls):
        io = _io_of(RunIO.save, calls[place])
        if io is None or io.queue is not None:
            outcomes[place] = run(outcome_of, function, argument)
        else:
            saves.append((place, io))
    if saves:
        for place, outcome in zip([place for place, _ in saves], _saved(calls, saves), strict=True):
            outcomes[place] = outcome
    return outcomes


def _io_of(method: Callable[..., Any], call: Asked) -> RunIO | None:
    """Return the services of a run that makes a call of this method of them."""
    function: Any = call[1]
    return function.__self__ if getattr(function, "__func__", None) is method else None


def _save_queued(queues: Sequence[Any]) -> None:
    """Save what is queued of several runs. Their flush raises what went wrong."""
    queued = [queue for queue in queues if queue is not None]
    if len(queued) > 1:
        queued[0].save_with(queued)


def _saved(calls: Sequence[Asked], saves: Sequence[tuple[int, RunIO]]) -> list[Outcome]:
    """Save the States of several runs in one go; return the outcome of each call of `RunIO.save`."""
    store: Any = saves[0][1].store
    prepared = [(io, *calls[place], calls[place][0](outcome_of, io.to_save, calls[place][2])) for place, io in saves]
    errors = iter(store._save_runs([(io.hold, states) for io, *_, (states, failure) in prepared if failure is None]))
    return [
        run(outcome_of, io.saved, (state, next(errors) if failure is None else failure))
        for io, run, _, state, (_, failure) in prepared
    ]
