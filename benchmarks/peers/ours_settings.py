"""stategraph, a step that changes 10 KB, with one setting of the checkpoint changed."""

from __future__ import annotations

import random
import string
from collections.abc import Mapping
from typing import Any

from benchmarks import scratch
from benchmarks.counters import START
from benchmarks.measure import Run
from benchmarks.peers.ours import execution, loop_graph
from stategraph import CheckpointConfig, State, get_checkpoint_store

_WORDS = ["".join(random.Random(n).choices(string.ascii_lowercase, k=7)) for n in range(500)]


def usual(steps: int) -> Run:
    """The store "sqlite", each step saved, and otherwise the defaults."""
    return _changing(steps)


def not_saved(steps: int) -> Run:
    """The node alone, and what a step takes besides it."""
    return _changing(steps, interval=0)


def every_tenth(steps: int) -> Run:
    """Every tenth step saved."""
    return _changing(steps, interval=10)


def saved_behind(steps: int) -> Run:
    """Durability "async", with the wait at the end."""
    return _changing(steps, durability="async")


def saved_at_exit(steps: int) -> Run:
    """Durability "exit"."""
    return _changing(steps, durability="exit")


def full(steps: int) -> Run:
    """Retention "full"."""
    return _changing(steps, retention="full")


def windowed(steps: int) -> Run:
    """Retention "windowed", ten steps."""
    return _changing(steps, retention="windowed", window=10)


def as_json(steps: int) -> Run:
    """The serializer "json"."""
    return _changing(steps, serializer="json")


def compressed(steps: int) -> Run:
    """The option compress."""
    return _changing(steps, options={"compress": True})


def signed(steps: int) -> Run:
    """The option sign_with."""
    return _changing(steps, options={"sign_with": lambda: b"a key of sixteen bytes, or more"})


def on_disk(steps: int) -> Run:
    """The store "disk"."""
    return _changing(steps, store="disk")


def _changing(steps: int, store: str = "sqlite", options: Mapping[str, Any] | None = None, **setting: Any) -> Run:
    serializer = setting.pop("serializer", "msgpack")
    given = {"path": str(scratch.folder() / "runs"), "serializer": serializer, **(options or {})}
    kept = get_checkpoint_store(store, **given)
    scratch.at_end(kept.close)
    checkpoint = CheckpointConfig(**{"store": store, "interval": 1, "preserve": True, **setting})
    return execution(loop_graph(_write, steps, checkpoint, kept), State({**START, "text": ""}))


def _write(state: State) -> Mapping[str, Any]:
    n = state["n"] + 1
    return {"n": n, "text": " ".join(random.Random(n).choices(_WORDS, k=1_250))}
