import pytest

from stategraph.stores.disk import DiskStore
from stategraph.stores.memory import MemoryStore
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
