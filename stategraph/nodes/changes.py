"""What a node has changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from stategraph._values.frozen import changed_items, plain_key
from stategraph.nodes.function import data_from
from stategraph.state import State, data_of


def changes_from(result: object, state: State) -> tuple[dict[str, Any], list[str]]:
    """Return what a node that was given `state` has changed, by keys, and the keys that it has removed.

    Raises:
        TypeError, ValueError, NotSerializableError: a node may not return this.
    """
    before, after = data_of(state), data_from(result, state)
    if isinstance(result, State):
        changed = changed_items(before, after)
    else:
        changed = {key: after[key] for key in map(plain_key, cast(Mapping[str, Any], result))}
    return changed, [key for key in before if key not in after]
