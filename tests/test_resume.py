"""The rules of resume, and of executing a loaded State."""

from __future__ import annotations

from typing import Any

import pytest

from stategraph import (
    CheckpointingDisabledError,
    CheckpointNotFoundError,
    ExecutionError,
    GraphMismatchError,
    RunCompleteError,
    RunExistsError,
    RunStatus,
    State,
    key_exists,
)
from tests.scenarios import RUN, Scene, WatchedStore, raises, trace, traces


def fail_at(scene: Scene, node: str, names: str = "abc", **options: Any) -> None:
    """Leave a run that failed at a node of a chain."""
    with pytest.raises(ExecutionError):
        scene.execute(scene.graph({**traces(names), node: raises(ValueError("once"))}, **options))


class TestRefusals:
    """When a run cannot be resumed."""

    def test_checkpointing_is_off(self, memory_scene: Scene) -> None:
        """The error names the option, and the store is not used."""
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

    def test_a_complete_run(self, scene: Scene) -> None:
        """There is nothing to do; the error says what can be done."""
        scene.execute(scene.graph(traces("ab"), preserve=True))
        before = scene.store.load(RUN)

        with pytest.raises(RunCompleteError, match="'b'"):
            scene.resume(scene.graph(traces("ab"), preserve=True))

        assert scene.store.load(RUN) == before

    def test_a_run_of_another_graph(self, scene: Scene) -> None:
        """A run of another graph is refused even with allow_changed; the error has both names."""
        fail_at(scene, "b")

        with pytest.raises(GraphMismatchError, match=r"'flow'.*'other'"):
            scene.resume(scene.graph(traces("abc"), name="other"), allow_changed=True)

    @pytest.mark.parametrize(
        ("updates", "named"), [([("n", 1)], "mapping"), ("n", "mapping"), (5, "mapping"), ({1: 2}, "key")]
    )
    def test_wrong_updates(self, memory_scene: Scene, updates: Any, named: str) -> None:
        """Updates that are no mapping of str keys are refused, and the run stays as it is."""
        fail_at(memory_scene, "b")

        with pytest.raises(TypeError, match=named):
            memory_scene.resume(memory_scene.graph(traces("abc")), updates)

        assert memory_scene.store.load(RUN).status is RunStatus.FAILED


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

    def test_changes_that_a_resume_accepts(self, memory_scene: Scene) -> None:
        """The code of nodes and predicates, the order of nodes, and that of edges out of different nodes."""
        scene = memory_scene
        edges = [("a", "b", lambda state: False), ("a", "c"), ("b", "d"), ("c", "d")]
        with pytest.raises(ExecutionError):
            scene.execute(scene.graph({**traces("ab"), "c": raises(ValueError()), "d": trace("d")}, edges))
        again = [("c", "d"), ("a", "b", lambda state: True), ("b", "d"), ("a", "c")]

        final = scene.resume(scene.graph({name: trace(name) for name in "acbd"}, again))

        assert final["trace"] == ["a", "b", "d"]


def make_changed(scene: Scene, names: str, edges: list[tuple[Any, ...]]) -> Any:
    """Return a graph of these edges, of which a fourth part is a name."""
    graph = scene.graph(traces(names), [], exits="d")
    for source, target, *rest in edges:
        graph.add_edge(source, target, *rest[:1], name=rest[1] if rest[1:] else None)
    return graph


class TestWhereItGoesOn:
    """The step after the one that is saved."""

    def test_a_state_written_by_hand(self, scene: Scene) -> None:
        """A State without a graph continues in any graph with its node."""
        scene.store.save(State({"trace": ["x"]}, run_id=RUN, checkpoint_node="b", step=7))

        final = scene.resume(scene.graph(traces("abc"), name="any"))

        assert (final["trace"], final.step, final.graph) == (["x", "c"], 8, "any")

    @pytest.mark.parametrize("preserve", [True, False])
    def test_an_active_state_at_an_exit_point(self, scene: Scene, preserve: bool) -> None:
        """The process died before it could say so: the run completes, and no node runs."""
        scene.store.save(State({"n": 1}, run_id=RUN, checkpoint_node="c", step=3))

        final = scene.resume(scene.graph(dict.fromkeys("abc", raises(AssertionError())), preserve=preserve))

        assert (final["n"], final.step, final.status) == (1, 3, RunStatus.COMPLETED)
        assert scene.store.list() == ([RUN] if preserve else [])


class TestUpdates:
    """Data that a resume brings along."""

    def test_they_are_laid_over_the_data(self, scene: Scene) -> None:
        """The next edge and the next node see them."""
        fail_at(scene, "b")

        final = scene.resume(scene.graph(traces("abc")), {"trace": ["mended"], "new": 1})

        assert dict(final) == {"trace": ["mended", "b", "c"], "new": 1}

    @pytest.mark.parametrize("interval", [1, 10])
    def test_they_are_durable_before_the_next_node_runs(self, scene: Scene, interval: int) -> None:
        """Updates are saved before the next node runs, and need not be given again."""
        fail_at(scene, "b", interval=interval)
        found: list[State] = []

        def look(state: State) -> dict[str, Any]:
            found.append(scene.store.load(RUN))
            return {}

        scene.resume(scene.graph({"a": trace("a"), "b": look, "c": trace("c")}, interval=interval), {"n": 1})

        assert [(state["n"], state.step, state.status, state.error) for state in found] == [
            (1, 1, RunStatus.ACTIVE, None)
        ]


class TestExecuteAgain:
    """Executing a State that has a past."""

    def test_a_completed_run_goes_on(self, scene: Scene) -> None:
        """A completed run continues with new input at the entry point, and its steps count on."""
        graph = scene.graph(traces("ab"), preserve=True)
        scene.execute(graph)

        final = scene.execute(graph, scene.store.load(RUN).set("question", 2))

        assert dict(final) == {"trace": ["a", "b", "a", "b"], "question": 2}
        assert (final.step, final.run_id) == (4, RUN)
        assert scene.store.load(RUN) == final

    def test_a_failed_run_starts_over(self, scene: Scene) -> None:
        """With restart=True a failed run starts over with its data; otherwise it is refused."""
        fail_at(scene, "c")
        failed = scene.store.load(RUN)

        with pytest.raises(RunExistsError, match=r"failed.*resume\('run'\).*turn\('run', .*restart=True"):
            scene.execute(scene.graph(traces("abc")), failed)
        assert scene.store.load(RUN) == failed
        final = scene.execute(scene.graph(traces("abc")), failed, restart=True)

        assert (final["trace"], final.step) == (["a", "b", "a", "b", "c"], 5)

    def test_a_run_that_exists(self, scene: Scene) -> None:
        """A fresh State of its id is refused, no node runs, and the error names resume."""
        fail_at(scene, "b")
        before = scene.store.load(RUN)

        with pytest.raises(RunExistsError, match="resume"):
            scene.execute(scene.graph(dict.fromkeys("abc", raises(AssertionError()))), State({"n": 1}, run_id=RUN))

        assert scene.store.load(RUN) == before
