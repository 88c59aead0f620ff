"""What every store promises of owners: one call at a time works on a run, and who has lost it writes nothing more."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import attrs
import pytest

from stategraph.config import CheckpointConfig, GraphConfig
from stategraph.errors import CheckpointNotFoundError, RunBusyError, RunCancelledError, RunLostError
from stategraph.graph import StateGraph
from stategraph.state import State
from stategraph.stores.base import CheckpointStore

_RUN = "order-1"
_Meddle = Callable[[], Any]


def _graph(store: CheckpointStore, meddle: _Meddle = dict, *, has_third: bool = False, **options: Any) -> StateGraph:
    """Return a graph of two steps, or three. Something else happens in another thread while the second is made."""

    def meddled(state: State) -> dict[str, Any]:
        _elsewhere(meddle)
        return {"made": [*state["made"], "b"]}

    checkpoint = CheckpointConfig(**{"interval": 1, "preserve": True, **options})
    graph = StateGraph(GraphConfig("orders", checkpoint=checkpoint), store=store)
    graph.add_node("a", lambda state: {"made": ["a"]})
    graph.add_node("b", meddled)
    graph.add_edge("a", "b")
    graph.set_entry_point("a")
    if has_third:
        graph.add_node("c", lambda state: {})
        graph.add_edge("b", "c")
    graph.set_exit_point("c" if has_third else "b")
    return graph


def _elsewhere(work: _Meddle) -> None:
    """Do something in another thread; raise what it raises."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(work).result()


_HANDS: dict[str, Callable[[CheckpointStore], Any]] = {
    "save": lambda store: store.save(attrs.evolve(store.load(_RUN), step=9)),
    "amend": lambda store: store.amend(store.load(_RUN)),
    "delete": lambda store: store.delete(_RUN),
    "rollback": lambda store: store.rollback(_RUN, 1),
}


class OwningContract:
    """Part of `CheckpointStoreContract`."""

    keeps_history: ClassVar[bool] = True

    def test_a_run_is_owned_while_a_call_works_on_it(self, store: CheckpointStore) -> None:
        """And by nobody before and afterwards."""
        owners: list[Any] = [store.owner(_RUN)]
        _graph(store, lambda: owners.append(store.owner(_RUN))).execute(State(run_id=_RUN))

        before, meanwhile = owners
        assert before is store.owner(_RUN) is None
        assert meanwhile.pid > 0
        assert meanwhile.host
        assert meanwhile.since.tzinfo is not None

    @pytest.mark.parametrize("durability", ["sync", "async", "exit"])
    @pytest.mark.parametrize("how", ["execute", "resume"])
    def test_a_second_call_is_refused(self, store: CheckpointStore, how: str, durability: Any) -> None:
        """Before anything runs or is saved; it is told who has the run. The first goes on as if nothing had been."""
        refused: list[RunBusyError] = []

        def second() -> None:
            with pytest.raises(RunBusyError) as raised:
                getattr(_graph(store, pytest.fail), how)(State(run_id=_RUN) if how == "execute" else _RUN)
            refused.append(raised.value)

        state = _graph(store, second, durability=durability).execute(State(run_id=_RUN))

        assert state["made"] == ["a", "b"]
        assert store.load(_RUN) == state
        assert refused[0].run_id == _RUN
        assert refused[0].owner.pid > 0

    @pytest.mark.parametrize("hand", _HANDS.values(), ids=list(_HANDS))
    def test_what_is_done_by_hand_is_refused(self, store: CheckpointStore, hand: Any) -> None:
        """While a call works on the run; afterwards it is done."""

        def by_hand() -> None:
            with pytest.raises(RunBusyError):
                hand(store)

        state = _graph(store, by_hand, retention="full").execute(State(run_id=_RUN))

        assert store.load(_RUN) == state

    def test_a_run_that_goes_on_meanwhile_can_be_forked(self, store: CheckpointStore) -> None:
        """However fast it is: what it had done by then is copied."""
        stop = threading.Event()
        checkpoint = CheckpointConfig(interval=1, preserve=True, retention="full")
        config = GraphConfig("orders", checkpoint=checkpoint, max_iterations=1_000_000)
        graph = StateGraph(config, store=store)
        graph.add_node("a", lambda state: {"made": state.step})
        graph.add_node("b", lambda state: {})
        graph.add_edge("a", "b", lambda state: stop.is_set())
        graph.add_edge("a", "a")
        graph.set_entry_point("a")
        graph.set_exit_point("b")
        working = threading.Thread(target=graph.execute, args=(State(run_id=_RUN),))
        working.start()
        try:
            while not store.list():
                pass
            copies = [store.fork(_RUN, f"copy-{number}") for number in range(5)]
        finally:
            stop.set()
            working.join()

        assert [store.load(copy.run_id) for copy in copies] == copies

    def test_a_run_is_waited_for(self, store: CheckpointStore) -> None:
        """Until its owner has let go of it."""
        ended: list[State] = []
        waits = _graph(store)
        thread = threading.Thread(target=lambda: ended.append(waits.execute(State(run_id=_RUN), wait=60)))

        _graph(store, thread.start, preserve=False).execute(State(run_id=_RUN))
        thread.join()

        assert ended == [store.load(_RUN)]

    @pytest.mark.parametrize("durability", ["sync", "async", "exit"])
    def test_who_has_lost_a_run_writes_nothing_more(self, store: CheckpointStore, durability: Any) -> None:
        """Others have taken it over, and completed it."""

        def taken_over() -> None:
            _graph(store).execute(State({"by": "the second"}, run_id=_RUN, step=5), take_over=True)

        with pytest.raises(RunLostError) as lost:
            _graph(store, taken_over, durability=durability).execute(State({"by": "the first"}, run_id=_RUN))

        assert store.load(_RUN)["by"] == "the second"
        assert store.load(_RUN).step == 7
        assert lost.value.run_id == _RUN
        assert lost.value.state is not None
        assert lost.value.state["by"] == "the first"
        assert store.owner(_RUN) is None

    @pytest.mark.parametrize("begins_anew", [False, True])
    @pytest.mark.parametrize("durability", ["sync", "async", "exit"])
    def test_a_run_that_was_deleted_does_not_come_back(
        self, store: CheckpointStore, durability: Any, begins_anew: bool
    ) -> None:
        """Nor does it take the place of one that has begun anew."""

        def deleted() -> None:
            store.delete(_RUN, take_over=True)  # type: ignore[call-arg]  # every store takes it
            if begins_anew:
                store.save(State({"by": "another"}, run_id=_RUN, step=1))

        with pytest.raises(RunLostError):
            _graph(store, deleted, durability=durability).execute(State(run_id=_RUN))

        if begins_anew:
            assert store.load(_RUN)["by"] == "another"
        else:
            with pytest.raises(CheckpointNotFoundError):
                store.load(_RUN)

    def test_a_failure_after_the_run_was_lost_is_not_saved(self, store: CheckpointStore) -> None:
        """It is raised, and nothing else happens."""

        def fails() -> None:
            store.rollback(_RUN, 1, take_over=True)
            raise ValueError("too late")

        with pytest.raises(RuntimeError, match="too late"):
            _graph(store, fails, retention="full").execute(State(run_id=_RUN))

        kept = store.load(_RUN)
        assert (kept.step, kept.status, kept.generation) == (1, "active", 1)

    @pytest.mark.parametrize(("durability", "by"), [("sync", "Zoë, the 2nd"), ("async", "ann"), ("exit", None)])
    def test_a_run_at_work_is_cancelled(self, store: CheckpointStore, durability: Any, by: str | None) -> None:
        """Its owner stops after the step that it makes; the history tells by whom. It can be taken up again."""
        owners: list[Any] = []

        def cancelled() -> None:
            owners.extend(store.cancel(_RUN, by=name) for name in (by, "somebody who came too late"))
            time.sleep(0.1)  # where steps are not saved at once, a run looks only now and then

        with pytest.raises(RunCancelledError) as stopped:
            _graph(store, cancelled, has_third=True, durability=durability).execute(State(run_id=_RUN))

        assert all(owner.pid > 0 for owner in owners)
        told = store.history(_RUN)[-1]
        assert told.status == "cancelled"
        if self.keeps_history:
            assert (told.kind, told.by) == ("cancel", by)
        assert store.load(_RUN) == stopped.value.state
        assert (stopped.value.state.status, stopped.value.state.step) == ("cancelled", 2)
        assert list(_graph(store, has_third=True).recover()) == []
        assert _graph(store, has_third=True).resume(_RUN).step == 3

    def test_a_run_that_nobody_is_at_work_on(self, store: CheckpointStore) -> None:
        """It is taken up by one sweep and no other, or cancelled at once."""
        graph = _graph(store)
        graph.submit(State(run_id=_RUN))
        graph.submit(State(run_id="order-2"))
        graph.cancel("order-2")

        swept = [*graph.recover(), *graph.recover()]

        assert [one.run_id for one in swept] == [_RUN]
        assert store.load(_RUN)["made"] == ["a", "b"]
        assert store.load("order-2").status == "cancelled"

    def test_a_call_that_ends_early_lets_go(self, store: CheckpointStore) -> None:
        """Whatever it ends with."""

        def interrupted() -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            _graph(store, interrupted).execute(State(run_id=_RUN))

        assert store.owner(_RUN) is None
        assert _graph(store).resume(_RUN)["made"] == ["a", "b"]
