"""Wrong arguments of branches, and values that no store keeps, are refused with the culprit and the way out."""

import dataclasses
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone, tzinfo
from pathlib import Path
from types import MappingProxyType
from typing import Any

import attrs
import pytest

import stategraph
import stategraph.observers
import stategraph.stores
import stategraph.testing
from stategraph import NotSerializableError, ParallelNode, RunStatus, State, StateGraph, StateGraphError, turns
from stategraph.stores import MemoryStore, SqliteStore

KEY = b"k" * 32
sg: Any = stategraph
stores: Any = stategraph.stores


def branch(state: State) -> dict[str, int]:
    return {"n": 1}


def graph_of(node: Any = branch, *, preserve: bool = True) -> Any:
    """Return a graph of one node."""
    graph = sg.StateGraph("g", preserve=preserve, store=MemoryStore())
    graph.add_node("a", node)
    graph.set_entry_point("a")
    graph.set_exit_point("a")
    return graph


class Greeter:
    """Its method is a node of an object."""

    def greet(self, state: State) -> dict[str, str]:
        return {}


def model_of(annotation: Any, **config: Any) -> Any:
    """Return a Pydantic model with one field."""
    pydantic = pytest.importorskip("pydantic")
    types = {"__annotations__": {"field": annotation}, "__module__": __name__, "model_config": config}
    return type("Model", (pydantic.BaseModel,), types)


GRAPH: Any = StateGraph
STATE: Any = State
NEWCOMERS: dict[str, tuple[Any, str]] = {
    "no name": (lambda graph: graph.add_node(branch), r'the name comes first: add_node\("name", function\)'),
    "no function": (lambda graph: graph.add_node("x"), "node 'x': None is not callable; a node is a function"),
    "method of a class": (lambda graph: graph.add_node("x", Greeter.greet), "'self': give the method of an object"),
    "two lambdas": (
        lambda graph: graph.add_sequence(lambda _: {}, lambda _: {}),
        r"another name, or replace it: add_node\(",
    ),
    "unknown argument": (
        lambda graph: graph.add_edge("a", "a", condition=bool),
        "add_edge.. has no argument 'condition'",
    ),
    "no flag": (lambda graph: graph.follow("r", chunks="yes"), "chunks: .*yes.* is not allowed; True or False"),
    "one State": (lambda graph: graph.run_many(State()).__next__(), r"not one State: \[state\]"),
    "no store": (lambda graph: GRAPH("g", store=5), 'a path such as "runs.db", a URL, or an object of a class'),
    "no name of a graph": (lambda graph: GRAPH(None), r"None is not allowed; the name of the graph, as in"),
    "no observer": (
        lambda graph: GRAPH("g", observer=print),
        r"use an object with a sync method on_event\(event\)",
    ),
    "attribute": (lambda graph: setattr(State({"a": 1}), "a", 2), r"State.set\('a', value\) makes a new one"),
    "key of a table": (lambda graph: sg.GraphConfig.from_dict({"name": "g", "store": "sqlite"}), "as checkpoint.store"),
    "by position": (
        lambda graph: STATE({"a": 1}, "run-1"),
        r"State\(\) has too many arguments .*; name them: run_id, ",
    ),
    "deletion": (lambda graph: STATE({"a": 1}).__delitem__("a"), r"State.remove\('a'\) makes a new one"),
}


def test_a_forgotten_await():
    """A store names the value that has to be awaited."""
    awaitable = later()
    graph = graph_of(lambda state: {"n": [awaitable]})

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


async def later() -> int:
    return 1


async def awaited(state: State) -> dict[str, Any]:
    return {}


def chunks(state: State) -> Iterator[int]:
    yield 1


@attrs.frozen
class Order:
    """The schema of a graph."""

    n: int = 0


@attrs.frozen
class Unresolved:
    """A schema whose annotation names nothing."""

    n: "Nowhere"  # type: ignore[name-defined]  # noqa: F821


def typed(defaults: Any = MappingProxyType({}), **policies: Any) -> Any:
    """Return a graph with a schema, whose first node has policies."""
    graph = sg.StateGraph("typed", schema=Order)
    graph.add_node("a", branch, **policies)
    graph.add_node("b", branch)
    graph.add_sequence("a", "b")
    graph.set_entry_point("a")
    graph.set_exit_point("b")
    graph.set_defaults(defaults)
    return graph


def run_of_another(graph: Any) -> Any:
    graph.execute(State(run_id="a"))
    return sg.StateGraph("other", store=graph.store, preserve=True).picture("a")


CALLS: dict[str, tuple[Any, str]] = {
    # of a graph
    "State of a mapping": (lambda graph: graph.execute({"n": 1}), "a graph runs a State, not dict"),
    "timeout": (lambda graph: graph.execute(State(), timeout=-1), "timeout: -1"),
    "wait": (lambda graph: graph.execute(State(), wait="long"), "wait: 'long'"),
    "pause": (lambda graph: graph.resume("a", pause=5), "pause is State.pause of a run that waits"),
    "workers": (lambda graph: next(graph.run_many([State()], max_workers=0)), "max_workers: 0"),
    "limit of a sweep": (lambda graph: next(graph.recover(limit=0)), "limit: 0"),
    "recoveries": (lambda graph: next(graph.recover(max_recoveries=0)), "max_recoveries: 0"),
    "time to follow": (lambda graph: next(graph.follow("a", wait=-1)), "wait: -1"),
    "turns that are not kept": (
        lambda graph: graph_of(preserve=False).turn("a", {}),
        "checkpoint.preserve: ",
    ),
    "turn to discard": (lambda graph: graph.turn("a", {}, unfinished="discard"), 'only retention="full"'),
    "turn of a run that is not there": (lambda graph: turns.perform(turns.Order("g", "a", 2), [graph]), "'a'"),
    "graph of an order": (lambda graph: turns.perform(turns.Order("h", "a", 1), [graph]), "graph is named 'h'"),
    "State of another order": (lambda graph: turns.Order("g", "a", 1, state=State(run_id="b")), "a State of run 'a'"),
    "lost workers": (lambda graph: turns.perform(turns.Order("g", "a", 1), [graph], max_recoveries=0), "max_recov"),
    "suffix of a picture": (lambda graph: graph.picture().save("a.pdf"), "format of pictures is named '.pdf'"),
    "run of a picture": (lambda graph: graph.picture(5), "by its id or as a State, not as int"),
    "picture of another graph": (run_of_another, "it is a run of graph 'g', not of 'other'"),
    # of its parts
    "empty name": (lambda graph: graph.add_node("", branch), "1 to 200 printable characters"),
    "name twice": (lambda graph: graph.add_node("a", branch), "node 'a' is already there"),
    "second entry": (lambda graph: graph.set_entry_point("a"), "the entry point is 'a' already"),
    "removed nodes": (lambda graph: graph.stands_at(["a"]), "stands_at takes a mapping"),
    "retry": (lambda graph: graph.add_node("b", branch, retry=3), "a RetryPolicy, as in"),
    "cache": (lambda graph: graph.add_node("b", branch, cache=True), "a CachePolicy, as in"),
    "handler": (lambda graph: graph.add_node("b", branch, on_error=branch), "on_error: .* the name of a node"),
    "async route": (lambda graph: graph.add_route("a", later, ["a"]), "a route takes a sync function"),
    "targets in a text": (lambda graph: graph.add_route("a", branch, "b"), "its targets are 'b'"),
    "no targets": (lambda graph: graph.add_route("a", branch, {}), "it has no targets"),
    "class for a name": (lambda graph: sg.StateGraph(Order), "a class is the schema"),
    "kind of store for a path": (lambda graph: sg.StateGraph("g", store="sqlite"), "takes a path or a URL"),
    "schema without the key of errors": (lambda graph: typed(on_error="b").validate(), "error: dict"),
    "handler that is not there": (lambda graph: typed(on_error="c").validate(), "has on_error='c', but"),
    "defaults": (lambda graph: typed({"n": "x"}).validate(), "its defaults: 'n' of Order: expected int"),
    "keys of a cache": (
        lambda graph: typed(cache=sg.CachePolicy(("m",), path="c")).validate(),
        "the cache of node 'a' names 'm'",
    ),
    "schema": (lambda graph: sg.StateGraph("g", schema=Unresolved), "annotations can be resolved"),
    "type of a field": (
        lambda graph: sg.StateGraph("g", schema=dataclasses.make_dataclass("Odd", [("n", len)])),
        "types that cattrs knows; field 'n'",
    ),
    "field that Pydantic does not know": (
        lambda graph: sg.StateGraph("g", schema=model_of(Greeter, arbitrary_types_allowed=True)),
        r"Pydantic knows; field 'field': .*Greeter'>; Any leaves a field unchecked$",
    ),
    "field whose class is missing": (
        lambda graph: sg.StateGraph("g", schema=model_of("Missing")),
        "field 'field': .*'Missing' is not defined",
    ),
    # of nodes and policies
    "key of a map": (lambda graph: sg.MapNode(branch, 5, "out"), "over: 5"),
    "errors of a map": (lambda graph: sg.MapNode(branch, "l", "out", on_error="skip"), "on_error: 'skip'"),
    "retries of graphs": (lambda graph: sg.MapNode(graph, "l", "out", timeout=1), "timeout: for items that are graphs"),
    "generator of an item": (lambda graph: sg.MapNode(chunks, "l", "out"), "which an item cannot do"),
    "async process": (lambda graph: ParallelNode({"a": awaited}, processes=True), "take only its argument"),
    "keys of a nested graph": (lambda graph: graph.as_node({1: "a"}), "inputs: keys are str"),
    "schema of an answer": (
        lambda graph: sg.InterruptNode(None, "ok", schema=len),
        "schema: answers cannot be checked by",
    ),
    "updates": (lambda graph: sg.Updates(5), "Updates: 5 is not allowed"),
    "key of a cache": (lambda graph: sg.CachePolicy(("n",), path="c", sign_with=5), "cache.sign_with: "),
    "node of a State": (lambda graph: STATE().set_checkpoint_node(5), "a checkpoint_node is a str, not int"),
    "deadline": (lambda graph: STATE().paused("why", deadline="soon"), "deadline: 'soon'"),
    "deadline without a zone": (lambda graph: STATE().paused("why", deadline=datetime(2024, 1, 1)), "with a time zone"),
    "last deadline": (
        lambda graph: STATE().paused("why", deadline=datetime.max.replace(tzinfo=timezone(-timedelta(hours=1)))),
        "beyond the years 1 to 9999",
    ),
    "no branches": (lambda graph: ParallelNode({}), "branches: "),
    "list of branches": (lambda graph: sg.ParallelNode([branch]), "branches: "),
    "name of a branch": (lambda graph: sg.ParallelNode({1: branch}), "1"),
    "function of a branch": (lambda graph: sg.ParallelNode({"a": 5}), "5"),
    "on_failure": (lambda graph: sg.ParallelNode({"a": branch}, on_failure="stop"), "on_failure: 'stop'"),
    "reducers": (lambda graph: sg.ParallelNode({"a": branch}, reducers=[max]), "reducers"),
    "reducer": (lambda graph: sg.ParallelNode({"a": branch}, reducers={"n": "sum"}), "sum"),
    "no schema": (lambda graph: sg.StateGraph("g", schema={}), "an attrs class, a dataclass, a Pydantic"),
    "no store": (lambda graph: stores.register_checkpoint_store("five", 5), "'five'"),
    # of observers, of configurations, of what is registered
    "level of a log": (lambda graph: sg.get_observer("structlog", level="loud"), "level: 'loud'"),
    "lines of progress": (lambda graph: sg.get_observer("progress", every=-1), "every: -1"),
    "one of several observers": (lambda graph: sg.observers.MultiObserver([5]), "observer: 5"),
    "class for an observer": (lambda graph: sg.observers.MultiObserver([sg.Observer]), r"Observer\(\) makes one"),
    "configuration without a name": (lambda graph: sg.GraphConfig.from_dict({}), "name: .* it has no default"),
    "file of a configuration": (lambda graph: sg.GraphConfig.from_file(5), "file: 5"),
    "name of a store": (lambda graph: stores.register_checkpoint_store("", MemoryStore), "not empty"),
    "what makes a store": (
        lambda graph: stores.register_checkpoint_store("five", lambda: 5) or stores.get_checkpoint_store("five"),
        "returns a checkpoint store",
    ),
    "name of a serializer": (lambda graph: stores.register_serializer("json", object()), "'json'"),
    "registered name": (
        lambda graph: [sg.register_type(cls, name="taken name") for cls in (Order, Unresolved)],
        "the name 'taken name' is taken",
    ),
    "version of a class": (lambda graph: sg.register_type(Order, name="v", version=0), "version: 0"),
    "version of an enum": (lambda graph: sg.register_type(RunStatus, version=2), "is an enum and has no version"),
    "class without fields": (lambda graph: sg.register_type(str), "only attrs classes, dataclasses"),
    "class with more than its fields": (
        lambda graph: sg.register_type(attrs.make_class("More", [], bases=(dict,))),
        "it holds more than its fields",
    ),
    # of stores
    "flag of a store": (lambda graph: stores.SqliteStore("a.db", read_only="yes"), "read_only: 'yes'"),
    "characters of a path": (lambda graph: stores.SqliteStore("a\tb.db"), "without control characters"),
    "path of no file": (lambda graph: stores.SqliteStore("a\0b.db"), "path: "),
    "former keys alone": (lambda graph: stores.SqliteStore("a.db", verify_with=[lambda: KEY]), "verify_with: "),
    "key that is not set": (lambda graph: stores.SqliteStore("a.db", sign_with="UNSET"), "sign_with: "),
    "async key": (lambda graph: stores.SqliteStore("a.db", sign_with=later), "a sync function that gives the key"),
    "former keys": (lambda graph: stores.SqliteStore("a.db", sign_with=lambda: KEY, verify_with="K"), "a list of"),
    "schema of PostgreSQL": (lambda graph: stores.PostgresStore("postgresql://h", schema="pg_x"), "schema: 'pg_x'"),
    "pool": (lambda graph: stores.PostgresStore("postgresql://h", pool=0), "pool: 0"),
    "patience": (lambda graph: stores.PostgresStore("postgresql://h", patience=0), "patience: 0"),
    "address": (lambda graph: stores.PostgresStore(5), "an address such as postgresql://host"),
    "prefix": (lambda graph: stores.RedisStore("redis://h", prefix="{a}"), "characters without braces"),
    "partitions": (lambda graph: stores.RedisStore("redis://h", partitions=0), "partitions: 0"),
    "replicas": (lambda graph: stores.RedisStore("redis://h", replicas=-1), "replicas: -1"),
    "filter of runs": (lambda graph: graph.store.runs(statsu="active"), "did you mean 'status'"),
    "what a store saves": (lambda graph: graph.store.save({"n": 1}), "a store saves a State, not a dict"),
    "unknown values": (lambda graph: graph.store.load("a", unknown="hide"), "unknown"),
    "author": (lambda graph: graph.execute(State(run_id="a")) and graph.store.rollback("a", 1, by=5), "by is a str"),
    "name in the package of tests": (lambda graph: sg.testing.nothing, "has no attribute 'nothing'"),
}


@pytest.mark.parametrize("call", [*NEWCOMERS, *CALLS])
def test_wrong_arguments(call, tmp_path, monkeypatch):
    """The error names the argument and what is allowed; no file is made."""
    monkeypatch.chdir(tmp_path)
    make, message = {**NEWCOMERS, **CALLS}[call]
    graph = graph_of()

    with pytest.raises((TypeError, ValueError, LookupError, AttributeError, StateGraphError), match=message):
        make(graph)
    assert list(tmp_path.iterdir()) == []
