"""Reader: what the pages show of a store. Nothing in it is run, and values of unknown classes are opaque."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import sha256
from itertools import pairwise

import attrs

from stategraph._values.ids import is_nested_id, nested_id, step_of
from stategraph.cli._opening import look, story
from stategraph.errors import FormatError
from stategraph.picture import picture_of_run
from stategraph.state import State
from stategraph.stores.base import CheckpointStore
from stategraph.stores.summaries import Difference, Summary

_KEPT = 8  # runs whose histories are remembered until they change: paging through a long one reads it once


@attrs.frozen
class Past:
    """The history of a run, and its picture once that was asked for."""

    token: str
    rows: Sequence[Summary]
    drawn: dict[str, str] = attrs.field(factory=dict)


class Reader:
    """Reads a store for pages.

    Args:
        store: The store.
    """

    def __init__(self, store: CheckpointStore) -> None:
        self.store = store
        self._pasts: OrderedDict[str, Past] = OrderedDict()
        self._lock = threading.Lock()

    def version(self, run_id: str | None) -> str:
        """Return what is another text once there may be something new to show."""
        owner = None if run_id is None else self.store.owner(run_id)
        node = None if owner is None else owner.node
        return sha256(f"{self.store.changed_since(None)} {owner} {node}".encode()).hexdigest()[:16]

    def past(self, run_id: str) -> Past:
        """Return the history of a run. Raises CheckpointNotFoundError if there is no such run."""
        token = f"{self.store.changed_since(None, run_id)} {self.store.owner(run_id)}"
        with self._lock:
            past = self._pasts.get(run_id)
            if past is not None and past.token == token:
                self._pasts.move_to_end(run_id)
                return past
        past = Past(token, story(self.store, run_id))
        with self._lock:
            self._pasts[run_id] = past
            while len(self._pasts) > _KEPT:
                self._pasts.popitem(last=False)
        return past

    def picture(self, run_id: str) -> str:
        """Return the picture of a run as SVG."""
        drawn = self.past(run_id).drawn
        token = self.version(run_id)  # a nested run goes on while the run around it stands still
        if token not in drawn:
            drawn.clear()
            drawn[token] = picture_of_run(self.store, look(self.store, run_id)).to_svg()
        return drawn[token]

    def difference(self, rows: Sequence[Summary], place: int, state: State) -> Difference:
        """Return what is new in a State, which stands at this place of a history."""
        if not place:
            return Difference(dict(state.items()), {}, {})
        before = rows[place - 1]
        return Difference.between(self.state(before), state)

    def state(self, row: Summary, *, is_only: bool = False) -> State:
        """Return the State of a row of a history. With its revision, the store finds it without a look at all rows."""
        return look(self.store, row.run_id, row.step, None if is_only else row.revision)

    def children(self, run_id: str, limit: int, after: str | None) -> list[Summary]:
        """Return runs that were forked from a run, or are nested in it."""
        return self.store.runs(parent=run_id, limit=limit, after=after)

    def nested(self, run: State, shown: Sequence[Summary]) -> list[Summary]:
        """Return the runs nested in some steps of a run, where there are too many to look at all."""
        outlines = {} if run.structure is None else run.structure.outlines
        steps = {row.step: row.checkpoint_node for row in shown if not row.revision}
        found: list[Summary] = []
        for step, node in steps.items():
            if node in outlines and outlines[node].kind == "graph":
                ids = (nested_id(run.run_id, step, node, number) for number in range(run.generation, -1, -1))
                found += next((rows[-1:] for rows in map(self.store.history, ids) if rows), [])
        return found

    def parts(self, state: State) -> list[str]:
        """Return the finished branches and items of the step that is being made."""
        stands_at = state.error or state.pause
        outlines = {} if state.structure is None else state.structure.outlines
        nodes = [stands_at.node] if stands_at else [node for node, one in outlines.items() if one.kind != "function"]
        kinds = ("map", "parallel")
        found: list[str] = []
        for node in nodes:
            outline = outlines.get(node)
            if outline is not None and outline.kind in kinds and self.store.keeps_parts:
                try:
                    found += self.store.load_parts(state.run_id, state.step + 1, node)
                except FormatError:  # they hold values that are unknown here
                    continue
        return sorted(found, key=lambda label: (int(label), "") if label.isdecimal() else (-1, label))


def spans_of(labels: Sequence[str]) -> list[str]:
    """Return labels of parts with those of items that follow each other as one: ``0-16``, ``18-29``."""
    items = [int(label) for label in labels if label.isdecimal()]
    breaks = [0, *(place for place in range(1, len(items)) if items[place] > items[place - 1] + 1), len(items)]
    runs = [items[begin:end] for begin, end in pairwise(breaks) if begin < end]
    spans = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    return [*(label for label in labels if not label.isdecimal()), *spans]


def nested_by_step(children: Sequence[Summary]) -> dict[int, list[Summary]]:
    """Return nested runs by the steps that they are nested in."""
    found: dict[int, list[Summary]] = {}
    for child in children:
        if is_nested_id(child.run_id):
            found.setdefault(step_of(child.run_id), []).append(child)
    return found
