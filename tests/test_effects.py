"""Effects: a call of a node that is done stays done, and one whose outcome is unknown is confirmed or asked for."""

from __future__ import annotations

import asyncio
import itertools
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest

from stategraph import (
    ExecutionError,
    GraphMismatchError,
    InterruptNode,
    MapNode,
    NodeContext,
    NotSerializableError,
    ParallelNode,
    Repeat,
    RetryPolicy,
    State,
    StateGraph,
)
from stategraph._values.entries import Entry
from stategraph.errors import CheckpointError, EffectsError, EntriesNotKeptError
from stategraph.stores.memory import MemoryStore
from stategraph.stores.sqlite import SqliteStore
from stategraph.testing import crashing, kill_at
from stategraph.testing.crashing import MortalStore
from tests.conftest import staged
from tests.pairs import every_pair
from tests.scenarios import DRIVERS, NODES, RUN, FourMethodStore, Scene, as_async, make_graph, raises, reopened, trace


class Killed(BaseException):
    """Ends a call of a graph where a crash would."""


class Bank:
    """A service outside of the run. It dies, or fails, at the calls that it is told."""

    def __init__(self, before: object = "", after: object = "", error: BaseException | None = None) -> None:
        self.bills: list[str] = []
        self._ends = {"before": before, "after": after}
        self._error = Killed() if error is None else error

    def pay(self, name: str) -> dict[str, Any]:
        """Pay, and return the receipt."""
        self._end("before", name)
        self.bills.append(name)
        self._end("after", name)
        return {"receipt": name, "lines": [name]}

    async def apay(self, name: str) -> dict[str, Any]:
        """Pay."""
        await asyncio.sleep(0)
        return self.pay(name)

    def confirm(self, name: str) -> dict[str, Any] | None:
        """Return the receipt if it was paid."""
        return {"receipt": name, "lines": [name]} if name in self.bills else None

    def _end(self, when: str, name: str) -> None:
        if self._ends[when] == name:
            self._ends[when] = ""
            raise self._error


class Failing(MemoryStore):
    """A store that keeps States, and fails at entries."""

    fails = True

    def append(self, run_id: str, entries: Sequence[Entry]) -> list[Entry]:
        """Append entries."""
        return self._kept(lambda: super(Failing, self).append(run_id, entries))

    def entries(self, run_id: str, **which: Any) -> list[Entry]:
        """Return entries."""
        return self._kept(lambda: super(Failing, self).entries(run_id, **which))

    def _kept(self, call: Callable[[], list[Entry]]) -> list[Entry]:
        if self.fails:
            raise OSError("unplugged")
        return call()


ASKS: list[Callable[[NodeContext], object]] = [
    lambda context: context.effect("a", int),
    lambda context: context.spend(usd=1),
    lambda context: context.status("half"),
    lambda context: context.messages(),
]

STAGES = [
    ("memory", "sync", "sync nodes"),
    ("sqlite", "sync", "async nodes"),
    ("sqlite", "async", "sync nodes"),
    ("disk", "async", "async nodes"),
    ("postgres", "async", "async nodes"),
    ("redis", "sync", "sync nodes"),
]


@pytest.fixture(params=STAGES, ids=" ".join)
def stage(request: pytest.FixtureRequest, tmp_path: Any) -> Any:
    """Every store that keeps entries, with each driver and each kind of nodes."""
    yield from staged(request.param, tmp_path)


def pays(bank: Bank, names: str = "abc", then: Callable[[], object] = bool, **options: Any) -> Any:
    """Return a node that pays for each name, and shows the receipts."""

    def node(state: State, context: NodeContext) -> dict[str, Any]:
        receipts = [context.effect(name, lambda: bank.pay(name), **options) for name in names]  # noqa: B023
        then()
        return {"paid": [receipt["receipt"] for receipt in receipts]}

    return node


def once(error: BaseException) -> Callable[[], None]:
    """Return a function that raises the first time."""
    left = [error]

    def end() -> None:
        if left:
            raise left.pop()

    return end


ENDS = [Killed(), ValueError("no"), KeyboardInterrupt()]

# --------------------------------------------------------------------------- what is done


class TestDone:
    """A result that is kept is the result of every later attempt."""

    @pytest.mark.parametrize("error", ENDS[:2], ids=repr)
    def test_it_is_not_done_again(self, stage: Scene, error: BaseException) -> None:
        """Whatever ends the attempt. The result is the same in value and type as it was at first."""
        bank, seen = Bank(), list[Any]()

        def node(state: State, context: NodeContext) -> dict[str, Any]:
            seen.append(context.effect("a", lambda: bank.pay("a")))
            end()
            return {"paid": seen[-1]["lines"]}

        end = once(error)
        graph = stage.graph({"first": trace("first"), "pay": node, "last": trace("last")}, preserve=True)
        with pytest.raises((Killed, ExecutionError)):
            stage.execute(graph)
        graph = stage.graph({"first": trace("first"), "pay": node, "last": trace("last")}, preserve=True)

        final = stage.resume(graph)

        assert bank.bills == ["a"]
        assert seen[0] == seen[1] == {"receipt": "a", "lines": ["a"]}
        assert [*map(type, seen[0].values())] == [*map(type, seen[1].values())]
        assert final["paid"] == ["a"]
        assert reopened(stage.store).entries(RUN) == []

    def test_a_retry_goes_on(self, stage: Scene) -> None:
        """A failed attempt has done what it has done."""
        bank = Bank()
        nodes = {"pay": pays(bank, then=once(OSError("lost")))}

        final = stage.execute(stage.graph(nodes, policies={"pay": {"retry": RetryPolicy(2, initial_delay=0)}}))

        assert (bank.bills, final["paid"]) == (["a", "b", "c"], ["a", "b", "c"])

    def test_a_later_step_does_it_again(self, stage: Scene) -> None:
        """The key belongs to the step, so a loop does the effect each time."""
        bank = Bank()
        edges = [("pay", "pay", lambda state: state.step < 3), ("pay", "end", lambda state: state.step >= 3)]

        stage.execute(stage.graph({"pay": pays(bank, "a"), "end": trace("end")}, edges))

        assert bank.bills == ["a"] * 3

    @pytest.mark.parametrize("durability", ["sync", "async", "exit"])
    def test_it_is_durable_when_it_returns(self, tmp_path: Any, durability: str) -> None:
        """Another process sees the intention before the call, and the result after it; and the step before."""
        seen = []
        with SqliteStore(tmp_path / "runs.db") as store:

            def look() -> int:
                with SqliteStore(tmp_path / "runs.db", read_only=True) as other:
                    seen.append(([entry.value for entry in other.entries(RUN)], other.load(RUN).step))
                return len(seen)

            def node(state: State, context: NodeContext) -> dict[str, Any]:
                context.effect("a", look)
                look()
                return {}

            make_graph({"first": trace("first"), "pay": node}, store=store, durability=durability).execute(
                State(run_id=RUN)
            )
        assert seen == [([{"awaits": False}], 1), ([{"awaits": False, "result": 1}], 1)]

    def test_a_key_is_for_one_effect(self, stage: Scene) -> None:
        """The same key twice in an attempt is a mistake, which the error names."""
        bank = Bank()

        with pytest.raises(ExecutionError, match="effect 'a'"):
            stage.execute(stage.graph({"pay": pays(bank, "aa")}))
        assert bank.bills == ["a"]

    def test_of_two_threads_with_one_key_one_is_refused(self, stage: Scene) -> None:
        """Also if both look at the same moment whether the key is taken: none is done and lost."""
        meeting, bank = threading.Barrier(2), Bank()

        class Key(str):  # noqa: SLOT000 - a str that can tell when it is looked up
            """A key at whose first use in each thread the threads meet."""

            seen = threading.local()

            def __hash__(self) -> int:
                if not vars(self.seen):
                    self.seen.is_met = meeting.wait(10)
                return super().__hash__()

        def node(state: State, context: NodeContext) -> dict[str, Any]:
            def pay(number: int) -> str | None:
                try:
                    context.effect(Key("pay"), lambda: bank.pay(str(number)))
                except ValueError as error:
                    return str(error)
                return None

            with ThreadPoolExecutor(2) as threads:
                return {"refused": [each for each in threads.map(pay, (1, 2)) if each]}

        (refused,) = stage.execute(make_graph({"a": node}, store=stage.store))["refused"]

        assert "has done effect 'pay' before" in refused
        assert len(bank.bills) == 1

    def test_what_cannot_be_kept_is_unknown(self, stage: Scene) -> None:
        """The effect has happened, so it must not be repeated: the error says both, and how the run goes on."""
        calls = []

        def node(state: State, context: NodeContext) -> dict[str, Any]:
            return {"paid": context.effect("a", call)}

        def call() -> object:
            calls.append(1)
            return object()

        graph = stage.graph({"pay": node})
        with pytest.raises(ExecutionError) as caught:
            stage.execute(graph)
        assert isinstance(caught.value.__cause__, NotSerializableError)
        assert re.search(
            "result in effect 'a' .*effect has happened.*Resume the run.*confirm, or from the answer", str(caught.value)
        )
        assert stage.resume(graph).status == "paused"
        assert calls == [1]

    def test_nothing_is_saved_without_a_store(self) -> None:
        """Then an effect is a plain call."""
        bank, graph = Bank(), StateGraph("bare")
        graph.add_node("pay", pays(bank))
        graph.set_entry_point("pay")
        graph.set_exit_point("pay")

        assert graph.execute(State())["paid"] == bank.bills == ["a", "b", "c"]

    @every_pair(ask=ASKS, is_grouped=[False, True], driver=DRIVERS, as_node=NODES, indirect=["driver", "as_node"])
    def test_a_store_that_fails_is_no_failure_of_the_node(
        self, memory_scene: Scene, ask: Callable[[NodeContext], object], is_grouped: bool
    ) -> None:
        """The call ends with the error of the store, whatever the node catches; nothing is tried again, and the run
        goes on later."""
        store, calls = Failing(), list[int]()

        def node(state: State, context: NodeContext) -> dict[str, Any]:
            calls.append(1)
            try:
                ask(context)
            except Exception:
                return {"paid": "caught"}
            return {"paid": "asked"}

        async def grouped(state: State, context: NodeContext) -> Any:
            async with asyncio.TaskGroup() as group:
                task = group.create_task(as_async(node)(state, context))
            return task.result()

        graph = make_graph(
            {"pay": grouped if is_grouped else memory_scene.as_node(node)},
            store=store,
            policies={"pay": {"retry": RetryPolicy(3, initial_delay=0)}},
        )
        with pytest.raises(CheckpointError, match="unplugged"):
            memory_scene.execute(graph)
        assert store.load(RUN).status == "active"
        store.fails = False

        assert memory_scene.resume(graph)["paid"] == "asked"
        assert calls == [1, 1]

    def test_a_store_must_keep_entries(self) -> None:
        """A store of four methods is refused before anything happens."""
        bank = Bank()
        inner = make_graph({"pay": pays(bank)}, store=MemoryStore())
        for node in (pays(bank), inner.as_node()):
            with pytest.raises(EntriesNotKeptError, match="entries"):
                make_graph({"pay": node}, store=FourMethodStore()).execute(State(run_id=RUN))
        assert bank.bills == []


# --------------------------------------------------------------------------- an unknown outcome


@pytest.mark.parametrize("wrong", [{"call": 5}, {"call": int, "confirm": "find"}], ids=["call", "confirm"])
def test_what_is_no_function_is_refused_before_anything_is_kept(stage: Scene, wrong: dict[str, Any]) -> None:
    """`effect(key, pay(order))` passes the result of a call that has happened: the error names the effect."""

    def node(state: State, context: NodeContext) -> None:
        context.effect("pay", **wrong)

    graph = make_graph({"a": node}, store=stage.store, preserve=True)
    with pytest.raises(ExecutionError, match="effect 'pay' calls a function, not"):
        stage.execute(graph)
    assert stage.store.under_way(RUN).effects == {}


class TestUnknown:
    """Between the intention and the result, no one but the service knows."""

    @every_pair(when=["before", "after"], is_async=[False, True], stage=STAGES, indirect=["stage"])
    def test_confirm_decides(self, stage: Scene, when: str, is_async: bool) -> None:
        """It returns the result if the effect happened; otherwise the call is made."""
        bank = Bank("b") if when == "before" else Bank(after="b")
        confirm = as_async(bank.confirm) if is_async else bank.confirm
        if is_async:

            async def node(state: State, context: NodeContext) -> dict[str, Any]:
                paid = [await context.effect(name, lambda: bank.apay(name), confirm=confirm) for name in "abc"]  # noqa: B023
                return {"paid": [receipt["receipt"] for receipt in paid]}

            graph = make_graph({"pay": node}, store=stage.store)
        else:
            graph = stage.graph({"pay": pays(bank, confirm=confirm)})
        with pytest.raises(Killed):
            stage.execute(graph)

        assert (stage.resume(graph)["paid"], bank.bills) == (["a", "b", "c"], ["a", "b", "c"])

    @every_pair(answer=[{"receipt": "b"}, Repeat()], how=["resume", "answer"], stage=STAGES, indirect=["stage"])
    def test_the_run_pauses(self, stage: Scene, answer: Any, how: str) -> None:
        """Without confirm, it asks for the result, or whether to repeat the call; also where errors are caught."""
        bank = Bank(after="b")
        inner = pays(bank)

        def node(state: State, context: NodeContext) -> Any:
            try:
                return inner(state, context)
            except Exception:
                return {"paid": "no"}

        graph = stage.graph({"first": trace("first"), "pay": node}, schema=Order, preserve=True)
        with pytest.raises(Killed):
            stage.execute(graph)
        paused = stage.resume(graph)
        assert paused.pause is not None
        assert (paused.status, paused.pause.node, paused.pause.value) == ("paused", "pay", "b")
        assert paused.pause.response_param is not None

        if how == "resume":
            final = stage.resume(graph, {paused.pause.response_param: answer}, by="ada")
        else:
            graph.answer(RUN, answer, by="ada")
            final = stage.resume(graph)

        assert final["paid"] == ["a", "b", "c"]
        assert bank.bills == (["a", "b", "b", "c"] if answer == Repeat() else ["a", "b", "c"])
        assert paused.pause.response_param not in final

    def test_an_answer_that_a_crash_cuts_off_is_given_again(self, stage: Scene) -> None:
        """The run still waits, and asks the same."""
        bank = Bank(after="a")
        graph = stage.graph({"pay": pays(bank, "ab")})
        with pytest.raises(Killed):
            stage.execute(graph)
        first = stage.resume(graph).pause
        assert first is not None
        (unknown,) = stage.store.entries(RUN)
        stage.store.append(RUN, [attrs.evolve(unknown, value={"awaits": False, "result": {"receipt": "x"}})])

        final = stage.resume(graph, {"a": {"receipt": "y"}}, pause=first.id)

        assert (final["paid"], bank.bills) == (["y", "b"], ["a", "b"])

    def test_an_exception_is_an_outcome(self, stage: Scene) -> None:
        """The call is made again, unless confirm finds that the effect happened all the same."""
        bank = Bank(after="b", error=TimeoutError("no reply"))
        with pytest.raises(ExecutionError):
            stage.execute(stage.graph({"pay": pays(bank)}))
        assert stage.resume(stage.graph({"pay": pays(bank, confirm=bank.confirm)}))["paid"] == ["a", "b", "c"]
        assert bank.bills == ["a", "b", "c"]

        stage.store.delete(RUN)
        bank = Bank(before="b", error=OSError("refused"))
        retried = stage.graph({"pay": pays(bank)}, policies={"pay": {"retry": RetryPolicy(2, initial_delay=0)}})
        assert stage.execute(retried)["paid"] == bank.bills == ["a", "b", "c"]


@attrs.frozen
class Order:
    """A schema without a field for answers about effects."""

    trace: list[str] = attrs.field(factory=list)
    paid: list[str] = attrs.field(factory=list)


# --------------------------------------------------------------------------- async calls


async def _in_a_group(context: NodeContext, bank: Bank) -> list[Any]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(context.effect(name, lambda: bank.apay(name))) for name in "abc"]  # noqa: B023
    return [task.result() for task in tasks]


@pytest.mark.parametrize("driver", ["sync", "async"])
def test_async_calls_make_it_awaitable(tmp_path: Any, driver: str) -> None:
    """A function, and a lambda that returns a coroutine; also when it was done before, and several at once."""
    bank, end = Bank(after="b"), once(Killed())

    async def node(state: State, context: NodeContext) -> dict[str, Any]:
        one = await context.effect("one", lambda: bank.apay("one"))
        paid = await _in_a_group(context, bank)
        end()
        return {"paid": [receipt["receipt"] for receipt in [one, *paid]]}

    for scene in staged(("sqlite", driver, "sync nodes"), tmp_path):
        graph = make_graph({"pay": node}, store=scene.store)
        with pytest.raises(BaseExceptionGroup):
            scene.execute(graph)
        state = scene.resume(graph)
        with pytest.raises(Killed):
            while state.pause is not None:  # the group has cancelled others, too
                key = state.pause.value
                answer = {"receipt": key} if key in bank.bills else Repeat()
                state = scene.resume(graph, {key: answer})

        assert scene.resume(graph)["paid"] == ["one", "a", "b", "c"]
        assert sorted(bank.bills) == ["a", "b", "c", "one"]


# --------------------------------------------------------------------------- parts and nested graphs


def item(bank: Bank, is_async: bool = False) -> Any:
    """Return the function of an item, which is paid."""

    def pay(name: str, context: NodeContext) -> str:
        return str(context.effect("pay", lambda: bank.pay(name))["receipt"])

    return as_async(pay) if is_async else pay


def made(bank: Bank, kind: str) -> Any:
    """Return a node that pays for a and b in two places."""
    if kind == "nested":
        return make_graph({"in": trace("in"), "pay": pays(bank, "ab")}, store=MemoryStore(), name="inner").as_node()
    if kind == "branches":
        return ParallelNode({name: pays(bank, name) for name in "ab"}, reducers={"paid": lambda one, two: [*one, *two]})
    if kind == "graphs":
        inner = make_graph({"pay": lambda s, context: {"paid": item(bank)(s["name"], context)}}, store=MemoryStore())
        return MapNode(inner.as_node(outputs=["paid"]), over="names", into="paid", on_error="collect")
    return MapNode(item(bank, kind == "async items"), over="names", into="paid", retry=RetryPolicy(2, initial_delay=0))


@pytest.mark.parametrize("kind", ["nested", "branches", "items", "async items", "graphs"])
def test_parts_and_nested_graphs_have_effects(play: Scene, kind: str) -> None:
    """Each part has its own. The unknown ones are asked for, one by one, and the others finish."""
    bank = Bank(after="b")
    graph = make_graph({"first": trace("first"), "pay": made(bank, kind)}, store=play.store)
    begun = State({"names": [{"name": "a"}, {"name": "b"}] if kind == "graphs" else ["a", "b"]}, run_id=RUN)
    with pytest.raises(Killed):
        play.execute(graph, begun)

    paused = play.resume(graph)
    assert paused.pause is not None
    assert (paused.pause.node, paused.pause.others) == ("pay", ())
    final = play.resume(graph, {str(paused.pause.response_param): {"receipt": "B"}})

    assert sorted(bank.bills) == ["a", "b"]
    paid = final["paid"]
    assert [one["paid"] for one in paid] == ["a", "B"] if kind == "graphs" else paid == ["a", "B"]


def test_several_unknown_outcomes(play: Scene) -> None:
    """Each is a pause of its own, named by its part, and stays the same one until it is answered."""
    bank = Bank(error=Killed())
    graph = make_graph({"pay": made(bank, "items")}, store=play.store)

    def dies(name: str) -> Any:
        bank.bills.append(name)
        raise Killed

    bank.pay = dies  # type: ignore[method-assign]
    for _ in range(2):
        with pytest.raises(Killed):
            play.execute(graph, State({"names": ["a", "b"]}, run_id=RUN)) if not bank.bills else play.resume(graph)
        if len(bank.bills) == 2:
            break
    pauses = play.resume(graph).pause
    assert pauses is not None
    assert [pause.part for pause in pauses.each] == ["0", "1"]

    copy = play.store.fork(RUN, "copy").run_id
    both = play.call(graph, "resume", copy).pause
    assert both is not None
    for pause, name in zip(both.each, "AB", strict=True):
        graph.answer(copy, {"receipt": name}, pause=pause)
    assert play.call(graph, "resume", copy)["paid"] == ["A", "B"]

    again = play.resume(graph, {"pay": {"receipt": "B"}}, pause=pauses.each[1]).pause
    assert again is not None
    assert again == pauses.each[0]
    assert play.resume(graph, {"pay": {"receipt": "A"}})["paid"] == ["A", "B"]
    assert sorted(bank.bills) == ["a", "b"]


def graphs_that_pay(bank: Bank, kind: str, combine: Callable[[], object] = bool) -> dict[str, Any]:
    """Return a node that runs graphs which pay, and then go on: one, two branches, or one for each item."""

    def out(state: State) -> dict[str, Any]:
        combine()
        return {"paid": state["paid"]}

    inner = make_graph({"pay": pays(bank, "a"), "last": trace("last")}, store=MemoryStore(), name="inner")
    graph: Any = inner.as_node(outputs=out if kind == "one" else ["paid"])
    if kind == "branches":
        graph = ParallelNode({"left": graph, "right": trace("right")})
    elif kind == "items":
        graph = MapNode(graph, over="names", into="paid")
    return {"first": trace("first"), "pay": graph, "end": trace("end")}


@pytest.mark.parametrize("kind", ["one", "branches", "items"])
@pytest.mark.parametrize("at", ["last", ""], ids=["under way", "done"])
def test_an_update_repeats_no_effects_of_graphs(play: Scene, kind: str, at: str) -> None:
    """A graph goes on with an update, or the resume is refused and says what is done: the former values go on, or
    `repeat_effects` gives it up."""
    former, changed = {"names": [{"n": 1}]}, {"names": [{"n": 2}]}
    way = {"one": "pay", "branches": "pay/left", "items": "pay"}[kind]
    for gives_up in (False, True):
        bank = Bank()
        graph = make_graph(graphs_that_pay(bank, kind), store=play.store, preserve=True)
        with kill_at(f"{way}/last" if at else "pay", saved=False):
            play.execute(graph, State(former, run_id=RUN))
        assert bank.bills == ["a"]
        if (kind, at) == ("one", "last"):
            assert play.resume(graph, changed)["names"] == changed["names"]
            assert bank.bills == ["a"]
        else:
            with pytest.raises(EffectsError, match=r"repeat_effects=True") as caught:
                play.resume(graph, changed)
            assert {(step, key) for step, _, key in caught.value.effects} == {(2, "a")}
            assert caught.value.effects[0][1].startswith(way)
            final = play.resume(graph, changed if gives_up else former, repeat_effects=gives_up)
            assert final.status == "completed"
            assert bank.bills == ["a"] * (1 + gives_up)
        play.store.delete(RUN)


def test_a_graph_whose_result_does_not_fit_does_not_begin_again(play: Scene) -> None:
    """Its effects would be repeated: the step fails until its code fits the result, or `repeat_effects` gives it up."""
    bank, errors = Bank(), [ValueError("no")] * 2

    def combine() -> None:
        if errors:
            raise errors.pop()

    graph = make_graph(graphs_that_pay(bank, "one", combine), store=play.store)
    for fails in (play.execute, play.resume):
        with pytest.raises(ExecutionError):
            fails(graph)
    assert play.resume(graph).status == "completed"
    assert bank.bills == ["a"]


def test_a_graph_that_is_done_again_says_what_it_would_repeat(play: Scene) -> None:
    """`redo` of a graph that has done effects needs `repeat_effects`."""
    bank = Bank()
    graph = make_graph(graphs_that_pay(bank, "items"), store=play.store)
    with kill_at("pay", saved=False):
        play.execute(graph, State({"names": [{"n": 1}]}, run_id=RUN))

    with pytest.raises(EffectsError, match="repeat_effects=True"):
        play.resume(graph, redo=["pay/0"])
    assert bank.bills == ["a"]
    assert play.resume(graph, redo=["pay/0"], repeat_effects=True).status == "completed"
    assert bank.bills == ["a", "a"]


def test_a_node_may_try_again_by_itself(play: Scene) -> None:
    """A call that raised did not take effect: the same attempt may make it again under its key."""
    bank, tries = Bank(before="a", error=OSError("busy")), list[str]()

    def pays_after_all(state: State, context: NodeContext) -> dict[str, Any]:
        while True:
            tries.append("a")
            with suppress(OSError):
                receipt = context.effect("a", lambda: bank.pay("a"))
                break
        with pytest.raises(ValueError, match="this attempt has done effect 'a' before"):
            context.effect("a", lambda: bank.pay("a"))
        return receipt

    play.execute(make_graph({"pay": pays_after_all}, store=play.store))

    assert (tries, bank.bills) == (["a", "a"], ["a"])


# --------------------------------------------------------------------------- changed graphs


def test_a_changed_graph_has_the_effects(play: Scene) -> None:
    """A renamed node keeps its effects, also behind a node that was put before it."""
    bank = Bank()
    with pytest.raises(Killed):
        play.execute(make_graph({"first": trace("first"), "pay": pays(bank, then=once(Killed()))}, store=play.store))
    nodes = {"first": trace("first"), "new": trace("new"), "bill": pays(bank)}
    changed = make_graph(nodes, store=play.store)

    final = play.resume(changed, migrate={"pay": "bill"}, allow_changed=True)

    assert final["paid"] == bank.bills == ["a", "b", "c"]


def test_a_removed_node_with_effects_stops_the_resume(play: Scene) -> None:
    """The error says what is done."""
    bank = Bank()
    graph = make_graph({"first": trace("first"), "pay": pays(bank, "a", then=once(Killed()))}, store=play.store)
    with pytest.raises(Killed):
        play.execute(graph)
    changed = make_graph({"first": trace("first"), "other": trace("other")}, store=play.store)

    with pytest.raises(GraphMismatchError, match="effect a"):
        play.resume(changed, allow_changed=True)
    assert play.resume(changed, allow_changed=True, abandon_parts=True).status == "completed"


def test_a_sweep_sets_a_run_aside_that_would_repeat_effects(play: Scene) -> None:
    """Changed code gives a graph of the step under way other data: one sweep reports it, and the old code goes on."""
    bank = Bank()

    def version(number: int) -> Any:
        inner = make_graph({"pay": pays(bank, "a"), "last": trace("last")}, store=MemoryStore(), name="inner")
        node = ParallelNode({"left": inner.as_node(lambda _: {"number": number}, ["paid"]), "right": trace("right")})
        return make_graph({"pay": node}, store=play.store)

    with kill_at("pay/left/last", saved=False):
        play.execute(version(1), State(run_id=RUN))
    changed = version(2)

    assert [[type(each.error) for each in changed.recover()] for _ in range(3)] == [[EffectsError], [], []]
    assert [each.error for each in version(1).recover()] == [None]
    assert bank.bills == ["a"]


def test_parts_that_are_done_again_keep_their_effects(play: Scene) -> None:
    """Finished parts that cannot be combined run again; what they have paid is paid."""
    bank, errors = Bank(), [ValueError("one"), ValueError("two")]

    def both(one: Any, two: Any) -> Any:
        if errors:
            raise errors.pop()
        return [*one, *two]

    node = ParallelNode({name: pays(bank, name) for name in "ab"}, reducers={"paid": both})
    graph = make_graph({"first": trace("first"), "pay": node}, store=play.store)
    with pytest.raises(ExecutionError):
        play.execute(graph)

    assert play.resume(graph)["paid"] == ["a", "b"]
    assert sorted(bank.bills) == ["a", "b"]


def test_a_new_turn_does_its_own_effects(stage: Scene) -> None:
    """Not those of a cancelled turn, which may have been about something else."""
    bank = Bank()
    graph = stage.graph({"pay": pays(bank, "a", then=once(Killed())), "end": trace("end")}, preserve=True)
    with pytest.raises(Killed):
        stage.execute(graph)
    graph.cancel(RUN)

    assert stage.call(graph, "turn", RUN, {"n": 2}).status == "completed"
    assert bank.bills == ["a", "a"]


@every_pair(kind=["items", "nested", "graphs"], again=["restart", "turn"], stage=STAGES, indirect=["stage"])
def test_a_crash_at_a_new_beginning_repeats_nothing(stage: Scene, kind: str, again: str) -> None:
    """It leaves the old State with all that its step has done, or the new one, which has done nothing."""
    names = [{"name": "a"}, {"name": "b"}] if kind == "graphs" else ["a", "b"]
    for number, after in itertools.product(range(1, 5), (False, True)):
        bank, dying = Bank(), MortalStore(stage.store, number, after=after)
        nodes = {"pay": made(bank, kind), "last": trace("last")}
        one, two = (make_graph(nodes, store=store, preserve=True) for store in (stage.store, dying))
        _killed_after_paying(stage, one, bank, State({"names": names, "n": 1}, run_id=RUN))
        if again == "turn":
            one.cancel(RUN)
        with suppress(crashing.Killed):
            given = {"n": 2}
            if again == "turn":
                stage.turn(two, given)
            else:
                stage.execute(two, stage.store.load(RUN).update(given), restart=True)
        if any(write.startswith("effect") for write in dying.writes):
            assert number > 1
            return

        is_new = stage.store.load(RUN)["n"] == 2
        stage.resume(one)

        assert sorted(bank.bills) == (["a", "a", "b", "b"] if is_new else ["a", "b"])
        stage.store.delete(RUN)


def _killed_after_paying(stage: Scene, graph: StateGraph, bank: Bank, state: State) -> None:
    """Run a graph until it has paid in a step that is not saved."""
    with kill_at("pay", saved=False):
        stage.execute(graph, state)
    assert sorted(bank.bills) == ["a", "b"]
    assert stage.store.load(RUN).step == 0


# --------------------------------------------------------------------------- going back


class TestGoingBack:
    """A run says which effects its steps did, and does not go back to before them by accident."""

    def test_the_history_has_the_effects(self, stage: Scene) -> None:
        """Of each step, also those that a crash has cut off from the rest of the step."""
        bank = Bank()
        nodes = {"first": trace("first"), "pay": pays(bank, then=once(Killed())), "last": pays(bank, "d")}
        graph = stage.graph(nodes, retention="full", preserve=True)
        with pytest.raises(Killed):
            stage.execute(graph)
        stage.resume(graph)

        effects = {row.step: row.effects for row in reopened(stage.store).history(RUN)}

        assert effects == {0: (), 1: (), 2: ("a", "b", "c"), 3: ("d",)}

    @pytest.mark.parametrize("kind", ["nested", "branches", "items", "graphs"])
    def test_parts_that_were_done_before_a_crash_count(self, play: Scene, kind: str) -> None:
        """Also if the step only combines them after it."""
        bank = Bank()
        graph = make_graph({"pay": made(bank, kind), "last": trace("last")}, store=play.store, preserve=True)
        names = [{"name": "a"}, {"name": "b"}] if kind == "graphs" else ["a", "b"]
        _killed_after_paying(play, graph, bank, State({"names": names}, run_id=RUN))

        with kill_at("pay"):
            play.resume(graph)

        assert set(play.store.history(RUN)[-1].effects) == ({"a", "b"} if kind in ("nested", "branches") else {"pay"})
        assert sorted(bank.bills) == ["a", "b"]

    @pytest.mark.parametrize("kind", ["nested", "branches", "items", "graphs"])
    def test_parts_and_nested_graphs_count(self, play: Scene, kind: str) -> None:
        """Their effects are those of the step around them, while it is under way as well."""
        bank = Bank(after="b")
        nodes = {"first": trace("first"), "pay": made(bank, kind), "last": trace("last")}
        graph = make_graph(nodes, store=play.store, retention="full", preserve=True)
        begun = State({"names": [{"name": "a"}, {"name": "b"}] if kind == "graphs" else ["a", "b"]}, run_id=RUN)
        with pytest.raises(Killed):
            play.execute(graph, begun)
        with pytest.raises(EffectsError):
            play.store.rollback(RUN, 1)
        paused = play.resume(graph)
        assert paused.pause is not None
        play.resume(graph, {str(paused.pause.response_param): {"receipt": "b"}})

        with pytest.raises(EffectsError) as caught:
            play.store.rollback(RUN, 1)
        keys = {"a", "b"} if kind in ("nested", "branches") else {"pay"}
        assert set(caught.value.effects) == {(2, "pay", key) for key in keys}

    @pytest.mark.parametrize("is_nested", [False, True])
    def test_what_a_repeated_step_did_before_counts(self, play: Scene, is_nested: bool) -> None:
        """Also if the step takes another path then, on which it does nothing."""
        bank = Bank()

        def pay(state: State, context: NodeContext) -> dict[str, Any]:
            if not bank.bills:
                context.effect("a", lambda: bank.pay("a"))
                raise Killed
            return {"paid": []}

        nodes: dict[str, Any] = {"first": trace("first"), "pay": pay, "last": trace("last")}
        if is_nested:
            nodes = {"graph": make_graph(nodes, store=MemoryStore(), name="inner").as_node(), "end": trace("end")}
        graph = make_graph(nodes, store=play.store, retention="full", preserve=True)
        with pytest.raises(Killed):
            play.execute(graph)
        play.resume(graph)

        with pytest.raises(EffectsError):
            play.store.rollback(RUN, 0)
        assert bank.bills == ["a"]

    def test_a_rollback_or_fork_that_would_repeat_them_is_refused(self, stage: Scene) -> None:
        """The error lists them. A caller that wants that says so; what comes after them is free."""
        bank = Bank()
        nodes = {"first": trace("first"), "pay": pays(bank, "ab"), "last": trace("last"), "end": trace("end")}
        graph = stage.graph(nodes, retention="full", preserve=True)
        stage.execute(graph)
        store = stage.store

        for go_back in (lambda **how: store.rollback(RUN, 1, **how), lambda **how: store.fork(RUN, "copy", 1, **how)):
            with pytest.raises(EffectsError, match="repeat_effects=True") as caught:
                go_back()
            assert caught.value.effects == ((2, "pay", "a"), (2, "pay", "b"))
        assert store.fork(RUN, "later", 2).step == store.rollback(RUN, 2).step == 2
        assert store.rollback(RUN, 1, repeat_effects=True).step == 1
        assert store.rollback(RUN, 0).step == 0  # they are undone
        stage.resume(graph)
        assert bank.bills == ["a", "b", "a", "b"]

    def test_the_step_under_way_counts(self, stage: Scene) -> None:
        """A rollback to its input forgets what it has done; a fork has that as well."""
        bank = Bank()
        graph = stage.graph({"first": trace("first"), "pay": pays(bank, "ab", then=once(Killed()))})
        with pytest.raises(Killed):
            stage.execute(graph)

        with pytest.raises(EffectsError) as caught:
            stage.store.rollback(RUN, 1)
        assert caught.value.effects == ((2, "pay", "a"), (2, "pay", "b"))
        stage.store.fork(RUN, "copy", 1)
        assert stage.call(graph, "resume", "copy")["paid"] == ["a", "b"]
        assert bank.bills == ["a", "b"]

    def test_a_fork_that_asks_again_is_refused(self, play: Scene) -> None:
        """A copy of a step that has used an answer takes it back and begins again, with what its other branches did."""
        bank = Bank()
        asks = make_graph({"ask": InterruptNode("names", "answer"), "fail": raises(OSError())}, store=MemoryStore())
        nodes = {"pay": ParallelNode({"now": pays(bank, "ab"), "later": asks})}
        graph = make_graph(nodes, store=play.store, preserve=True)
        play.execute(graph, State({"names": []}, run_id=RUN))
        play.store.fork(RUN, "waits")
        with pytest.raises(ExecutionError):
            play.resume(graph, {"answer": True})

        for step in (None, 0):
            with pytest.raises(EffectsError) as caught:
                play.store.fork(RUN, "copy", step)
            assert caught.value.effects == ((1, "pay/now", "a"), (1, "pay/now", "b"))
        play.store.fork(RUN, "copy", repeat_effects=True)
        assert bank.bills == ["a", "b"]


# --------------------------------------------------------------------------- the error before


class TestLastError:
    """`NodeContext.last_error` is the failure of the attempt before."""

    def test_of_a_retry_and_of_a_resume(self, scene: Scene) -> None:
        """It is None for other steps."""
        seen, errors = list[Any](), [OSError("one"), OSError("two"), None, None]

        def node(state: State, context: NodeContext) -> dict[str, Any]:
            seen.append(context.last_error and (context.last_error.type, context.last_error.message))
            error = errors.pop(0)
            if error is not None:
                raise error
            return {}

        edges = [("a", "a", lambda state: state.step < 2), ("a", "b", lambda state: state.step >= 2)]
        graph = scene.graph(
            {"a": node, "b": trace("b")}, edges, policies={"a": {"retry": RetryPolicy(2, initial_delay=0)}}
        )
        with pytest.raises(ExecutionError):
            scene.execute(graph)
        scene.resume(graph)

        assert seen == [None, ("OSError", "one"), ("OSError", "two (after 2 attempts)"), None]

    def test_of_an_item(self, play: Scene) -> None:
        """Each item has its own."""
        seen = list[Any]()

        def function(item: int, context: NodeContext) -> int:
            seen.append((item, context.attempt, context.last_error and context.last_error.message))
            if item and context.attempt == 1:
                raise OSError(f"item {item}")
            return item

        node = MapNode(function, over="xs", into="ys", retry=RetryPolicy(2, initial_delay=0))
        play.execute(make_graph({"map": node}, store=play.store), State({"xs": [0, 1]}, run_id=RUN))

        assert sorted(seen, key=repr) == [(0, 1, None), (1, 1, None), (1, 2, "item 1")]


class _Overtaken:
    """A function whose first attempt passes its timeout, and asks for an effect while the next attempt is at work."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.refused: list[str] = []
        self._attempts, self._follows, self._is_over = 0, threading.Event(), threading.Event()

    def __call__(self, given: Any, context: NodeContext) -> Any:
        self._attempts += 1
        if self._attempts == 1:
            self._follows.wait(60)
            try:
                context.effect("pay", lambda: self.made.append("too late"))
            except RuntimeError as error:
                self.refused.append(str(error))
            self._is_over.set()
        self._follows.set()
        self._is_over.wait(60)
        return {"done": 1}


@pytest.mark.parametrize("shape", ["node", "item", "items", "branch", "nested", "nested item"])
def test_an_attempt_that_is_over_begins_no_effect(shape: str, tmp_path: Path) -> None:
    """The thread of an attempt that took too long goes on, but does no effect beside the attempt that follows it:
    in a node, an item, a branch, and a nested graph."""
    late = _Overtaken()
    policies: Any = {"timeout": 0.1, "retry": RetryPolicy(max_attempts=100, initial_delay=0.001)}
    inner = make_graph({"pay": late}, store=MemoryStore(), name="inner").as_node()
    node: Any = {
        "node": late,
        "item": MapNode(late, over="items", into="out", **policies),
        "items": MapNode(late, over="items", into="out"),
        "branch": ParallelNode({"pay": late}),
        "nested": inner,
        "nested item": MapNode(inner, over="items", into="out"),
    }[shape]
    graph = StateGraph("bills", store=SqliteStore(tmp_path / "runs.db"))
    graph.add_node("bills", node, **({} if shape == "item" else policies))
    graph.set_entry_point("bills")
    graph.set_exit_point("bills")

    graph.execute(State({"items": [{"bill": 1}]}, run_id=RUN))

    assert late.made == []
    assert "its attempt is over" in late.refused[0]


# --------------------------------------------------------------------------- contexts that outlive their step


@every_pair(ask=ASKS[:3], end=["completes", "fails", "pauses"], stage=STAGES, indirect=["stage"])
def test_a_context_is_closed_with_its_call(stage: Scene, ask: Callable[[NodeContext], object], end: str) -> None:
    """A thread or a closure that has kept it gets a RuntimeError that says so, and nothing is kept."""
    kept = list[NodeContext]()

    def node(state: State, context: NodeContext) -> State:
        kept.append(context)
        if end == "fails":
            raise OSError("unplugged")
        return state.paused("asks") if end == "pauses" else state

    with suppress(ExecutionError):
        stage.execute(stage.graph({"a": node}, preserve=True))

    with pytest.raises(RuntimeError, match=r"of node 'a' in step 1 of run 'run': its attempt is over"):
        ask(kept[0])
    assert stage.store.entries(RUN) == []


def test_a_context_is_closed_with_its_step(stage: Scene) -> None:
    """The next node is at work: an effect or a status of the step before is refused, and what was spent counts."""
    kept, refused = list[NodeContext](), list[str]()

    def uses(state: State, context: NodeContext) -> dict[str, Any]:
        for ask in ASKS[:3]:
            try:
                ask(kept[0])
            except RuntimeError as error:
                refused.append(str(error))
        return {}

    def keeps(state: State, context: NodeContext) -> dict[str, Any]:
        kept.append(context)
        return {}

    final = stage.execute(stage.graph({"keeps": keeps, "uses": uses}))

    assert [text.split(" of node")[0] for text in refused] == ["effect 'a'", "status"]
    assert final.spent == {"usd": 1}


@pytest.mark.parametrize("shape", ["node", "graph", "in a graph"])
def test_a_step_that_runs_again_for_its_keys_repeats_no_effect(tmp_path: Path, shape: str) -> None:
    """Its keys are not saved: the resume is refused and says what to give; with that it goes on."""
    bank, ends = Bank(), once(OSError("unplugged"))

    def uses(state: State) -> dict[str, Any]:
        ends()
        return {"used": state["paid"]}

    with SqliteStore(tmp_path / "runs.db") as store:
        nodes: dict[str, Any] = {"pay": pays(bank, "a"), "use": uses}
        if shape == "graph":
            nodes["pay"] = make_graph({"pay": nodes["pay"]}, store=store, name="inner").as_node(outputs=["paid"])
        graph = make_graph(nodes, store=store, persist=("used",))
        if shape == "in a graph":
            graph = make_graph({"outer": graph.as_node()}, store=store, name="outer")
        for message in ("unplugged", "give them to resume"):
            with pytest.raises(Exception, match=message):
                graph.run(State(run_id=RUN))
            assert bank.bills == ["a"]

        if shape != "in a graph":
            assert graph.resume(RUN, {"paid": ["a"]})["used"] == ["a"]
    assert bank.bills == ["a"]


# --------------------------------------------------------------------------- an effect that no one awaits


@pytest.mark.parametrize("shape", ["node", "node with a retry", "items"])
def test_a_sync_node_that_does_not_await_an_effect_fails(shape: str) -> None:
    """Nothing was called, so the step must not complete: the error names the key."""
    bank = Bank()

    def node(given: Any, context: NodeContext) -> dict[str, Any]:
        context.effect("pay", partial(bank.apay, "a"))  # type: ignore[unused-coroutine] # as a user may forget it
        return {"paid": True}

    nodes: dict[str, Any] = {"a": MapNode(node, over="items", into="out") if shape == "items" else node}
    policies: Any = {"a": {"retry": RetryPolicy(2, initial_delay=0)}} if shape == "node with a retry" else {}
    graph = make_graph(nodes, store=MemoryStore(), policies=policies)

    with pytest.raises(ExecutionError) as caught:
        graph.execute(State({"items": [1]}, run_id=RUN))

    assert "effect 'pay' was not awaited, so nothing was called" in repr((caught.value, caught.value.__cause__))
    assert bank.bills == []


@pytest.mark.parametrize("way", ["on a loop of its own", "returned"])
def test_a_sync_node_may_have_its_effect_awaited(way: str) -> None:
    """By a loop of its own, or by the graph if it returns the awaitable."""
    bank = Bank()

    async def pay() -> dict[str, Any]:
        return {"paid": [(await bank.apay("a"))["receipt"]]}

    def node(state: State, context: NodeContext) -> Any:
        later = context.effect("pay", pay)
        return later if way == "returned" else asyncio.run(later)

    assert make_graph({"a": node}, store=MemoryStore()).execute(State(run_id=RUN))["paid"] == bank.bills == ["a"]
