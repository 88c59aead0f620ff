"""Values of which every step changes a little, with sqlite and a full history."""

from __future__ import annotations

from benchmarks import scratch
from benchmarks.edits import EDITS
from benchmarks.measure import Run
from stategraph.state import State, evolve
from stategraph.stores.base import RetentionPolicy
from stategraph.stores.sqlite import SqliteStore


def _saved(name: str, steps: int) -> Run:
    store, edit = SqliteStore(scratch.folder() / "runs.db"), EDITS[name]
    scratch.at_end(store.close)
    store.retain("run", RetentionPolicy("full"))

    def run() -> None:
        state = State({"value": edit.start()}, run_id="run")
        store.save(state)
        for step in range(1, steps + 1):
            state = evolve(state.set("value", edit.change(state["value"], step)), step=step)
            store.save(state)

    return run


def gains(steps: int) -> Run:
    """A dict that gains 1 KB a step."""
    return _saved("gains", steps)


def last(steps: int) -> Run:
    """200 messages, of which the last one is edited."""
    return _saved("last", steps)


def window(steps: int) -> Run:
    """The last 50 messages."""
    return _saved("window", steps)


def trimmed(steps: int) -> Run:
    """10,000 messages, of which a step removes the first ten."""
    return _saved("trimmed", steps)
