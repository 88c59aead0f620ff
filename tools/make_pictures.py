"""Make the pictures that the documentation shows: ``python tools/make_pictures.py`` writes them to ``docs/images``.

Time stands still while their runs are made, but for what steps take, so they are the same each time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stategraph import (
    CheckpointConfig,
    ExecutionError,
    GraphConfig,
    InterruptNode,
    MapNode,
    NodeContext,
    ParallelNode,
    RetryPolicy,
    State,
    StateGraph,
    key_equals,
    key_exists,
)
from stategraph._values import clock
from stategraph.picture import Picture
from stategraph.stores.memory import MemoryStore
from stategraph.testing import fixed

IMAGES = Path(__file__).parents[1] / "docs" / "images"
SECONDS = (0.031, 0.42, 1.7, 0.08, 2.6, 0.004)
"""What steps take, one after the other."""


def _config(name: str) -> GraphConfig:
    checkpoint = CheckpointConfig(interval=1, retention="full", preserve=True)
    return GraphConfig(name, checkpoint=checkpoint)


def _goes_on(state: State) -> dict[str, Any]:
    return {}


def _estimate() -> StateGraph:
    """-> a graph that is nested in that of a claim: it asks for prices until they are near to each other."""
    graph = StateGraph(_config("estimate"))
    graph.add_node("ask prices", lambda state: {"rounds": state.get("rounds", 0) + 1}, timeout=20)
    graph.add_node("compare", lambda state: {"far apart": state["rounds"] % 2 == 1})
    graph.add_node("settle", lambda state: {"amount": 4_800})
    graph.add_edge("ask prices", "compare")
    graph.add_edge("compare", "ask prices", key_equals("far apart", True), name="far apart")
    graph.add_edge("compare", "settle")
    graph.set_entry_point("ask prices")
    graph.set_exit_point("settle")
    return graph


def _read(state: State, context: NodeContext) -> dict[str, Any]:
    """Fail once, then read the claim."""
    if context.attempt == 1:
        raise ConnectionError("the mail server does not answer")
    return {"photos": [1, 2, 3]}


def claim(store: MemoryStore) -> StateGraph:
    """-> a graph with all that a graph can have."""
    graph = StateGraph(_config("claim"), store=store)
    graph.add_node("read", _read, retry=RetryPolicy(max_attempts=3, initial_delay=0), on_error="return")
    graph.add_node("look at photos", MapNode(lambda photo: "a dent", over="photos", into="damages"))
    graph.add_node("check", ParallelNode({"identity": _goes_on, "policy": _goes_on, "history": _goes_on}))
    graph.add_node("estimate", _estimate().as_node())
    graph.add_node("approve", InterruptNode("amount", "verdict", reason="is this worth 4,800?"))
    graph.add_node("pay", _pay)
    graph.add_node("return", _goes_on)
    for source, target in (("read", "look at photos"), ("look at photos", "check"), ("check", "estimate")):
        graph.add_edge(source, target)
    graph.add_edge("estimate", "pay", key_equals("amount", 0))
    graph.add_edge("estimate", "approve")
    graph.add_edge("approve", "estimate", key_equals("verdict", "again"))
    graph.add_edge("approve", "pay", key_equals("verdict", "yes"))
    graph.add_edge("approve", "return", key_exists("verdict"))
    graph.set_entry_point("read")
    graph.set_exit_point("pay")
    graph.set_exit_point("return")
    return graph


def review(store: MemoryStore) -> StateGraph:
    """-> the graph of the README."""
    graph = StateGraph(_config("document-review"), store=store)
    graph.add_node("draft", lambda state: {"drafts": state.get("drafts", 0) + 1})
    graph.add_node("review", lambda state: {"verdict": "good" if state["drafts"] > 1 else "rework"})
    graph.add_node("publish", _goes_on)
    graph.add_edge("draft", "review")
    graph.add_edge("review", "draft", key_equals("verdict", "rework"))
    graph.add_edge("review", "publish")
    graph.set_entry_point("draft")
    graph.set_exit_point("publish")
    return graph


def _pay(state: State) -> dict[str, Any]:
    raise ConnectionError("the bank is closed")


@contextmanager
def _steps_take_time() -> Iterator[None]:
    """Let steps take what SECONDS says; all other clocks stand still."""
    with fixed():
        readings = _readings()
        clock.monotonic_ns = readings.__next__
        yield


def _readings() -> Iterator[int]:
    now = 0
    while True:
        for seconds in SECONDS:
            yield now
            now += round(seconds * 1e9)


def pictures() -> dict[str, Picture]:
    """-> the pictures by the names of their files."""
    with _steps_take_time():
        store = MemoryStore()
        graph = claim(store)
        made = {"claim.svg": graph.picture()}
        graph.execute(State(run_id="claim-7"))
        made["claim-waiting.svg"] = graph.picture("claim-7")
        graph.resume("claim-7", {"verdict": "again"})
        try:
            graph.resume("claim-7", {"verdict": "yes"})
        except ExecutionError:
            made["claim-failed.svg"] = graph.picture("claim-7")
        graph = review(store)
        graph.execute(State(run_id="review-42"))
        made["review.svg"] = graph.picture("review-42")
    return made


def main() -> None:
    """Write them."""
    IMAGES.mkdir(exist_ok=True)
    for name, picture in pictures().items():
        picture.save(IMAGES / name)


if __name__ == "__main__":
    main()
