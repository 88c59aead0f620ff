"""Output of commands: text that cannot act on a terminal, tables for people, lines with tabs for pipes, and JSON."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from stategraph._text import shown
from stategraph._text.screen import SHORT, clean, cut, failure_text, span
from stategraph._values.provenance import Kind
from stategraph.stores._codec.opaque import Opaque
from stategraph.stores.serializers import plain

if TYPE_CHECKING:
    from stategraph._values.provenance import Owner
    from stategraph.state import State
    from stategraph.stores.summaries import Difference, Summary

Cell: TypeAlias = str | tuple[str, str]
"""A text, or a text and its style."""

STYLES = {"active": "blue", "paused": "yellow", "completed": "green", "failed": "red", "cancelled": "magenta"}
"""The styles of statuses."""

_ID = 36
"""Characters of an id that are always shown, as a UUID has them."""


# --------------------------------------------------------------------------- the screen


class Screen:
    """Writes the answer of a command to stdout.

    Args:
        is_json: Whether the answer is one JSON document.
    """

    def __init__(self, is_json: bool) -> None:
        self.is_json = is_json
        self.is_terminal = sys.stdout.isatty()
        self._lock = threading.Lock()  # each line stays whole, whichever threads write

    def document(self, value: Any) -> None:
        """Write a JSON document: on one line, unless a person looks at it. It is ASCII: no text in it can act."""
        print(json.dumps(value, indent=2 if self.is_terminal else None))

    def record(self, value: Any) -> None:
        """Write one line of JSON, at once."""
        with self._lock:
            print(json.dumps(value), flush=True)

    def line(self, *cells: Cell) -> None:
        """Write a line, at once."""
        with self._lock:
            if not self.is_terminal:
                print("".join(_styled(cell)[0] for cell in cells), flush=True)
                return
            from rich.text import Text  # imported when used, here and below: rich takes 60 ms

            self._console().print(Text.assemble(*map(_styled, cells)), soft_wrap=True)

    def done(self, shape: Any, message: str) -> None:
        """Write what was done: the shape as JSON, or the message."""
        if self.is_json:
            self.document(shape)
        else:
            self.line(message)

    def time(self, when: datetime) -> str:
        """Return a time: in full for a pipe, relative to now for a person."""
        return ago(when) if self.is_terminal else when.isoformat()

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        """Write a table. The first column has ids, which are cut in the middle; the last one takes what is left.

        A pipe gets one line for each row, with tabs between, nothing cut, and no head.
        """
        if not self.is_terminal:
            for row in rows:
                print("\t".join(_styled(cell)[0] for cell in row))
            sys.stdout.flush()
            return
        from rich.table import Table
        from rich.text import Text

        console = self._console()
        longest = max(_ID, console.width // 3)
        table = Table(box=None, pad_edge=False, header_style="dim", expand=True)
        cells = [[_styled(cell) for cell in row] for row in rows]
        for row in cells:
            text, style = row[0]
            row[0] = (text if len(text) <= longest else shown.cut(text, longest - 3)), style
        for number, name in enumerate(columns[:-1]):
            widest = max([len(name), *(len(row[number][0]) for row in cells)])
            width = min(widest, longest if number == 0 else 10)
            table.add_column(name, no_wrap=True, overflow="ellipsis", min_width=width)
        table.add_column(columns[-1], no_wrap=True, overflow="ellipsis", ratio=1)
        for row in cells:
            table.add_row(*(Text(text, style) for text, style in row))
        console.print(table)

    def _console(self) -> Any:
        from rich.console import Console

        # TERM=dumb, and how many colours there are, rich knows; bold is a colour to those who want none.
        colours: Any = None if os.environ.get("NO_COLOR") else "auto"
        return Console(highlight=False, markup=False, emoji=False, color_system=colours)


def _styled(cell: Cell) -> tuple[str, str]:
    text, style = (cell, "") if isinstance(cell, str) else cell
    return clean(text), style


def note(message: str) -> None:
    """Write a message to a person, on stderr."""
    print("\n".join(map(clean, message.splitlines())), file=sys.stderr, flush=True)


# --------------------------------------------------------------------------- text


def value_text(value: Any, limit: int | None = SHORT) -> str:
    """Return a value as Python writes it, clean and on one line; no more of it is looked at than is shown."""
    pieces: list[str] = []
    length = 0
    for piece in _pieces(value, limit):
        pieces.append(piece)
        length += len(piece)
        if limit is not None and length > limit:
            return f"{clean(''.join(pieces)[:limit])}..."
    return clean("".join(pieces))


def _pieces(value: Any, limit: int | None) -> Iterator[str]:
    items: Iterable[tuple[str, Any]]
    if isinstance(value, Mapping):
        opening, closing = "{", "}"
        items = ((f"{value_text(key, limit)}: ", item) for key, item in value.items())
    elif isinstance(value, Opaque) and value.fields:
        opening, closing = f"{value.type}(", ")"
        items = ((f"{name}=", item) for name, item in value.fields.items())
    elif isinstance(value, list | tuple) or (isinstance(value, AbstractSet) and value):
        brackets = {list: ("[", "]"), tuple: ("(", ")")}
        opening, closing = next((found for kind, found in brackets.items() if isinstance(value, kind)), ("{", "}"))
        items = (("", item) for item in value)
    else:
        yield _atom(value if limit is None or not isinstance(value, str | bytes) else value[: limit + 1])
        return
    yield opening
    for number, (label, item) in enumerate(items):
        yield f", {label}" if number else label
        yield from _pieces(item, limit)
    yield closing


def _atom(value: Any) -> str:
    try:
        return repr(value)
    except Exception as error:  # noqa: BLE001 - it is the users' code, or an int too long to be read
        return hex(value) if isinstance(value, int) else f"<{type(value).__name__} whose repr raises {error!r}>"


def ago(when: datetime, now: datetime | None = None) -> str:
    """Return a time as seen from now: ``3 min ago``, ``in 2 h``."""
    seconds = ((now or datetime.now(UTC)) - when).total_seconds()
    distance = span(abs(seconds))
    return f"in {distance}" if seconds <= -1 else "now" if seconds < 1 else f"{distance} ago"


NOBODY = "nobody is at work on it"
"""As it is said of a run."""


def left_text(run: Summary | State) -> str:
    """Say that an active run has no owner, and whether a call was cut off and left it so."""
    is_forked = run.parent is not None and run.parent.step == run.step
    is_left = run.kind not in (Kind.INPUT, Kind.ROLLBACK) and not is_forked
    return f"left unfinished: {NOBODY}" if is_left else NOBODY


def node_text(row: Summary) -> str:
    """Return the node that a checkpoint is about: of a pause or a failure, its own; of what people gave, none."""
    stands_at = row.error or row.pause
    if stands_at is not None:
        return stands_at.node
    return "" if row.kind in (Kind.ANSWER, Kind.UPDATE) else row.checkpoint_node


def number_text(row: Summary) -> str:
    """Return the step of a checkpoint and, if it is not the first of that step, its revision."""
    return f"{row.step}.{row.revision}" if row.revision else str(row.step)


def note_text(row: Summary) -> str:
    """Say in a few words who made a checkpoint, in how many attempts, and why it failed or waits."""
    parts = (
        "" if row.by is None else f"by {row.by}",
        "" if row.attempts == 1 else f"in {row.attempts} attempts",
        "" if row.error is None else failure_text(row.error.type, row.error.message),
        "" if row.pause is None else row.pause.reason,
    )
    return cut("; ".join(filter(None, parts)))


# --------------------------------------------------------------------------- JSON


_BOTH = ("run_id", "graph", "status", "step", "kind", "checkpoint_node", "timestamp", "by", "error", "pause", "parent")
_OF_SUMMARY = (*_BOTH, "revision", "took", "attempts", "owner", "created", "labels")
_OF_STATE = (*_BOTH, "generation", "labels")
_NAMES = {"checkpoint_node": "node", "owner": "saved_by"}
"""Attributes that have other names in JSON."""


def summary_shape(summary: Summary) -> dict[str, Any]:
    """Return a checkpoint without its data, as docs/command-line.md describes it."""
    return {_NAMES.get(name, name): shape_of(getattr(summary, name)) for name in _OF_SUMMARY}


def state_shape(state: State, owner: Owner | None = None, keys: Sequence[str] = ()) -> dict[str, Any]:
    """Return a State, with its data as the serializer "json" writes them: all, or only those of some keys."""
    data = {key: value for key, value in state.items() if not keys or key in keys}
    shapes = {_NAMES.get(name, name): shape_of(getattr(state, name)) for name in _OF_STATE}
    return {**shapes, "owner": shape_of(owner), "data": plain(data)}


def difference_shape(difference: Difference) -> dict[str, Any]:
    """Return how two States differ."""
    changed = {key: [plain(before), plain(after)] for key, (before, after) in difference.changed.items()}
    return {"added": plain(difference.added), "removed": plain(difference.removed), "changed": changed}


def shape_of(value: Any) -> Any:
    """Return a record of a checkpoint, such as an Owner or a Pause, as JSON has it. The value of a Pause is exact."""
    if isinstance(value, datetime):
        return value.isoformat()
    if attrs.has(type(value)):
        fields = [field.name for field in attrs.fields(type(value))]
        return {name: (plain if name == "value" else shape_of)(getattr(value, name)) for name in fields}
    if isinstance(value, Mapping):
        return dict(value)
    return [*map(shape_of, value)] if isinstance(value, tuple) else value
