"""Timeline: the rows of a history as bars, work and waits apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import pairwise

import attrs

from stategraph._text.screen import span
from stategraph.cli._output import node_text, note_text, number_text
from stategraph.stores.summaries import Summary


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
