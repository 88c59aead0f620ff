"""Wrong arguments of branches, and values that no store keeps, are refused with the culprit and the way out."""

from datetime import datetime, timedelta, timezone, tzinfo
from pathlib import Path
from typing import Any

import pytest

from stategraph import NotSerializableError, ParallelNode, State, StateGraph
from stategraph.stores import MemoryStore, SqliteStore


def branch(state: State) -> dict[str, int]:
    return {"n": 1}


@pytest.mark.parametrize(
    ("arguments", "culprit"),
    [
        ({"branches": {}}, "branches: "),
        ({"branches": [branch]}, "branches: "),
        ({"branches": {1: branch}}, "1"),
        ({"branches": {"a": 5}}, "5"),
        ({"branches": {"a": branch}, "on_failure": "stop"}, "on_failure: 'stop'"),
        ({"branches": {"a": branch}, "reducers": [max]}, "reducers"),
        ({"branches": {"a": branch}, "reducers": {"n": "sum"}}, "sum"),
    ],
    ids=["empty", "no mapping", "no name", "no function", "on_failure", "no reducers", "no reducer"],
)
def test_branches(arguments, culprit):
    """The error names the wrong argument of a ParallelNode."""
    with pytest.raises((TypeError, ValueError), match=culprit):
        ParallelNode(**arguments)


class Greeter:
    """Its method is a node of an object."""

    def greet(self, state: State) -> dict[str, str]:
        return {}


GRAPH: Any = StateGraph
STATE: Any = State
MISTAKES: dict[str, tuple[Any, str]] = {
    "no name": (lambda graph: graph.add_node(branch), r'the name comes first: add_node\("name", function\)'),
    "no function": (lambda graph: graph.add_node("x"), "node 'x': None is not callable; a node is a function"),
    "method of a class": (lambda graph: graph.add_node("x", Greeter.greet), "'self': give the method of an object"),
    "two lambdas": (lambda graph: graph.add_sequence(lambda _: {}, lambda _: {}), r"another name: add_node\("),
    "unknown argument": (
        lambda graph: graph.add_edge("a", "a", condition=bool),
        "add_edge.. has no argument 'condition'",
    ),
    "one State": (lambda graph: graph.run_many(State()).__next__(), r"not one State: \[state\]"),
    "no store": (lambda graph: GRAPH("g", store=5), 'a path such as "runs.db", a URL, or an object of a class'),
    "no name of a graph": (lambda graph: GRAPH(None), r"None is not allowed; the name of the graph, as in"),
    "no observer": (
        lambda graph: GRAPH("g", observer=print),
        r"an object with a sync method on_event\(event\) is",
    ),
    "deletion": (lambda graph: STATE({"a": 1}).__delitem__("a"), r"State.remove\('a'\) makes a new one"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_of_newcomers(mistake):
    """The error says what to write."""
    make, way_out = MISTAKES[mistake]
    graph = StateGraph("g")
    graph.add_node("a", branch)
    graph.set_entry_point("a")
    graph.set_exit_point("a")

    with pytest.raises((TypeError, ValueError), match=way_out):
        make(graph)


async def later() -> int:
    return 1


def test_a_forgotten_await():
    """A store names the value that has to be awaited."""
    awaitable = later()
    graph = StateGraph("g", preserve=True, store=MemoryStore())
    graph.add_node("a", lambda state: {"n": [awaitable]})
    graph.set_entry_point("a")
    graph.set_exit_point("a")

    with pytest.raises(
        NotSerializableError, match=r"^n\[0\] cannot be saved: it is an awaitable \(coroutine\): await it"
    ):
        graph.execute(State())
    awaitable.close()


class Zone(tzinfo):
    """A time zone of a program."""

    def utcoffset(self, moment: datetime | None) -> timedelta:
        return timedelta(hours=1)

    def dst(self, moment: datetime | None) -> None:
        return None

    def tzname(self, moment: datetime | None) -> str:
        return "own"


@pytest.mark.parametrize("zone", [Zone(), timezone(timedelta(hours=1), "\udcff")], ids=["own class", "damaged name"])
def test_time_zones(zone, tmp_path: Path):
    """A store refuses a time in a zone that it could not restore, and names the zones that it keeps."""
    with (
        SqliteStore(tmp_path / "runs.db") as store,
        pytest.raises(NotSerializableError, match=r"use zoneinfo\.ZoneInfo"),
    ):
        store.save(State({"at": datetime(2024, 5, 29, tzinfo=zone)}, run_id="a"))
