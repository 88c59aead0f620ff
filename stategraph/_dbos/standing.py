"""Standing: how a run stands, in its store and in DBOS, and what may be ordered of it next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import attrs

from stategraph._dbos.orders import Ordered, order_of, turn_id, turns_of
from stategraph._engine.answering import to_be_answered
from stategraph._engine.turning import turn_of
from stategraph._progress.answers import is_overdue
from stategraph._values.progress import Pause
from stategraph._values.provenance import RunStatus
from stategraph.errors import AnswerError, CheckpointNotFoundError, RunCompleteError
from stategraph.graph import StateGraph
from stategraph.state import State
from stategraph.turns import Order


@attrs.frozen
class Standing:
    """How a run stands.

    Attributes:
        run_id: The run.
        turns: Its newest turns, as DBOS knows of them, the newest first.
        graph: Its graph; None if no store has the run.
        saved: Its newest State; None if no store has it.
        stores: The stores that were looked into, in words.
    """

    run_id: str
    turns: list[Ordered]
    graph: StateGraph | None
    saved: State | None
    stores: str

    @classmethod
    def of(cls, run_id: str, graphs: Mapping[str, StateGraph]) -> Standing:
        """Look how a run stands, first in DBOS: what is not in a store then has not begun, or is done with."""
        turns = turns_of(run_id)
        stores = " and the ".join(sorted({str(graph.store) for graph in graphs.values()}))
        for graph in graphs.values():
            try:
                saved = graph.store.load(run_id)
            except CheckpointNotFoundError:
                continue
            return cls(run_id, turns, graphs.get(saved.graph or "", graph), saved, stores)
        if not turns:
            raise CheckpointNotFoundError(run_id, stores)
        return cls(run_id, turns, None, None, stores)

    @property
    def coming(self) -> Ordered | None:
        """The newest turn, if it is on its way: still to be taken up, or at work."""
        newest = self.turns[0] if self.turns else None
        if newest is None or not newest.is_open or self.saved is None:
            return newest if newest is not None and newest.is_open else None
        is_coming = newest.number > turn_of(self.saved) or self.saved.status is RunStatus.ACTIVE
        return newest if is_coming else None

    def next_order(self) -> Order:
        """Return the order for its next turn. A run that has not begun does so with the State of its first turn.

        Raises:
            RunCompleteError: the run is complete.
        """
        number = 1 + max([0 if self.saved is None else turn_of(self.saved), *(turn.number for turn in self.turns)])
        if self.saved is not None and self.graph is not None:
            if self.saved.status is RunStatus.COMPLETED:
                raise RunCompleteError(self.run_id, self.saved.checkpoint_node)
            return Order(self.graph, self.run_id, number)
        if self.turns[0].status == "SUCCESS":
            raise RunCompleteError(self.run_id, "an exit point")
        first = order_of(turn_id(self.run_id, 1))
        if first is None:
            raise CheckpointNotFoundError(self.run_id, self.stores)
        return attrs.evolve(first, number=number)

    def answered_by(self, updates: Mapping[str, Any], pause_id: Any) -> Pause:
        """Return the pause that updates answer. Raises AnswerError unless the run waits for them at that pause."""
        saved = self.saved
        if saved is None:
            status = "complete" if self.turns[0].status == "SUCCESS" else "not begun"
            raise AnswerError(self.run_id, None, f"the run waits for no answer: it is {status}")
        pause = saved.pause
        if saved.status is not RunStatus.PAUSED or pause is None:
            problem = f"the run waits for no answer: it is {saved.status.value}, after step {saved.step}"
            raise AnswerError(self.run_id, None, problem)
        if pause_id not in (None, *(one.id for one in pause.each)):
            problem = "the pause that is to be answered is over: the run waits at another one"
            raise AnswerError(self.run_id, pause, problem)
        pause, problem = cast(Pause, to_be_answered(saved, updates, pause_id).pause), ""
        if pause.response_param is not None and pause.response_param not in updates and not is_overdue(pause):
            problem = "no answer is given"
        elif self.coming is not None:
            problem = "an answer to it is on its way already, and one counts"
        if problem:
            raise AnswerError(self.run_id, pause, problem)
        return pause
