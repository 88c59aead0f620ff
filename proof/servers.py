"""Trials of stores on servers: a server is killed under load, the network fails, owners are killed or frozen.

The trials are the same for each server; its class in `proof.serving.server` knows how to disturb it.
"""

from __future__ import annotations

from collections.abc import Callable

from proof.report import Report
from proof.serving import outages, owners
from proof.serving.server import SERVERS, Server

TRIALS: dict[Callable[[Server, int, int], Report], tuple[int, int]] = {
    outages.killed: (20, 1),
    outages.networks: (20, 1),
    outages.read_only: (4, 2),
    owners.struck: (100, 10),
    owners.sweepers: (60, 12),
}
"""The rounds of each trial at full length, and their minimum."""


def prove(share: float, seed: int) -> list[Report]:
    """Run all trials on all servers."""
    return [
        trial(server(), max(least, round(most * share)), seed)
        for server in SERVERS.values()
        for trial, (most, least) in TRIALS.items()
    ]
