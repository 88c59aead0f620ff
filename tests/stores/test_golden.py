"""Stores that earlier versions of stategraph have made are loaded by this one, and go on."""

import runpy
import shutil
from pathlib import Path

import pytest

from stategraph import State
from stategraph.provenance import ParentStep
from stategraph.stores.disk import DiskStore
from stategraph.stores.sqlite import SqliteStore
from stategraph.testing import fixed, is_same

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"
MAKER = runpy.run_path(str(ROOT / "tools" / "make_golden.py"))
FILES = sorted(path for path in GOLDEN.iterdir() if path.name.startswith("format-"))


@pytest.fixture(params=FILES, ids=lambda path: path.name)
def store(request, tmp_path):
    copy = tmp_path / request.param.name
    if request.param.is_dir():
        shutil.copytree(request.param, copy)
    else:
        shutil.copy(request.param, copy)
    with DiskStore(copy) if copy.is_dir() else SqliteStore(copy) as store:
        yield store


def test_there_are_golden_files_of_every_store():
    assert {path.suffix for path in FILES} == {".db", ""}


@pytest.mark.parametrize("serializer", MAKER["SERIALIZERS"])
def test_values_and_provenance(store, serializer):
    """Everything is as it was saved, in values and in types."""
    with fixed():
        expected = MAKER["values_state"](f"values/{serializer}")

    loaded = store.load(f"values/{serializer}")

    assert len(loaded) >= 40
    for name, value in loaded.items():
        assert is_same(value, expected[name]), name
    for field in ("run_id", "checkpoint_node", "timestamp", "step", "status", "graph", "error", "fingerprint"):
        assert getattr(loaded, field) == getattr(expected, field), field


@pytest.mark.parametrize("serializer", MAKER["SERIALIZERS"])
def test_every_step_of_a_history(store, serializer):
    """Each of them, and of a fork; and the run goes on from there."""
    run_id = f"history/{serializer}"
    with fixed():
        expected = MAKER["history_states"](run_id)

    assert [row.step for row in store.history(run_id)] == list(range(1, MAKER["STEPS"] + 1))
    assert all(is_same(dict(store.load(run_id, state.step)), dict(state)) for state in expected)
    assert is_same(dict(store.load(f"fork/{serializer}")), dict(expected[6]))
    assert store.load(f"fork/{serializer}").parent == ParentStep(run_id, 7)
    store.save(State({**expected[-1], "new": True}, run_id=run_id, step=MAKER["STEPS"] + 1, graph="golden"))
    assert store.load(run_id)["new"] is True
    assert is_same(dict(store.load(run_id, 9)), dict(expected[8]))


def test_what_is_compressed(store):
    """The database has one such run."""
    pytest.importorskip("zstandard")
    if isinstance(store, SqliteStore):
        with fixed():
            assert store.load("compressed") == MAKER["compressed_state"]("compressed")
