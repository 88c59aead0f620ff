"""Keys that are not saved, and the nodes that compute them again at a resume."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stategraph import (
    Event,
    ExecutionError,
    GraphError,
    GraphMismatchError,
    InterruptNode,
    MapNode,
    Observer,
    ParallelNode,
    RecomputeError,
    RunStatus,
    State,
    StateGraph,
    Updates,
)
from stategraph.stores.memory import MemoryStore
from stategraph.stores.sqlite import SqliteStore
from tests.conftest import SCENES, make_store, staged
from tests.pairs import every_pair
from tests.scenarios import DRIVERS, RUN, Scene, broken_first, each_pair_of, make_graph, raises
from tests.stores.inside import kept_in

Log = list[str]


def raised(error: Exception) -> Any:
    raise error


@pytest.fixture(params=each_pair_of("memory", "sqlite"), ids=" ".join)
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    """Every driver and both kinds of nodes with every store that keeps what a State knows besides its data."""
    yield from staged(request.param, tmp_path)


def fetch(state: State) -> dict[str, Any]:
    """Saved."""
    return {"text": f"all about {state['topic']}"}


def index(state: State) -> dict[str, Any]:
    """Return an unsaved key made of a saved one."""
    return {"index": [*state["text"].split()]}


def count(state: State) -> dict[str, Any]:
    """Return an unsaved key made of an unsaved one."""
    return {"size": len(state["index"])}


def answer(state: State) -> dict[str, Any]:
    """Return a saved key made of unsaved ones."""
    return {"answer": f"{state['size']}: {state['index'][-1]}"}


STEPS: dict[str, Any] = {"fetch": fetch, "index": index, "count": count, "answer": answer}
PERSIST = ("topic", "text", "answer")


def logged(steps: Mapping[str, Any], log: Log) -> dict[str, Any]:
    """Return functions that log their names when they are called."""

    def node(name: str, function: Any) -> Any:
        def call(state: State) -> Any:
            log.append(name)
            return function(state)

        return call

    return {name: node(name, function) for name, function in steps.items()}


def fails_in(steps: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the functions, one of which fails the first time."""
    return {**steps, name: broken_first(steps[name], ValueError("once"))}


def begin(scene: Scene, steps: Mapping[str, Any], data: Mapping[str, Any], persist: Any = PERSIST, **more: Any) -> Any:
    """Return a graph with a run that has failed once."""
    graph = scene.graph(steps, persist=persist, **more)
    with pytest.raises(ExecutionError, match="once"):
        scene.execute(graph, State(data, run_id=RUN))
    return graph


# --------------------------------------------------------------------------- going on


class TestGoingOn:
    """A run that is resumed ends like one that never stopped."""

    @every_pair(
        failing=STEPS,
        options=[
            *({}, {"interval": 3}, {"durability": "async"}, {"durability": "exit"}),
            {"persist": {"except": ["index", "size"]}},
        ],
        scene=SCENES,
        indirect=["scene"],
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
        """The producers of missing keys run again in the order of their steps, before the next node."""
        log: Log = []
        graph = begin(scene, logged(fails_in(STEPS, "answer"), log), {"topic": "states"})
        log.clear()

        scene.resume(graph)

        assert log == ["index", "count", "answer"]

    def test_a_failure_that_is_handled(self, scene: Scene) -> None:
        """The error for a handler is always saved, as nothing could compute it again."""
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
        """Each resume needs the missing input as an update, and computes the keys made of it."""
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


# --------------------------------------------------------------------------- refusals


class TestRefusals:
    """A value that might be another is not computed again."""

    def test_a_key_whose_source_was_overwritten(self, scene: Scene) -> None:
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
        """The exception of a producer is the cause; the run stays as it is and can be resumed."""
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


# --------------------------------------------------------------------------- changing `persist`


# --------------------------------------------------------------------------- States that note reads


TOKEN = "sk-live-1234567890abcdef" * 4
KNOWN = {"keys": [TOKEN], "pin": 12345, "flag": True}


def refused(value: object) -> Exception:
    return PermissionError(f"401: Bearer {value}")


@every_pair(
    persist=[{"except": ["token", "known"]}, ["topic", "done", "error"]],
    failing={
        "its text": lambda state, fail: fail(refused(state["token"])),
        "a part of it": lambda state, fail: fail(refused(state["token"][:40])),
        "a key": lambda state, fail: fail(KeyError(state["token"])),
        "within a value": lambda state, fail: fail(refused(state["known"]["keys"][0])),
        "in a group": lambda state, fail: fail(ExceptionGroup(f"both {state['token']}", [ValueError()] * 2)),
    }.items(),
    place=["node", "handled", "part", "collected part", "predicate"],
)
def test_values_that_are_not_saved_are_in_no_saved_error(
    place: str, failing: Any, persist: Any, tmp_path: Path
) -> None:
    """An exception that names them is saved without them: no byte of them is in the store."""
    function = functools.partial(failing[1], fail=raised)
    item = lambda item: function(State({"token": TOKEN, "known": KNOWN}))  # noqa: E731
    made: dict[str, dict[str, Any]] = {
        "part": {"a": MapNode(item, over="topic", into="done")},
        "collected part": {"a": MapNode(item, over="topic", into="done", on_error="collect")},
        "predicate": {"a": lambda state: {}, "b": lambda state: {}},
    }
    nodes = made.get(place, {"a": function})
    edges = [("a", "b", function)] if place == "predicate" else []
    policies: Any = {}
    if place == "handled":
        nodes["h"], policies = (lambda state: {}), {"a": {"on_error": "h"}}
    path = tmp_path / "runs.db"
    with SqliteStore(path) as store:
        options: dict[str, Any] = {"persist": persist, "preserve": True, "retention": "full", "policies": policies}
        graph = make_graph(
            nodes, edges, store=store, exits=[name for name in nodes if name != "a" or not edges], **options
        )
        with suppress(ExecutionError):
            graph.execute(State({"topic": [1], "token": TOKEN, "known": KNOWN}, run_id=RUN))
        assert "not saved>" in f"{store.load(RUN).error} {dict(store.load(RUN))}"

    written = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert TOKEN[:20].encode() not in written


def test_a_failed_branch_fails_by_its_own_error() -> None:
    """Keeping that it failed does not look for the keys that it wrote."""
    parallel = ParallelNode({"left": lambda _: {"n": 1 / 0}, "right": lambda _: {}})
    graph = make_graph({"a": parallel}, store=MemoryStore(), interval=1, persist=["n"])

    with pytest.raises(ExecutionError) as failed:
        graph.execute(State({"n": 1}))

    assert isinstance(failed.value.__cause__, ExceptionGroup)


def test_without_checkpoints_it_has_no_effect() -> None:
    """`persist` has no effect with interval 0, which saves nothing."""
    graph = make_graph({"a": lambda _: {"a": 1, "b": 2}}, store=MemoryStore(), interval=0, persist=["a"])

    assert dict(graph.execute(State())) == {"a": 1, "b": 2}


# --------------------------------------------------------------------------- anything goes

KEYS = "pqrxyz"
SAVED = frozenset("pqr")


@st.composite
def programs(draw: Any) -> list[tuple[Any, ...]]:
    """Return nodes: the keys that each reads, how it reads them, its changes, and whether it loops once."""
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
    """Return a deterministic node; it raises where the run stands at the step of the next crash."""
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
    """Yield a chain with some edges back."""
    for number, one in enumerate(program[:-1]):
        if one[4]:
            yield f"n{number}", f"n{max(0, number - 2)}", lambda state: state.step < 9
        yield f"n{number}", f"n{number + 1}"


def run_program(
    program: list[tuple[Any, ...]], crashes: Crashes, data: dict[str, str], call: Any, persist: Any
) -> State | None:
    """Return the final State after all crashes, None where resuming was refused."""
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
    """Return the State of the run, resumed with as much of its input as it asks for."""
    try:
        return call(graph, "resume", RUN, updates)  # type: ignore[no-any-return]
    except RecomputeError as error:
        origins = graph.store.load(RUN).progress.origins  # type: ignore[union-attr]
        if not all((origins[key].node, origins[key].step) == ("", 0) for key in error.reasons):
            raise
        given = {key: data[key] for key in error.reasons}
        return call(graph, "resume", RUN, {**given, **updates})  # type: ignore[no-any-return]


_UPDATES = st.dictionaries(st.sampled_from("pqr"), st.sampled_from(["0", "u"]), max_size=1)


@settings(max_examples=25)
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


@pytest.mark.parametrize("kind", ["sqlite", "disk", "postgres", "redis"])
def test_values_that_are_not_saved_are_in_nothing_else(kind: str, tmp_path: Path) -> None:
    """Not in the reason and the value of a pause, in a status, in the chunks of a node that failed, and in events. The
    caller sees them."""
    events, failing = list[Any](), [True]

    class Recorder(Observer):
        def on_event(self, event: Event) -> None:
            events.append((event.type, dict(event.data)))

    def ask(state: State, context: Any) -> Any:
        context.status(f"with {state['token']}")
        if "ok" in state:
            return {"done": 1}
        return state.paused(f"is {state['token']} right?", {"it": [state["token"]]}, response_param="ok")

    def emit(state: State) -> Any:
        yield state["token"]
        if failing:
            raise ValueError(f"no {state['token']}")
        yield Updates({"n": 1})

    nodes = {"ask": ask, "emit": emit, "interrupt": InterruptNode("token", response_param="sure")}
    with make_store(kind, tmp_path) as store:
        options: dict[str, Any] = {"persist": {"except": ["token"]}, "preserve": True, "retention": "full"}
        graph = make_graph(nodes, store=store, observer=Recorder(), **options)
        state = graph.execute(State({"token": TOKEN}, run_id=RUN))
        assert state.pause is not None
        assert (TOKEN in state.pause.reason, state.pause.value) == (True, {"it": [TOKEN]})
        pause = store.load(RUN).pause
        assert pause is not None
        assert (pause.id, pause.value) == (state.pause.id, {"it": ["<token, not saved>"]})
        with pytest.raises(ExecutionError, match="not saved>"):
            graph.resume(RUN, {"token": TOKEN, "ok": True}, pause=pause)
        failing.clear()
        asked = graph.resume(RUN, {"token": TOKEN})
        assert asked.pause is not None
        assert asked.pause.value == TOKEN
        assert TOKEN[:20].encode() not in kept_in(store, tmp_path)
        graph.resume(RUN, {"sure": True, "token": TOKEN})
        assert TOKEN[:20].encode() not in kept_in(store, tmp_path)
    assert {"graph.pause", "graph.error", "node.error"} < {kind for kind, _ in events}
    assert TOKEN[:20] not in repr([data for kind, data in events if kind != "node.chunk"])
