"""The cache of a node: the same inputs give the same result, exactly, and nothing that goes wrong with it is seen."""

from __future__ import annotations

import functools
import logging
import os
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stategraph import (
    CachePolicy,
    ConfigError,
    EventType,
    ExecutionError,
    GraphError,
    InterruptNode,
    MapNode,
    ParallelNode,
    RetryPolicy,
    State,
    StateGraph,
    Updates,
)
from stategraph._util.callables import version_of
from stategraph._values import clock
from stategraph.stores._files.results import ResultCache
from stategraph.stores.memory import MemoryStore
from tests.scenarios import RUN, as_async, broken_first, in_threads, make_graph, returns

HOUR = 3600
KEY, OTHER = b"a key of 32 bytes, which is a lot", b"another key, of 32 bytes as well"


class Recorder:
    """An observer that keeps what is told of caches."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []

    def wants(self, type: EventType) -> bool:
        """-> whether it is of a cache."""
        return type in (EventType.CACHE_HIT, EventType.CACHE_MISS)

    def on_event(self, event: Any) -> None:
        """Keep it."""
        self.told.append((event.type.value, event.data.get("reason")))


HIT, NEW = ("cache.hit", None), ("cache.miss", "new")


class Bench:
    """A cached node, called through a graph.

    Args:
        driver: Calls the graph.
        path: The folder of the cache.
    """

    def __init__(self, driver: Any, path: Path) -> None:
        self.driver, self.path = driver, path
        self.calls: list[dict[str, Any]] = []
        self.observer = Recorder()

    @property
    def told(self) -> list[tuple[str, Any]]:
        """-> what was told of caches since it was last asked for."""
        told, self.observer.told = self.observer.told, []
        return told

    def node(self, state: State) -> Any:
        """Count the call, and say what it was called with."""
        self.calls.append(dict(state))
        return {"seen": dict(state)}

    def graph(
        self,
        node: Any = None,
        name: str = "a",
        graph: str = "flow",
        others: Mapping[str, Any] | None = None,
        edges: Any = None,
        interval: int = 1,
        **options: Any,
    ) -> StateGraph:
        """Return a graph of a node with a cache, and of others without one."""
        more: dict[str, Any] = {key: options.pop(key) for key in ("retry", "on_error", "timeout") if key in options}
        policy = CachePolicy(**{"inputs": ("x",), "path": self.path, "version": 1, **options})
        return make_graph(
            {name: self.node if node is None else node, **(others or {})},
            edges,
            name=graph,
            interval=interval,
            store=MemoryStore(),
            observer=self.observer,
            policies={name: {"cache": policy, **more}},
        )

    def run(self, graph: StateGraph, **data: Any) -> dict[str, Any]:
        """-> the data that a fresh run ends with."""
        return dict(self.driver(graph, "execute", State(data, run_id=RUN)))


@pytest.fixture
def bench(driver: Any, tmp_path: Path) -> Bench:
    """An empty cache, and each driver."""
    return Bench(driver, tmp_path / "cache")


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that the clock shows, to be changed."""
    seconds = [1_000_000.0]
    monkeypatch.setattr(clock, "now_ns", lambda: int(seconds[0] * 1e9))
    return seconds


# --------------------------------------------------------------------------- hits and misses


class TestHits:
    """The same inputs."""

    @pytest.mark.parametrize("kind", [lambda node: node, as_async], ids=["sync", "async"])
    def test_a_result_is_used_again(self, bench: Bench, kind: Any) -> None:
        """By other runs, graphs made anew, and whatever stands under other keys; hits and misses are told."""
        first = bench.run(bench.graph(kind(bench.node)), x=1)
        second = bench.run(bench.graph(kind(bench.node)), x=1, y=2)

        assert first == {"x": 1, "seen": {"x": 1}}
        assert second == {"x": 1, "y": 2, "seen": {"x": 1}}
        assert bench.told == [NEW, HIT]
        assert len(bench.calls) == 1

    def test_what_is_kept_are_changes(self, bench: Bench) -> None:
        """Keys that were set and removed; of a State that is returned, too."""

        def node(state: State) -> State:
            bench.calls.append({})
            return state.set("new", [1]).remove("old")

        graph = bench.graph(node)

        assert bench.run(graph, x=1, old=1) == {"x": 1, "new": [1]}
        assert bench.run(graph, x=1, old=2, other=3) == {"x": 1, "new": [1], "other": 3}
        assert bench.run(graph, x=1) == {"x": 1, "new": [1]}
        assert bench.told == [NEW, HIT, HIT]

    def test_values_and_types_are_the_same(self, bench: Bench) -> None:
        """What comes out of the cache is what the node returned, frozen as ever."""
        values = {"a": (1, 2.0, True, None), "b": {1: {2, 3}}, "c": b"c", "d": -0.0, "e": 2**70, "f": [[]]}
        graph = bench.graph(returns(values))
        first, second = (bench.run(graph, x=1) for _ in range(2))

        assert second == first
        assert repr(second) == repr(first)
        assert [type(value) for value in second.values()] == [type(value) for value in first.values()]
        assert bench.told == [NEW, HIT]

    def test_in_a_loop(self, bench: Bench) -> None:
        """Within one run as well."""
        others = {"count": lambda state: {"rounds": state.get("rounds", 0) + 1}, "end": returns({})}
        edges = [("a", "count"), ("count", "a", lambda state: state["rounds"] < 3), ("count", "end")]
        graph = bench.graph(lambda state: {"n": 1}, others=others, edges=edges)

        assert bench.run(graph, x=1)["rounds"] == 3
        assert bench.told == [NEW, HIT, HIT]

    @pytest.mark.parametrize(
        "node",
        [
            ParallelNode({"p": lambda state: {"p": 1}, "q": as_async(lambda state: {"q": 2})}),
            MapNode(lambda item: item * 2, "items", "doubled"),
        ],
        ids=["branches", "items"],
    )
    def test_nodes_with_parts(self, bench: Bench, node: Any) -> None:
        """They are cached as a whole."""
        graph = bench.graph(node, version=None)

        assert bench.run(graph, x=1, items=[1]) == bench.run(graph, x=1, items=[1])
        assert bench.told == [NEW, HIT]

    def test_a_graph_within(self, bench: Bench) -> None:
        """It is cached under a version, and runs no more."""
        child = make_graph({"c": bench.node}, store=MemoryStore(), name="child")
        graph = bench.graph(child.as_node())

        assert bench.run(graph, x=1) == bench.run(graph, x=1)
        assert (bench.told, len(bench.calls)) == ([NEW, HIT], 1)

    def test_a_generator(self, bench: Bench) -> None:
        """What it returns is kept; the chunks are not put out again."""

        def node(state: State) -> Iterator[Any]:
            yield "chunk"
            yield Updates({"y": 1})

        graph = bench.graph(node)

        assert bench.run(graph, x=1) == bench.run(graph, x=1) == {"x": 1, "y": 1}
        assert bench.told == [NEW, HIT]


class TestMisses:
    """Anything that differs."""

    @pytest.mark.parametrize(
        ("one", "other"),
        [(1, 2), (1, True), (1, 1.0), (0.0, -0.0), ("1", b"1"), ([1], (1,)), ({1}, frozenset({1})), (None, 0)],
    )
    def test_other_inputs(self, bench: Bench, one: Any, other: Any) -> None:
        """Values that are equal and of other types are others."""
        graph = bench.graph()

        bench.run(graph, x=one)
        assert repr(bench.run(graph, x=other)["seen"]["x"]) == repr(bench.run(bench.graph(), x=other)["x"])
        assert bench.told == [NEW, NEW, HIT]

    def test_a_missing_input(self, bench: Bench) -> None:
        """It is not None."""
        graph = bench.graph(inputs=("x", "y"))
        for data in ({"x": None}, {"x": None, "y": None}, {"y": None}):
            bench.run(graph, **data)

        assert bench.told == [NEW] * 3

    def test_no_input_at_all(self, bench: Bench) -> None:
        """As where its name is misspelled: every call would find the result of the first one, so none is kept."""
        graph = bench.graph(inputs=("dcos",))
        seen = [bench.run(graph, x=value)["seen"]["x"] for value in (1, 2)]

        assert seen == [1, 2]
        assert [(kind, "dcos" in reason) for kind, reason in bench.told] == [("cache.miss", True)] * 2

    def test_the_order_of_inputs(self, bench: Bench) -> None:
        """It does not matter."""
        bench.run(bench.graph(inputs=("x", "y")), x=1, y=2)
        bench.run(bench.graph(inputs=["y", "x", "y"]), y=2, x=1)

        assert bench.told == [NEW, HIT]

    @pytest.mark.parametrize("other", [{"name": "b"}, {"graph": "other"}, {"version": 2}, {"version": "1"}])
    def test_another_node(self, bench: Bench, other: dict[str, Any]) -> None:
        """Its name, its graph and its version count."""
        bench.run(bench.graph(), x=1)
        bench.run(bench.graph(**other), x=1)

        assert bench.told == [NEW, NEW]

    def test_other_code(self, bench: Bench) -> None:
        """Without a version, that of its code counts."""
        bench.run(bench.graph(lambda state: {"y": 1}, version=None), x=1)
        bench.run(bench.graph(lambda state: {"y": 1}, version=None), x=1)
        assert bench.run(bench.graph(lambda state: {"y": 2}, version=None), x=1)["y"] == 2

        assert bench.told == [NEW, HIT, NEW]

    @pytest.mark.parametrize(
        ("options", "seconds", "told"),
        [
            (
                {"ttl": HOUR},
                (0, HOUR - 1, HOUR, HOUR, -1),
                [NEW, HIT, ("cache.miss", "expired"), HIT, ("cache.miss", "expired")],
            ),
            ({}, (0, 1e9, -1e5), [NEW, HIT, HIT]),
        ],
        ids=["an hour", "for ever"],
    )
    def test_how_long_a_result_is_used(
        self, bench: Bench, time: list[float], options: dict[str, Any], seconds: tuple[float, ...], told: Any
    ) -> None:
        """By the clock of the library; a clock that was put back does not prolong it."""
        graph = bench.graph(**options)
        for passed in seconds:
            time[0] = 1_000_000 + passed
            bench.run(graph, x=1)

        assert bench.told == told


class TestWhatIsNotKept:
    """Results that are none."""

    def test_a_failure(self, bench: Bench) -> None:
        """The next visit calls the node."""
        node = broken_first(returns({"y": 1}), ValueError())
        with pytest.raises(ExecutionError):
            bench.run(bench.graph(node), x=1)

        assert bench.run(bench.graph(node), x=1)["y"] == 1
        assert bench.told == [NEW, NEW]

    def test_a_result_that_is_none(self, bench: Bench) -> None:
        """It is an error as ever."""
        graph = bench.graph(returns(5))
        with pytest.raises(ExecutionError, match="returned 5"):
            bench.run(graph, x=1)

    def test_what_comes_of_retries(self, bench: Bench) -> None:
        """It is kept, and the failures before it are not."""
        node = broken_first(returns({"y": 1}), ValueError())
        graph = bench.graph(node, retry=RetryPolicy(initial_delay=0), timeout=20)

        assert bench.run(graph, x=1) == bench.run(graph, x=1) == {"x": 1, "y": 1}
        assert bench.told == [NEW, HIT]

    @pytest.mark.parametrize("is_nested", [False, True])
    def test_a_pause(self, bench: Bench, is_nested: bool) -> None:
        """Other runs get neither the pause nor its answer."""

        def node(state: State) -> Any:
            if "answer" not in state:
                return state.paused("asks", response_param="answer")
            return {"y": state["answer"]}

        nodes = {"ask": InterruptNode(None, "answer"), "c": lambda state: {"y": state["answer"]}}
        child = make_graph(nodes, store=MemoryStore(), name="child")
        graph = bench.graph(child.as_node() if is_nested else node)
        for answer in (1, 2):
            bench.driver(graph, "execute", State({"x": 1}, run_id=f"run-{answer}"))
            assert bench.driver(graph, "resume", f"run-{answer}", {"answer": answer})["y"] == answer

        assert bench.told == [NEW, NEW]


# --------------------------------------------------------------------------- what goes wrong


class TestBrokenCaches:
    """A cache costs a call of the node at worst; that it does not work is said once."""

    def test_an_input_that_cannot_be_encoded(self, bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
        """There is nothing to look for."""
        graph = bench.graph(lambda state: {"y": 1}, interval=0)
        for _ in range(2):
            assert bench.run(graph, x=object())["y"] == 1

        assert [kind for kind, _ in bench.told] == ["cache.miss"] * 2
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        assert "cannot be saved" in caplog.text

    def test_a_value_that_cannot_be_encoded(self, bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
        """It is not kept."""
        value = object()
        graph = bench.graph(returns({"y": value}), interval=0)
        for _ in range(2):
            assert bench.run(graph, x=1)["y"] is value

        assert bench.told == [NEW, NEW]
        assert len(caplog.records) == 1

    @pytest.mark.parametrize("what", ["a file", "another database", "garbage", "no place"])
    def test_a_folder_that_cannot_be_used(self, bench: Bench, what: str, caplog: pytest.LogCaptureFixture) -> None:
        """The node runs each time, and what is there stays as it is."""
        if what == "a file":
            bench.path.write_bytes(b"mine")
        elif what == "another database":
            bench.path.mkdir()
            with closing(sqlite3.connect(bench.path / "cache.db")) as database:
                database.execute("CREATE TABLE mine (x)")
        elif what == "garbage":
            bench.path.mkdir()
            (bench.path / "cache.db").write_bytes(b"garbage" * 1000)
        else:
            bench.path = Path("/proc/nowhere")
        graph = bench.graph()
        for _ in range(2):
            assert bench.run(graph, x=1) == {"x": 1, "seen": {"x": 1}}

        told = bench.told
        assert [kind for kind, _ in told] == ["cache.miss"] * 2
        assert "cannot be read" in told[0][1]
        assert len(caplog.records) == 1

    @pytest.mark.parametrize("sign_with", [None, lambda: KEY], ids=["unsigned", "signed"])
    def test_damage(self, tmp_path: Path, sign_with: Any) -> None:
        """An entry with any byte changed or cut off is a miss, and the next result repairs it."""
        results = ResultCache(tmp_path, sign_with)
        key = results.find(["parts"], None).key
        assert key is not None
        assert results.keep(key, ({"y": [1, "two"]}, ["gone"])) == ""
        entry = _entries(tmp_path)[key]
        broken = [entry[:place] + bytes([entry[place] ^ 1]) + entry[place + 1 :] for place in range(len(entry))]
        for damaged in [*broken, *(entry[:length] for length in range(len(entry)))]:
            _put(tmp_path, key, damaged)
            found = results.find(["parts"], None)
            assert found.changes is None
            assert sign_with or found.reason.startswith("damaged")

        results.keep(key, ({"y": 2}, []))
        assert results.find(["parts"], None).changes == ({"y": 2}, [])

    @pytest.mark.parametrize("sign_with", [None, lambda: KEY], ids=["unsigned", "signed"])
    def test_the_entry_of_another_key(self, tmp_path: Path, sign_with: Any) -> None:
        """An entry holds its key, so none is taken for another."""
        results = ResultCache(tmp_path, sign_with)
        key, other = (results.find([part], None).key or "" for part in "ab")
        results.keep(key, ({"y": 1}, []))
        _put(tmp_path, other, _entries(tmp_path)[key])

        found = results.find(["b"], None)
        assert (found.changes, found.is_broken) == (None, sign_with is not None)

    @pytest.mark.parametrize(
        "columns",
        [{"mode": 4}, {"filename": "../../etc/passwd"}, {"value": "text"}, {"mode": 3, "value": "t.txt"}],
        ids=["pickle", "side file", "text", "text file"],
    )
    def test_what_the_cache_never_writes(self, tmp_path: Path, columns: dict[str, Any]) -> None:
        """It is neither unpickled nor opened."""
        results = ResultCache(tmp_path)
        key = results.find(["parts"], None).key
        assert key is not None
        results.keep(key, ({"y": 1}, []))
        with closing(sqlite3.connect(tmp_path / "cache.db", isolation_level=None)) as database:
            for column, value in columns.items():
                database.execute(f"UPDATE Cache SET {column} = ?", (value,))

        found = results.find(["parts"], None)
        assert (found.changes, found.key) == (None, key)

    def test_nobody_else_can_read_it(self, bench: Bench) -> None:
        """Folder and files are their owner's."""
        bench.run(bench.graph(), x=1)

        assert bench.path.stat().st_mode & 0o777 == 0o700
        assert {file.stat().st_mode & 0o777 for file in bench.path.iterdir()} == {0o600}

    def test_threads_and_handles(self, tmp_path: Path) -> None:
        """Any number of them may share a folder."""
        failures: list[str] = []

        def work(number: int) -> None:
            results = ResultCache(tmp_path)
            for place in range(20):
                key = results.find([place], None).key or ""
                failures.extend(filter(None, [results.keep(key, ({"y": place}, []))]))
                found = results.find([place], None)
                failures.extend([] if found.changes == ({"y": place}, []) else [found.reason])

        assert in_threads(*[partial(work, number) for number in range(4)]) == []
        assert failures == []

    def test_another_working_directory(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The folder is where it was when the graph was made ready."""
        (tmp_path / "here").mkdir()
        monkeypatch.chdir(tmp_path / "here")
        results = ResultCache("cache")
        monkeypatch.chdir(tmp_path)
        results.find([1], None)

        assert [file.name for file in tmp_path.iterdir()] == ["here"]


class TestSignatures:
    """Results that are signed: what somebody else has put into the folder is not used."""

    def found(self, folder: Path, key: bytes | None) -> Any:
        """-> what comes of looking for the result that `keep` keeps."""
        return ResultCache(folder, None if key is None else lambda: key).find([1], None)

    def keep(self, folder: Path, key: bytes | None, value: Any = 1) -> None:
        """Keep a result."""
        results = ResultCache(folder, None if key is None else lambda: key)
        assert results.keep(results.find([1], None).key or "", ({"y": value}, [])) == ""

    def test_with_the_same_key(self, tmp_path: Path) -> None:
        """They are used."""
        self.keep(tmp_path, KEY)

        assert self.found(tmp_path, KEY).changes == ({"y": 1}, [])

    @pytest.mark.parametrize(
        ("kept", "asked", "reason"),
        [
            (None, KEY, "it is not signed with the key of sign_with, or is forged"),
            (KEY, OTHER, "it is not signed with the key of sign_with, or is forged"),
            (KEY, None, "it is signed and this cache has no sign_with"),
        ],
    )
    def test_with_another(self, tmp_path: Path, kept: bytes | None, asked: bytes | None, reason: str) -> None:
        """They are as good as missing, with the reason; the next result takes their place."""
        self.keep(tmp_path, kept)

        found = self.found(tmp_path, asked)
        assert (found.changes, found.reason, found.is_broken) == (None, reason, True)
        self.keep(tmp_path, asked, 2)
        assert self.found(tmp_path, asked).changes == ({"y": 2}, [])

    @pytest.mark.parametrize("key", ["text", b"", None])
    def test_a_function_that_gives_no_key(self, tmp_path: Path, key: Any) -> None:
        """Nothing is signed with it, and nothing kept."""
        results = ResultCache(tmp_path, lambda: key)
        found = results.find([1], None)

        assert found.is_broken
        assert "sign_with" in found.reason
        assert "sign_with" in results.keep(found.key or "", ({"y": 1}, []))

    def test_by_a_policy(self, bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
        """With the key in an environment variable, or that of a function; why others are not used is said once."""
        monkeypatch.setenv("CACHE_KEY", KEY.decode())
        bench.run(bench.graph(), x=1)
        bench.run(bench.graph(), x=2)
        signed = bench.graph(sign_with="CACHE_KEY")
        for value in (1, 2, 1):
            bench.run(signed, x=value)
        bench.run(bench.graph(sign_with=lambda: KEY), x=1)

        unsigned = ("cache.miss", "it is not signed with the key of sign_with, or is forged")
        assert bench.told == [NEW, NEW, unsigned, unsigned, HIT, HIT]
        assert [record.getMessage().partition(": it is not signed")[1] for record in caplog.records] == [
            ": it is not signed"
        ]

    def test_by_the_store_of_the_graph(self, driver: Any, tmp_path: Path) -> None:
        """If it signs, its key is used unless the policy has one of its own."""
        from stategraph.stores.sqlite import SqliteStore

        observer = Recorder()
        keys: list[dict[str, Any]] = [{}, {"sign_with": lambda: KEY}, {"sign_with": lambda: OTHER}]
        with SqliteStore(tmp_path / "runs.db", sign_with=lambda: KEY) as store:
            for number, options in enumerate(keys):
                policy = CachePolicy(("x",), path=tmp_path / "cache", version=1, **options)
                policies = {"a": {"cache": policy}}
                graph = make_graph({"a": returns({"y": 1})}, store=store, observer=observer, policies=policies)
                driver(graph, "execute", State({"x": 1}, run_id=f"run-{number}"))

        assert [kind for kind, _ in observer.told] == ["cache.miss", "cache.hit", "cache.miss"]

    def test_two_policies_of_one_folder(self, bench: Bench) -> None:
        """Each has its own key."""
        keys = {"a": lambda: KEY, "b": lambda: OTHER}
        policies = {
            name: {"cache": CachePolicy(("x",), path=bench.path, version=1, sign_with=sign_with)}
            for name, sign_with in keys.items()
        }
        nodes = dict.fromkeys(policies, bench.node)
        for _ in range(2):
            graph = make_graph(nodes, store=MemoryStore(), observer=bench.observer, policies=policies)
            bench.run(graph, x=1)

        assert bench.told == [NEW, NEW, HIT, HIT]

    def test_a_variable_that_is_not_set(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is an error of the configuration, not a cache that goes without."""
        monkeypatch.delenv("CACHE_KEY", raising=False)

        with pytest.raises(ConfigError, match=r"cache\.sign_with: .*environment variable"):
            bench.run(bench.graph(sign_with="CACHE_KEY"), x=1)

    @pytest.mark.parametrize("secret", [b"hunter2", 5, "", ["hunter2"]])
    def test_what_is_no_key(self, secret: Any) -> None:
        """It is refused, and not shown: it may be the key itself."""
        with pytest.raises(ConfigError, match=r"cache\.sign_with") as caught:
            CachePolicy(("x",), path="cache", sign_with=secret)

        assert "hunter2" not in str(caught.value)
        assert "hunter2" not in repr(CachePolicy(("x",), path="cache", sign_with="hunter2"))


def _entries(folder: Path) -> dict[str, bytes]:
    """-> what stands in a cache."""
    with closing(sqlite3.connect(folder / "cache.db")) as database:
        return dict(database.execute("SELECT key, value FROM Cache"))


def _put(folder: Path, key: str, entry: bytes) -> None:
    """Write into a cache behind its back."""
    with closing(sqlite3.connect(folder / "cache.db", isolation_level=None)) as database:
        row = "INSERT OR REPLACE INTO Cache (key, raw, store_time, size, mode, value) VALUES (?, 1, 0, 0, 1, ?)"
        database.execute(row, (key, entry))


# --------------------------------------------------------------------------- policies


class TestPolicies:
    """What a CachePolicy may be."""

    @pytest.mark.parametrize(
        "options",
        [
            {"inputs": "docs"},
            {"inputs": ()},
            {"inputs": ("a", 1)},
            {"inputs": None},
            {"ttl": 0},
            {"ttl": -1},
            {"ttl": "1"},
            {"ttl": float("inf")},
            {"version": 1.5},
            {"version": True},
        ],
    )
    def test_what_is_not_allowed(self, options: dict[str, Any]) -> None:
        """ConfigError names it."""
        with pytest.raises(ConfigError, match=f"cache.{next(iter(options))}"):
            CachePolicy(**{"inputs": ("x",), "path": "cache", **options})

    def test_something_else(self) -> None:
        """add_node wants a CachePolicy."""
        with pytest.raises(ConfigError, match="cache"):
            make_graph({"a": returns({})}, store=MemoryStore(), policies={"a": {"cache": "cache"}})

    @pytest.mark.parametrize(
        ("node", "text"),
        [
            (InterruptNode(None, "y"), "answers cannot be cached"),
            (
                make_graph({"c": returns({})}, store=MemoryStore(), name="child").as_node(),
                r"CachePolicy\(version=\.\.\.\)",
            ),
            (Counter().update, r"CachePolicy\(version=\.\.\.\)"),
            (partial(Counter().update), r"CachePolicy\(version=\.\.\.\)"),
        ],
        ids=["asks", "graph", "method", "partial"],
    )
    def test_a_node_that_cannot_be_cached(self, tmp_path: Path, node: Any, text: str) -> None:
        """A node that asks never can; one whose code does not tell all that it does needs a version."""
        policy = CachePolicy(("x",), path=tmp_path)
        graph = make_graph({"a": node}, store=MemoryStore(), policies={"a": {"cache": policy}})
        with pytest.raises(GraphError, match=text):
            graph.validate()

    def test_nothing_is_made_beforehand(self, tmp_path: Path) -> None:
        """A graph that is only validated leaves no folder."""
        policy = CachePolicy(("x",), path=tmp_path / "cache")
        make_graph({"a": returns({})}, store=MemoryStore(), policies={"a": {"cache": policy}}).validate()

        assert list(tmp_path.iterdir()) == []


def _compiled(source: str) -> Any:
    """-> the function `f` of some source."""
    names: dict[str, Any] = {}
    exec(source, names)
    return names["f"]


class TestVersions:
    """The version of a function."""

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ("def f(s): return 1", "def f(s): return 2"),
            ("def f(s): return 1", "def f(s): return 1.0"),
            ("def f(s): return 1", "def f(s): return True"),
            ("def f(s): return s.a", "def f(s): return s.b"),
            ("def f(s, k=1): return k", "def f(s, k=2): return k"),
            ("def f(s, *, k=1): return k", "def f(s, *, k=2): return k"),
            ("def f(s): return [x + 1 for x in s]", "def f(s): return [x + 2 for x in s]"),
            ("def f(s): return (lambda: (lambda: 1))()()", "def f(s): return (lambda: (lambda: 2))()()"),
            ("def g(n):\n def f(s): return n\n return f\nf=g(1)", "def g(n):\n def f(s): return n\n return f\nf=g(2)"),
            ("def f(s): return s in {1, 2}", "def f(s): return s in {1, 3}"),
            ("def f(s): pass", "async def f(s): pass"),
        ],
    )
    def test_other_code(self, one: str, other: str) -> None:
        """It is another version."""
        assert version_of([_compiled(one)]) != version_of([_compiled(other)])

    def test_the_same_code(self) -> None:
        """Comments and layout do not count, nor does where it stands."""
        one, other = "def f(s):\n return 1", "# comment\n\ndef f(s):  # more\n\n    return 1"

        assert version_of([_compiled(one)]) == version_of([_compiled(other)])

    def test_what_wraps_a_function(self) -> None:
        """Partials, bound methods, callables and decorators are seen through."""

        def add(state: State, n: int) -> Any:
            return {"n": n}

        class Adder:
            def __call__(self, state: State) -> Any:
                return {"n": 1}

            def method(self, state: State) -> Any:
                return {"n": 1}

        adder = Adder()
        functions = [
            *(add, functools.partial(add, n=1), functools.partial(add, n=2), adder, adder.method),
            *(as_async(add), as_async(Adder.method), len, Adder),
        ]
        versions = [version_of([function]) for function in functions]

        assert len(set(versions)) == len(versions)
        assert versions == [version_of([function]) for function in functions]
        assert version_of([Adder()]) == version_of([adder])

    def test_functions_that_are_used_twice(self) -> None:
        """It counts which of them is used where."""

        def double(n: int) -> int:
            return 2 * n

        def triple(n: int) -> int:
            return 3 * n

        def node_of(a: Any, b: Any, c: Any) -> Any:
            return lambda state: {"n": c(b(a(state["n"])))}

        functions = [node_of(double, triple, last) for last in (double, triple)]

        assert len({version_of([function]) for function in functions}) == 2

    def test_a_function_that_calls_itself(self) -> None:
        """It ends."""

        def node(state: State, depth: int = 0) -> Any:
            return {} if depth else node(state, 1)

        assert version_of([node]) == version_of([node])

    def test_in_every_process(self) -> None:
        """It does not depend on hashes, nor on addresses."""
        code = (
            "from stategraph._util.callables import version_of\n"
            "def f(s): return s in {'a', 'b', 'c', 'd'}, (lambda: object)\n"
            "print(version_of([f, len, object()]))"
        )
        versions = {
            subprocess.run(
                [sys.executable, "-c", code],
                check=True,
                capture_output=True,
                text=True,
                env={**os.environ, "PYTHONHASHSEED": seed},
            ).stdout
            for seed in "123"
        }

        assert len(versions) == 1


@pytest.mark.parametrize("path", ["", ":memory:", b"cache", 5, None], ids=repr)
def test_what_is_no_folder_is_refused(path: Any) -> None:
    """Before anything is made of it."""
    with pytest.raises(ConfigError, match=r"cache\.path: .* the path of a folder"):
        CachePolicy(("x",), path=path)


def test_a_folder_in_the_home_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Is what ~ stands for at the start."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))

    ResultCache("~/cache").find([1], None)

    assert [path.name for path in tmp_path.iterdir()] == ["cache"]
