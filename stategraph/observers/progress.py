"""The "progress" observer: shows the progress of runs on a terminal, in a notebook, or as plain lines."""

from __future__ import annotations

import html
import os
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any, TextIO, TypeAlias

import attrs

from stategraph._text.shown import cut, span
from stategraph._util.validators import is_duration
from stategraph._values.events import PART_EVENTS, Event, EventType, Observer
from stategraph.errors import ConfigError

_Data: TypeAlias = Mapping[str, Any]
_NAME = 60  # characters of a name that are shown
MOST_LINES = 20
"""How many runs have a line on a terminal at the same time. Other runs wait for a free line."""
_REFRESH = 0.2  # seconds between two updates of a notebook
_MOST_KEPT = 200  # lines that stay in a notebook
_FIRST = 200  # plain lines about steps before they become rare: a person reads no more
_ENDS = {EventType.GRAPH_COMPLETE: "green", EventType.GRAPH_PAUSE: "yellow", EventType.GRAPH_ERROR: "red"}
_STEPS = (EventType.GRAPH_START, EventType.NODE_START, EventType.NODE_COMPLETE, EventType.NODE_RETRY)
_WANTED = frozenset({*_ENDS, *_STEPS, *PART_EVENTS})


class ProgressObserver(Observer):
    """Shows the progress of runs: bars on a terminal, one output in a notebook, plain lines elsewhere.

    Args:
        stream: Where to write; stderr if it is None.
        every: Seconds between two plain lines about items, and about steps once there were many.

    Raises:
        ConfigError: `every` is not a number of seconds.
    """

    def __init__(self, stream: TextIO | None = None, every: float = 1.0) -> None:
        if not is_duration(every):
            raise ConfigError("every", every, "a non-negative number of seconds")
        self._stream, self._every = stream, every
        self._lock = threading.RLock()  # a node that prints may re-enter
        self._runs: dict[tuple[str, str], Watched] = {}
        self._view: View | None = None

    def wants(self, type: EventType) -> bool:
        return type in _WANTED

    def on_event(self, event: Event) -> None:
        with self._lock:
            self._show(event.type, event.source, event.data)

    def _show(self, type: EventType, graph: str, data: _Data) -> None:
        key, outer = (data["call_id"], data["run_id"]), (data["call_id"], data.get("parent_run_id", ""))
        run = self._runs.get(key)
        if run is None:  # other events may come after the end of a run
            run = _begun(graph, data, self._runs.get(outer))
            if type is EventType.GRAPH_START:
                self._runs[key] = run
        view = self._view = self._view or self._new_view()
        if type in _ENDS:
            self._runs.pop(key, None)
            view.end(run, "" if run.path and type is EventType.GRAPH_COMPLETE else _end(type, data), _ENDS[type])
            if not self._runs:
                view.close()
                self._view = None  # the next run may find another stderr
        elif type is EventType.NODE_COMPLETE:
            view.step(run, _step(run, data))
        else:
            if type is EventType.NODE_START:
                run.begin(f"step {data['step']} {run.path}{cut(data['node'], _NAME)}")
            elif type in PART_EVENTS:
                run.count(data)
            elif type is EventType.NODE_RETRY:
                view.note(run, _retry(data), "yellow")
                run.begin(run.at)
            view.show(run)

    def _new_view(self) -> View:
        stream = sys.stderr if self._stream is None else self._stream
        shell = getattr(sys.modules.get("IPython"), "get_ipython", bool)()
        if self._stream is None and shell and hasattr(shell, "kernel"):  # a terminal with IPython has no kernel
            return Notebook()
        if stream.isatty() and os.environ.get("TERM") != "dumb":
            try:
                return Live(stream)
            except ModuleNotFoundError:  # rich is not installed
                pass
        return Lines(stream, self._every)


# --------------------------------------------------------------------------- texts


def _begun(graph: str, data: _Data, outer: Watched | None) -> Watched:
    if outer is None:
        return Watched(f"{cut(graph, _NAME)} {cut(data['run_id'], _NAME)}")
    return Watched(outer.title, f"{outer.path}{cut(data['parent_node'], _NAME)} > ")


def _step(run: Watched, data: _Data) -> str:
    took = "" if data["took"] is None else span(data["took"])
    attempts = f"{data['attempts']} attempts" if data["attempts"] > 1 else ""
    failed = "" if data["outcome"] == "completed" else "failed, and is handled; "
    return f"{run.at}: {failed}{', '.join(filter(None, (took, run.items, attempts)))}"


def _retry(data: _Data) -> str:
    failed = f"attempt {data['attempt']} failed ({cut(data['error'])})"
    return f"{cut(data['node'], _NAME)}: {failed}, again in {span(data['delay'])}"


def _end(type: EventType, data: _Data) -> str:
    """Return in words how a run ended."""
    took = "" if data.get("took") is None else f", {span(data['took'])}"
    if type is EventType.GRAPH_COMPLETE:
        return f"completed after {data['step']} step{'' if data['step'] == 1 else 's'}{took}"
    if type is EventType.GRAPH_PAUSE:
        asks = "" if data["response_param"] is None else f", for {cut(data['response_param'], _NAME)}"
        return f"paused at {cut(data['pause_node'], _NAME)}{asks}: {cut(data['reason'])}"
    attempts = f" after {data['attempts']} attempts" if data["attempts"] > 1 else ""
    return f"ended at {cut(data['node'], _NAME)}{attempts}{took}: {cut(data['error'])}"


# --------------------------------------------------------------------------- runs and their views


@attrs.define(eq=False)
class Watched:
    """The progress of a run, which may be nested.

    Attributes:
        title: The graph and the id of the outermost run.
        path: The path from the outermost graph to its nodes.
        at: The current step and node.
        began: When the current attempt of the node began, by time.monotonic.
        done: How many items are done.
        found: How many of these were done before the attempt.
        total: How many items the node has; 0 if it has none.
        failed: How many items have failed.
    """

    title: str
    path: str = ""
    at: str = ""
    began: float = attrs.field(factory=time.monotonic)
    done: int = 0
    found: int = 0
    total: int = 0
    failed: int = 0

    def begin(self, at: str) -> None:
        """Begin an attempt of a node."""
        self.at, self.began = at, time.monotonic()
        self.done = self.found = self.failed = self.total = 0

    def count(self, data: _Data) -> None:
        """Count an item that has ended."""
        self.total, outcome = data["total"], data["outcome"]
        self.done += outcome != "failed"
        self.found += outcome == "found"
        self.failed += outcome in {"failed", "collected"}

    @property
    def items(self) -> str:
        """How many items are done, the rate, and the time that is left."""
        if not self.total:
            return ""
        parts = [f"{self.done}/{self.total} items"]
        if self.failed:
            parts.append(f"{self.failed} failed")
        made = self.done - self.found
        if made:
            rate = made / max(time.monotonic() - self.began, 1e-6)
            parts.append(f"{rate:.0f}/s" if rate >= 10 else f"{rate:.1f}/s" if rate >= 1 else f"{span(1 / rate)} each")
            if self.done < self.total:
                parts.append(f"{span((self.total - self.done) / rate)} left")
        return ", ".join(parts)


class View:
    """Shows runs. Only one thread at a time calls it."""

    def show(self, run: Watched) -> None:
        """Show the current progress of a run, if an update is due."""

    def step(self, run: Watched, text: str) -> None:
        """Report a completed step. By default only steps with items stay: the next step replaces others at once."""
        if run.total:
            self.note(run, text, "")

    def note(self, run: Watched, text: str, style: str) -> None:
        """Write a line that stays."""

    def end(self, run: Watched, text: str, style: str) -> None:
        """Remove a run, and write how it ended unless the text is empty."""
        if text:
            self.note(run, f"{run.path}{text}", style)

    def close(self) -> None:
        """Stop: no run is at work."""


class Lines(View):
    """Plain lines for a log, a pipe, or a simple terminal.

    Args:
        stream: Where to write.
        every: Seconds between two lines about items, and about steps once there were many.
    """

    def __init__(self, stream: TextIO, every: float) -> None:
        self._stream, self._every = stream, every
        self._last: dict[Watched, float] = {}  # when each run had its last line
        self._steps = 0

    def show(self, run: Watched) -> None:
        if run.total and self._is_due(run):
            self.note(run, f"{run.at}: {run.items}", "")

    def step(self, run: Watched, text: str) -> None:
        self._steps += 1
        if self._steps <= _FIRST or self._is_due(run):
            self.note(run, text, "")
        self._last[run] = time.monotonic()

    def note(self, run: Watched, text: str, style: str) -> None:
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        line = f"[{run.title}] {text}\n".encode(encoding, "backslashreplace")
        self._stream.write(line.decode(encoding))
        self._stream.flush()

    def end(self, run: Watched, text: str, style: str) -> None:
        self._last.pop(run, None)
        super().end(run, text, style)

    def _is_due(self, run: Watched) -> bool:
        now, last = time.monotonic(), self._last.setdefault(run, run.began)
        if now - last < self._every:
            return False
        self._last[run] = now
        return True


class Live(View):
    """A line for each run on a terminal, with a bar for its items. Lines that stay move up.

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
        self._tasks: dict[Watched, TaskID] = {}
        self._bars.start()

    def show(self, run: Watched) -> None:
        task = self._tasks.get(run)
        about: dict[str, Any] = {"description": f"{run.title} {run.at}", "items": run.items, "total": run.total or None}
        if task is None:
            if len(self._tasks) < MOST_LINES:
                self._tasks[run] = self._bars.add_task(completed=run.done, **about)
        elif run.done or run.failed:
            self._bars.update(task, completed=run.done, **about)
        else:
            self._bars.reset(task, **about)

    def note(self, run: Watched, text: str, style: str) -> None:
        self._console.print(f"{run.title} {text}", style=style or None, soft_wrap=True)

    def end(self, run: Watched, text: str, style: str) -> None:
        if run in self._tasks:
            self._bars.remove_task(self._tasks.pop(run))
        super().end(run, text, style)

    def close(self) -> None:
        self._bars.stop()


class Notebook(View):
    """One output below the cell of a notebook: lines that stay, then the runs that are at work."""

    def __init__(self) -> None:
        self._runs: dict[Watched, None] = {}
        self._kept: list[str] = []
        self._handle: Any = None
        self._last = 0.0

    def show(self, run: Watched) -> None:
        self._runs[run] = None
        if time.monotonic() - self._last >= _REFRESH:
            self.close()

    def note(self, run: Watched, text: str, style: str) -> None:
        self._kept = [*self._kept, f"{run.title} {text}"][-_MOST_KEPT:]
        self.close()

    def end(self, run: Watched, text: str, style: str) -> None:
        self._runs.pop(run, None)
        super().end(run, text, style)

    def close(self) -> None:
        from IPython import display  # present in a notebook

        show: Any = display
        self._last = time.monotonic()
        lines = [*self._kept, *(f"{run.title} {run.at} {run.items}" for run in self._runs)]
        text = show.HTML(f"<pre>{html.escape(chr(10).join(lines))}</pre>")
        if self._handle is None:
            self._handle = show.display(text, display_id=True)
        else:
            self._handle.update(text)
