"""Tracebacks of failed runs show the calls of users first, and few of the library."""

import asyncio
import re
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from stategraph import (
    ConfigError,
    ExecutionError,
    GraphError,
    InvalidRunIdError,
    MapNode,
    NotSerializableError,
    ParallelNode,
    RetryPolicy,
    RunCompleteError,
    RunExistsError,
    State,
    StateGraph,
)
from stategraph.stores.memory import MemoryStore
from tests.scenarios import RUN, as_async, make_graph


def deeper(value: Any) -> Any:
    raise ZeroDivisionError(f"of {value}")


def failing(state: State) -> Any:
    return deeper(1)


def failing_item(item: Any) -> Any:
    return deeper(item)


NODES: dict[str, Callable[[], dict[str, Any]]] = {
    "function": lambda: {"a": failing},
    "async function": lambda: {"a": as_async(failing)},
    "map": lambda: {"a": MapNode(failing_item, over="items", into="made")},
    "map of async": lambda: {"a": MapNode(as_async(failing_item), over="items", into="made")},
    "branches": lambda: {"a": ParallelNode({"one": failing, "other": lambda state: {}})},
    "nested": lambda: {"a": make_graph({"b": failing}, store=MemoryStore()).as_node()},
}


def execute(graph: Any, state: State) -> Any:
    return graph.execute(state)


def aexecute(graph: Any, state: State) -> Any:
    return asyncio.run(graph.aexecute(state))


def stream(graph: Any, state: State) -> Any:
    return list(graph.stream(state))


def calls_of(error: Any) -> list[tuple[str, str]]:
    """Return the calls in its traceback, as the first part of the name of the module, and the function."""
    return [
        (str(frame.f_globals["__name__"]).partition(".")[0], frame.f_code.co_name)
        for frame, _ in traceback.walk_tb(error.__traceback__)
    ]


def causes_of(error: BaseException | None) -> list[BaseException]:
    """Return what led to it, the innermost one last; of a group, the first one in it."""
    found = []
    while error is not None:
        found.append(error)
        error = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error.__cause__
    return found


@pytest.mark.parametrize("call", [execute, aexecute, stream])
@pytest.mark.parametrize("kind", NODES)
def test_the_users_calls_come_first(call: Callable[[Any, State], Any], kind: str) -> None:
    """The calls of users come first with every kind of node and every driver."""
    graph = make_graph(NODES[kind](), store=MemoryStore())

    with pytest.raises(ExecutionError) as caught:
        call(graph, State({"items": [1]}, run_id=RUN))

    *_, innermost = causes_of(caught.value)
    assert isinstance(innermost, ZeroDivisionError)
    calls = calls_of(innermost)
    assert calls[-1][1] == "deeper"
    assert "stategraph" not in [room for room, _ in calls]
    for error in causes_of(caught.value):
        assert [room for room, _ in calls_of(error)].count("stategraph") <= 2
    assert caught.value.state.error.traceback.splitlines()[-1].endswith("in deeper")


@pytest.mark.parametrize("call", [execute, aexecute, stream])
def test_a_value_that_cannot_be_saved(call: Callable[[Any, State], Any]) -> None:
    """The error names the value; the frames of the stores and of the codec would not help."""
    nodes = {"a": lambda state: {"deep": [[object()]]}, "b": failing}
    graph = make_graph(nodes, store=MemoryStore())

    with pytest.raises(NotSerializableError, match=r"^deep\[0\]\[0\] cannot be saved") as caught:
        call(graph, State(run_id=RUN))

    assert [room for room, _ in calls_of(caught.value)].count("stategraph") <= 2


MISTAKES: dict[str, tuple[type[Exception], Callable[..., Any]]] = {
    "incomplete graph": (GraphError, lambda call: call(StateGraph("g"), State())),
    "run exists": (RunExistsError, lambda call: call(preserving(), State(run_id=RUN))),
    "run id": (InvalidRunIdError, lambda call: preserving().resume(5)),
    "complete": (RunCompleteError, lambda call: preserving().resume(RUN)),
    "config": (ConfigError, lambda call: StateGraph("g", store="sqlite")),
    "policy": (ConfigError, lambda call: RetryPolicy(max_attempts=0)),
}


def preserving() -> Any:
    """Return a graph with a completed run."""
    graph = make_graph({"a": lambda state: {}}, store=MemoryStore(), preserve=True)
    graph.run(State(run_id=RUN))
    return graph


@pytest.mark.parametrize("call", [execute, aexecute, stream])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_of_callers(call: Callable[[Any, State], Any], mistake: str) -> None:
    """The error of a wrong call shows that call, and next to nothing of the library."""
    kind, make = MISTAKES[mistake]

    with pytest.raises(kind) as caught:
        make(call)

    assert [room for room, _ in calls_of(caught.value)].count("stategraph") <= 2


def test_an_error_outside_of_the_users_code() -> None:
    """An error outside of the code of users keeps one call of the library, as its origin."""
    graph = make_graph({"a": lambda state: None}, store=MemoryStore())

    with pytest.raises(ExecutionError) as caught:
        graph.execute(State())

    assert [room for room, _ in calls_of(caught.value.__cause__)] == ["stategraph"]


def reading(item: Any) -> Any:
    return State({"item": item})["missing"]


ITEMS: dict[str, Any] = {
    "sync": failing_item,
    "async": as_async(failing_item),
    "with a timeout": failing_item,
    "retried": failing_item,
    "graph": make_graph({"b": lambda state: failing_item(state["item"])}, store=MemoryStore()).as_node(),
}
POLICIES: dict[str, Any] = {
    "with a timeout": {"timeout": 20.0},
    "retried": {"retry": RetryPolicy(max_attempts=2, initial_delay=0)},
}


@pytest.mark.parametrize("call", [execute, aexecute, stream])
@pytest.mark.parametrize("kind", ITEMS)
def test_collected_errors_of_items(call: Callable[[Any, State], Any], kind: str) -> None:
    """The users' calls alone, with no folders of this machine; and as a text it is short."""
    node = MapNode(ITEMS[kind], over="items", into="made", on_error="collect", **POLICIES.get(kind, {}))
    graph = make_graph({"a": node}, store=MemoryStore())

    final = call(graph, State({"items": [{"item": 1}] if kind == "graph" else [1]}, run_id=RUN))

    (info,) = (final[-1] if call is stream else final)["made"]
    places = [re.sub(r":\d+ ", " ", line) for line in info.traceback.splitlines()]
    here = __name__.replace(".", "/") + ".py"
    assert places[-1] == f"{here} in deeper"
    assert {place.partition(" ")[0] for place in places} <= {here, "tests/scenarios.py"}
    assert len(str(info)) < 150
    assert "deeper" not in str(info)


def test_frames_of_stategraph_are_left_out() -> None:
    """The users' call that led to it; ours is left out."""
    with pytest.raises(ExecutionError) as caught:
        make_graph({"a": reading}, store=MemoryStore()).execute(State())

    assert re.fullmatch(r"(tests/)?test_tracebacks\.py:\d+ in reading", caught.value.state.error.traceback)
