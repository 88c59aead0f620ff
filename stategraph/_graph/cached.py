"""What can be wrong with the cache of a node."""

from __future__ import annotations

from collections.abc import Iterator

from stategraph._util.code_version import is_told
from stategraph.nodes.base import Node
from stategraph.nodes.interrupt import InterruptNode
from stategraph.policies import CachePolicy


def cache_problems(name: str, node: Node, policy: CachePolicy) -> Iterator[str]:
    """Yield what keeps the results of a node from being cached."""
    if isinstance(node, InterruptNode):
        yield f"node {name!r} pauses runs: what somebody answers cannot be cached"
    elif policy.version is None and not _is_told(node.made_of()):
        yield f"node {name!r} does more than its code tells: cache it with CachePolicy(version=...)"


def _is_told(made_of: tuple[object, ...] | None) -> bool:
    return made_of is not None and is_told(made_of)
