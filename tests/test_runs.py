"""A run, from its first node to its end, by every driver, on every store, with sync and with async nodes."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from stategraph import (
    CheckpointCorruptError,
    CheckpointError,
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
from stategraph.stores.memory import MemoryStore
from tests.scenarios import (
    DRIVERS,
    NODES,
    RUN,
    FourMethodStore,
    JunkStore,
    Scene,
    WatchedStore,
    broken_first,
    counted,
    fails_always,
    fails_once,
    raises,
    returns,
    shorter_than,
    steady,
    trace,
    traces,
)


class TestSteps:
    """Which nodes run, in which order, on what."""

    def test_nodes_run_along_the_edges(self, scene: Scene) -> None:
        """The final State is complete, at the exit point, and has all that the nodes did, in order."""
        final = scene.execute(scene.graph(traces("abc")), State({"topic": 1}, run_id=RUN))

        assert dict(final) == {"topic": 1, "trace": ["a", "b", "c"]}
        assert (final.run_id, final.checkpoint_node, final.step) == (RUN, "c", 3)
        assert (final.status, final.graph, final.error) == (RunStatus.COMPLETED, "flow", None)

    def test_a_run_of_one_node(self, scene: Scene) -> None:
        """An entry point that is an exit point as well runs once."""
        assert scene.execute(scene.graph(traces("a")))["trace"] == ["a"]

    @pytest.mark.parametrize("given", [{"n": 1}, {"n": 2}, {}])
    def test_the_first_edge_that_passes_is_taken(self, memory_scene: Scene, given: dict[str, Any]) -> None:
        """Edges are tried in the order in which they were added."""
        edges = [("a", "b", key_equals("n", 1)), ("a", "c", key_equals("n", 2)), ("a", "d"), ("b", "d"), ("c", "d")]

        final = memory_scene.execute(memory_scene.graph(traces("abcd"), edges), State(given, run_id=RUN))

        assert final["trace"] == {1: ["a", "b", "d"], 2: ["a", "c", "d"], None: ["a", "d"]}[given.get("n")]

    def test_a_run_ends_at_the_first_exit_point(self, memory_scene: Scene) -> None:
        """Edges out of an exit point are not taken."""
        edges = [("a", "b", key_equals("n", 1)), ("a", "c"), ("b", "c")]

        final = memory_scene.execute(memory_scene.graph(traces("abc"), edges, exits="bc"), State({"n": 1}, run_id=RUN))

        assert final.checkpoint_node == "b"

    def test_a_cycle_runs_until_it_is_left(self, scene: Scene) -> None:
        """A node may run any number of times; every time is a step."""
        edges = [("a", "b"), ("b", "a", shorter_than(7)), ("b", "c")]

        final = scene.execute(scene.graph(traces("abc"), edges))

        assert final["trace"] == [*"abababab", "c"]
        assert final.step == 9

    def test_the_given_state_stays_as_it_is(self, memory_scene: Scene) -> None:
        """A run makes new States."""
        state = State({"list": [1]}, run_id=RUN)

        memory_scene.execute(memory_scene.graph(traces("ab")), state)

        assert state == state.clone()
        assert (dict(state), state.step, state.graph) == ({"list": [1]}, 0, None)

    @pytest.mark.timeout(5)
    def test_a_mock_may_be_a_node(self) -> None:
        """Anything that can be called with a State is a node."""
        scene = Scene(MemoryStore(), DRIVERS["sync"], NODES["sync nodes"])

        assert scene.execute(scene.graph({"a": Mock(return_value={"n": 1})}))["n"] == 1


class TestResults:
    """What a node may return."""

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

    def test_a_state_can_take_keys_away(self, scene: Scene) -> None:
        """What the returned State lacks is gone."""
        final = scene.execute(scene.graph({"a": lambda state: state.remove("n")}), State({"n": 1, "m": 2}, run_id=RUN))

        assert dict(final) == {"m": 2}

    def test_a_node_contributes_only_data(self, scene: Scene) -> None:
        """Step, status, graph and the rest come from the State that the node was given."""
        forged = State({"n": 1}, run_id=RUN, step=77, checkpoint_node="x", status="failed", graph="other")

        final = scene.execute(scene.graph({"a": returns(forged)}))

        assert (final["n"], final.step, final.checkpoint_node, final.graph) == (1, 1, "a", "flow")
        assert final.status is RunStatus.COMPLETED

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

    def test_a_value_nested_too_deep_is_an_error_of_the_node(self, memory_scene: Scene) -> None:
        """It names the key."""
        deep: list[Any] = []
        deep.append(deep)

        with pytest.raises(ExecutionError, match="deep"):
            memory_scene.execute(memory_scene.graph({"a": returns({"deep": deep})}))

    def test_a_sync_function_may_return_a_coroutine(self, driver: Any) -> None:
        """As a lambda around an async function does."""

        async def work(state: State) -> dict[str, Any]:
            return {"n": 1}

        scene = Scene(MemoryStore(), driver, NODES["sync nodes"])

        assert scene.execute(scene.graph({"a": lambda state: work(state)}))["n"] == 1  # noqa: PLW0108


class TestContext:
    """What a node is told of its step."""

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
    """What is in the store, and when."""

    @pytest.mark.parametrize(
        ("interval", "steps"), [(1, [1, 2, 3, 4]), (2, [2, 4]), (3, [3]), (4, [4]), (5, []), (0, [])]
    )
    def test_every_so_many_steps(self, scene: Scene, interval: int, steps: list[int]) -> None:
        """A State is saved when its step is a multiple of the interval, but not the last of a run that is forgotten."""
        store = WatchedStore(scene.store)

        scene.execute(scene.graph(traces("abcde"), store=store, interval=interval))

        assert store.saves == [(step, "active") for step in steps]

    def test_the_cadence_goes_on_across_resumes(self, scene: Scene) -> None:
        """Steps are counted from the start of the run, not of the call."""
        store = WatchedStore(scene.store)
        nodes = {**traces("abcdefg"), "e": broken_first(trace("e"), ValueError())}
        graph = scene.graph(nodes, store=store, interval=3)
        with pytest.raises(ExecutionError):
            scene.execute(graph)

        scene.resume(graph)

        assert store.saves == [(3, "active"), (4, "failed"), (6, "active")]

    @pytest.mark.parametrize("interval", [1, 2, 100])
    @pytest.mark.parametrize("preserve", [True, False])
    def test_a_completed_run(self, scene: Scene, interval: int, preserve: bool) -> None:
        """With preserve the final State is saved, whatever the interval; without it nothing of the run stays."""
        final = scene.execute(scene.graph(traces("abc"), interval=interval, preserve=preserve))

        assert final.status is RunStatus.COMPLETED
        assert [scene.store.load(run_id) for run_id in scene.store.list()] == ([final] if preserve else [])

    @pytest.mark.parametrize("preserve", [True, False])
    def test_interval_0_touches_no_store(self, memory_scene: Scene, preserve: bool) -> None:
        """Not at the start, not at the end, not when a run fails."""
        store = WatchedStore(memory_scene.store)
        options = {"store": store, "interval": 0, "preserve": preserve}

        memory_scene.execute(memory_scene.graph(traces("ab"), **options))
        with pytest.raises(ExecutionError):
            memory_scene.execute(memory_scene.graph({"a": trace("a"), "b": raises(ValueError())}, **options))

        assert store.calls == []

    def test_a_saved_step_is_saved_before_the_next_node_runs(self, scene: Scene) -> None:
        """Every node finds the step before it in the store."""
        found: list[int] = []

        def node(state: State) -> dict[str, Any]:
            found.append(scene.store.load(RUN).step if scene.store.list() else 0)
            return {}

        scene.execute(scene.graph(dict.fromkeys("abc", node)))

        assert found == [0, 1, 2]


class TestFailure:
    """A node or a predicate that raises."""

    @pytest.mark.parametrize("interval", [1, 2, 5])
    @pytest.mark.parametrize("failing", list("abcd"))
    def test_nothing_completed_runs_twice(self, scene: Scene, failing: str, interval: int) -> None:
        """Wherever a node fails, the resumed run ends like an undisturbed one, and every node has completed once."""
        log: list[int] = []
        nodes = {name: counted(node, log) for name, node in traces("abcd").items()}
        nodes[failing] = broken_first(nodes[failing], ValueError("once"))
        graph = scene.graph(nodes, interval=interval)
        with pytest.raises(ExecutionError):
            scene.execute(graph)

        final = scene.resume(graph)

        assert log == [1, 2, 3, 4]
        assert steady(final) == steady(Scene(FourMethodStore(), scene.call, scene.as_node).execute(graph_of("abcd")))

    def test_the_error_tells_what_happened(self, scene: Scene) -> None:
        """It names the node, holds the State as it is in the store, the path and the cause."""
        cause = ValueError("no topic")

        with pytest.raises(ExecutionError, match=r"'b'.*ValueError: no topic") as caught:
            scene.execute(scene.graph({"a": trace("a"), "b": raises(cause), "c": trace("c")}, interval=10))

        error = caught.value
        assert (error.node_name, error.path, error.__cause__) == ("b", ("a", "b"), cause)
        assert (error.state.step, error.state["trace"]) == (1, ["a"])
        assert scene.store.load(RUN) == error.state

    def test_the_run_remembers_its_error(self, scene: Scene) -> None:
        """It is failed, with the type, the text and the node of the error; going on clears that."""
        graph = scene.graph({"a": trace("a"), "b": broken_first(trace("b"), ValueError("no topic"))}, preserve=True)
        with pytest.raises(ExecutionError):
            scene.execute(graph)

        saved = scene.store.load(RUN)
        assert (saved.status, saved.error) == (RunStatus.FAILED, ErrorInfo("ValueError", "no topic", "b"))
        scene.resume(graph)
        assert scene.store.load(RUN).error is None

    @pytest.mark.parametrize(
        "error", [ValueError("\ud800"), ValueError("x" * 10**6), ValueError(), ExceptionGroup("g", [ValueError()])]
    )
    def test_any_exception_can_be_kept(self, scene: Scene, error: Exception) -> None:
        """However its text looks."""
        with pytest.raises(ExecutionError) as caught:
            scene.execute(scene.graph({"a": raises(error)}))

        kept = scene.store.load(RUN).error
        assert caught.value.__cause__ is error
        assert kept is not None
        assert kept.type == type(error).__name__
        assert len(kept.message) <= 20_000

    def test_an_exception_whose_text_raises(self, memory_scene: Scene) -> None:
        """It is reported all the same."""

        class MuteError(Exception):
            def __str__(self) -> str:
                raise RuntimeError

        with pytest.raises(ExecutionError, match="MuteError"):
            memory_scene.execute(memory_scene.graph({"a": raises(MuteError())}))

        assert memory_scene.store.load(RUN).status is RunStatus.FAILED

    @pytest.mark.parametrize("name", NODES)
    @pytest.mark.timeout(20)
    def test_stop_iteration_is_an_error_like_any_other(self, driver: Any, name: str) -> None:
        """A generator is at work inside, and must not take it for its own end."""
        scene = Scene(MemoryStore(), bounded(driver), NODES[name])

        with pytest.raises(ExecutionError, match="StopIteration"):
            scene.execute(scene.graph({"a": trace("a"), "b": raises(StopIteration("empty"))}, interval=9))

        assert scene.store.load(RUN)["trace"] == ["a"]

    def test_a_predicate_that_raises(self, scene: Scene) -> None:
        """The node before it is completed and saved; the error names the edge, and the run goes on after mending."""
        cause = LookupError("no verdict")
        edges: list[tuple[Any, ...]] = [("a", "b"), ("b", "c", raises(cause))]

        with pytest.raises(ExecutionError, match=r"'b' -> 'c'.*no verdict") as caught:
            scene.execute(scene.graph(traces("abc"), edges, interval=10))

        assert (caught.value.node_name, caught.value.__cause__) == ("b", cause)
        assert scene.store.load(RUN)["trace"] == ["a", "b"]
        edges[1] = ("b", "c", returns(True))
        assert scene.resume(scene.graph(traces("abc"), edges))["trace"] == ["a", "b", "c"]

    def test_a_predicate_that_is_async(self, memory_scene: Scene) -> None:
        """It cannot be known beforehand of a lambda, and is an error then."""

        async def predicate(state: State) -> bool:
            return True

        edges = [("a", "b", lambda state: predicate(state))]  # noqa: PLW0108

        with pytest.raises(ExecutionError, match="async"):
            memory_scene.execute(memory_scene.graph(traces("ab"), edges))

    def test_no_edge_passes(self, scene: Scene) -> None:
        """The error names the edges that were tried."""
        edges = [("a", "b", key_equals("n", 1)), ("b", "c"), ("a", "c", key_equals("n", 2))]

        with pytest.raises(ExecutionError, match=r"key_equals.*key_equals") as caught:
            scene.execute(scene.graph(traces("abc"), edges))

        assert (caught.value.node_name, caught.value.path) == ("a", ("a",))
        assert scene.store.load(RUN).status is RunStatus.FAILED
        assert scene.resume(scene.graph(traces("abc"), edges), {"n": 2})["trace"] == ["a", "c"]

    def test_the_path_holds_the_last_100_nodes(self, memory_scene: Scene) -> None:
        """The failing one last, however long the run was."""

        def count(state: State) -> dict[str, Any]:
            return {"n": state.get("n", 0) + 1}

        edges = [("a", "b"), ("b", "a", lambda state: state["n"] < 300), ("b", "c")]
        nodes = {"a": count, "b": count, "c": raises(ValueError())}

        with pytest.raises(ExecutionError) as caught:
            memory_scene.execute(memory_scene.graph(nodes, edges, interval=0))

        assert caught.value.path == (("b",) + ("a", "b") * 49 + ("c",))


class TestMaxIterations:
    """The end of endless loops."""

    edges = (("a", "a", shorter_than(25)), ("a", "b"))

    def test_one_call_runs_that_many_nodes(self, scene: Scene) -> None:
        """The error says how to go on; all that was done is saved."""
        graph = scene.graph(traces("ab"), self.edges, max_iterations=10, interval=7)

        with pytest.raises(MaxIterationsError, match="max_iterations") as caught:
            scene.execute(graph)

        assert scene.store.load(RUN) == caught.value.state
        assert (caught.value.state.step, caught.value.path) == (10, ("a",) * 11)
        assert caught.value.state.error == ErrorInfo("MaxIterationsError", caught.value.reason, "a")

    def test_every_call_counts_its_own_nodes(self, scene: Scene) -> None:
        """A run of any length is completed by resuming it."""
        graph = scene.graph(traces("ab"), self.edges, max_iterations=10)
        with pytest.raises(MaxIterationsError):
            scene.execute(graph)
        with pytest.raises(MaxIterationsError):
            scene.resume(graph)

        assert scene.resume(graph).step == 26

    def test_exactly_as_many_as_are_needed(self, memory_scene: Scene) -> None:
        """The limit itself is allowed."""
        assert memory_scene.execute(memory_scene.graph(traces("ab"), self.edges, max_iterations=26)).step == 26


class Quit(BaseException):
    """Not an Exception."""


class TestBaseExceptions:
    """What is not an error of a node, but the wish to end."""

    @pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, Quit])
    @pytest.mark.parametrize("interval", [1, 10])
    def test_they_pass_unchanged(self, scene: Scene, kind: type[BaseException], interval: int) -> None:
        """The run is active, has all completed steps, and goes on."""
        nodes = {**traces("abcd"), "c": broken_first(trace("c"), kind())}
        graph = scene.graph(nodes, interval=interval)

        with pytest.raises(kind) as caught:
            scene.execute(graph)

        assert type(caught.value) is kind
        assert (scene.store.load(RUN).step, scene.store.load(RUN).status) == (2, RunStatus.ACTIVE)
        assert scene.resume(graph)["trace"] == [*"abcd"]

    @pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    def test_they_pass_through_a_bare_event_loop(self, as_node: Any, kind: type[BaseException]) -> None:
        """The steps are saved before the event loop stops, not only by the clean-up of asyncio.run."""
        store = MemoryStore()
        scene = Scene(store, run_on_bare_loop, as_node)

        with pytest.raises(kind):
            scene.execute(scene.graph({"a": trace("a"), "b": raises(kind()), "c": trace("c")}, interval=10))

        assert store.load(RUN)["trace"] == ["a"]

    @pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, Quit])
    def test_out_of_a_predicate(self, memory_scene: Scene, kind: type[BaseException]) -> None:
        """The node before it is completed and saved."""
        graph = memory_scene.graph(traces("ab"), [("a", "b", raises(kind()))], interval=10)

        with pytest.raises(kind):
            memory_scene.execute(graph)

        assert memory_scene.store.load(RUN)["trace"] == ["a"]


class TestStoresThatFail:
    """A store that raises, or gives back something else."""

    @pytest.mark.parametrize("error", [OSError("full"), CheckpointSaveError("run", "full"), RuntimeError("x")])
    def test_a_save_that_fails_stops_the_run(self, memory_scene: Scene, error: Exception) -> None:
        """At once; the error carries the State, and what was saved before is still there."""
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

    def test_a_save_that_is_interrupted_is_made_again(self, memory_scene: Scene) -> None:
        """The interrupt passes when the State is safe."""
        store = WatchedStore(memory_scene.store, fails_once("save", KeyboardInterrupt()))

        with pytest.raises(KeyboardInterrupt):
            memory_scene.execute(memory_scene.graph(traces("abc"), store=store, interval=2))

        assert memory_scene.store.load(RUN)["trace"] == ["a", "b"]

    @pytest.mark.parametrize("second", [OSError("disk full"), SystemExit(1)])
    def test_a_second_failure_is_a_note_on_the_first(self, memory_scene: Scene, second: BaseException) -> None:
        """The error of the node comes out, with the State that could not be saved."""
        store = WatchedStore(memory_scene.store, fails_always("save", second))
        graph = memory_scene.graph({"a": trace("a"), "b": raises(ValueError("first"))}, store=store, interval=10)

        with pytest.raises(ExecutionError, match="first") as caught:
            memory_scene.execute(graph)

        assert len(caught.value.__notes__) == 1
        assert caught.value.state["trace"] == ["a"]

    def test_a_load_that_fails(self, memory_scene: Scene) -> None:
        """Neither execute nor resume runs a node."""
        store = WatchedStore(memory_scene.store, fails_always("load", OSError("gone")))
        graph = memory_scene.graph({"a": raises(AssertionError("a node ran"))}, store=store)

        with pytest.raises(CheckpointError, match="gone"):
            memory_scene.execute(graph)
        with pytest.raises(CheckpointError, match="gone"):
            memory_scene.resume(graph)

    @pytest.mark.parametrize("interval", [1, 10])
    def test_a_delete_that_fails(self, memory_scene: Scene, interval: int) -> None:
        """The run is complete, and the error carries its final State; no completed step runs again."""
        log: list[int] = []
        store = WatchedStore(memory_scene.store, fails_once("delete", OSError("locked")))
        nodes = {name: counted(node, log) for name, node in traces("abc").items()}
        graph = memory_scene.graph(nodes, store=store, interval=interval)

        with pytest.raises(CheckpointError, match="locked") as caught:
            memory_scene.execute(graph)

        assert caught.value.state is not None
        assert caught.value.state.status is RunStatus.COMPLETED
        assert memory_scene.store.load(RUN)["trace"] == [*"abc"]
        assert log == [1, 2, 3]

    @pytest.mark.parametrize(
        "junk",
        [None, {"n": 1}, State(run_id="other"), b"SG", object()],
        ids=type,
    )
    def test_a_load_that_gives_something_else(self, memory_scene: Scene, junk: Any) -> None:
        """It is refused before a node runs."""
        graph = memory_scene.graph({"a": raises(AssertionError("a node ran"))}, store=JunkStore(junk))

        with pytest.raises(CheckpointCorruptError):
            memory_scene.resume(graph)
        with pytest.raises(CheckpointCorruptError):
            memory_scene.execute(graph)

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

    @pytest.mark.parametrize("keys", [{}, {"durability": "async"}, {"durability": "exit"}, {"interval": 0}], ids=str)
    def test_what_is_never_saved_may_be_anything(self, scene: Scene, keys: dict[str, Any]) -> None:
        """A run that is deleted when it completes saves nothing of its last node."""
        graph = scene.graph({"a": trace("a"), "b": lambda state: {"lock": threading.Lock()}}, preserve=False, **keys)

        assert scene.execute(graph)["lock"].locked() is False


# --------------------------------------------------------------------------- drivers and graphs


def bounded(call: Any) -> Any:
    """-> the driver, with an end to what would wait for ever on an event loop."""
    if call is DRIVERS["sync"]:
        return call

    def call_async(graph: Any, method: str, *args: Any, **options: Any) -> State:
        async def main() -> State:
            task = asyncio.ensure_future(getattr(graph, f"a{method}")(*args, **options))
            done, _ = await asyncio.wait([task], timeout=2)
            if not done:
                pytest.fail("the run hangs", pytrace=False)
            return task.result()  # type: ignore[no-any-return]

        return asyncio.run(main())

    return call_async


def run_on_bare_loop(graph: Any, method: str, *args: Any, **options: Any) -> State:
    """Call a graph on an event loop that is not tidied up after an exception."""
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(getattr(graph, f"a{method}")(*args, **options))  # type: ignore[no-any-return]
    finally:
        loop.close()


def graph_of(names: str) -> Any:
    """-> a graph that nothing disturbs."""
    return Scene(FourMethodStore(), DRIVERS["sync"], NODES["sync nodes"]).graph(traces(names))
