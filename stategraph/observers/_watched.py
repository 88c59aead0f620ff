"""Runs as they are shown to who waits for them, and what shows them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Protocol

import attrs

from stategraph._text.screen import cut, span

NAME = 60
"""Characters of a name that are shown."""


@attrs.define(eq=False)
class Watched:
    """A run, or a nested one, as it is shown.

    Attributes:
        title: The graph and the id of the outermost run.
        path: What leads to its nodes from the outermost graph.
        at: The step and the node that is under way.
        began: When that began, as time.monotonic tells it.
        done: How many of its items are done, and how many of them were so before it began.
        total: How many items it has; 0 if it has none.
        failed: How many have failed.
        outer: The run that it is nested in.
    """

    title: str
    path: str = ""
    at: str = ""
    began: float = attrs.field(factory=time.monotonic)
    done: int = 0
    found: int = 0
    total: int = 0
    failed: int = 0
    outer: Watched | None = None

    def begin(self, data: Mapping[str, Any]) -> None:
        """Come to the next node."""
        self.at = f"step {data['step']} {self.path}{cut(data['node'], NAME)}"
        self.begin_items(0)

    def begin_items(self, total: int) -> None:
        """Begin a node, or another attempt of it."""
        self.began, self.total = time.monotonic(), total
        self.done = self.found = self.failed = 0

    def count(self, data: Mapping[str, Any]) -> None:
        """Take a part that has ended."""
        self.total, outcome = data["total"], data["outcome"]
        if outcome != "failed":
            self.done += 1
        self.found += outcome == "found"
        self.failed += outcome in {"failed", "collected"}

    @property
    def items(self) -> str:
        """How many items are done, how fast, and how long the others will take."""
        if not self.total:
            return ""
        made, seconds = self.done - self.found, max(time.monotonic() - self.began, 1e-6)
        told = [f"{self.done}/{self.total} items"]
        if self.failed:
            told.append(f"{self.failed} failed")
        if made:
            rate = made / seconds
            told.append(f"{rate:.0f}/s" if rate >= 10 else f"{rate:.1f}/s" if rate >= 1 else f"{span(1 / rate)} each")
            told += [f"{span((self.total - self.done) / rate)} left"] if self.done < self.total else []
        return ", ".join(told)


class View(Protocol):
    """Where runs are shown. It is asked by one thread at a time."""

    def show(self, run: Watched) -> None:
        """Show a run as it is now, if it is time to."""

    def step(self, run: Watched, text: str) -> None:
        """Say that a step of a run is done."""

    def note(self, run: Watched, text: str, style: str) -> None:
        """Say something that is to be seen, whatever comes next."""

    def end(self, run: Watched, text: str, style: str) -> None:
        """Show a run no more; say how it has ended, if that is said."""

    def close(self) -> None:
        """Show nothing more: no run is at work."""
