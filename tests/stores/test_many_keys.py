"""States of many keys, of which a step sets few."""

from enum import StrEnum
from pathlib import Path

import attrs
import pytest

from stategraph import CheckpointConfig, GraphConfig, State, StateGraph, register_type
from stategraph.stores import SqliteStore

MANY = {f"key-{number}": number for number in range(1000)}


@attrs.define
class Basket:
    """A value that nodes may change."""

    items: int = 0


register_type(Basket, name="tests.Basket")


class Name(StrEnum):
    """Keys by name."""

    TOTAL = "total"


def executed(folder: Path, node, steps: int = 6, **data) -> tuple[list[State], SqliteStore]:
    """Run a node over and over with a store that keeps all; return the States that it was given, and the store."""
    options = {"path": str(folder / "runs.db")}
    checkpoint = CheckpointConfig(store="sqlite", options=options, interval=1, retention="full", preserve=True)
    graph = StateGraph(GraphConfig(name="many", observer="noop", checkpoint=checkpoint))
    given: list[State] = []

    def work(state: State):
        given.append(state)
        return node(state, len(given))

    graph.add_node("work", work)
    graph.add_node("end", lambda state: {})
    graph.add_edge("work", "work", lambda state: len(given) < steps)
    graph.add_edge("work", "end")
    graph.set_entry_point("work")
    graph.set_exit_point("end")
    with graph.store:
        graph.execute(State({**MANY, **data}, run_id="many"))
    return given, SqliteStore(options["path"])


def set_one(state: State, n: int):
    return {"key-500": n}


def set_by_state(state: State, n: int):
    return state.set("key-500", n)


def add_some(state: State, n: int):
    return {f"new-{n}-b": n, "key-7": n, f"new-{n}-a": n}


def remove_one(state: State, n: int):
    return state.remove(f"key-{n}") if n % 2 else {"key-900": n}


def move_one(state: State, n: int):
    return state.remove("key-3").set("key-3", n) if n == 3 else {"key-3": n}


def grow_a_list(state: State, n: int):
    return {"log": [*state.get("log", []), n]}


def change_what_is_not_settled(state: State, n: int):
    state["basket"].items += n
    return {"key-1": n}


def add_what_is_not_settled(state: State, n: int):
    return {f"basket-{n}": Basket(n)}


def settle(state: State, n: int):
    return {"basket": n if n == 3 else Basket(n)}


def set_under_a_name(state: State, n: int):
    return {Name.TOTAL: n}


NODES = (
    *(set_one, set_by_state, add_some, remove_one, move_one, grow_a_list, change_what_is_not_settled),
    *(add_what_is_not_settled, settle, set_under_a_name),
)


@pytest.mark.parametrize("node", NODES, ids=lambda node: node.__name__)
def test_every_step_is_loaded_as_it_was(tmp_path, node):
    """Each State of many keys is loaded with the same items in the same order, whatever its node did."""
    seen: list[list[tuple[str, object]]] = []

    def noting(state: State, n: int):
        seen.append([(key, attrs.evolve(value) if type(value) is Basket else value) for key, value in state.items()])
        return node(state, n)

    _, store = executed(tmp_path, noting, basket=Basket())

    with store:
        for step, items in enumerate(seen[1:], 1):
            assert [*store.load("many", step).items()] == items
