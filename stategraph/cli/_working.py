"""``stategraph work``: continues the runs of a graph, several at the same time."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import attrs
import click

from stategraph._owners.company import company
from stategraph._sweeps import until_due
from stategraph._text.shown import cut, describe_exception
from stategraph._values.provenance import RunStatus
from stategraph.cli._health import Health, Log
from stategraph.cli._options import ABANDON_PARTS, ALLOW_CHANGED, EVERY, RENAMES, SERVES, Request, command
from stategraph.cli._output import INTERRUPTED, STYLES, Exit, Screen, as_commands, shape_of
from stategraph.errors import CheckpointError, CheckpointNotFoundError, RunCancelledError, RunLostError, StateGraphError

if TYPE_CHECKING:
    from stategraph._engine.calling import Recovered
    from stategraph.graph import StateGraph

_SOONEST, _LATEST = 1.0, 30.0  # seconds between two tries to reach a store


@command(
    """
  stategraph work app.flows:orders --concurrency 4
  stategraph work app.flows:orders --once
  stategraph work app.flows:orders --serves 2,3

Runs come from graph.submit, or were left by a process that has ended. After Ctrl-C or SIGTERM the worker finishes its
runs, or after --grace SECONDS leaves them before their next nodes. A second signal stops it at once. Other workers
continue runs that it leaves. If the store does not answer at the start, the worker waits; with --once, it fails.
""",
    click.argument("graph", metavar="MODULE:NAME", envvar="STATEGRAPH_GRAPH"),
    click.option("--concurrency", type=click.IntRange(min=1), default=1, show_default=True, help="Runs at a time."),
    click.option("--every", default=1.0, help="Seconds between two searches for runs.", **EVERY),
    click.option("--once", is_flag=True, help="End when no run is left; exit with 1 if a run failed."),
    click.option(
        "--max-recoveries",
        type=click.IntRange(min=1),
        default=10,
        show_default=True,
        help="Fail a run after so many crashes in one step.",
    ),
    ALLOW_CHANGED,
    RENAMES,
    ABANDON_PARTS,
    SERVES,
    click.option(
        "--grace",
        type=click.FloatRange(min=0),
        metavar="SECONDS",
        help="When stopped, leave runs that take longer than this.",
    ),
    click.option("--health", metavar="PLACE", help="Answer health checks: a file to replace, PORT, or HOST:PORT."),
    click.option(
        "--log", type=click.Choice(["lines", "json"]), help="Write times and levels to stderr, with each run."
    ),
)
def work(
    request: Request,
    /,
    *,
    graph: str,
    concurrency: int,
    every: float,
    once: bool,
    grace: float | None,
    health: str | None,
    **how: Any,
) -> int:
    """Continue the unfinished runs of a graph.

    It takes runs without an owner as they arrive.
    """
    worker = _Worker(request.screen, every, once, grace, Log(how.pop("log")), how)
    answers = None if health is None else Health(health, worker.health)
    try:
        flow = request.graph(graph) if once else _load_patiently(request, graph, worker.log)
        return worker.work(flow, concurrency)
    finally:
        if answers is not None:
            answers.end()


def _load_patiently(request: Request, name: str, log: Log) -> StateGraph:
    """Return a graph once its store answers. A signal ends the process, because no run is at work yet."""
    wait = _SOONEST
    _on_signals(lambda number, frame: sys.exit(Exit.OK))
    while True:
        try:
            graph = request.graph(name)
            graph.store.runs(limit=1)
        except CheckpointError as error:
            if error.is_lasting or type(error) is not CheckpointError:  # subclasses report damage, for instance
                raise
            log.write("error", f"stategraph: {error}; trying again in {wait:.0f} s")
        else:
            return graph
        time.sleep(wait)
        wait = min(2 * wait, _LATEST)


def _on_signals(handler: Callable[[int, Any], None]) -> None:
    """Handle Ctrl-C and SIGTERM by a function, until this process ends."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)


@attrs.define
class _Worker:
    """Continues the runs of a graph that have no owner.

    Args:
        screen: The output, with a line for each run.
        every: Seconds between looks for runs.
        once: Whether to end when no run is left.
        grace: Seconds that runs at work have to end after a stop; None for no limit.
        log: The log.
        how: Other arguments of `StateGraph.recover`.
    """

    screen: Screen
    every: float
    once: bool
    grace: float | None
    log: Log
    how: Mapping[str, Any]
    _graph: StateGraph | None = attrs.field(default=None, init=False)
    _swept: datetime | None = attrs.field(default=None, init=False)
    _why: str = attrs.field(default="no run is left to continue", init=False)
    _has_broken: bool = attrs.field(default=False, init=False)
    _is_over: threading.Event = attrs.field(factory=threading.Event, init=False)
    _cuts_off: threading.Event = attrs.field(factory=threading.Event, init=False)
    _cut_at: float = attrs.field(default=float("inf"), init=False)
    _has_failed: bool = attrs.field(default=False, init=False)
    _refused: dict[str, str] = attrs.field(factory=dict, init=False)

    def work(self, graph: StateGraph, concurrency: int) -> int:
        """Continue the runs of a graph in so many threads until a signal; return the exit code."""
        self._graph = graph
        graph.recover(**self.how)  # raises now if the graph saves nothing
        self.log.event("info", f"began to continue runs of graph {graph.name!r} in the {graph.store}")
        threads = [threading.Thread(target=self._work_in_thread, args=[graph], daemon=True) for _ in range(concurrency)]
        _on_signals(self._stop)
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            time.sleep(0.1)
            if time.monotonic() >= self._cut_at:
                self._cuts_off.set()
        graph.store.close()
        code = Exit.FAILED if self._has_broken or (self.once and self._has_failed) else Exit.OK
        left = self.once and len(self.health()["refused"])
        why = self._why + (f"; runs left alone, because they do not fit the graph: {left}" if left else "")
        self.log.write("error" if self._has_broken else "info", f"ended: {why}", exit=code.value)
        return code

    def health(self) -> dict[str, Any]:
        """Return what health checks get. The last sweep is the last time that the store answered a sweep."""
        asides = [] if self._graph is None else [*self._graph._refused.values()]
        refused = [recovered for aside in asides for _, recovered in [*aside.values()]]
        return {
            "alive": not self._has_broken,
            "stopping": self._is_over.is_set(),
            "last_sweep": shape_of(self._swept),
            "at_work": [
                {"run_id": run_id, "node": owner.node, "since": shape_of(owner.since)}
                for run_id, owner in sorted(company.at_work().items())
            ],
            "refused": [{"run_id": each.run_id, "error": describe_exception(each.error)} for each in refused],
        }

    def _work_in_thread(self, graph: StateGraph) -> None:
        try:
            self._sweeps(graph)
        except BaseException as error:
            self._has_broken, self._why = True, f"a thread of it failed with {describe_exception(error)}"
            self._is_over.set()
            raise

    def _sweeps(self, graph: StateGraph) -> None:
        while not self._is_over.is_set():
            has_found = False
            try:
                for recovered in graph.recover(cancel=self._cuts_off, **self.how):
                    self._swept = datetime.now(UTC)
                    has_found = self._report(graph, recovered) or has_found
                    if self._is_over.is_set():
                        return
                self._swept = datetime.now(UTC)
            except StateGraphError as error:  # the store may come back
                self.log.write("error", f"stategraph: {describe_exception(error)}")
                self._has_failed = True
            if not has_found:
                if self.once:
                    return
                self._is_over.wait(self._until_next(graph))

    def _until_next(self, graph: StateGraph) -> float:
        """Return the seconds until the next search: sooner than usual if a run is due by then."""
        try:
            return until_due(graph.store, graph.names, self.every)
        except StateGraphError:  # the next search reports it
            return self.every

    def _report(self, graph: StateGraph, recovered: Recovered) -> bool:
        """Report the result of a run and return True, or False for an error that was reported before.

        A run that cannot be saved fails again in each sweep.
        """
        run_id, state, status = recovered.run_id, recovered.state, _status_of(graph, recovered)
        message = None if recovered.error is None else describe_exception(recovered.error)
        if message is not None and status == "active":
            if self._refused.get(run_id) == message:
                return False
            self._refused[run_id] = message
        if status == "active" and isinstance(recovered.error, RunCancelledError):
            message = None  # this worker stops
        is_bad = status in ("failed", "cancelled") or (status == "active" and message is not None)
        self._has_failed = self._has_failed or is_bad
        shape = {"run_id": run_id, "status": status, "step": None if state is None else state.step, "error": message}
        if self.screen.is_json:
            self.screen.record(shape)
        else:
            why = "" if message is None else f"  {cut(' '.join(as_commands(message).split()))}"
            self.screen.line((run_id, "bold"), "  ", (status, STYLES.get(status, "")), why)
        self.log.event("warning" if is_bad else "info", f"run {run_id}: {message or status}", **shape)
        return True

    def _stop(self, number: int, frame: Any) -> None:
        """Stop after the runs at work at the first signal, and at once at the second."""
        if self._is_over.is_set():
            os._exit(INTERRUPTED)
        self._is_over.set()
        self._why = f"it was stopped by {signal.Signals(number).name}"
        how = "continue to their end"
        if self.grace is not None:
            self._cut_at = time.monotonic() + self.grace
            how = f"have {self.grace:g} s, and then stop before their next nodes"
        self.log.write("info", f"stopping: the runs at work {how}; a second signal stops them at once")


def _status_of(graph: StateGraph, recovered: Recovered) -> str:
    """Return the status of a run: "lost" if another owner took it, else as it is saved.

    A run that was refused, or could not be saved, is still active.
    """
    state = recovered.state
    if isinstance(recovered.error, RunLostError):
        return "lost"
    if state is None or not isinstance(recovered.error, RunCancelledError | None):
        try:
            state = graph.store.load(recovered.run_id)
        except CheckpointNotFoundError:
            return "lost"
        except StateGraphError:  # sweeps take only active runs
            return str(RunStatus.ACTIVE)
    return str(state.status)
