"""Fixtures of pytest, which finds them where stategraph is installed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from stategraph.stores.memory import MemoryStore
    from stategraph.testing.crashing import FixedClock


@pytest.fixture
def memory_store() -> MemoryStore:
    """Return a new memory store, for ``StateGraph(..., store=memory_store)``."""
    from stategraph.stores.memory import MemoryStore  # imported when used: pytest loads this file in every project

    return MemoryStore()


@pytest.fixture
def fixed_clock() -> Iterator[FixedClock]:
    """Fix time and run ids for the whole test, as `stategraph.testing.fixed` does; ``advance`` lets time pass."""
    from stategraph.testing.crashing import fixed

    with fixed() as clock:
        yield clock
