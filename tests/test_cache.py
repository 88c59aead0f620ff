"""The cache of a node: equal inputs give the exact same result, and a broken cache fails no run."""

from __future__ import annotations

import functools
import os
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stategraph import CachePolicy, ConfigError, EventType, ExecutionError, GraphError, InterruptNode, State, StateGraph
from stategraph._util.callables import version_of
from stategraph._values import clock
from stategraph.stores._files.results import ResultCache
from stategraph.stores.memory import MemoryStore
from tests.scenarios import RUN, as_async, broken_first, make_graph, returns

HOUR = 3600
KEY, OTHER = b"a key of 32 bytes, which is a lot", b"another key, of 32 bytes as well"


class Recorder:
    """An observer that records the events of caches."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    def wants(self, type: EventType) -> bool:
        """Return whether it is of a cache."""
        return type in (EventType.CACHE_HIT, EventType.CACHE_MISS)

    def on_event(self, event: Any) -> None:
        """Keep it."""
        self.events.append((event.type.value, event.data.get("reason")))


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
    def events(self) -> list[tuple[str, Any]]:
        """Return the events of caches since the last call."""
        events, self.observer.events = self.observer.events, []
        return events

    def node(self, state: State) -> Any:
        """Record the call; return its input."""
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
        """Return the data that a fresh run ends with."""
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
        """Other runs and new graphs use the result, whatever the other keys are; events report hits and misses."""
        first = bench.run(bench.graph(kind(bench.node)), x=1)
        second = bench.run(bench.graph(kind(bench.node)), x=1, y=2)

        assert first == {"x": 1, "seen": {"x": 1}}
        assert second == {"x": 1, "y": 2, "seen": {"x": 1}}
        assert bench.events == [NEW, HIT]
        assert len(bench.calls) == 1


class TestMisses:
    """Anything that differs."""

    @pytest.mark.parametrize(
        ("one", "other"),
        [(1, 2), (1, True), (0.0, -0.0), ([1], (1,))],
    )
    def test_other_inputs(self, bench: Bench, one: Any, other: Any) -> None:
        """Values that are equal and of other types are others."""
        graph = bench.graph()

        bench.run(graph, x=one)
        assert repr(bench.run(graph, x=other)["seen"]["x"]) == repr(bench.run(bench.graph(), x=other)["x"])
        assert bench.events == [NEW, NEW, HIT]

    @pytest.mark.parametrize("other", [{"name": "b"}, {"graph": "other"}, {"version": 2}, {"version": "1"}])
    def test_another_node(self, bench: Bench, other: dict[str, Any]) -> None:
        """The name, the graph and the version of a node tell its results apart."""
        bench.run(bench.graph(), x=1)
        bench.run(bench.graph(**other), x=1)

        assert bench.events == [NEW, NEW]

    def test_other_code(self, bench: Bench) -> None:
        """Without a version, that of its code counts."""
        bench.run(bench.graph(lambda state: {"y": 1}, version=None), x=1)
        bench.run(bench.graph(lambda state: {"y": 1}, version=None), x=1)
        assert bench.run(bench.graph(lambda state: {"y": 2}, version=None), x=1)["y"] == 2

        assert bench.events == [NEW, HIT, NEW]

    @pytest.mark.parametrize(
        ("options", "seconds", "events"),
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
        self, bench: Bench, time: list[float], options: dict[str, Any], seconds: tuple[float, ...], events: Any
    ) -> None:
        """A result expires by the clock of the library; setting the clock back does not prolong it."""
        graph = bench.graph(**options)
        for passed in seconds:
            time[0] = 1_000_000 + passed
            bench.run(graph, x=1)

        assert bench.events == events

    def test_no_input(self, bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
        """Misspelled inputs are reported once; the node runs each time."""
        graph = bench.graph(inputs=("y",))
        for _ in range(2):
            bench.run(graph, x=1)

        assert bench.events == [("cache.miss", "none of its inputs is in the State: y")] * 2
        assert caplog.text.count("none of its inputs") == 1


class TestWhatIsNotKept:
    """Results that are none."""

    def test_a_failure(self, bench: Bench) -> None:
        """The next visit calls the node."""
        node = broken_first(returns({"y": 1}), ValueError())
        with pytest.raises(ExecutionError):
            bench.run(bench.graph(node), x=1)

        assert bench.run(bench.graph(node), x=1)["y"] == 1
        assert bench.events == [NEW, NEW]


# --------------------------------------------------------------------------- what goes wrong


class TestBrokenCaches:
    """A broken cache costs a call of the node at worst, and is reported once."""

    @pytest.mark.parametrize("what", ["a file", "another database", "garbage", "no place", "a variable"])
    def test_a_folder_that_cannot_be_used(self, bench: Bench, what: str, caplog: pytest.LogCaptureFixture) -> None:
        """The node runs each time, and the folder stays as it is."""
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
            bench.path = Path("/proc/nowhere" if what == "no place" else "$HOME/cache")
        graph = bench.graph()
        for _ in range(2):
            assert bench.run(graph, x=1) == {"x": 1, "seen": {"x": 1}}

        events = bench.events
        assert [kind for kind, _ in events] == ["cache.miss"] * 2
        assert "cannot be read" in events[0][1]
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


class TestSignatures:
    """Signed results: a result without the right signature is not used."""

    def found(self, folder: Path, key: bytes | None) -> Any:
        """Return what comes of looking for the result that `keep` keeps."""
        return ResultCache(folder, None if key is None else lambda: key).find([1], None)

    def keep(self, folder: Path, key: bytes | None, value: Any = 1) -> None:
        """Keep a result."""
        results = ResultCache(folder, None if key is None else lambda: key)
        assert results.keep(results.find([1], None).key or "", ({"y": value}, [])) == ""

    @pytest.mark.parametrize(
        ("kept", "given", "reason"),
        [
            (None, KEY, "it is not signed with the key of sign_with, or is forged"),
            (KEY, OTHER, "it is not signed with the key of sign_with, or is forged"),
            (KEY, None, "it is signed and this cache has no sign_with"),
        ],
    )
    def test_with_another(self, tmp_path: Path, kept: bytes | None, given: bytes | None, reason: str) -> None:
        """Results with another signature count as missing, with the reason; the next result replaces them."""
        self.keep(tmp_path, kept)

        found = self.found(tmp_path, given)
        assert (found.changes, found.reason, found.is_broken) == (None, reason, True)
        self.keep(tmp_path, given, 2)
        assert self.found(tmp_path, given).changes == ({"y": 2}, [])

    def test_by_the_store_of_the_graph(self, driver: Any, tmp_path: Path) -> None:
        """The key of a signing store is used, unless the policy has its own."""
        from stategraph.stores.sqlite import SqliteStore

        observer = Recorder()
        keys: list[dict[str, Any]] = [{}, {"sign_with": lambda: KEY}, {"sign_with": lambda: OTHER}]
        with SqliteStore(tmp_path / "runs.db", sign_with=lambda: KEY) as store:
            for number, options in enumerate(keys):
                policy = CachePolicy(("x",), path=tmp_path / "cache", version=1, **options)
                policies = {"a": {"cache": policy}}
                graph = make_graph({"a": returns({"y": 1})}, store=store, observer=observer, policies=policies)
                driver(graph, "execute", State({"x": 1}, run_id=f"run-{number}"))

        assert [kind for kind, _ in observer.events] == ["cache.miss", "cache.hit", "cache.miss"]


def _entries(folder: Path) -> dict[str, bytes]:
    """Return what stands in a cache."""
    with closing(sqlite3.connect(folder / "cache.db")) as database:
        return dict(database.execute("SELECT key, value FROM Cache"))


def _put(folder: Path, key: str, entry: bytes) -> None:
    """Write into the database of a cache directly."""
    with closing(sqlite3.connect(folder / "cache.db", isolation_level=None)) as database:
        row = "INSERT OR REPLACE INTO Cache (key, raw, store_time, size, mode, value) VALUES (?, 1, 0, 0, 1, ?)"
        database.execute(row, (key, entry))


# --------------------------------------------------------------------------- policies


class TestPolicies:
    """Refused policies, and nodes that cannot be cached."""

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
    def test_wrong_values_are_refused(self, options: dict[str, Any]) -> None:
        """ConfigError names it."""
        with pytest.raises(ConfigError, match=f"cache.{next(iter(options))}"):
            CachePolicy(**{"inputs": ("x",), "path": "cache", **options})

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
        """A node that asks cannot be cached; a node whose code does not determine its result needs a version."""
        policy = CachePolicy(("x",), path=tmp_path)
        graph = make_graph({"a": node}, store=MemoryStore(), policies={"a": {"cache": policy}})
        with pytest.raises(GraphError, match=text):
            graph.validate()


def _compiled(source: str) -> Any:
    """Return the function `f` of some source."""
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

    def test_wrappers_of_functions(self) -> None:
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
