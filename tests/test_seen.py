"""`redact=` of a store: what people see of values. What is stored is unaffected."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from stategraph import (
    CheckpointConfig,
    ConfigError,
    Event,
    ExecutionError,
    GraphConfig,
    InterruptNode,
    Observer,
    State,
    StateGraph,
    get_checkpoint_store,
    get_observer,
)
from stategraph.picture import picture_of_run
from stategraph.stores import SqliteStore
from stategraph.stores._seen import as_seen
from stategraph.stores.memory import MemoryStore
from stategraph.web import app, events
from tests.cli.shop import call
from tests.scenarios import RUN, make_graph
from tests.web.conftest import let_in

SECRET = "ada@lovelace.example"
PRIVACY = """
def shown(key, value):
    return "hidden" if key in ("email", "broken") else value
"""
TOML = """
name = "flow"
[checkpoint]
store = "sqlite"
[checkpoint.options]
path = "runs.db"
redact = "privacy_of_tests:shown"
"""


def hides(key: str, value: Any) -> Any:
    """Show another value of one key."""
    return "hidden" if key == "email" else value


def graph_of(store: Any, observer: Any = None) -> StateGraph:
    """Return a graph that shows the key to people in every way."""

    def fail(state: State, context: Any) -> Any:
        context.status(f"writing to {state['email']}")
        yield {"email": state["email"], "other": "chunk"}
        raise ValueError(f"no {state['email']} in the register")

    nodes = {"ask": InterruptNode("email", response_param="ok", reason="is it right?"), "fail": fail}
    policies = {"fail": {"persist_chunks": True}}
    return make_graph(nodes, store=store, observer=observer, retention="full", preserve=True, policies=policies)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a store of a run that waits and one that has failed, and a configuration that names it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "privacy_of_tests.py").write_text(PRIVACY, encoding="utf-8")
    (tmp_path / "graph.toml").write_text(TOML, encoding="utf-8")
    with SqliteStore("runs.db") as store:
        for run_id in ("waits", "failed"):
            graph_of(store).execute(State({"email": SECRET, "plain": "seen", "n": 1}, run_id=run_id))
            store.update(run_id, {"email": SECRET + "!", "n": 2})
        with pytest.raises(ExecutionError):
            graph_of(store).resume("failed", {"ok": True})
    return tmp_path


LOOKS = [
    *(["runs"], ["show", "waits"], ["show", "failed"], ["show", "failed", "--key", "email"], ["history", "failed"]),
    *(["diff", "waits", "0", "0"], ["diff", "failed", "0", "1"], ["export", "--all"], ["draw", "failed"]),
    ["fork", "waits", "copy"],
]


@pytest.mark.parametrize("look", LOOKS, ids=" ".join)
def test_the_command_line(look: list[str], folder: Path) -> None:
    """Each command that looks shows the other value, for people and as JSON; an export leaves the key out."""
    for more in ([], ["--json"]):
        if look[0] == "fork":
            look = [*look[:2], f"copy{len(more)}"]
        found = call("--config", "graph.toml", *look, *more)
        assert found.code == 0, found.err
        assert SECRET not in found.out + found.err
    with SqliteStore("runs.db") as store:
        assert store.load("waits")["email"] == SECRET + "!"
    if look[:2] == ["show", "waits"]:
        assert ('"hidden"' in found.out, '"seen"' in found.out) == (True, True)


def test_the_page(folder: Path) -> None:
    """It has the function of the store, or that of a graph; pictures have that of the store."""
    with SqliteStore("runs.db", redact=hides) as store, SqliteStore("runs.db") as plain:
        for page in (let_in(app(store, [])), let_in(app(plain, [graph_of(store)]))):
            texts = [
                page.get(address, params={"id": run_id, "key": "email"}).text
                for address in ("/", "/run", "/picture.svg", "/value")
                for run_id in ("waits", "failed")
            ]
            assert SECRET not in "".join(texts)
            assert sum("hidden" in text for text in texts) >= 4
        for picture in (graph_of(store).picture("failed"), picture_of_run(store, "failed")):
            assert SECRET not in picture.to_html() + picture.to_mermaid()


def test_an_export_can_be_imported(folder: Path) -> None:
    """The copy has no such key; with the store as it is, everything."""
    with SqliteStore("runs.db", redact=hides) as store, SqliteStore("other.db") as other:
        lines = [line for run_id in ("waits", "failed") for line in store.export_run(run_id)]
        assert SECRET not in "".join(lines)
        assert other.import_runs(lines) == ["waits", "failed"]
        assert dict(other.load("waits")) == {"plain": "seen", "n": 2}
        assert store.load("waits")["email"] == SECRET + "!"


def test_events_and_logs(capsys: pytest.CaptureFixture[str]) -> None:
    """Errors, reasons and chunks in events have the other value; nodes and callers get the stored one."""
    found: list[Event] = []

    class Recorder(Observer):
        def on_event(self, event: Event) -> None:
            found.append(event)
            get_observer("structlog").on_event(event)

    store = MemoryStore(redact=hides)
    graph = graph_of(store, Recorder())
    state = graph.execute(State({"email": SECRET}, run_id=RUN))
    assert state.pause is not None
    assert (state.pause.value, state["email"]) == (SECRET, SECRET)
    with pytest.raises(ExecutionError, match=SECRET):
        graph.resume(RUN, {"ok": True})

    assert {"node.chunk", "node.error", "graph.error", "graph.pause"} < {event.type for event in found}
    assert SECRET not in repr([event.data for event in found])
    assert SECRET not in "".join(capsys.readouterr())
    assert [event.data["chunk"] for event in found if event.type == "node.chunk"] == [
        {"email": "hidden", "other": "chunk"}
    ]


def test_server_sent_events() -> None:
    """Chunks and States have the other value."""
    store = MemoryStore(redact=hides)
    graph = graph_of(store)
    graph.execute(State({"email": SECRET, "plain": "seen"}, run_id=RUN))
    with pytest.raises(ExecutionError):
        graph.resume(RUN, {"ok": True})
    client = TestClient(Starlette(routes=[Mount("/events", events(graph, shown=dict))]))
    text = client.get(f"/events/{RUN}").text
    assert SECRET not in text
    assert '"email": "hidden", "plain": "seen"' in text
    assert '"chunk": {"email": "hidden", "other": "chunk"}' in text


@pytest.mark.parametrize("redact", [5, "nowhere:shown", "json:nothing", lambda key: key, "no name"])
def test_what_is_no_function(redact: Any, tmp_path: Path) -> None:
    """It is refused when the store is opened."""
    with pytest.raises(ConfigError, match=r"options\.redact"):
        get_checkpoint_store("sqlite", path=tmp_path / "runs.db", redact=redact)


def test_a_function_that_raises(folder: Path) -> None:
    """The value is not shown, and neither is the text of the error."""

    def broken(key: str, value: Any) -> Any:
        raise ValueError(value)

    with SqliteStore("runs.db", redact=broken) as store:
        page = let_in(app(store, []))
        text = page.get("/run", params={"id": "waits"}).text
        assert SECRET not in text
        assert "not shown: redact raised ValueError" in text


def test_a_damaged_run_is_listed(folder: Path) -> None:
    """Its error is not shown, as what it quotes is not known; the other runs are listed as ever."""
    with closing(sqlite3.connect("runs.db")) as database, database:
        at = "(SELECT number FROM run WHERE run_id = 'failed')"
        database.execute(f"UPDATE checkpoint SET payload = payload || x'00' WHERE id >> 32 = {at}")
    for more in ([], ["--json"]):
        found = call("--config", "graph.toml", "runs", *more)
        assert ("failed" in found.out, "waits" in found.out, SECRET in found.out + found.err) == (True, True, False)


def test_a_configuration(folder: Path) -> None:
    """A graph gets it with its store; the configuration does not show the function in its repr as anything but that."""
    checkpoint = CheckpointConfig(store="sqlite", options={"path": "other.db", "redact": hides})
    graph = StateGraph(GraphConfig("other", checkpoint=checkpoint))
    assert graph.store.shown is not None
    assert graph.store.shown("email", 1) == "hidden"
    graph.store.close()


@pytest.mark.parametrize(
    "value", [Decimal("1234.56"), date(1990, 5, 17), datetime(1990, 5, 17, 3, 4, tzinfo=UTC), UUID(int=1990), 1990.5]
)
def test_values_that_are_no_texts(value: Any, tmp_path: Path) -> None:
    """What an error quotes of them is not seen either, and is gone after a redaction."""

    def fail(state: State) -> Any:
        raise ValueError(f"no {state['email']}, and no {str(state['email']).replace(' ', 'T')}")

    with SqliteStore(tmp_path / "runs.db", redact=hides) as store:
        with pytest.raises(ExecutionError):
            make_graph({"fail": fail}, store=store).execute(State({"email": value}, run_id=RUN))
        for shown, mark in ((as_seen(store), "hidden"), (store, "<email, redacted>")):
            if shown is store:
                store.redact(RUN, "email")
            error = shown.load(RUN).error
            assert error is not None
            assert error.message == f"no {mark}, and no {mark}"


def test_a_configuration_without_the_name_of_a_function(folder: Path) -> None:
    """A command names the option, also if there is no module to import."""
    (folder / "graph.toml").write_text(TOML.replace("privacy_of_tests:shown", ""), encoding="utf-8")
    refused = call("runs")
    assert refused.code == 2
    assert "checkpoint.options.redact: '' is not allowed" in refused.err
