"""`changed_since` reports each change by any process, and nothing else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import stategraph
from stategraph import State
from stategraph.stores import DiskStore, SqliteStore

STORES = {"sqlite": (SqliteStore, "runs.db"), "disk": (DiskStore, "runs")}


@pytest.fixture(params=STORES)
def opened(request, tmp_path):
    """Return what opens a store of a kind; all are closed at the end."""
    kind, name = STORES[request.param]
    stores = []

    def open_one(**options):
        stores.append(kind(tmp_path / name, **options))
        return stores[-1]

    yield open_one
    for store in stores:
        store.close()


def test_writes_of_other_handles_and_processes_are_noticed(opened):
    """A store that also writes and a read-only store both notice writes of others."""
    store = opened()
    store.save(State(run_id="a", step=1))
    store.close()
    writer, reader = opened(), opened(read_only=True)
    tokens = [one.changed_since(None) for one in (writer, reader)]
    program = (
        "import sys\nfrom stategraph import State, stores\n"
        "with getattr(stores, sys.argv[1])(sys.argv[2]) as store: store.save(State(run_id='b', step=1))"
    )
    command = [sys.executable, "-c", program, type(writer).__name__, str(writer.path)]
    root = str(Path(stategraph.__file__).parents[1])

    for change in (
        lambda: opened().save(State(run_id="c", step=1)),
        lambda: subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": root}),
        lambda: writer.delete("a"),
    ):
        change()
        newer = [one.changed_since(token) for one, token in zip((writer, reader), tokens, strict=True)]
        assert None not in newer
        assert len(writer.runs()) == len(reader.runs())
        assert [one.changed_since(token) for one, token in zip((writer, reader), newer, strict=True)] == [None, None]
        tokens = newer


def test_a_file_at_rest_that_a_writer_opens_goes_on_being_looked_at(opened):
    """The reader was there first, and opens the file again."""
    first = opened()
    first.save(State(run_id="a", step=1))
    first.close()
    reader = opened(read_only=True)
    token = reader.changed_since(None)

    writer = opened()
    for step in range(2, 5):
        writer.save(State(run_id="a", step=step))
        newer = reader.changed_since(token)
        assert newer not in (None, token)
        assert reader.changed_since(newer) is None
        assert reader.load("a").step == step
        token = newer
