"""Runs as the observer "progress" shows them: on a terminal, in a notebook, and as plain lines."""

from __future__ import annotations

import html
import os
import time
from collections.abc import Mapping
from typing import Any, TextIO

import attrs

from stategraph._text.screen import cut, span

NAME = 60
"""Characters of a name that are shown."""
MOST_LINES = 20
"""Runs that have a line on a terminal at the same time; the others wait for one."""
_AGAIN = 0.2  # seconds after which a notebook shows its runs again
_MOST_KEPT = 200  # lines that stay in a notebook
_FIRST = 200  # steps of runs, each of which has a plain line; after them, no more lines than a person can read


@attrs.define(eq=False)
class Watched:
    """A run, or a nested one, as it is shown.

    Attributes:
        title: The graph and the id of the outermost run.
        path: What leads to its nodes from the outermost graph.
        at: The step and the node that is under way.
        began: When that began, on the clock of time.monotonic.
        done: How many of its items are done.
        found: How many of these were done before it began.
        total: How many items it has; 0 if it has none.
        failed: How many have failed.
    """

    title: str
    path: str = ""
    at: str = ""
    began: float = attrs.field(factory=time.monotonic)
    done: int = 0
    found: int = 0
    total: int = 0
    failed: int = 0

    def begin(self, data: Mapping[str, Any]) -> None:
        """Come to the next node."""
        self.at = f"step {data['step']} {self.path}{cut(data['node'], NAME)}"
        self.begin_items()

    def begin_items(self) -> None:
        """Begin a node, or another attempt of it."""
        self.began = time.monotonic()
        self.done = self.found = self.failed = self.total = 0

    def count(self, data: Mapping[str, Any]) -> None:
        """Take a part that has ended."""
        self.total, outcome = data["total"], data["outcome"]
        self.done += outcome != "failed"
        self.found += outcome == "found"
        self.failed += outcome in {"failed", "collected"}

    @property
    def items(self) -> str:
        """How many items are done, how fast, and how long the others will take."""
        if not self.total:
            return ""
        made, seconds = self.done - self.found, max(time.monotonic() - self.began, 1e-6)
        parts = [f"{self.done}/{self.total} items"]
        if self.failed:
            parts.append(f"{self.failed} failed")
        if made:
            rate = made / seconds
            parts.append(f"{rate:.0f}/s" if rate >= 10 else f"{rate:.1f}/s" if rate >= 1 else f"{span(1 / rate)} each")
            if self.done < self.total:
                parts.append(f"{span((self.total - self.done) / rate)} left")
        return ", ".join(parts)


class View:
    """Shows runs. One thread at a time calls it."""

    def show(self, run: Watched) -> None:
        """Show a run as it is now, if it is time to."""

    def step(self, run: Watched, text: str) -> None:
        """Say that a step of a run is done."""
        if run.total:  # of others, the next one is shown in a moment
            self.note(run, text, "")

    def note(self, run: Watched, text: str, style: str) -> None:
        """Say something that is to be seen, whatever comes next."""

    def end(self, run: Watched, text: str, style: str) -> None:
        """Show a run no more; say how it has ended, if that is said."""
        if text:
            self.note(run, f"{run.path}{text}", style)

    def close(self) -> None:
        """Show nothing more: no run is at work."""


class Lines(View):
    """Plain lines, for a log, a pipe, or a terminal that can do no more.

    Args:
        stream: Where to write.
        every: Seconds between two lines about items, and between those about steps once there were many.
    """

    def __init__(self, stream: TextIO, every: float) -> None:
        self._stream, self._every = stream, every
        self._last: dict[int, float] = {}  # when the items of a run were shown last, by the identity of the run
        self._steps = 0

    def show(self, run: Watched) -> None:
        if run.total and self._is_time(run):
            self.note(run, f"{run.at}: {run.items}", "")

    def step(self, run: Watched, text: str) -> None:
        self._steps += 1
        if self._steps <= _FIRST or self._is_time(run):
            self.note(run, text, "")
        self._last[id(run)] = time.monotonic()

    def note(self, run: Watched, text: str, style: str) -> None:
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        line = f"[{run.title}] {text}\n".encode(encoding, "backslashreplace")
        self._stream.write(line.decode(encoding))
        self._stream.flush()

    def end(self, run: Watched, text: str, style: str) -> None:
        self._last.pop(id(run), None)
        super().end(run, text, style)

    def _is_time(self, run: Watched) -> bool:
        now, last = time.monotonic(), self._last.setdefault(id(run), run.began)
        if now - last < self._every:
            return False
        self._last[id(run)] = now
        return True


class Live(View):
    """A line for each run, with a bar where it is at work on items. What has ended moves up, and stays.

    Args:
        stream: The terminal.

    Raises:
        ModuleNotFoundError: rich is not installed.
    """

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console  # imported when used: rich takes 60 ms
        from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

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
            if len(self._lines) < MOST_LINES:
                self._lines[id(run)] = self._bars.add_task(total=run.total or None, completed=run.done, **about)
        elif run.done or run.failed:
            self._bars.update(task, total=run.total, completed=run.done, **about)
        else:
            self._bars.reset(task, total=run.total or None, **about)

    def note(self, run: Watched, text: str, style: str) -> None:
        self._console.print(f"{run.title} {text}", style=style or None, soft_wrap=True)

    def end(self, run: Watched, text: str, style: str) -> None:
        task = self._lines.pop(id(run), None)
        if task is not None:
            self._bars.remove_task(task)
        super().end(run, text, style)

    def close(self) -> None:
        self._bars.stop()


class Notebook(View):
    """Below the cell of a notebook: what is to stay, then the runs that are at work. It is replaced as they go on."""

    def __init__(self) -> None:
        self._runs: dict[int, Watched] = {}
        self._kept: list[str] = []
        self._handle: Any = None
        self._last = 0.0

    def show(self, run: Watched) -> None:
        self._runs[id(run)] = run
        if time.monotonic() - self._last >= _AGAIN:
            self.close()

    def note(self, run: Watched, text: str, style: str) -> None:
        self._kept = [*self._kept, f"{run.title} {text}"][-_MOST_KEPT:]
        self.close()

    def end(self, run: Watched, text: str, style: str) -> None:
        self._runs.pop(id(run), None)
        super().end(run, text, style)

    def close(self) -> None:
        from IPython import display  # of a notebook: it is there

        show: Any = display
        self._last = time.monotonic()
        lines = [*self._kept, *(f"{run.title} {run.at} {run.items}" for run in self._runs.values())]
        text = show.HTML(f"<pre>{html.escape(chr(10).join(lines))}</pre>")
        if self._handle is None:
            self._handle = show.display(text, display_id=True)
        else:
            self._handle.update(text)
