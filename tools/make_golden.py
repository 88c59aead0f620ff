"""Make the golden files of the format: stores that every later version of stategraph must still load.

``python tools/make_golden.py`` writes ``tests/golden/format-N.db`` and ``tests/golden/format-N-disk`` for the version
of the format that this is. They are made once, when a format is new, and never again.
"""

import shutil
import sqlite3
import sys
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stategraph import State
from stategraph._values.progress import Origin, Part, Partial, Pause, Progress
from stategraph._values.provenance import EdgeStructure, ErrorInfo, GraphStructure, ParentStep
from stategraph.stores._rows.records import FORMAT
from stategraph.stores._rows.store import RowStore
from stategraph.stores.base import Policy
from stategraph.stores.disk import DiskStore
from stategraph.stores.sqlite import SqliteStore
from stategraph.testing import KEPT_VALUES, fixed

GOLDEN = Path(__file__).parents[1] / "tests" / "golden"
SERIALIZERS = ("msgpack", "json")
STEPS = 12
NOON = datetime(2024, 5, 29, 12, 0, 0, 1, tzinfo=UTC)


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
    with fixed():
        fill_waiting(store, serializer)


def make_sqlite(path: Path) -> None:
    """Make the database. One of its runs is compressed."""
    path.unlink(missing_ok=True)
    for serializer in SERIALIZERS:
        with SqliteStore(path, serializer=serializer) as store:
            fill(store, serializer)
    with SqliteStore(path, compress=True) as store, fixed():
        store.save(compressed_state("compressed"))
    shrink(path)


def make_disk(path: Path) -> None:
    """Make the folder."""
    shutil.rmtree(path, ignore_errors=True)
    for serializer in SERIALIZERS:
        with DiskStore(path, serializer=serializer) as store:
            fill(store, serializer)
    shrink(path / "cache.db")


def shrink(path: Path) -> None:
    """Give back the pages that nothing is on any more."""
    with closing(sqlite3.connect(path)) as database:
        database.execute("VACUUM")
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def main() -> None:
    """Make both, where there are none."""
    database, folder = GOLDEN / f"format-{FORMAT}.db", GOLDEN / f"format-{FORMAT}-disk"
    if database.exists() or folder.exists():
        sys.exit(f"{database.name} is there: golden files are made once; delete it if the format was never released")
    GOLDEN.mkdir(exist_ok=True)
    make_sqlite(database)
    make_disk(folder)
    for locks in GOLDEN.rglob("*owners"):  # who owns a run is not kept
        locks.unlink()


if __name__ == "__main__":
    main()
