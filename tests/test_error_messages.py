"""Errors name the culprit and the way out."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from stategraph import (
    AnswerError,
    CheckpointConfig,
    CheckpointError,
    CheckpointNotFoundError,
    ConfigError,
    GraphConfig,
    InterruptNode,
    MapNode,
    NotSerializableError,
    RetryPolicy,
    RunExistsError,
    State,
    StateGraph,
    get_checkpoint_store,
)
from stategraph.errors import GraphError
from stategraph.stores.base import CheckpointStore, Policy
from stategraph.stores.memory import MemoryStore
from stategraph.stores.sqlite import SqliteStore
from tests.scenarios import counted, make_graph, trace

KEY = b"0123456789abcdef"


@attrs.frozen
class Order:
    """An object that a node takes."""

    total: int = 0


def _key() -> bytes:
    return KEY


def _new_key() -> bytes:
    return KEY[::-1]


def test_a_configuration_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder that was looked in is named."""
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ConfigError, match=f"No such file or directory: '{tmp_path}/graph.toml'"):
        GraphConfig.from_file("graph.toml")


class Forgetful(CheckpointStore):
    """A store of one's own that returns None where its contract asks for an error."""

    def __init__(self, found: Any = None) -> None:
        self.found = found

    def save(self, state: State) -> None:
        """Save nothing."""

    def load(self, run_id: str, step: int | None = None, revision: int | None = None) -> State:
        found: State = self.found
        return found

    def delete(self, run_id: str) -> None:
        """Delete nothing."""

    def list(self) -> list[str]:
        return ["r"]


@pytest.mark.parametrize("call", ["resume", "cancel"])
@pytest.mark.parametrize("found", [None, {"n": 1}])
def test_a_store_that_loads_no_state(call: str, found: Any) -> None:
    """The class of the store and the contract that it breaks are named, for each caller of `load`."""
    graph = make_graph({"a": trace("a")}, store=Forgetful(found))
    kind = CheckpointNotFoundError if found is None else CheckpointError

    with pytest.raises(
        kind, match=r"Forgetful\.load returned .*load returns a State, and raises CheckpointNotFoundError"
    ):
        getattr(graph, call)("r")
    if found is None:
        assert graph.execute(State(run_id="r"))["trace"] == ["a"]


@pytest.mark.parametrize(
    "begin",
    [
        lambda graph: graph.execute(State(), labels={"team": "\ud800"}),
        lambda graph: graph.submit(State(), labels={"\ud800": "a"}),
        lambda graph: graph.execute(State(labels={"team": "\ud800"})),
        lambda graph: graph.execute(State(), by="\ud800"),
    ],
)
def test_a_lone_surrogate_is_refused_before_any_node(begin: Callable[[StateGraph], State]) -> None:
    """No store could save such labels, nor such an author: the work of the first node would be lost."""
    ran: list[int] = []
    graph = make_graph({"a": counted(trace("a"), ran)}, store=MemoryStore())

    with pytest.raises(ValueError, match=r"^(labels|by): .* without lone surrogates"):
        begin(graph)

    assert ran == []
    assert [*graph.store.runs(labels={"team": "\ud800"})] == []  # nothing has it, and nothing fails


class Frame:
    """A data frame: its repr shows its rows."""

    shape = (2, 1)

    def __repr__(self) -> str:
        return "   iban\n0  DE89370400440532013000\n"


class Rows(Frame):
    """One that has only a length."""

    shape = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return 2_000


@pytest.mark.parametrize(("value", "size"), [(Frame(), r"its shape is \(2, 1\)"), (Rows(), "it has 2,000 items")])
def test_a_value_that_cannot_be_saved_is_not_printed(tmp_path: Path, value: Any, size: str) -> None:
    """The error has its key, its type and its size; its content may be personal."""
    nodes = {"a": trace("a"), "b": lambda state: {"people": [value]}}
    graph = make_graph(nodes, store=SqliteStore(tmp_path / "runs.db"), preserve=True)

    with pytest.raises(NotSerializableError, match=rf"^people\[0\] .*{type(value).__name__}, .*{size}") as caught:
        graph.execute(State(run_id="r"))

    assert "DE89" not in f"{caught.value} {graph.store.load('r').error}"


class TestOfSignedStores:
    """Errors of a store with keys where the key is the likely cause."""

    @pytest.fixture(params=["sqlite", "disk"])
    def opened(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., CheckpointStore]]:
        """Opens the store, with these options."""
        stores: list[CheckpointStore] = []

        def opened(**options: Any) -> CheckpointStore:
            stores.append(get_checkpoint_store(request.param, path=str(tmp_path / "runs"), **options))
            return stores[-1]

        yield opened
        for store in stores:
            store.close()

    @pytest.fixture(params=["latest", "full"])
    def signed(self, request: pytest.FixtureRequest, opened: Callable[..., CheckpointStore]) -> None:
        """A run of two steps is in the store, the second of which builds on the first."""
        store = opened(sign_with=_key)
        store.retain("a", Policy(request.param))
        store.save(State({"n": 1}, run_id="a", step=1))
        store.save(State({"n": 2}, run_id="a", step=2))
        store.close()

    @pytest.mark.usefixtures("signed")
    def test_a_run_is_signed_with_the_new_key_when_it_is_saved_again(
        self, opened: Callable[..., CheckpointStore]
    ) -> None:
        """The newest State can be loaded without the old key then, whatever it has built on."""
        both = opened(sign_with=_new_key, verify_with=[_key])
        newest = both.load("a")
        both.save(newest)
        both.fork("a", "copy")

        only = opened(sign_with=_new_key)

        assert only.load("a") == newest
        assert [one.step for one in only.history("copy")] == [one.step for one in both.history("a")]

    @pytest.mark.usefixtures("signed")
    @pytest.mark.parametrize("options", [{"sign_with": lambda: KEY[::-1]}, {}])
    def test_with_another_key_or_none_the_log_does_not_recommend_to_delete(
        self, opened: Callable[..., CheckpointStore], options: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert opened(**options).list() == []

        assert "is left out (logged once)" in caplog.text
        assert "delete" not in caplog.text


COMPLETE = make_graph({"a": trace("a")}, store=MemoryStore(), preserve=True)


@pytest.mark.parametrize(
    ("call", "arguments", "named", "way_out"),
    [
        (State, [], {"a": 1}, r"State\(\) has no argument 'a'; keys go into a mapping, as in State\(\{'key': 1\}\)"),
        (State, [], {"runid": "a"}, "did you mean 'run_id'"),
        (CheckpointConfig, [], {"stor": "sqlite"}, "no argument 'stor'; did you mean 'store'"),
        (GraphConfig, ["a"], {"chekpoint": None}, "did you mean 'checkpoint'"),
        (StateGraph, ["a"], {"retention": "full"}, "a GraphConfig takes all other settings"),
        (RetryPolicy, [], {"retries": 3}, "it takes max_attempts, initial_delay, "),
        (StateGraph("a").add_node, ["a", dict], {"retries": 3}, "did you mean 'retry'"),
        (COMPLETE.resume, ["r"], {"wiat": 3}, r"'wiat' is not an argument of this call; did you mean 'wait'\?"),
        (COMPLETE.resume, ["r"], {"approved": 3}, r"data goes into a mapping: \{'approved': \.\.\.\}"),
        (MapNode, [lambda: 1, "a", "b"], {}, r"the function of an item takes one argument: def function\(item\)"),
        (MapNode, [len], {"over": "a", "to": "b"}, r"MapNode\(\) has no argument 'to'; did you mean 'into'"),
        (InterruptNode, ["a"], {"response": "b"}, "no argument 'response'; did you mean 'response_param'?"),
        (StateGraph("g").as_node, [], {"input": ["a"]}, "no argument 'input'; did you mean 'inputs'?"),
        (MapNode, [1, "a", "b"], {}, r"not callable; the function of an item takes one argument"),
    ],
)
def test_a_wrong_argument(call: Callable[..., Any], arguments: list[Any], named: dict[str, Any], way_out: str) -> None:
    """The one that was meant is named, or how to say it."""
    with pytest.raises(TypeError, match=way_out):
        call(*arguments, **named)


def test_a_run_that_is_there() -> None:
    """The error names the ways to continue the run and to begin it again."""
    COMPLETE.execute(State(run_id="r"))

    with pytest.raises(RunExistsError, match=r"is completed; turn\('r', .* new input, execute\(store\.load\('r'\)\)"):
        COMPLETE.execute(State(run_id="r"))


class TestOfNodes:
    """Problems with a node are raised where it is added, or name its part."""

    @pytest.mark.parametrize("annotation", [Order, "Order"])
    def test_an_object_in_a_graph_without_a_schema(self, annotation: Any) -> None:
        def node(order: Any) -> dict[str, int]:
            return {"total": order.total}

        node.__annotations__["order"] = annotation

        with pytest.raises(GraphError, match=r"node 'a' takes an Order, and gets a State: .*schema=Order"):
            make_graph({"a": node}, store=MemoryStore()).execute(State())


@pytest.mark.parametrize(
    ("name", "option", "given", "expected"),
    [
        ("postgres", "dsn", "sqlite:///runs.db", "begins with sqlite://"),
        ("postgres", "dsn", "postgresql+psycopg://ada:hush@host/runs", r"begins with postgresql\+psycopg://"),
        ("postgres", "dsn", "postgresql://host/runs?hush=1", "cannot be read"),
        ("postgres", "dsn", "hush 1://host", "cannot be read"),
        ("postgres", "dsn", "NO_SUCH_NAME", "no environment variable is named NO_SUCH_NAME"),
        ("redis", "url", "postgresql://ada:hush@host/runs", "begins with postgresql://"),
        ("redis", "url", "localhost:6379", "cannot be read"),
        ("redis", "url", "NO_SUCH_NAME", "no environment variable is named NO_SUCH_NAME"),
    ],
)
def test_an_address_of_something_else_is_named_by_its_scheme(name, option, given, expected):
    """No more of it is shown: there may be a password in it."""
    with pytest.raises(ConfigError, match=expected) as refused:
        get_checkpoint_store(name, **{option: given})
    assert "hush" not in str(refused.value)


def test_a_pause_that_takes_no_answer() -> None:
    """The error of a turn says that a resume is enough, and names no key."""
    graph = StateGraph("press", store=MemoryStore(), preserve=True)
    graph.add_node("print", lambda state: state.paused("the press is busy"))
    graph.set_entry_point("print")
    graph.set_exit_point("print")
    graph.turn("poster", {"copies": 1})

    with pytest.raises(AnswerError, match=r"at node 'print' \(the press is busy\)\. resume\('poster'\) goes on$"):
        graph.turn("poster", {"copies": 2})
