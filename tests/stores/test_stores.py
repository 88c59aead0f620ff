import pytest

from stategraph.errors import CheckpointNotFoundError
from stategraph.ids import check_run_id
from stategraph.stores import CheckpointStore
from stategraph.stores.disk import DiskStore
from stategraph.stores.memory import MemoryStore
from stategraph.stores.sqlite import SqliteStore
from stategraph.testing import CheckpointStoreContract


class TestMemoryStore(CheckpointStoreContract):
    @pytest.fixture
    def store(self):
        return MemoryStore()


class TestDiskStore(CheckpointStoreContract):
    @pytest.fixture
    def store(self, tmp_path):
        store = DiskStore(tmp_path / "runs")
        yield store
        store.close()


class TestSqliteStore(CheckpointStoreContract):
    @pytest.fixture
    def store(self, tmp_path):
        store = SqliteStore(tmp_path / "runs.db")
        yield store
        store.close()


class FourMethods(CheckpointStore):
    """The smallest store there can be."""

    def __init__(self):
        self.states = {}

    def save(self, state):
        kept = MemoryStore()
        if state.run_id in self.states:
            kept.save(self.states[state.run_id].load(state.run_id))
        kept.save(state)
        self.states[state.run_id] = kept

    def amend(self, state):
        self.states[state.run_id].amend(state)

    def load(self, run_id, step=None):
        check_run_id(run_id)
        if run_id not in self.states:
            raise CheckpointNotFoundError(run_id, step=step)
        return self.states[run_id].load(run_id, step)

    def delete(self, run_id):
        self.states.pop(check_run_id(run_id), None)

    def list(self):
        return sorted(self.states)


class TestFourMethods(CheckpointStoreContract):
    keeps_history = False

    @pytest.fixture
    def store(self):
        return FourMethods()
