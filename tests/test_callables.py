"""Plain functions must answer at once: coroutines and generators are refused early."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any
from zoneinfo import ZoneInfo

import attrs
import pytest

from stategraph import (
    ConfigError,
    GraphConfig,
    GraphError,
    InterruptNode,
    ParallelNode,
    RetryPolicy,
    RunStatus,
    State,
    StateGraph,
    and_,
    not_,
    register_checkpoint_store,
    register_type,
)
from stategraph.stores.memory import MemoryStore
from stategraph.stores.sqlite import SqliteStore
from tests.scenarios import RUN, make_graph, returns, trace

# --------------------------------------------------------------------------- what cannot answer at once


async def late(*arguments: Any) -> bool:
    """Answer later."""
    return True


def generator(*arguments: Any) -> Iterator[bool]:
    """Never answer, but yield."""
    yield True


class Late:
    """Answers later when it is called."""

    async def __call__(self, *arguments: Any) -> bool:
        return True

    async def method(self, *arguments: Any) -> bool:
        """Answer later."""
        return True


UNFIT: dict[str, tuple[Any, str]] = {
    "async": (late, "async"),
    "async object": (Late(), "async"),
    "partial of an async object": (partial(Late()), "async"),
    "async method": (Late().method, "async"),
    "generator": (generator, "a generator function"),
    "nothing to be called": (5, ""),
}


class Observing:
    """An observer of this on_event, and of this wants."""

    def __init__(self, on_event: Any = None, wants: Any = None) -> None:
        self.on_event = returns(None) if on_event is None else on_event
        self.wants = returns(True) if wants is None else wants


def edge(function: Any) -> None:
    """Add an edge with this predicate."""
    graph = StateGraph(GraphConfig("g", observer="noop"))
    graph.add_node("a", returns({}))
    graph.add_edge("a", "a", function)


def as_node(**options: Any) -> Any:
    """Return a node that runs a graph."""
    return make_graph({"a": returns({"n": 1})}, store=MemoryStore(), name="inner").as_node(**options)


def registered(upgrade: Any) -> None:
    """Register a class with this upgrade."""
    register_type(name="test.Upgraded", version=2, upgrade=upgrade)(attrs.make_class("Upgraded", ["n"]))


PLACES: dict[str, tuple[Callable[[Any], object], str]] = {
    "a predicate": (edge, "predicate"),
    "not_": (not_, "predicate"),
    "and_": (and_, "predicate"),
    "retry_on": (lambda function: RetryPolicy(retry_on=function), "retry.retry_on"),
    "a reducer": (lambda function: ParallelNode({"a": returns({})}, reducers={"n": function}), r"reducers\['n'\]"),
    "a validator of answers": (lambda function: InterruptNode(None, "ok", validator=function), "validator"),
    "inputs": (lambda function: as_node(inputs=function), "inputs"),
    "outputs": (lambda function: as_node(outputs=function), "outputs"),
    "an upgrade": (registered, "upgrade"),
    "a factory of stores": (lambda function: register_checkpoint_store("unfit", function), "store 'unfit'"),
    "on_event": (
        lambda function: StateGraph(GraphConfig("g"), observer=Observing(function)),
        "observer: .*on_event",
    ),
    "on_event of a State": (lambda function: State(observer=Observing(function)), "observer: .*on_event"),
    "wants": (lambda function: StateGraph(GraphConfig("g"), observer=Observing(wants=function)), "observer: .*wants"),
}


@pytest.mark.parametrize("place", PLACES)
def test_functions_that_cannot_answer_at_once_are_refused(place: str) -> None:
    """It is refused when it is handed in; the error names the argument, and says what to do."""
    hand_in, name = PLACES[place]
    for function, problem in UNFIT.values():
        with pytest.raises((TypeError, ConfigError, GraphError), match=name) as caught:
            hand_in(function)

        assert problem in str(caught.value)


# --------------------------------------------------------------------------- what does not answer at once


async def answer() -> Any:
    """Answer later."""
    return {"n": 1}


async def yielded() -> Any:
    """Yield."""
    yield 1


LATE: dict[str, Callable[..., Any]] = {
    "a coroutine": lambda *arguments: answer(),
    "a generator": lambda *arguments: (one for one in [1]),
    "an async generator": lambda *arguments: yielded(),
}
"""Plain functions that return a coroutine or a generator. Each coroutine must be closed: Python warns of it otherwise,
and warnings are errors in these tests."""


@pytest.fixture(params=LATE)
def later(request: pytest.FixtureRequest) -> Callable[..., Any]:
    return LATE[request.param]


@pytest.mark.parametrize("driver", ["sync", "async"])
def test_an_observer_that_answers_later(later: Any, driver: str, caplog: pytest.LogCaptureFixture) -> None:
    """An observer that answers later is reported once, and the run continues."""
    graph = make_graph({"a": returns({})}, store=MemoryStore(), observer=Observing(later))

    final = graph.execute(State()) if driver == "sync" else asyncio.run(graph.aexecute(State()))

    assert final.status is RunStatus.COMPLETED
    assert caplog.text.count("on_event: it returned a") == 1


def test_another_thread_is_importing_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run goes on although modules that it looks for without importing them are only half there."""
    graph = make_graph({"a": trace("a")}, store=SqliteStore(tmp_path / "runs.db"), preserve=True)
    graph.execute(State(run_id="before"))  # which imports what it uses
    for name in ("asyncio", "asyncio.events", "asyncio.exceptions", "zoneinfo"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))

    final = graph.execute(State({"at": datetime(2020, 1, 1, tzinfo=ZoneInfo("Europe/Berlin"))}, run_id=RUN))

    monkeypatch.undo()
    assert graph.store.load(RUN) == final
