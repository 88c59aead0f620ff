"""Worker: performs the turns that DBOS delivers to this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from time import monotonic, sleep
from typing import Any

from dbos import DBOS

from stategraph._dbos.orders import TURN, Ordered, apart, find_turns, turns_of
from stategraph._values.provenance import Owner, RunStatus
from stategraph.errors import RunBusyError, RunCancelledError, RunLostError
from stategraph.graph import StateGraph
from stategraph.state import State
from stategraph.stores.toolkit import state_to_bytes
from stategraph.turns import Order, forget, from_bytes, graph_of, perform

_LOOK_AGAIN = 0.2  # seconds after which a run that is at work elsewhere is asked for again
_SOON = 0.02  # seconds after which DBOS is asked again what it has noted


class GivenUp(BaseException):
    """A turn is not done here: another worker has it, or is to have it. DBOS notes nothing of that."""


class Worker:
    """Performs turns. DBOS keeps what came of each, and the store of its graph all else.

    Args:
        name: What DBOS knows this process by.
        graphs: The graphs, by their names.
        max_recoveries: How many workers one step of a run may take down.
        is_dead: Whether an owner of a run is a worker that is known to be dead.
        give_back: Gives a turn back to its queue, if DBOS has it down as this worker's.

    Attributes:
        stops: Set once no more turns are to be performed.
    """

    def __init__(
        self,
        name: str,
        graphs: Mapping[str, StateGraph],
        max_recoveries: int,
        is_dead: Callable[[Owner], bool],
        give_back: Callable[[str], object],
    ) -> None:
        self.name = name
        self.stops = threading.Event()
        self._graphs, self._max_recoveries = graphs, max_recoveries
        self._is_dead, self._give_back = is_dead, give_back
        self._active: dict[threading.Event, str] = {}  # a turn may be here twice: given back, and delivered once more
        self._done: dict[str, Order] = {}
        self._idle = threading.Condition()
        self._forgetting = threading.Lock()  # the keeper forgets as well as whoever closes

    @property
    def active(self) -> list[str]:
        """The ids of the turns that are being performed."""
        return list(self._active.values())

    # ------------------------------------------------------------------ a turn

    def take_turn(self, id: str, kept: bytes) -> dict[str, Any]:
        """Perform the turn of an id; return what DBOS is to keep of what came of it."""
        cancel = threading.Event()
        with self._idle:
            self._active[cancel] = id
            if self.stops.is_set():
                cancel.set()
        try:
            order = from_bytes(kept)
            state = self._performed(order, cancel)
            return self._outcome(id, order, state)
        except (RunCancelledError, GivenUp):  # this worker stops, or the turn is not its own any more
            self._give_back(id)
            raise GivenUp from None
        except RunLostError:
            if self._owns(id):  # somebody who is no worker has taken the run
                raise
            raise GivenUp from None
        finally:
            with self._idle:
                del self._active[cancel]
                self._idle.notify_all()

    def _performed(self, order: Order, cancel: threading.Event) -> State:
        """Perform an order. Who is at work on its run is waited for, unless it is a worker that is dead or frozen."""
        take_over = False
        while True:
            try:
                return perform(
                    order, self._graphs, cancel=cancel, take_over=take_over, max_recoveries=self._max_recoveries
                )
            except RunBusyError as busy:
                take_over = self._is_dead(busy.owner)
                if not take_over and cancel.wait(_LOOK_AGAIN):
                    raise GivenUp from None

    def _outcome(self, id: str, order: Order, state: State) -> dict[str, Any]:
        graph = graph_of(order.graph, self._graphs)
        goes = state.status is RunStatus.COMPLETED and not graph.config.checkpoint.preserve
        if goes:
            self._done[id] = order
        return {"status": state.status.value, "step": state.step, "state": state_to_bytes(state) if goes else None}

    def _owns(self, id: str) -> bool:
        return id in self._own_turns()

    def _own_turns(self) -> set[str]:
        return {turn.id for turn in find_turns(status="PENDING", executor_id=self.name)}

    # ------------------------------------------------------------------ beside turns

    def drop_lost(self) -> None:
        """Stop turns that DBOS has given to others meanwhile, before their next node."""
        active = dict(self._active)
        if active:
            own = self._own_turns()
            for cancel, turn in active.items():
                if turn not in own:
                    cancel.set()

    def forget_done(self) -> bool:
        """Delete runs that are not to be preserved, once DBOS has noted that they are done; return whether any is left.

        Until then they stay: a turn that is delivered again has to find them.
        """
        with self._forgetting:
            waiting = dict(self._done)
            if waiting:
                for turn in find_turns(workflow_ids=list(waiting)):
                    if turn.status == "SUCCESS":
                        forget(waiting[turn.id], self._graphs)
                    if not turn.is_open:
                        del self._done[turn.id]
            return bool(self._done)

    def forget_left(self) -> None:
        """Delete runs that are done and that a worker has left, because it died before it could."""
        for graph in self._graphs.values():
            if graph.config.checkpoint.preserve:
                continue
            for summary in list(graph.store.iter_runs(status=RunStatus.COMPLETED, graph=graph.config.name)):
                newest = next(iter(turns_of(summary.run_id, load_output=True)), None)
                if newest is not None and _is_noted(newest):
                    forget(Order(graph, summary.run_id, newest.number), self._graphs)

    def stop(self, patience: float) -> bool:
        """Stop all turns before their next nodes; return whether they have stopped within so many seconds."""
        with self._idle:
            self.stops.set()
            for cancel in self._active:
                cancel.set()
            return self._idle.wait_for(lambda: not self._active, patience)

    def settle(self, patience: float) -> None:
        """Wait until DBOS has noted what was done here, for so many seconds at most."""
        until = monotonic() + patience
        while self.forget_done() and monotonic() < until:
            sleep(_SOON)


def _is_noted(turn: Ordered) -> bool:
    return turn.status == "SUCCESS" and isinstance(turn.outcome, dict) and turn.outcome.get("state") is not None


def register(worker: Worker) -> None:
    """Have DBOS call a worker for each turn. DBOS takes functions alone, and knows them by their names."""

    def turn(kept: bytes) -> dict[str, Any]:
        return apart(worker.take_turn, str(DBOS.workflow_id), kept)

    DBOS.workflow(name=TURN, max_recovery_attempts=None)(turn)
