"""Worker: goes on with the runs of a graph, several at the same time."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs

from stategraph._text.shown import describe_exception
from stategraph.cli._exits import INTERRUPTED, Exit, Failure, as_commands
from stategraph.cli._screen import STYLES, Screen, note
from stategraph.cli._text import cut
from stategraph.errors import CheckpointError, RunCancelledError, RunLostError, StateGraphError

if TYPE_CHECKING:
    from stategraph._engine.calling import Recovered
    from stategraph.graph import StateGraph

_SLOW = 2.0  # seconds after which a worker says that it does not work yet
_SOONEST, _LATEST = 1.0, 30.0  # seconds between two tries to reach a store


def load_patiently(load: Callable[[], StateGraph]) -> StateGraph:
    """Return a graph once its store can be reached. A signal ends the process: no run is at work yet.

    Args:
        load: Loads the graph, which opens its store.
    """

    def stop(number: int, frame: Any) -> None:
        raise SystemExit(Exit.OK)

    wait = _SOONEST
    slow = threading.Timer(_SLOW, note, ["stategraph: no work yet: the graph takes long to load; is its store up?"])
    slow.daemon = True
    with _signals_to(stop):
        slow.start()
        try:
            while True:
                try:
                    graph = load()
                    graph.store.runs(limit=1)
                except (Failure, CheckpointError) as error:
                    reason = error.__cause__ if isinstance(error, Failure) else error
                    if type(reason) is not CheckpointError:  # others say that it is damaged, or of another kind
                        raise
                    slow.cancel()
                    note(f"stategraph: {reason}; trying again in {wait:.0f} s")
                else:
                    return graph
                time.sleep(wait)
                wait = min(2 * wait, _LATEST)
        finally:
            slow.cancel()


@contextmanager
def _signals_to(handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM call a function."""
    former = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, one in former.items():
            signal.signal(number, one)


@attrs.define
class Worker:
    """Goes on with the runs of a graph that nobody owns.

    Args:
        graph: The graph.
        screen: Where it is told what came of each.
        every: Seconds between looks for runs.
        once: Whether to end when there is nothing left to do.
        grace: Seconds that the runs at work have to end once it is stopped; None for as long as they take.
        how: Other arguments of `StateGraph.recover`.
    """

    graph: StateGraph
    screen: Screen
    every: float
    once: bool
    grace: float | None
    how: Mapping[str, Any]
    _is_over: threading.Event = attrs.field(factory=threading.Event, init=False)
    _cuts_off: threading.Event = attrs.field(factory=threading.Event, init=False)
    _cut_at: float = attrs.field(default=float("inf"), init=False)
    _has_failed: bool = attrs.field(default=False, init=False)
    _refused: dict[str, str] = attrs.field(factory=dict, init=False)

    def work(self, concurrency: int) -> int:
        """Work in so many threads until it is stopped; return the exit code."""
        self.graph.recover(**self.how)  # which says now if the graph saves nothing
        if not self.graph.store.runs(limit=1):  # as where a relative path counts from another folder
            note(f"stategraph: the {self.graph.store} has no runs yet")
        threads = [threading.Thread(target=self._sweeps, daemon=True) for _ in range(concurrency)]
        with _signals_to(self._stop):
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive():  # a signal is heard only between two waits
                    thread.join(0.1)
                    if time.monotonic() >= self._cut_at:
                        self._cuts_off.set()
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
        for recovered in self.graph.recover(cancel=self._cuts_off, **self.how):
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
        error, state, status = recovered.error, recovered.state, _status_of(recovered)
        self._has_failed = self._has_failed or status in ("failed", "cancelled")
        message = None if error is None or status == "active" else describe_exception(error)
        if self.screen.is_json:
            step = None if state is None else state.step
            self.screen.record({"run_id": recovered.run_id, "status": status, "step": step, "error": message})
            return
        why = "" if message is None else f"  {cut(' '.join(as_commands(message).split()))}"
        self.screen.line((recovered.run_id, "bold"), "  ", (status, STYLES.get(status, "")), why)

    def _stop(self, number: int, frame: Any) -> None:
        """Let the first signal stop it after the runs at work, the second at once: what is saved is saved."""
        if self._is_over.is_set():
            os._exit(INTERRUPTED)
        self._is_over.set()
        how = "go on to their end"
        if self.grace is not None:
            self._cut_at = time.monotonic() + self.grace
            how = f"have {self.grace:g} s, and stop before their next nodes then"
        # Not print: it may be what was interrupted.
        os.write(2, f"stopping: the runs that are at work {how}; once more to stop at once\n".encode())


def _status_of(recovered: Recovered) -> str:
    """Return how a run stands: "failed" if it raised, "lost" if others have taken it, else as its State says."""
    if isinstance(recovered.error, RunLostError):
        return "lost"
    if recovered.state is None or not isinstance(recovered.error, RunCancelledError | None):
        return "failed"
    return str(recovered.state.status)
