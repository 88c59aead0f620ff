"""A run has one owner among all machines, by leases that the server keeps with its clock."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from stategraph import CheckpointConfig, CheckpointError, GraphConfig, RunBusyError, RunLostError, State, StateGraph
from stategraph._owners import base
from stategraph._values.progress import Part
from stategraph._values.provenance import ParentStep
from stategraph.stores import PostgresStore, RedisStore
from tests.scenarios import RUN, in_threads, make_graph, returns, traces
from tests.stores.servers import SERVERS, StoreServer, wait_until

Store: TypeAlias = PostgresStore | RedisStore

pytestmark = pytest.mark.timeout(600)

OWNER = """
import json, sys, time
from stategraph import CheckpointConfig, CheckpointError, GraphConfig, State, StateGraph
from stategraph.errors import RunLostError
from stategraph._owners import leases

leases.machine_name = lambda: "elsewhere"  # as seen from any other machine
checkpoint = CheckpointConfig(interval=1, preserve=True, lease=2.0, **json.loads(sys.argv[1]))
graph = StateGraph(GraphConfig("chain", observer="noop", checkpoint=checkpoint))

def node(state):
    print("at work", flush=True)
    time.sleep(0.05)
    return {"by": "the first"}

graph.add_node("a", node)
graph.add_edge("a", "a", lambda state: state.step < 200)
graph.add_node("b", lambda state: {})
graph.add_edge("a", "b")
graph.set_entry_point("a")
graph.set_exit_point("b")
try:
    graph.execute(State(run_id="run"))
except RunLostError:
    print("lost", flush=True)
"""


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> StoreServer:
    """Return a server, one of each kind."""
    return SERVERS[request.param]


@pytest.fixture
def place(server: StoreServer) -> str:
    """Return a place on it where nothing is."""
    return server.new_place()


@pytest.fixture
def opened(server: StoreServer, place: str) -> Iterator[Callable[..., Store]]:
    """Return a function that opens a new store in the place; each acts like another process."""
    stores: list[Store] = []

    def open_one(**options: Any) -> Store:
        stores.append(server.open(place, **options))
        return stores[-1]

    yield open_one
    for store in stores:
        store.close()


@pytest.fixture
def elsewhere(server: StoreServer, place: str) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Yield a function that starts an owner of the run on another machine, with a lease of two seconds."""
    started: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        options = json.dumps(server.config(place))
        process = subprocess.Popen([sys.executable, "-c", OWNER, options], stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        for _ in range(3):
            assert process.stdout.readline() == "at work\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def nested(name: str, step: int) -> State:
    """Return the State of a run that is nested in the second step of the run."""
    return State(run_id=f"{RUN}/#2/{name}", step=step, parent=ParentStep(RUN, 1))


def going_on(store: Store) -> StateGraph:
    """Return the graph of the owner elsewhere, whose node is done at once here."""
    config = GraphConfig("chain", observer="noop", checkpoint=CheckpointConfig(interval=1, preserve=True))
    graph = StateGraph(config, store=store)
    graph.add_node("a", lambda state: {"by": "the second"})
    graph.add_edge("a", "a", lambda state: False)
    graph.add_node("b", lambda state: {})
    graph.add_edge("a", "b")
    graph.set_entry_point("a")
    graph.set_exit_point("b")
    return graph


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
def test_an_owner_on_another_machine(
    elsewhere: Callable[[], subprocess.Popen[str]], opened: Callable[..., Store], how: signal.Signals
) -> None:
    """Keeps its run until the lease runs out, and then it is anybody's; who wakes up has lost it."""
    process, store = elsewhere(), opened()
    owner = store.owner(RUN)
    assert owner is not None
    assert owner.pid == process.pid
    assert owner.since is not None
    assert owner.until is not None
    process.send_signal(how)
    with pytest.raises(RunBusyError):
        going_on(store).resume(RUN, allow_changed=True)

    state = going_on(store).resume(RUN, allow_changed=True, wait=300)

    assert datetime.now(UTC) >= owner.until
    assert state.checkpoint_node == "b"
    if how is signal.SIGSTOP:
        process.send_signal(signal.SIGCONT)
        assert process.stdout is not None
        assert process.stdout.read().split("\n")[-2] == "lost"
    assert store.load(RUN) == state


def test_an_owner_that_lives_keeps_its_run(
    elsewhere: Callable[[], subprocess.Popen[str]], opened: Callable[..., Store]
) -> None:
    """It keeps the run for longer than the lease; another process waits for it, or takes it over."""
    process, store = elsewhere(), opened()
    with pytest.raises(RunBusyError):
        going_on(store).resume(RUN, allow_changed=True, wait=3)

    state = going_on(store).resume(RUN, allow_changed=True, take_over=True)

    assert process.stdout is not None
    assert process.stdout.read().split("\n")[-2] == "lost"
    assert store.load(RUN) == state


HOLDS_THE_GIL = """
import ctypes, json, sys
from stategraph import CheckpointConfig, GraphConfig, StateGraph
from stategraph.errors import RunLostError

graph = StateGraph(GraphConfig("held", observer="noop", checkpoint=CheckpointConfig(
    interval=1, preserve=True, lease=1.0, **json.loads(sys.argv[1]))))

def node(state):
    print("begun", flush=True)
    ctypes.PyDLL(None).usleep(1_600_000)  # unlike CDLL, it keeps the GIL
    return {"done": True}

graph.add_node("a", node)
graph.set_entry_point("a")
graph.set_exit_point("a")
while graph.store.load("run").status == "active":
    try:
        list(graph.recover())
    except RunLostError:
        pass
"""


def test_nodes_that_hold_the_gil_for_longer_than_the_lease(server: StoreServer, place: str) -> None:
    """Each process loses such a run once, and then leases it for long enough."""
    options = server.config(place)
    graph = StateGraph(GraphConfig("held", observer="noop", checkpoint=CheckpointConfig(preserve=True, **options)))
    graph.add_node("a", lambda state: {})
    graph.set_entry_point("a")
    graph.set_exit_point("a")
    graph.submit(State(run_id="run"))
    command = [sys.executable, "-c", HOLDS_THE_GIL, json.dumps(options)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    begun = [process.communicate()[0].count("begun") for process in processes]
    state = graph.store.load("run")
    graph.store.close()

    assert (state.status, state.get("done")) == ("completed", True)
    assert max(begun) <= 2


class TestByHand:
    """Writes to the store that are none of a run."""

    def test_of_a_run_with_an_owner(self, opened: Callable[..., Store]) -> None:
        """Every write to a run with another owner is refused."""
        store, other = opened(), opened()
        with make_graph(traces("abc"), store=store).stream(State(run_id=RUN)) as states:
            state = next(states)
            for write in (
                lambda: other.save(State(run_id=RUN, step=9)),
                lambda: other.save(state.set("n", 1)),
                lambda: other.save(state),
                lambda: other.amend(state.set("n", 1)),
                lambda: other.save_many([State(run_id=RUN, step=7), State(run_id=RUN, step=8)]),
                lambda: other.save_parts(RUN, [Part(9, "map", "x", 1)]),
                lambda: other.delete(RUN),
                lambda: other.rollback(RUN, 1),
            ):
                with pytest.raises(RunBusyError):
                    write()
            assert other.prune().runs == ()
            assert [*states][-1]["trace"] == [*"abc"]

    @pytest.mark.parametrize("what", ["save", "delete", "rollback"])
    def test_of_a_run_whose_owner_is_gone(
        self, server: StoreServer, opened: Callable[..., Store], place: str, what: str
    ) -> None:
        """Writes to a run with an expired owner succeed, and that owner has lost the run."""
        store, other = opened(), opened()
        stream = make_graph(traces("abc"), store=store).stream(State(run_id=RUN))
        next(stream)
        server.expire(place)
        match what:
            case "save":
                other.save(State(run_id=RUN, step=5))
            case "delete":
                other.delete(RUN)
            case _:
                other.rollback(RUN, 1)
        with pytest.raises(RunLostError):
            next(stream)
        assert other.owner(RUN) is None


class TestFences:
    """Each write of an owner carries one."""

    def test_the_fence_covers_parts_and_nested_runs(self, opened: Callable[..., Store]) -> None:
        """The fence of a run covers its parts and its nested runs, old and new."""
        store, other = opened(), opened()
        first = base.Ownership(RUN)
        base.own(store, first)
        with base.on_behalf_of(first):
            store.save(State(run_id=RUN, step=1))
            store.save(nested("child", 1))
            store.save_parts(RUN, [Part(2, "map", "x", 1)])
        second = base.Ownership(RUN)
        base.own(other, second, take_over=True)
        with base.on_behalf_of(first):
            for write in (
                lambda: store.save(nested("child", 2)),
                lambda: store.save(nested("new", 1)),
                lambda: store.save_parts(RUN, [Part(2, "map", "y", 1)]),
                lambda: store.save_parts(RUN, [Part(2, "other", "y", 1)]),
                lambda: store.drop_parts(RUN, 2),
            ):
                first.is_lost = False  # as in a process that has not found out
                with pytest.raises(RunLostError):
                    write()
        base.release(second)
        assert other.load_parts(RUN, 2, "map") == {"x": 1}
        assert other.load(f"{RUN}/#2/child").step == 1


class TestLostOrUnreachable:
    """A call whose run others may have begins no other node in it."""

    @pytest.mark.parametrize("durability", ["sync", "async"])
    def test_a_server_that_is_gone(self, server: StoreServer, opened: Callable[..., Store], durability: str) -> None:
        """The call ends after `patience`."""
        proxy = server.proxy()
        store, made = opened(**server.through(proxy), lease=1.0, patience=1), list[str]()

        def cut_off(state: State) -> dict[str, Any]:
            made.append("a")
            proxy.mode = "hole"
            time.sleep(0 if durability == "sync" else 1.1)
            return {}

        graph = make_graph({"a": cut_off, "b": lambda state: made.append("b")}, store=store, durability=durability)
        with pytest.raises(CheckpointError):
            graph.execute(State(run_id=RUN))

        assert made == ["a"]
        proxy.mode = "pass"
        wait_until(lambda: store.owner(RUN) is None)  # the lease is released once the server answers
        store.close()
        proxy.close()

    @pytest.mark.parametrize("durability", ["sync", "async", "exit"])
    def test_a_run_that_others_have_taken(
        self, server: StoreServer, opened: Callable[..., Store], place: str, durability: str
    ) -> None:
        """The call ends with a RunLostError."""
        store, other, made = opened(), opened(), list[str]()
        taken = base.Ownership(RUN)

        def hangs(state: State) -> dict[str, Any]:
            server.expire(place)
            base.own(other, taken)
            time.sleep(0 if durability == "sync" else 1.6)
            return {}

        graph = make_graph({"a": hangs, "b": lambda state: made.append("b")}, store=store, durability=durability)
        with pytest.raises(RunLostError):
            graph.execute(State(run_id=RUN))

        assert made == []
        base.release(taken)


@pytest.mark.parametrize("preserve", [True, False])
def test_nothing_of_a_deleted_run_stays(
    server: StoreServer, opened: Callable[..., Store], place: str, preserve: bool
) -> None:
    """A cancellation that came too late goes with its run, whether a call deletes the run or its end does."""
    store, other = opened(), opened()
    nodes = {"a": returns({}), "b": lambda state: {"late": str(other.cancel(RUN, by="ann"))}}
    make_graph(nodes, store=store, preserve=preserve).execute(State(run_id=RUN))
    if preserve:
        store.delete(RUN)

    assert (store.list(), server.count(place, "lease")) == ([], 0)


class TestRenewal:
    """A process says that it is there, for all of its runs."""

    def test_all_is_let_go_of_at_the_end(self, server: StoreServer, opened: Callable[..., Store], place: str) -> None:
        """The end of a run releases its lease; the end of a store or a process releases all of its leases."""
        store, other = opened(), opened()
        make_graph(traces("ab"), store=store, preserve=True).execute(State(run_id=RUN))
        assert server.count(place, "lease") == 0
        ownership = base.Ownership("another")
        base.own(store, ownership)
        assert other.owner("another") is not None
        store.close()
        assert server.count(place, "worker") == 0
        assert other.owner("another") is None


class TestRunsThatHaveAnOwner:
    """They are found by the leases."""

    def test_no_other_run_is_read(
        self, server: StoreServer, opened: Callable[..., Store], place: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """So nothing is logged of one that is damaged."""
        store, other = opened(), opened()
        for number in range(4):
            store.save(State(run_id=f"free-{number}"))
        server.damage(place, "free-3")
        graph = make_graph(traces("ab"), store=other)
        with graph.stream(State(run_id="one")) as one, graph.stream(State(run_id="two")) as two:
            next(one), next(two)
            found = [run.run_id for run in store.runs(owned=True)]
            (first,) = store.runs(owned=True, limit=1)
            after_it = [run.run_id for run in store.runs(owned=True, limit=1, after=first.cursor)]

            assert (found, first.run_id, after_it) == (["two", "one"], "two", ["one"])
            assert store.count(owned=True) == store.count(owned=True, status="active") == 2
            assert store.runs(owned=True, status="failed") == store.runs(owned=True, prefix="o", graph="none") == []
        assert store.runs(owned=True) == []
        assert caplog.messages == []

    def test_until_the_lease_runs_out(
        self,
        server: StoreServer,
        opened: Callable[..., Store],
        place: str,
        elsewhere: Callable[[], subprocess.Popen[str]],
    ) -> None:
        """An owner on another machine counts until its lease expires; nested runs count with their run."""
        store = opened()
        store.save(State(run_id="free"))
        elsewhere().send_signal(signal.SIGSTOP)

        def found() -> tuple[set[str], set[str], int]:
            owned, free = store.runs(owned=True), store.runs(owned=False)
            return {run.run_id for run in owned}, {run.run_id for run in free}, store.count(owned=False)

        assert found() == ({RUN}, {"free"}, 1)
        server.expire(place)
        assert found() == (set(), {RUN, "free"}, 2)


def test_sweepers_against_each_other(opened: Callable[..., Store]) -> None:
    """Each abandoned run is continued once."""
    graph = {"a": lambda state: {}, "b": lambda state: {"pid": os.getpid()}}
    first = opened()
    for number in range(60):
        with make_graph(graph, store=first, preserve=True).stream(State(run_id=f"run-{number}")) as states:
            next(states)
    recovered: Counter[str] = Counter()

    def sweep() -> None:
        sweeper = make_graph(graph, store=opened(pool=1), preserve=True)
        recovered.update(one.run_id for one in sweeper.recover() if one.error is None)

    raised = in_threads(*[sweep] * 6)

    assert raised == []
    assert recovered == Counter(f"run-{number}" for number in range(60))
    assert first.count(status="active") == 0


FLOW = """
import json, os, sys, threading, time
from stategraph import CheckpointConfig, GraphConfig, StateGraph

checkpoint = CheckpointConfig(interval=1, preserve=True, **json.loads(sys.argv[1]))
graph = StateGraph(GraphConfig("flow", observer="noop", checkpoint=checkpoint))

def hangs(state):
    os.write(1, f"{state.run_id}\\n".encode())  # not print: threads write at the same time
    time.sleep(600)

def flow(node):
    graph.add_node("a", node)
    graph.set_entry_point("a")
    graph.set_exit_point("a")
"""
WORKER = f"""{FLOW}
flow(hangs)
threads = [threading.Thread(target=lambda: list(graph.recover())) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:  # since Python 3.12, no thread starts once the main thread has ended
    thread.join()
"""


@pytest.mark.parametrize("kind", [*SERVERS, "sqlite"])
def test_runs_of_a_killed_worker_come_before_younger_ones(kind: str, tmp_path: Path) -> None:
    """This holds however much work arrives: here, each continued run submits another one."""
    options: dict[str, Any] = {"store": kind, "options": {"path": str(tmp_path / "runs")}}
    if kind in SERVERS:
        options = SERVERS[kind].config(SERVERS[kind].new_place())
    config = GraphConfig("flow", observer="noop", checkpoint=CheckpointConfig(interval=1, preserve=True, **options))
    old, begun = [f"old-{number}" for number in range(4)], list[str]()

    def works(state: State) -> dict[str, Any]:
        begun.append(state.run_id)
        if len(begun) == 10:
            killed.kill()
            killed.wait()
        graph.submit(State(run_id=f"young-{len(begun)}"))
        return {}

    graph = StateGraph(config)
    graph.add_node("a", works)
    graph.set_entry_point("a")
    graph.set_exit_point("a")
    for run_id in old:
        graph.submit(State(run_id=run_id))
    killed = subprocess.Popen([sys.executable, "-c", WORKER, json.dumps(options)], stdout=subprocess.PIPE, text=True)
    try:
        assert killed.stdout is not None
        assert sorted(killed.stdout.readline().strip() for _ in old) == old
        graph.submit(State(run_id="young-0"))
        while len(begun) < 100 and old[-1] not in begun:
            for _ in graph.recover(limit=100 - len(begun)):
                if old[-1] in begun:
                    break
    finally:
        killed.kill()
        killed.communicate()
        graph.store.close()

    assert [run_id for run_id in begun if run_id in old] == old
    assert begun.index(old[-1]) <= 10 + 4  # of younger ones, no more than the one that was there in between


SWEEPER = f"""{FLOW}
flow(lambda state: {{}})
print([one.run_id for one in graph.recover()])
"""
USERS = """
import subprocess, sys

options, worker, sweeper = sys.argv[1:]

def command(user, program):  # who reaches the servers of the tests, and sees no process of another user
    caps = ("--inh-caps=+dac_override", "--ambient-caps=+dac_override")
    who = (f"--reuid={user}", f"--regid={user}", "--clear-groups")
    return ["setpriv", *who, *caps, sys.executable, "-c", program, options]

owner = subprocess.Popen(command(65533, worker), stdout=subprocess.PIPE)
assert owner.stdout.readline() == b"run\\n"
subprocess.run(command(65534, sweeper), check=True)
owner.kill()
owner.wait()
subprocess.run(command(65534, sweeper), check=True)
"""
# In a new namespace of processes: hiding them here would hide them from everything.
HIDDEN = [
    *("unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c"),
    *('mount -t proc -o hidepid=2 proc /proc && exec "$@"', "-"),
]


@pytest.mark.skipif(
    not (shutil.which("unshare") and shutil.which("setpriv") and os.getuid() == 0)
    or subprocess.run([*HIDDEN, "true"], check=False, capture_output=True).returncode != 0,
    reason="hiding the processes of other users takes root on Linux",
)
def test_an_owner_that_proc_hides(server: StoreServer, place: str) -> None:
    """An owner counts as alive while its process exists, even if /proc hides it; a killed one is gone at once."""
    options = server.config(place)
    with server.open(place) as store:
        make_graph({"a": lambda state: {}}, store=store, preserve=True).submit(State(run_id=RUN))

    command = [*HIDDEN, sys.executable, "-c", USERS, json.dumps(options), WORKER, SWEEPER]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=300).stdout

    assert said.splitlines() == ["[]", "['run']"]
