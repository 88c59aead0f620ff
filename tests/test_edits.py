"""Each kind of edit of a program meets runs in each standing: they go on right, or are refused before anything runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
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
    State,
    StateGraph,
    register_type,
)
from stategraph.stores.sqlite import SqliteStore
from tests.scenarios import RUN

STANDINGS = ["fresh", "under way", "paused", "half-done map", "nested pause", "with effects"]


def note_class(fields: Any = ("text",), **options: Any) -> Any:
    """Return the class of a note in the State, as one version of the program or the next one has it."""
    made = attrs.make_class("Note", fields)
    made.__module__, made.__qualname__ = __name__, "Note"
    return register_type(made, name="tests.edits.Note", **options)


class Bank:
    """Notes each payment with its idempotency key; it is down at first."""

    def __init__(self) -> None:
        self.is_up = False
        self.keys: dict[str, list[str]] = defaultdict(list)

    def pay(self, item: str, context: NodeContext) -> str:
        """Pay an item; the last one fails once."""
        self.keys[item].append(context.idempotency_key)
        if item in ("c", "killed") and not self.is_up:
            raise KeyboardInterrupt if item == "killed" else OSError("the bank is down")
        return f"paid {item}"


def with_effect(bank: Bank) -> Any:
    """Return a node that pays by an effect, and fails after it."""

    def pay(state: State, context: NodeContext) -> dict[str, Any]:
        paid = context.effect("pay", lambda: bank.pay("effect", context))
        if not bank.is_up:
            raise OSError("after the payment")
        return {"paid": paid}

    return pay


@attrs.define
class Program:
    """A version of a program: a graph that prices, pays and ends, with nodes for a standing.

    Attributes:
        standing: Decides the node that pays.
        bank: Where it pays.
        store: Keeps the runs.
        total: Computes the total from the data.
    """

    standing: str
    bank: Bank
    store: CheckpointStore
    total: Callable[[Mapping[str, Any]], int] = lambda data: data["amount"] * 2
    names: tuple[str, str, str] = ("price", "pay", "end")
    nested: tuple[str, ...] = ("ask",)
    name: str = "orders"
    module: str = "app.flows"
    version: int = 1
    settings: Mapping[str, Any] = attrs.field(factory=dict)
    added: Mapping[str, int] = attrs.field(factory=dict)
    node: Any = None
    shortcut: bool = False

    def paying(self) -> Any:
        """Return the node of the standing."""
        bank = self.bank
        match self.standing:
            case "paused":
                return InterruptNode(None, "ok")
            case "half-done map":
                return MapNode(bank.pay, over="items", into="paid", max_workers=1)
            case "nested pause":
                return self.graph("nested", {name: _nested_node(name) for name in self.nested}, version=1).as_node()
            case "with effects":
                return with_effect(bank)
        return lambda state, context: {"paid": bank.pay("killed", context)}

    def made(self) -> StateGraph:
        """Return the graph."""
        price, pay, end = self.names
        nodes: dict[str, Any] = {
            price: lambda state: {"priced": True},
            pay: self.paying() if self.node is None else self.node,
            end: lambda state: {"total": self.total(state), "text": state["note"].text if "note" in state else ""},
        }
        order = [*(name for name in nodes if name)]
        for name, place in self.added.items():
            nodes[name] = lambda state, name=name: {name: True}
            order.insert(place, name)
        graph = self.graph(self.name, {name: nodes[name] for name in order}, self.version, self.settings)
        if self.shortcut:
            graph.add_edge(order[0], order[-1], lambda state: False)
        return graph

    def graph(
        self, name: str, nodes: Mapping[str, Any], version: int, settings: Mapping[str, Any] | None = None
    ) -> StateGraph:
        """Return a chain of nodes in a graph that the module of the program makes."""
        checkpoint = CheckpointConfig(interval=1, preserve=True)
        config = GraphConfig(name, version=version, settings=settings or {}, checkpoint=checkpoint)
        place = {"__name__": self.module, "StateGraph": StateGraph, "config": config, "store": self.store}
        # As if the module had made it.
        graph: StateGraph = eval("StateGraph(config, store=store)", place)
        for node, function in nodes.items():
            graph.add_node(node, function)
        graph.add_sequence(*nodes)
        graph.set_entry_point(next(iter(nodes)))
        graph.set_exit_point([*nodes][-1])
        return graph


def _nested_node(name: str) -> Any:
    return InterruptNode(None, "ok") if name == "ask" else lambda state: {name: True}


def begun(program: Program) -> None:
    """Leave a run in the standing."""
    data = {"amount": 5, "items": ["a", "b", "c"], "note": note_class()("x"), "spare": 1}
    graph, state = program.made(), State(data, run_id=RUN)
    if program.standing == "fresh":
        graph.submit(state)
    elif program.standing in ("paused", "nested pause"):
        assert graph.execute(state).status == "paused"
    else:
        with pytest.raises((ExecutionError, KeyboardInterrupt)):
            graph.execute(state)


def replacing(**new: Callable[[dict[str, Any]], Any]) -> Callable[[StateGraph], None]:
    """Return the declaration of an upgrade that sets keys from the old data."""

    def declare(graph: StateGraph) -> None:
        graph.upgrade(1, lambda data: {**data, **{key: make(data) for key, make in new.items()}})

    return declare


def without(key: str, **new: str) -> Callable[[StateGraph], None]:
    """Return the declaration of an upgrade that removes a key, or gives it a new name."""

    def declare(graph: StateGraph) -> None:
        def upgrade(data: dict[str, Any]) -> dict[str, Any]:
            old = data.pop(key)
            return data | dict.fromkeys(new, old)

        graph.upgrade(1, upgrade)

    return declare


@attrs.frozen
class Edit:
    """An edit: the fields of the changed program, and what makes its runs go on.

    Attributes:
        fields: The fields of the Program that differ.
        declare: What the new program declares.
        how: Options of the call.
        undeclared: Whether the run goes on right without these.
        loses: The standings whose finished work has no place any more: refused also with the declaration.
        only: The standings in which a declaration is needed, if not in all.
    """

    fields: Mapping[str, Any]
    declare: Callable[[StateGraph], None] = lambda graph: None
    how: Mapping[str, Any] = attrs.field(factory=dict)
    undeclared: bool = False
    loses: tuple[str, ...] = ()
    only: tuple[str, ...] = ()


WORK = ("half-done map", "nested pause", "with effects")
NESTED = ("nested pause",)  # its graph has all the data, and no upgrade
ALLOWED = {"allow_changed": True}
EDITS: dict[str, Edit] = {
    "node renamed": Edit({"names": ("price", "settle", "end")}, lambda graph: graph.renamed({"pay": "settle"})),
    "node removed": Edit(
        {"names": ("price", "", "end")}, lambda graph: graph.stands_at({"pay": "end"}), ALLOWED, loses=WORK
    ),
    "node added before": Edit({"added": {"check": 1}}, how=ALLOWED),
    "node added inside": Edit({"nested": ("first", "ask", "last")}, how=ALLOWED, only=("nested pause",)),
    "node split": Edit({"added": {"receipt": 2}}, how=ALLOWED),
    "kind of a node changed": Edit(
        {"node": ParallelNode({"one": lambda state: {"paid": "all"}})}, how=ALLOWED, loses=WORK
    ),
    "edge changed": Edit({"shortcut": True}, how=ALLOWED),
    "key renamed": Edit(
        {"version": 2, "total": lambda data: data["cents"] * 2}, without("amount", cents="amount"), loses=NESTED
    ),
    "key removed": Edit({"version": 2}, without("spare"), loses=NESTED),
    "key retyped": Edit(
        {"version": 2, "total": lambda data: int(data["amount"]) * 2},
        replacing(amount=lambda data: str(data["amount"])),
        loses=NESTED,
    ),
    "key made required": Edit(
        {"version": 2, "total": lambda data: data["amount"] * data["rate"]},
        replacing(rate=lambda data: 2),
        loses=NESTED,
    ),
    "class gained a field": Edit({}, undeclared=True),
    "nested graph changed": Edit({"nested": ("first", "ask")}, how=ALLOWED, only=("nested pause",)),
    "graph renamed": Edit({"name": "sales"}, lambda graph: graph.moved_from("orders")),
    "module moved": Edit({"module": "app.sales"}, lambda graph: graph.moved_from("app.flows"), undeclared=True),
    "settings changed": Edit({"settings": {"model": "m-2"}}, how=ALLOWED),
}


ONCE = {"half-done map": {"a": 1, "b": 1, "c": 2}, "with effects": {"effect": 1}}
"""How often items are paid in standings in which it is known what is done; "c" failed once."""


@pytest.mark.parametrize("standing", STANDINGS)
@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.filterwarnings("ignore:.*goes on")
def test_an_edit_meets_a_run(tmp_path: Path, edit: str, standing: str) -> None:
    """Undeclared, it goes on right or is refused beforehand, as check_runs says; declared, it goes on right.

    Each payment is made once, or repeated under one key. Where the new graph has no place for finished work, or
    an upgrade does not reach it, the refusal names this work.
    """
    how, bank = EDITS[edit], Bank()
    with SqliteStore(tmp_path / "runs.db") as store:
        begun(Program(standing, bank, store))
    bank.is_up, paid = True, {item: [*keys] for item, keys in bank.keys.items()}
    answer = {"ok": True} if standing in ("paused", "nested pause") else {}
    if edit == "class gained a field":
        fields = {"text": attrs.field(), "by": attrs.field(default="")}
        note_class(fields, version=2, upgrade=lambda old, version: {**old, "by": "ada"})

    with SqliteStore(tmp_path / "runs.db") as store:
        graph, before = attrs.evolve(Program(standing, bank, store), **how.fields).made(), store.load(RUN)

        def refused(match: str, **options: Any) -> None:
            with pytest.raises(GraphMismatchError, match=match):
                graph.resume(RUN, answer, **options)
            assert (store.load(RUN), bank.keys) == (before, paid)

        if not how.undeclared and standing in (how.only or STANDINGS):
            assert not any(check.ok for check in graph.check_runs())
            refused(r"run 'run.* does not fit")
        how.declare(graph)
        if standing in how.loses:
            refused(r"are done|older form", **how.how)
            return
        if not how.how:
            assert [check.problems for check in graph.check_runs()] == [()]

        final = graph.resume(RUN, answer, **how.how)

    assert (final.status, final["total"], final["priced"], final["text"]) == ("completed", 10, True, "x")
    assert all(len({*keys}) == 1 for keys in bank.keys.values())
    if standing in ONCE:
        assert {item: len(keys) for item, keys in bank.keys.items()} == ONCE[standing]
