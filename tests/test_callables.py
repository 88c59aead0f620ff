"""Functions that are handed in and answer at once: what cannot is refused early, and what does not is no answer."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest.mock import MagicMock, Mock

import attrs
import pytest

from stategraph import (
    ConfigError,
    EventType,
    ExecutionError,
    GraphConfig,
    GraphError,
    InterruptNode,
    MultiObserver,
    ParallelNode,
    RetryPolicy,
    RunStatus,
    SchemaError,
    State,
    StateGraph,
    StateGraphError,
    and_,
    not_,
    or_,
    register_checkpoint_store,
    register_observer,
    register_type,
)
from stategraph._util.callables import problem_of
from stategraph._values.registered_types import find_by_name
from stategraph.stores.memory import MemoryStore
from stategraph.stores.sqlite import SqliteStore
from tests.scenarios import RUN, make_graph, raises, returns

# --------------------------------------------------------------------------- what cannot answer at once


async def late(*arguments: Any) -> bool:
    """Answer later."""
    return True


async def chunks(*arguments: Any) -> Any:
    """Never answer, but yield."""
    yield True


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
    "async partial": (partial(partial(late)), "async"),
    "async object": (Late(), "async"),
    "partial of an async object": (partial(Late()), "async"),
    "async method": (Late().method, "async"),
    "async static method": (staticmethod(late), "async"),
    "async generator": (chunks, "async"),
    "generator": (generator, "a generator function"),
    "partial of a generator": (partial(generator), "a generator function"),
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
    """-> a node that runs a graph."""
    return make_graph({"a": returns({"n": 1})}, store=MemoryStore(), name="inner").as_node(**options)


def registered(upgrade: Any) -> None:
    """Register a class with this upgrade."""
    register_type(name="test.Upgraded", version=2, upgrade=upgrade)(attrs.make_class("Upgraded", ["n"]))


def with_schema(**options: Any) -> StateGraph:
    """-> a graph whose schema has a field with these options."""
    schema = attrs.make_class("Schema", {"n": attrs.field(type=int, **options)})
    return make_graph({"a": returns({"n": 1})}, store=MemoryStore(), interval=0, schema=schema)


PLACES: dict[str, tuple[Callable[[Any], object], str]] = {
    "a predicate": (edge, "predicate"),
    "not_": (not_, "predicate"),
    "and_": (and_, "predicate"),
    "or_": (or_, "predicate"),
    "retry_on": (lambda function: RetryPolicy(retry_on=function), "retry.retry_on"),
    "random": (lambda function: RetryPolicy(random=function), "retry.random"),
    "a reducer": (lambda function: ParallelNode({"a": returns({})}, reducers={"n": function}), r"reducers\['n'\]"),
    "a validator of answers": (lambda function: InterruptNode(None, "ok", validator=function), "validator"),
    "inputs": (lambda function: as_node(inputs=function), "inputs"),
    "outputs": (lambda function: as_node(outputs=function), "outputs"),
    "an upgrade": (registered, "upgrade"),
    "a factory of stores": (lambda function: register_checkpoint_store("unfit", function), "store 'unfit'"),
    "a factory of observers": (lambda function: register_observer("unfit", function), "observer 'unfit'"),
    "on_event": (
        lambda function: StateGraph(GraphConfig("g"), observer=Observing(function)),
        "observer: .*on_event",
    ),
    "on_event of one of several": (lambda function: MultiObserver(Observing(function)), "observer: .*on_event"),
    "on_event of a State": (lambda function: State(observer=Observing(function)), "observer: .*on_event"),
    "on_event of what is registered": (
        lambda function: register_observer("unfit", Observing(function)),
        "observer 'unfit': .*on_event",
    ),
    "wants": (lambda function: StateGraph(GraphConfig("g"), observer=Observing(wants=function)), "observer: .*wants"),
}


@pytest.mark.parametrize("kind", UNFIT)
@pytest.mark.parametrize("place", PLACES)
def test_what_cannot_answer_at_once_is_refused_early(place: str, kind: str) -> None:
    """When it is handed in; the error names the argument, and says what to do."""
    hand_in, name = PLACES[place]
    function, problem = UNFIT[kind]
    with pytest.raises((TypeError, ConfigError, GraphError), match=name) as caught:
        hand_in(function)

    assert problem in str(caught.value)


def test_a_signing_function_that_cannot_answer_at_once(tmp_path: Any) -> None:
    """It is refused when the store is opened, and is not in the error."""
    for function, problem in UNFIT.values():
        with pytest.raises(ConfigError, match=rf"checkpoint.options.sign_with: <a \w+ that is not shown>.*{problem}"):
            SqliteStore(tmp_path / "runs.db", sign_with=function)


# --------------------------------------------------------------------------- how many arguments


ARITIES: dict[str, int] = {
    **dict.fromkeys(["a predicate", "not_", "retry_on", "a validator of answers", "inputs", "outputs", "on_event"], 1),
    "wants": 1,
    "random": 0,
    "a reducer": 2,
    "an upgrade": 2,
}


@pytest.mark.parametrize("place", ARITIES)
def test_a_function_of_other_arguments_is_refused_early(place: str) -> None:
    """The error says how many it is called with."""
    hand_in, name = PLACES[place]
    needs_more = eval(f"lambda {', '.join('abcd'[: ARITIES[place] + 1])}: None")
    with pytest.raises((TypeError, ConfigError, GraphError), match=f"{name}.*called with {ARITIES[place]} argument"):
        hand_in(needs_more)
    if ARITIES[place]:
        with pytest.raises((TypeError, ConfigError, GraphError), match="too many positional"):
            hand_in(lambda: None)


class Silent:
    """Tells nobody what it takes."""

    @property
    def __signature__(self) -> Any:
        raise RuntimeError("no signature")

    def __call__(self, *arguments: Any) -> Any:
        return None


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (operator.add, 2),
        (max, 2),
        (dict, 1),
        (bool, 1),
        (operator.itemgetter("done"), 1),
        (set.union, 2),
        (lambda *arguments: None, 2),
        (lambda a, b=1, *, c=2: None, 1),
        (partial(lambda a, b: None, 1), 1),
        (Silent(), 3),
        ("".join, 1),
    ],
)
def test_what_can_be_called_or_does_not_tell_is_taken(function: Any, arguments: int) -> None:
    """Builtins and classes among them."""
    assert problem_of(function, arguments) == ""


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
"""Plain functions whose answers nobody would wait for. Each coroutine is closed, as Python warns of it otherwise, and
that is an error in these tests."""


@pytest.fixture(params=LATE)
def later(request: pytest.FixtureRequest) -> Callable[..., Any]:
    return LATE[request.param]


def failure(nodes: Any, edges: Any = None, data: Any = None, **options: Any) -> str:
    """-> what a run fails with."""
    with pytest.raises(ExecutionError) as caught:
        make_graph(nodes, edges, store=MemoryStore(), **options).execute(State(data or {}, run_id=RUN))
    error = caught.value.__cause__
    return "; ".join([str(caught.value), str(error), *getattr(error, "__notes__", ())])


def test_a_predicate_that_answers_later(later: Any) -> None:
    """It is no yes."""
    for predicate in (later, not_(later), and_(later), or_(later)):
        text = failure({"a": returns({}), "b": returns({})}, [("a", "b", predicate)])
        assert "has to answer at once" in text


def test_a_retry_on_that_answers_later(later: Any) -> None:
    """The node is not tried again, and its error says why."""
    calls: list[int] = []

    def fails(state: State) -> Any:
        calls.append(1)
        raise ValueError("the real one")

    text = failure({"a": fails}, policies={"a": {"retry": RetryPolicy(initial_delay=0, retry_on=later)}})

    assert "the real one" in text
    assert "It was not tried again: its RetryPolicy raised TypeError: it returned a" in text
    assert calls == [1]


def test_a_retry_on_that_returns_a_function() -> None:
    """A call was forgotten."""
    error = ValueError()

    assert RetryPolicy(retry_on=lambda error: raises).delay_after(1, error) is None
    assert "raised TypeError: it returned raises, a function" in error.__notes__[0]


@pytest.mark.parametrize("random", [*LATE.values(), lambda: None, lambda: "1", lambda: 1 / 0])
def test_a_random_that_gives_no_number(random: Any) -> None:
    """The node is not tried again, and its error, not that of the policy, is the one to be seen."""
    retry = RetryPolicy(initial_delay=0, jitter=0.001, random=random)
    text = failure({"a": raises(ValueError("the real one"))}, policies={"a": {"retry": retry}})

    assert "the real one" in text
    assert "It was not tried again: its RetryPolicy raised" in text


def test_a_reducer_that_answers_later(later: Any) -> None:
    """What it returns does not land in the State."""
    branches = {"a": returns({"n": 1}), "b": returns({"n": 2})}

    assert "reducers['n']: it returned a" in failure({"p": ParallelNode(branches, reducers={"n": later})})


def test_a_validator_of_answers_that_answers_later(later: Any) -> None:
    """The answer is not accepted."""
    graph = make_graph({"a": InterruptNode(None, "ok", validator=later), "b": returns({})}, store=MemoryStore())
    graph.execute(State(run_id=RUN))

    with pytest.raises(StateGraphError, match="its validator: it returned a"):
        graph.resume(RUN, {"ok": 1})
    assert graph.store.load(RUN).status is RunStatus.PAUSED


def test_a_validator_of_a_schema_that_answers_later(later: Any) -> None:
    """The value does not fit."""
    with pytest.raises(SchemaError, match="it returned a"):
        with_schema(validator=later).execute(State({"n": 1}))


def test_an_upgrade_that_answers_later(later: Any) -> None:
    """The value is not loaded."""
    registered(later)
    kind = find_by_name("test.Upgraded")
    assert kind is not None

    with pytest.raises(ValueError, match=r"the upgrade of test\.Upgraded from version 1 raised TypeError: it"):
        kind.restore({"n": 1}, 1)


@pytest.mark.parametrize("driver", ["sync", "async"])
def test_an_observer_that_answers_later(later: Any, driver: str, caplog: pytest.LogCaptureFixture) -> None:
    """It is reported once, and the run goes on."""
    graph = make_graph({"a": returns({})}, store=MemoryStore(), observer=Observing(later))

    final = graph.execute(State()) if driver == "sync" else asyncio.run(graph.aexecute(State()))

    assert final.status is RunStatus.COMPLETED
    assert caplog.text.count("on_event: it returned a") == 1


@pytest.mark.parametrize("observer", [Mock(), MagicMock()], ids=["Mock", "MagicMock"])
def test_a_mock_observes(observer: Any) -> None:
    """As in the tests of many a program: whatever it answers, it hears everything."""
    make_graph({"a": returns({})}, store=MemoryStore(), observer=observer).execute(State())

    assert EventType.GRAPH_COMPLETE in [call.args[0].type for call in observer.on_event.call_args_list]


def test_a_signing_function_that_answers_later(tmp_path: Any, later: Any) -> None:
    """Nothing is signed with what it returns."""
    with SqliteStore(tmp_path / "runs.db", sign_with=later) as store, pytest.raises(TypeError, match="sign_with: it"):
        store.save(State(run_id=RUN))


def test_an_observer_whose_wants_answers_later(later: Any, caplog: pytest.LogCaptureFixture) -> None:
    """It hears nothing, and that is reported once."""
    heard: list[Any] = []
    make_graph({"a": returns({})}, store=MemoryStore(), observer=Observing(heard.append, later)).execute(State())

    assert heard == []
    assert caplog.text.count("wants: it returned a") == 1


@pytest.mark.parametrize("name", ["inputs", "outputs"])
def test_inputs_and_outputs_that_answer_later(later: Any, name: str) -> None:
    """What they return is no mapping."""
    assert f"its {name}: it returned a" in failure({"a": as_node(**{name: later})})
