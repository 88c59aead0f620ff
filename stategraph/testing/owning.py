"""What every store promises of owners: one call at a time works on a run, and who has lost it writes nothing more."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import attrs
import pytest

from stategraph.config import CheckpointConfig, GraphConfig
from stategraph.errors import CheckpointNotFoundError, RunBusyError, RunLostError
from stategraph.graph import StateGraph
from stategraph.state import State
from stategraph.stores.base import CheckpointStore

RUN = "order-1"
_Meddle = Callable[[], Any]


def graph_of(store: CheckpointStore, meddle: _Meddle = dict, *, has_third: bool = False, **options: Any) -> StateGraph:
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
    "save": lambda store: store.save(attrs.evolve(store.load(RUN), step=9)),
    "amend": lambda store: store.amend(store.load(RUN)),
    "delete": lambda store: store.delete(RUN),
    "rollback": lambda store: store.rollback(RUN, 1),
}


class OwningContract:
    """Part of `CheckpointStoreContract`."""

    keeps_history: ClassVar[bool] = True

    def test_a_run_is_owned_while_a_call_works_on_it(self, store: CheckpointStore) -> None:
        """And by nobody before and afterwards."""
        owners: list[Any] = [store.owner(RUN)]
        graph_of(store, lambda: owners.append(store.owner(RUN))).execute(State(run_id=RUN))

        before, meanwhile = owners
        assert before is store.owner(RUN) is None
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
                getattr(graph_of(store, pytest.fail), how)(State(run_id=RUN) if how == "execute" else RUN)
            refused.append(raised.value)

        state = graph_of(store, second, durability=durability).execute(State(run_id=RUN))

        assert state["made"] == ["a", "b"]
        assert store.load(RUN) == state
        assert refused[0].run_id == RUN
        assert refused[0].owner.pid > 0

    @pytest.mark.parametrize("hand", _HANDS.values(), ids=list(_HANDS))
    def test_what_is_done_by_hand_is_refused(self, store: CheckpointStore, hand: Any) -> None:
        """While a call works on the run; afterwards it is done."""

        def by_hand() -> None:
            with pytest.raises(RunBusyError):
                hand(store)

        state = graph_of(store, by_hand, retention="full").execute(State(run_id=RUN))

        assert store.load(RUN) == state

    @pytest.mark.parametrize("durability", ["sync", "async", "exit"])
    def test_who_has_lost_a_run_writes_nothing_more(self, store: CheckpointStore, durability: Any) -> None:
        """Others have taken it over, and completed it."""

        def taken_over() -> None:
            graph_of(store).execute(State({"by": "the second"}, run_id=RUN, step=5), take_over=True)

        with pytest.raises(RunLostError) as lost:
            graph_of(store, taken_over, durability=durability).execute(State({"by": "the first"}, run_id=RUN))

        assert store.load(RUN)["by"] == "the second"
        assert store.load(RUN).step == 7
        assert lost.value.run_id == RUN
        assert lost.value.state is not None
        assert lost.value.state["by"] == "the first"
        assert store.owner(RUN) is None

    @pytest.mark.parametrize("begins_anew", [False, True])
    @pytest.mark.parametrize("durability", ["sync", "async", "exit"])
    def test_a_run_that_was_deleted_does_not_come_back(
        self, store: CheckpointStore, durability: Any, begins_anew: bool
    ) -> None:
        """Nor does it take the place of one that has begun anew."""

        def deleted() -> None:
            store.delete(RUN, take_over=True)  # type: ignore[call-arg]  # every store takes it
            if begins_anew:
                store.save(State({"by": "another"}, run_id=RUN, step=1))

        with pytest.raises(RunLostError):
            graph_of(store, deleted, durability=durability).execute(State(run_id=RUN))

        if begins_anew:
            assert store.load(RUN)["by"] == "another"
        else:
            with pytest.raises(CheckpointNotFoundError):
                store.load(RUN)
