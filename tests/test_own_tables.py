"""Tables of a node's own, in the database of the store: its rows and the State after it are one commit."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stategraph import (
    CheckpointError,
    CheckpointStore,
    ExecutionError,
    NodeContext,
    ParallelNode,
    RunLostError,
    State,
)
from stategraph.policies import RetryPolicy
from tests.conftest import make_store
from tests.scenarios import DRIVERS, NODES, RUN, Scene, in_threads, make_graph, returns

CREATE = "CREATE TABLE ledger (run_id TEXT, step INTEGER)"
WAYS = [
    ("sqlite", "sync", "sync nodes"),
    ("sqlite", "async", "async nodes"),
    ("disk", "async", "sync nodes"),
    ("postgres", "sync", "async nodes"),
    ("postgres", "async", "sync nodes"),
]


@pytest.fixture(params=WAYS, ids=" ".join)
def own_scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    """A store with tables, a driver and a kind of nodes."""
    store, driver, nodes = request.param
    with make_store(store, tmp_path) as opened:
        create(opened)
        yield Scene(opened, DRIVERS[driver], NODES[nodes])


def create(store: CheckpointStore) -> None:
    """Create the table, empty: databases of a server outlive a test."""
    alone(store, lambda connection: [connection.execute(each) for each in ("DROP TABLE IF EXISTS ledger", CREATE)])


def alone(store: CheckpointStore, work: Callable[[Any], object]) -> None:
    """Do some work with the connection, in a run of its own."""

    def node(state: State, context: NodeContext) -> dict[str, Any]:
        work(context.connection)
        return {}

    make_graph({"node": node}, store=store, name="alone").execute(State(run_id="alone"))
    store.delete("alone")


def write(state: State, context: NodeContext) -> dict[str, Any]:
    """Add a row for this step."""
    mark = "?" if isinstance(context.connection, sqlite3.Connection) else "%s"
    context.connection.execute(f"INSERT INTO ledger VALUES ({mark}, {mark})", (context.run_id, context.step))
    return {"written": context.step}


def rows(store: CheckpointStore) -> list[int]:
    """Return the steps in the table, as a node of another run reads them."""
    found: list[Any] = []
    alone(store, lambda connection: found.extend(connection.execute("SELECT step FROM ledger ORDER BY step")))
    return [step for (step,) in found]


def fails(state: State, context: NodeContext) -> dict[str, Any]:
    write(state, context)
    raise ValueError("after it has written")


HOW: list[dict[str, Any]] = [{}, {"interval": 5}, {"durability": "async"}, {"durability": "exit"}, {"preserve": False}]


@pytest.mark.parametrize("how", HOW, ids=str)
def test_rows_and_state_are_saved_together(own_scene: Scene, how: dict[str, Any]) -> None:
    """The rows of a node are there as soon as the State after it is, however seldom other States are saved."""
    seen: list[tuple[list[int], int]] = []

    def look(state: State) -> dict[str, Any]:
        seen.append((rows(own_scene.store), own_scene.store.load(RUN).step))
        return {}

    graph = own_scene.graph({"a": write, "b": look, "c": write}, **how)

    final = own_scene.execute(graph)

    assert (final["written"], final.step) == (3, 3)
    assert seen == [([1], 1)]
    assert rows(own_scene.store) == [1, 3]


def test_what_a_failed_node_wrote_is_rolled_back(own_scene: Scene) -> None:
    """A node that raises leaves no row: not those of an attempt before, nor with the State of its handler."""
    attempts: list[int] = []

    def second(state: State, context: NodeContext) -> dict[str, Any]:
        attempts.append(context.attempt)
        if len(attempts) == 1:
            fails(state, context)
        return write(state, context)

    policies = {"a": {"retry": RetryPolicy(max_attempts=2, initial_delay=0.0)}, "b": {"on_error": "c"}}
    graph = own_scene.graph({"a": second, "b": fails, "c": write, "d": fails}, policies=policies)

    with pytest.raises(ExecutionError, match="node 'd' of"):
        own_scene.execute(graph)

    assert attempts == [1, 2]
    assert own_scene.store.load(RUN).step == 3
    assert rows(own_scene.store) == [1, 3]


def test_an_owner_that_lost_its_run_leaves_no_row(own_scene: Scene) -> None:
    """Rows are not committed for a node whose run was taken over: its State is refused in the same transaction."""
    taken, idle = threading.Event(), {"a": returns({}), "b": returns({})}

    def take_over(state: State, context: NodeContext) -> dict[str, Any]:
        if not taken.is_set():
            taken.set()
            own_scene.call(own_scene.graph(idle, name="flow"), "resume", RUN, take_over=True)
        return write(state, context)

    with pytest.raises(RunLostError):
        own_scene.execute(make_graph({"a": returns({}), "b": take_over}, store=own_scene.store))

    assert rows(own_scene.store) == []


def test_a_node_cannot_end_the_transaction(own_scene: Scene) -> None:
    """COMMIT and ROLLBACK belong to the save: a node that tries one by a method fails, and its rows are gone."""
    for end in ("commit", "rollback", "__enter__"):
        graph = own_scene.graph({"a": lambda state, context, end=end: _ended(state, context, end)})
        with pytest.raises(ExecutionError, match="the save of the step commits"):
            own_scene.execute(graph, State(run_id=end))
    assert rows(own_scene.store) == []


def _ended(state: State, context: NodeContext, end: str) -> dict[str, Any]:
    write(state, context)
    getattr(context.connection, end)()
    return {}


def test_a_transaction_that_was_ended_by_a_statement_saves_nothing(own_scene: Scene) -> None:
    """The step fails if its node runs COMMIT or ROLLBACK itself: the State is not saved without the rows."""

    def rolls_back(state: State, context: NodeContext) -> dict[str, Any]:
        write(state, context)
        context.connection.execute("ROLLBACK")
        return {}

    with pytest.raises((ExecutionError, CheckpointError), match=r"not authorized|has ended the transaction"):
        own_scene.execute(own_scene.graph({"a": returns({}), "b": rolls_back}))

    assert own_scene.store.load(RUN).step == 1
    assert rows(own_scene.store) == []


def test_graphs_in_graphs_write_with_their_own_steps(own_scene: Scene) -> None:
    """A node of a nested graph commits its rows with the State of the nested run, which is not repeated."""
    inner = own_scene.graph({"i": write, "j": write}, name="inner")
    graph = make_graph({"a": returns({}), "b": inner.as_node(), "c": write}, store=own_scene.store)

    own_scene.execute(graph)

    assert rows(own_scene.store) == [1, 2, 3]


def test_a_part_of_a_step_has_no_connection(own_scene: Scene) -> None:
    """A branch, also one that is a graph, is refused: its State is saved with those of the others."""
    inner = own_scene.graph({"i": write}, name="inner")
    for branch in (own_scene.as_node(write), inner.as_node()):
        graph = make_graph({"a": ParallelNode({"x": branch, "y": branch})}, store=own_scene.store)
        with pytest.raises(ExecutionError, match="a branch or an item has no State of its own"):
            own_scene.execute(graph, State(run_id=f"run-{type(branch).__name__}"))
    assert rows(own_scene.store) == []


def test_other_stores_say_that_they_have_no_connection(any_play: Scene) -> None:
    """A store without tables names itself, and the stores that have a connection."""
    if hasattr(any_play.store, "_table"):
        pytest.skip("it has a connection")
    with pytest.raises(ExecutionError, match=r"has no connection for nodes; context\.connection needs the sqlite"):
        any_play.execute(any_play.graph({"a": write}))


def test_a_run_that_is_over_gives_no_connection(own_scene: Scene) -> None:
    """A closure that has kept the context begins no transaction, which nothing would end: the store stays free."""
    kept: list[NodeContext] = []

    def keeps(state: State, context: NodeContext) -> dict[str, Any]:
        kept.append(context)
        return {}

    own_scene.execute(own_scene.graph({"a": keeps}, preserve=True))

    with pytest.raises(RuntimeError, match="its attempt is over"):
        write(State(run_id=RUN), kept[0])
    assert rows(own_scene.store) == []


def test_nothing_is_saved_without_a_saved_run(own_scene: Scene) -> None:
    """A graph that saves nothing has no State with which to commit, and says so."""
    with pytest.raises(ExecutionError, match="nothing of this run is saved"):
        own_scene.execute(own_scene.graph({"a": write}, interval=0))


def test_many_runs_write_at_the_same_time(own_scene: Scene) -> None:
    """Runs that write to one table at once, and others that only save, wait for each other and all end."""
    writing = own_scene.graph({"a": write, "b": write, "c": write})
    saving = own_scene.graph(dict.fromkeys("abcdef", returns({})), name="saving")
    works = [lambda n=n: own_scene.execute(writing, State(run_id=f"w{n}")) for n in range(6)]
    works += [lambda n=n: own_scene.execute(saving, State(run_id=f"s{n}")) for n in range(6)]

    assert in_threads(*works) == []

    assert rows(own_scene.store) == sorted([1, 2, 3] * 6)


@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_many_runs_of_one_loop_write_at_the_same_time(store: str, nodes: str, tmp_path: Path) -> None:
    """Runs of an event loop do not keep each other from saving, whichever threads their saves take."""
    with make_store(store, tmp_path) as opened:
        create(opened)
        graphs = [
            Scene(opened, DRIVERS["async"], NODES[nodes]).graph({"a": write, "b": b, "c": write})
            for b in (write, returns({}))
        ]

        async def all_runs() -> None:
            of = [(n, graph) for n in range(5) for graph in graphs]
            await asyncio.gather(*(graph.aexecute(State(run_id=f"{n}-{id(graph)}")) for n, graph in of))

        asyncio.run(all_runs())
        assert len(rows(opened)) == 5 * (3 + 2)


def test_a_thread_that_outlived_its_timeout_gets_no_connection(tmp_path: Path) -> None:
    """What a node does after its timeout has passed is of no step: it gets no connection, and a row is not kept."""
    go_on, ended = threading.Event(), threading.Event()
    errors: list[BaseException] = []

    def slow(state: State, context: NodeContext) -> dict[str, Any]:
        if context.attempt == 2:
            go_on.set()
            assert ended.wait(300)
            return {}
        assert go_on.wait(300)
        try:
            write(state, context)
        except RuntimeError as error:
            errors.append(error)
        ended.set()
        return {}

    with make_store("sqlite", tmp_path) as store:
        create(store)
        policies = {"a": {"timeout": 0.5, "retry": RetryPolicy(max_attempts=2, initial_delay=0.0)}}
        make_graph({"a": slow}, store=store, policies=policies).execute(State(run_id=RUN))
        assert "its attempt is over" in str(errors)
        assert rows(store) == []


def test_entries_come_before_the_connection(tmp_path: Path) -> None:
    """On sqlite an entry cannot be durable while a node has the file: it is refused at once, and named."""

    def late(state: State, context: NodeContext) -> dict[str, Any]:
        write(state, context)
        context._journal.append("status", "x", "x")
        return {}

    with make_store("sqlite", tmp_path) as store:
        create(store)
        with pytest.raises(CheckpointError, match=r"use context\.connection last"):
            make_graph({"a": late}, store=store).execute(State(run_id=RUN))
        assert rows(store) == []


def test_another_loop_task_does_not_wait_for_itself(tmp_path: Path) -> None:
    """An async node that awaits with the transaction of sqlite open does not block the loop: others are told why."""

    async def waits(state: State, context: NodeContext) -> dict[str, Any]:
        write(state, context)
        await asyncio.sleep(0.1)
        return {}

    async def both(store: CheckpointStore) -> list[Any]:
        graph = make_graph({"a": waits}, store=store)
        runs = [graph.aexecute(State(run_id=f"r{n}")) for n in range(2)]
        return list(await asyncio.gather(*runs, return_exceptions=True))

    with make_store("sqlite", tmp_path) as store:
        create(store)
        done, told = sorted(asyncio.run(both(store)), key=lambda each: isinstance(each, Exception))
        assert isinstance(done, State)
        assert "is writing to its own tables" in str(told)
        assert rows(store) == [1]
