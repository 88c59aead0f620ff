"""Messages to runs: each is taken in between two steps, once, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from stategraph import (
    AnswerError,
    CheckpointStore,
    ExecutionError,
    InterruptNode,
    NodeContext,
    ParallelNode,
    RunCompleteError,
    RunStatus,
    SchemaError,
    State,
    StateGraph,
)
from stategraph.errors import EntriesNotKeptError, EntryExistsError
from tests.conftest import staged
from tests.pairs import every_pair
from tests.scenarios import HOW, RUN, FourMethodStore, Scene, broken_first, make_graph, trace

PLAYS = [("memory", "sync"), ("sqlite", "async"), ("disk", "sync"), ("postgres", "async"), ("redis", "sync")]


@pytest.fixture(params=PLAYS, ids=" ".join)
def every_play(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    """Every store that keeps entries, with one of the drivers."""
    yield from staged((*request.param, "sync nodes"), tmp_path)


def noting(state: State, updates: Any) -> dict[str, Any]:
    """Append the text of a message."""
    return {"notes": [*state.get("notes", ()), updates["note"]]}


def refusing(state: State, updates: Any) -> dict[str, Any]:
    """Refuse a message."""
    raise IndexError


def notes(graph: StateGraph) -> StateGraph:
    """Return the graph, which appends the texts of messages."""
    graph.on_message(noting)
    return graph


def sends(store: CheckpointStore, *texts: str, by: str | None = None) -> Callable[[State], dict[str, Any]]:
    """Return a node that others send messages to while it is at work."""

    def node(state: State) -> dict[str, Any]:
        for text in texts:
            store.send(state.run_id, {"note": text}, by=by)
        return {"trace": [*state.get("trace", ()), "sends"], "had": list(state.get("notes", ()))}

    return node


def waiting(store: CheckpointStore) -> list[Any]:
    """Return the messages that no step has taken in."""
    taken = store.load(RUN).progress
    return [entry.value for entry in store.entries(RUN, step=0, after=taken.taken if taken else 0)]


def test_what_no_state_can_hold_is_no_message(every_play: Scene) -> None:
    """`send` refuses it, also without a graph: once acknowledged, it would stop the run at each resume."""
    graph = make_graph({"a": trace("a")}, store=every_play.store, preserve=True)
    graph.submit(State(run_id=RUN))
    wrong: Any
    for wrong in ({5: 1}, "note", [("note", 1)]):
        for send in (graph.send, every_play.store.send):
            with pytest.raises(TypeError, match="of a State"):
                send(RUN, wrong)
    for send in (graph.send, every_play.store.send):
        for wrong in (7, ""):
            with pytest.raises(TypeError, match="the key of a message is a str"):
                send(RUN, {"note": 1}, key=wrong)
    assert every_play.resume(graph)["trace"] == ["a"]


class TestWhenTheyAreTakenIn:
    """Between two steps, by the call that is at work, or by the next one."""

    def test_while_a_call_is_at_work(self, every_play: Scene) -> None:
        """The next node has them, in order; also those that come during the last step are in the final State."""
        store = every_play.store
        nodes = {"a": trace("a"), "b": sends(store, "1", "2"), "c": trace("c"), "d": sends(store, "3")}
        final = every_play.execute(notes(make_graph(nodes, store=store, preserve=True)))

        assert final["notes"] == ["1", "2", "3"]
        assert final["had"] == ["1", "2"]
        assert final["trace"] == ["a", "sends", "c", "sends"]
        assert (final.status, final.step) == (RunStatus.COMPLETED, 4)
        assert store.load(RUN) == final
        assert waiting(store) == []

    def test_by_the_call_that_goes_on(self, every_play: Scene) -> None:
        """A run without an owner takes them in when it is resumed, before its next node."""
        store = every_play.store
        nodes = {"a": trace("a"), "b": broken_first(trace("b"), OSError()), "c": trace("c")}
        graph = notes(make_graph(nodes, store=store, preserve=True))
        with pytest.raises(ExecutionError):
            every_play.execute(graph)
        for text in "12":
            every_play.call(graph, "send", RUN, {"note": text})
        assert waiting(store) == [{"note": "1"}, {"note": "2"}]

        final = every_play.resume(graph)

        assert (final["notes"], final["trace"]) == (["1", "2"], ["a", "b", "c"])

    @every_pair(how=HOW, interval=[1, 2, 5], preserve=[True, False], kind=["memory", "sqlite"])
    def test_however_a_run_is_saved(self, tmp_path: Path, kind: str, how: str, preserve: bool, interval: int) -> None:
        """No message is lost, whether each step is saved or not, and whether a complete run is kept or not."""
        for play in staged((kind, "sync", "sync nodes"), tmp_path):
            store = play.store
            nodes = {"ask": InterruptNode(None, "go"), "a": sends(store, "1"), "b": sends(store, "2"), "c": trace("c")}
            nodes |= {"d": sends(store, "3", "4")}
            options = {"interval": interval, "preserve": preserve, **HOW[how]}
            graph = notes(make_graph(nodes, store=store, **options))
            play.execute(graph)

            final = play.resume(graph, {"go": 1})

            assert final["notes"] == ["1", "2", "3", "4"]
            assert store.list() == [RUN] * preserve
            if preserve:
                assert store.load(RUN) == final

    @pytest.mark.timeout(60)
    def test_while_more_keep_coming(self, every_play: Scene) -> None:
        """A run that is resumed goes on with those that it knows, and takes in the others after its next step."""
        store = every_play.store
        graph = make_graph({"a": trace("a"), "b": trace("b")}, store=store, preserve=True)

        def note(state: State, updates: Any) -> dict[str, Any]:
            if state.step == 0:
                store.send(RUN, {"note": "again"})
            return noting(state, updates)

        graph.on_message(note)
        graph.submit(State(run_id=RUN))
        graph.send(RUN, {"note": "first"})

        assert every_play.resume(graph)["notes"] == ["first", "again"]

    def test_in_a_stream(self, every_play: Scene) -> None:
        """A stream shows them in the State of the next step, and the final State once."""
        store = every_play.store
        nodes = {"a": sends(store, "1"), "b": trace("b"), "c": sends(store, "2")}
        graph = notes(make_graph(nodes, store=store, preserve=True, accept=True))

        with graph.stream(State(run_id=RUN)) as states:
            shown = [(state.step, list(state.get("notes", ()))) for state in states]

        assert shown == [(1, []), (2, ["1"]), (3, ["1", "2"])]

    def test_around_a_nested_graph(self, every_play: Scene) -> None:
        """The outer run takes them in after the nested one; all nodes can look at them before."""
        store, seen = every_play.store, list[Any]()

        def look(state: State, context: Any) -> dict[str, Any]:
            store.send(RUN, {"note": "1"})
            seen.append(context.messages())
            return {}

        def last(state: State, context: Any) -> dict[str, Any]:
            return {"left": context.messages()}

        inner = make_graph(
            {"look": look, "last": lambda state: {"inside": "notes" in state}}, store=store, name="inner"
        )
        outer = notes(make_graph({"a": inner.as_node(), "b": last}, store=store, accept=True))
        final = every_play.execute(outer)

        assert seen == [[{"note": "1"}]]
        assert (final["notes"], final["inside"], final["left"]) == (["1"], False, [])

    def test_the_history_has_them(self, every_play: Scene) -> None:
        """With their author, if those that are taken in together have one."""
        store = every_play.store
        nodes = {"a": sends(store, "1", "2", by="ann"), "b": trace("b")}
        every_play.execute(notes(make_graph(nodes, store=store, preserve=True, accept=True, retention="full")))

        found = [(row.step, row.kind.value, row.by) for row in store.history(RUN)]

        assert found == [
            (0, "input", None),
            (1, "step", None),
            (1, "update", "ann"),
            (2, "step", None),
            (2, "end", None),
        ]


class TestOnce:
    """A message belongs to one step, whatever happens to that step."""

    def test_a_key_is_one_message(self, every_play: Scene) -> None:
        """Also once it is taken in, and once the run is complete. With other content it is an error."""
        nodes = {"a": InterruptNode(None, "go"), "b": InterruptNode(None, "on")}
        graph = make_graph(nodes, store=every_play.store, preserve=True)
        every_play.execute(graph)
        for _ in range(2):
            graph.send(RUN, {"n": 1}, key="k")
        assert len(waiting(every_play.store)) == 1

        every_play.resume(graph, {"go": 1})
        graph.send(RUN, {"n": 1}, key="k")

        assert waiting(every_play.store) == []
        every_play.resume(graph, {"on": 1})
        for sender in (graph, every_play.store):
            sender.send(RUN, {"n": 1}, key="k")
            with pytest.raises(EntryExistsError, match="'k'"):
                sender.send(RUN, {"n": 2}, key="k")
            with pytest.raises(RunCompleteError):
                sender.send(RUN, {"n": 1}, key="other")

    @pytest.mark.parametrize("retention", ["latest", "full"])
    def test_a_rollback_leaves_them_taken(self, every_play: Scene, retention: str) -> None:
        """It takes back the step, not the message; those that wait still wait."""
        store = every_play.store
        nodes = {"a": trace("a"), "b": sends(store, "1"), "c": InterruptNode(None, "go"), "d": trace("d")}
        graph = notes(make_graph(nodes, store=store, retention=retention, preserve=True))
        every_play.execute(graph)
        graph.send(RUN, {"note": "2"}, key="k")
        before = next(row for row in store.history(RUN) if row.step == 2)

        back = store.rollback(RUN, 2, before.revision)
        assert waiting(store) == [{"note": "2"}]
        every_play.resume(graph)
        final = every_play.resume(graph, {"go": 1})

        assert final["notes"] == [*back.get("notes", ()), "2"]

    def test_a_fork_has_none(self, every_play: Scene) -> None:
        """A fork takes in what is sent to it, and leaves what waits for its source."""
        store = every_play.store
        graph = notes(make_graph({"a": InterruptNode(None, "go"), "b": trace("b")}, store=store, preserve=True))
        every_play.execute(graph)
        graph.send(RUN, {"note": "1"}, key="k")

        store.fork(RUN, "copy")
        graph.resume("copy")
        graph.send("copy", {"note": "2"}, key="k")

        assert graph.resume("copy", {"go": 1})["notes"] == ["2"]
        assert every_play.resume(graph, {"go": 1})["notes"] == ["1"]

    def test_a_run_that_begins_again(self, every_play: Scene) -> None:
        """It takes in no message twice, from whichever State it begins."""
        store = every_play.store
        nodes = {"a": trace("a"), "b": broken_first(broken_first(trace("b"), OSError()), OSError())}
        graph = notes(make_graph(nodes, store=store))
        with pytest.raises(ExecutionError):
            every_play.execute(graph)
        failed = store.load(RUN)
        graph.send(RUN, {"note": "1"}, key="k")
        with pytest.raises(ExecutionError):
            every_play.resume(graph)

        again = every_play.execute(graph, failed, restart=True)

        assert "notes" not in again

    def test_a_state_of_the_caller_ends_as_well(self, every_play: Scene) -> None:
        """A State that does not say what its run has taken in completes: what left the inbox was taken in."""
        store, nodes = every_play.store, {name: InterruptNode(None, name) for name in "ab"}
        graph = make_graph(nodes, store=store, preserve=True)
        every_play.execute(graph)
        graph.send(RUN, {"n": 1})
        step = every_play.resume(graph, {"a": 1}).step
        store.save(State(run_id=RUN, step=step + 1))

        every_play.execute(graph, State(run_id=RUN, step=step + 2))
        every_play.resume(graph, {"a": 1})

        assert every_play.resume(graph, {"b": 1}).status == "completed"

    def test_it_repeats_no_part(self, every_play: Scene) -> None:
        """A step that has parts is finished first, so that neither they nor effects in their graphs are repeated."""
        store, paid = every_play.store, list[str]()

        def pay(name: str) -> Callable[..., dict[str, Any]]:
            def charge() -> str:
                paid.append(name)
                return name

            def node(state: State, context: NodeContext) -> dict[str, Any]:
                return {name: context.effect(name, charge)}

            return node

        inner = make_graph({"pay": pay("graph")}, store=store, name="inner")
        parts: dict[str, Any] = {"one": pay("branch"), "graph": inner, "bad": broken_first(trace("bad"), OSError())}
        nodes: dict[str, Any] = {"all": ParallelNode(parts, max_workers=1), "end": trace("end")}
        graph = notes(make_graph(nodes, store=store, preserve=True))
        with pytest.raises(ExecutionError):
            every_play.execute(graph)
        graph.send(RUN, {"note": "1"})

        final = every_play.resume(graph)

        assert sorted(paid) == ["branch", "graph"]
        assert (final["notes"], waiting(store)) == (["1"], [])


class TestRefused:
    """What no step can take in is no message."""

    def test_at_once(self, every_play: Scene) -> None:
        """No run, a complete run, values that do not fit or are not saved, and what would be an answer."""
        store = every_play.store
        graph = make_graph({"ask": InterruptNode(None, "go")}, store=store, schema=Noted, preserve=True, persist=["go"])
        with pytest.raises(LookupError):
            graph.send(RUN, {"go": 1})
        every_play.execute(graph, State({"go": 0, "secret": ""}, run_id=RUN))
        with pytest.raises(SchemaError):
            graph.send(RUN, {"gone": 1})
        with pytest.raises(ValueError, match="'secret', which is not saved"):
            graph.send(RUN, {"secret": "x"})
        with pytest.raises(AnswerError, match=r"no answer; answer\('run', value\)"):
            graph.send(RUN, {"go": 1})
        every_play.resume(graph, {"go": 1, "secret": ""})
        for send in (graph.send, store.send):
            with pytest.raises(RunCompleteError):
                send(RUN, {"go": 1})
        assert store.entries(RUN) == []

    def test_by_a_store_of_four_methods(self) -> None:
        """The error names the method that it lacks; its runs go on as before."""
        store = FourMethodStore()
        graph = make_graph({"a": InterruptNode(None, "go"), "b": trace("b")}, store=store)
        graph.execute(State(run_id=RUN))
        for call in (
            lambda: graph.send(RUN, {"n": 1}),
            lambda: store.send(RUN, {"n": 1}),
            lambda: graph.answer(RUN, 1),
        ):
            with pytest.raises(EntriesNotKeptError, match="append"):
                call()
        assert graph.resume(RUN, {"go": 1})["trace"] == ["b"]

    @pytest.mark.parametrize("when", ["at work", "at the end", "resumed"])
    def test_by_the_graph(self, every_play: Scene, when: str) -> None:
        """The run fails and names the message, which waits: the run goes on once `on_message` takes it or leaves it."""
        store = every_play.store
        send = sends(store, "1", by="ann")
        nodes = {"a": send, "b": trace("b"), "c": trace("c")} if when == "at work" else {"a": trace("a"), "b": send}
        if when == "resumed":
            nodes = {"a": broken_first(trace("a"), OSError()), "b": trace("b")}
        graph = make_graph(nodes, store=store, preserve=True, accept=True)
        graph.on_message(refusing)
        if when == "resumed":
            with pytest.raises(ExecutionError):
                every_play.execute(graph)
            send(State(run_id=RUN))

        with pytest.raises(ExecutionError, match="message 1 of ann cannot be taken in: IndexError") as caught:
            every_play.resume(graph) if when == "resumed" else every_play.execute(graph)

        failed = store.load(RUN)
        assert isinstance(caught.value.__cause__, IndexError)
        assert failed.status is RunStatus.FAILED
        assert failed.error is not None
        assert failed.error.type == "IndexError"
        graph = make_graph(nodes, store=store, preserve=True)
        graph.on_message(lambda state, updates: {})
        final = every_play.resume(graph)
        assert (final.status, "notes" in final) == (RunStatus.COMPLETED, False)
        assert waiting(store) == []

    def test_of_a_paused_run(self, every_play: Scene) -> None:
        """The run still waits for its answer."""
        graph = make_graph({"a": InterruptNode(None, "go"), "b": trace("b")}, store=every_play.store)
        paused = every_play.execute(graph)
        graph.on_message(refusing)
        graph.send(RUN, {"n": 1})

        with pytest.raises(ExecutionError, match="message 1 cannot be taken in"):
            every_play.resume(graph, {"go": 1})

        assert every_play.store.load(RUN) == paused


@attrs.frozen
class Noted:
    """What a graph with a schema keeps."""

    go: int
    secret: str = ""
