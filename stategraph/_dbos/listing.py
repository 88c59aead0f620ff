"""RunView: how a run stands, as its store and DBOS tell it together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import cast

import attrs

from stategraph._dbos.orders import OPEN, WAITING, Ordered, find_turns, turns_of_all
from stategraph._text.shown import describe_exception
from stategraph._values.progress import Pause
from stategraph._values.provenance import RunStatus, StatusName
from stategraph.graph import StateGraph
from stategraph.stores.summaries import Summary

_WAITING = dict(zip(WAITING, ("queued", "delayed"), strict=True))


@attrs.frozen
class RunView:
    """A run.

    Attributes:
        run_id: The run.
        graph: The name of its graph.
        status: How it stands: "queued" or "delayed" where a turn of it waits for a worker, else as `RunStatus` says.
        step: How many nodes it has completed.
        turn: The id of its newest turn that is not done, or that has ended with an error.
        queue: The queue of that turn.
        worker: Who is at work on it, or was last.
        error: Why it failed, or why its newest turn could not go on with it.
        pause: What it waits for.
        labels: What it was labelled with.
    """

    run_id: str
    graph: str
    status: str
    step: int = 0
    turn: str | None = None
    queue: str | None = None
    worker: str | None = None
    error: str | None = None
    pause: Pause | None = None
    labels: Mapping[str, str] = attrs.field(factory=dict)

    @classmethod
    def of_stored(cls, summary: Summary) -> RunView:
        """Return what a store knows of a run."""
        error = summary.error
        return cls(
            summary.run_id,
            summary.graph or "",
            summary.status.value,
            summary.step,
            error=None if error is None else f"{error.type}: {error.message} (at {error.node})",
            pause=summary.pause,
            labels=summary.labels,
        )

    @classmethod
    def of_turn(cls, turn: Ordered) -> RunView:
        """Return what DBOS knows of a run that is not in its store: one that has not begun."""
        status = "failed" if turn.status == "ERROR" else "active"
        return cls(turn.run_id, turn.graph, status, labels=turn.labels).with_turn(turn)

    def with_turn(self, turn: Ordered) -> RunView:
        """Return this with what DBOS knows of its newest turn."""
        status = self.status if self.status == RunStatus.COMPLETED else _WAITING.get(turn.status, self.status)
        error = self.error or (None if turn.error is None else describe_exception(turn.error))
        return attrs.evolve(self, status=status, error=error, turn=turn.id, queue=turn.queue, worker=turn.worker)


def list_runs(
    graphs: Mapping[str, StateGraph], status: str | None, labels: Mapping[str, str], limit: int
) -> Iterator[RunView]:
    """Yield the runs of graphs: those whose turns wait, are at work or could not go on, then those in their stores.

    Of the stores, the newest of this status and with these labels are asked for; what the turns make of it may be
    another status.
    """
    turns = _turns(graphs, status, limit)
    stored: dict[str, Summary] = {}
    if status not in _WAITING.values():
        for graph in graphs.values():
            found = graph.store.runs(cast("StatusName | None", status), graph.config.name, labels=labels, limit=limit)
            stored.update((summary.run_id, summary) for summary in found)
    for run_id, turn in turns.items():
        summary = stored.pop(run_id, None) or _summary_of(graphs[turn.graph], run_id)
        yield RunView.of_turn(turn) if summary is None else RunView.of_stored(summary).with_turn(turn)
    yield from map(RunView.of_stored, stored.values())


def _turns(graphs: Mapping[str, StateGraph], status: str | None, limit: int) -> dict[str, Ordered]:
    """Return the turns that are not done, and those that have ended with an error and have no later one, by run."""
    found: dict[str, Ordered] = {}
    asked = [known for known, said in _WAITING.items() if said == status] or [*OPEN, "ERROR"]
    for turn in find_turns(status=asked, load_output=True, limit=limit):
        if turn.graph in graphs and (turn.run_id not in found or found[turn.run_id].number < turn.number):
            found[turn.run_id] = turn
    newest = turns_of_all([run_id for run_id, turn in found.items() if not turn.is_open])
    return {run_id: turn for run_id, turn in found.items() if turn.is_open or newest[run_id].id == turn.id}


def _summary_of(graph: StateGraph, run_id: str) -> Summary | None:
    """Return how a run stands that is beyond the page of its store."""
    found = graph.store.iter_runs(graph=graph.config.name, prefix=run_id)
    return next((summary for summary in found if summary.run_id == run_id), None)
