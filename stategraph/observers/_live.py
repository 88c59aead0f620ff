"""Progress on a terminal: a line for each run, which moves."""

from __future__ import annotations

import os
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from stategraph.observers._watched import Watched

_MOST = 20  # runs that have a line at the same time; the others wait for one


class Live:
    """A line for each run, with a bar where it is at work on items. What has ended moves up, and stays.

    Args:
        stream: The terminal.
    """

    def __init__(self, stream: TextIO) -> None:
        colours: Any = None if os.environ.get("NO_COLOR") else "auto"
        self._console = Console(file=stream, highlight=False, markup=False, emoji=False, color_system=colours)
        self._bars = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[items]}", markup=False),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
        )
        self._lines: dict[int, TaskID] = {}  # by the identity of the run
        self._bars.start()

    def show(self, run: Watched) -> None:
        task = self._lines.get(id(run))
        about: dict[str, Any] = {"description": f"{run.title} {run.at}", "items": run.items}
        if task is None:
            if len(self._lines) >= _MOST:
                return
            self._lines[id(run)] = self._bars.add_task(total=run.total or None, completed=run.done, **about)
        elif run.done or run.failed:
            self._bars.update(task, total=run.total, completed=run.done, **about)
        else:
            self._bars.reset(task, total=run.total or None, **about)

    def step(self, run: Watched, text: str) -> None:
        if run.total:  # of others, the next one is shown in a moment
            self.note(run, text, "")

    def note(self, run: Watched, text: str, style: str) -> None:
        self._console.print(Text(f"{run.title} {text}", style=style), soft_wrap=True)

    def end(self, run: Watched, text: str, style: str) -> None:
        task = self._lines.pop(id(run), None)
        if task is not None:
            self._bars.remove_task(task)
        if text:
            self.note(run, f"{run.path}{text}", style)

    def close(self) -> None:
        self._bars.stop()
