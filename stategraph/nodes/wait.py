"""WaitNode: a step that waits for a time."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import attrs

from stategraph._progress import is_overdue, progress_of
from stategraph._protocol import Task
from stategraph._text.shown import shorten
from stategraph._util.validators import LONGEST_WAIT, is_seconds, naming_arguments
from stategraph._values.progress import NodeOutline, Structures
from stategraph.nodes.base import Node, StepContext, check_key
from stategraph.state import goes_on


@naming_arguments()
@attrs.frozen
class WaitNode(Node):
    """Pauses the run until a time has come. No process waits: `recover` and workers continue the run then.

    `execute` returns the paused State. `resume` raises AnswerError before the time: a run never goes on early.

    Args:
        seconds: How long to wait.
        until: Instead, the key of the time: an aware datetime. If it has passed, the run does not pause.
        reason: Why the run waits, for people.

    Raises:
        TypeError, ValueError: An argument is invalid, or both or none of `seconds` and `until` are given.
    """

    seconds: float | None = attrs.field(default=None)
    until: str | None = attrs.field(default=None, kw_only=True)
    reason: str = attrs.field(default="waits for a time", kw_only=True, validator=attrs.validators.instance_of(str))

    pauses = True

    def __attrs_post_init__(self) -> None:
        if (self.seconds is None) is (self.until is None):
            raise TypeError("a WaitNode takes either seconds, or until=, the key of a datetime")
        if self.until is not None:
            check_key("until", self.until)
        elif not (self.seconds is not None and is_seconds(self.seconds) and self.seconds <= LONGEST_WAIT):
            allowed = f"a number of seconds above 0, and up to {LONGEST_WAIT:,}, is"
            raise ValueError(f"seconds: {shorten(self.seconds)} is not allowed; {allowed}")

    @property
    def reads(self) -> frozenset[str]:  # type: ignore[override]
        """The key of the time."""
        return frozenset([] if self.until is None else [self.until])

    def outline(self, others: Structures) -> NodeOutline:
        return NodeOutline("pause", (f"until {self.until}" if self.until else f"waits {self.seconds:g} s",))

    def execute(self, step: StepContext) -> Task[Any]:
        """Pause, unless the time has come."""
        yield from ()
        state, woken = step.state, progress_of(step.state).woken
        end = (woken and woken.deadline) or self._end(state)
        paused = state.paused(self.reason, deadline=end)
        return {} if paused.pause is None or is_overdue(paused.pause) else goes_on(paused)

    def _end(self, state: Any) -> datetime | float | None:
        """Return when a wait that begins now ends."""
        if self.until is None:
            return self.seconds
        if self.until not in state:
            raise KeyError(
                f"the State lacks {self.until!r}, until which it waits; an earlier node or the input sets it"
            )
        end = state[self.until]
        if not isinstance(end, datetime):
            raise TypeError(f"{self.until!r} is {shorten(end)}; a WaitNode takes a datetime with a time zone")
        return end
