"""RetentionPolicy: what a store keeps of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import attrs

from stategraph._values.provenance import RunStatus


class _OfStep(Protocol):
    """A checkpoint, as far as retention looks at it."""

    @property
    def step(self) -> int: ...


RETENTIONS = ("latest", "full", "windowed")


@attrs.frozen
class RetentionPolicy:
    """What is kept of a run.

    Attributes:
        retention: Which of its checkpoints: "latest", "full" (all), or "windowed".
        window: How many of the newest ones, if it is "windowed".
        ttl: For how many seconds after its completion the run is kept; None for ever.
    """

    retention: str = "latest"
    window: int | None = None
    ttl: float | None = None

    def is_over(self, status: RunStatus, time_ns: int, now_ns: int) -> bool:
        """Return whether a run whose newest checkpoint has this status and time is not to be kept any longer."""
        return status is RunStatus.COMPLETED and self.ttl is not None and time_ns + self.ttl * 1e9 <= now_ns

    @property
    def max_checkpoints(self) -> int | None:
        """How many of the newest steps are kept; None for all."""
        return 1 if self.retention == "latest" else self.window

    @property
    def keeps_all(self) -> bool:
        """Whether nothing that was saved is ever replaced."""
        return self.retention == "full"

    def first_kept(self, checkpoints: Sequence[_OfStep]) -> int:
        """Return the place of the first of these checkpoints of a run, in order, that is kept."""
        most = self.max_checkpoints
        if most is None:
            return 0
        steps: set[int] = set()
        for place in range(len(checkpoints), 0, -1):
            steps.add(checkpoints[place - 1].step)
            if len(steps) > most:
                return place
        return 0


Policy = RetentionPolicy
"""The name by which `stategraph.stores` exports it."""
