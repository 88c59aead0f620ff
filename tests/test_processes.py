"""Parts in processes: a part that cannot be sent, or that ends its process, fails alone."""

from __future__ import annotations

import sys
from concurrent.futures.process import BrokenProcessPool
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from stategraph import ErrorInfo, ExecutionError, MapNode, State
from stategraph.stores.memory import MemoryStore
from tests.cli.shop import process
from tests.in_processes import MadeOfACodeError, NotMadeAgain, Unsent, leaving, noted, trouble
from tests.scenarios import DRIVERS, RUN, make_graph

pytestmark = pytest.mark.timeout(600)


def mapping(kinds: list[Any], driver: Any, function: Any = trouble, **options: Any) -> State:
    """Return what comes of a MapNode in processes that goes over these."""
    node = MapNode(function, over="items", into="out", processes=True, **{"max_workers": 2, **options})
    graph = make_graph({"work": node}, store=MemoryStore(), interval=0)
    final: State = driver(graph, "execute", State({"items": kinds}, run_id=RUN))
    return final


def errors_of(caught: Any) -> list[Exception]:
    """Return the errors of the parts."""
    return list(caught.value.__cause__.exceptions)


TROUBLES = {
    "two arguments": ("TwoArgumentsError", "1 and 2"),
    "holds a lock": ("HoldsALockError", "locked"),
    "code": ("MadeOfACodeError", "code 5"),
    "lock": ("TypeError", "its result, [<unlocked _thread.lock"),
    "not made again": ("TypeError", "its result cannot be unpickled"),
}
"""The type and the beginning of the text of an error, by what goes wrong."""


def test_trouble_is_collected_as_that_of_its_item(driver: Any) -> None:
    """Collected failures have the type and the text of the exception; other items have results."""
    first, *out, last = mapping(["a", *TROUBLES, "b"], driver, on_error="collect")["out"]

    assert (first, last) == ("a", "b")
    for error, (name, text) in zip(out, TROUBLES.values(), strict=True):
        assert (type(error), error.type, error.node) == (ErrorInfo, name, "work")
        assert error.message.startswith(text)


@pytest.mark.parametrize(
    ("driver", "kind", "why"),
    [
        ("sync", "two arguments", "cannot be sent from its process: TypeError: "),
        ("sync", "holds a lock", "cannot be sent from its process: TypeError: "),
        ("sync", "code", ""),
        ("async", "lock", ""),
    ],
)
def test_trouble_is_raised_as_that_of_its_item(driver: str, kind: str, why: str) -> None:
    """Alone in its group, with a note of its item. What stands for an exception that cannot be sent says why, and has
    its traceback; one that can be sent is itself."""
    name, text = TROUBLES[kind]
    with pytest.raises(ExecutionError) as caught:
        mapping(["a", kind], DRIVERS[driver])

    (error,) = errors_of(caught)
    assert type(error).__name__ == name
    assert str(error).startswith(text)
    assert "in part '1' of node 'work'" in error.__notes__
    assert f"1: {name}: {text}" in str(caught.value)
    assert why in error.__notes__[0]
    assert not why or "in trouble" in str(error.__cause__)
    assert kind != "code" or type(error) is MadeOfACodeError


@pytest.mark.parametrize("on_error", ["raise", "collect"])
def test_an_item_that_cannot_be_sent(on_error: str) -> None:
    """An item that cannot be sent fails alone, and all processes keep working."""
    given = ["a", Unsent(), NotMadeAgain(), "b"]
    if on_error == "collect":
        out = mapping(given, DRIVERS["sync"], on_error=on_error)["out"]
        assert (out[0], out[3]) == ("a", "b")
        assert out[1].message.startswith("its argument, ")
        assert (out[2].type, out[2].message) == ("ValueError", "never again")
    else:
        with pytest.raises(ExecutionError, match="1: TypeError: its argument"):
            mapping(given, DRIVERS["sync"], on_error=on_error)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
class TestDeath:
    """Of a process, in which an item may have any part."""

    @pytest.mark.parametrize(("driver", "workers"), [("sync", 1), ("async", 3)])
    def test_it_is_collected_as_that_of_its_item(self, driver: str, workers: int, tmp_path: Path) -> None:
        """Other items continue after a death, and no item begins twice."""
        items = [(str(tmp_path), str(number)) for number in range(10)]

        out = mapping(items, DRIVERS[driver], noted, on_error="collect", max_workers=workers)["out"]

        assert [one for one in out if type(one) is str] == [str(number) for number in range(10) if number != 3]
        assert (out[3].type, out[3].node) == ("BrokenProcessPool", "work")
        assert "its process died (signal 9)" in out[3].message
        begun = {file.name: file.read_text() for file in tmp_path.iterdir()}
        assert begun == {str(number): "x" for number in range(10)}

    def test_it_is_raised_as_that_of_its_item(self, driver: Any) -> None:
        """Simultaneous items finish, and only the item of the dead process fails."""
        with pytest.raises(ExecutionError, match="1: BrokenProcessPool: its process died") as caught:
            mapping(["a", "death", "b"], driver)

        assert [type(error) for error in errors_of(caught)] == [BrokenProcessPool]


def test_an_item_that_exits(driver: Any) -> None:
    """It ends its process, and not that of the run."""
    node = MapNode(leaving, "l", "out", 2, processes=True, on_error="collect")
    final = driver(make_graph({"w": node}, store=MemoryStore()), "execute", State({"l": [1, 2, 3]}, run_id=RUN))

    assert (final["out"][0], final["out"][1].type, final["out"][2]) == (1, "BrokenProcessPool", 3)


SLOW = """
import multiprocessing, time

if multiprocessing.parent_process():
    time.sleep(3)


class Number(int):
    pass


def double(item):
    return 2 * item
"""
FLOW = """
from stategraph import MapNode, StateGraph
from slow_to_import import Number, double


def flow(function, store=None):
    graph = StateGraph("flow", store=store)
    graph.add_node("map", MapNode(function, "items", "made", processes=True, timeout=2, max_workers=1))
    graph.set_entry_point("map")
    graph.set_exit_point("map")
    return graph


kept = flow(double, "runs.db")
"""


def test_a_slow_import_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The timeout of an item begins when the modules of the function and of the item are imported in the process, in a
    program and in a worker."""
    (tmp_path / "slow_to_import.py").write_text(SLOW)
    (tmp_path / "slow_flow.py").write_text(FLOW)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    flow = import_module("slow_flow")

    assert flow.flow(flow.double).execute(State({"items": [1, 2]}))["made"] == [2, 4]
    assert flow.flow(abs).execute(State({"items": [flow.Number(-1)]}))["made"] == [1]
    flow.kept.submit(State({"items": [1, 2]}, run_id=RUN))
    flow.kept.store.close()
    assert process("work", "slow_flow:kept", "--once", cwd=tmp_path).out == f"{RUN}  completed\n"
