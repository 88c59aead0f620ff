"""Parts of a step are saved as they finish, not repeated after a stop, and deleted once joined."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from stategraph import (
    CheckpointStore,
    Event,
    EventType,
    ExecutionError,
    MapNode,
    ParallelNode,
    RetryPolicy,
    RunCancelledError,
    RunStatus,
    State,
    StateGraph,
)
from tests.scenarios import (
    RUN,
    Scene,
    as_async,
    as_sync,
    broken_first,
    counted,
    live_threads,
    make_graph,
    reopened,
    returns,
    trace,
)

pytestmark = pytest.mark.timeout(600)
HOW: dict[str, dict[str, Any]] = {
    "sync": {},
    "async": {"durability": "async"},
    "exit": {"durability": "exit"},
    "interval 3": {"interval": 3},
}


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """No thread that was not there before."""
    before = live_threads()
    yield
    assert live_threads() <= before


class Gate:
    """Waits until the run has taken a part: it is then saved, if parts are."""

    def __init__(self, part: str) -> None:
        self._part, self._is_taken = part, threading.Event()

    def wants(self, type: EventType) -> bool:
        """Whether it is the one."""
        return type is EventType.PART_COMPLETE

    def on_event(self, event: Event) -> None:
        """Let the other parts continue."""
        if event.data["part"] == self._part:
            self._is_taken.set()

    def wait(self) -> bool:
        """Wait for it."""
        assert self._is_taken.wait(300)
        return True


class Work:
    """A ParallelNode of three branches with a replaceable second one, and a log of finished branches."""

    def __init__(self, kind: Any = as_sync) -> None:
        self.log: Any = []
        self.second: Callable[[State], Any] = lambda state: {"b": 1}
        self.third: Callable[[State], Any] = lambda state: {"c": 1}
        self._kind = kind

    def graph(self, store: CheckpointStore, **options: Any) -> StateGraph:
        """Return a graph with the node in the middle, one branch at a time."""
        branches = {"a": self._kind(self._a), "b": self._kind(self._b), "c": self._kind(self._c)}
        nodes = {"before": trace("before"), "work": ParallelNode(branches, 1), "end": trace("end")}
        return make_graph(nodes, store=store, **options)

    def _a(self, state: State) -> dict[str, Any]:
        self.log.append("a")
        return {"a": [1, {"x": (1, 2)}]}

    def _b(self, state: State) -> Any:
        self.log.append("b")
        return self.second(state)

    def _c(self, state: State) -> dict[str, Any]:
        self.log.append("c")
        return self.third(state)  # type: ignore[no-any-return]


def kept(store: CheckpointStore, step: int = 2) -> set[str]:
    """Return the labels of the parts that a store keeps of a step."""
    return set(store.load_parts(RUN, step, "work"))


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("kind", [as_sync, as_async])
class TestStopped:
    """Finished parts are kept and not repeated, whatever stopped the run."""

    @pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
    def test_by_an_error(self, play: Scene, kind: Any, how: str, error: type[BaseException]) -> None:
        """A failure, or Ctrl-C, which leaves the run active; another process resumes it as if it had never stopped."""
        work = Work(kind)
        work.second = broken_first(lambda state: {"b": 1}, error("once"))
        with pytest.raises((ExecutionError, KeyboardInterrupt)) as raised:
            play.execute(work.graph(play.store, **HOW[how]))
        failed = isinstance(raised.value, ExecutionError)
        assert kept(play.store) == {"a"}
        assert play.store.load(RUN).status is (RunStatus.FAILED if failed else RunStatus.ACTIVE)

        final = play.resume(work.graph(reopened(play.store), preserve=True, **HOW[how]))

        assert failed == (error is ValueError)
        assert dict(final) == {"trace": ["before", "end"], "a": [1, {"x": (1, 2)}], "b": 1, "c": 1}
        assert (work.log, final.step) == (["a", "b", "b", "c"], 3)
        assert kept(play.store) == set()


@pytest.mark.parametrize("how", HOW)
class TestStoppedFromOutside:
    """Stops from outside while threads run parts."""

    def test_by_a_cancel_event(self, play: Scene, how: str) -> None:
        """A cancel event stops the run between two parts; running parts finish and are kept."""
        work, gate = Work(), Gate("b")
        cancel: Any = threading.Event()
        work.second = lambda state: cancel.set() or {"b": 1}
        work.third = lambda state: {"c": gate.wait()}
        with pytest.raises(RunCancelledError):
            play.execute(work.graph(play.store, observer=gate, **HOW[how]), cancel=cancel)
        assert {"a", "b"} <= kept(play.store) <= {"a", "b", "c"}

        play.resume(work.graph(reopened(play.store), **HOW[how]))

        assert sorted(work.log) == ["a", "b", "c"]


class TestTime:
    """Parts that asyncio or a timeout stops."""

    @pytest.mark.parametrize("by", ["cancellation", "timeout"])
    def test_async_branches(self, play: Scene, by: str) -> None:
        """A timeout cuts off async branches, and finished ones are kept."""
        finished = asyncio.Event()

        async def first(state: State) -> dict[str, Any]:
            return {"first": 1}

        async def endless(state: State) -> dict[str, Any]:
            finished.set()
            await asyncio.sleep(300)
            return {}

        graph = make_graph({"work": ParallelNode({"first": first, "endless": endless}, 1)}, store=play.store)

        async def main() -> None:
            task = asyncio.create_task(graph.aexecute(State(run_id=RUN)))
            await finished.wait()
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        if by == "cancellation":
            asyncio.run(main())
        else:
            with pytest.raises(RunCancelledError):
                play.execute(graph, timeout=0.3)

        assert kept(play.store, 1) == {"first"}
        assert play.store.load(RUN).status is RunStatus.ACTIVE


class TestKeeping:
    """Where parts are, and for how long."""

    @pytest.mark.parametrize("interval", [1, 3, 100])
    def test_the_incoming_state_is_saved_first(self, play: Scene, interval: int) -> None:
        """The incoming State is saved first under every interval, and parts are not listed."""
        found: Any = []

        def look(item: int) -> int:
            found.append((play.store.load(RUN).step, play.store.list(), len(play.store.runs())))
            return item

        graph = make_graph({"a": trace("a"), "w": MapNode(look, "l", "out", 1)}, store=play.store, interval=interval)
        play.execute(graph, State({"l": [1, 2, 3]}, run_id=RUN))

        assert found == [(1, [RUN], 1)] * 3

    @pytest.mark.parametrize(("interval", "seen"), [(1, [0, 0]), (2, [2, 0])])
    def test_they_are_gone_once_their_step_is_saved(self, play: Scene, interval: int, seen: list[int]) -> None:
        """Parts are deleted once their step is saved and not before, as a killed run repeats the step."""
        found: list[int] = []

        def look(state: State) -> dict[str, Any]:
            found.append(len(play.store.load_parts(RUN, 1, "w")))
            return {}

        nodes = {"w": MapNode(lambda item: item, "l", "out", 1), "look": look, "again": look}
        play.execute(make_graph(nodes, store=play.store, interval=interval), State({"l": [1, 2]}, run_id=RUN))

        assert found == seen

    @pytest.mark.parametrize("retry", [None, RetryPolicy(initial_delay=0)])
    def test_parts_that_conflict_are_done_again(self, play: Scene, retry: Any) -> None:
        """Finished parts are kept while they may be merged; after a conflict they are done again."""
        calls: list[int] = []

        def make(key: str, **options: Any) -> StateGraph:
            branches = {"a": counted(returns({"k": 1}), calls), "b": counted(returns({key: 1}), calls)}
            node = ParallelNode(branches, 1, **options)
            return make_graph({"w": node}, store=play.store, policies={"w": {"retry": retry}})

        with pytest.raises(ExecutionError, match="both write 'k'"):
            play.execute(make("k"))
        first = len(calls)
        with pytest.raises(ExecutionError, match="both write 'k'"):
            play.resume(make("k"))
        again = len(calls)

        final = play.resume(make("other"))

        assert (dict(final), first >= 2, again > first) == ({"k": 1, "other": 1}, True, True)
