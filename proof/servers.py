"""Stores on servers: the server is killed under load, the network fails, owners are frozen, killed and woken.

What is tried is the same for each server; how it is done to one of them, its class in `proof.serving.server` says.
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
"""How often each is made at full length, and at least."""


def prove(share: float, seed: int) -> list[Report]:
    """Make all trials on all servers."""
    return [
        trial(server(), max(least, round(most * share)), seed)
        for server in SERVERS.values()
        for trial, (most, least) in TRIALS.items()
    ]
