"""What authors of custom stores import in their own tests.

::

    from stategraph.testing import CheckpointStoreContract

    class TestMyStore(CheckpointStoreContract):
        @pytest.fixture
        def store(self, tmp_path):
            store = MyStore(tmp_path)
            yield store
            store.close()

It needs the extra ``stategraph[testing]``.
"""

from stategraph.testing.contract import CheckpointStoreContract
from stategraph.testing.corpus import HOSTILE_RUN_IDS, KEPT_VALUES, RUN_IDS, UNKEPT_VALUES, is_same
from stategraph.testing.fixed import fixed

__all__ = [
    "HOSTILE_RUN_IDS",
    "KEPT_VALUES",
    "RUN_IDS",
    "UNKEPT_VALUES",
    "CheckpointStoreContract",
    "fixed",
    "is_same",
]
