"""Durability and retention: a run is the same run, whenever it is saved and however much of it is kept."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import stategraph
from stategraph import (
    CheckpointSaveError,
    CheckpointStore,
    ExecutionError,
    MaxIterationsError,
    NotSerializableError,
    RunCancelledError,
    RunStatus,
    State,
)
from stategraph.stores.disk import DiskStore
from stategraph.stores.memory import MemoryStore
from stategraph.stores.sqlite import SqliteStore
from tests.scenarios import (
    DRIVERS,
    HOW,
    NODES,
    RUN,
    Scene,
    WatchedStore,
    broken_first,
    counted,
    fails_always,
    in_threads,
    make_graph,
    raises,
    returns,
    shorter_than,
    steady,
    trace,
    traces,
)

NAMES = "abcdefg"


@pytest.fixture(params=[MemoryStore, DiskStore, SqliteStore], ids=["memory", "disk", "sqlite"])
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
    """-> those of the saved steps that the history tells of."""
    visible = {"full": len(steps), "windowed": 3}.get(how.get("retention", "latest"), 1)
    return steps[-visible:]


# --------------------------------------------------------------------------- runs that complete


@pytest.mark.parametrize("interval", [1, 3])
def test_the_final_state_is_the_same(scene: Scene, how: dict[str, Any], interval: int) -> None:
    """It is returned and kept, and the history tells of every step that was due."""
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


@pytest.mark.parametrize("durability", ["sync", "async"])
def test_every_step_of_a_full_history_can_be_loaded(scene: Scene, durability: str) -> None:
    """It is what the run was at that time."""
    scene.execute(scene.graph(traces(NAMES), preserve=True, durability=durability, retention="full"))

    for step, name in enumerate(NAMES, 1):
        state = scene.store.load(RUN, step)
        assert (state["trace"], state.checkpoint_node) == ([*NAMES[:step]], name)
        assert state.status is (RunStatus.COMPLETED if name == "g" else RunStatus.ACTIVE)


def test_a_run_that_is_not_kept_leaves_nothing(scene: Scene, how: dict[str, Any]) -> None:
    """Nothing is saved after it was deleted."""
    scene.execute(scene.graph(traces(NAMES), **how))

    assert scene.store.list() == []
    assert scene.store.history(RUN) == []


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_interval_0_saves_nothing(driver: Any, durability: str) -> None:
    """Not at the end either."""
    store = WatchedStore(MemoryStore())
    scene = Scene(store, driver, NODES["sync nodes"])

    scene.execute(scene.graph(traces("ab"), interval=0, preserve=True, durability=durability))

    assert store.calls == []


# --------------------------------------------------------------------------- runs that end early


@pytest.mark.parametrize("interval", [1, 4])
def test_a_run_that_fails_is_saved_and_goes_on(scene: Scene, how: dict[str, Any], interval: int) -> None:
    """What the error holds is in the store when it is raised; nothing that was completed runs again."""
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


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_a_run_that_is_interrupted_is_saved(scene: Scene, how: dict[str, Any], kind: type[BaseException]) -> None:
    """It is active, at the last completed step."""
    nodes = {**traces(NAMES), "d": broken_first(trace("d"), kind())}
    graph = scene.graph(nodes, interval=2, **how)

    with pytest.raises(kind):
        scene.execute(graph)

    assert (scene.store.load(RUN)["trace"], scene.store.load(RUN).status) == ([*"abc"], RunStatus.ACTIVE)
    assert scene.resume(graph)["trace"] == [*NAMES]


def test_a_run_that_is_cancelled_is_saved(scene: Scene, how: dict[str, Any]) -> None:
    """By its event, before the next node."""
    cancel = threading.Event()

    def stop(state: State) -> dict[str, Any]:
        cancel.set()
        return trace("d")(state)  # type: ignore[no-any-return]

    graph = scene.graph({**traces(NAMES), "d": stop}, interval=3, **how)

    with pytest.raises(RunCancelledError, match="cancelled") as caught:
        scene.execute(graph, cancel=cancel)

    assert caught.value.__cause__ is None
    assert scene.store.load(RUN) == caught.value.state
    assert (caught.value.state["trace"], caught.value.state.status) == ([*"abcd"], RunStatus.ACTIVE)
    assert scene.resume(graph)["trace"] == [*NAMES]


def test_a_task_that_is_cancelled_is_saved(store: CheckpointStore, as_node: Any, how: dict[str, Any]) -> None:
    """What was completed is in the store when the cancellation comes out."""
    scene = Scene(store, DRIVERS["async"], as_node)

    async def main() -> None:
        async def wait(state: State) -> dict[str, Any]:
            task.cancel()
            await asyncio.sleep(60)
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


def test_an_endless_run_is_saved(scene: Scene, how: dict[str, Any]) -> None:
    """And completed by resuming it."""
    edges = [("a", "a", shorter_than(25)), ("a", "b")]
    graph = scene.graph(traces("ab"), edges, max_iterations=20, interval=7, **how)

    with pytest.raises(MaxIterationsError) as caught:
        scene.execute(graph)

    assert scene.store.load(RUN) == caught.value.state
    assert (caught.value.state.step, scene.resume(graph).step) == (20, 26)


def test_updates_are_saved_before_the_next_node_runs(scene: Scene, how: dict[str, Any]) -> None:
    """Whatever the durability: they are nowhere else."""
    found: list[Any] = []

    def look(state: State) -> dict[str, Any]:
        found.append(scene.store.load(RUN).get("topic"))
        return {}

    failing = scene.graph({"a": trace("a"), "b": raises(ValueError()), "c": trace("c")}, **how)
    with pytest.raises(ExecutionError):
        scene.execute(failing)

    graph = scene.graph({"a": trace("a"), "b": look, "c": trace("c")}, preserve=True, **how)
    scene.resume(graph, {"topic": "checkpoints"})

    assert found == ["checkpoints"]
    assert scene.store.load(RUN)["topic"] == "checkpoints"


# --------------------------------------------------------------------------- what is saved, and when


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


@pytest.mark.parametrize("retention", ["latest", "full"])
def test_async_saves_every_step_that_is_kept(driver: Any, as_node: Any, retention: str) -> None:
    """In order, and each once."""
    store = WatchedStore(MemoryStore())
    scene = Scene(store, driver, as_node)

    scene.execute(scene.graph(traces(NAMES), durability="async", retention=retention, preserve=True))

    steps = [step for step, status in store.saves if status == "active"]
    assert steps == sorted(set(steps))
    assert store.saves[-1] == (7, "completed")


@pytest.mark.parametrize("step", [1, 4, 7])
def test_an_async_save_that_fails_stops_the_run(driver: Any, as_node: Any, step: int) -> None:
    """At one of the next steps, or where the call ends; the error carries a State, and no failed save is forgotten."""

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


@pytest.mark.parametrize("durability", ["async", "exit"])
def test_a_value_that_cannot_be_kept(store: CheckpointStore, driver: Any, as_node: Any, durability: str) -> None:
    """The error names its place, and what was completed before is in the store, if it was to be."""
    scene = Scene(store, driver, as_node)
    lock = threading.Lock()
    nodes = {**traces("abc"), "c": returns({"lock": [lock]}), "d": trace("d")}

    with pytest.raises(NotSerializableError, match=r"lock\[0\]") as caught:
        scene.execute(scene.graph(nodes, durability=durability, retention="latest", preserve=True))

    assert caught.value.state is not None
    if durability == "async":
        assert store.load(RUN)["trace"] == ["a", "b"]


def test_a_node_and_a_save_that_fail(driver: Any, as_node: Any) -> None:
    """The error of the node comes out, with a note of the other."""
    store = WatchedStore(MemoryStore(), fails_always("save", OSError("full")))
    scene = Scene(store, driver, as_node)
    nodes = {"a": trace("a"), "b": raises(ValueError("first")), "c": trace("c")}

    with pytest.raises(ExecutionError, match="ValueError: first") as caught:
        scene.execute(scene.graph(nodes, durability="async"))

    (note,) = caught.value.__notes__
    assert "full" in note


def test_runs_side_by_side(store: CheckpointStore, how: dict[str, Any]) -> None:
    """Each has its own history."""
    graph = make_graph(traces(NAMES), store=store, preserve=True, **how)

    assert in_threads(*[partial(graph.execute, State(run_id=f"run-{n}")) for n in range(8)]) == []

    assert store.list() == [f"run-{n}" for n in range(8)]
    for run_id in store.list():
        assert store.load(run_id)["trace"] == [*NAMES]
        if how.get("retention") == "full":
            assert [row.step for row in store.history(run_id)] == [0, *range(1, 8), 7]


LEAKS = """
import os, resource, sys
from stategraph import CheckpointConfig, ExecutionError, GraphConfig, State, StateGraph

options = {"path": sys.argv[1]}
checkpoint = CheckpointConfig(store="sqlite", interval=10, options=options)
graph = StateGraph(GraphConfig("leaking", observer="noop", checkpoint=checkpoint))
opened = []

def leak(state):
    while True:
        opened.append(open(os.devnull))

graph.add_node("work", lambda state: {"done": True})
graph.add_node("leak", leak)
graph.add_edge("work", "leak")
graph.set_entry_point("work")
graph.set_exit_point("leak")
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
try:
    graph.execute(State(run_id="r"))
except ExecutionError as error:
    print(error.node_name)
while opened:
    opened.pop().close()
print(graph.store.load("r").status, graph.store.load("r")["done"])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such limit")
def test_a_run_that_has_no_file_descriptors_left_is_saved(tmp_path):
    """What handles a failure is imported before a run begins, not when it fails."""
    (tmp_path / "leak.py").write_text(LEAKS)
    command = [sys.executable, str(tmp_path / "leak.py"), str(tmp_path / "runs.db")]
    environment = {**os.environ, "PYTHONPATH": str(Path(stategraph.__file__).parents[1])}

    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)

    assert done.stdout.split() == ["leak", "failed", "True"]
