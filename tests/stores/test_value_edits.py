"""A row holds what has changed inside values: it is small, it is exact, and a forged one is refused."""

import contextlib
import copy
import json
import random
import sqlite3
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from proof.nested import Editor, check
from proof.report import Report
from stategraph import CheckpointCorruptError, State
from stategraph._values.progress import Progress
from stategraph.errors import NotSerializableError
from stategraph.state import evolve
from stategraph.stores._codec.edits import edits_between
from stategraph.stores._rows.encoder import CheckpointEncoder
from stategraph.stores._rows.records import FORMAT
from stategraph.stores._rows.seals import Sealer
from stategraph.stores.base import Policy
from stategraph.stores.serializers import from_plain
from stategraph.stores.sqlite import SqliteStore
from stategraph.testing import is_same
from stategraph.testing.corpus import Order
from tests.conftest import make_store

TEXT = "x" * 1_000


@pytest.mark.parametrize("kind", ["memory", "sqlite", "disk", "postgres", "redis"])
def test_random_edits_come_back_exactly(kind, tmp_path):
    """Each step of a history is as it was saved, in values, types and order, whichever handle has saved and loaded."""
    seed = random.randrange(10**6)
    report = Report(f"seed {seed}")
    check(lambda: make_store(kind, tmp_path), 150, random.Random(seed), report)
    assert report.holds, str(report)


def with_text(number):
    return {"role": "user", "text": f"{number}{TEXT}", "number": number}


def gains(state, step):
    return state.set("texts", {**state["texts"], f"text {step}": f"{step}{TEXT}"})


def edits_last(state, step):
    return state.set("messages", [*state["messages"][:-1], {**state["messages"][-1], "text": f"{step}{TEXT}"}])


def edits_last_of_a_copy(state, step):
    messages = copy.deepcopy(state["messages"])
    messages[-1]["text"] = f"{step}{TEXT}"
    return state.set("messages", messages)


def slides(state, step):
    return state.set("messages", [*state["messages"][1:], with_text(step)])


def trims(state, step):
    return state.set("messages", state["messages"][10:])


def compacts(state, step):
    return state.set("messages", [state["messages"][0], with_text(step), *state["messages"][4:], with_text(-step)])


def edits_an_object(state, step):
    orders = copy.deepcopy(state["orders"])
    orders[step % len(orders)].items.append(step)
    return state.set("orders", orders)


MESSAGES = [with_text(number) for number in range(100)]
WORK: dict[str, Any] = {
    "a dict that gains 1 KB": ({"texts": {}}, gains, 100, 1_020),
    "the last message edited": ({"messages": MESSAGES}, edits_last, 40, 1_020),
    "the last message edited in a deep copy": ({"messages": MESSAGES}, edits_last_of_a_copy, 40, 1_020),
    "a window of messages": ({"messages": MESSAGES[:50]}, slides, 100, 1_040),
    "messages trimmed at the front": ({"messages": MESSAGES}, trims, 9, 0),
    "messages that become a summary": ({"messages": MESSAGES}, compacts, 30, 2_080),
    "an object among others": ({"orders": [Order(n, [TEXT]) for n in range(100)]}, edits_an_object, 40, 1_040),
}


@pytest.mark.parametrize("work", WORK)
def test_a_history_takes_at_most_three_times_the_bytes_that_change(work, tmp_path):
    """The rows of a full history, with the first one, take no more, at whichever step one stops."""
    data, change, steps, changes = WORK[work]
    state = State(data, run_id="run")
    with SqliteStore(tmp_path / "runs.db") as store:
        store.retain("run", Policy("full"))
        store.save(state)
        first = size_of(tmp_path / "runs.db")
        for step in range(1, steps + 1):
            state = evolve(change(state, step), step=step)
            store.save(state)
            if step >= 10:
                assert size_of(tmp_path / "runs.db") <= 3 * (first + step * changes)
        assert is_same(dict(store.load("run")), dict(state))


def size_of(path):
    """Return the bytes of the payloads of all rows."""
    with sqlite3.connect(path) as database:
        ((size,),) = database.execute("SELECT sum(bytes) FROM checkpoints")
    database.close()
    return size


def rows_of(*states, serializer="msgpack"):
    """Return the rows of consecutive States, and the encoder."""
    encoder, rows, base = CheckpointEncoder(Sealer(), serializer), [], None
    for state in states:
        row, base = encoder.encode(state, place=(state.step, 0), previous=base)
        rows.append(row)
    return encoder, rows


@pytest.mark.parametrize("serializer", ["msgpack", "json"])
def test_values_at_the_deepest_level_are_edited(serializer):
    """Edits nest values deeper in a row; what a State may hold may still be saved."""
    deepest: Any = 0
    for _ in range(99):
        deepest = [deepest]
    states = [State({"a": [1, {"b": 1}]}, run_id="run"), State({"a": [1, {"b": 1}, deepest[0]]}, run_id="run", step=1)]
    encoder, rows = rows_of(*states, serializer=serializer)
    assert is_same(dict(encoder.state("run", rows)), dict(states[1]))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (1, True),
        (1, 1.0),
        (0.0, -0.0),
        (Decimal("1.0"), Decimal("1.00")),
        ((1,), (1.0,)),
        ({"x": 1, "y": 2}, {"y": 2, "x": 1}),
    ],
)
def test_equal_values_of_other_types_are_edits(before, after):
    """What is equal and not the same is written, also deep inside, and also if all around it is the same."""
    around: list[Any] = [{"kept": TEXT, "n": [n, {"k": before}]} for n in range(100)]
    changed = copy.deepcopy(around)
    changed[70]["n"][1]["k"] = after
    states = [State({"a": around}, run_id="run"), State({"a": changed}, run_id="run", step=1)]
    encoder, rows = rows_of(*states)
    assert len(rows[1].payload) < 200
    assert is_same(dict(encoder.state("run", rows)), dict(states[1]))


FORGED = {
    "a key that is not there": [[["b"], [], {"x": 1}]],
    "a key to remove that is not there": [[[], ["b"], {}]],
    "a place that is not there": [[["list", 3], [], {}]],
    "a negative place": [[["list", -1], [], {"x": 1}]],
    "a place that is no int": [[["list", True], [], {"x": 1}]],
    "a key of a list": [[["list", "x"], [], {}]],
    "a place in a text": [[["text", 0], [], {}]],
    "items of a dict": [[["dict"], 0, 0, [1]]],
    "keys of a list": [[["list"], [], {"x": 1}]],
    "an end before the start": [[["list"], 2, 1, []]],
    "an end after the list": [[["list"], 0, 4, []]],
    "a negative start": [[["list"], -1, 2, []]],
    "a start that is no int": [[["list"], False, 2, []]],
    "items that are no list": [[["list"], 0, 1, "ab"]],
    "a range of items": [[["list"], 0, 1, range(10**12)]],
    "a path that is no list": [["list", 0, 1, []]],
    "a key that is a list": [[[["x"]], [], {}]],
    "too few parts": [[[]]],
    "too many parts": [[["list"], 0, 1, [], 5]],
    "no list": {"x": 1},
}


@pytest.mark.parametrize("serializer", ["msgpack", "json"])
@pytest.mark.parametrize("forged", FORGED)
def test_edits_that_do_not_fit_are_refused(forged, serializer):
    """A row with a seal that fits, and edits that no encoder writes, is damaged; nothing else is raised."""
    state = State({"a": {"list": [1, {}, 3], "dict": {}, "text": "abc"}}, run_id="run")
    encoder, rows = rows_of(state, state.set("n", 1) and evolve(state, step=1), serializer=serializer)
    kept = encoder.encoded([{}, {}, [], None, {"a": FORGED[forged]}])
    row = Sealer().seal("run", rows[1]._replace(encoding=kept[0], payload=kept[1]), rows[0].seal)
    with pytest.raises(CheckpointCorruptError, match="its step 1 cannot be restored"):
        encoder.state("run", [rows[0], row])


def test_edits_that_nest_without_end_are_refused():
    """Each row makes the value deeper; what is deeper than a State may be is damaged."""
    deep: dict[str, Any] = {}
    for _ in range(60):
        deep = {"x": deep}
    state = State({"a": deep}, run_id="run")
    encoder, rows = rows_of(state, evolve(state, step=1))
    kept = encoder.encoded([{}, {}, [], None, {"a": [[["x"] * 60, [], {"x": deep}]]}])
    row = Sealer().seal("run", rows[1]._replace(encoding=kept[0], payload=kept[1]), rows[0].seal)
    with pytest.raises(CheckpointCorruptError, match="nested deeper"):
        encoder.state("run", [rows[0], row])


def test_rows_have_the_fields_of_their_progress_that_differ():
    """A row repeats neither the progress nor the labels nor the structure, and a field that has gone is gone."""
    big = {f"key {n}": (TEXT,) for n in range(50)}
    first = State({"n": 1}, run_id="run", graph="g", labels={"l": TEXT}, progress=Progress(overtaken=big, turn=1))
    second = evolve(first, step=1, progress=Progress(overtaken=big, turn=2, spent={"usd": "1"}))
    third = evolve(first, step=2, progress=Progress(overtaken=big, next_node="x"))
    last = evolve(first, step=3, progress=None)
    encoder, rows = rows_of(first, second, third, last)

    assert [len(row.payload) < 100 for row in rows] == [False, True, True, True]
    for number, state in enumerate((first, second, third, last), 1):
        assert encoder.state("run", rows[:number]).progress == state.progress
        assert encoder.state("run", rows[:number]).labels == state.labels
    assert {row.format for row in rows} == {FORMAT}


def test_comparing_stays_within_bounds():
    """A value in which everything is new is written as a whole, and so is one with an item that cannot be compared."""
    assert edits_between([{"a": n} for n in range(1_000)], [{"a": -n - 1} for n in range(1_000)]) is None
    many = [{"id": n, "text": TEXT, "seen": False} for n in range(1_000)]
    edits = edits_between(many, [{**item, "seen": True} for item in many])
    assert edits is None
    edits = edits_between(many[:60], [{**item, "seen": True} for item in many[:60]])
    assert edits is not None
    assert len(edits) == 60
    assert edits_between({"a": [Decimal("sNaN"), 1]}, {"a": [Decimal("sNaN"), 2]}) is None


def test_one_query_of_the_docs_returns_the_newest_state(tmp_path):
    """With serializer="json" a page in any language can show a State: the query makes all kinds of changes."""
    query = (Path(__file__).parents[2] / "docs" / "inspecting.md").read_text().split("```sql\n")[1].split("```")[0]
    seed = random.randrange(10**6)
    editor = Editor(
        random.Random(seed),
        keys=["a", "b.c", "", "$type", "k[0]", "1"],
        atoms=[None, True, 1, 1.0, 0.1, 2**63, "a", "é"],
    )
    with SqliteStore(tmp_path / "runs.db", serializer="json") as store:
        store.retain("run", Policy("full"))
        state = State({"a": editor.value(), "$b": [{"c": editor.value()}], "gone": 1}, run_id="run")
        for step in range(30):
            data = {key: editor.edited(value) for key, value in state.items() if key != "gone"}
            state = State(data, run_id="run", step=step)
            store.save(state)
            with sqlite3.connect(tmp_path / "runs.db") as database:
                ((found,),) = database.execute(query, {"run": "run"})
            database.close()
            assert is_same(from_plain(json.loads(found)), dict(state)), seed


@pytest.mark.parametrize("serializer", ["msgpack", "json"])
@pytest.mark.parametrize("depth", [97, 98, 99])
def test_edits_of_objects_at_the_deepest_level_are_exported(serializer, depth, tmp_path):
    """A history that was saved can be exported, imported and redacted, however deep its edits nest values."""
    saved = []
    with SqliteStore(tmp_path / "runs.db", serializer=serializer) as store:
        store.retain("run", Policy("full"))
        for step in range(3):
            value: Any = step
            for level in range(depth):
                value = Order(level, [TEXT, value]) if level == depth - 3 else [value, TEXT]
            with contextlib.suppress(NotSerializableError):
                store.save(State({"a": value, "b": step}, run_id="run", step=step))
                saved.append((step, value))
        with SqliteStore(tmp_path / "imported.db") as imported:
            if saved:
                imported.import_runs(store.export_run("run"))
                store.redact("run", "b")
            for step, value in saved:
                assert is_same(imported.load("run", step)["a"], value)
                assert is_same(dict(store.load("run", step)), {"a": value})
