"""StopSignal: what may stop a run between two nodes."""

from __future__ import annotations

import threading
import time

import attrs

from stategraph.commands import Stopped


@attrs.frozen
class StopSignal:
    """What may stop a run between two nodes.

    Attributes:
        cancel: Stops the run once it is set.
        timeout: Seconds the call may take.
        deadline: When they are over, as time.monotonic tells it.
    """

    cancel: threading.Event | None
    timeout: float | None
    deadline: float

    @classmethod
    def of(cls, cancel: threading.Event | None, timeout: float | None) -> StopSignal | None:
        """-> the signal, None if nothing can ever stop the run."""
        if cancel is None and timeout is None:
            return None
        return cls(cancel, timeout, float("inf") if timeout is None else time.monotonic() + timeout)

    def check(self) -> None:
        """Raise Stopped if the run is to stop."""
        if self.cancel is not None and self.cancel.is_set():
            raise Stopped("it was cancelled")
        if time.monotonic() >= self.deadline:
            raise self.timed_out()

    def timed_out(self) -> Stopped:
        """-> what says that the time is up."""
        stopped = Stopped(f"its timeout of {self.timeout} s passed")
        stopped.__cause__ = TimeoutError(f"{self.timeout} s")
        return stopped
