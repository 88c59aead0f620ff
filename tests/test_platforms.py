"""Windows has no locks of POSIX, no forks and no users. On Linux, a process hides them from the package."""

import subprocess
import sys
import textwrap
from pathlib import Path

from stategraph import State
from stategraph.stores.sqlite import SqliteStore
from tests.scenarios import RUN, make_graph, traces

WITHOUT_POSIX = """
import asyncio, concurrent.futures, multiprocessing, os, subprocess, sys, tempfile, zoneinfo  # before they are misled
import cattrs, diskcache, ormsgpack, structlog

for name in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules[name] = None  # an import raises ImportError
for name in ("fork", "register_at_fork", "geteuid", "getuid", "uname", "posix_fallocate", "pread", "pwrite", "fchmod"):
    if hasattr(os, name):
        delattr(os, name)
for name in ("O_NOFOLLOW", "O_CLOEXEC", "O_DIRECTORY"):
    if hasattr(os, name):
        delattr(os, name)
asyncio.run(asyncio.sleep(0))  # makes the policy of event loops
sys.platform = "win32"

from stategraph import State, StateGraph
from stategraph._owners import locks
from stategraph.errors import RunBusyError, RunLostError
from stategraph.stores.sqlite import SqliteStore

assert not locks.CAN_LOCK and not locks.CAN_SEE


def graph(store, **options):
    made = StateGraph("windows", store=store, preserve=True, **options)
    made.add_node("first", lambda state: {"n": 1})
    made.add_node("second", lambda state: {"n": state["n"] + 1})
    made.add_edge("first", "second")
    made.set_entry_point("first")
    made.set_exit_point("second")
    return made


def another_process():  # what another process has in its memory
    locks._by_path = type(locks._by_path)()
    return SqliteStore("runs.db")
"""


def run(body: str, folder: Path) -> None:
    """Run a program in a process that hides what Windows does not have."""
    program = WITHOUT_POSIX + textwrap.dedent(body)
    ended = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_runs_are_saved_and_resumed(tmp_path: Path) -> None:
    """On the sqlite and the disk store, by blocking and by async calls."""
    run(
        """
        from stategraph.stores.disk import DiskStore

        for store in (SqliteStore("runs.db"), DiskStore("runs")):
            flow = graph(store)
            with flow.stream(State(run_id="a")) as states:
                next(states)
            assert flow.resume("a")["n"] == 2
            assert flow.store.owner("a") is None
            assert asyncio.run(flow.aexecute(State(run_id="b")))["n"] == 2
            assert len(flow.store.runs()) == 2
            assert flow.store.fork("a", "c").step == 2
            flow.store.delete("a")
            flow.store.close()
        """,
        tmp_path,
    )


def test_a_run_has_one_owner_in_its_process(tmp_path: Path) -> None:
    """A second call is refused; one that takes the run over makes the first one lose it."""
    run(
        """
        store = SqliteStore("runs.db")
        with graph(store).stream(State(run_id="a")) as states:
            next(states)
            try:
                graph(store).resume("a")
            except RunBusyError:
                pass
            else:
                raise AssertionError("two calls own the run")
            assert graph(store).resume("a", take_over=True)["n"] == 2
            try:
                next(states)
            except RunLostError:
                pass
            else:
                raise AssertionError("the first call still owns the run")
        """,
        tmp_path,
    )


def test_other_processes_ignore_the_owner(tmp_path: Path) -> None:
    """Without locks, they cannot know of it. Only a takeover makes the former owner lose its run."""
    run(
        """
        store, other = SqliteStore("runs.db"), another_process()
        with graph(store).stream(State(run_id="a")) as states:
            next(states)
            assert other.owner("a") is None
            assert graph(other).resume("a", take_over=True)["n"] == 2
            try:
                next(states)
            except RunLostError:
                pass
            else:
                raise AssertionError("the former owner saved a State")
        assert store.load("a").step == 2
        """,
        tmp_path,
    )


def test_a_store_from_linux(tmp_path: Path) -> None:
    """A run that was taken over on Linux, which its store counts, continues on Windows."""
    with (
        SqliteStore(tmp_path / "runs.db") as store,
        make_graph(traces("ab"), store=store).stream(State(run_id=RUN)) as states,
    ):
        next(states)
        store.delete(RUN, take_over=True)
    run(f'assert graph("runs.db").execute(State(run_id={RUN!r}))["n"] == 2', tmp_path)
