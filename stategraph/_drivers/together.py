"""What several runs of an event loop ask of a store at once: one thread makes the calls, and saves in one go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

from stategraph._drivers.calls import Asked, Outcome, outcome_of
from stategraph._engine.io import RunIO
from stategraph.state import State


def answers(asked: Sequence[Asked]) -> list[Outcome]:
    """Make the calls of several runs, saves last; return the outcome of each."""
    if len(asked) == 1:
        run, function, argument = asked[0]
        return [run(outcome_of, function, argument)]
    outcomes: list[Outcome] = [(None, None)] * len(asked)
    saves: list[int] = []
    for behind in [io.whole for one in asked if (io := _asks(RunIO.flush, one)) is not None]:
        outcome_of(_save_all, behind)  # what it raises, the flush does
    for place, (run, function, argument) in enumerate(asked):
        if _asks(RunIO.save, asked[place]) is None:
            outcomes[place] = run(outcome_of, function, argument)
        else:
            saves.append(place)
    raised, failed = outcome_of(_saved_together, [_save(*asked[place]) for place in saves])
    for place, error in zip(saves, raised or [failed] * len(saves), strict=True):
        outcomes[place] = (None, error)
    return outcomes


def _asks(method: Callable[..., Any], asked: Asked) -> RunIO | None:
    """Return the services of a run that asks by this method of them."""
    function: Any = asked[1]
    return function.__self__ if getattr(function, "__func__", None) is method else None


def _save_all(whole: Any) -> None:
    """Save what is queued of all runs, if the store is written to behind them."""
    if hasattr(whole, "save_all"):
        whole.save_all()


def _save(run: Callable[..., Any], save: Any, state: State) -> tuple[RunIO, State, Callable[[], object]]:
    return save.__self__, state, partial(run, save, state)


def _saved_together(saves: Sequence[tuple[RunIO, State, Callable[[], object]]]) -> list[BaseException | None]:
    """Save States of several runs in one go where their store can do that; return what each save raises, if anything.

    Args:
        saves: For each run its services, the State, and what makes the call of `RunIO.save`.
    """
    raised: list[BaseException | None] = [None] * len(saves)
    together: dict[int, list[int]] = {}
    for place, (io, _, call) in enumerate(saves):
        if hasattr(io.whole, "_save_together"):
            together.setdefault(id(io.whole), []).append(place)
        else:
            raised[place] = _raised_by(call)
    for places in together.values():
        before = [dict(saves[place][0].before) for place in places]
        calls = [({saves[place][1].run_id}, saves[place][2]) for place in places]
        made = cast(Any, saves[places[0]][0].whole)._save_together(calls)
        for place, before_it, is_saved in zip(places, before, made, strict=True):
            raised[place] = _outcome(*saves[place], before_it, is_saved)
    return raised


def _outcome(
    io: RunIO, state: State, call: Callable[[], object], before: dict[int, State], is_saved: bool | BaseException
) -> BaseException | None:
    """Return what the save of a State raises, which is made alone if it could not be made together with others."""
    if is_saved is True:
        return _raised_by(partial(io.heed_cancel, state))
    if isinstance(is_saved, BaseException):
        return io.unsaved(state, is_saved)
    io.before = before
    return _raised_by(call)


def _raised_by(call: Callable[[], object]) -> BaseException | None:
    try:
        call()
    except BaseException as error:
        return error
    return None
