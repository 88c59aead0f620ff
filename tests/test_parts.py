"""Finished parts of a step: saved as they finish, not done again after whatever stops the run, gone once joined."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any
from unittest.mock import Mock

import attrs
import pytest

from stategraph import (
    CheckpointError,
    CheckpointStore,
    Event,
    EventType,
    ExecutionError,
    MapNode,
    NotSerializableError,
    ParallelNode,
    RetryPolicy,
    RunCancelledError,
    RunStatus,
    State,
    StateGraph,
)
from stategraph.stores.memory import MemoryStore
from stategraph.stores.sqlite import SqliteStore
from stategraph.testing import Killed, MortalStore
from tests.scenarios import (
    RUN,
    Scene,
    as_async,
    as_sync,
    broken_first,
    counted,
    live_threads,
    make_graph,
    raises,
    reopened,
    returns,
    trace,
)

pytestmark = pytest.mark.timeout(60)
NAME: ContextVar[str] = ContextVar("NAME", default="nobody")
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


def _differ(_: object, __: object, items: list[int]) -> None:
    if len(set(items)) < len(items):
        raise ValueError("two are the same")


@attrs.frozen
class Different:
    """What a graph of different items knows."""

    items: list[int]
    out: list[int] = attrs.field(factory=list, validator=_differ)


class Told:
    """Waits until the run has taken a part: it is then saved, if parts are."""

    def __init__(self, part: str) -> None:
        self._part, self._is_taken = part, threading.Event()

    def wants(self, type: EventType) -> bool:
        """Whether it is the one."""
        return type is EventType.PART_COMPLETE

    def on_event(self, event: Event) -> None:
        """Let the others go on."""
        if event.data["part"] == self._part:
            self._is_taken.set()

    def wait(self) -> bool:
        """Wait for it."""
        assert self._is_taken.wait(20)
        return True


class Work:
    """A ParallelNode of three branches, of which the second does what it is told, and a log of those that were done."""

    def __init__(self, kind: Any = as_sync) -> None:
        self.log: Any = []
        self.second: Callable[[State], Any] = lambda state: {"b": 1}
        self.third: Callable[[State], Any] = lambda state: {"c": 1}
        self._kind = kind

    def graph(self, store: CheckpointStore, **options: Any) -> StateGraph:
        """-> a graph with the node in the middle, one branch at a time."""
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
    """-> the labels of the parts that a store keeps of a step."""
    return set(store.load_parts(RUN, step, "work"))


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("kind", [as_sync, as_async])
class TestStopped:
    """By one thing or another: what has finished is kept, and is not done again."""

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
    """While threads are at work."""

    def test_by_a_cancel_event(self, play: Scene, how: str) -> None:
        """Between two parts; those that are under way finish, and are kept."""
        work, told = Work(), Told("b")
        cancel: Any = threading.Event()
        work.second = lambda state: cancel.set() or {"b": 1}
        work.third = lambda state: {"c": told.wait()}
        with pytest.raises(RunCancelledError):
            play.execute(work.graph(play.store, observer=told, **HOW[how]), cancel=cancel)
        assert {"a", "b"} <= kept(play.store) <= {"a", "b", "c"}

        play.resume(work.graph(reopened(play.store), **HOW[how]))

        assert sorted(work.log) == ["a", "b", "c"]

    def test_by_a_kill(self, play: Scene, how: str) -> None:
        """What was saved is there; with durability exit nothing ever was."""
        mortal, work, told = MortalStore(play.store), Work(), Told("a")

        def die(state: State) -> Any:
            told.wait()
            while how == "async" and (RUN not in play.store.list() or not kept(play.store)):
                threading.Event().wait(0.001)  # what the run is ahead of the store is lost
            mortal.die()

        work.second = die
        with pytest.raises(Killed):
            play.execute(work.graph(mortal, observer=told, **HOW[how]))
        if how == "exit":
            assert play.store.list() == []
            return

        work.second = lambda state: {"b": 1}
        final = play.resume(work.graph(reopened(play.store), **HOW[how]))

        assert (final["trace"], final["b"]) == (["before", "end"], 1)
        assert work.log == ["a", "b", "b", "c"]


class TestTime:
    """What asyncio and clocks stop."""

    @pytest.mark.parametrize("by", ["cancellation", "timeout"])
    def test_async_branches(self, play: Scene, by: str) -> None:
        """Are cut off; those that had finished are kept."""
        finished = asyncio.Event()

        async def first(state: State) -> dict[str, Any]:
            return {"first": 1}

        async def endless(state: State) -> dict[str, Any]:
            finished.set()
            await asyncio.sleep(60)
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

    @pytest.mark.parametrize("has_async", [True, False])
    def test_a_thread_that_is_at_work(self, has_async: bool) -> None:
        """A cancellation waits for it, and keeps what it returns."""
        store, reached, opened = MemoryStore(), threading.Event(), threading.Event()

        def slow(state: State) -> dict[str, Any]:
            reached.set()
            assert opened.wait(20)
            return {"slow": 1}

        told = Told("slow")
        other = as_async(trace("other")) if has_async else lambda state: {"other": told.wait()}
        graph = make_graph({"work": ParallelNode({"slow": slow, "other": other}, 1)}, store=store, observer=told)

        async def main() -> None:
            task = asyncio.create_task(graph.aexecute(State(run_id=RUN)))
            await asyncio.to_thread(reached.wait, 20)
            task.cancel()
            await asyncio.sleep(0.02)
            opened.set()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(main())

        assert "slow" in kept(store, 1)

    def test_a_failure_beside_a_thread_that_is_at_work(self, memory_play: Scene) -> None:
        """It waits for the thread, and keeps what that returns."""
        reached, opened = threading.Event(), threading.Event()

        def slow(state: State) -> dict[str, Any]:
            reached.set()
            assert opened.wait(20)
            return {"slow": 1}

        async def bad(state: State) -> dict[str, Any]:
            await asyncio.to_thread(reached.wait, 20)
            asyncio.get_running_loop().call_later(0.02, opened.set)
            raise ValueError("no")

        graph = make_graph({"work": ParallelNode({"slow": slow, "bad": bad}, 2)}, store=memory_play.store)
        with pytest.raises(ExecutionError):
            memory_play.execute(graph)

        assert kept(memory_play.store, 1) == {"slow"}


class TestApart:
    """Parts have nothing in common but the State that they are given."""

    @pytest.mark.parametrize("kind", [as_sync, as_async])
    def test_context_variables(self, memory_play: Scene, kind: Any) -> None:
        """What one sets is not set for another that is done after it."""

        def item(number: int) -> str:
            found, _ = NAME.get(), NAME.set(f"item {number}")
            return found

        node = MapNode(kind(item), over="items", into="results", max_workers=2)
        final = memory_play.execute(
            make_graph({"map": node}, store=memory_play.store), State({"items": [*range(20)]}, run_id=RUN)
        )

        assert set(final["results"]) == {"nobody"}

    def test_tasks(self, memory_play: Scene) -> None:
        """Each async one is a task, and the only one that works in it."""
        tasks: list[Any] = []  # which keeps them: a new one cannot be equal to one that is gone

        async def item(number: int) -> bool:
            task = asyncio.current_task()
            tasks.append(task)
            await asyncio.sleep(0)
            return task is asyncio.current_task()

        node = MapNode(item, over="items", into="results", max_workers=2)
        final = memory_play.execute(
            make_graph({"map": node}, store=memory_play.store), State({"items": [*range(20)]}, run_id=RUN)
        )

        assert all(final["results"])
        assert len(set(tasks)) == 20

    def test_one_that_cancels_itself(self, memory_play: Scene) -> None:
        """It has failed, and the run does not wait for it."""

        async def item(number: int) -> int:
            if number == 1:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            await asyncio.sleep(0)
            return number

        node = MapNode(item, over="items", into="results", max_workers=2)
        with pytest.raises(ExecutionError, match=r"1: CancelledError") as caught:
            memory_play.execute(
                make_graph({"map": node}, store=memory_play.store), State({"items": [*range(20)]}, run_id=RUN)
            )
        assert isinstance(caught.value.__cause__, ExceptionGroup)


class TestKeeping:
    """Where parts are, and for how long."""

    @pytest.mark.parametrize("interval", [1, 3, 100])
    def test_the_incoming_state_is_saved_first(self, play: Scene, interval: int) -> None:
        """Whatever the interval; the parts are shown nowhere."""
        found: Any = []

        def look(item: int) -> int:
            found.append((play.store.load(RUN).step, play.store.list(), len(play.store.runs())))
            return item

        graph = make_graph({"a": trace("a"), "w": MapNode(look, "l", "out", 1)}, store=play.store, interval=interval)
        play.execute(graph, State({"l": [1, 2, 3]}, run_id=RUN))

        assert found == [(1, [RUN], 1)] * 3

    @pytest.mark.parametrize(("interval", "seen"), [(1, [0, 0]), (2, [2, 0])])
    def test_they_are_gone_once_their_step_is_saved(self, play: Scene, interval: int, seen: list[int]) -> None:
        """And not before: until then, a run that is killed makes that step again."""
        found: list[int] = []

        def look(state: State) -> dict[str, Any]:
            found.append(len(play.store.load_parts(RUN, 1, "w")))
            return {}

        nodes = {"w": MapNode(lambda item: item, "l", "out", 1), "look": look, "again": look}
        play.execute(make_graph(nodes, store=play.store, interval=interval), State({"l": [1, 2]}, run_id=RUN))

        assert found == seen

    def test_exit_saves_nothing_of_a_run_that_completes(self, play: Scene) -> None:
        """Neither its States nor its parts."""
        found: Any = []
        nodes = {"w": MapNode(lambda item: found.append(play.store.list()), "l", "out", 1)}
        play.execute(make_graph(nodes, store=play.store, durability="exit"), State({"l": [1, 2]}, run_id=RUN))

        assert found == [[], []]

    def test_a_store_without_parts(self, any_play: Scene) -> None:
        """Does the step again from its start."""
        work = Work()
        work.second = broken_first(lambda state: {"b": 1}, ValueError("once"))
        with pytest.raises(ExecutionError):
            any_play.execute(work.graph(any_play.store))

        assert any_play.resume(work.graph(any_play.store))["b"] == 1
        assert work.log == (["a", "b", "b", "c"] if any_play.store.keeps_parts else ["a", "b", "a", "b", "c"])

    def test_updates_make_them_worthless(self, play: Scene) -> None:
        """They were made of other data: all parts are done again, whenever the process dies."""
        work = Work()
        work.second = raises(ValueError("always"))
        with pytest.raises(ExecutionError):
            play.execute(work.graph(play.store))
        with pytest.raises(ExecutionError):
            play.resume(work.graph(play.store), {"n": 1})

        assert work.log == ["a", "b", "a", "b"]

    def test_parts_are_gone_before_updates_are_there(self) -> None:
        """A process that dies between the two does not leave parts of the old data behind those of the new."""
        store = MemoryStore()
        work = Work()
        work.second = broken_first(lambda state: {"b": 1}, ValueError("once"))
        with pytest.raises(ExecutionError):
            work.graph(store).execute(State(run_id=RUN))

        class Dies(MortalStore):
            def amend(self, state: State) -> None:
                super().amend(state)
                self.die()

        with pytest.raises(Killed):
            work.graph(Dies(store)).resume(RUN, {"n": 1})
        work.graph(store).resume(RUN)

        assert work.log == ["a", "b", "a", "b", "c"]

    def test_in_a_loop_every_visit_does_its_own(self, play: Scene) -> None:
        """Parts belong to a step."""
        seen: Any = []
        node = MapNode(lambda item: seen.append(item) or item + 1, "l", "l", 2)
        graph = make_graph(
            {"w": node, "end": trace("end")}, [("w", "w", lambda s: s["l"][0] < 3), ("w", "end")], store=play.store
        )

        final = play.execute(graph, State({"l": [0, 0]}, run_id=RUN))

        assert (final["l"], seen) == ([3, 3], [0, 0, 1, 1, 2, 2])

    @pytest.mark.parametrize("retry", [None, RetryPolicy(initial_delay=0)])
    def test_what_does_not_fit_together(self, play: Scene, retry: Any) -> None:
        """What is finished is not done again as long as it may fit; once it does not, it is, in case it was mended."""
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

    def test_what_fits_together_at_last(self, play: Scene) -> None:
        """Nothing of it is done again."""
        calls: list[int] = []
        branches = {name: counted(returns({"k": 1}), calls) for name in "ab"}
        with pytest.raises(ExecutionError, match="both write 'k'"):
            play.execute(make_graph({"w": ParallelNode(branches, 1)}, store=play.store))

        node = ParallelNode(branches, 1, reducers={"k": lambda one, other: one + other})
        assert (play.resume(make_graph({"w": node}, store=play.store))["k"], len(calls)) == (2, 2)

    def test_a_list_that_does_not_fit_as_a_whole(self, play: Scene) -> None:
        """As with branches: its items are done again once they were mended."""

        def make(function: Any) -> StateGraph:
            node = MapNode(function, "items", "out", 1)
            return make_graph({"w": node}, store=play.store, schema=Different)

        with pytest.raises(ExecutionError, match="out"):
            play.execute(make(lambda n: 0), State({"items": [1, 2]}, run_id=RUN))

        assert play.resume(make(lambda n: n))["out"] == [1, 2]

    @pytest.mark.parametrize("method", ["save_parts", "load_parts", "drop_parts"])
    @pytest.mark.parametrize("error", [OSError("no wire"), CheckpointError(RUN, "no wire")], ids=repr)
    def test_a_store_that_fails(
        self, memory_play: Scene, method: str, error: Exception, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Raise an error that names the run, or the store's own CheckpointError."""
        work = Work()
        work.second = broken_first(lambda state: {"b": 1}, ValueError("once"))
        with pytest.raises(ExecutionError):
            memory_play.execute(work.graph(memory_play.store))
        monkeypatch.setattr(memory_play.store, method, Mock(side_effect=error))

        with pytest.raises(CheckpointError, match=r"run 'run'.*no wire") as raised:
            memory_play.resume(work.graph(memory_play.store))

        assert error in (raised.value, raised.value.__cause__)
        if method == "save_parts" and raised.value is not error:
            assert raised.value.state is not None
            assert raised.value.state["trace"] == ["before"]

    @pytest.mark.parametrize("durability", ["sync", "async"])
    def test_a_result_that_cannot_be_kept(self, tmp_path: Any, durability: str) -> None:
        """It is no failure of the node, but the run has failed all the same, and goes on once that is mended; the error
        names the item, and the value in it."""

        def work(item: int) -> Any:
            return {"x": [item, object()]} if item == 2 else item

        with SqliteStore(tmp_path / "runs.db") as store:
            graph = make_graph({"w": MapNode(work, "l", "out", 1)}, store=store, durability=durability)
            with pytest.raises(
                NotSerializableError, match=r"x\[1\] in part '1' of node 'w' cannot be saved: .* object"
            ):
                graph.execute(State({"l": [1, 2]}, run_id=RUN))

            (failed,) = store.runs(status="failed")
            assert failed.error is not None
            assert failed.error.type == "NotSerializableError"
            mended = make_graph({"w": MapNode(lambda item: item, "l", "out", 1)}, store=store)
            assert mended.resume(RUN)["out"] == [1, 2]
