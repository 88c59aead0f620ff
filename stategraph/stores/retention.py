"""RetentionPolicy: what is kept of a run."""

from __future__ import annotations

import attrs

from stategraph._values.provenance import RunStatus

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
        """How many of the newest checkpoints are kept; None for all."""
        return 1 if self.retention == "latest" else self.window


Policy = RetentionPolicy
"""The name by which `stategraph.stores` exports it."""
