"""Screen: where a command writes to. A person gets tables and colours, a pipe lines with tabs, a program JSON."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Sequence
from typing import Any, TypeAlias

from stategraph._text import shown
from stategraph.cli._text import clean

Cell: TypeAlias = str | tuple[str, str]
"""A text, or a text and its style."""

STYLES = {
    "active": "blue",
    "paused": "yellow",
    "completed": "green",
    "failed": "red",
    "cancelled": "magenta",
}
"""Of the ways in which a run stands."""

_ID = 36
"""Characters of an id that are always shown, as a UUID has them."""


class Screen:
    """Writes what a command has to say to stdout.

    Args:
        is_json: Whether it is one JSON document.
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
                print("".join(clean(_text_of(cell)) for cell in cells), flush=True)
                return
            from rich.text import Text  # imported when used, here and below: rich takes 60 ms

            self._console().print(Text.assemble(*map(_styled, cells)), soft_wrap=True)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        """Write a table. The first column has ids, which are cut in the middle; the last one takes what is left.

        A pipe gets one line for each row, with tabs between, nothing cut, and no head.
        """
        if not self.is_terminal:
            for row in rows:
                print("\t".join(clean(_text_of(cell)) for cell in row))
            return
        from rich.table import Table
        from rich.text import Text

        console = self._console()
        longest = max(_ID, console.width // 3)
        rows = [(_shortened(first, longest), *others) for first, *others in rows]
        table = Table(box=None, pad_edge=False, header_style="dim", expand=True)
        for number, name in enumerate(columns):
            widths = [len(_text_of(row[number])) for row in rows]
            least = min(max([len(name), *widths]), longest if number == 0 else 10)
            last = number == len(columns) - 1
            table.add_column(
                name, no_wrap=True, overflow="ellipsis", min_width=None if last else least, ratio=1 if last else None
            )
        for row in rows:
            table.add_row(*(Text.assemble(_styled(cell)) for cell in row))
        console.print(table)

    def _console(self) -> Any:
        from rich.console import Console

        # TERM=dumb, and how many colours there are, rich knows; bold is a colour to those who want none.
        colours: Any = None if os.environ.get("NO_COLOR") else "auto"
        return Console(highlight=False, markup=False, emoji=False, color_system=colours)


def _shortened(cell: Cell, limit: int) -> Cell:
    """Return a cell whose text is cut in the middle: ids differ at their ends."""
    text, style = (cell, "") if isinstance(cell, str) else cell
    return (text if len(text) <= limit else shown.cut(text, limit - 3)), style


def _text_of(cell: Cell) -> str:
    return cell if isinstance(cell, str) else cell[0]


def _styled(cell: Cell) -> tuple[str, str]:
    text, style = (cell, "") if isinstance(cell, str) else cell
    return clean(text), style


def note(message: str) -> None:
    """Write a message to a person, on stderr."""
    print("\n".join(map(clean, message.splitlines())), file=sys.stderr, flush=True)


def leave_pipe() -> None:
    """Write nothing more to a pipe that nobody reads any longer, not when Python ends either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
