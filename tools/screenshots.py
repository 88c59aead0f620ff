"""Make the images of the page that the documentation shows: ``make screenshots`` writes them to ``docs/images``.

It takes Chromium, which the system has: ``apt-get install chromium``.
"""

from __future__ import annotations

import io
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from make_pictures import IMAGES
from PIL import Image

from stategraph import (
    CheckpointConfig,
    ExecutionError,
    GraphConfig,
    InterruptNode,
    MapNode,
    NodeContext,
    RetryPolicy,
    State,
    StateGraph,
    key_equals,
)
from stategraph.stores.base import CheckpointStore
from stategraph.stores.sqlite import SqliteStore
from stategraph.web import app
from tests.web.browser import CHROMIUM, MISSING, launched, served, window

ROOT = Path(__file__).parents[1]
_COLOURS = 64
_SIZE = {"width": 1240, "height": 800}


def _config(name: str) -> GraphConfig:
    checkpoint = CheckpointConfig(interval=1, retention="full", preserve=True)
    return GraphConfig(name, checkpoint=checkpoint)


def _looked_at(photo: str) -> str:
    time.sleep(0.02)
    if photo.endswith("17.jpg"):
        raise ValueError(f"{photo} is not an image: it begins with b'<!DOCTYPE h'")
    return "a dent" if photo.endswith("3.jpg") else "nothing"


def _read(state: State, context: NodeContext) -> dict[str, Any]:
    """Fail once, then read the claim."""
    time.sleep(0.06)
    if context.attempt == 1:
        raise ConnectionError("the mail server does not answer")
    return {"photos": [f"photo-{number}.jpg" for number in range(state["sent"])]}


def _asked(state: State) -> dict[str, Any]:
    time.sleep(0.09)
    return {"prices": [4_700, 4_900]}


def _estimate(store: CheckpointStore) -> StateGraph:
    """-> the graph that is nested in that of a claim."""
    graph = StateGraph(_config("estimate"), store=store)
    graph.add_node("ask prices", _asked)
    graph.add_node("settle", lambda state: {"amount": sum(state["prices"]) // 2})
    graph.add_edge("ask prices", "settle")
    graph.set_entry_point("ask prices")
    graph.set_exit_point("settle")
    return graph


def claims(store: CheckpointStore) -> StateGraph:
    """-> the graph of a claim."""
    graph = StateGraph(_config("claim"), store=store)
    graph.add_node("read", _read, retry=RetryPolicy(max_attempts=3, initial_delay=0))
    graph.add_node("look at photos", MapNode(_looked_at, over="photos", into="damages", max_workers=4))
    graph.add_node("estimate", _estimate(store).as_node(outputs=["amount"]))
    graph.add_node("approve", InterruptNode("amount", "approved", reason="is this worth so much?", schema=bool))
    graph.add_node("pay", lambda state: {"paid": state["amount"]})
    graph.add_node("return", lambda state: {"paid": 0})
    for source, target in (("read", "look at photos"), ("look at photos", "estimate"), ("estimate", "approve")):
        graph.add_edge(source, target)
    graph.add_edge("approve", "pay", key_equals("approved", True))
    graph.add_edge("approve", "return")
    graph.set_entry_point("read")
    graph.set_exit_point("pay")
    graph.set_exit_point("return")
    return graph


def _fill(graph: StateGraph) -> None:
    """Have runs of every kind."""
    for number in range(31, 43):
        state = State({"customer": f"c-{number % 7}", "sent": 4 + number % 3}, run_id=f"claim-{number}")
        graph.execute(state, by="web", labels={"region": "north" if number % 2 else "south"})
        if number % 4:
            graph.resume(state.run_id, {"approved": number % 3 > 0}, by="ann")
    graph.cancel("claim-40", by="bob")
    try:
        graph.execute(State({"customer": "c-3", "sent": 24}, run_id="claim-43"), by="web", labels={"region": "north"})
    except ExecutionError:
        graph.submit(State({"customer": "c-5", "sent": 3}, run_id="claim-44"), labels={"region": "south"})
    graph.store.fork("claim-41", "claim-41-again", 2)
    graph.execute(State({"customer": "c-1", "sent": 6}, run_id="claim-45"), by="web", labels={"region": "north"})


_WITHOUT_PLACES = """(body, folders) => {
  const walk = document.createTreeWalker(body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    for (const folder of folders) walk.currentNode.data = walk.currentNode.data.replaceAll(folder + "/", "");
    walk.currentNode.data = walk.currentNode.data.replace(/saved by [^ ]+:[0-9]+/, "saved by worker:4711");
  }
}"""
"""The images tell nothing of where they were made."""

_SHOTS = (
    ("web-runs", "/", "light"),
    ("web-waiting", "/run?id=claim-45", "light"),
    ("web-failed", "/run?id=claim-43", "dark"),
)


def main() -> None:
    """Make them."""
    if CHROMIUM is None:
        sys.exit(MISSING)
    with tempfile.TemporaryDirectory() as folder, SqliteStore(Path(folder) / "runs.db") as store:
        graph = claims(store)
        _fill(graph)
        page = app(store, [graph])
        with served(page) as address, launched() as browser:
            for name, path, scheme in _SHOTS:
                with window(browser, address, page.token, viewport=_SIZE, color_scheme=scheme) as shown:
                    shown.goto(shown.url.rstrip("/") + path)
                    shown.locator("body").evaluate(_WITHOUT_PLACES, [str(ROOT), str(Path(folder))])
                    _save(shown.screenshot(), IMAGES / f"{name}.png")


def _save(image: bytes, path: Path) -> None:
    """Save an image with few colours, which keeps it small."""
    few = Image.open(io.BytesIO(image)).convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE)
    few.save(path, optimize=True)


if __name__ == "__main__":
    main()
