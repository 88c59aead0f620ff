"""`redact` takes the values of a key out of everything that is stored of a run."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from stategraph import (
    CheckpointNotFoundError,
    ExecutionError,
    InterruptNode,
    MapNode,
    ParallelNode,
    RunBusyError,
    RunStatus,
    State,
    StateGraph,
    UnknownNameError,
    Updates,
)
from stategraph._values.provenance import ParentStep
from stategraph.errors import CheckpointError
from stategraph.stores import SqliteStore
from stategraph.stores.base import RetentionPolicy
from tests.conftest import make_store
from tests.scenarios import RUN, FourMethodStore, make_graph, reopened
from tests.stores.inside import kept_in

SECRET = "ada@lovelace.example"
NUMBER = 40_001_234_567
KINDS = ["sqlite", "disk", "postgres", "redis", "memory"]


@pytest.fixture(params=KINDS)
def store(request: Any, tmp_path: Path) -> Iterator[Any]:
    """Yield an empty store of each kind."""
    with make_store(request.param, tmp_path) as made:
        yield made


def secrets_in(store: Any, folder: Path) -> set[str]:
    """Return the secrets that a store keeps, in any of the forms in which it writes them."""
    forms = {SECRET: SECRET.encode(), "number": NUMBER.to_bytes(8), "digits": str(NUMBER).encode()}
    kept = kept_in(store, folder)
    return {name for name, form in forms.items() if form in kept}


def inner(store: Any) -> StateGraph:
    """Return a graph that asks about what it gets under another name."""
    nodes = {"look": lambda state: {"seen": state["person"]}, "ask": InterruptNode("seen", response_param="ok")}
    return make_graph(nodes, name="inner", store=store)


def graph_of(store: Any, retention: str = "full", refused: str = SECRET) -> StateGraph:
    """Return a graph whose nodes use the key in every way; its last map fails with the text of a refused item."""

    def note(state: State, context: Any) -> dict[str, Any]:
        context.status(f"writing to {state['email'][-1]}")
        context.effect("mail", lambda: {"to": state["email"][-1]})
        return {"email": [*state["email"], f"{SECRET} again"], "length": len(state["email"])}

    def change(state: State) -> dict[str, Any]:
        return {"email": [{"address": SECRET, "number": NUMBER, "raw": SECRET.encode()}]}

    def emit(state: State) -> Any:
        yield ("chunk", {"email": SECRET})
        yield Updates({"emitted": True})

    def last(item: str, context: Any) -> dict[str, Any]:
        context.status(f"at {item}")
        context.effect("look", lambda: f"found {SECRET}")
        if item == refused:
            raise ValueError(f"no {item} in the register")
        return {"email": SECRET, "item": 1}

    nodes = {
        "note": note,
        "change": change,
        "branches": ParallelNode({"left": lambda state: {"left": 1}, "right": lambda state: {"right": 1}}),
        "nested": inner(store).as_node(inputs={"person": "email"}, outputs={"ok": "ok"}),
        "emit": emit,
        "map": MapNode(last, "items", "found"),
        "end": lambda state: {"done": "email" in state},
    }
    return make_graph(nodes, store=store, retention=retention, preserve=True)


def asked(store: Any, retention: str = "full") -> StateGraph:
    """Return the graph, after its nested graph has asked, with messages in its inbox."""
    graph = graph_of(store, retention)
    state = graph.execute(State({"email": [SECRET], "items": ["x", SECRET], "else": 7}, run_id=RUN))
    assert state.status == "paused"
    graph.send(RUN, {"email": [SECRET], "more": 1})
    graph.send(RUN, {"email": [SECRET], "named": 1}, key="m")
    return graph


@pytest.mark.parametrize("retention", ["full", "latest"])
def test_a_run_that_waits(store: Any, tmp_path: Path, retention: str) -> None:
    """Its rows, deltas, pauses, messages and nested runs have no value of the key; its history has the redaction; and
    it goes on, with another value if a node needs one."""
    asked(store, retention)
    assert secrets_in(store, tmp_path) >= {SECRET}

    store.redact(RUN, "email", by="dpo")
    store.redact(RUN, "items", by="dpo")

    assert secrets_in(store, tmp_path) == set()
    assert store.verify().damaged == ()
    rows = store.history(RUN)
    assert [(row.kind, row.by, row.status) for row in rows][-1] == ("redact", "dpo", "paused")
    assert {*map(len, [store.load(RUN, row.step, row.revision) for row in rows])} <= {1, 2, 4}
    with pytest.raises(KeyError, match=r"'email'.*it was redacted"):
        store.load(RUN)["email"]
    graph = graph_of(reopened(store), retention)
    state = graph.resume(RUN, {"ok": True, "email": ["new"], "items": ["x"]})
    assert (state["more"], state["named"], state["email"], state["done"]) == (1, 1, ["new"], True)
    assert len(rows) == (1 if retention == "latest" else 7)


@pytest.mark.parametrize("retention", ["full", "latest"])
def test_a_run_that_failed(store: Any, tmp_path: Path, retention: str) -> None:
    """Its errors, effects, statuses, chunks and finished parts have no value of the key; finished parts stay."""
    asked(store, retention)
    with pytest.raises(ExecutionError, match=SECRET):
        graph_of(store, retention).resume(RUN, {"ok": True})
    assert secrets_in(store, tmp_path) >= {SECRET}

    store.redact(RUN, "email", by="dpo")
    store.redact(RUN, "items")

    assert secrets_in(store, tmp_path) == set()
    assert "no <email, redacted>" in store.load(RUN).error.message
    assert store.verify().damaged == ()
    state = graph_of(store, retention, refused="").resume(RUN, {"items": ["x", "y"]})
    assert state["done"] is False
    assert [part["item"] for part in state["found"]] == [1, 1]
    store.redact(RUN, "found")
    store.close()
    assert secrets_in(store, tmp_path) == set()


def test_a_complete_run(store: Any, tmp_path: Path) -> None:
    """It stays complete. Its forks, and other runs, stay as they are; a fork of its new history has no value."""
    for run_id in (RUN, "other"):
        store.retain(run_id, RetentionPolicy("full"))
        for step in range(1, 4):
            status = RunStatus.COMPLETED if step == 3 else RunStatus.ACTIVE
            store.save(State({"a": [SECRET] * step, "n": step}, run_id=run_id, step=step, status=status))
    store.fork(RUN, "before", 2)

    store.redact(RUN, "a")

    assert store.load(RUN).status == "completed"
    assert [dict(store.load(RUN, step)) for step in (1, 2, 3)] == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert [store.load(run_id, 2)["a"] for run_id in ("other", "before")] == [[SECRET] * 2] * 2
    assert "a" not in store.fork(RUN, "after", 2)
    assert store.runs(prefix=RUN)[0].kind == "redact"
    for run_id in ("other", "before"):
        store.redact(run_id, "a")
    assert secrets_in(store, tmp_path) == set()
    assert store.rollback(RUN, 2)["n"] == 2
    store.delete("other")
    assert store.verify().damaged == ()


def test_a_deleted_run(store: Any, tmp_path: Path) -> None:
    """Nothing of it is in the store, while it is open and after it is closed."""
    asked(store)
    with pytest.raises(ExecutionError):
        graph_of(store).resume(RUN, {"ok": True})
    assert secrets_in(store, tmp_path) >= {SECRET}

    store.delete(RUN)

    assert secrets_in(store, tmp_path) == set()
    store.close()
    assert secrets_in(store, tmp_path) == set()


def test_an_answer_that_waits_makes_its_run_due(store: Any, tmp_path: Path) -> None:
    """A redaction neither loses it nor delays it; the answers that were taken in have no value of the key."""
    nodes = {"one": InterruptNode("q", response_param="a"), "two": InterruptNode("q", response_param="b")}
    graph = make_graph(nodes, store=store, preserve=True)
    graph.execute(State({"q": "?", "c": NUMBER}, run_id=RUN))
    graph.answer(RUN, SECRET)
    graph.resume(RUN)
    graph.answer(RUN, "yes")

    store.redact(RUN, "a")
    store.redact(RUN, "c")

    assert secrets_in(store, tmp_path) == set()
    assert [run.run_id for run in store.runs(overdue=True)] == [RUN]
    assert graph.resume(RUN)["b"] == "yes"


def test_what_is_refused(store: Any) -> None:
    """A run at work, an unknown run and an unknown key; nothing changes. A key may be redacted twice."""
    raised: list[BaseException] = []

    def node(state: State) -> dict[str, Any]:
        with pytest.raises(RunBusyError) as busy:
            store.redact(RUN, "a")
        raised.append(busy.value)
        return {"b": 1}

    make_graph({"node": node}, store=store, preserve=True).execute(State({"a": 1}, run_id=RUN))
    assert len(raised) == 1
    before = store.history(RUN)
    with pytest.raises(UnknownNameError, match="did you mean 'a'"):
        store.redact(RUN, "aa")
    with pytest.raises(TypeError, match="by"):
        store.redact(RUN, "a", by=5)
    with pytest.raises(TypeError, match=r"the key is a str, not \['a', 'b'\]: redact one key at a time"):
        store.redact(RUN, ["a", "b"])
    with pytest.raises(CheckpointNotFoundError):
        store.redact("none", "a")
    assert store.history(RUN) == before
    store.redact(RUN, "a")
    store.redact(RUN, "a")
    assert dict(store.load(RUN)) == {"b": 1}
    with pytest.raises(CheckpointError, match="cannot redact"):
        four = FourMethodStore()
        four.save(State({"a": 1}, run_id=RUN))
        four.redact(RUN, "a")


def test_a_signed_store_of_values_of_unknown_classes(tmp_path: Path) -> None:
    """The rows are signed again, and what this process cannot construct stays as it was stored."""
    program = (
        "import sys, attrs, stategraph\nfrom stategraph.stores import SqliteStore, Policy\n"
        "@stategraph.register_type(name='lost.Thing')\n@attrs.frozen\nclass Thing:\n    text: str\n"
        "with SqliteStore(sys.argv[1], sign_with=lambda: b'k' * 32) as store:\n"
        "    store.retain('run', Policy('full'))\n    for step in (1, 2):\n"
        f"        data = {{'email': Thing('{SECRET}'), 'thing': Thing('kept'), 'n': step}}\n"
        "        store.save(stategraph.State(data, run_id='run', step=step))\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "runs.db")], check=True, timeout=300)
    with SqliteStore(tmp_path / "runs.db", sign_with=lambda: b"k" * 32) as store:
        store.redact(RUN, "email")

        assert store.verify().damaged == ()
        shown = store.load(RUN, 1, unknown="opaque")
        assert (sorted(shown), shown["thing"].type, shown["n"]) == (["n", "thing"], "lost.Thing", 1)
        assert secrets_in(store, tmp_path) == set()


def test_an_end_in_the_middle(tmp_path: Path) -> None:
    """A process that is killed while it redacts leaves all of the key or nothing of it, and the next call finishes."""
    program = (
        "import os, signal, sys\nfrom stategraph.stores import SqliteStore\n"
        "from tests.stores.inside import connection_of\nleft = iter(range(int(sys.argv[2])))\n"
        "with SqliteStore(sys.argv[1]) as store:\n"
        "    end = lambda _: os.kill(os.getpid(), signal.SIGKILL) if next(left, None) is None else None\n"
        "    connection_of(store).set_trace_callback(end)\n    store.redact('run', 'email')\n"
    )
    file, found = tmp_path / "runs.db", set[bool]()
    for statements in itertools.count(3, 8):
        with SqliteStore(file) as store:
            store.delete(RUN)
            store.retain(RUN, RetentionPolicy("full"))
            for step in range(1, 9):
                store.save(State({"email": SECRET * 500 * step, "n": step}, run_id=RUN, step=step))
        ended = subprocess.run([sys.executable, "-c", program, str(file), str(statements)], timeout=300, check=False)
        with SqliteStore(file) as store:
            has_key = {"email" in store.load(RUN, step) for step in range(1, 9)}
            found |= has_key
            assert len(has_key) == 1
            assert store.verify().damaged == ()
            store.redact(RUN, "email")
            assert secrets_in(store, tmp_path) == set()
        if ended.returncode == 0:
            break
        assert ended.returncode == -signal.SIGKILL
    assert found == {True, False}


@pytest.mark.parametrize("run_id", [RUN, f"{RUN}/#1/inner"])
def test_edits_inside_values_are_redacted(store: Any, tmp_path: Path, run_id: str) -> None:
    """A history whose rows edit values inside has nothing of the key, and all of the others; numbers stay."""
    people = [{"name": f"{n}", "notes": ["x" * 500]} for n in range(20)]
    others = [{"title": f"about {n}", "parts": ["y" * 500, n + 100]} for n in range(20)]
    state = State({"secret": people, "kept": others}, run_id=RUN)
    runs = [state] if run_id == RUN else [state, attrs.evolve(state, run_id=run_id, step=1, parent=ParentStep(RUN, 0))]
    for run in runs:
        store.retain(run.run_id, RetentionPolicy("full"))
        store.save(run)
    saved = []
    for step in range(2, 8):
        notes = [{**people[step], "notes": [SECRET, step]}, *people[1:step]]
        state = attrs.evolve(state, run_id=run_id, parent=runs[-1].parent, step=step).update(
            secret=notes, kept=[*others[step:], {"title": "new"}]
        )
        saved.append(state)
        store.save(state)

    store.redact(RUN, "secret")

    assert SECRET.encode() not in kept_in(store, tmp_path)
    assert [dict(store.load(run_id, state.step)) for state in saved] == [{"kept": state["kept"]} for state in saved]


@pytest.mark.parametrize("secret", [{"type": "card", "value": SECRET, "name": "Ada"}, ["tuple", "object", SECRET]])
def test_a_value_with_the_words_of_a_format_is_redacted(store: Any, tmp_path: Path, secret: Any) -> None:
    """Messages stay messages with their keys, and lists of nested runs stay lists, when a text of the value is also one
    that a store writes around other values."""

    def fails(_: State) -> dict[str, Any]:
        raise ValueError(f"no {SECRET}")

    nodes = {
        "begin": lambda state: {"seen": [(1, "a"), (2, SECRET)]},
        "go on": lambda state: {"seen": [*state["seen"], (3, "c")]},
        "fail": fails,
    }
    nested = make_graph(nodes, name="inner", store=store, retention="full")
    graph = make_graph(
        {"nested": nested.as_node(outputs={"seen": "seen"})}, store=store, retention="full", preserve=True
    )
    with pytest.raises(ExecutionError):
        graph.execute(State({"secret": secret}, run_id=RUN))
    graph.send(RUN, {"name": (1, "b"), "kept": {1: (2,)}}, key="m")

    store.redact(RUN, "secret")

    (message,) = (entry for entry in store.entries(RUN) if entry.kind == "message")
    assert message.value == {"name": (1, "b"), "kept": {1: (2,)}}
    assert store.load(f"{RUN}/#1/nested")["seen"] == [(1, "a"), (2, "<secret, redacted>"), (3, "c")]
    assert SECRET.encode() not in kept_in(store, tmp_path)


@pytest.mark.parametrize("key", ["secret", "$secret", "\ud800"])
def test_keys_that_no_format_writes_as_they_are_can_be_redacted(store: Any, tmp_path: Path, key: str) -> None:
    """A key is found in each row, also beside one that JSON cannot hold, and in rows that remove it."""
    store.retain(RUN, RetentionPolicy("full"))
    others: list[dict[str, Any]] = [{"a": 1}, {"a": 1, "\udfff": [1]}, {"a": 1, "\udfff": [1, 2]}, {"a": 1}]
    kept = [{**other, key: SECRET * step} for step, other in enumerate(others)] + [{"a": 1}]
    for step, data in enumerate(kept):
        store.save(State(data, run_id=RUN, step=step))

    store.redact(RUN, key)

    assert [dict(store.load(RUN, step)) for step in range(5)] == [*others, {"a": 1}]
    assert SECRET.encode() not in kept_in(store, tmp_path)
    assert store.verify().damaged == ()


def test_a_run_that_is_rolled_back_knows_what_was_redacted(store: Any) -> None:
    """A node that needs the key fails with an error that says why it is missing; the key can be redacted again."""
    graph = make_graph({"read": lambda state: {"n": state["secret"]}}, store=store, retention="full", preserve=True)
    graph.execute(State({"secret": SECRET, "a": 1}, run_id=RUN))
    store.redact(RUN, "secret")
    store.rollback(RUN, 0)

    with pytest.raises(ExecutionError, match="it was redacted"):
        graph.resume(RUN)
    store.redact(RUN, "secret")
