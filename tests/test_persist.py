"""Keys that are not saved: what is saved, and what runs again when a run is resumed."""

from __future__ import annotations

import copy
import functools
import pickle
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stategraph import (
    CachePolicy,
    EventType,
    ExecutionError,
    GraphError,
    GraphMismatchError,
    InterruptNode,
    MapNode,
    NodeContext,
    ParallelNode,
    RecomputeError,
    RetryPolicy,
    RunCancelledError,
    RunStatus,
    State,
    StateGraph,
    Updates,
)
from stategraph.stores.memory import MemoryStore
from stategraph.testing import Killed, MortalStore
from tests.conftest import staged
from tests.scenarios import DRIVERS, RUN, Scene, WatchedStore, broken_first, each_pair_of, make_graph, raises, reopened

Log = list[str]


@pytest.fixture(params=each_pair_of("memory", "disk", "sqlite"), ids=" ".join)
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    """Every driver and both kinds of nodes with every store that keeps what a State knows besides its data."""
    yield from staged(request.param, tmp_path)


def fetch(state: State) -> dict[str, Any]:
    """Saved."""
    return {"text": f"all about {state['topic']}"}


def index(state: State) -> dict[str, Any]:
    """Not saved, made of what is."""
    return {"index": [*state["text"].split()]}


def count(state: State) -> dict[str, Any]:
    """Not saved, made of what is not."""
    return {"size": len(state["index"])}


def answer(state: State) -> dict[str, Any]:
    """Saved, made of what is not."""
    return {"answer": f"{state['size']}: {state['index'][-1]}"}


def answer_by_index(state: State) -> dict[str, Any]:
    """Saved, made of one key that is not."""
    return {"answer": state["index"][-1]}


STEPS: dict[str, Any] = {"fetch": fetch, "index": index, "count": count, "answer": answer}
PERSIST = ("topic", "text", "answer")


def logged(steps: Mapping[str, Any], log: Log) -> dict[str, Any]:
    """-> functions that log their names when they are called."""

    def node(name: str, function: Any) -> Any:
        def call(state: State) -> Any:
            log.append(name)
            return function(state)

        return call

    return {name: node(name, function) for name, function in steps.items()}


def fails_in(steps: Mapping[str, Any], name: str) -> dict[str, Any]:
    """-> the functions, one of which fails the first time."""
    return {**steps, name: broken_first(steps[name], ValueError("once"))}


def begin(scene: Scene, steps: Mapping[str, Any], data: Mapping[str, Any], persist: Any = PERSIST, **more: Any) -> Any:
    """-> a graph with a run that has failed once."""
    graph = scene.graph(steps, persist=persist, **more)
    with pytest.raises(ExecutionError, match="once"):
        scene.execute(graph, State(data, run_id=RUN))
    return graph


# --------------------------------------------------------------------------- going on


class TestGoingOn:
    """A run that is resumed ends like one that never stopped."""

    @pytest.mark.parametrize("failing", STEPS)
    @pytest.mark.parametrize(
        "options",
        [
            *({}, {"interval": 3}, {"durability": "async"}, {"durability": "exit"}),
            {"persist": {"except": ["index", "size"]}},
        ],
        ids=str,
    )
    def test_a_run_that_failed(self, scene: Scene, failing: str, options: dict[str, Any]) -> None:
        """Wherever it failed, it ends with the same data, step and node."""
        graph = begin(scene, fails_in(STEPS, failing), {"topic": "states"}, **options)
        assert scene.store.load(RUN).keys() <= set(PERSIST)
        whole = make_graph(STEPS, store=MemoryStore()).execute(State({"topic": "states"}, run_id=RUN))

        final = scene.resume(graph)

        assert dict(final) == dict(whole)
        assert (final.step, final.checkpoint_node, final.status) == (4, "answer", RunStatus.COMPLETED)

    def test_only_the_producers_of_missing_keys_run_again(self, scene: Scene) -> None:
        """In the order of their steps, before the node that comes next."""
        log: Log = []
        graph = begin(scene, logged(fails_in(STEPS, "answer"), log), {"topic": "states"})
        log.clear()

        scene.resume(graph)

        assert log == ["index", "count", "answer"]

    @pytest.mark.parametrize(
        "persist", [[*PERSIST, "mood", "more"], {"except": ["index", "size", "tone"]}], ids=["named", "all but some"]
    )
    def test_keys_that_are_saved(self, scene: Scene, persist: Any) -> None:
        """Save only the chosen keys in every State, defaults and updates included; return all of them."""
        store = WatchedStore(scene.store)
        graph = scene.graph(fails_in(STEPS, "answer"), persist=persist, store=store, preserve=True)
        graph.set_defaults({"tone": "dry", "mood": "good"})
        with pytest.raises(ExecutionError, match="once"):
            scene.execute(graph, State({"topic": "states"}, run_id=RUN))
        final = scene.resume(graph, {"more": 1, "tone": "wet"})

        saved = [state for name, state in store.calls if name in {"save", "amend"}]
        assert all(set(state).isdisjoint({"index", "size", "tone"}) for state in saved)
        assert set(scene.store.load(RUN)) == {*PERSIST, "mood", "more"}
        assert set(final) == {*PERSIST, "index", "size", "tone", "mood", "more"}
        assert type(final) is State

    def test_it_counts_no_steps_and_saves_nothing(self, scene: Scene) -> None:
        """Repeated steps keep their numbers and idempotency keys; observers hear of a recomputation alone."""
        keys: list[str] = []

        def draw(state: State, context: NodeContext) -> dict[str, Any]:
            keys.append(context.idempotency_key)
            return {"index": state["text"].split()}

        events: list[Any] = []

        class Watcher:
            def on_event(self, event: Any) -> None:
                events.append(event)

        store = WatchedStore(scene.store)
        steps = {**fails_in(STEPS, "answer"), "index": draw}
        graph = make_graph(steps, persist=PERSIST, store=store, observer=Watcher())
        with pytest.raises(ExecutionError):
            scene.execute(graph, State({"topic": "states"}, run_id=RUN))
        store.calls.clear()
        events.clear()

        scene.resume(graph)

        assert len(keys) == 2
        assert keys[0] == keys[1]
        assert store.saves == []  # the last step of a run that is forgotten
        again = [(e.data["node"], e.data["step"], e.data["keys"]) for e in events if e.type == EventType.NODE_RECOMPUTE]
        assert again == [("index", 2, ("index",)), ("count", 3, ("size",))]
        assert [e.data["node"] for e in events if e.type == EventType.NODE_START] == ["answer"]

    def test_a_loop(self, scene: Scene) -> None:
        """Only the last producer of a key runs again, on what was there then."""

        def draft(state: State) -> dict[str, Any]:
            return {"draft": f"draft {state.get('round', 0)}"}

        def review(state: State) -> dict[str, Any]:
            return {"round": state.get("round", 0) + 1}

        def tail(state: State) -> dict[str, Any]:
            return {"final": state["draft"]}

        log: Log = []
        steps = {"draft": draft, "review": review, "polish": lambda _: {}, "tail": tail}
        graph = scene.graph(
            logged(fails_in(steps, "polish"), log),
            [
                ("draft", "polish", lambda state: state.get("round", 0) == 2),
                ("draft", "review"),
                ("review", "draft"),
                ("polish", "tail"),
            ],
            persist=["round", "final"],
        )
        with pytest.raises(ExecutionError):
            scene.execute(graph)
        log.clear()

        final = scene.resume(graph)

        assert log == ["draft", "polish", "tail"]
        assert (final["final"], final.step) == ("draft 2", 7)

    def test_a_result_from_a_cache(self, scene: Scene, tmp_path: Path) -> None:
        """It was made of the inputs that its policy names; other keys may be overwritten."""
        steps = {"fetch": fetch, "index": index, "touch": lambda _: {"answer": "?"}, "answer": answer_by_index}
        policies = {"index": {"cache": CachePolicy(["text"], path=tmp_path / "cache", version="1")}}
        data = {"topic": "states", "answer": ""}
        scene.execute(scene.graph(steps, persist=PERSIST, policies=policies), State(data, run_id="warm"))

        graph = begin(scene, fails_in(steps, "answer"), data, policies=policies)

        assert scene.resume(graph)["answer"] == "states"

    def test_a_key_that_was_not_there(self, scene: Scene) -> None:
        """A node may look for what it writes, as long as it did not find it."""
        steps = {"load": lambda state: state if "model" in state else state.set("model", [1]), "use": lambda _: {}}
        graph = begin(scene, fails_in(steps, "use"), {}, ())

        assert scene.resume(graph)["model"] == [1]

    def test_a_key_that_was_removed(self, scene: Scene) -> None:
        """No node makes it again."""
        log: Log = []
        steps = {
            "load": lambda _: {"raw": "a b"},
            "split": lambda state: {"words": state["raw"].split()},
            "drop": lambda state: state.remove("raw"),
            "use": lambda _: {},
        }
        graph = begin(scene, logged(fails_in(steps, "use"), log), {}, ["words"])
        log.clear()

        assert dict(scene.resume(graph)) == {"words": ["a", "b"]}
        assert log == ["use"]

    def test_a_default_of_a_saved_key(self, scene: Scene) -> None:
        """It does not come back once a node has removed it."""
        steps = {"drop": lambda state: state.remove("n"), "look": lambda state: {"found": "n" in state}}
        graph = scene.graph(fails_in(steps, "look"), persist=["n", "found"])
        graph.set_defaults({"n": 1, "unsaved": 2})
        with pytest.raises(ExecutionError):
            scene.execute(graph)

        assert dict(scene.resume(graph)) == {"found": False, "unsaved": 2}

    @pytest.mark.parametrize("node", ["parallel", "map", "graph", "generator", "retry"])
    def test_nodes_of_every_kind(self, scene: Scene, node: str) -> None:
        """They do their work again, without a trace in the store."""
        inner = make_graph({"double": lambda state: {"y": [2 * x for x in state["x"]]}}, store=MemoryStore(), name="in")

        def stream(state: State) -> Iterator[Any]:
            yield from state["x"]
            yield Updates({"y": [2 * x for x in state["x"]]})

        def double(state: State) -> dict[str, Any]:
            return {"y": [2 * x for x in state["x"]]}

        nodes: dict[str, Any] = {
            "parallel": ParallelNode({"one": double, "two": lambda state: state.set("z", len(state["x"]))}),
            "map": MapNode(lambda x: 2 * x, over="x", into="y"),
            "graph": inner.as_node(inputs=["x"], outputs=["y"]),
            "generator": stream,
            "retry": double,
        }
        last = broken_first(lambda state: {"n": len(state["y"])}, ValueError("once"))
        graph = make_graph(
            {"first": lambda _: {"x": [1, 2]}, "node": nodes[node], "last": last},
            policies={"node": {"retry": RetryPolicy(initial_delay=0)}} if node == "retry" else {},
            store=scene.store,
            persist=["x", "n"],
        )
        with pytest.raises(ExecutionError, match="once"):
            scene.execute(graph)

        final = scene.resume(graph)

        assert (final["y"], final["n"], final.step) == ([2, 4], 2, 3)
        assert scene.store.list() == []

    @pytest.mark.parametrize("into", ["saved", "other"])
    def test_parts_of_keys_that_are_not_saved(self, scene: Scene, into: str) -> None:
        """They are not saved either: after a crash they are done again."""
        log: list[int] = []

        def double(x: int) -> int:
            log.append(x)
            if x == 3 and log.count(3) == 1:
                raise ValueError("once")
            return 2 * x

        nodes: dict[str, Any] = {"map": MapNode(double, over="x", into=into, max_workers=1)}
        graph = make_graph(nodes, store=scene.store, persist=["x", "saved"])
        with pytest.raises(ExecutionError, match="once"):
            scene.execute(graph, State({"x": [1, 2, 3]}, run_id=RUN))

        assert scene.resume(graph)[into] == [2, 4, 6]
        assert log == ([1, 2, 3, 3] if into == "saved" else [1, 2, 3, 1, 2, 3])

    def test_a_failure_that_is_handled(self, scene: Scene) -> None:
        """What the handler found is saved, whatever else is not: nothing could compute it again."""
        nodes = {
            "first": raises(ValueError("broken")),
            "handler": lambda state: {"text": state["error"]["message"]},
            "last": broken_first(lambda state: {"n": state["text"]}, ValueError("once")),
        }
        policies = {"first": {"on_error": "handler"}}
        edges = [("first", "last"), ("handler", "last")]
        graph = make_graph(nodes, edges, store=scene.store, persist=["n"], policies=policies)
        with pytest.raises(ExecutionError, match="once"):
            scene.execute(graph)

        assert set(scene.store.load(RUN)) == {"error"}
        assert scene.resume(graph)["n"] == "broken"


# --------------------------------------------------------------------------- input, updates


class TestGiven:
    """Keys that no node has written, and updates."""

    def test_missing_input_comes_through_updates(self, scene: Scene) -> None:
        """Every time the run is resumed, and for what was made of it."""
        steps = {
            "open": lambda state: {"client": f"client of {state['secret']}"},
            "a": broken_first(lambda _: {"a": 1}, ValueError("once")),
            "b": broken_first(lambda state: {"b": state["client"]}, ValueError("once")),
        }
        graph = begin(scene, steps, {"secret": "s"}, ["a", "b"])
        before = scene.store.load(RUN)
        with pytest.raises(
            RecomputeError, match=r"'secret'.*came with the input.*resume\('run', \{'secret': \.\.\.\}\)"
        ):
            scene.resume(graph)
        assert scene.store.load(RUN) == before
        with pytest.raises(ExecutionError, match="once"):
            scene.resume(graph, {"secret": "s"})
        with pytest.raises(RecomputeError, match="secret"):
            scene.resume(graph)

        assert scene.resume(graph, {"secret": "s"})["b"] == "client of s"

    def test_an_update_changes_what_is_there_now(self, scene: Scene) -> None:
        """As in a graph that saves everything: what was made of the old value stays as it is."""
        graph = begin(scene, fails_in(STEPS, "answer"), {"topic": "states"})

        final = scene.resume(graph, {"text": "another", "index": ["x"]})

        assert (final["text"], final["index"], final["size"], final["answer"]) == ("another", ["x"], 3, "3: x")

    def test_after_an_update_what_was_made_of_the_old_value_is_refused(self, scene: Scene) -> None:
        """It would be made of the new one; given, it is taken."""
        graph = begin(
            scene,
            {**STEPS, "answer": broken_first(broken_first(answer, ValueError("once")), ValueError("once"))},
            {"topic": "states"},
        )
        with pytest.raises(ExecutionError):
            scene.resume(graph, {"text": "another"})

        with pytest.raises(RecomputeError, match=r"'index' \(node 'index'.*had read 'text', which was overwritten"):
            scene.resume(graph)

        assert scene.resume(graph, {"index": ["all", "about", "states"]})["answer"] == "3: states"

    def test_executing_a_loaded_state(self, scene: Scene) -> None:
        """The keys that it lacks are computed first, of what was saved and not of what was changed."""
        steps = {"index": index, "use": lambda state: {"log": [*state.get("log", ()), state["index"][-1]]}}
        graph = scene.graph(steps, persist=["text", "log"], preserve=True)
        scene.execute(graph, State({"text": "a b"}, run_id=RUN))
        seen: list[Any] = []

        def note(state: State) -> dict[str, Any]:
            seen.append(dict(state))
            return {}

        other = scene.graph({"index": note, "use": steps["use"]}, persist=["text", "log"])

        with pytest.raises(RecomputeError, match="does not write"):
            scene.execute(other, scene.store.load(RUN).set("text", "c d"))
        assert seen == [{"text": "a b", "log": ["b"]}]
        final = scene.execute(graph, scene.store.load(RUN).set("text", "c d"))

        assert (final["index"], final["log"], final.step) == (["c", "d"], ["b", "d"], 4)

    def test_executing_a_final_state(self, scene: Scene) -> None:
        """It has all of its keys; none is computed again."""
        log: Log = []
        graph = scene.graph(logged(STEPS, log), persist=PERSIST)
        final = scene.execute(graph, State({"topic": "states"}, run_id=RUN))
        log.clear()

        again = scene.execute(graph, final.set("topic", "runs"))

        assert log == [*STEPS]
        assert (again["answer"], again.step) == ("3: runs", 8)

    def test_an_answer_that_is_not_saved(self, scene: Scene) -> None:
        """It is given again with the next resume."""
        nodes: dict[str, Any] = {
            "ask": InterruptNode(None, "password"),
            "use": broken_first(lambda state: {"n": len(state["password"])}, ValueError("once")),
        }
        graph = make_graph(nodes, store=scene.store, persist=["n"])
        assert scene.execute(graph).status is RunStatus.PAUSED
        with pytest.raises(ExecutionError):
            scene.resume(graph, {"password": "abc"})
        assert "password" not in scene.store.load(RUN)
        with pytest.raises(RecomputeError, match="password"):
            scene.resume(graph)

        assert scene.resume(graph, {"password": "abc"})["n"] == 3

    def test_a_paused_run(self, scene: Scene) -> None:
        """What is missing is computed before it goes on, with the answer or without."""
        log: Log = []
        steps = logged({"index": index, "use": lambda state: {"n": [state["ok"], *state["index"]]}}, log)
        nodes: dict[str, Any] = {"index": steps["index"], "ask": InterruptNode("text", "ok"), "use": steps["use"]}
        graph = make_graph(nodes, store=scene.store, persist=["text", "ok", "n"])
        scene.execute(graph, State({"text": "a b"}, run_id=RUN))
        log.clear()

        assert scene.resume(graph, {"ok": True})["n"] == [True, "a", "b"]
        assert log == ["index", "use"]

    @pytest.mark.parametrize("interval", [0, 1])
    def test_a_graph_within(self, scene: Scene, interval: int) -> None:
        """It saves what its own config says, and gets its input from the outer run."""
        log: Log = []
        inner = make_graph(
            logged(
                {
                    "x": lambda state: {"y": state["x"] + 1},
                    "z": broken_first(lambda state: {"z": state["y"]}, ValueError("once")),
                },
                log,
            ),
            store=MemoryStore(),
            name="in",
            interval=interval,
            persist=["z"],
        )
        nodes: dict[str, Any] = {"first": lambda _: {"x": 1}, "inner": inner.as_node(inputs=["x"], outputs=["z"])}
        graph = make_graph(nodes, store=scene.store, persist=["z"])
        with pytest.raises(ExecutionError):
            scene.execute(graph)
        assert dict(scene.store.load(f"{RUN}/#2/inner")) == {}
        log.clear()

        assert scene.resume(graph)["z"] == 2
        assert log == ["x", "z"]

    def test_keys_that_a_graph_within_leaves_alone(self, scene: Scene) -> None:
        """It has not written them, though it hands them back after a resume as other objects."""
        inner = make_graph(
            {"a": scene.as_node(lambda _: {"done": 1}), "b": scene.as_node(broken_first(lambda _: {}, OSError("x")))},
            store=scene.store,
            name="inner",
        )
        nodes = {"make": scene.as_node(lambda _: {"big": [[1], {"k": {1}}]}), "in": inner.as_node()}
        graph = make_graph(nodes, store=scene.store, persist=["docs", "done"])
        with pytest.raises(ExecutionError):
            scene.execute(graph, State({"docs": [["a"]]}, run_id=RUN))

        final = scene.resume(graph)

        assert dict(final) == {"docs": [["a"]], "big": [[1], {"k": {1}}], "done": 1}

    def test_a_graph_within_that_is_complete(self, play: Scene) -> None:
        """If the process dies before the step is saved that it is, what comes out of it is all there."""

        class Deadly(MortalStore):
            def save(self, state: State) -> None:
                if (state.run_id, state.step) == (RUN, 2):
                    self.die()
                super().save(state)

        steps: Log = []
        inner = make_graph(
            logged({"x": lambda _: {"kept": 1}, "y": lambda state: {"lost": state["kept"] + 1}}, steps),
            store=MemoryStore(),
            name="in",
            persist=["kept"],
        )
        nodes = {"first": lambda _: {}, "inner": inner.as_node(outputs=["kept", "lost"]), "end": lambda _: {}}
        with pytest.raises(Killed):
            play.execute(make_graph(nodes, store=Deadly(play.store)))
        steps.clear()

        final = play.resume(make_graph(nodes, store=reopened(play.store)))

        assert (final["kept"], final["lost"], steps) == (1, 2, ["y"])


# --------------------------------------------------------------------------- refusals


class TestRefusals:
    """A value that might be another is not computed again."""

    def test_what_it_had_read_was_overwritten(self, scene: Scene) -> None:
        """No node runs; the error names key, node, reason and way out; the run stays as it is."""
        log: Log = []
        steps = {"index": index, "edit": lambda _: {"text": "edited"}, "use": lambda state: {"n": len(state["index"])}}
        graph = begin(scene, logged(fails_in(steps, "use"), log), {"text": "a b c"}, ["text", "n"])
        before = scene.store.load(RUN)
        log.clear()

        with pytest.raises(RecomputeError) as caught:
            scene.resume(graph)

        assert log == []
        assert caught.value.reasons.keys() == {"index"}
        assert "node 'index', which wrote it, had read 'text'" in str(caught.value)
        assert "resume('run', {'index': ...})" in str(caught.value)
        assert scene.store.load(RUN) == before
        assert scene.resume(graph, {"index": ["a", "b", "c"]})["n"] == 3

    @pytest.mark.parametrize(
        "read",
        [
            lambda state: state.get("n"),
            lambda state: state["n"],
            lambda state: "n" in state,
            dict,
            lambda state: {**state},
            lambda state: list(state.items()),
            len,
            lambda state: [*state.values()],
            lambda state: state.set("a", 1)["n"],
            lambda state: state.update({"a": 1}).merge({"b": 2}).clone().set_checkpoint_node("x")["n"],
            lambda state: state == State(),
            repr,
            lambda state: copy.deepcopy(state)["n"],
            lambda state: pickle.loads(pickle.dumps(state))["n"],
            lambda state: State().merge(state)["n"],
        ],
    )
    def test_every_way_of_reading_is_noticed(self, memory_scene: Scene, read: Callable[[State], Any]) -> None:
        """Of the State that a node is given, and of those that it makes of it."""
        scene = memory_scene
        steps = {
            "a": lambda state: {"x": str(read(state))},
            "b": lambda state: {"n": state["n"] + 1},
            "c": lambda _: {},
        }
        graph = begin(scene, fails_in(steps, "c"), {"n": 1}, ["n"])

        with pytest.raises(RecomputeError, match="'n'"):
            scene.resume(graph)

    def test_a_producer_that_is_gone(self, scene: Scene) -> None:
        """The graph has changed."""
        begin(scene, fails_in(STEPS, "count"), {"topic": "states"})
        changed = {name: function for name, function in STEPS.items() if name != "index"}
        graph = scene.graph(
            {"fetch": fetch, "other": index, **changed},
            [("fetch", "count"), ("fetch", "other"), ("other", "count"), ("count", "answer")],
            persist=PERSIST,
        )

        with pytest.raises(GraphMismatchError):
            scene.resume(graph)
        moved = scene.graph({"fetch": fetch, "other": index, "count": count, "answer": answer}, persist=PERSIST)

        assert scene.resume(moved, migrate={"index": "other"})["answer"] == "3: states"

    def test_a_producer_that_fails(self, scene: Scene) -> None:
        """Its exception is the cause; the run stays as it is and can be resumed."""
        left = [0, 1, 0]

        def flaky(state: State) -> dict[str, Any]:
            if left.pop(0):
                raise OSError("gone")
            return index(state)

        graph = begin(scene, {**fails_in(STEPS, "answer"), "index": flaky}, {"topic": "states"})
        before = scene.store.load(RUN)

        with pytest.raises(RecomputeError, match="'index' fails when it runs again: OSError: gone") as caught:
            scene.resume(graph)

        assert isinstance(caught.value.__cause__, OSError)
        assert scene.store.load(RUN) == before
        assert scene.resume(graph)["answer"] == "3: states"

    def test_a_run_that_is_cancelled(self, scene: Scene) -> None:
        """It stays as it is."""
        graph = begin(scene, fails_in(STEPS, "answer"), {"topic": "states"})
        before, cancel = scene.store.load(RUN), threading.Event()
        cancel.set()

        with pytest.raises(RunCancelledError):
            scene.resume(graph, cancel=cancel)

        assert scene.store.load(RUN) == before

    @pytest.mark.parametrize("result", [lambda state: {"a": 1, "b": 2}, lambda state: state.update(a=1, b=2)])
    def test_a_node_that_writes_both_kinds(self, scene: Scene, result: Any) -> None:
        """The error says which, and what to do; the last completed State is kept."""
        graph = scene.graph({"first": lambda _: {"n": 1}, "both": result}, persist=["a", "n"])

        with pytest.raises(ExecutionError, match=r"'both'.*saved \('a'\).*not \('b'\).*two nodes.*checkpoint\.persist"):
            scene.execute(graph)

        assert (dict(scene.store.load(RUN)), scene.store.load(RUN).step) == ({"n": 1}, 1)

    @pytest.mark.parametrize("keys", [{"persist": ["a"]}, {"persist": {"except": ["b"]}}], ids=str)
    def test_a_node_that_is_known_to_write_both_kinds(self, keys: dict[str, Any]) -> None:
        """It is refused when the graph is validated."""
        inner = make_graph({"a": lambda _: {"a": 1, "b": 2}}, store=MemoryStore(), name="in")
        nodes: dict[str, Any] = {"node": inner.as_node(outputs=["a", "b"])}
        graph = make_graph(nodes, store=MemoryStore(), **keys)

        with pytest.raises(GraphError, match=r"'node'.*\('a'\).*\('b'\)"):
            graph.validate()

    def test_a_loaded_state_in_a_graph_that_saves_nothing(self, scene: Scene) -> None:
        """What its keys were made of is not known there."""
        begin(scene, fails_in(STEPS, "answer"), {"topic": "states"})

        with pytest.raises(RecomputeError):
            scene.execute(scene.graph(STEPS, persist=PERSIST, interval=0), scene.store.load(RUN))


# --------------------------------------------------------------------------- changing what is saved


class TestChangedConfig:
    """A run goes on in a graph that saves other keys."""

    @pytest.mark.parametrize(
        "persist", [None, (), ("topic",), ("index",), (*PERSIST, "index"), (*PERSIST, "index", "size")]
    )
    @pytest.mark.parametrize("old", [None, (), PERSIST, ("index",)])
    def test_other_keys(self, memory_scene: Scene, old: Any, persist: Any) -> None:
        """With what is missing given, it ends the same; where the old keys and the new ones do not suffice, a further
        crash is refused."""
        scene = memory_scene
        suffices = persist is None or persist == old or "size" in persist or (old == ("index",) and "index" in persist)
        twice = {**STEPS, "answer": broken_first(broken_first(answer, ValueError("once")), ValueError("once"))}
        begin(scene, twice, {"topic": "states"}, old)
        graph = scene.graph(twice, persist=persist)
        with pytest.raises(ExecutionError, match="once"):
            scene.resume(graph, {"topic": "states"})
        if suffices:
            assert scene.resume(graph, {"topic": "states"})["answer"] == "3: states"
        else:
            with pytest.raises(RecomputeError):
                scene.resume(graph, {"topic": "states"})


# --------------------------------------------------------------------------- States that note reads


class TestStatesThatNoteReads:
    """A node gets a State that notes which keys it reads."""

    @pytest.mark.parametrize(
        "result",
        [
            lambda state: state,
            lambda state: state.set("x", 1),
            lambda state: state.update(x=1),
            lambda state: state.merge({"x": 1}),
            lambda state: state.clone(),
            copy.copy,
            lambda state: state.set("x", 1).remove("x"),
        ],
    )
    def test_it_does_not_leave_its_node(self, scene: Scene, result: Callable[[State], State]) -> None:
        """Whatever a node makes of it."""
        seen: list[State] = []

        def passes(state: State) -> bool:
            seen.append(state)
            return True

        store = WatchedStore(scene.store)
        graph = scene.graph({"a": result, "b": lambda _: {}}, [("a", "b", passes)], store=store, persist=[])

        final = scene.execute(graph)

        states = [final, *seen, *(state for name, state in store.calls if name == "save")]
        assert {type(state) for state in states} == {State}


def test_without_checkpoints_it_has_no_effect() -> None:
    """Interval 0 saves nothing, and so nothing is computed again; a node may write what it likes."""
    graph = make_graph({"a": lambda _: {"a": 1, "b": 2}}, store=MemoryStore(), interval=0, persist=["a"])

    assert dict(graph.execute(State())) == {"a": 1, "b": 2}


# --------------------------------------------------------------------------- anything goes

KEYS = "pqrxyz"
SAVED = frozenset("pqr")


@st.composite
def programs(draw: Any) -> list[tuple[Any, ...]]:
    """-> nodes: what each reads, how it reads, what it writes or removes, and whether it goes back once."""
    nodes = []
    for _ in range(draw(st.integers(2, 6))):
        kind = draw(st.sampled_from(["pqr", "xyz"]))
        nodes.append(
            (
                draw(st.lists(st.sampled_from(KEYS), max_size=2)),
                draw(st.sampled_from(["get", "get", "get", "in", "all"])),
                draw(st.lists(st.sampled_from(kind), max_size=2, unique=True)),
                draw(st.sampled_from(["mapping", "state", "remove"])),
                draw(st.booleans()),
            )
        )
    return nodes


Crashes = list[tuple[int, dict[str, str]]]


def node_of(number: int, program: tuple[Any, ...], crashes: Crashes) -> Any:
    """-> a deterministic node; it raises where the run stands at the step of the next crash."""
    reads, how, writes, result, _ = program

    def node(state: State) -> Any:
        if crashes and crashes[0][0] == state.step:
            raise ValueError("once")
        if how == "all":
            seen = str(sorted((key, value) for key, value in state.items()))
        else:
            seen = str([state.get(key) if how == "get" else key in state for key in reads])
        if result == "remove":
            for key in writes:
                state = state.remove(key) if key in state else state
            return state
        updates = dict.fromkeys(writes, f"{number}:{crc32(seen.encode())}")
        return updates if result == "mapping" else state.update(updates)

    return node


def edges_of(program: list[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """-> a chain with some edges back."""
    for number, one in enumerate(program[:-1]):
        if one[4]:
            yield f"n{number}", f"n{max(0, number - 2)}", lambda state: state.step < 9
        yield f"n{number}", f"n{number + 1}"


def run_program(
    program: list[tuple[Any, ...]], crashes: Crashes, data: dict[str, str], call: Any, persist: Any
) -> State | None:
    """-> the final State after all crashes, None where resuming was refused."""
    left, store = list(crashes), MemoryStore()
    nodes = {f"n{number}": node_of(number, one, left) for number, one in enumerate(program)}
    graph = make_graph(nodes, edges_of(program), store=store, persist=persist)
    begin: Callable[[], State] = functools.partial(call, graph, "execute", State(data, run_id=RUN))
    while True:
        try:
            return begin()
        except ExecutionError as error:
            if not isinstance(error.__cause__, ValueError) or (persist and not set(store.load(RUN)) <= SAVED):
                raise
        except RecomputeError:
            return None
        begin = functools.partial(resume_program, graph, call, left.pop(0)[1], data)


def resume_program(graph: StateGraph, call: Any, updates: dict[str, str], data: dict[str, str]) -> State:
    """-> the State of the run, resumed with as much of its input as it asks for."""
    try:
        return call(graph, "resume", RUN, updates)  # type: ignore[no-any-return]
    except RecomputeError as error:
        origins = graph.store.load(RUN).progress.origins  # type: ignore[union-attr]
        if not all((origins[key].node, origins[key].step) == ("", 0) for key in error.reasons):
            raise
        given = {key: data[key] for key in error.reasons}
        return call(graph, "resume", RUN, {**given, **updates})  # type: ignore[no-any-return]


_UPDATES = st.dictionaries(st.sampled_from("pqr"), st.sampled_from(["0", "u"]), max_size=1)


@settings(max_examples=60, deadline=None)
@given(
    program=programs(),
    crashes=st.lists(st.tuples(st.integers(0, 12), _UPDATES), max_size=3),
    data=st.dictionaries(st.sampled_from(KEYS), st.sampled_from(["0", "1"]), max_size=4),
    driver=st.sampled_from(["sync", "sync", "sync", "async"]),
    persist=st.sampled_from([sorted(SAVED), {"except": sorted({*KEYS} - SAVED)}]),
)
def test_a_resumed_run_ends_like_one_that_saves_everything_or_is_refused(
    program: list[tuple[Any, ...]], crashes: Crashes, data: dict[str, str], driver: str, persist: Any
) -> None:
    """Never with another State, whatever nodes read, write and remove, wherever they crash, and with updates."""
    crashes.sort(key=lambda crash: crash[0])
    whole = run_program(program, crashes, data, DRIVERS["sync"], None)
    assert whole is not None

    final = run_program(program, crashes, data, DRIVERS[driver], persist)

    if final is not None:
        assert (dict(final), final.step, final.checkpoint_node) == (dict(whole), whole.step, whole.checkpoint_node)
    if not any(updates for _, updates in crashes):
        assert dict(whole) == dict(run_program(program, [], data, DRIVERS["sync"], persist) or {})
