"""The rules of resume, and of executing a State that has a past."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from stategraph import (
    CheckpointingDisabledError,
    CheckpointNotFoundError,
    CheckpointSaveError,
    ExecutionError,
    GraphMismatchError,
    InvalidRunIdError,
    RunCompleteError,
    RunExistsError,
    RunStatus,
    State,
    key_equals,
    key_exists,
)
from tests.scenarios import (
    RUN,
    Scene,
    WatchedStore,
    broken_first,
    counted,
    fails_once,
    raises,
    trace,
    traces,
)


def fail_at(scene: Scene, node: str, names: str = "abc", **options: Any) -> None:
    """Leave a run that failed at a node of a chain."""
    with pytest.raises(ExecutionError):
        scene.execute(scene.graph({**traces(names), node: raises(ValueError("once"))}, **options))


class TestRefusals:
    """When a run cannot be resumed."""

    def test_checkpointing_is_off(self, memory_scene: Scene) -> None:
        """The error says how to turn it on, and the store is not asked."""
        store = WatchedStore(memory_scene.store)

        with pytest.raises(CheckpointingDisabledError, match="interval"):
            memory_scene.resume(memory_scene.graph(traces("a"), store=store, interval=0))

        assert store.calls == []

    def test_no_such_run(self, scene: Scene) -> None:
        """The error names the run and the store."""
        with pytest.raises(CheckpointNotFoundError) as caught:
            scene.resume(scene.graph(traces("a")))

        assert RUN in str(caught.value)
        assert str(scene.store) in str(caught.value)

    @pytest.mark.parametrize("run_id", ["", "../x", None, 5])
    def test_no_run_id(self, memory_scene: Scene, run_id: Any) -> None:
        """It is refused before the store is asked."""
        store = WatchedStore(memory_scene.store)

        with pytest.raises(InvalidRunIdError):
            memory_scene.call(memory_scene.graph(traces("a"), store=store), "resume", run_id)

        assert store.calls == []

    def test_a_complete_run(self, scene: Scene) -> None:
        """There is nothing to do; the error says what can be done."""
        scene.execute(scene.graph(traces("ab"), preserve=True))
        before = scene.store.load(RUN)

        with pytest.raises(RunCompleteError, match="'b'"):
            scene.resume(scene.graph(traces("ab"), preserve=True))

        assert scene.store.load(RUN) == before

    def test_a_run_of_another_graph(self, scene: Scene) -> None:
        """Not even with allow_changed; both names are in the error."""
        fail_at(scene, "b")

        with pytest.raises(GraphMismatchError, match=r"'flow'.*'other'"):
            scene.resume(scene.graph(traces("abc"), name="other"), allow_changed=True)

    def test_a_run_at_a_node_that_is_gone(self, scene: Scene) -> None:
        """Not even with allow_changed: there is no telling where it should go on."""
        fail_at(scene, "c")

        with pytest.raises(GraphMismatchError, match=r"'b'.*does not have"):
            scene.resume(scene.graph(traces("ac")), allow_changed=True)

    @pytest.mark.parametrize(
        ("updates", "named"), [([("n", 1)], "mapping"), ("n", "mapping"), (5, "mapping"), ({1: 2}, "key")]
    )
    def test_wrong_updates(self, memory_scene: Scene, updates: Any, named: str) -> None:
        """Updates that are no mapping of str keys are refused, and the run stays as it is."""
        fail_at(memory_scene, "b")

        with pytest.raises(TypeError, match=named):
            memory_scene.resume(memory_scene.graph(traces("abc")), updates)

        assert memory_scene.store.load(RUN).status is RunStatus.FAILED

    def test_a_refusal_changes_nothing(self, memory_scene: Scene) -> None:
        """The store is only read."""
        fail_at(memory_scene, "b")
        store = WatchedStore(memory_scene.store)

        with pytest.raises(GraphMismatchError):
            memory_scene.resume(memory_scene.graph(traces("abc"), name="other", store=store), {"n": 1})

        assert [method for method, _ in store.calls] == ["load"]


EDGES: list[tuple[Any, ...]] = [("a", "b", key_exists("n")), ("a", "c"), ("b", "d"), ("c", "d")]


class TestChangedGraphs:
    """A graph that has changed since the run was saved."""

    @pytest.mark.parametrize(
        ("names", "edges", "texts"),
        [
            ("abced", [*EDGES, ("a", "e"), ("e", "d")], ["node 'e' was added", "edge 'a' -> 'e'", "was added"]),
            (
                "abd",
                [EDGES[0], EDGES[2], ("a", "d")],
                ["node 'c' was removed", "edge 'a' -> 'c' (always()) was removed"],
            ),
            ("abcd", [*EDGES, ("a", "d")], ["edge 'a' -> 'd' (always()) was added"]),
            ("abcd", [*EDGES, ("b", "c")], ["edge 'b' -> 'c' (always()) was added"]),
            ("abcd", [EDGES[1], EDGES[0], *EDGES[2:]], ["edges out of 'a'", "order"]),
            (
                "abcd",
                [("a", "b", key_exists("m")), *EDGES[1:]],
                ["key_exists('m')", "added", "key_exists('n')", "removed"],
            ),
            ("abcd", [("a", "b", key_exists("n"), "x"), *EDGES[1:]], ["edge 'a' -> 'b' (x) was added"]),
        ],
        ids="node-added node-removed edge-added other-edge-added order predicate name".split(),
    )
    def test_the_error_names_what_changed(
        self, memory_scene: Scene, names: str, edges: list[tuple[Any, ...]], texts: list[str]
    ) -> None:
        """Nodes and edges that were added or removed, and edges that are tried in another order."""
        scene = memory_scene
        with pytest.raises(ExecutionError):
            scene.execute(
                scene.graph({"a": trace("a"), "b": trace("b"), "c": raises(ValueError()), "d": trace("d")}, EDGES)
            )
        changed = make_changed(scene, names, edges)

        with pytest.raises(GraphMismatchError) as caught:
            scene.resume(changed)

        assert all(text in str(caught.value) for text in [*texts, "allow_changed"])
        assert scene.resume(changed, allow_changed=True).status is RunStatus.COMPLETED

    def test_what_does_not_matter(self, memory_scene: Scene) -> None:
        """The code of nodes and predicates, the order of nodes, and that of edges out of different nodes."""
        scene = memory_scene
        edges = [("a", "b", lambda state: False), ("a", "c"), ("b", "d"), ("c", "d")]
        with pytest.raises(ExecutionError):
            scene.execute(scene.graph({**traces("ab"), "c": raises(ValueError()), "d": trace("d")}, edges))
        again = [("c", "d"), ("a", "b", lambda state: True), ("b", "d"), ("a", "c")]

        final = scene.resume(scene.graph({name: trace(name) for name in "acbd"}, again))

        assert final["trace"] == ["a", "b", "d"]


def make_changed(scene: Scene, names: str, edges: list[tuple[Any, ...]]) -> Any:
    """-> a graph of these edges, of which a fourth part is a name."""
    graph = scene.graph(traces(names), [], exits="d")
    for source, target, *rest in edges:
        graph.add_edge(source, target, *rest[:1], name=rest[1] if rest[1:] else None)
    return graph


class TestWhereItGoesOn:
    """The step after the one that is saved."""

    def test_after_the_node_that_was_completed(self, scene: Scene) -> None:
        """The next edge is taken on the data as it is now."""
        edges = [("a", "b"), ("b", "c", key_equals("n", 1)), ("b", "d"), ("c", "d")]
        nodes = {**traces("abd"), "c": raises(AssertionError("the wrong way"))}
        with pytest.raises(ExecutionError):
            scene.execute(scene.graph(nodes, edges, exits="d"), State({"n": 1}, run_id=RUN))

        final = scene.resume(scene.graph(nodes, edges, exits="d"), {"n": 2})

        assert final["trace"] == ["a", "b", "d"]

    @pytest.mark.parametrize("step", [0, 3])
    def test_a_state_without_a_node_starts_at_the_entry(self, scene: Scene, step: int) -> None:
        """Whatever its step, which counts on."""
        scene.store.save(State({"n": 1}, run_id=RUN, step=step))

        final = scene.resume(scene.graph(traces("ab")))

        assert (final["trace"], final.step) == (["a", "b"], step + 2)

    def test_a_state_written_by_hand(self, scene: Scene) -> None:
        """It carries no graph, and goes on in any that has its node."""
        scene.store.save(State({"trace": ["x"]}, run_id=RUN, checkpoint_node="b", step=7))

        final = scene.resume(scene.graph(traces("abc"), name="any"))

        assert (final["trace"], final.step, final.graph) == (["x", "c"], 8, "any")

    def test_a_state_written_by_hand_at_a_node_that_is_not_there(self, scene: Scene) -> None:
        """The error names the nodes that are."""
        scene.store.save(State(run_id=RUN, checkpoint_node="x", step=7))

        with pytest.raises(GraphMismatchError, match=r"'x'.*a, b, c"):
            scene.resume(scene.graph(traces("abc")))

    @pytest.mark.parametrize("preserve", [True, False])
    def test_an_active_state_at_an_exit_point(self, scene: Scene, preserve: bool) -> None:
        """The process died before it could say so: the run completes, and no node runs."""
        scene.store.save(State({"n": 1}, run_id=RUN, checkpoint_node="c", step=3))

        final = scene.resume(scene.graph(dict.fromkeys("abc", raises(AssertionError())), preserve=preserve))

        assert (final["n"], final.step, final.status) == (1, 3, RunStatus.COMPLETED)
        assert scene.store.list() == ([RUN] if preserve else [])

    def test_a_failed_state_at_the_start(self, scene: Scene) -> None:
        """The first node failed: the run is in the store all the same, and starts again."""
        fail_at(scene, "a")
        assert (scene.store.load(RUN).step, scene.store.load(RUN).status) == (0, RunStatus.FAILED)

        assert scene.resume(scene.graph(traces("abc")))["trace"] == ["a", "b", "c"]


class TestUpdates:
    """Data that a resume brings along."""

    def test_they_are_laid_over_the_data(self, scene: Scene) -> None:
        """The next edge and the next node see them."""
        fail_at(scene, "b")

        final = scene.resume(scene.graph(traces("abc")), {"trace": ["mended"], "new": 1})

        assert dict(final) == {"trace": ["mended", "b", "c"], "new": 1}

    @pytest.mark.parametrize("interval", [1, 10])
    def test_they_are_durable_before_the_next_node_runs(self, scene: Scene, interval: int) -> None:
        """Whatever happens right after, they need not be given again."""
        fail_at(scene, "b", interval=interval)
        found: list[State] = []

        def look(state: State) -> dict[str, Any]:
            found.append(scene.store.load(RUN))
            return {}

        scene.resume(scene.graph({"a": trace("a"), "b": look, "c": trace("c")}, interval=interval), {"n": 1})

        assert [(state["n"], state.step, state.status, state.error) for state in found] == [
            (1, 1, RunStatus.ACTIVE, None)
        ]

    def test_a_store_that_cannot_take_them(self, memory_scene: Scene) -> None:
        """No node runs, and they can be given again."""
        fail_at(memory_scene, "b")
        store = WatchedStore(memory_scene.store, fails_once("amend", OSError("full")))
        log: list[int] = []
        graph = memory_scene.graph({"a": trace("a"), "b": counted(trace("b"), log), "c": trace("c")}, store=store)

        with pytest.raises(CheckpointSaveError, match="full"):
            memory_scene.resume(graph, {"n": 1})

        assert log == []
        assert memory_scene.resume(graph, {"n": 2})["n"] == 2


class TestExecuteAgain:
    """Executing a State that has a past."""

    def test_a_completed_run_goes_on(self, scene: Scene) -> None:
        """With new input, from the entry point, and its steps count on."""
        graph = scene.graph(traces("ab"), preserve=True)
        scene.execute(graph)

        final = scene.execute(graph, scene.store.load(RUN).set("question", 2))

        assert dict(final) == {"trace": ["a", "b", "a", "b"], "question": 2}
        assert (final.step, final.run_id) == (4, RUN)
        assert scene.store.load(RUN) == final

    def test_a_failed_run_starts_over(self, scene: Scene) -> None:
        """With the data that it has, from the entry point, if that is asked for: else it is left as it stands."""
        fail_at(scene, "c")
        failed = scene.store.load(RUN)

        with pytest.raises(RunExistsError, match=r"failed.*resume\('run'\).*turn\('run', .*restart=True"):
            scene.execute(scene.graph(traces("abc")), failed)
        assert scene.store.load(RUN) == failed
        final = scene.execute(scene.graph(traces("abc")), failed, restart=True)

        assert (final["trace"], final.step) == (["a", "b", "a", "b", "c"], 5)

    @pytest.mark.parametrize("interval", [1, 10])
    @pytest.mark.parametrize("change", [lambda state: state, lambda state: state.set("n", 1)], ids=["as is", "changed"])
    def test_a_crash_before_the_first_save(self, scene: Scene, interval: int, change: Callable[[State], State]) -> None:
        """What is in the store by then resumes at the entry point, with the new input."""
        options = {"preserve": True, "interval": interval}
        scene.execute(scene.graph(traces("ab"), **options))
        state = change(scene.store.load(RUN))
        seen: list[State] = []

        def look(state: State) -> dict[str, Any]:
            seen.append(scene.store.load(RUN))  # what a killed process would leave
            return {}

        scene.execute(scene.graph({"a": look, "b": trace("b")}, **options), state)
        scene.store.delete(RUN)
        scene.store.save(seen[0])
        final = scene.resume(scene.graph(traces("ab"), **options))

        assert seen[0].status is RunStatus.ACTIVE
        assert (final["trace"], final.get("n"), final.step) == (["a", "b", "a", "b"], state.get("n"), 4)

    def test_a_run_that_exists(self, scene: Scene) -> None:
        """A fresh State of its id is refused, no node runs, and the error names resume."""
        fail_at(scene, "b")
        before = scene.store.load(RUN)

        with pytest.raises(RunExistsError, match="resume"):
            scene.execute(scene.graph(dict.fromkeys("abc", raises(AssertionError()))), State({"n": 1}, run_id=RUN))

        assert scene.store.load(RUN) == before

    def test_a_run_that_failed_at_its_first_node_exists(self, scene: Scene) -> None:
        """The very State that was executed before is refused as well."""
        state = State({"n": 1}, run_id=RUN)
        with pytest.raises(ExecutionError):
            scene.execute(scene.graph({"a": raises(ValueError())}), state)

        with pytest.raises(RunExistsError):
            scene.execute(scene.graph(traces("a")), state)

    def test_a_fresh_state_that_was_saved(self, scene: Scene) -> None:
        """Prepared in one place and executed in another, it is no other run."""
        state = State({"n": 1, "x": [1.5, {"a": (1,)}]}, run_id=RUN)
        state.checkpoint(scene.store)

        assert scene.execute(scene.graph(traces("ab")), scene.store.load(RUN)).step == 2

    def test_a_run_that_is_complete_and_deleted(self, scene: Scene) -> None:
        """Its id is free."""
        graph = scene.graph(traces("ab"))

        assert scene.execute(graph).step == scene.execute(graph).step == 2

    def test_without_checkpoints_any_id_is_free(self, memory_scene: Scene) -> None:
        """interval 0 asks no store."""
        fail_at(memory_scene, "b")

        assert memory_scene.execute(memory_scene.graph(traces("ab"), interval=0)).step == 2


def test_resuming_is_the_same_as_never_having_stopped(scene: Scene) -> None:
    """A run that stops after every step ends with the same data, step and node."""
    graph = scene.graph({name: broken_first(trace(name), ValueError("once")) for name in "abcde"}, interval=2)
    with pytest.raises(ExecutionError):
        scene.execute(graph)
    for _ in range(4):
        with pytest.raises(ExecutionError):
            scene.resume(graph)

    final = scene.resume(graph)

    assert (final["trace"], final.step, final.checkpoint_node) == ([*"abcde"], 5, "e")
