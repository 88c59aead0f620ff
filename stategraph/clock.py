"""Where time and new ids come from: one place, so that both can be replaced.

``stategraph.testing.fixed_clock`` replaces them; nothing else should.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from uuid import uuid4

now: Callable[[], datetime] = partial(datetime.now, UTC)
"""The time, aware and in UTC. Called as ``clock.now()``, never imported by name, so that a replacement is seen."""


def _random_run_id() -> str:
    return str(uuid4())


new_run_id: Callable[[], str] = _random_run_id
"""A run id that nobody has used before."""
