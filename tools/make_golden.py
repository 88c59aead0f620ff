"""Make the golden files of the format: stores that every later version of stategraph must still load.

``python tools/make_golden.py`` writes ``tests/golden/format-N.db`` and ``tests/golden/format-N-disk`` for the version
of the format that this is. They are made once, when a format is new, and never again.
"""

import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from stategraph import State
from stategraph.provenance import ErrorInfo
from stategraph.stores.disk import DiskStore
from stategraph.stores.policy import Policy
from stategraph.stores.row_store import RowStore
from stategraph.stores.rows import FORMAT
from stategraph.stores.sqlite import SqliteStore
from stategraph.structure import EdgeStructure, GraphStructure
from stategraph.testing import KEPT_VALUES, fixed

GOLDEN = Path(__file__).parents[1] / "tests" / "golden"
SERIALIZERS = ("msgpack", "json")
STEPS = 12


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


def fill(store: RowStore, serializer: str) -> None:
    """Save the runs of a serializer: values, a history, and a fork of it."""
    with fixed():
        store.save(values_state(f"values/{serializer}"))
        store.retain(f"history/{serializer}", Policy("full"))
        for state in history_states(f"history/{serializer}"):
            store.save(state)
        store.fork(f"history/{serializer}", f"fork/{serializer}", 7)


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


if __name__ == "__main__":
    main()
