"""Turns: taking a run on as somebody has ordered it, however often the order is delivered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import attrs

from stategraph._engine.calling import cancel_as_told, check_graph, check_saves, go_on
from stategraph._engine.context import RunContext
from stategraph._engine.loop import run_from
from stategraph._engine.owning import owning
from stategraph._engine.past import newest_of
from stategraph._engine.resume import revived
from stategraph._engine.saving import take_up
from stategraph._engine.start import begin
from stategraph._owners.holds import Hold
from stategraph._protocol.commands import Task
from stategraph._values.ids import check_given_id
from stategraph._values.provenance import RunStatus
from stategraph.errors import AnswerError, CheckpointNotFoundError, RunCompleteError
from stategraph.state import State


class Turn(Protocol):
    """What is ordered of a run: `stategraph.turns.Order`."""

    @property
    def run_id(self) -> str: ...
    @property
    def number(self) -> int: ...
    @property
    def state(self) -> State | None: ...
    @property
    def updates(self) -> Mapping[str, Any]: ...
    @property
    def pause(self) -> str | None: ...
    @property
    def allow_changed(self) -> bool: ...
    @property
    def migrate(self) -> Mapping[str, str]: ...


def turn_of(state: State) -> int:
    """Return the number of the turn that a run has taken up last. Whoever began it has taken up the first one."""
    return (state.progress.turn if state.progress else 0) or 1


def take_turn(run: RunContext, turn: Turn, max_recoveries: int) -> Task[State]:
    """Take a run on, once for each number of a turn; return how it stands then. A complete run is never deleted."""
    check_saves(run.plan)
    run.plan = attrs.evolve(run.plan, preserve=True, forgets=False)
    hold = Hold(check_given_id(turn.run_id))
    return owning(run, hold, _take_turn(run, hold, turn, max_recoveries), takes_up=False)


def _take_turn(run: RunContext, hold: Hold, turn: Turn, max_recoveries: int) -> Task[State]:
    saved = yield from newest_of(run, turn.run_id)
    if saved is None or saved.graph is None:
        if turn.state is None:
            raise CheckpointNotFoundError(turn.run_id, run.plan.store)
        if hold.is_cancelled:  # a former run of this id was
            yield from take_up(run, hold)
        return (yield from begin(run, turn.state))
    check_graph(run, saved)
    taken = turn_of(saved)
    if taken < turn.number:
        _check_open(saved, turn)
        if hold.is_cancelled:
            yield from take_up(run, hold)
        asked = (turn.updates, turn.allow_changed, turn.migrate, turn.pause)
        return (yield from run_from(run, (yield from revived(run, turn.run_id, *asked, turn=turn.number))))
    if taken > turn.number or saved.status is not RunStatus.ACTIVE:  # it has come to its end, and was not told of
        return saved
    if hold.is_cancelled:
        return (yield from cancel_as_told(run, saved))
    recovered = yield from go_on(run, hold, max_recoveries, turn.allow_changed, turn.migrate)
    return saved if recovered is None or recovered.state is None else recovered.state


def _check_open(saved: State, turn: Turn) -> None:
    """Raise an error if there is nothing that a turn which is new could go on with."""
    if saved.status is not RunStatus.COMPLETED:
        return
    if turn.updates or turn.pause is not None:
        raise AnswerError(
            saved.run_id, None, f"the answer comes too late: the run is complete, after step {saved.step}"
        )
    raise RunCompleteError(saved.run_id, saved.checkpoint_node)
