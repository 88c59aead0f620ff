"""More slips that a type checker has to report: each line that ends with "slip" is one, and no other line is.

`make check` has mypy and pyright look at it. It is never run.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from stategraph import (
    CachePolicy,
    CheckpointConfig,
    CheckpointStore,
    GraphConfig,
    InterruptNode,
    MapNode,
    NodeContext,
    ParallelNode,
    RetryPolicy,
    RunStatus,
    State,
    StateGraph,
    Updates,
    WaitNode,
    get_checkpoint_store,
    id_of,
    key_equals,
    not_,
    register_checkpoint_store,
)
from stategraph.stores import MemoryStore, SqliteStore


@dataclass
class Order:
    total: float


# Nodes whose result is none.
def to_none(state: State) -> None:
    print(state["n"])


def to_list(state: State) -> list[int]:
    return [state["n"]]


def to_text(state: State) -> str:
    return "done"


def to_number(state: State) -> int:
    return 1


def to_pair(state: State) -> tuple[str, int]:
    return "n", 1


def to_flag(state: State, context: NodeContext) -> bool:
    return True


def to_maybe(state: State) -> dict[str, int] | None:
    return {"n": 1} if state else None


def to_wrong_keys(state: State) -> dict[int, str]:
    return {1: "n"}


async def to_none_later(state: State) -> None:
    await asyncio.sleep(1)


async def to_list_later(state: State) -> list[int]:
    return [1]


def with_three(state: State, context: NodeContext, other: int) -> dict[str, int]:
    return {"n": other}


def of_number(number: int) -> dict[str, int]:
    return {"n": number}


def work(state: State) -> dict[str, int]:
    return {"n": 1}


def chunks(state: State) -> Iterator[str | Updates]:
    yield "a"
    yield Updates({"n": 1})


plain = StateGraph("plain")
plain.add_node("a", to_none)  # slip
plain.add_node("a", to_list)  # slip
plain.add_node("a", to_text)  # slip
plain.add_node("a", to_number)  # slip
plain.add_node("a", to_pair)  # slip
plain.add_node("a", to_flag)  # slip
plain.add_node("a", to_maybe)  # slip
plain.add_node("a", to_wrong_keys)  # slip
plain.add_node("a", to_none_later)  # slip
plain.add_node("a", to_list_later)  # slip
plain.add_node("a", with_three)  # slip
plain.add_node("a", lambda state: None)  # slip
plain.add_node("a", lambda state: [state["n"]])  # slip
plain.add_node("a", lambda: {"n": 1})  # slip
plain.add_node("a", None)  # slip
plain.add_node("a", work(State()))  # slip
plain.add_sequence(work, to_none)  # slip
plain.add_sequence(to_list, work)  # slip
plain.add_sequence([work, work])  # slip
plain.add_sequence(work, 1)  # slip
ParallelNode({"a": to_none, "b": work})  # slip
ParallelNode({"a": work, "b": to_list})  # slip
ParallelNode({"a": to_none_later})  # slip
ParallelNode({"a": lambda state: None})  # slip
ParallelNode({"a": "work"})  # slip
ParallelNode([work])  # slip
ParallelNode({"a": work}, on_failure="cancell")  # slip
ParallelNode({"a": work}, reducers={"n": 1})  # slip
ParallelNode({"a": work}, max_workers="2")  # slip


@plain.node  # slip
def decorated_none(state: State) -> None:
    print(state)


@plain.node("b")  # slip
def decorated_list(state: State) -> list[int]:
    return []


# Options of policies and configurations.
CheckpointConfig(persist="total")  # slip
CheckpointConfig(persist=1)  # slip
CheckpointConfig(persist=[1])  # slip
CheckpointConfig(persist={"exept": ["total"]})  # slip
CheckpointConfig(persist={"except": "total"})  # slip
CheckpointConfig(interval=1.5)  # slip
CheckpointConfig(preserve="yes")  # slip
CheckpointConfig(ttl="1 day")  # slip
CheckpointConfig(window="3")  # slip
CheckpointConfig(limits={"usd": "5"})  # slip
CheckpointConfig(options=["path"])  # slip
CheckpointConfig(store=MemoryStore())  # slip
GraphConfig("a", checkpoint={"interval": 1})  # slip
GraphConfig("a", max_iterations="9")  # slip
GraphConfig("a", version="3")  # slip
GraphConfig(max_iterations=9)  # slip
RetryPolicy(retry_on="OSError")  # slip
RetryPolicy(retry_on=OSError())  # slip
RetryPolicy(retry_on=[1])  # slip
RetryPolicy(retry_on=KeyboardInterrupt)  # slip
RetryPolicy(retry_on=lambda: True)  # slip
RetryPolicy(jitter="1")  # slip
RetryPolicy(random=1)  # slip
CachePolicy("question", path="cache")  # slip
CachePolicy(inputs=1, path="cache")  # slip
CachePolicy(inputs=(1,), path="cache")  # slip
CachePolicy(inputs=("question",))  # slip
CachePolicy(("question",), path="cache", ttl="1h")  # slip
InterruptNode("draft", "verdict", schema="Order")  # slip
InterruptNode("draft", "verdict", schema=Order(1.0))  # slip
InterruptNode("draft", "verdict", schema=3)  # slip
InterruptNode("draft", "verdict", validator="yes")  # slip
InterruptNode("draft", "verdict", deadline=timedelta(days=1))  # slip
InterruptNode("draft")  # slip
InterruptNode("draft", 1)  # slip
WaitNode("3")  # slip
WaitNode(until=datetime.now(UTC))  # slip
MapNode(len, over="items", into="sizes", retry=3)  # slip
MapNode(len, over="items", to="sizes")  # slip
MapNode("len", over="items", into="sizes")  # slip
StateGraph("a", preserve="yes")  # slip
StateGraph("a", storage="runs.db")  # slip
StateGraph("a", store=3)  # slip
StateGraph(store="runs.db")  # slip

# Stores.
get_checkpoint_store("sqlite", pth="runs.db")  # slip
get_checkpoint_store("sqlite", path=1)  # slip
get_checkpoint_store("disk", dns="runs")  # slip
get_checkpoint_store("postgres", dns="postgresql://host/runs")  # slip
get_checkpoint_store("redis", url="redis://host", partitions="3")  # slip
get_checkpoint_store("disk", path="runs", compres=True)  # slip
register_checkpoint_store("own", "OwnStore")  # slip
store = SqliteStore("runs.db")
store.runs(status="complet")  # slip
store.runs(limit="10")  # slip
store.runs(labels=["night"])  # slip
store.runs(since="today")  # slip
store.load(1)  # slip
store.delete("a", takeover=True)  # slip
store.rollback("a", step="1")  # slip
store.rollback("a")  # slip
store.fork("a")  # slip
store.send("a", ["n"])  # slip
State(status="complete")  # slip
State({"n": 1}, run_id=1)  # slip
State({"n": 1}, step="1")  # slip
State([("n", 1)])  # slip
State(labels=["night"])  # slip
State(n=1)  # slip

# Edges.
plain.add_edge("a", "b", "done")  # slip
plain.add_edge("a", "b", lambda state: "done")  # slip
plain.add_edge("a", "b", lambda: True)  # slip
plain.add_edge("a", 3)  # slip
plain.add_edge("a")  # slip
plain.add_edge("a", "b", not_("done"))  # slip
plain.add_route("a", lambda state: state["n"], {"low": 1})  # slip
plain.add_route("a", "n", {"low": "b"})  # slip
plain.set_entry_point(work)  # slip
plain.set_exit_point(["a", "b"])  # slip
key_equals(1, "n")  # slip

# Calls.
plain.execute()  # slip
plain.execute(State(), cancel=True)  # slip
plain.execute(State(), limits={"usd": "5"})  # slip
plain.execute(State(), deadline="tomorrow")  # slip
plain.execute(State(), progress="yes")  # slip
plain.resume("a", ["n"])  # slip
plain.resume("a", answer=True)  # slip
plain.resume("a", redo="map/3")  # slip
plain.resume("a", migrate=["a"])  # slip
plain.run({"n": 1})  # slip
plain.turn("a", "hello")  # slip
plain.turn("a", {"n": 1}, busy="wait")  # slip
plain.turn("a", {"n": 1}, unfinished="drop")  # slip
plain.turn({"n": 1})  # slip
plain.submit(State(), at="noon")  # slip
plain.recover(limit="3")  # slip
plain.send("a", {"n": 1}, author="b")  # slip
plain.send("a", "hello")  # slip
plain.answer("a")  # slip
plain.cancel(State())  # slip
plain.follow("a", chunk=True)  # slip
plain.stream({"n": 1})  # slip
plain.set_defaults(["n"])  # slip
plain.upgrade("1", dict)  # slip
plain.renamed(["a", "b"])  # slip
plain.as_node(inputs=1)  # slip
plain.picture(3)  # slip
id_of(["a"])  # slip
final: State = plain.aexecute(State())  # slip
count: str = plain.execute(State()).step  # slip
plain.execute(State()).status.lower().foo()  # slip
print(plain.execute(State()).error.kind)  # slip


def context_slips(state: State, context: NodeContext) -> dict[str, Any]:
    context.spend(tokens="3")  # slip
    context.status(3)  # slip
    context.effect("key")  # slip
    context.effect(1, lambda: 1)  # slip
    context.idempotency_key()  # slip
    print(context.runid)  # slip
    state.set("n")  # slip
    state.set(1, "n")  # slip
    state.update(["n"])  # slip
    state.add("n", 1)  # slip
    state.pop("n")  # slip
    return {"key": context.idempotency_key}


# What is right is not reported.
class FourMethods(CheckpointStore):
    def save(self, state: State) -> None: ...

    def load(self, run_id: str, step: int | None = None) -> State:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        return State(run_id=run_id)

    def delete(self, run_id: str) -> None: ...

    def list(self) -> list[str]:
        return []


def is_busy(error: OSError) -> bool:
    return error.errno == 16


async def chunks_later(state: State) -> AsyncIterator[Any]:
    yield "a"


def to_mapping(state: Mapping[str, Any]) -> Mapping[str, Any]:
    return state


def of_dict(state: dict[str, Any]) -> dict[str, Any]:
    return state


def unannotated(state):  # type: ignore[no-untyped-def]
    return {"n": state["n"]}


def with_default(state: State, limit: int = 3) -> dict[str, int]:
    return {"n": limit}


def with_keyword(state: State, *, context: NodeContext) -> dict[str, int]:
    return {"n": context.step}


class Counter:
    def __call__(self, state: State) -> dict[str, int]:
        return {"n": 1}

    def count(self, state: State, context: NodeContext) -> State:
        return state.set("n", 1)


CheckpointConfig(interval=None)
CheckpointConfig(persist=["total"], retention="full")
CheckpointConfig(persist=("total",))
CheckpointConfig(persist={"except": ["total"]})
CheckpointConfig(persist={"except": ("total",)})
CheckpointConfig(persist=None, options={"path": Path("runs.db")})
interval: int = CheckpointConfig().interval
RetryPolicy(retry_on=OSError)
RetryPolicy(retry_on=(OSError, ValueError))
RetryPolicy(retry_on=[OSError, ValueError])
RetryPolicy(retry_on=is_busy)
RetryPolicy(retry_on=lambda error: isinstance(error, OSError))
CachePolicy(["question"], path=Path("cache"))
CachePolicy(inputs=("question",), path="cache", ttl=3.0, version=1, sign_with="KEY")
InterruptNode("draft", "verdict", schema=Order)
InterruptNode("draft", "verdict", schema=bool)
InterruptNode("draft", "verdict", schema=int | None)
InterruptNode("draft", "verdict", schema=list[str])
InterruptNode("draft", "verdict", schema=dict[str, int] | list[Order])
InterruptNode("draft", "verdict", schema=Literal["yes", "no"])
InterruptNode(None, "verdict", validator=lambda answer: answer > 3, deadline=60, otherwise=4)
plain.add_node("a", chunks)
plain.add_node("b", chunks_later)
plain.add_node("c", to_mapping)
plain.add_node("d", unannotated)
plain.add_node("e", with_default)
plain.add_node("f", Counter())
plain.add_node("g", Counter().count)
plain.add_node("h", lambda state: state)
plain.add_node("i", lambda state, context: {"n": context.step})
plain.add_node("j", ParallelNode({"a": work, "b": StateGraph("inner"), "c": Counter()}, on_failure="finish"))
plain.add_node("k", ParallelNode({"a": lambda state: {"n": 1}, "b": lambda state, context: {"m": context.step}}))
plain.add_node("l", ParallelNode({"a": unannotated, "b": Counter().count, "c": StateGraph("inner").as_node()}))
plain.add_sequence(work, "a", chunks, unannotated, Counter().count)
for name, node in {"a": work, "b": to_mapping}.items():
    plain.add_node(name, node)
ParallelNode({f"work {n}": work for n in range(3)})
branches = {"a": work, "b": work}
ParallelNode(branches)
ParallelNode(dict.fromkeys(["a", "b"], work), reducers={"n": lambda a, b: a + b})


@plain.node
def decorated(state: State) -> dict[str, int]:
    return {"n": 1}


@plain.node("m", retry=RetryPolicy())
async def decorated_later(state: State, context: NodeContext) -> State:
    return state


@plain.node
def decorated_chunks(state: State) -> Iterator[Any]:
    yield 1


plain.store.delete("a", take_over=True)
plain.store.delete(run_id="a")
lines = [*plain.store.export_run("a")]
plain.store.import_runs(lines)
store.delete("a", take_over=True)
store.load("a", 1, unknown="opaque")
MemoryStore().delete("a", take_over=True)
get_checkpoint_store("memory")
get_checkpoint_store("sqlite", path=Path("runs.db"), serializer="json", sign_with=lambda: b"key").export_run("a")
get_checkpoint_store("disk", path="runs").delete("a", take_over=True)
get_checkpoint_store("postgres", dsn="DATABASE_URL", schema="runs", pool=3, lease=10)
get_checkpoint_store("redis", url="redis://host", prefix="runs", replicas=1)
kind = "own"
options: dict[str, Any] = {"path": "runs.db"}
get_checkpoint_store("own", **options)
get_checkpoint_store(kind, path="runs", read_only=True)
get_checkpoint_store(kind, **options)
get_checkpoint_store("sqlite", **options)
register_checkpoint_store("own", FourMethods)
plain.store.runs(status=RunStatus.FAILED)
State(status="completed")
State(status=RunStatus.ACTIVE, timestamp=datetime.now(UTC))
plain.execute(State(), cancel=threading.Event(), deadline=datetime.now(UTC), limits={"usd": 5})
plain.add_edge("a", "b", lambda state: state["n"] > 3)
plain.add_route("a", lambda state: state["n"] > 3, {True: "b", False: "c"})
plain.add_route("a", lambda state: "b", ["b", "c"])
