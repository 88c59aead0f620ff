"""A signing store refuses rows that were not written with its key."""

from pathlib import Path

import attrs
import pytest

from stategraph import State
from stategraph.errors import CheckpointCorruptError, ConfigError
from stategraph.stores.base import Policy
from stategraph.stores.sqlite import SqliteStore


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs.db"


def saved(store, *steps, run_id="a", **data):
    for step in steps:
        store.save(State({"n": step, **data}, run_id=run_id, step=step, checkpoint_node=f"node-{step}"))


class TestSigning:
    @pytest.fixture
    def store(self, path):
        store = SqliteStore(path, sign_with=lambda: b"secret" * 4)
        store.retain("a", Policy("full"))
        yield store
        store.close()

    def opened(self, path, key=b"secret" * 4):
        return SqliteStore(path, sign_with=lambda: key)

    def test_signed_rows_are_loaded(self, store, path):
        """Another store object with the same key loads every kind of signed row."""
        saved(store, 1, 2, 3)
        store.save(attrs.evolve(store.load("a"), status="failed"))
        store.fork("a", "b", 2)
        store.rollback("a", 2)

        with self.opened(path) as other:
            assert (other.load("a").step, other.load("b").step, other.load("a", 1).step) == (2, 2, 1)

    def test_unsigned_rows_are_refused(self, path):
        """Though their checksum is right."""
        with SqliteStore(path) as unsigned:
            saved(unsigned, 1)
        way_out = "is not signed: it was saved without sign_with"
        with self.opened(path) as store, pytest.raises(CheckpointCorruptError, match=way_out):
            store.load("a")

    def test_rows_of_another_key_are_refused(self, store, path):
        """Rows of another key are refused as forged or signed with another key."""
        saved(store, 1)
        way_out = "not signed with this key: sign_with returned another key"
        with self.opened(path, b"guess" * 4) as other, pytest.raises(CheckpointCorruptError, match=way_out):
            other.load("a")

    def test_signed_rows_are_refused_without_a_key(self, store, path):
        """The error does not call signed rows damaged: it names sign_with as the way out."""
        saved(store, 1)
        with SqliteStore(path) as other, pytest.raises(CheckpointCorruptError, match=r"is signed, .* with sign_with"):
            other.load("a")

    def test_a_key_that_is_away(self, path):
        """An error of the function of the key is the cause; its text, which may hold the key, is not shown."""
        with (
            SqliteStore(path, sign_with=lambda: Path("away").read_bytes()) as store,
            pytest.raises(ConfigError, match=r"a function that gives the key; it raised FileNotFoundError$"),
        ):
            saved(store, 1)
