"""The way of a run over its graph, as far as its history shows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

import attrs

from stategraph._text.shown import failure_text, span
from stategraph._values.ids import nested_id
from stategraph._values.provenance import GraphStructure, Kind, RunStatus
from stategraph.errors import FormatError

if TYPE_CHECKING:
    from stategraph._values.provenance import Owner
    from stategraph.state import State
    from stategraph.stores.base import CheckpointStore
    from stategraph.stores.summaries import Summary


@attrs.frozen
class Visit:
    """The visits of a run to a node.

    Attributes:
        status: "" without a visit, "done", "handled" (the node failed, and the run continued), "failed", "waiting",
            "under way", "next" if the run has no owner and continues here, or "maybe" if several nodes may be under
            way or next.
        times: How often the node was completed; 0 if the history is incomplete.
        seconds: The duration of all visits; None if it is unknown.
        retries: The number of attempts after the first ones.
        said: The error, or the reason of the pause.
        parts: How many branches or items of the current step are finished.
    """

    status: str = ""
    times: int = 0
    seconds: float | None = None
    retries: int = 0
    said: str = ""
    parts: int = 0


@attrs.frozen
class Walk:
    """The way of a run.

    Attributes:
        visits: The visits to nodes, by their names.
        taken: How often it went from one node to another.
        nested: The ways of the newest nested runs, by the names of their nodes.
        caption: A summary on one line.
    """

    visits: Mapping[str, Visit] = attrs.field(factory=dict)
    taken: Mapping[tuple[str, str], int] = attrs.field(factory=dict)
    nested: Mapping[str, Walk] = attrs.field(factory=dict)
    caption: str = ""


def walk_of(structure: GraphStructure, rows: Sequence[Summary], store: CheckpointStore | None, depth: int) -> Walk:
    """Return the way of a run.

    Args:
        structure: The structure of the graph.
        rows: The history of the run, or its end.
        store: Where to look for nested runs and for the owner; None to look for neither.
        depth: How deep to look for nested runs.
    """
    last, path = rows[-1], _path_of(rows)
    owner = None if store is None or last.status is not RunStatus.ACTIVE else store.owner(last.run_id)
    now = _now(structure, last, owner, is_known=store is not None)
    visits, taken = _steps(structure, path, rows)
    for name, visit in now.items():
        before = visits.get(name, Visit())
        visits[name] = attrs.evolve(before, status=visit.status, said=visit.said)
        is_there = visit.status not in ("maybe", "next")
        if is_there and last.checkpoint_node not in ("", name):  # a predicate after the node itself may have failed
            taken[last.checkpoint_node, name] += 1
    nested = _branches(structure, visits)
    if store is None or not depth:
        return Walk(visits, taken, nested, _caption(last, path, owner))
    for name in now:
        finished = finished_parts(structure, store, last, name)
        visits[name] = attrs.evolve(visits[name], parts=len(finished))
        nested[name] = Walk(dict.fromkeys(finished, Visit("done")))
    steps = {row.checkpoint_node: row.step for row in path} | dict.fromkeys(now, last.step + 1)
    turns = sum(row.kind is Kind.ROLLBACK for row in rows)
    for name, outline in structure.outlines.items():
        if name in steps and outline.kind == "graph" and outline.nested is not None:
            found = _nested_rows(store, last.run_id, steps[name], name, turns)
            if found:
                nested[name] = walk_of(outline.nested, found, store, depth - 1)
    return Walk(visits, taken, nested, _caption(last, path, owner))


def _branches(structure: GraphStructure, visits: Mapping[str, Visit]) -> dict[str, Walk]:
    """Return the branches of completed nodes as done."""
    return {
        name: Walk(dict.fromkeys(outline.nested.nodes, Visit("done")))
        for name, outline in structure.outlines.items()
        if outline.kind == "parallel" and outline.nested and visits.get(name, Visit()).status == "done"
    }


def finished_parts(structure: GraphStructure, store: CheckpointStore, run: Summary | State, node: str) -> list[str]:
    """Return the finished parts of the current step; none if they hold values of unknown types."""
    outline = structure.outlines.get(node)
    if outline is None or outline.kind not in ("map", "parallel") or not store.keeps_parts:
        return []
    try:
        return list(store.load_parts(run.run_id, run.step + 1, node))
    except FormatError:
        return []


def _nested_rows(store: CheckpointStore, run_id: str, step: int, node: str, turns: int) -> Sequence[Summary]:
    """Return the history of the newest nested run of a step. Each rollback of the outer run begins another one."""
    ids = (nested_id(run_id, step, node, generation) for generation in range(turns, -1, -1))
    return next(filter(None, map(store.history, ids)), [])


def _path_of(rows: Sequence[Summary]) -> list[Summary]:
    """Return the first row of each step that was not rolled back."""
    path: list[Summary] = []
    for row in rows:
        if row.kind is Kind.ROLLBACK:
            path = [kept for kept in path if kept.step <= row.step]
        elif row.step and row.checkpoint_node and (not path or row.step > path[-1].step):
            path.append(row)
    return path


def _steps(
    structure: GraphStructure, path: Sequence[Summary], rows: Sequence[Summary]
) -> tuple[dict[str, Visit], Counter[tuple[str, str]]]:
    """Return the visits to nodes on a path, and how often each way was taken.

    A step failed if the run continued at a node that only failures lead to. A new turn begins at the entry, so no way
    leads there from the turn before.
    """
    failures = {(edge.source, edge.target) for edge in structure.edges if edge.label == "on_error"}
    handled = failures - {(edge.source, edge.target) for edge in structure.edges if edge.label != "on_error"}
    turns = {row.step for row in rows if row.kind is Kind.INPUT}
    is_whole = bool(path) and path[0].step == 1
    visits: dict[str, Visit] = {}
    taken: Counter[tuple[str, str]] = Counter()
    for row, following in zip_longest(path, path[1:]):
        way = (row.checkpoint_node, "" if following is None else following.checkpoint_node)
        visit = visits.get(row.checkpoint_node, Visit())
        is_step = row.kind in (Kind.STEP, Kind.END)
        visits[row.checkpoint_node] = Visit(
            "handled" if way in handled else "done",
            visit.times + is_whole,
            visit.seconds if not is_step or row.took is None else (visit.seconds or 0.0) + row.took,
            visit.retries + (row.attempts - 1 if is_step else 0),
        )
        if following is not None and following.step == row.step + 1 and row.step not in turns:
            taken[way] += 1
    return visits, taken


def _now(structure: GraphStructure, last: Summary, owner: Owner | None, *, is_known: bool) -> dict[str, Visit]:
    """Return the nodes where the run is or continues. `is_known` says whether the owner was looked up."""
    if last.status is RunStatus.FAILED and last.error is not None:
        return {last.error.node: Visit("failed", said=failure_text(last.error.type, last.error.message))}
    if last.status is RunStatus.PAUSED and last.pause is not None:
        return {last.pause.node: Visit("waiting", said=last.pause.reason)}
    if last.status is not RunStatus.ACTIVE or not is_known:
        return {}
    if owner is not None and owner.node in structure.nodes:
        return {owner.node: Visit("under way")}
    if last.kind is Kind.INPUT:
        following = [] if structure.entry is None else [structure.entry]
    else:
        ways = (edge for edge in structure.edges if edge.source == last.checkpoint_node and edge.label != "on_error")
        following = list(dict.fromkeys(edge.target for edge in ways))
    only = "next" if owner is None else "under way"
    return dict.fromkeys(following, Visit(only if len(following) == 1 else "maybe"))


_SAID = {RunStatus.ACTIVE: "unfinished", RunStatus.PAUSED: "waiting"}


def _caption(last: Summary, path: Sequence[Summary], owner: Owner | None) -> str:
    status = _SAID.get(last.status, last.status.value) if owner is None else "under way"
    known = [row.took for row in path if row.took is not None]
    steps = f"{last.step} step{'' if last.step == 1 else 's'}"
    return " · ".join([last.run_id, status, steps, *([span(sum(known))] if len(known) == last.step > 0 else [])])
