"""Stores on servers: a save takes one round trip, and its outcome is never reported wrongly."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import UTC, datetime
from typing import Any, TypeAlias

import pytest

from stategraph import CheckpointError, ConfigError, State, get_checkpoint_store
from stategraph._values.progress import Part
from stategraph.stores import Policy, PostgresStore, RedisStore
from stategraph.stores._servers import Connections
from stategraph.testing import fixed
from tests.scenarios import make_graph, traces
from tests.stores.inside import table_of
from tests.stores.servers import SERVERS, StoreServer, again, numbered

Store: TypeAlias = PostgresStore | RedisStore

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> StoreServer:
    """Return a server, one of each kind."""
    return SERVERS[request.param]


@pytest.fixture
def proxy(server: StoreServer) -> Iterator[Any]:
    """Yield a network to it that can fail."""
    made = server.proxy()
    yield made
    made.close()


@pytest.fixture
def store(server: StoreServer, proxy: Any) -> Iterator[Store]:
    """Yield an empty store that is reached through this network."""
    with server.open(server.new_place(), **server.through(proxy)) as made:
        yield made


@pytest.mark.parametrize("kind", SERVERS)
def test_by_name(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store is found by name with a connection string or the environment variable that holds it."""
    options = SERVERS[kind].config(SERVERS[kind].new_place())["options"]
    where, address = next(iter(options.items()))
    monkeypatch.setenv("RUNS_AT", address)
    with get_checkpoint_store(kind, **{**options, where: "RUNS_AT"}) as store:
        store.save(numbered("a", 1))
        assert str(store).startswith(f"{kind} store ")
    with get_checkpoint_store(kind, **options) as store:
        assert store.list() == ["a"]


@pytest.mark.parametrize(
    ("store", "url", "driver", "extra"),
    [(PostgresStore, "postgresql://host/0", "psycopg", "postgres"), (RedisStore, "redis://host/0", "redis", "redis")],
)
def test_without_its_driver(store: Any, url: str, driver: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says which extra brings it."""
    for name in [name for name in sys.modules if name.split(".")[0] == driver]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=rf"durable-stategraph\[{extra}\]"):
        store(url)


def test_a_closed_store(store: Store) -> None:
    """Says so, for reading and for writing."""
    store.close()
    assert store.closed
    for ask in (store.list, lambda: store.save(numbered("a", 1)), lambda: store.load("a")):
        with pytest.raises(CheckpointError, match="closed"):
            ask()


def test_a_store_that_is_closed_during_a_request(store: Store, proxy: Any) -> None:
    """The connection of the request is closed after it, too."""
    table_of(store)._ask("", lambda _: store.close())

    _, *links = proxy._threads
    for link in links:
        link.join(300)
    assert links
    assert not any(link.is_alive() for link in links)


def test_a_save_is_one_round_trip(store: Store, proxy: Any) -> None:
    """The first save of a run looks for the run; statements and scripts are prepared once."""
    for step in range(1, 7):
        for run_id in ("one", "two", "three"):
            store.save(numbered(run_id, step))
    trips = []
    for step in range(1, 4):
        proxy.answers = 0
        store.save(numbered("a", step))
        trips.append(proxy.answers)
    proxy.answers = 0
    store.amend(numbered("a", 3, other=1))

    assert [*trips, proxy.answers] == [2, 1, 1, 1]


def test_the_parts_of_a_step_are_loaded_at_once(store: Store, proxy: Any) -> None:
    """However many there are, and in however many saves they came."""
    trips = []
    for count in (1, 20):
        store.save(numbered(f"of-{count}", 1))
        for number in range(count):
            store.save_parts(f"of-{count}", [Part(2, "map", str(number), number)])
        proxy.answers = 0
        assert len(store.load_parts(f"of-{count}", 2, "map")) == count
        trips.append(proxy.answers)

    assert trips[0] == trips[1]


@pytest.mark.parametrize("when", ["cut before", "cut after"])
@pytest.mark.parametrize("first", [True, False])
def test_a_connection_that_is_cut(store: Store, proxy: Any, when: str, first: bool) -> None:
    """A save whose connection is cut before or after the commit is checked and written exactly once."""
    store.retain("a", Policy("full"))
    store.save(numbered("another", 1))
    if not first:
        store.save(numbered("a", 1))
    proxy.mode = when
    store.save(numbered("a", 2))

    assert [(row.step, row.revision) for row in store.history("a")] == ([(2, 0)] if first else [(1, 0), (2, 0)])
    store.save(numbered("a", 3))
    assert (store.load("a").step, store.load("a")["n"]) == (3, 3)


@pytest.mark.parametrize("mode", ["hole", "deaf"])
def test_a_connection_that_the_network_has_dropped(server: StoreServer, proxy: Any, mode: str) -> None:
    """Calls go on over a new connection, and a save whose answer was dropped is made once."""
    with server.open(server.new_place(), patience=4, **server.through(proxy)) as store:
        store.retain("a", Policy("full"))
        store.save(numbered("a", 1))
        proxy.drop(mode)
        store.save(numbered("a", 2))
        proxy.drop(mode)
        assert store.load("a").step == 2
        proxy.drop(mode)
        store.cancel("a")
        assert [(row.step, row.revision) for row in store.history("a")] == [(1, 0), (2, 0), (2, 1)]


def test_calls_that_need_a_lease_while_the_server_is_away(server: StoreServer, proxy: Any) -> None:
    """Each waits for its patience, neither for a part of the lease only, nor for the patience of others as well."""
    place = server.new_place()
    with server.open(place, patience=30, lease=0.6, **server.through(proxy)) as store:
        proxy.mode = "hole"
        threading.Timer(1, proxy.__setattr__, ("mode", "pass")).start()
        assert make_graph(traces("a"), store=store).execute(State(run_id="patient")).step == 1

    with server.open(place, patience=4, lease=0.6, **server.through(proxy)) as store, ThreadPoolExecutor(20) as threads:
        graph = make_graph(traces("a"), store=store)
        proxy.mode = "hole"
        calls = [threads.submit(graph.execute, State(run_id=f"{number}")) for number in range(20)]
        raised = wait(calls, timeout=60).done  # one after the other, they would wait for 80 s
        proxy.mode = "pass"
        assert len(raised) == 20
        assert all(isinstance(call.exception(), CheckpointError) for call in raised)


def test_many_runs_are_verified_with_few_requests(server: StoreServer, proxy: Any) -> None:
    """Runs are read several at a time, and a damaged one is still named."""
    place = server.new_place()
    with server.open(place, **server.through(proxy)) as many:
        for number in range(60):
            many.retain(f"{number}", Policy("full"))
            many.save_many([numbered(f"{number}", step) for step in (1, 2, 3)])
        proxy.answers = 0
        assert (many.verify().runs, many.verify().checkpoints) == ({"active": 60}, 180)
        assert proxy.answers < 60
        server.damage(place, "33")
        assert [damage.run_id for damage in many.verify().damaged] == ["33"]


def test_prune_goes_by_the_clock_of_the_server(server: StoreServer) -> None:
    """A machine whose clock is years ahead removes nothing early."""
    with server.open(server.new_place()) as store:
        store.retain("a", Policy(ttl=3600))
        store.save(State({"n": 1}, run_id="a", step=1, status="completed"))
        with fixed(datetime(2999, 1, 1, tzinfo=UTC)):
            assert store.prune().runs == ()
        assert store.list() == ["a"]


def test_a_shared_commit_whose_answer_is_lost(store: Store, proxy: Any) -> None:
    """Each save of a shared commit whose answer is lost is checked."""
    for number in range(5):
        store.save(numbered(f"{number}", 1))
    batches = [again(store, f"{number}") for number in range(5)]
    proxy.mode = "cut after"

    assert table_of(store).apply(batches) == [True] * 5
    assert [store.load(f"{number}").step for number in range(5)] == [2] * 5


def test_a_deletion_whose_answer_is_lost(store: Store, proxy: Any) -> None:
    """It is done, and is no error."""
    store.save(numbered("a", 1))
    proxy.mode = "cut after"
    store.delete("a")

    assert store.list() == []


class _Idle:
    """A connection that is always ready."""

    give_up = last = 0.0
    is_usable = True

    def close(self) -> None:
        """Do nothing."""


def test_a_thread_that_waits_for_a_connection() -> None:
    """It gets one before a thread that uses one again and again."""
    connections = Connections[_Idle](lambda _: _Idle(), 1)
    used: list[str] = []
    ends = threading.Event()

    def work(name: str) -> None:
        connections.use(lambda _: time.sleep(0.001), time.monotonic() + 300)
        used.append(name)

    def work_again_and_again() -> None:
        while not ends.is_set():
            work("busy")

    with ThreadPoolExecutor(1) as pool:
        busy = pool.submit(work_again_and_again)
        for _ in range(50):
            work("waiting")
        ends.set()
        busy.result()

    assert used.count("busy") < 150
