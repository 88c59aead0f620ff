"""Pools of parts: how far they run ahead when a part fails or the process is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stategraph import ExecutionError, MapNode, ParallelNode, State
from stategraph.stores.memory import MemoryStore
from tests.scenarios import RUN, Node, make_graph

pytestmark = pytest.mark.timeout(600)


def failing_at(place: int, calls: list[int]) -> Callable[[int], int]:
    """Return a function of an item that notes its calls, and fails at one of them until the item has failed once."""
    left = [place]

    def function(item: int) -> int:
        calls.append(item)
        if item in left:
            left.remove(item)
            raise ValueError(item)
        return item

    return function


@pytest.mark.parametrize(("on_failure", "expected"), [("cancel", [1, 2]), ("finish", [1, 2, 3])])
def test_branches_begin_as_on_failure_says(
    driver: Any, as_node: Callable[[Node], Node], on_failure: Any, expected: list[int]
) -> None:
    """After a failed branch others begin only with "finish"."""
    calls: list[int] = []
    function = failing_at(2, calls)

    def branch(number: int) -> Node:
        return as_node(lambda state: {f"key {function(number)}": number})

    branches = {f"branch {number}": branch(number) for number in (1, 2, 3)}
    node: Any = ParallelNode(branches, max_workers=1, on_failure=on_failure)
    graph = make_graph({"parallel": node}, interval=0, store=MemoryStore())

    with pytest.raises(ExecutionError):
        driver(graph, "execute", State(run_id=RUN))

    assert calls == expected


def test_no_more_items_are_ahead_of_the_store(driver: Any, as_node: Callable[[Node], Node]) -> None:
    """At most twice as many items as workers have begun and are not saved."""
    begun: list[int] = []
    ahead: list[int] = []

    class Slow(MemoryStore):
        never_waits = False

        def save_parts(self, run_id: str, parts: Any) -> None:
            time.sleep(0.005)
            ahead.append(len(begun) - len(self.load_parts(RUN, 1, "map")))
            super().save_parts(run_id, parts)

    node = MapNode(as_node(begun.append), over="items", into="results", max_workers=2)
    driver(make_graph({"map": node}, store=Slow()), "execute", State({"items": [*range(50)]}, run_id=RUN))

    assert sorted(begun) == list(range(50))
    assert max(ahead) <= 4


PROGRAM = """
import fcntl, sys, time
from pathlib import Path
from stategraph import GraphConfig, MapNode, State, StateGraph

locks = []

def hold(number):
    locks.append(Path("lock").open("w"))
    fcntl.flock(locks[-1], fcntl.LOCK_SH)
    Path(f"begun-{number}").touch()
    time.sleep(0 if number < 2 else 3600)

if __name__ == "__main__":
    graph = StateGraph(GraphConfig(name="map", observer="noop"))
    graph.add_node("map", MapNode(hold, over="items", into="results", max_workers=2, processes=True))
    graph.set_entry_point("map")
    graph.set_exit_point("map")
    graph.execute(State({"items": list(range(4))}))
"""


def wait_until(is_so: Callable[[], bool]) -> None:
    """Wait until something is so; the timeout of the test is the end of it."""
    while not is_so():
        time.sleep(0.02)


@pytest.mark.skipif(sys.platform == "win32", reason="file locks of POSIX tell who lives")
def test_processes_end_with_the_one_that_started_them(tmp_path: Path) -> None:
    """Worker processes end when the process that started them is killed."""
    import fcntl

    def are_gone() -> bool:
        with (tmp_path / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    process = subprocess.Popen([sys.executable, "program.py"], cwd=tmp_path)
    wait_until(lambda: len(list(tmp_path.glob("begun-*"))) == 4)
    assert not are_gone()

    process.kill()

    assert process.wait() == -signal.SIGKILL
    wait_until(are_gone)


TOO_LONG = """
import time
from stategraph import ExecutionError, GraphConfig, ParallelNode, State, StateGraph

def hold(data):
    time.sleep(3600)

if __name__ == "__main__":
    graph = StateGraph(GraphConfig(name="hold", observer="noop"))
    graph.add_node("hold", ParallelNode({"a": hold, "b": hold}, processes=True), timeout=0.5)
    graph.set_entry_point("hold")
    graph.set_exit_point("hold")
    try:
        graph.execute(State())
    except ExecutionError as error:
        print(repr(error.__cause__))
"""


def test_processes_end_when_the_time_of_their_node_is_up(tmp_path: Path) -> None:
    """A function in a process can be stopped, and does not keep the program from ending."""
    (tmp_path / "program.py").write_text(TOO_LONG, encoding="utf-8")

    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=True
    )

    assert done.stdout.startswith("TimeoutError")
