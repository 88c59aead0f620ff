"""The "progress" observer: how runs go on, for who waits for them."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any, TextIO

from stategraph._text.screen import cut, span
from stategraph._values.events import PART_EVENTS, Event, EventType
from stategraph.errors import ConfigError
from stategraph.observers._watched import NAME, View, Watched
from stategraph.observers.base import Observer

_ENDS = {
    EventType.GRAPH_COMPLETE: "green",
    EventType.GRAPH_PAUSE: "yellow",
    EventType.GRAPH_ERROR: "red",
}
_WANTED = frozenset({EventType.GRAPH_START, EventType.NODE_START, EventType.NODE_COMPLETE, EventType.NODE_RETRY})


class ProgressObserver(Observer):
    """Shows how runs go on: on a terminal with bars that move, in a notebook below the cell, elsewhere as plain lines.

    Args:
        stream: Where to write; stderr if it is None.
        every: Seconds between two lines about the items of a node, or about quick steps, where lines are plain.

    Raises:
        ConfigError: `every` is no number of seconds.
    """

    def __init__(self, stream: TextIO | None = None, every: float = 1.0) -> None:
        if not isinstance(every, int | float) or isinstance(every, bool) or not every >= 0:
            raise ConfigError("every", every, "a number of seconds from 0 on")
        self._stream, self._every = stream, every
        self._lock = threading.RLock()  # a node that prints may come to here again
        self._runs: dict[tuple[str, str], Watched] = {}
        self._view: View | None = None

    def wants(self, type: EventType) -> bool:
        return type in _WANTED or type in _ENDS or type in PART_EVENTS

    def on_event(self, event: Event) -> None:
        with self._lock:
            self._take(event, event.type, event.data)

    def _take(self, event: Event, type: EventType, data: Mapping[str, Any]) -> None:
        key = data["call_id"], data["run_id"]
        if type is EventType.GRAPH_START:
            self._runs[key] = self._begun(event.source, data)
        run = self._runs.get(key) or self._begun(event.source, data)
        view = self._view = self._view or self._new_view()
        if type in _ENDS:
            self._runs.pop(key, None)
            view.end(run, "" if run.outer and type is EventType.GRAPH_COMPLETE else _end(type, data), _ENDS[type])
            if not self._runs:
                view.close()
                self._view = None  # the next run may find another stderr
            return
        if type is EventType.NODE_START:
            run.begin(data)
        elif type in PART_EVENTS:
            run.count(data)
        elif type is EventType.NODE_RETRY:
            view.note(run, _retry(data), "yellow")
            run.begin_items(0)
        elif type is EventType.NODE_COMPLETE:
            view.step(run, _step(run, data))
            return
        view.show(run)

    def _begun(self, graph: str, data: Mapping[str, Any]) -> Watched:
        outer = self._runs.get((data["call_id"], data.get("parent_run_id", "")))
        if outer is None:
            return Watched(f"{cut(graph, NAME)} {cut(data['run_id'], NAME)}")
        return Watched(outer.title, f"{outer.path}{cut(data['parent_node'], NAME)} > ", outer=outer)

    def _new_view(self) -> View:
        stream = sys.stderr if self._stream is None else self._stream
        if self._stream is None and _is_notebook():
            from stategraph.observers._notebook import Notebook  # imported when used

            return Notebook()
        if stream.isatty() and os.environ.get("TERM") != "dumb":
            try:
                from stategraph.observers._live import Live  # imported when used: rich takes 60 ms
            except ModuleNotFoundError:  # it is not installed
                return Lines(stream, self._every)
            return Live(stream)
        return Lines(stream, self._every)


def _is_notebook() -> bool:
    """Return whether this runs in a notebook, which shows what is displayed."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", bool)()
    return bool(shell) and hasattr(shell, "kernel")


def _step(run: Watched, data: Mapping[str, Any]) -> str:
    told = [span(data["took"])] if data["took"] is not None else []
    told += [run.items] if run.total else []
    told += [f"{data['attempts']} attempts"] if data["attempts"] > 1 else []
    failed = "" if data["outcome"] == "completed" else "failed, and is handled; "
    return f"{run.at}: {failed}{', '.join(told)}"


def _retry(data: Mapping[str, Any]) -> str:
    return (
        f"{cut(data['node'], NAME)}: attempt {data['attempt']} failed ({cut(data['error'])}), again in "
        f"{span(data['delay'])}"
    )


def _end(type: EventType, data: Mapping[str, Any]) -> str:
    """Return how a run has ended, in words."""
    steps = f"{data['step']} step{'' if data['step'] == 1 else 's'}"
    took = "" if data.get("took") is None else f", {span(data['took'])}"
    if type is EventType.GRAPH_COMPLETE:
        return f"completed after {steps}{took}"
    if type is EventType.GRAPH_PAUSE:
        asks = "" if data["response_param"] is None else f", for {cut(data['response_param'], NAME)}"
        return f"paused at {cut(data['pause_node'], NAME)}{asks}: {cut(data['reason'])}"
    attempts = f" after {data['attempts']} attempts" if data["attempts"] > 1 else ""
    return f"ended at {cut(data['node'], NAME)}{attempts}{took}: {cut(data['error'])}"


_FIRST = 200  # steps of a run, each of which has a line; those that come faster than one can read have no more than


class Lines:
    """Plain lines, for a log, a pipe, or a terminal that can do no more.

    Args:
        stream: Where to write.
        every: Seconds between two lines about items, and between those about steps once there were many.
    """

    def __init__(self, stream: TextIO, every: float) -> None:
        self._stream, self._every = stream, every
        self._last: dict[int, float] = {}  # by the identity of the run: when its items were told last
        self._steps = 0

    def show(self, run: Watched) -> None:
        if run.total and self._is_time(run):
            self._write(run, f"{run.at}: {run.items}")

    def step(self, run: Watched, text: str) -> None:
        self._steps += 1
        if self._steps <= _FIRST or self._is_time(run):
            self._write(run, text)
        self._last[id(run)] = time.monotonic()

    def note(self, run: Watched, text: str, style: str) -> None:
        self._write(run, text)

    def end(self, run: Watched, text: str, style: str) -> None:
        self._last.pop(id(run), None)
        if text:
            self._write(run, f"{run.path}{text}")

    def close(self) -> None:
        """Do nothing: the stream is not its own."""

    def _is_time(self, run: Watched) -> bool:
        now, last = time.monotonic(), self._last.setdefault(id(run), run.began)
        if now - last < self._every:
            return False
        self._last[id(run)] = now
        return True

    def _write(self, run: Watched, text: str) -> None:
        line = f"[{run.title}] {text}\n"
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        self._stream.write(line.encode(encoding, "backslashreplace").decode(encoding))
        self._stream.flush()
