"""The "redis" store: what only a server can do to a run, and what the scripts of it must not."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis.crc import key_slot

from stategraph import (
    CheckpointError,
    RunStatus,
    State,
)
from stategraph._owners import holds
from stategraph._values.progress import Part
from stategraph.errors import CheckpointCorruptError, CheckpointSaveError
from stategraph.stores import Policy, RedisStore
from stategraph.stores._checks import RunFilter
from stategraph.stores._rows.records import WriteBatch
from tests.redis_proxy import RedisProxy
from tests.redis_server import Server, new_prefix, open_redis, server
from tests.scenarios import make_graph, traces

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def prefix() -> str:
    """-> a prefix that no key has yet."""
    return new_prefix()


@pytest.fixture
def admin() -> Iterator[Any]:
    """-> a client of an administrator, who puts back all settings in the end."""
    with server().client() as client:
        settings = {name: client.config_get(name)[name] for name in _SETTINGS}
        yield client
        for name, value in settings.items():
            client.config_set(name, value)


_SETTINGS = ("maxmemory", "maxmemory-policy", "appendfsync", "no-appendfsync-on-rewrite")


@pytest.fixture
def opened(prefix: str) -> Iterator[Callable[..., RedisStore]]:
    """-> opens a store with the prefix, once more each time."""
    stores: list[RedisStore] = []

    def open_one(**options: Any) -> RedisStore:
        stores.append(open_redis(prefix, **options))
        return stores[-1]

    yield open_one
    for store in stores:
        store.close()


@pytest.fixture
def store(opened: Callable[..., RedisStore]) -> RedisStore:
    """-> an empty store."""
    return opened()


@pytest.fixture
def proxy() -> Iterator[RedisProxy]:
    """-> a network that can fail."""
    made = RedisProxy()
    yield made
    made.close()


@pytest.fixture
def servers() -> Iterator[Callable[..., Server]]:
    """-> starts a server of the test's own, as these options say."""
    started: list[Server] = []

    def start(*options: str) -> Server:
        started.append(Server(*options))
        return started[-1]

    yield start
    for one in started:
        one.end()


def numbered(run_id: str, step: int, **data: Any) -> State:
    """-> the State of a run at a step."""
    return State({"n": step, **data}, run_id=run_id, step=step)


def again(store: RedisStore, run_id: str) -> WriteBatch:
    """-> what the store writes for one more step of a run."""
    state = numbered(run_id, store.load(run_id).step + 1)
    known = store._log.known.get(run_id)
    assert known is not None
    run, base = known
    row, new = store._log.encoder.following(base, state, store._log.next_place(run, state))
    return WriteBatch(store._log.next_run(run, row, new), run, (row,))


def in_threads(*works: Callable[[], Any]) -> list[BaseException]:
    """Do all of this at the same time; -> what was raised."""
    raised: list[BaseException] = []

    def do(work: Callable[[], Any]) -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=do, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


def shown(error: BaseException | None) -> str:
    """-> all that may be shown of an error."""
    texts: list[str] = []
    while error is not None:
        texts += str(error), repr(error), repr(error.args)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return "\n".join(texts)


def wait_until(is_so: Callable[[], bool], seconds: float = 10) -> None:
    """Wait until something is so."""
    give_up = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < give_up
        time.sleep(0.01)


# --------------------------------------------------------------------------- scripts


class TestScripts:
    """How many, and what they know."""

    def test_a_save_is_one_round_trip(self, proxy: RedisProxy, opened: Callable[..., RedisStore]) -> None:
        """Whether there is such a run is asked once."""
        store = opened(url=proxy.url)
        store.save(numbered("b", 1))  # so that the server knows the script
        trips = []
        for step in range(1, 5):
            proxy.answers = 0
            store.save(numbered("a", step))
            trips.append(proxy.answers)

        assert trips == [2, 1, 1, 1]

    @pytest.mark.inside
    def test_saves_that_wait_share_a_round_trip(self, proxy: RedisProxy, opened: Callable[..., RedisStore]) -> None:
        """Those that came while another was under way, whichever partitions they are in."""
        store = opened(url=proxy.url)
        runs = [f"run-{number}" for number in range(5)]
        for run_id in runs:
            store.save(numbered(run_id, 1))
        batches = [again(store, run_id) for run_id in runs]
        proxy.answers = 0

        assert store._log.table.apply(batches) == [True] * 5
        assert proxy.answers == 1

    def test_a_server_that_forgets_them(self, store: RedisStore, admin: Any) -> None:
        """They are sent in full once more; what they write is not written twice."""
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

    @pytest.mark.inside
    def test_keys_of_a_run_are_in_one_slot(self, store: RedisStore, admin: Any, prefix: str) -> None:
        """With all that is nested in it, and its lease; runs are in many."""
        for number in range(20):
            run_id = f"run-{number}"
            hold = holds.Hold(run_id)
            holds.own(store, hold)
            with holds.on_behalf_of(hold):
                store.save(numbered(run_id, 1))
                store.save_parts(run_id, [Part(2, "map", "x", 1)])
            slots = {key_slot(key.encode()) for key in admin.keys(f"*:{run_id}") + admin.keys(f"*:{run_id}/*")}
            assert len(slots) == 1
            holds.let_go(hold)
        tags = {key.partition("}")[0] for key in admin.keys(f"{{{prefix}:*")}
        assert 8 < len(tags) <= 16

    def test_nothing_is_left_of_a_run_that_is_deleted(self, store: RedisStore, admin: Any, prefix: str) -> None:
        """Nor of what is nested in it."""
        before = set(admin.keys(f"{{{prefix}:*"))
        make_graph(traces("abc"), store=store, preserve=True).execute(State(run_id="a"))
        store.save_parts("a", [Part(9, "map", "x", 1)])
        store.delete("a")

        left = set(admin.keys(f"{{{prefix}:*")) - before
        assert {key.rpartition("}:")[2].partition(":")[0] for key in left} <= {"number", "worker"}

    @pytest.mark.inside
    def test_others_keep_writing(self, opened: Callable[..., RedisStore]) -> None:
        """A run is read as it was at one time, even if it is written to between any two questions."""
        store, other = opened(), opened()
        other.retain("a", Policy("full"))
        other.save(numbered("a", 1))
        query = store._log.table.query  # type: ignore[attr-defined]
        asked = []

        def interrupted(*asked_for: Any) -> Any:
            asked.append(asked_for)
            other.save(numbered("a", len(asked) + 1))
            return query(*asked_for)

        store._log.table.query = interrupted  # type: ignore[attr-defined]
        assert store.load("a")["n"] > 1
        steps = [row.step for row in store.history("a")]
        assert len(steps) > 4
        assert steps == list(range(1, len(steps) + 1))
        assert store.fork("a", "b")["n"] == store.load("b")["n"]


# --------------------------------------------------------------------------- values


class TestValues:
    """What somebody else may have put there."""

    def test_any_bytes(self, store: RedisStore) -> None:
        """NUL, line ends and all that a protocol may stumble over."""
        store.save(State({"t": "a\0b\r\n$5\r\n", "b": bytes(range(256))}, run_id="a", step=1))

        assert store.load("a")["t"] == "a\0b\r\n$5\r\n"
        assert store.load("a")["b"] == bytes(range(256))

    @pytest.mark.inside
    @pytest.mark.parametrize("node", ["a\ud800b"])
    def test_what_cannot_be_written(self, store: RedisStore, node: str) -> None:
        """It is refused for what it is, and other runs are not hindered, though they share the round trip."""
        for run_id in ("good", "bad", "fine"):
            store.save(numbered(run_id, 1))
        batches = [again(store, run_id) for run_id in ("good", "bad", "fine")]
        batches[1] = WriteBatch(batches[1].run._replace(node=node), batches[1].old, batches[1].put)
        outcomes = store._log.commits._outcomes(batches)

        assert [outcomes[0], outcomes[2]] == [True, True]
        assert isinstance(outcomes[1], CheckpointSaveError)
        with pytest.raises(CheckpointSaveError, match="cannot hold it"):
            store._log.table.apply(batches[1:2])

    @pytest.mark.inside
    def test_one_of_several_that_fails_on_the_server(self, store: RedisStore, admin: Any, prefix: str) -> None:
        """The others are written."""
        for run_id in ("good", "bad", "fine"):
            store.save(numbered(run_id, 1))
        batches = [again(store, run_id) for run_id in ("good", "bad", "fine")]
        (key,) = admin.keys("{" + prefix + ":*}:rows:bad")
        admin.delete(key)
        admin.set(key, "something else")
        outcomes = store._log.table.apply(batches)

        assert [outcomes[0], outcomes[2]] == [True, True]
        assert isinstance(outcomes[1], CheckpointCorruptError)
        assert (store.load("good").step, store.load("fine").step) == (2, 2)
        store.delete("bad")
        assert store.list() == ["fine", "good"]

    @pytest.mark.inside
    @pytest.mark.parametrize("run_id", ["../etc", "a b", "{x}", "a\r\nFLUSHALL", "ünï", "\udcff\udcfe", "*"], ids=ascii)
    def test_ids_that_no_run_can_have(
        self, store: RedisStore, admin: Any, prefix: str, run_id: str, caplog: Any
    ) -> None:
        """Whoever has put them there, they are left out, told of, and can be removed."""
        store.save(numbered("a", 1))
        key = run_id.encode(errors="surrogateescape")
        for tag in (f"{{{prefix}:3}}", f"{{{prefix}:5}}"):
            admin.zadd(f"{tag}:runs", {key: 5})
            admin.hset(tag.encode() + b":run:" + key, "d", "nothing")
        with caplog.at_level(logging.WARNING, logger="stategraph"):
            assert store.list() == ["a"]
        assert "is left out" in caplog.text
        store.delete(run_id)
        assert store._log.table.runs(_ALL, -1, None) == [store._log.table.run("a")]
        assert admin.keys(f"{{{prefix}:*}}:run:*") != []

    @pytest.mark.inside
    def test_damage(self, store: RedisStore, admin: Any, prefix: str) -> None:
        """Is told, whatever it is, and the run can be deleted."""
        (tag,) = {f"{{{prefix}:{store._log.table._nodes.partition_of('a')}}}"}  # type: ignore[attr-defined]
        for damage in (
            lambda: admin.hset(f"{tag}:run:a", "d", "x"),
            lambda: admin.hdel(f"{tag}:run:a", "d"),
            lambda: admin.hset(f"{tag}:run:a", "n", "many"),
            lambda: admin.hdel(f"{tag}:run:a", "2"),
            lambda: admin.hset(f"{tag}:run:a", "2", "x"),
            lambda: admin.delete(f"{tag}:rows:a"),
            lambda: admin.zremrangebyscore(f"{tag}:rows:a", 2, 2),
            lambda: admin.zadd(f"{tag}:rows:a", {"x": 3}),
            lambda: admin.zadd(f"{tag}:rows:a", {"3 9 3 0 x": 3}),
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
            store._log.known.forget_all("a")

    def test_lists_come_in_pages(self, store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
        """In the order in which the runs began, over all partitions, whatever is asked for."""
        monkeypatch.setattr("stategraph.stores._redis.listing._PAGE", 2)
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
        assert store.runs(graph="a\ud800") == []


_ALL = RunFilter()
