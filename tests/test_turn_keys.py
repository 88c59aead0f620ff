"""Turns of a conversation: each once for its key, and what happens to those that come while the run is busy."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from stategraph import (
    AnswerError,
    ConfigError,
    EntriesNotKeptError,
    EntryExistsError,
    ExecutionError,
    InterruptNode,
    NodeContext,
    RunBusyError,
    RunCancelledError,
    RunLostError,
    State,
    StateGraph,
)
from stategraph._values.entries import Entry
from stategraph.stores.memory import MemoryStore
from stategraph.stores.sqlite import SqliteStore
from stategraph.testing import Killed
from tests.scenarios import RUN, FourMethodStore, Scene, in_threads, make_graph, reopened


def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    while not holds():
        time.sleep(0.005)


class Desk:
    """Answers messages in two steps, and keeps the first one of each conversation waiting until it is let go."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.is_at_work, self.go = threading.Event(), threading.Event()
        self.slow = ""
        self.error: BaseException | None = None
        self.during: Callable[[], None] = lambda: None

    def answer(self, state: State, context: NodeContext) -> dict[str, Any]:
        """Answer a message; the slow one once it may go on, or is to stop."""
        self.calls.append(state["message"])
        if state["message"] == self.slow:
            self.is_at_work.set()
            until(lambda: self.go.is_set() or context.cancelled)
        self.during()
        if self.error is not None:
            raise self.error
        return {"log": [*state.get("log", ()), state["message"]]}

    def graph(self, store: Any, **options: Any) -> StateGraph:
        """Return the graph of the desk."""
        nodes = {"answer": self.answer, "close": lambda state: {"log": [*state["log"], "."]}}
        return make_graph(nodes, store=store, **{"preserve": True, "retention": "full", **options})


@pytest.fixture
def desk() -> Desk:
    """Return a desk that answers at once."""
    return Desk()


def asked(graph: StateGraph, *messages: str) -> None:
    """Give a conversation a turn for each message, whose key is the message."""
    for message in messages:
        graph.turn(RUN, {"message": message}, key=message)


class TestKeys:
    """The same key is the same turn."""

    def test_it_runs_once(self, play: Scene, desk: Desk) -> None:
        """The first turn and later ones: the same key returns the same State, in any process, whatever came since."""
        results = {}
        for message in ("one", "two", "three"):
            results[message] = play.turn(desk.graph(play.store), {"message": message}, key=message)
            play.turn(desk.graph(play.store), {"message": "between"})

        other = desk.graph(reopened(play.store))
        for message, result in results.items():
            assert play.turn(other, {"message": message}, key=message) == result
        assert [call for call in desk.calls if call != "between"] == ["one", "two", "three"]
        words = [word for word in other.store.load(RUN)["log"] if word != "."]
        assert words == ["one", "between", "two", "between", "three", "between"]

    def test_another_input(self, play: Scene, desk: Desk) -> None:
        """The same key with other input is an error, and nothing runs."""
        graph = desk.graph(play.store)
        for first in ("one", "two"):
            play.turn(graph, {"message": first}, key=first)
            with pytest.raises(EntryExistsError, match=first):
                play.turn(graph, {"message": "other"}, key=first)
        assert desk.calls == ["one", "two"]

    def test_only_the_newest_state_is_kept(self, play: Scene, desk: Desk) -> None:
        """Where retention has removed the end of a turn, its key returns the newest State; nothing runs."""
        graph = desk.graph(play.store, retention="latest")
        asked(graph, "one")
        newest = play.turn(graph, {"message": "two"}, key="two")

        assert play.turn(graph, {"message": "one"}, key="one") == newest == play.store.load(RUN)
        assert desk.calls == ["one", "two"]

    @pytest.mark.parametrize("earlier", [(), ("zero",)])
    def test_it_has_failed(self, play: Scene, desk: Desk, earlier: tuple[str, ...]) -> None:
        """A turn that was interrupted is finished by the same call, and so is counted once."""
        graph = desk.graph(play.store)
        asked(graph, *earlier)
        desk.error = ValueError("no")
        with pytest.raises(ExecutionError):
            play.turn(graph, {"message": "one"}, key="one")
        desk.error = None

        final = play.turn(graph, {"message": "one"}, key="one")

        assert final["log"] == [*(word for message in earlier for word in (message, ".")), "one", "."]
        assert play.turn(graph, {"message": "one"}, key="one") == final
        assert desk.calls == [*earlier, "one", "one"]

    @pytest.mark.parametrize("earlier", [(), ("zero",)])
    def test_it_is_at_work(self, play: Scene, desk: Desk, earlier: tuple[str, ...]) -> None:
        """While it is at work, the same key is refused, or waits and returns the same State."""
        graph = desk.graph(play.store)
        asked(graph, *earlier)
        results: list[State] = []
        desk.slow = "one"

        def give(**how: Any) -> None:
            results.append(play.turn(desk.graph(reopened(play.store)), {"message": "one"}, key="one", **how))

        def in_between() -> None:
            assert desk.is_at_work.wait(300)
            with pytest.raises(RunBusyError):
                give()
            desk.go.set()
            give(wait=300)

        assert in_threads(give, in_between) == []
        assert results[0] == results[1]
        assert desk.calls == [*earlier, "one"]

    def test_it_is_asked_something(self, play: Scene) -> None:
        """The key of a turn that waits for an answer returns the pause, and then the end of the turn."""
        nodes = {
            "ask": InterruptNode(None, "sure"),
            "end": lambda state: {"done": state["sure"]},
        }
        graph = make_graph(nodes, store=play.store, preserve=True, retention="full")
        paused = play.turn(graph, {"message": "one"}, key="one")

        assert play.turn(graph, {"message": "one"}, key="one") == paused
        with pytest.raises(AnswerError):
            play.turn(graph, {"message": "two"}, key="two")
        final = play.resume(graph, {"sure": True})
        assert play.turn(graph, {"message": "one"}, key="one") == final
        assert play.turn(graph, {"message": "two"}, key="two").pause is not None

    def test_a_rollback_brings_no_turn_back(self, play: Scene, desk: Desk) -> None:
        """The turns that a rollback takes back do not run again, and later ones do."""
        graph = desk.graph(play.store)
        asked(graph, "one", "two", "three")

        end = next(row for row in play.store.history(RUN) if row.kind == "end")
        play.store.rollback(RUN, end.step, end.revision)
        asked(graph, "two", "three", "four")

        assert desk.calls == ["one", "two", "three", "four"]
        assert play.store.load(RUN)["log"] == ["one", ".", "four", "."]

    def test_a_fork_knows_no_keys(self, play: Scene, desk: Desk) -> None:
        """The keys belong to the source."""
        graph = desk.graph(play.store)
        asked(graph, "one", "two")
        play.store.fork(RUN, "fork")

        for _ in range(2):
            final = graph.turn("fork", {"message": "two"}, key="two")

        assert final["log"] == ["one", ".", "two", ".", "two", "."]
        assert desk.calls == ["one", "two", "two"]

    def test_a_store_of_four_methods(self, desk: Desk) -> None:
        """It keeps no keys, and nothing runs."""
        refused: list[dict[str, Any]] = [{"key": "one"}, {"busy": "enqueue"}]
        for how in refused:
            with pytest.raises(EntriesNotKeptError, match="append"):
                desk.graph(FourMethodStore()).turn(RUN, {"message": "one"}, **how)
        assert desk.calls == []


class Crowd:
    """Calls in threads: one that is at work on a message "slow", and others that come in the meantime, in order."""

    def __init__(self, scene: Scene, desk: Desk, **options: Any) -> None:
        self.scene, self.desk, self.options = scene, desk, options
        self.results: dict[str, State] = {}
        self.errors: dict[str, BaseException] = {}
        desk.slow = "slow"

    def calls(self, *turns: dict[str, Any]) -> None:
        """Make the calls, each once the one before is stored, then let the first one go on."""
        before, threads = len(self._turns()), [self._begin("slow", {})]
        assert self.desk.is_at_work.wait(300)
        for number, how in enumerate(turns):
            threads.append(self._begin(str(number), how))
            until(lambda stored=before + number: len(self._turns()) > stored)  # type: ignore[misc]
        if all(how["busy"] == "enqueue" for how in turns):
            self.desk.go.set()
        for thread in threads:
            thread.join()

    def _begin(self, message: str, how: dict[str, Any]) -> threading.Thread:
        thread = threading.Thread(target=partial(self._call, message, how))
        thread.start()
        return thread

    def _call(self, message: str, how: dict[str, Any]) -> None:
        graph = self.desk.graph(reopened(self.scene.store), **self.options)
        try:
            self.results[message] = self.scene.turn(graph, {"message": message}, **how)
        except BaseException as error:
            self.errors[message] = error

    def _turns(self) -> list[Entry]:
        return self.scene.store.entries(RUN, kinds={"turn"})


class TestBusy:
    """A turn comes while another one is at work."""

    def test_they_are_served_in_order(self, play: Scene, desk: Desk) -> None:
        """Turns wait in the order in which they came, each once, and each call returns the State after its own."""
        crowd = Crowd(play, desk)

        crowd.calls({"busy": "enqueue"}, {"busy": "enqueue", "key": "k"}, *[{"busy": "enqueue"}] * 4)

        assert desk.calls == ["slow", *"012345"]
        assert crowd.errors == {}
        for message, result in crowd.results.items():
            assert result["log"][-2:] == [message, "."]
        assert desk.graph(play.store).turn(RUN, {"message": "1"}, key="k")["log"][-2:] == ["1", "."]

    def test_it_outlives_its_call(self, play: Scene, desk: Desk) -> None:
        """A turn that was stored runs although its call gave up: recover takes it up, once."""
        crowd = Crowd(play, desk)

        crowd.calls({"busy": "enqueue", "wait": 0}, {"busy": "enqueue", "wait": 0, "key": "k"})

        assert all(isinstance(error, RunBusyError) for error in crowd.errors.values()), crowd.errors
        assert desk.calls == ["slow"]
        graph = desk.graph(play.store)
        assert [(each.run_id, each.error) for each in graph.recover()] == [(RUN, None)]
        assert [*graph.recover()] == []
        assert desk.calls == ["slow", "0", "1"]
        assert graph.turn(RUN, {"message": "1"}, key="k")["log"] == ["slow", ".", "0", ".", "1", "."]

    def test_a_stored_turn_has_its_own_deadline(self, play: Scene, desk: Desk) -> None:
        """It counts whichever call executes the turn, and does not count for another turn."""
        crowd = Crowd(play, desk)
        crowd.calls({"busy": "enqueue", "wait": 0, "deadline": 60}, {"busy": "enqueue", "wait": 0, "deadline": 0.001})

        (recovered,) = desk.graph(play.store).recover()

        assert isinstance(recovered.error, ExecutionError)
        assert isinstance(recovered.error.__cause__, TimeoutError)
        assert desk.calls == ["slow", "0"]

    def test_an_interrupt_outlives_its_call(self, play: Scene, desk: Desk) -> None:
        """The turn that interrupts another one runs although its call gave up."""
        crowd = Crowd(play, desk)
        crowd.calls({"busy": "interrupt", "wait": 0})

        (recovered,) = desk.graph(play.store).recover()

        assert recovered.state is not None
        assert recovered.state["log"] == ["slow", "0", "."]

    @pytest.mark.parametrize("how", ["graph", "store", "its owner dies"])
    def test_a_cancellation_of_the_turn_before_it(self, play: Scene, desk: Desk, how: str) -> None:
        """A turn that waits is not cancelled with the one before it: the next sweep executes it."""
        desk.error = Killed() if how == "its owner dies" else RuntimeError("broken")
        Crowd(play, desk).calls({"busy": "interrupt" if how == "its owner dies" else "enqueue", "wait": 0})
        desk.error, graph = None, desk.graph(play.store)
        if how != "its owner dies":  # which left the request behind
            (graph if how == "graph" else play.store).cancel(RUN)

        assert [each.error for each in [*graph.recover(), *graph.recover()]] == [None]

        assert desk.calls == ["slow", "0"]
        assert play.store.load(RUN).status == "completed"

    def test_a_cancellation_that_comes_too_late(self, play: Scene, desk: Desk) -> None:
        """A turn that completes although it is interrupted leaves nothing behind that cancels the next one."""
        nodes: dict[str, Any] = {"open": lambda state: {}, "answer": desk.answer}
        desk.graph = lambda store: make_graph(nodes, store=store, preserve=True)  # type: ignore[assignment, misc]
        Crowd(play, desk).calls({"busy": "interrupt", "wait": 0})

        (recovered,) = desk.graph(play.store).recover()

        assert recovered.error is None
        assert play.store.load(RUN)["log"] == ["slow", "0"]

    @pytest.mark.parametrize("how", ["turn", "key", "enqueue"])
    def test_a_cancelled_turn_is_not_finished(self, play: Scene, desk: Desk, how: str) -> None:
        """Also if its owner dies before it notices: the next turn begins, and the history has the cancellation."""
        desk.slow, desk.error, graph = "slow", Killed(), desk.graph(play.store)
        first = threading.Thread(target=in_threads, args=(lambda: asked(desk.graph(play.store), "slow"),))
        first.start()
        assert desk.is_at_work.wait(300)
        play.store.cancel(RUN, by="ada")
        first.join()
        desk.slow, desk.error, options = "", None, {"key": {"key": "k"}, "enqueue": {"busy": "enqueue"}}

        play.turn(graph, {"message": "next"}, **options.get(how, {}))

        assert desk.calls == ["slow", "next"]
        assert ("cancelled", "ada") in [(row.status, row.by) for row in play.store.history(RUN)]

    @pytest.mark.parametrize("who", ["store", "owner"])
    def test_it_comes_while_the_run_is_being_cancelled(self, desk: Desk, who: str) -> None:
        """Between the last look at the inbox and the save: the next sweep executes it all the same."""

        class Crossed(MemoryStore):
            crosses = False

            def entries(self, run_id: str, **which: Any) -> list[Entry]:
                found = super().entries(run_id, **which)
                if self.crosses and which["step"] == 0:
                    self.crosses = False
                    self.append(run_id, [Entry("turn", [{"message": "late"}, "enqueue", 0], name="late")])
                return found

        def cancel() -> None:
            graph.cancel(RUN)
            store.crosses = True

        store = Crossed()
        graph, desk.error = desk.graph(store), RuntimeError("broken")
        if who == "owner":
            desk.during, desk.error = cancel, None
        with pytest.raises(RunCancelledError if who == "owner" else ExecutionError):
            graph.turn(RUN, {"message": "slow"})
        desk.error, desk.during, store.crosses = None, lambda: None, who == "store"
        if who == "store":
            store.cancel(RUN)

        assert [each.error for each in graph.recover()] == [None]
        assert desk.calls == ["slow", "late"]

    def test_a_call_that_loses_the_run_before_its_turn_begins(self, play: Scene, desk: Desk) -> None:
        """It gets this error, as at any other time; nothing of it is saved, and its turn can be given again."""
        graph, others = desk.graph(play.store), [{"message": "other"}]

        class Given(dict[str, Any]):
            def items(self) -> Any:
                if others and play.store.owner(RUN):
                    assert in_threads(lambda: graph.turn(RUN, others.pop(), take_over=True)) == []
                return super().items()

        asked(graph, "first")
        with pytest.raises(RunLostError):
            play.turn(graph, Given(message="mine"), key="mine")

        assert graph.turn(RUN, {"message": "mine"}, key="mine")["log"] == ["first", ".", "other", ".", "mine", "."]

    def test_the_next_turn_serves_those_before_it(self, play: Scene, desk: Desk) -> None:
        """A later turn, with a key or without, comes after the turns that wait."""
        crowd = Crowd(play, desk)
        crowd.calls({"busy": "enqueue", "wait": 0}, {"busy": "enqueue", "wait": 0})

        asked(desk.graph(play.store), "later")

        assert desk.calls == ["slow", "0", "1", "later"]

    @pytest.mark.parametrize("other", ["same", "other"])
    @pytest.mark.parametrize("when", ["a turn before it ends", "it is stored"])
    def test_another_is_stored_just_before(self, play: Scene, desk: Desk, other: str, when: str) -> None:
        """By another call: one with its key is the same turn, which runs once; another one is not lost."""

        def store_other() -> None:
            graph = desk.graph(reopened(play.store))
            (error,) = in_threads(lambda: graph.turn(RUN, {"message": other}, key=other, busy="enqueue", wait=0))
            assert isinstance(error, RunBusyError)
            desk.go.set()

        class Given(dict[str, Any]):
            def items(self) -> Any:
                if when == "it is stored" and play.store.owner(RUN) and not desk.go.is_set():
                    store_other()
                return super().items()

        def store_meanwhile() -> None:
            if when == "a turn before it ends":
                desk.is_at_work.wait()
                store_other()

        graph = desk.graph(play.store)
        desk.error = OSError()
        with pytest.raises(ExecutionError):
            graph.turn(RUN, {"message": "first"})
        desk.error = None
        if when == "a turn before it ends":
            desk.slow = "first"
        else:
            play.resume(graph)

        assert in_threads(lambda: play.turn(graph, Given(message="same"), key="same"), store_meanwhile) == []

        assert desk.calls == ["first", "first", *dict.fromkeys([other, "same"])]

    def test_interrupt(self, play: Scene, desk: Desk) -> None:
        """The turn under way is cancelled after its step and kept as it is; then the other one runs."""
        crowd = Crowd(play, desk)

        crowd.calls({"busy": "interrupt"})

        assert {message: type(error) for message, error in crowd.errors.items()} == {"slow": RunCancelledError}, (
            crowd.errors
        )
        assert crowd.results["0"]["log"] == ["slow", "0", "."]
        assert [row.kind for row in play.store.history(RUN) if row.kind == "cancel"] == ["cancel"]

    def test_rollback(self, play: Scene, desk: Desk) -> None:
        """The turn under way is cancelled and taken back; then the other one runs."""
        asked(desk.graph(play.store), "before")
        crowd = Crowd(play, desk)

        crowd.calls({"busy": "rollback"})

        assert {message: type(error) for message, error in crowd.errors.items()} == {"slow": RunCancelledError}, (
            crowd.errors
        )
        assert crowd.results["0"]["log"] == ["before", ".", "0", "."]

    def test_rollback_of_the_first_turn(self, play: Scene, desk: Desk) -> None:
        """Nothing of it is left."""
        crowd = Crowd(play, desk)

        crowd.calls({"busy": "rollback"})

        assert crowd.results["0"]["log"] == ["0", "."]

    def test_what_is_refused(self, desk: Desk) -> None:
        """Each policy says what it needs, before anything runs."""
        graph = desk.graph(MemoryStore(), retention="latest")
        refused: list[dict[str, Any]] = [{"busy": "rollback"}, {"busy": "queue"}, {"key": ""}, {"key": 1}]
        for how in refused:
            with pytest.raises(ConfigError, match=next(iter(how))):
                graph.turn(RUN, {"message": "one"}, **how)
        assert desk.calls == []


_WORKER = """
import os, signal, sys
from tests.test_turn_keys import Desk
from stategraph import State
from stategraph.stores.sqlite import SqliteStore
from stategraph.testing import Killed

desk = Desk()
desk.answer = lambda state: os.kill(os.getpid(), signal.SIGKILL)
graph = desk.graph(SqliteStore(sys.argv[1]))
if sys.argv[2] == "run":
    graph.run(State({"message": "one"}, run_id="run"))
else:
    graph.turn("run", {"message": "one"}, key="one" if sys.argv[2] == "key" else None)
"""


@pytest.mark.parametrize("how", ["run", "turn", "key"])
@pytest.mark.parametrize("earlier", [(), ("zero",)])
def test_what_is_accepted_is_not_lost(tmp_path: Path, desk: Desk, how: str, earlier: tuple[str, ...]) -> None:
    """A process that is killed in its first node leaves its input behind: recover finishes the run, once."""
    if earlier and how == "run":
        pytest.skip("run is for a run that does not exist")
    store = SqliteStore(tmp_path / "runs.db")
    graph = desk.graph(store)
    asked(graph, *earlier)
    killed = subprocess.run([sys.executable, "-c", _WORKER, str(store.path), how], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert desk.calls == [*earlier]

    (recovered,) = graph.recover()

    assert recovered.error is None
    assert [*graph.recover()] == []
    assert desk.calls == [*earlier, "one"]
    if how == "key":
        assert graph.turn(RUN, {"message": "one"}, key="one") == recovered.state
    assert desk.calls == [*earlier, "one"]
    store.close()


def test_a_stored_turn_that_a_sweep_has_ended(tmp_path: Path) -> None:
    """The call that waits for its turn returns the State at its end, also if a sweep has executed it."""
    store, is_at_work, goes_on = SqliteStore(tmp_path / "runs.db"), threading.Event(), threading.Event()

    def work(state: State) -> dict[str, Any]:
        is_at_work.set()
        goes_on.wait(60)
        return {"done": state["n"]}

    graph = make_graph({"work": work}, store=store, preserve=True)

    async def is_swept(run_id: str) -> bool:
        turn = asyncio.create_task(graph.aturn(run_id, {"n": 2}, busy="enqueue"))
        while not store.entries(run_id, step=0, kinds=("turn",)):  # noqa: ASYNC110 - nothing tells of an entry
            await asyncio.sleep(0.01)
        goes_on.set()
        first.join()  # the loop stands still in the meantime; a thread of the call may take the run nevertheless
        swept = [run.state and run.state["done"] for run in graph.recover()]
        assert (await turn)["done"] == 2
        return swept == [2]

    for number in count():
        is_at_work.clear()
        goes_on.clear()
        first = threading.Thread(target=graph.turn, args=(f"{RUN}-{number}", {"n": 1}))
        first.start()
        is_at_work.wait(60)
        if asyncio.run(is_swept(f"{RUN}-{number}")):
            break
