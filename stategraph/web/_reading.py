"""Reader: what the pages show of a store, and the timeline of a run. Nothing of a store is run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from hashlib import sha256
from itertools import groupby, pairwise

import attrs

from stategraph._text.screen import span
from stategraph._values.ids import is_nested_id, step_of
from stategraph.cli._opening import look, story
from stategraph.cli._output import node_text, note_text, number_text
from stategraph.picture import picture_of_run
from stategraph.picture._run import finished_parts, nested_ids
from stategraph.state import State
from stategraph.stores.base import CheckpointStore
from stategraph.stores.summaries import Difference, Summary

_KEPT = 8  # histories and pictures that are remembered until their runs change: paging through a long one reads it once


class Reader:
    """Reads a store for pages.

    Args:
        store: The store.
    """

    def __init__(self, store: CheckpointStore) -> None:
        self.store = store
        self._rows = lru_cache(_KEPT)(lambda run_id, _version: story(store, run_id))
        self._pictures = lru_cache(_KEPT)(lambda run_id, _version: picture_of_run(store, run_id).to_svg())

    def version(self, run_id: str | None) -> str:
        """Return a text that changes once there may be something new to show."""
        owner = None if run_id is None else self.store.owner(run_id)
        node = None if owner is None else owner.node
        return sha256(f"{self.store.changed_since(None)} {owner} {node}".encode()).hexdigest()[:16]

    def rows(self, run_id: str) -> Sequence[Summary]:
        """Return the history of a run. Raises CheckpointNotFoundError if there is no such run."""
        return self._rows(run_id, f"{self.store.changed_since(None, run_id)} {self.store.owner(run_id)}")

    def picture(self, run_id: str) -> str:
        """Return the picture of a run as SVG. A nested run may go on while the run around it stands still."""
        return self._pictures(run_id, self.version(run_id))

    def difference(self, rows: Sequence[Summary], place: int, state: State) -> Difference:
        """Return what is new in a State, which stands at this place of a history."""
        if not place:
            return Difference(dict(state.items()), {}, {})
        return Difference.between(self.state(rows[place - 1]), state)

    def state(self, row: Summary, *, is_only: bool = False) -> State:
        """Return the State of a row of a history. With its revision, the store finds it without a look at all rows."""
        return look(self.store, row.run_id, row.step, None if is_only else row.revision)

    def nested(self, run: State, shown: Sequence[Summary]) -> list[Summary]:
        """Return the runs nested in some steps of a run, where there are too many to look at all."""
        outlines = {} if run.structure is None else run.structure.outlines
        found: list[Summary] = []
        for row in shown:
            node = row.checkpoint_node
            if not row.revision and node in outlines and outlines[node].kind == "graph":
                histories = map(self.store.history, nested_ids(run.run_id, row.step, node, run.generation))
                found += next((rows[-1:] for rows in histories if rows), [])
        return found

    def parts(self, state: State) -> list[str]:
        """Return the finished branches and items of the step that is being made."""
        stands_at, structure = state.error or state.pause, state.structure
        if structure is None:
            return []
        nodes = structure.outlines if stands_at is None else [stands_at.node]
        found = [part for node in nodes for part in finished_parts(structure, self.store, state, node)]
        return sorted(found, key=lambda label: (int(label), "") if label.isdecimal() else (-1, label))


def spans_of(labels: Sequence[str]) -> list[str]:
    """Return labels of parts with those of items that follow each other as one: ``0-16``, ``18-29``."""
    items = enumerate(int(label) for label in labels if label.isdecimal())
    runs = [[item for _, item in run] for _, run in groupby(items, lambda placed: placed[1] - placed[0])]
    spans = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    return [*(label for label in labels if not label.isdecimal()), *spans]


def nested_by_step(children: Sequence[Summary]) -> dict[int, list[Summary]]:
    """Return nested runs by the steps that they are nested in."""
    found: dict[int, list[Summary]] = {}
    for child in children:
        if is_nested_id(child.run_id):
            found.setdefault(step_of(child.run_id), []).append(child)
    return found


# --------------------------------------------------------------------------- the timeline


@attrs.frozen
class Bar:
    """A row of a timeline.

    Attributes:
        row: The checkpoint.
        place: Its place in the history.
        number: Its step and, if it is not the first of that, its revision.
        took: How long the step was made, or the run waited, for people; empty if that is not known.
        waits: Whether that was a wait.
        left: Where the bar begins, in hundredths of the page.
        width: How wide it is.
        note: What else is known, in a few words.
        nested: The runs nested in the step.
    """

    row: Summary
    place: int
    number: str
    took: str
    waits: bool
    left: str
    width: str
    note: str
    nested: Sequence[Summary] = ()

    @property
    def node(self) -> str:
        """The node that this is about."""
        return node_text(self.row)


def bars_of(
    rows: Sequence[Summary], first: int, last: int, nested: Mapping[int, Sequence[Summary]], now: datetime
) -> list[Bar]:
    """Return the bars of a part of a history, from one place up to another."""
    shown = rows[first:last]
    ends = [*(later.timestamp for _, later in pairwise(rows[first : last + 1])), now][: len(shown)]
    spans = [_span_of(row, end) for row, end in zip(shown, ends, strict=True)]
    begin = min(one[0] for one in spans)
    whole = max((max(one[1] for one in spans) - begin).total_seconds(), 1e-6)
    bars = []
    for place, (row, (begun, ended)) in enumerate(zip(shown, spans, strict=True), first):
        seconds = (ended - begun).total_seconds()
        waits = row.pause is not None
        bars.append(
            Bar(
                row,
                place,
                number_text(row),
                span(seconds) if waits or row.took is not None else "",
                waits,
                f"{min((begun - begin).total_seconds() / whole * 100, 99.4):.2f}",
                f"{max(seconds / whole * 100, 0.6):.2f}" if waits or row.took is not None else "0",
                note_text(row),
                () if row.revision else nested.get(row.step, ()),
            )
        )
    return bars


def _span_of(row: Summary, end: datetime) -> tuple[datetime, datetime]:
    """Return from when to when a row stands for something: waits last until the next row."""
    if row.pause is not None:
        return row.timestamp, max(end, row.timestamp)
    return row.began or row.timestamp, row.timestamp
