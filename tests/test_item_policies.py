"""Retries, timeouts and rates of the items of a map, in threads, tasks and processes."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stategraph import (
    EventType,
    ExecutionError,
    MapNode,
    NodeContext,
    RetryPolicy,
    RunCancelledError,
    State,
    StateGraph,
    register_type,
)
from stategraph.stores import CheckpointStore
from stategraph.stores.memory import MemoryStore
from stategraph.testing import Killed, MortalStore
from tests.scenarios import as_async, as_sync, broken_first, make_graph
from tests.test_events import Recorder

SOON = RetryPolicy(max_attempts=3, initial_delay=0)


class BusyError(Exception):
    """Says when to come back."""

    def __init__(self, after: object) -> None:
        super().__init__("busy")
        self.after = after


@register_type
@dataclasses.dataclass
class Basket:
    """An item that may change in place."""

    held: list[int]


def graph_of(function: Any, store: CheckpointStore | None = None, observer: Any = None, **policies: Any) -> StateGraph:
    nodes = {"map": MapNode(function, over="items", into="results", **policies)}
    return make_graph(nodes, store=store or MemoryStore(), name="items", observer=observer)


@pytest.fixture(params=[as_sync, as_async], ids=["threads", "tasks"])
def kind(request: pytest.FixtureRequest) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes a function of items sync, or async."""
    return request.param  # type: ignore[no-any-return]


class TestRetry:
    def test_an_item_is_tried_again_without_the_others(self, kind: Any) -> None:
        """A failed item is tried again alone, up to the limit of the policy; results stay in order."""
        calls: Counter[int] = Counter()

        def double(item: int) -> int:
            calls[item] += 1
            if item == 2 and calls[item] < 3:
                raise OSError("not yet")
            return 2 * item

        final = graph_of(kind(double), retry=SOON).execute(State({"items": [1, 2, 3]}))

        assert final["results"] == [2, 4, 6]
        assert calls == {1: 1, 2: 3, 3: 1}

    def test_a_retry_begins_with_the_item_as_it_was(self, kind: Any) -> None:
        """A retry gets the item without the changes of the failed attempt."""
        seen: list[list[int]] = []

        def attempt(item: Basket) -> int:
            seen.append(list(item.held))
            item.held.append(2)
            if len(seen) < 3:
                raise OSError
            return len(item.held)

        final = graph_of(kind(attempt), retry=SOON).execute(State({"items": [Basket([1])]}))

        assert seen == [[1], [1], [1]]
        assert final["results"] == [2]

    def test_each_failed_attempt_is_reported(self, kind: Any) -> None:
        """Each failed attempt is reported with its item, number, error and delay."""
        fail_once = broken_first(lambda item: item, OSError("not yet"))
        recorder = Recorder(EventType.PART_RETRY, EventType.PART_COMPLETE)
        graph_of(kind(fail_once), observer=recorder, retry=SOON).execute(State({"items": [7]}))

        (data,) = recorder.data(EventType.PART_RETRY)
        assert (data["part"], data["attempt"], data["delay"], data["error"]) == ("0", 1, 0, "OSError: not yet")
        assert len(recorder.data(EventType.PART_COMPLETE)) == 1

    def test_attempts_count_on_after_a_crash(self, any_store: CheckpointStore, kind: Any) -> None:
        """Attempts before a kill count; a resume after a failure has all attempts again."""
        if not any_store.keeps_parts:
            pytest.skip("it keeps no parts")
        calls: list[int] = []
        mortal = MortalStore(any_store)

        def are_kept() -> bool:
            return [entry.value for entry in any_store.entries("a", step=1, kinds=("attempt",))] == [2]

        def fail(item: int) -> int:
            calls.append(item)
            if len(calls) < 3:
                raise OSError("not yet")
            while not are_kept():
                time.sleep(0.005)
            mortal.die()

        async def afail(item: int) -> int:
            calls.append(item)
            if len(calls) < 3:
                raise OSError("not yet")
            while not are_kept():  # noqa: ASYNC110 - a store sets no event
                await asyncio.sleep(0.005)
            mortal.die()

        with pytest.raises(Killed):
            graph_of(fail if kind is as_sync else afail, mortal, retry=SOON).execute(State({"items": [1]}, run_id="a"))

        def fail_always(item: int, context: NodeContext) -> int:
            calls.append(context.attempt)
            raise OSError("not yet")

        for attempts in ([3], [1, 2, 3]):
            calls.clear()
            with pytest.raises(ExecutionError):
                graph_of(kind(fail_always), any_store, retry=SOON).resume("a")
            assert calls == attempts


class TestTimeout:
    def test_an_item_that_takes_too_long_fails(self, kind: Any) -> None:
        """Alone; and may be tried again."""
        hangs, calls = threading.Event(), Counter[int]()

        def hang(item: int) -> int:
            calls[item] += 1
            if item == 1 and calls[item] == 1:
                hangs.wait(300)
            return item

        async def ahang(item: int) -> int:
            calls[item] += 1
            if item == 1 and calls[item] == 1:
                await asyncio.sleep(300)
            return item

        function = hang if kind is as_sync else ahang
        try:
            policies: dict[str, Any] = {"timeout": 1.0, "on_error": "collect"}
            final = graph_of(function, **policies).execute(State({"items": [0, 1]}))
            assert (final["results"][0], final["results"][1].type) == (0, "TimeoutError")
            assert "longer than its timeout of 1.0 s" in final["results"][1].message
            calls.clear()
            again = graph_of(function, retry=SOON, **policies).execute(State({"items": [0, 1]}))
            assert again["results"] == [0, 1]
        finally:
            hangs.set()


class TestRate:
    def test_items_begin_evenly_spaced(self, kind: Any) -> None:
        """No two attempts, in any worker, begin closer together than the rate allows."""
        begun: list[float] = []

        def note(item: int) -> int:
            begun.append(time.monotonic())
            if len(begun) == 2:
                raise OSError("once more")
            return item

        graph_of(kind(note), rate=100, max_workers=4, retry=SOON).execute(State({"items": [*range(6)]}))

        assert len(begun) == 7
        assert max(begun) - min(begun) >= 0.05  # six times a hundredth, less what calls are late

    @pytest.mark.parametrize("wait", ["rate", "retry"])
    def test_a_wait_ends_with_the_run(self, kind: Any, wait: str) -> None:
        """A run that is to stop does not wait for the rate, nor for the delay of a retry."""
        slow = RetryPolicy(initial_delay=3600, max_delay=3600)
        policies: dict[str, Any] = {"rate": 1 / 3600} if wait == "rate" else {"retry": slow}

        def work(item: int) -> int:
            if wait == "retry":
                raise OSError("later")
            return item

        with pytest.raises(RunCancelledError):
            graph_of(kind(work), max_workers=2, **policies).execute(State({"items": [1, 2, 3]}), timeout=0.05)


def fail_or_hang_first(path: str) -> str:
    """Fail, hang or succeed, as the path says, when called for the first time with it."""
    if not Path(path).exists():
        Path(path).touch()
        if path.endswith("fails"):
            raise OSError("not yet")
        time.sleep(600 if path.endswith("hangs") else 0)
    return "done"


def test_in_processes(tmp_path: Path) -> None:
    """Retries, timeouts and rates hold there, too: a process that takes too long is killed."""
    items = [str(tmp_path / name) for name in ("fails", "hangs", "succeeds")]
    policies: dict[str, Any] = {"retry": SOON, "rate": 50, "timeout": 5, "max_workers": 2, "processes": True}
    assert graph_of(fail_or_hang_first, **policies).execute(State({"items": items}))["results"] == ["done"] * 3


class TestDelay:
    @pytest.mark.parametrize(("after", "waited"), [(0.25, 0.25), (0, 0.0), (None, 1000.0), (90, 90.0)])
    def test_the_error_says_how_long_to_wait(self, after: float | None, waited: float) -> None:
        """The delay of an error overrides the longest delay; None leaves it to the policy."""
        policy = RetryPolicy(initial_delay=1000, delay=lambda error: error.after)
        assert policy.delay_after(1, BusyError(after)) == waited

    def test_it_holds_for_nodes(self) -> None:
        """Delays of errors hold for nodes as for items."""
        recorder, calls = Recorder(EventType.NODE_RETRY), []

        def node(state: State) -> dict[str, int]:
            calls.append(1)
            if len(calls) < 3:
                raise BusyError(0.001 * len(calls))
            return {"n": 1}

        policies = {"node": {"retry": RetryPolicy(delay=lambda error: error.after)}}
        make_graph({"node": node}, store=MemoryStore(), observer=recorder, policies=policies).execute(State())

        assert [data["delay"] for data in recorder.data(EventType.NODE_RETRY)] == [0.001, 0.002]
