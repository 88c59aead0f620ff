"""Whole runs with every driver, on every store, with sync and async nodes."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from stategraph import (
    CheckpointSaveError,
    ErrorInfo,
    ExecutionError,
    MaxIterationsError,
    NodeContext,
    NotSerializableError,
    RunStatus,
    State,
    key_equals,
)
from stategraph.stores.disk import DiskStore
from tests.conftest import SCENES
from tests.pairs import every_pair
from tests.scenarios import (
    RUN,
    Scene,
    WatchedStore,
    broken_first,
    counted,
    fails_always,
    raises,
    returns,
    shorter_than,
    trace,
    traces,
)


class TestSteps:
    """The nodes that run, their order and their input."""

    def test_nodes_run_along_the_edges(self, scene: Scene) -> None:
        """The final State is complete, at the exit point, and has all that the nodes did, in order."""
        final = scene.execute(scene.graph(traces("abc")), State({"topic": 1}, run_id=RUN))

        assert dict(final) == {"topic": 1, "trace": ["a", "b", "c"]}
        assert (final.run_id, final.checkpoint_node, final.step) == (RUN, "c", 3)
        assert (final.status, final.graph, final.error) == (RunStatus.COMPLETED, "flow", None)

    def test_a_cycle_runs_until_it_is_left(self, scene: Scene) -> None:
        """A node may run any number of times; every time is a step."""
        edges = [("a", "b"), ("b", "a", shorter_than(7)), ("b", "c")]

        final = scene.execute(scene.graph(traces("abc"), edges))

        assert final["trace"] == [*"abababab", "c"]
        assert final.step == 9


class TestResults:
    """The results that a node may return."""

    @pytest.mark.parametrize(
        "node",
        [
            lambda state: {"n": 2, "new": 3},
            lambda state: state.set("n", 2).set("new", 3),
            lambda state: state.update({"n": 2}, new=3),
            lambda state: State({"old": 1, "n": 2, "new": 3}, run_id=state.run_id),
        ],
    )
    def test_updates_and_states_are_the_same(self, scene: Scene, node: Any) -> None:
        """A mapping is laid over the data; a State takes its place."""
        final = scene.execute(scene.graph({"a": node}), State({"old": 1, "n": 1}, run_id=RUN))

        assert dict(final) == {"old": 1, "n": 2, "new": 3}

    @pytest.mark.parametrize(
        ("result", "text"),
        [
            (None, "returns {}"),
            ([("a", 1)], "list"),
            ("text", "str"),
            (State(run_id="other"), "other"),
            ({1: "a"}, "int"),
            ({"ok": 1, None: 2}, "NoneType"),
        ],
        ids=["None", "list", "str", "other run", "int key", "None key"],
    )
    def test_anything_else_is_an_error_of_the_node(self, memory_scene: Scene, result: Any, text: str) -> None:
        """It names the node and what came, and leaves the run failed but resumable."""
        nodes = {"a": trace("a"), "b": returns(result), "c": trace("c")}

        with pytest.raises(ExecutionError, match=text) as caught:
            memory_scene.execute(memory_scene.graph(nodes))

        assert caught.value.node_name == "b"
        assert caught.value.__cause__ is not None
        assert memory_scene.resume(memory_scene.graph(traces("abc")))["trace"] == ["a", "b", "c"]


class TestContext:
    """The context that a node gets."""

    def test_it_names_run_graph_node_and_step(self, scene: Scene) -> None:
        """Steps count from 1, the first attempt is 1."""
        seen: list[NodeContext] = []

        def node(state: State, context: NodeContext) -> dict[str, Any]:
            seen.append(context)
            return {}

        scene.execute(scene.graph({"a": node, "b": node}))

        assert [(c.run_id, c.graph, c.node, c.step, c.attempt) for c in seen] == [
            (RUN, "flow", "a", 1, 1),
            (RUN, "flow", "b", 2, 1),
        ]


class TestSaving:
    """The saves of a run."""

    @pytest.mark.parametrize("preserve", [True, False])
    def test_interval_0_touches_no_store(self, memory_scene: Scene, preserve: bool) -> None:
        """With interval 0 a run uses no store, not even when it fails."""
        store = WatchedStore(memory_scene.store)
        options = {"store": store, "interval": 0, "preserve": preserve}

        memory_scene.execute(memory_scene.graph(traces("ab"), **options))
        with pytest.raises(ExecutionError):
            memory_scene.execute(memory_scene.graph({"a": trace("a"), "b": raises(ValueError())}, **options))

        assert store.calls == []


class TestFailure:
    """A node or a predicate that raises."""

    def test_the_error_tells_what_happened(self, scene: Scene) -> None:
        """It names the node, holds the State as it is in the store, the path and the cause."""
        cause = ValueError("no topic")

        with pytest.raises(ExecutionError, match=r"'b'.*ValueError: no topic") as caught:
            scene.execute(scene.graph({"a": trace("a"), "b": raises(cause), "c": trace("c")}, interval=10))

        error = caught.value
        assert (error.node_name, error.path, error.__cause__) == ("b", ("a", "b"), cause)
        assert (error.state.step, error.state["trace"]) == (1, ["a"])
        assert scene.store.load(RUN) == error.state

    def test_a_predicate_that_raises(self, scene: Scene) -> None:
        """The node before a raising predicate is saved, the error names the edge, and the run can be resumed."""
        cause = LookupError("no verdict")
        edges: list[tuple[Any, ...]] = [("a", "b"), ("b", "c", raises(cause))]

        with pytest.raises(ExecutionError, match=r"'b' -> 'c'.*no verdict") as caught:
            scene.execute(scene.graph(traces("abc"), edges, interval=10))

        assert (caught.value.node_name, caught.value.__cause__) == ("b", cause)
        assert scene.store.load(RUN)["trace"] == ["a", "b"]
        edges[1] = ("b", "c", returns(True))
        assert scene.resume(scene.graph(traces("abc"), edges))["trace"] == ["a", "b", "c"]

    def test_no_edge_passes(self, scene: Scene) -> None:
        """The error names the edges that were tried."""
        edges = [("a", "b", key_equals("n", 1)), ("b", "c"), ("a", "c", key_equals("n", 2))]

        with pytest.raises(ExecutionError, match=r"key_equals.*key_equals") as caught:
            scene.execute(scene.graph(traces("abc"), edges))

        assert (caught.value.node_name, caught.value.path) == ("a", ("a",))
        assert scene.store.load(RUN).status is RunStatus.FAILED
        assert scene.resume(scene.graph(traces("abc"), edges), {"n": 2})["trace"] == ["a", "c"]


class TestMaxIterations:
    """The end of endless loops."""

    edges = (("a", "a", shorter_than(25)), ("a", "b"))

    def test_one_call_runs_that_many_nodes(self, scene: Scene) -> None:
        """The error at max_iterations says how to continue, and all steps are saved."""
        graph = scene.graph(traces("ab"), self.edges, max_iterations=10, interval=7)

        with pytest.raises(MaxIterationsError, match="max_iterations") as caught:
            scene.execute(graph)

        assert scene.store.load(RUN) == caught.value.state
        assert (caught.value.state.step, caught.value.path) == (10, ("a",) * 11)
        assert caught.value.state.error == ErrorInfo("MaxIterationsError", caught.value.reason, "a")


class Quit(BaseException):
    """Exceptions that do not derive from Exception."""


class TestBaseExceptions:
    """Exceptions that end the program and are no errors of nodes."""

    @every_pair(kind=[KeyboardInterrupt, SystemExit, Quit], interval=[1, 10], scene=SCENES, indirect=["scene"])
    def test_they_pass_unchanged(self, scene: Scene, kind: type[BaseException], interval: int) -> None:
        """They pass unchanged; the run stays active with all completed steps, and can be resumed."""
        nodes = {**traces("abcd"), "c": broken_first(trace("c"), kind())}
        graph = scene.graph(nodes, interval=interval)

        with pytest.raises(kind) as caught:
            scene.execute(graph)

        assert type(caught.value) is kind
        assert (scene.store.load(RUN).step, scene.store.load(RUN).status) == (2, RunStatus.ACTIVE)
        assert scene.resume(graph)["trace"] == [*"abcd"]


class TestStoresThatFail:
    """A store that raises, or gives back something else."""

    @pytest.mark.parametrize("error", [OSError("full"), CheckpointSaveError("run", "full"), RuntimeError("x")])
    def test_a_save_that_fails_stops_the_run(self, memory_scene: Scene, error: Exception) -> None:
        """A failed save stops the run at once; the error has the State, and earlier saves stay."""
        log: list[int] = []
        nodes = {name: counted(node, log) for name, node in traces("abc").items()}

        def before(method: str, argument: Any) -> None:
            if method == "save" and argument.step == 2:
                raise error

        store = WatchedStore(memory_scene.store, before)
        with pytest.raises(CheckpointSaveError, match=str(error)) as caught:
            memory_scene.execute(memory_scene.graph(nodes, store=store))

        assert log == [1, 2]
        assert caught.value.state is not None
        assert caught.value.state["trace"] == ["a", "b"]
        assert memory_scene.store.load(RUN).step == 1

    def test_a_second_failure_is_a_note_on_the_first(self, memory_scene: Scene) -> None:
        """The error of the node comes out, with the State that could not be saved."""
        store = WatchedStore(memory_scene.store, fails_always("save", OSError("disk full")))
        graph = memory_scene.graph({"a": trace("a"), "b": raises(ValueError("first"))}, store=store, interval=10)

        with pytest.raises(ExecutionError, match="first") as caught:
            memory_scene.execute(graph)

        assert len(caught.value.__notes__) == 1
        assert caught.value.state["trace"] == ["a"]

    @pytest.mark.parametrize("first", [ValueError, KeyboardInterrupt])
    def test_an_interrupt_while_the_end_is_saved(self, memory_scene: Scene, first: type[BaseException]) -> None:
        """It is raised at once, and costs as much as a crash: the run continues from its last checkpoint."""
        saves, second = [0], KeyboardInterrupt()

        def before(method: str, argument: Any) -> None:
            if method == "save":
                saves[0] += 1
                if saves[0] == 2:
                    raise second

        store = WatchedStore(memory_scene.store, before)
        nodes = {**traces("abcd"), "d": broken_first(trace("d"), first())}
        with pytest.raises(KeyboardInterrupt) as caught:
            memory_scene.execute(memory_scene.graph(nodes, store=store, interval=2))

        assert caught.value is second
        assert memory_scene.store.load(RUN)["trace"] == ["a", "b"]
        assert memory_scene.resume(memory_scene.graph(nodes, store=store))["trace"] == [*"abcd"]

    def test_a_value_that_cannot_be_kept(self, driver: Any, as_node: Any, tmp_path: Path) -> None:
        """The error names its place and carries the State; the step before is in the store."""
        store = DiskStore(tmp_path / "runs")
        scene = Scene(store, driver, as_node)
        lock = threading.Lock()
        nodes = {"a": trace("a"), "b": returns({"orders": [{"total": lock}]}), "c": trace("c")}

        with pytest.raises(NotSerializableError, match=r"orders\[0\]\.total") as caught:
            scene.execute(scene.graph(nodes))

        assert caught.value.state is not None
        assert (caught.value.state.step, caught.value.state["orders"][0]["total"]) == (2, lock)
        (failed,) = store.runs(status="failed")
        assert failed.error is not None
        assert (failed.error.type, failed.error.node, failed.step) == ("NotSerializableError", "b", 1)
        assert scene.resume(scene.graph(traces("abc")))["trace"] == [*"abc"]
        store.close()


# --------------------------------------------------------------------------- drivers and graphs
