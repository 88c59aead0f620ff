"""Errors name the culprit and the way out."""

import asyncio
import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest

from stategraph import (
    AsyncNodeError,
    CheckpointConfig,
    ConfigError,
    ExecutionError,
    GraphConfig,
    InterruptNode,
    MapNode,
    ParallelNode,
    RetryPolicy,
    RunExistsError,
    State,
    StateGraph,
    get_checkpoint_store,
)
from stategraph._values.progress import Pause
from stategraph.errors import (
    AnswerError,
    CheckpointCorruptError,
    CheckpointSaveError,
    GraphError,
    StepConflictError,
)
from stategraph.stores.base import CheckpointStore, Policy
from stategraph.stores.memory import MemoryStore
from stategraph.stores.serializers import Serializer, register_serializer
from stategraph.stores.sqlite import SqliteStore
from tests.scenarios import make_graph, trace

KEY = b"0123456789abcdef"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@attrs.frozen
class Order:
    """What a node takes."""

    total: int = 0


def _key() -> bytes:
    return KEY


def _new_key() -> bytes:
    return KEY[::-1]


def _fails() -> bytes:
    raise LookupError("a secret")


class TestKeys:
    """sign_with and verify_with."""

    @pytest.mark.parametrize(
        ("function", "text"),
        [
            (lambda: "x" * 32, "its function returned a str, which is to be encoded"),
            (lambda: b"short", "its function returned 5 bytes"),
            (_fails, "a function that gives the key; it raised LookupError"),
        ],
    )
    def test_of_functions(self, tmp_path: Path, function: Any, text: str) -> None:
        """What is wrong is said, and nothing of the key is shown."""
        store = SqliteStore(tmp_path / "runs.db", sign_with=function)

        with pytest.raises(ConfigError, match=text) as caught:
            store.save(State(run_id="a"))

        assert "checkpoint.options.sign_with: " in str(caught.value)
        assert not any(shown in str(caught.value) for shown in ("xxx", "short'", "a secret"))
        store.close()

    def test_of_the_environment(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The variable is named."""
        monkeypatch.setenv("RUNS_KEY", "short")

        with pytest.raises(ConfigError, match="the environment variable RUNS_KEY holds 5 bytes"):
            SqliteStore(tmp_path / "runs.db", sign_with="RUNS_KEY")

    @pytest.mark.parametrize("entry", [5, "NOT_SET_ANYWHERE"])
    def test_of_a_list(self, tmp_path: Path, entry: Any) -> None:
        """The entry is named by its place."""
        with pytest.raises(ConfigError, match=r"options.verify_with\[1\]: "):
            SqliteStore(tmp_path / "runs.db", sign_with=lambda: KEY, verify_with=[lambda: KEY, entry])


@pytest.mark.parametrize(("keys", "name"), [((5, "answer"), "input_param"), (("shown", None), "response_param")])
def test_a_wrong_key_of_an_interrupt(keys: tuple[Any, Any], name: str) -> None:
    with pytest.raises(TypeError, match=rf"^{name}: .* is not allowed; the key of "):
        InterruptNode(*keys)


@pytest.mark.parametrize("what", ["inputs", "outputs"])
def test_a_border_function_without_an_answer(what: str) -> None:
    inner = make_graph({"a": trace("a")}, store=MemoryStore(), name="inner")
    graph = make_graph({"inner": inner.as_node(**{what: lambda state: None})}, store=MemoryStore())  # type: ignore[arg-type]

    with pytest.raises(ExecutionError, match=rf"its {what} are to be a mapping, not None \(NoneType\): return one"):
        graph.execute(State())


def test_a_stream_on_an_event_loop() -> None:
    async def work(state: State) -> dict[str, Any]:
        return {}

    graph = make_graph({"work": work}, store=MemoryStore())

    async def main() -> None:
        for start in (lambda: graph.stream(State()), lambda: graph.stream_resume("a")):
            with pytest.raises(AsyncNodeError, match=r"this thread: use 'graph.astream\(\.\.\.\)'"):
                start()
        with pytest.raises(AsyncNodeError, match=r"this thread: use 'await graph.aexecute\(\.\.\.\)'"):
            graph.execute(State())

    asyncio.run(main())


def test_a_configuration_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder that was looked in is named."""
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ConfigError, match=f"No such file or directory: '{tmp_path}/graph.toml'"):
        GraphConfig.from_file("graph.toml")


class TestOfSignedStores:
    """What a store with keys says where the key is the likely cause."""

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

    @pytest.mark.usefixtures("signed")
    def test_opening_it_without_a_key_warns(
        self, opened: Callable[..., CheckpointStore], caplog: pytest.LogCaptureFixture
    ) -> None:
        opened(sign_with=_key)
        assert caplog.records == []

        opened()

        (record,) = caplog.records
        assert "holds runs that are signed, and was opened without sign_with" in record.getMessage()

    def test_former_keys_alone(self, opened: Callable[..., CheckpointStore]) -> None:
        with pytest.raises(ConfigError, match=r"verify_with: .* with sign_with"):
            opened(verify_with=[_key])


@pytest.mark.skipif(os.name != "posix", reason="there are no such modes")
def test_a_folder_that_all_share_is_not_to_be_changed(tmp_path: Path) -> None:
    """As /tmp, which must stay as it is."""
    tmp_path.chmod(0o1777)

    with pytest.raises(ConfigError, match="take a folder of your own in it") as caught:
        get_checkpoint_store("disk", path=str(tmp_path))

    assert "chmod" not in str(caught.value)


def test_after_the_database_was_deleted_the_run_goes_on_in_a_fresh_one(tmp_path: Path) -> None:
    """As the error says: with the State that is in it, nothing is lost."""
    file, calls = tmp_path / "runs.db", list[str]()

    def call(name: str, state: State) -> dict[str, bool]:
        calls.append(name)
        if calls == ["a", "b"]:
            for path in tmp_path.iterdir():
                path.unlink()
        return {name: True}

    def made() -> StateGraph:
        nodes = {name: partial(call, name) for name in "abc"}
        return make_graph(nodes, store=SqliteStore(file), preserve=True)

    graph = made()
    with pytest.raises(CheckpointSaveError, match=r"continues by resume once error\.state is saved in it") as caught:
        graph.execute(State(run_id="r"))
    graph.store.close()
    fresh = made()
    assert caught.value.state is not None
    fresh.store.save(caught.value.state)

    assert dict(fresh.resume("r")) == {"a": True, "b": True, "c": True}
    assert calls == ["a", "b", "c"]
    fresh.store.close()


class TestOfStates:
    """What a State is not."""

    def test_an_attribute_that_is_a_key(self) -> None:
        with pytest.raises(AttributeError, match=r"no attribute 'a'; a key is read with state\['a'\]"):
            _ = State({"a": 1}).a  # type: ignore[attr-defined]
        with pytest.raises(AttributeError, match=r"no attribute 'b'$"):
            _ = State({"a": 1}).b  # type: ignore[attr-defined]

    @pytest.mark.parametrize("name", ["memory", "sqlite", "disk"])
    def test_a_store_saves_nothing_else(self, name: str, tmp_path: Path) -> None:
        options = {} if name == "memory" else {"path": str(tmp_path / "runs")}

        with pytest.raises(TypeError, match=r"a store saves a State, not a dict: State\(\{...\}\) makes one"):
            get_checkpoint_store(name, **options).save({"a": 1})  # type: ignore[arg-type]

    @pytest.mark.parametrize("kind", [MemoryStore, SqliteStore])
    def test_unknown_values_are_opaque_or_refused(self, kind: Any, tmp_path: Path) -> None:
        store = kind() if kind is MemoryStore else kind(tmp_path / "runs.db")
        store.save(State(run_id="r"))

        with store, pytest.raises(ValueError, match=r"unknown: 'opak' is not allowed; \"opaque\" is"):
            store.load("r", unknown="opak")

    def test_two_that_work_on_one_run(self) -> None:
        store = MemoryStore()
        store.save(State({"n": 1}, run_id="r", step=1))

        with pytest.raises(StepConflictError, match=r"another process or thread works on the run.*load the newest"):
            store.save(State({"n": 2}, run_id="r", step=1))


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
        (COMPLETE.resume, ["r"], {"wiat": 3}, r"'wiat' is no argument here; did you mean 'wait'\?"),
        (COMPLETE.resume, ["r"], {"approved": 3}, r"data goes into a mapping: \{'approved': \.\.\.\}"),
        (MapNode, [lambda: 1, "a", "b"], {}, r"a MapNode calls its function with an item: def function"),
        (MapNode, [1, "a", "b"], {}, r"not callable; a MapNode calls its function with an item"),
    ],
)
def test_a_wrong_argument(call: Callable[..., Any], arguments: list[Any], named: dict[str, Any], way_out: str) -> None:
    """The one that was meant is named, or how to say it."""
    with pytest.raises(TypeError, match=way_out):
        call(*arguments, **named)


def test_a_run_that_is_there() -> None:
    """There are ways to go on with it, and to begin again."""
    COMPLETE.execute(State(run_id="r"))

    with pytest.raises(RunExistsError, match=r"is completed; turn\('r', .* new input, execute\(store\.load\('r'\)\)"):
        COMPLETE.execute(State(run_id="r"))


class TestOfNodes:
    """What is wrong with a node is said where it is added, or names the part of it."""

    @pytest.mark.parametrize("annotation", [Order, "Order"])
    def test_an_object_in_a_graph_without_a_schema(self, annotation: Any) -> None:
        def node(order: Any) -> dict[str, int]:
            return {"total": order.total}

        node.__annotations__["order"] = annotation

        with pytest.raises(GraphError, match=r"node 'a' takes an Order, and gets a State: .*schema=Order"):
            make_graph({"a": node}, store=MemoryStore()).execute(State())

    def test_a_reducer_that_raises(self) -> None:
        node = ParallelNode(
            {"x": lambda _: {"k": 1}, "y": lambda _: {"k": "b"}}, reducers={"k": lambda one, other: one + other}
        )

        with pytest.raises(ExecutionError) as caught:
            make_graph({"a": node}, store=MemoryStore()).execute(State())

        assert caught.value.__cause__.__notes__ == [  # type: ignore[union-attr]
            "in reducers['k'], with the value of branch 'y' as the second"
        ]

    def test_an_item_that_pauses(self) -> None:
        node = MapNode(lambda _: State().paused("asks"), "items", "results")

        with pytest.raises(ExecutionError, match="an item cannot pause the run"):
            make_graph({"a": node}, store=MemoryStore()).execute(State({"items": [1]}))


def test_a_link_that_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")

    for name in ("sqlite", "disk"):
        with pytest.raises(ConfigError, match=r"is a link to .*nowhere, which is not there"):
            get_checkpoint_store(name, path=str(tmp_path / "link"))


def test_an_answer_that_is_missing_is_said_before_what_is_asked() -> None:
    error = AnswerError("r", Pause("waits for an answer", "ask", [*range(100)], "ok", NOON), "no answer is given")

    assert str(error).startswith(
        "run 'r': no answer is given; it waits at node 'ask' for an answer under 'ok'. The question "
    )


def test_what_is_damaged_can_be_put_back_or_deleted(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "runs.db")
    store.save(State({"n": 1}, run_id="r"))
    with sqlite3.connect(tmp_path / "runs.db") as database:
        database.execute("UPDATE checkpoint SET payload = zeroblob(3)")
    database.close()

    with pytest.raises(CheckpointCorruptError, match=r"put back a copy of the store, .* with store.delete\('r'\)"):
        store.load("r")
    store.close()


class _Salted(Serializer):
    """Gives other bytes each time, as a cipher with a random nonce does."""

    def dumps(self, plain: Any) -> bytes:
        return os.urandom(8) + json.dumps(plain).encode()

    def loads(self, payload: bytes) -> Any:
        return json.loads(payload[8:])


def test_a_serializer_may_give_other_bytes_each_time(tmp_path: Path) -> None:
    """A State can be saved again, forked and gone on with."""
    register_serializer("salted", _Salted())
    store = SqliteStore(tmp_path / "runs.db", serializer="salted")
    store.save(State({"n": [1]}, run_id="r", step=1))
    store.save(State({"n": [1, 2]}, run_id="r", step=2))
    store.close()

    store = SqliteStore(tmp_path / "runs.db", serializer="salted")
    newest = store.load("r")
    store.save(newest)
    store.fork("r", "copy")

    assert store.load("r") == newest
    assert store.load("copy")["n"] == [1, 2]
    store.close()


@pytest.mark.parametrize(
    ("name", "option", "given", "told"),
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
def test_an_address_of_something_else_is_named_by_its_scheme(name, option, given, told):
    """No more of it is shown: there may be a password in it."""
    with pytest.raises(ConfigError, match=told) as refused:
        get_checkpoint_store(name, **{option: given})
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize("name", ["sqlite", "disk"])
@pytest.mark.parametrize(
    ("path", "text"),
    [("C:\temp\runs.db", "in 'single quotes'"), ("sqlite:///runs.db", "and no URI")],
)
def test_a_path_that_is_none(name: str, path: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        get_checkpoint_store(name, path=path)


@pytest.mark.parametrize("wrong", ["yes", 1, None])
def test_read_only_is_true_or_false(wrong: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^checkpoint.options.read_only: "):
        get_checkpoint_store("sqlite", path=str(tmp_path / "runs.db"), read_only=wrong)
