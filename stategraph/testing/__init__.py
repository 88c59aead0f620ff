"""Tools for tests of your graphs, and of your own store.

For graphs: `assert_resumes_everywhere`, `assert_upgrades`, `kill_at`, `fail_at` and `fixed`, and in pytest the fixtures
``memory_store`` and ``fixed_clock``. They need only stategraph; see the page "Test your graphs".

For stores, with the extra ``[testing]``::

    from stategraph.testing import CheckpointStoreContract

    class TestMyStore(CheckpointStoreContract):
        @pytest.fixture
        def store(self, tmp_path):
            store = MyStore(tmp_path)
            yield store
            store.close()
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from stategraph._values.sameness import is_same

if TYPE_CHECKING:
    from stategraph.testing.contract import CheckpointStoreContract
    from stategraph.testing.corpus import HOSTILE_RUN_IDS, KEPT_VALUES, RUN_IDS, UNKEPT_VALUES
    from stategraph.testing.crashing import Killed, MortalStore, assert_resumes_everywhere, fail_at, fixed, kill_at
    from stategraph.testing.recorded import assert_upgrades, recorded_store

__all__ = [
    "HOSTILE_RUN_IDS",
    "KEPT_VALUES",
    "RUN_IDS",
    "UNKEPT_VALUES",
    "CheckpointStoreContract",
    "Killed",
    "MortalStore",
    "assert_resumes_everywhere",
    "assert_upgrades",
    "fail_at",
    "fixed",
    "is_same",
    "kill_at",
    "recorded_store",
]


def __getattr__(name: str) -> Any:
    """Import a name when it is used: the contract needs pytest, tests of graphs do not."""
    for module in ("crashing", "recorded", "corpus", "contract") if name in __all__ else ():
        found = import_module(f"{__name__}.{module}")
        if hasattr(found, name):
            return getattr(found, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
