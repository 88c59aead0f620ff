"""The "progress" observer: shows how runs go on to the person who waits for them."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from typing import Any, TextIO

from stategraph._text.screen import cut, span
from stategraph._util.validators import is_duration
from stategraph._values.events import PART_EVENTS, Event, EventType
from stategraph.errors import ConfigError
from stategraph.observers._views import NAME, Lines, Live, Notebook, View, Watched
from stategraph.observers.base import Observer

_ENDS = {EventType.GRAPH_COMPLETE: "green", EventType.GRAPH_PAUSE: "yellow", EventType.GRAPH_ERROR: "red"}
_STEPS = (EventType.GRAPH_START, EventType.NODE_START, EventType.NODE_COMPLETE, EventType.NODE_RETRY)
_WANTED = frozenset({*_ENDS, *_STEPS, *PART_EVENTS})


class ProgressObserver(Observer):
    """Shows how runs go on: on a terminal with bars that move, in a notebook below the cell, elsewhere as plain lines.

    Args:
        stream: Where to write; stderr if it is None.
        every: Seconds between two lines about the items of a node, or about quick steps, where lines are plain.

    Raises:
        ConfigError: `every` is no number of seconds.
    """

    def __init__(self, stream: TextIO | None = None, every: float = 1.0) -> None:
        if not is_duration(every):
            raise ConfigError("every", every, "a number of seconds from 0 on")
        self._stream, self._every = stream, every
        self._lock = threading.RLock()  # a node that prints may come to here again
        self._runs: dict[tuple[str, str], Watched] = {}
        self._view: View | None = None

    def wants(self, type: EventType) -> bool:
        return type in _WANTED

    def on_event(self, event: Event) -> None:
        with self._lock:
            self._take(event, event.type, event.data)

    def _take(self, event: Event, type: EventType, data: Mapping[str, Any]) -> None:
        key, outer = (data["call_id"], data["run_id"]), (data["call_id"], data.get("parent_run_id", ""))
        if type is EventType.GRAPH_START:
            self._runs[key] = _begun(event.source, data, self._runs.get(outer))
        run = self._runs.get(key) or _begun(event.source, data, self._runs.get(outer))
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
                run.begin(data)
            elif type in PART_EVENTS:
                run.count(data)
            elif type is EventType.NODE_RETRY:
                view.note(run, _retry(data), "yellow")
                run.begin_items()
            view.show(run)

    def _new_view(self) -> View:
        stream = sys.stderr if self._stream is None else self._stream
        shell = getattr(sys.modules.get("IPython"), "get_ipython", bool)()
        if self._stream is None and shell and hasattr(shell, "kernel"):  # a notebook shows what is displayed
            return Notebook()
        if stream.isatty() and os.environ.get("TERM") != "dumb":
            try:
                return Live(stream)
            except ModuleNotFoundError:  # rich is not installed
                pass
        return Lines(stream, self._every)


def _begun(graph: str, data: Mapping[str, Any], outer: Watched | None) -> Watched:
    if outer is None:
        return Watched(f"{cut(graph, NAME)} {cut(data['run_id'], NAME)}")
    return Watched(outer.title, f"{outer.path}{cut(data['parent_node'], NAME)} > ")


def _step(run: Watched, data: Mapping[str, Any]) -> str:
    parts = (
        "" if data["took"] is None else span(data["took"]),
        run.items,
        f"{data['attempts']} attempts" if data["attempts"] > 1 else "",
    )
    failed = "" if data["outcome"] == "completed" else "failed, and is handled; "
    return f"{run.at}: {failed}{', '.join(filter(None, parts))}"


def _retry(data: Mapping[str, Any]) -> str:
    failed = f"attempt {data['attempt']} failed ({cut(data['error'])})"
    return f"{cut(data['node'], NAME)}: {failed}, again in {span(data['delay'])}"


def _end(type: EventType, data: Mapping[str, Any]) -> str:
    """Return how a run has ended, in words."""
    took = "" if data.get("took") is None else f", {span(data['took'])}"
    if type is EventType.GRAPH_COMPLETE:
        return f"completed after {data['step']} step{'' if data['step'] == 1 else 's'}{took}"
    if type is EventType.GRAPH_PAUSE:
        asks = "" if data["response_param"] is None else f", for {cut(data['response_param'], NAME)}"
        return f"paused at {cut(data['pause_node'], NAME)}{asks}: {cut(data['reason'])}"
    attempts = f" after {data['attempts']} attempts" if data["attempts"] > 1 else ""
    return f"ended at {cut(data['node'], NAME)}{attempts}{took}: {cut(data['error'])}"
