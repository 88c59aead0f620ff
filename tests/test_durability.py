"""A run ends the same under every durability, interval and retention."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stategraph import CheckpointError, CheckpointSaveError, CheckpointStore, ExecutionError, MapNode, RunStatus, State
from stategraph.stores.disk import DiskStore
from stategraph.stores.memory import MemoryStore
from stategraph.stores.sqlite import SqliteStore
from tests.conftest import PLAYS
from tests.pairs import every_pair
from tests.scenarios import (
    DRIVERS,
    HOW,
    NODES,
    RUN,
    Scene,
    WatchedStore,
    broken_first,
    counted,
    make_graph,
    steady,
    trace,
    traces,
)

NAMES = "abcdefg"


STORES = [MemoryStore, DiskStore, SqliteStore]


@pytest.fixture(params=STORES, ids=["memory", "disk", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CheckpointStore]:
    """An empty store of each kind that stategraph has."""
    with request.param(*[tmp_path / "runs"] * (request.param is not MemoryStore)) as store:
        yield store


@pytest.fixture
def scene(play: Scene) -> Scene:
    """Every driver with these stores: when States are saved does not depend on the kind of their nodes."""
    return play


@pytest.fixture(params=HOW)
def how(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Every durability with every retention that goes with it."""
    return HOW[request.param]


def kept_of(steps: list[int], how: dict[str, Any]) -> list[int]:
    """Return the saved steps that the history shows."""
    visible = {"full": len(steps), "windowed": 3}.get(how.get("retention", "latest"), 1)
    return steps[-visible:]


# --------------------------------------------------------------------------- runs that complete


@every_pair(how=HOW, interval=[1, 3], play=PLAYS, indirect=["how", "play"])
def test_the_final_state_is_the_same(scene: Scene, how: dict[str, Any], interval: int) -> None:
    """The final State is returned and saved, and the history has every due step."""
    undisturbed = make_graph(traces(NAMES), store=MemoryStore()).execute(State(run_id=RUN))

    final = scene.execute(scene.graph(traces(NAMES), interval=interval, preserve=True, **how))

    assert steady(final) == steady(undisturbed)
    assert scene.store.load(RUN) == final
    saved = [7] if how.get("durability") == "exit" else [*range(interval, 7, interval), 7]
    history = scene.store.history(RUN)
    if how.get("durability") != "async" or how.get("retention"):
        is_full = how.get("retention") == "full"  # its input, and its end
        assert [row.step for row in history] == ([0, *saved, 7] if is_full else kept_of(saved, how))
    assert (history[-1].step, history[-1].status) == (7, RunStatus.COMPLETED)


def test_a_run_that_is_not_kept_leaves_nothing(scene: Scene, how: dict[str, Any]) -> None:
    """Nothing is saved after it was deleted."""
    scene.execute(scene.graph(traces(NAMES), **how))

    assert scene.store.list() == []
    assert scene.store.history(RUN) == []


# --------------------------------------------------------------------------- runs that end early


@every_pair(how=HOW, interval=[1, 4], play=PLAYS, indirect=["how", "play"])
def test_a_run_that_fails_is_saved_and_goes_on(scene: Scene, how: dict[str, Any], interval: int) -> None:
    """The State of the error is saved when it is raised, and no completed step runs again."""
    log: list[int] = []
    nodes = {name: counted(node, log) for name, node in traces(NAMES).items()}
    nodes["f"] = broken_first(nodes["f"], ValueError("once"))
    graph = scene.graph(nodes, interval=interval, preserve=True, **how)

    with pytest.raises(ExecutionError, match="once") as caught:
        scene.execute(graph)

    assert caught.value.state["trace"] == [*"abcde"]
    assert scene.store.load(RUN) == caught.value.state
    assert scene.resume(graph)["trace"] == [*NAMES]
    assert log == [1, 2, 3, 4, 5, 6, 7]
    steps = [row.step for row in scene.store.history(RUN)]
    assert steps[-1] == 7
    assert steps == sorted(steps)
    if how.get("retention") == "full":  # its input, the failure after step 5, and its end
        assert steps == ([0, 1, 2, 3, 4, 5, 5, 6, 7, 7] if interval == 1 else [0, 4, 5, 5, 7, 7])


@every_pair(how=HOW, store=STORES, as_node=NODES, indirect=["how", "store", "as_node"])
def test_a_task_that_is_cancelled_is_saved(store: CheckpointStore, as_node: Any, how: dict[str, Any]) -> None:
    """Completed steps are saved when the cancellation is raised."""
    scene = Scene(store, DRIVERS["async"], as_node)

    async def main() -> None:
        async def wait(state: State) -> dict[str, Any]:
            task.cancel()
            await asyncio.sleep(300)
            return {}

        graph = make_graph(
            {**{name: as_node(node) for name, node in traces("abc").items()}, "d": wait},
            store=store,
            interval=2,
            **how,
        )
        task = asyncio.ensure_future(graph.aexecute(State(run_id=RUN)))
        with pytest.raises(asyncio.CancelledError):
            await task
        assert store.load(RUN)["trace"] == [*"abc"]

    asyncio.run(main())
    assert scene.resume(scene.graph(traces("abcd"), interval=2, **how))["trace"] == [*"abcd"]


# --------------------------------------------------------------------------- saves


def test_exit_saves_once(driver: Any, as_node: Any) -> None:
    """Where the call ends, and not before."""
    store = WatchedStore(MemoryStore())
    scene = Scene(store, driver, as_node)
    graph = scene.graph(
        {**traces(NAMES), "d": broken_first(trace("d"), ValueError())}, durability="exit", preserve=True
    )

    with pytest.raises(ExecutionError):
        scene.execute(graph)
    assert store.saves == [(3, "failed")]
    scene.resume(graph)

    assert store.saves == [(3, "failed"), (7, "completed")]


@pytest.mark.parametrize("durability", ["sync", "async"])
@pytest.mark.parametrize("method", ["save", "save_parts", "load_parts"])
def test_the_error_of_a_store_holds_the_last_state(driver: Any, method: str, durability: str) -> None:
    """Whatever fails, in whichever call that is noticed."""

    class Full(MemoryStore):
        """A store that can only begin runs."""

    def fail(store: Any, *given: Any, **named: Any) -> None:
        if method == "save" and given[0].step == 0:
            MemoryStore.save(store, *given)
        else:
            raise OSError("full")

    setattr(Full, method, fail)
    double = MapNode(lambda item: item * 2, "items", "doubled")
    graph = make_graph({"a": trace("a"), "double": double, "end": trace("end")}, store=Full(), durability=durability)

    with pytest.raises(CheckpointError, match="full") as caught:
        driver(graph, "execute", State({"items": [1, 2]}, run_id=RUN))

    assert caught.value.state is not None
    assert caught.value.state["items"] == [1, 2]


@pytest.mark.parametrize("step", [1, 4, 7])
def test_an_async_save_that_fails_stops_the_run(driver: Any, as_node: Any, step: int) -> None:
    """A failed save stops the run at one of the next steps or at its end; the error carries a State."""

    def before(method: str, argument: Any) -> None:
        if method == "save" and argument.step >= step:
            raise OSError("full")

    store = WatchedStore(MemoryStore(), before)
    scene = Scene(store, driver, as_node)

    with pytest.raises(CheckpointSaveError, match="full") as caught:
        scene.execute(scene.graph(traces(NAMES), durability="async", retention="full", preserve=True))

    assert caught.value.state is not None
    assert caught.value.state.step >= step
    if step > 1:
        assert store.inner.load(RUN)["trace"] == [*NAMES[: step - 1]]
