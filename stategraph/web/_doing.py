"""Doings: what was asked for on a page goes on in a thread of its own, and what came of it is told."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import attrs

from stategraph._text.shown import describe_exception
from stategraph.errors import ExecutionError, RunCancelledError

_PATIENCE = 0.5  # seconds in which most refusals are known; a run that is at work is shown live instead
_KEPT = 200


@attrs.define
class Doing:
    """Something that was asked for.

    Attributes:
        what: What it is, for people.
        error: Why it did not work.
        is_over: Whether it has ended.
    """

    what: str
    error: Exception | None = None
    is_over: threading.Event = attrs.field(factory=threading.Event)

    @property
    def problem(self) -> str:
        """Why it did not work; empty if it did, or if the run itself tells why."""
        if self.error is None or isinstance(self.error, ExecutionError | RunCancelledError):
            return ""
        return f"{self.what} did not work: {describe_exception(self.error)}"


class Doings:
    """The newest thing that was asked for of each run."""

    def __init__(self) -> None:
        self._newest: OrderedDict[str, Doing] = OrderedDict()
        self._lock = threading.Lock()

    def begin(self, run_id: str, what: str, function: Callable[[], Any]) -> Doing:
        """Do something in a thread, and wait for a moment, in which it may be refused."""
        doing = Doing(what)
        with self._lock:
            self._newest.pop(run_id, None)
            self._newest[run_id] = doing
            while len(self._newest) > _KEPT:
                self._newest.popitem(last=False)

        def work() -> None:
            try:
                function()
            except Exception as error:  # noqa: BLE001 - whatever it is, the page tells it
                doing.error = error
            finally:
                doing.is_over.set()

        # A daemon: what is saved is saved, and the next resume goes on from there.
        threading.Thread(target=work, name=f"stategraph-ui-{run_id}", daemon=True).start()
        doing.is_over.wait(_PATIENCE)
        return doing

    def problem(self, run_id: str) -> str:
        """Return what did not work of what was asked for last."""
        with self._lock:
            doing = self._newest.get(run_id)
        return "" if doing is None else doing.problem
