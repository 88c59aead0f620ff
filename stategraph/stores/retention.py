"""Policy: what is kept of a run."""

from __future__ import annotations

import attrs

from stategraph._values.provenance import RunStatus

RETENTIONS = ("latest", "full", "windowed")


@attrs.frozen
class Policy:
    """What is kept of a run: which of its checkpoints (`retention`, `window`), and for how many seconds after its
    completion (`ttl`)."""

    retention: str = "latest"
    window: int | None = None
    ttl: float | None = None

    def is_over(self, status: RunStatus, time_ns: int, now_ns: int) -> bool:
        """Whether a run with a newest checkpoint of this status and time completed longer ago than it is to be kept."""
        return status is RunStatus.COMPLETED and self.ttl is not None and time_ns + self.ttl * 1e9 <= now_ns

    @property
    def visible(self) -> int | None:
        """How many of the newest checkpoints can be seen; None for all."""
        return 1 if self.retention == "latest" else self.window
