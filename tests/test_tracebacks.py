"""What a run that failed prints: the users' calls first, and few of ours."""

import asyncio
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from stategraph import ExecutionError, MapNode, ParallelNode, RetryPolicy, State
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
    """-> the calls in its traceback, as the first part of the name of the module, and the function."""
    return [
        (str(frame.f_globals["__name__"]).partition(".")[0], frame.f_code.co_name)
        for frame, _ in traceback.walk_tb(error.__traceback__)
    ]


def causes_of(error: BaseException | None) -> list[BaseException]:
    """-> what led to it, the innermost one last; of a group, the first one in it."""
    found = []
    while error is not None:
        found.append(error)
        error = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error.__cause__
    return found


@pytest.mark.parametrize("call", [execute, aexecute, stream])
@pytest.mark.parametrize("kind", NODES)
def test_the_users_calls_come_first(call: Callable[[Any, State], Any], kind: str) -> None:
    """Whatever the node is, and whoever drives it."""
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


def test_what_is_tried_again() -> None:
    """The last attempt is shown."""
    graph = make_graph(
        {"a": failing}, store=MemoryStore(), policies={"a": {"retry": RetryPolicy(max_attempts=2, initial_delay=0)}}
    )

    with pytest.raises(ExecutionError) as caught:
        graph.execute(State())

    assert [name for _, name in calls_of(caught.value.__cause__)] == ["failing", "deeper"]


def test_a_predicate() -> None:
    """It is the users' code as well."""
    graph = make_graph({"a": lambda state: {}, "b": lambda state: {}}, [("a", "b", failing)], store=MemoryStore())

    with pytest.raises(ExecutionError) as caught:
        graph.execute(State())

    assert [name for _, name in calls_of(caught.value.__cause__)] == ["failing", "deeper"]


def test_what_is_no_failure_of_the_users_code() -> None:
    """One of our calls stays, so that it can be told where it comes from."""
    graph = make_graph({"a": lambda state: None}, store=MemoryStore())

    with pytest.raises(ExecutionError) as caught:
        graph.execute(State())

    assert [room for room, _ in calls_of(caught.value.__cause__)] == ["stategraph"]
