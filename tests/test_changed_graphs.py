"""Runs that go on although their graph has changed while a step was under way."""

from __future__ import annotations

import asyncio
import importlib
import subprocess
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from stategraph import (
    CheckpointConfig,
    CheckpointStore,
    ExecutionError,
    GraphConfig,
    GraphMismatchError,
    InterruptNode,
    MapNode,
    NodeContext,
    ParallelNode,
    RunStatus,
    State,
    StateGraph,
)
from stategraph._values.provenance import EdgeStructure, GraphStructure
from stategraph.stores.memory import MemoryStore
from stategraph.stores.sqlite import SqliteStore
from stategraph.turns import Order, perform
from tests.scenarios import RUN, make_graph, raises, returns, trace

ITEMS = ["a", "b", "c"]


class Bank:
    """Pays items, and notes the idempotency key of each payment; "c" fails until the bank is up."""

    def __init__(self) -> None:
        self.is_up = False
        self.paid: dict[str, list[str]] = defaultdict(list)

    def pay(self, item: str, context: NodeContext) -> str:
        """Pay an item."""
        if item == "c" and not self.is_up:
            raise OSError("the bank is down")
        self.paid[item].append(context.idempotency_key)
        return item

    def paying(self, item: str) -> Any:
        """Return a node or branch that pays an item."""
        return lambda state, context: {item: self.pay(item, context)}


def half_done(kind: str, bank: Bank, store: CheckpointStore) -> Any:
    """Return a node of this kind that pays the items."""
    steps = {item: bank.paying(item) for item in ITEMS}
    inner = {item: make_graph({"go": steps[item]}, store=store, name=item) for item in ITEMS}
    match kind:
        case "map":
            return MapNode(bank.pay, over="items", into="paid", max_workers=1)
        case "map of graphs":
            graph = make_graph({"go": lambda state, context: {"x": bank.pay(state["item"], context)}}, store=store)
            return MapNode(graph.as_node(inputs=["item"]), over="items", into="paid", max_workers=1)
        case "parallel":
            return ParallelNode(steps, max_workers=1)
        case "parallel graphs":
            return ParallelNode(inner, max_workers=1)
        case "graph":
            return make_graph(steps, store=store, name="inner").as_node()
    raise ValueError(kind)


KINDS = ["map", "map of graphs", "parallel", "parallel graphs", "graph"]


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CheckpointStore]:
    """A store in a file, unless a test asks for another one."""
    make = getattr(request, "param", lambda: SqliteStore(tmp_path / "runs.db"))
    with make() as opened:
        yield opened


@pytest.fixture
def bank() -> Bank:
    return Bank()


class TestInsertedNode:
    """What is paid is never paid again under another key, whatever a changed graph does before."""

    @pytest.mark.parametrize("writes", [{}, {"tax": 1}], ids=str)
    @pytest.mark.parametrize("is_rolled_back", [False, True])
    @pytest.mark.parametrize("kind", KINDS)
    def test_before_a_half_done_node(
        self, store: CheckpointStore, bank: Bank, kind: str, is_rolled_back: bool, writes: dict[str, Any]
    ) -> None:
        """Finished parts stay finished and keys the same, although the node is entered in a later step."""

        def make(*before: str) -> StateGraph:
            nodes = {"price": trace("price"), **dict.fromkeys(before, returns(writes))}
            nodes |= {"pay": half_done(kind, bank, store), "end": trace("end")}
            return make_graph(nodes, store=store, preserve=True)

        start = State({"items": [{"item": i} for i in ITEMS] if "of" in kind else ITEMS}, run_id=RUN)
        with pytest.raises(ExecutionError):
            make().execute(start)
        if is_rolled_back:
            store.rollback(RUN, 1)
            bank.paid.clear()
            with pytest.raises(ExecutionError):
                make().resume(RUN)
        with pytest.raises(ExecutionError):  # still down, and the change is known now
            make("tax").resume(RUN, allow_changed=True)
        with pytest.raises(ExecutionError):
            make("tax", "fee").resume(RUN, allow_changed=True)
        bank.is_up = True

        final = make("tax", "fee").resume(RUN)

        assert (final.status, final.step, final.get("tax")) == (RunStatus.COMPLETED, 5, writes.get("tax"))
        assert {item: len(keys) for item, keys in bank.paid.items()} == dict.fromkeys(ITEMS, 1)
        assert [run.run_id for run in store.iter_runs(parent=RUN)] == []
        assert list(store.load_parts(RUN, 2, "pay")) == []

    def test_before_a_node_that_was_killed(self, tmp_path: Path) -> None:
        """A node that paid and was killed before its save pays again under the same key; a later visit has its own."""
        program = tmp_path / "program.py"
        program.write_text(PROGRAM)
        killed = subprocess.run([sys.executable, program, "kill"], cwd=tmp_path, check=False)
        assert killed.returncode != 0

        subprocess.run([sys.executable, program, "resume"], cwd=tmp_path, check=True)

        assert (tmp_path / "paid").read_text().split() == [f"flow/{RUN}/#{step}/pay" for step in (2, 2, 5)]

    def test_under_the_old_name_of_a_renamed_node(self, store: CheckpointStore, bank: Bank) -> None:
        """The new node has keys of its own: the renamed one has kept those with the old name."""
        with pytest.raises(ExecutionError):
            make_graph({"price": trace("price"), "pay": bank.paying("c")}, store=store).execute(State(run_id=RUN))
        bank.is_up = True
        nodes = {"price": trace("price"), "pay": bank.paying("b"), "charge": bank.paying("c")}

        make_graph(nodes, store=store).resume(RUN, migrate={"pay": "charge"}, allow_changed=True)

        assert bank.paid["c"] == [f"flow/{RUN}/#2/pay"] != bank.paid["b"]

    @pytest.mark.parametrize("store", [MemoryStore], indirect=True)
    @pytest.mark.parametrize("kind", KINDS)
    def test_a_fork_in_memory(self, store: CheckpointStore, bank: Bank, kind: str) -> None:
        """A copy of the run has the finished parts in a store in memory, too."""
        self.test_a_fork_of_it(store, bank, kind)

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_fork_of_it(self, store: CheckpointStore, bank: Bank, kind: str) -> None:
        """A copy of the run has the finished parts as well."""

        def make(*before: str) -> StateGraph:
            nodes = {"price": trace("price"), **dict.fromkeys(before, returns({}))}
            return make_graph({**nodes, "pay": half_done(kind, bank, store)}, store=store, preserve=True)

        start = State({"items": [{"item": i} for i in ITEMS] if "of" in kind else ITEMS}, run_id=RUN)
        with pytest.raises(ExecutionError):
            make().execute(start)
        with pytest.raises(ExecutionError):
            make("tax").resume(RUN, allow_changed=True)
        store.fork(RUN, "copy")
        bank.is_up = True

        assert make("tax").resume("copy").status is RunStatus.COMPLETED
        assert {item: len(keys) for item, keys in bank.paid.items()} == dict.fromkeys(ITEMS, 1)


PROGRAM = f"""
import os, signal, sys
from stategraph import State, StateGraph
how = sys.argv[1]

def pay(state, context):
    with open("paid", "a") as paid:
        paid.write(context.idempotency_key + "\\n")
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    return {{"visits": state.get("visits", 0) + 1}}

graph = StateGraph("flow", store="runs.db")
names = ["price", "pay"] if how == "kill" else ["price", "tax", "pay", "end"]
for name in names:
    graph.add_node(name, pay if name == "pay" else lambda state: {{}})
graph.add_sequence(*names[:names.index("pay") + 1])
graph.set_entry_point("price")
graph.set_exit_point(names[-1])
if how == "kill":
    graph.execute(State(run_id="{RUN}"))
else:
    graph.add_edge("pay", "tax", lambda state: state["visits"] < 2)
    graph.add_edge("pay", "end")
    graph.resume("{RUN}", allow_changed=True)
"""


class TestNestedGraphThatChanged:
    """A worker refuses a run whose nested graph has changed before it writes anything."""

    @pytest.mark.parametrize("is_deep", [False, True])
    @pytest.mark.parametrize("kind", ["graph", "map of graphs", "parallel graphs"])
    def test_it_is_set_aside(self, store: CheckpointStore, kind: str, is_deep: bool) -> None:
        """It is refused once, by each worker, and its version stays: other workers are not told that it has changed."""

        def crash(state: State) -> None:
            raise KeyboardInterrupt

        def make(last: str) -> StateGraph:
            graph = make_graph({"one": trace("one"), last: crash}, store=store, name="inner")
            if is_deep:
                graph = make_graph({"deeper": graph.as_node()}, store=store, name="middle")
            node = {
                "graph": graph.as_node(),
                "map of graphs": MapNode(graph.as_node(inputs=["trace"]), over="items", into="made"),
                "parallel graphs": ParallelNode({"a": graph, "b": returns({})}),
            }[kind]
            return make_graph({"first": trace("first"), "a": node}, store=store, preserve=True)

        with pytest.raises(KeyboardInterrupt):
            make("crash").execute(State({"items": [{"trace": []}], "trace": []}, run_id=RUN))
        before, workers = store.changed_since(None), [make("other"), make("other")]

        refused = [one for worker in workers * 2 for one in worker.recover()]

        assert [type(one.error) for one in refused] == [GraphMismatchError] * 2
        assert "node 'other' was added" in str(refused[0].error)
        assert store.changed_since(before) is None
        with pytest.raises(KeyboardInterrupt):
            [*make("crash").recover()]


class TestFinishedPartsWithoutANode:
    """A resume that has no use for finished parts is refused, and says what is done."""

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("change", ["removed", "renamed and changed", "changed"])
    def test_it_is_refused(self, store: CheckpointStore, bank: Bank, kind: str, change: str) -> None:
        """The error names the node and its parts, every time; abandon_parts gives them up, and they are gone then."""
        nodes = {"price": trace("price"), "pay": half_done(kind, bank, store), "end": trace("end")}
        start = State({"items": [{"item": i} for i in ITEMS] if "of" in kind else ITEMS}, run_id=RUN)
        with pytest.raises(ExecutionError):
            make_graph(nodes, store=store, preserve=True).execute(start)
        other = {"removed": {}, "renamed and changed": {"charge": trace("pay")}, "changed": {"pay": trace("pay")}}
        changed = make_graph(
            {"price": trace("price"), **other[change], "end": trace("end")}, store=store, preserve=True
        )
        how: dict[str, Any] = {"migrate": {"pay": "charge"}} if "renamed" in change else {}
        if change == "removed":
            changed.stands_at({"pay": "end"})
        node = "charge" if "renamed" in change else "pay"
        for _ in range(2):
            with pytest.raises(GraphMismatchError, match=f"node '{node}'.*abandon_parts") as refused:
                changed.resume(RUN, allow_changed=True, **how)
        assert RUN in str(refused.value)

        final = changed.resume(RUN, allow_changed=True, abandon_parts=True, **how)

        assert final.status is RunStatus.COMPLETED
        assert [*store.load_parts(RUN, 2, "pay"), *store.iter_runs(parent=RUN)] == []


class TestRemovedAfterARename:
    """`migrate` and `stands_at` go together."""

    def test_a_node_was_renamed_then_removed(self, store: CheckpointStore) -> None:
        """Runs of each version continue at the declared node, with one call; a sweep allows other changes as well."""

        def make(name: str, *others: str) -> StateGraph:
            asks = {name: InterruptNode(None, "ok")} if name else {}
            nodes = {"a": trace("a"), **asks, **{other: trace(other) for other in others}}
            return make_graph(nodes, store=store, preserve=True)

        make("ask", "b").execute(State(run_id="old"))
        make("approve", "b").execute(State(run_id="newer"))
        graph = make("", "x", "b")
        graph.stands_at({"approve": "b"})

        for run_id in ("old", "newer"):
            final = graph.resume(run_id, migrate={"ask": "approve"}, allow_changed=True)
            assert (final["trace"], final.status) == (["a", "b"], RunStatus.COMPLETED)


class TestKinds:
    """The kind of a node is part of the structure of its graph."""

    def test_a_pause_that_became_a_function(self, store: CheckpointStore) -> None:
        """The answer of a person is not taken by a node that would throw it away."""
        asks = {"propose": trace("propose"), "approve": InterruptNode(None, "ok"), "pay": trace("pay")}
        paused = make_graph(asks, store=store).execute(State(run_id=RUN))
        decides = make_graph({**asks, "approve": trace("approve")}, store=store)

        with pytest.raises(GraphMismatchError, match="'approve' was a pause, and is a function now"):
            decides.resume(RUN, {"ok": True}, pause=paused.pause)

        assert store.load(RUN) == paused
        assert make_graph(asks, store=store).resume(RUN, {"ok": True})["ok"] is True

    @pytest.mark.parametrize("kind", ["pause", "graph"])
    def test_what_older_versions_saved(self, store: CheckpointStore, kind: str) -> None:
        """A structure without kinds, module and settings is compared by what it has."""
        inner = make_graph({"go": trace("b")}, store=store, name="inner")
        node = InterruptNode(None, "ok") if kind == "pause" else inner.as_node()
        graph = make_graph({"a": trace("a"), "b": node, "c": trace("c")}, store=store, preserve=True)
        edges = (EdgeStructure("a", "b", "always()"), EdgeStructure("b", "c", "always()"))
        at: dict[str, Any] = {"run_id": RUN, "graph": "flow", "step": 1, "checkpoint_node": "a"}
        store.save(State(structure=GraphStructure(("a", "b", "c"), edges), **at))

        state = graph.resume(RUN)

        assert (state.status, state.fingerprint) == ("paused" if kind == "pause" else "completed", graph.fingerprint)


SERVICE = """
from stategraph import State, StateGraph

did = []
graph = StateGraph("process", store="{store}", preserve=True)
graph.add_node("do", lambda state: did.append(__name__) or {{"by": __name__}})
graph.set_entry_point("do")
graph.set_exit_point("do")
if __name__ == "__main__":
    graph.submit(State(run_id="run"))
"""


class TestIdentity:
    """A run belongs to the graph of a module, with settings."""

    @pytest.fixture
    def services(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
        """Modules of services that have a graph and nodes of one name, and one store."""
        monkeypatch.syspath_prepend(tmp_path)
        for name in ("billing", "shipping"):
            (tmp_path / f"{name}.py").write_text(SERVICE.format(store=tmp_path / "runs.db"))
        found = {name: importlib.import_module(name) for name in ("billing", "shipping")}
        yield found
        for name, module in found.items():
            module.graph.store.close()
            del sys.modules[name]

    @pytest.mark.parametrize("is_async", [False, True])
    def test_a_sweep_leaves_runs_of_another_module_alone(self, services: dict[str, Any], *, is_async: bool) -> None:
        """It reports them, goes on with its own, and does not run them; the service that began them does."""
        billing, shipping = services["billing"], services["shipping"]
        for run_id in "ab":
            billing.graph.submit(State(run_id=run_id))
        shipping.graph.submit(State(run_id="c"))

        async def sweep(**how: Any) -> list[Any]:
            return [one async for one in shipping.graph.arecover(**how)]

        with pytest.warns(UserWarning, match="'billing' began it.*'shipping'.*left alone") as warned:
            found = asyncio.run(sweep(limit=1)) if is_async else [*shipping.graph.recover(limit=1)]

        assert ([one.run_id for one in found], len(warned)) == (["c"], 2)
        with warnings.catch_warnings():  # it does not look at them again until they change
            warnings.simplefilter("error")
            assert [*shipping.graph.recover()] == []
        assert {one.state["by"] for one in billing.graph.recover()} == {"billing"}
        assert (billing.did, shipping.did) == (["billing"] * 2, ["shipping"])

    def test_an_order_for_a_run_of_another_module(self, services: dict[str, Any]) -> None:
        """An engine that hands out turns, such as DBOS, does not run it, unless the order allows a change."""
        billing, shipping = services["billing"].graph, services["shipping"].graph
        billing.submit(State(run_id="a"))
        order = Order("process", "a")

        with pytest.raises(GraphMismatchError, match="'billing' began it"):
            perform(order, [shipping])

        assert billing.store.load("a").step == 0
        with pytest.warns(UserWarning, match="'a' goes on"):
            assert perform(attrs.evolve(order, allow_changed=True), [shipping])["by"] == "shipping"

    def test_a_resume_warns_and_goes_on(self, services: dict[str, Any]) -> None:
        """So does a sweep that allows changes: a graph may have moved. The run then belongs to the new module."""
        billing, shipping = services["billing"].graph, services["shipping"].graph
        billing.submit(State(run_id="a"))
        billing.submit(State(run_id="b"))

        with pytest.warns(UserWarning, match="'a' goes on"):
            assert shipping.resume("a")["by"] == "shipping"
        with pytest.warns(UserWarning, match="'b' goes on"):
            assert [one.run_id for one in shipping.recover(allow_changed=True)] == ["b"]

        assert shipping.store.load("b").structure.module == "shipping"

    def test_a_script_is_known_by_the_name_of_its_file(self, services: dict[str, Any], tmp_path: Path) -> None:
        """A worker that imports it takes its runs."""
        subprocess.run([sys.executable, tmp_path / "billing.py"], check=True)

        assert [one.state["by"] for one in services["billing"].graph.recover()] == ["billing"]

    @pytest.mark.parametrize(
        ("before", "after", "change"),
        [
            ({"model": "m-1"}, {"model": "m-2"}, 'setting \'model\' was "m-1", and is "m-2" now'),
            ({}, {"n": [1]}, "setting 'n' was missing"),
            ({"n": {"a": 1}}, {}, "setting 'n' .* is missing now"),
        ],
    )
    def test_settings(self, store: CheckpointStore, before: Any, after: Any, change: str) -> None:
        """Changed settings are named; allow_changed goes on, as a run of the graph with the new ones."""

        def make(settings: Any, node: Any = None) -> StateGraph:
            config = GraphConfig("flow", settings=settings, checkpoint=CheckpointConfig(interval=1, preserve=True))
            graph = StateGraph(config, store=store)
            graph.add_node("a", trace("a"))
            graph.add_node("b", node or trace("b"))
            graph.add_sequence("a", "b")
            graph.set_entry_point("a")
            graph.set_exit_point("b")
            return graph

        fails = raises(OSError())
        for run_id in "rs":
            with pytest.raises(ExecutionError):
                make(before, fails).execute(State(run_id=run_id))
        with pytest.raises(GraphMismatchError, match=change):
            make(after).resume("r")

        assert make(before).resume("s").status is RunStatus.COMPLETED
        with pytest.raises(ExecutionError):
            make(after, fails).resume("r", allow_changed=True)
        assert make(after).resume("r").fingerprint == make(after).fingerprint
        assert (make({}).fingerprint == make(after).fingerprint) is (after == {})
