"""Worker: goes on with the runs of a graph, several at the same time."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs

from stategraph._text.shown import describe_exception
from stategraph.cli._exits import INTERRUPTED, Exit, as_commands
from stategraph.cli._screen import STYLES, Screen, note
from stategraph.cli._text import cut
from stategraph.errors import StateGraphError

if TYPE_CHECKING:
    from stategraph._engine.calling import Recovered
    from stategraph.graph import StateGraph

_STOPPING = "stopping: the runs that are at work go on to their end; once more to stop at once"


@attrs.define
class Worker:
    """Goes on with the runs of a graph that nobody owns.

    Args:
        graph: The graph.
        screen: Where it is told what came of each.
        every: Seconds between looks for runs.
        once: Whether to end when there is nothing left to do.
        how: What else is said to `StateGraph.recover`.
    """

    graph: StateGraph
    screen: Screen
    every: float
    once: bool
    how: Mapping[str, Any]
    _is_over: threading.Event = attrs.field(factory=threading.Event, init=False)
    _has_failed: bool = attrs.field(default=False, init=False)
    _refused: dict[str, str] = attrs.field(factory=dict, init=False)

    def work(self, concurrency: int) -> int:
        """Work in so many threads until it is stopped; return the exit code."""
        self.graph.recover(**self.how)  # which says now if the graph saves nothing
        if not self.graph.store.runs(limit=1):  # as where a relative path counts from another folder
            note(f"stategraph: the {self.graph.store} has no runs yet")
        threads = [threading.Thread(target=self._sweeps, daemon=True) for _ in range(concurrency)]
        with self._stopped_by_signals():
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive():  # a signal is heard only between two waits
                    thread.join(0.1)
        self.graph.store.close()
        return Exit.FAILED if self.once and self._has_failed else Exit.OK

    def _sweeps(self) -> None:
        while not self._is_over.is_set():
            try:
                has_found = self._sweep()
            except StateGraphError as error:  # the store is not there; it may be again
                note(f"stategraph: {describe_exception(error)}")
                has_found, self._has_failed = False, True
            if self.once and not has_found:
                return
            if not has_found:
                self._is_over.wait(self.every)

    def _sweep(self) -> bool:
        """Go on with the runs that there are; return whether there was one."""
        has_found = False
        for recovered in self.graph.recover(**self.how):
            if self._is_news(recovered):
                has_found = True
                self._tell(recovered)
            if self._is_over.is_set():
                break
        return has_found

    def _is_news(self, recovered: Recovered) -> bool:
        """Return whether this is the first time: a run that does not fit the graph is met by each sweep."""
        message = "" if recovered.error is None else describe_exception(recovered.error)
        if not message:
            return True
        is_known = self._refused.get(recovered.run_id) == message
        self._refused[recovered.run_id] = message
        return not is_known

    def _tell(self, recovered: Recovered) -> None:
        error, state = recovered.error, recovered.state
        self._has_failed = self._has_failed or error is not None
        status = "failed" if error is not None else str(state.status) if state is not None else ""
        if self.screen.is_json:
            message = None if error is None else describe_exception(error)
            step = None if state is None else state.step
            self.screen.record({"run_id": recovered.run_id, "status": status, "step": step, "error": message})
            return
        why = "" if error is None else f"  {cut(' '.join(as_commands(describe_exception(error)).split()))}"
        self.screen.line((recovered.run_id, "bold"), "  ", (status, STYLES.get(status, "")), why)

    @contextmanager
    def _stopped_by_signals(self) -> Iterator[None]:
        """Let the first signal stop it after the runs at work, the second at once: what is saved is saved."""

        def stop(number: int, frame: Any) -> None:
            if self._is_over.is_set():
                os._exit(INTERRUPTED)
            self._is_over.set()
            os.write(2, f"{_STOPPING}\n".encode())  # not print: it may be what was interrupted

        former = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)
