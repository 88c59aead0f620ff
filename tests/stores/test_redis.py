"""The "redis" store: faults that only a server has, and its scripts."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest
from redis.crc import key_slot

from stategraph import (
    CheckpointConfig,
    CheckpointError,
    ConfigError,
    NodeContext,
    RunLostError,
    RunStatus,
    State,
    StepConflictError,
)
from stategraph._owners import base
from stategraph._values.progress import Part
from stategraph.errors import CheckpointCorruptError, CheckpointSaveError, FormatError
from stategraph.stores import Policy, RedisStore
from stategraph.stores._redis import scripts
from stategraph.stores._redis.table import RedisTable
from stategraph.stores._rows.records import Write
from stategraph.testing import kill_at
from tests.redis_proxy import RedisProxy
from tests.redis_server import KEEPS, Server, new_prefix, open_redis, server, url
from tests.scenarios import make_graph, trace, traces
from tests.stores.inside import log_of, table_of
from tests.stores.servers import again, numbered, shown, wait_until

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def prefix() -> str:
    """Return a prefix that no key has yet."""
    return new_prefix()


@pytest.fixture
def admin() -> Iterator[Any]:
    """Yield a client of an administrator, who puts back all settings in the end."""
    with server().client() as client:
        settings = {name: client.config_get(name)[name] for name in _SETTINGS}
        yield client
        for name, value in settings.items():
            client.config_set(name, value)


_SETTINGS = ("maxmemory", "maxmemory-policy", "appendfsync", "no-appendfsync-on-rewrite")


@pytest.fixture
def opened(prefix: str) -> Iterator[Callable[..., RedisStore]]:
    """Yield a function that opens a store with the prefix, once more each time."""
    stores: list[RedisStore] = []

    def open_one(**options: Any) -> RedisStore:
        stores.append(open_redis(prefix, **options))
        return stores[-1]

    yield open_one
    for store in stores:
        store.close()


@pytest.fixture
def store(opened: Callable[..., RedisStore]) -> RedisStore:
    """Return an empty store."""
    return opened()


@pytest.fixture
def servers() -> Iterator[Callable[..., Server]]:
    """Yield a function that starts a server of the test's own, as these options say."""
    started: list[Server] = []

    def start(*options: str) -> Server:
        started.append(Server(*options))
        return started[-1]

    yield start
    for one in started:
        one.end()


# --------------------------------------------------------------------------- scripts


class TestScripts:
    """How many, and what they know."""

    def test_a_server_that_forgets_them(self, store: RedisStore, admin: Any) -> None:
        """The store sends forgotten scripts again, and writes nothing twice."""
        store.retain("a", Policy("full"))
        for step in range(1, 4):
            admin.script_flush()
            store.save(numbered("a", step))
        admin.script_flush()
        store.save_many([numbered("b", 1), numbered("b", 2)])
        admin.script_flush()

        assert [row.step for row in store.history("a")] == [1, 2, 3]
        assert store.list() == ["a", "b"]
        admin.script_flush()
        store.delete("a")
        assert store.list() == ["b"]

    def test_keys_of_a_run_are_in_one_slot(self, store: RedisStore, admin: Any, prefix: str) -> None:
        """All keys of a run, its nested runs and its lease share a slot; runs are spread over many slots."""
        for number in range(20):
            run_id = f"run-{number}"
            ownership = base.Ownership(run_id)
            base.own(store, ownership)
            with base.on_behalf_of(ownership):
                store.save(numbered(run_id, 1))
                store.save_parts(run_id, [Part(2, "map", "x", 1)])
            keys = [key for end in ("", "/*") for key in admin.keys(f"{{{prefix}:*}}:*:{run_id}{end}")]
            slots = {key_slot(key.encode()) for key in keys}
            assert len(keys) == 4
            assert len(slots) == 1
            base.release(ownership)
        tags = {key.partition("}")[0] for key in admin.keys(f"{{{prefix}:*")}
        assert 8 < len(tags) <= 16


# --------------------------------------------------------------------------- values


class TestValues:
    """Keys that other programs may have written under the prefix."""

    def test_damage(self, store: RedisStore, admin: Any, prefix: str) -> None:
        """Every kind of damage is reported, and the run can be deleted."""
        (tag,) = {f"{{{prefix}:{table_of(store)._nodes.partition_of('a')}}}"}
        for damage in (
            lambda: admin.hset(f"{tag}:run:a", "d", "x"),
            lambda: admin.hdel(f"{tag}:run:a", "d"),
            lambda: admin.hset(f"{tag}:run:a", "n", "many"),
            lambda: admin.hdel(f"{tag}:run:a", "2"),
            lambda: admin.hset(f"{tag}:run:a", "2", "x"),
            lambda: admin.delete(f"{tag}:rows:a"),
            lambda: admin.zremrangebyscore(f"{tag}:rows:a", 2, 2),
            lambda: admin.zadd(f"{tag}:rows:a", {"x": 1}),
        ):
            store.save(numbered("a", 1, text="x" * 500))
            store.save(numbered("a", 2))
            damage()
            with open_redis(prefix) as other:
                with pytest.raises(CheckpointError) as caught:
                    other.load("a")
                assert isinstance(caught.value, CheckpointCorruptError)
                other.delete("a")
                assert other.list() == []
            log_of(store).forget_all("a")

    def test_lists_come_in_pages(self, store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
        """Filtered pages follow the order in which runs began, over all partitions."""
        monkeypatch.setattr("stategraph.stores._redis.table._PAGE", 2)
        for number in range(40):
            status = RunStatus.COMPLETED if number % 3 else RunStatus.ACTIVE
            store.save(State(run_id=f"{number:03}", step=1, status=status, graph="g" if number % 2 else None))

        newest = [f"{number:03}" for number in reversed(range(40))]
        assert [run.run_id for run in store.runs()] == newest
        assert [run.run_id for run in store.runs(limit=7)] == newest[:7]
        active = [run_id for run_id in newest if int(run_id) % 3 == 0]
        assert [run.run_id for run in store.runs(status="active")] == active
        assert [run.run_id for run in store.runs(status="active", graph="g")] == [
            run_id for run_id in active if int(run_id) % 2
        ]
        assert [run.run_id for run in store.iter_runs(prefix="03")] == newest[:10]
        assert store.count(status="active") == len(active)

    @pytest.mark.parametrize("field", ["number", "score"])
    @pytest.mark.parametrize("number", ["9e15", "inf", "1", "x"])
    def test_a_list_ends(self, store: RedisStore, admin: Any, prefix: str, field: str, number: str) -> None:
        """No number of a run, which is not sealed, lets a list begin again, or hides other runs."""
        for run_id in "abc":
            store.save(numbered(run_id, 1))
        (tag,) = {f"{{{prefix}:{table_of(store)._nodes.partition_of('a')}}}"}
        if field == "number":
            admin.hset(f"{tag}:run:a", "n", number)
        elif number != "x":
            admin.zadd(f"{tag}:runs", {"a": number})

        for limit in (1, 2, 100):
            found: list[str] = []
            after = None
            while page := store.runs(limit=limit, after=after):
                found += [run.run_id for run in page]
                assert len(found) <= 3
                after = page[-1].cursor
            assert sorted(found) == ["a", "b", "c"]
        assert store.count() == 3


# --------------------------------------------------------------------------- the server


class TestOpening:
    """The checks of a store when it connects to its server."""

    def test_the_url_is_nowhere(self, prefix: str, admin: Any, caplog: pytest.LogCaptureFixture) -> None:
        """It is in no error, whether the server refuses it or is silent, and in no repr of a store or config."""
        secret = "geheim-1234"
        for where in (f"redis://app:{secret}@127.0.0.1:{server().port}/0", f"redis://app:{secret}@127.0.0.1:1/0"):
            with pytest.raises(CheckpointError) as caught:
                RedisStore(where, prefix=prefix, patience=0.3)
            assert secret not in shown(caught.value)
            assert where not in shown(caught.value)
            assert secret not in repr(CheckpointConfig(store="redis", options={"url": where}))
        admin.acl_setuser("app", enabled=True, passwords=[f"+{secret}"], categories=["+@all"], keys=["*"])
        with open_redis(prefix, url=f"redis://app:{secret}@127.0.0.1:{server().port}/0") as store:
            assert secret not in f"{store} {store!r} {vars(table_of(store))}"
            store.save(numbered("a", 1))
        admin.acl_deluser("app")
        assert secret not in caplog.text

    @pytest.mark.parametrize(
        ("settings", "match"),
        [
            ({"maxmemory": "1gb", "maxmemory-policy": "allkeys-lru"}, "maxmemory-policy allkeys-lru"),
            ({"appendfsync": "everysec"}, "appendfsync everysec"),
            ({"no-appendfsync-on-rewrite": "yes"}, "no-appendfsync-on-rewrite"),
        ],
        ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
    )
    def test_a_server_that_forgets(self, prefix: str, admin: Any, settings: dict[str, str], match: str) -> None:
        """A server that may lose keys is refused, unless durable=False allows it."""
        for name, value in settings.items():
            admin.config_set(name, value)
        with pytest.raises(ConfigError, match=match) as caught:
            open_redis(prefix)
        assert "durable=False" in str(caught.value)
        with open_redis(prefix, durable=False) as store:
            store.save(numbered("a", 1))

    def test_a_store_of_an_older_version(self, opened: Callable[..., RedisStore], admin: Any, prefix: str) -> None:
        """This version takes it over, so that the older one refuses it; one of a newer version is refused."""
        opened().save(State(run_id="a"))
        layout = int(admin.hget(f"{{{prefix}:0}}:store", "layout"))

        admin.hset(f"{{{prefix}:0}}:store", "layout", 1)
        assert opened().list() == ["a"]
        assert int(admin.hget(f"{{{prefix}:0}}:store", "layout")) == layout > 1

        admin.hset(f"{{{prefix}:0}}:store", "layout", layout + 1)
        with pytest.raises(FormatError, match=f"version {layout + 1} and this version of stategraph reads up to"):
            opened()
        assert int(admin.hget(f"{{{prefix}:0}}:store", "layout")) == layout + 1

    def test_an_address_with_options_of_a_pool(self, prefix: str) -> None:
        """They are accepted, as by redis-py itself."""
        with open_redis(prefix, url=f"{url()}?max_connections=4") as store:
            store.save(numbered("a", 1))
            assert store.list() == ["a"]


# --------------------------------------------------------------------------- faults


class TestFaults:
    """A save is never reported wrongly, never made twice, and no call waits longer than patience says."""

    def test_a_server_that_is_frozen(self, servers: Callable[..., Server], prefix: str) -> None:
        """A save to a frozen server fails after its patience; once awake, the server answers as usual."""
        frozen = servers(*KEEPS)
        with open_redis(prefix, url=frozen.url, patience=0.5) as store:
            store.save(numbered("a", 1))
            frozen.signal(signal.SIGSTOP)
            with pytest.raises(CheckpointSaveError):
                store.save(numbered("a", 2))
            frozen.signal(signal.SIGCONT)
            store.save(numbered("a", 2))
            store.save(numbered("a", 3))
            assert (store.load("a").step, store.load("a")["n"]) == (3, 3)

    def test_a_claim_whose_answer_never_comes(self, opened: Callable[..., RedisStore]) -> None:
        """A worker that lives on does not keep a run that it claimed without knowing it."""

        class DeafensOnce(RedisProxy):
            has_claimed = False

            def is_trip(self, said: bytes, is_server: bool) -> bool:
                is_search = b"-inf" in said
                if scripts.CLAIM.encode() in said and not is_search and not self.has_claimed:
                    self.has_claimed, self.mode = True, "deaf"
                return super().is_trip(said, is_server)

        with make_graph(traces("ab"), store=opened(), preserve=True).stream(State(run_id="left")) as states:
            next(states)
        network = DeafensOnce()
        graph = make_graph(traces("ab"), store=opened(url=network.url, patience=1, lease=2), preserve=True)
        with pytest.raises(CheckpointError):
            [*graph.recover()]
        assert network.has_claimed
        network.mode = "pass"

        wait_until(lambda: [one.run_id for one in graph.recover()] == ["left"])
        network.close()

    def test_a_memory_that_is_full(self, servers: Callable[..., Server], prefix: str) -> None:
        """The error says so, nothing is half written, and room can be made."""
        small = servers(*KEEPS)
        with open_redis(prefix, url=small.url, patience=3600) as store, small.client() as client:
            limit = client.info("memory")["used_memory"] + 5_000_000  # an empty server of version 8 takes some MB
            client.config_set("maxmemory", limit)
            with pytest.raises(CheckpointSaveError, match="memory is full"):  # without waiting
                for number in range(100):
                    store.save(State({"b": os.urandom(200_000)}, run_id=f"run-{number}", step=1))
            count = len(store.list())
            assert 3 < count < 100
            client.config_set("maxmemory", client.info("memory")["used_memory"])  # the last request had some of it
            with pytest.raises(CheckpointSaveError, match="memory is full"):
                store.save_many([State({"b": os.urandom(200_000)}, run_id="run-0", step=step) for step in (2, 3)])
            assert [store.load(run_id).step for run_id in store.list()] == [1] * count
            assert len(client.keys("*}:run:*")) == len(client.keys("*}:rows:*")) == count
            client.config_set("maxmemory", "1mb")
            with pytest.raises(CheckpointSaveError, match="memory is full"):
                store.save(numbered("tiny", 1))
            with pytest.raises(CheckpointSaveError, match=r"'copy'.*memory is full"):
                store.fork("run-0", "copy")
            copies = [line.replace('"run-0"', '"copy"') for line in store.export_run("run-0")]
            with pytest.raises(CheckpointSaveError, match=r"'copy'.*memory is full"):
                store.import_runs(copies)
            for number in range(4):
                store.delete(f"run-{number}")
            client.config_set("maxmemory", limit)
            store.save(State({"b": os.urandom(200_000)}, run_id="run-4", step=2))
            assert store.load("run-4").step == 2


# --------------------------------------------------------------------------- replicas


def replicated(servers: Callable[..., Server]) -> tuple[Server, Server]:
    """Return a primary and its replica, which has all."""
    primary = servers(*KEEPS, "--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0")
    replica = servers(*KEEPS, "--replicaof", "127.0.0.1", str(primary.port))
    with replica.client() as client:
        wait_until(lambda: client.info("replication")["master_link_status"] == "up")
    with primary.client() as client:
        client.set("there", 1)
        assert client.wait(1, 20_000) == 1
    return primary, replica


def test_a_failover_that_loses_writes(servers: Callable[..., Server], prefix: str) -> None:
    """The process that saved lost writes gets an error, by its lease or the version; the rest is consistent."""
    primary, replica = replicated(servers)
    network = RedisProxy(primary)
    store = open_redis(prefix, url=network.url)
    for run_id in ("by-hand", "overtaken"):
        store.save(numbered(run_id, 1, old=run_id))
    with_lease, without = (
        make_graph(traces("abcdef"), store=store).stream(State(run_id=run_id)) for run_id in ("with-lease", "without")
    )
    next(with_lease)
    with primary.client() as client:
        assert client.wait(1, 5000) == 1
    with replica.client() as client:  # it is taken for dead, and what follows does not come to it
        client.replicaof("NO", "ONE")
    for stream in (without, with_lease, with_lease):
        next(stream)
    for step in (2, 3):
        store.save(numbered("by-hand", step))
        store.save(numbered("overtaken", step))
    primary.signal(signal.SIGKILL)
    network.leads_to(replica)
    with open_redis(prefix, url=replica.url) as other:
        other.save(numbered("overtaken", 2, by="other"))
        other.save(numbered("overtaken", 3, by="other"))

        with pytest.raises(RunLostError):
            list(without)
        with pytest.raises(StepConflictError, match="has lost saved checkpoints"):
            list(with_lease)
        with pytest.raises(StepConflictError, match="has lost saved checkpoints"):
            store.save(numbered("by-hand", 4))
        assert other.load("by-hand").step == 1
        store.save(numbered("by-hand", 4))
        assert dict(other.load("by-hand")) == {"n": 4}
        store.save(numbered("overtaken", 4))
        assert dict(other.load("overtaken")) == {"n": 4}
        assert other.load("with-lease")["trace"][:1] == ["a"]
    store.close()
    network.close()


def test_replicas_that_must_have_it(servers: Callable[..., Server], prefix: str) -> None:
    """A save returns once they do; where they do not in time, it fails, and is not called made before they do."""
    primary, replica = replicated(servers)
    with open_redis(prefix, url=primary.url, replicas=1, patience=1) as store:
        store.save(numbered("a", 1))
        replica.signal(signal.SIGSTOP)
        for _ in range(2):
            with pytest.raises(CheckpointError, match=r"of 1 replicas have it in time|has not answered in time"):
                store.save(numbered("a", 2))
        replica.signal(signal.SIGCONT)
        store.save(numbered("a", 2))
        primary.signal(signal.SIGKILL)
    with replica.client() as client:
        client.replicaof("NO", "ONE")
    with open_redis(prefix, url=replica.url) as other:
        assert other.load("a").step == 2


# --------------------------------------------------------------------------- clusters


def test_a_cluster(servers: Callable[..., Server], prefix: str) -> None:
    """Partitions are where their slots are, also once these are moved, or while they are."""
    nodes = [servers(*KEEPS, "--cluster-enabled", "yes") for _ in range(2)]
    first, second = (node.client() for node in nodes)
    first.execute_command("CLUSTER ADDSLOTS", *range(8192))
    second.execute_command("CLUSTER ADDSLOTS", *range(8192, 16384))
    first.execute_command("CLUSTER MEET", "127.0.0.1", nodes[1].port)
    for one in (first, second):
        wait_until(partial(_is_whole, one))
    with open_redis(prefix, url=nodes[0].url, patience=10) as store:
        graph = make_graph(traces("abc"), store=store, preserve=True)
        for number in range(12):
            assert graph.execute(State(run_id=f"run-{number}")).step == 3
        assert min(len(one.keys("*:run:*")) for one in (first, second)) > 0
        assert len(store.list()) == 12
        key = first.keys("*:run:*")[0]
        move_slot(key_slot(key.encode()), nodes[0], nodes[1], lambda: store.load(key.rpartition(":")[2]))
        for number in range(12):
            store.save(numbered(f"run-{number}", 9))
        batches = [again(store, f"run-{number}") for number in range(12)]
        assert table_of(store).apply(batches) == [True] * 12
        store.delete("run-3")
        assert store.count() == 11
    first.close()
    second.close()


def _is_whole(node: Any) -> bool:
    return bool(node.execute_command("CLUSTER INFO")["cluster_state"] == "ok")


def move_slot(slot: int, source: Server, target: Server, during: Callable[[], Any]) -> None:
    """Move a slot of a cluster to another node."""
    with source.client() as one, target.client() as other:
        ids = [client.execute_command("CLUSTER MYID") for client in (one, other)]
        other.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", ids[0])
        one.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", ids[1])
        keys = one.execute_command("CLUSTER GETKEYSINSLOT", slot, 1000)
        one.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
        during()
        for client in (other, one):
            client.execute_command("CLUSTER SETSLOT", slot, "NODE", ids[1])


def test_a_fork_that_is_killed_half_way_is_no_run(monkeypatch: pytest.MonkeyPatch, store: RedisStore) -> None:
    """Redis has no transaction over several runs. A copy without its nested runs would repeat their effects."""
    bills: list[int] = []

    def pay(state: State, context: NodeContext) -> dict[str, Any]:
        context.effect("pay", lambda: bills.append(1))
        return {}

    inner = make_graph({"pay": pay, "last": trace("last")}, store=store, name="inner")
    graph = make_graph({"first": trace("first"), "inner": inner.as_node(), "end": trace("end")}, store=store)
    with kill_at("inner/last", saved=False):
        graph.execute(State(run_id="a"))
    apply = RedisTable.apply

    def killed(self: RedisTable, writes: Sequence[Write]) -> Any:
        apply(self, writes[:1])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(RedisTable, "apply", killed)
        store.fork("a", "copy")

    assert store.list() == ["a"]
    assert store.verify().damaged == ()
    store.fork("a", "copy")
    assert graph.resume("copy").status == "completed"
    assert bills == [1]
