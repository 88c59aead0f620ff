"""Progress in a notebook: below the cell, where it is replaced as it goes on."""

from __future__ import annotations

import html
import time
from typing import Any

from stategraph.observers._watched import Watched

_AGAIN = 0.2  # seconds after which it is shown again
_MOST = 200  # lines that stay


class Notebook:
    """The runs that are at work, and below them what is to stay."""

    def __init__(self) -> None:
        self._runs: dict[int, Watched] = {}
        self._kept: list[str] = []
        self._handle: Any = None
        self._last = 0.0

    def show(self, run: Watched) -> None:
        self._runs[id(run)] = run
        if time.monotonic() - self._last >= _AGAIN:
            self._display()

    def step(self, run: Watched, text: str) -> None:
        if run.total:  # of others, the next one is shown in a moment
            self.note(run, text, "")

    def note(self, run: Watched, text: str, style: str) -> None:
        self._kept = [*self._kept, f"{run.title} {text}"][-_MOST:]
        self._display()

    def end(self, run: Watched, text: str, style: str) -> None:
        self._runs.pop(id(run), None)
        if text:
            self.note(run, f"{run.path}{text}", style)

    def close(self) -> None:
        self._display()

    def _display(self) -> None:
        from IPython import display  # of a notebook: it is there

        show: Any = display
        self._last = time.monotonic()
        shown = [f"{run.title} {run.at} {run.items}" for run in self._runs.values()]
        text = show.HTML(f"<pre>{html.escape(chr(10).join([*self._kept, *shown]))}</pre>")
        if self._handle is None:
            self._handle = show.display(text, display_id=True)
        else:
            self._handle.update(text)
