"""Random edits of States that cover all the ways in which a store keeps changes."""

from __future__ import annotations

from typing import Any, TypeAlias

from hypothesis import strategies as st

from stategraph.state import State
from stategraph.stores.base import Policy
from stategraph.testing.corpus import Order

Edits: TypeAlias = list[tuple[str, str, Any]]

RUN_IDS = st.sampled_from(["a", "b", "a/c"])
HANDLES = st.integers(0, 1)
STATUSES = st.sampled_from(["active", "failed", "completed", "paused"])
KEYS = st.sampled_from(["log", "note", "nest", "z"])
ATOMS = st.one_of(
    st.sampled_from([None, True, 1, 1.0, 0, False, -0.0, "", "a", b"a", 2**70, "x" * 3_000]), st.integers(-5, 5)
)
VALUES = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["k", 1, None, (1, "t"), 2.5]), inner, max_size=2),
        st.tuples(inner, st.lists(inner, max_size=2)),
    ),
    max_leaves=5,
)
EDITS = st.lists(
    st.one_of(
        st.tuples(st.just("grow"), KEYS, VALUES),
        st.tuples(st.just("put"), KEYS, VALUES),
        st.tuples(st.just("inside"), KEYS, VALUES),
        st.tuples(st.just("remove"), KEYS, st.none()),
        st.tuples(st.just("move"), KEYS, st.none()),
        st.tuples(st.just("order"), st.just("order"), ATOMS),
        st.tuples(st.just("fatten"), KEYS, st.integers(4_000, 12_000)),
    ),
    max_size=3,
)
_MANY: Any = {
    "retention": "windowed",
    "window": 1_000,
}  # more than there are; what "full" adds: tests/stores/test_revisions.py
POLICIES = st.sampled_from(
    [
        *(Policy(), Policy(**_MANY), Policy(**_MANY), Policy("windowed", window=2), Policy("windowed", window=4)),
        *(Policy(ttl=1e-6), Policy(**_MANY, ttl=3_600.0), Policy(**_MANY, ttl=1e-6)),
    ]
)


def _edited_inside(old: Any, value: Any) -> Any:
    """Return a value with another one in one of its innermost containers; a list is also trimmed at the front."""
    if isinstance(old, list) and old:
        return [*old[1:-1], _edited_inside(old[-1], value)]
    if isinstance(old, dict) and old:
        *_, key = old
        return {**old, key: _edited_inside(old[key], value), "new": value}
    return value


def edited(state: State, edits: Edits) -> State:
    """Return a State with other data; orders are changed in place, as nodes may do."""
    for kind, key, value in edits:
        if kind == "put":
            state = state.set(key, value)
        elif kind == "fatten":
            state = state.set(key, ["y" * value])
        elif kind == "grow":
            old = state.get(key)
            state = state.set(key, [*old, value] if isinstance(old, list) else [value])
        elif kind == "inside":
            state = state.set(key, _edited_inside(state.get(key), value))
        elif kind == "order":
            order = state.get("order") or Order(1, [])
            order.items.append(value)
            state = state.set("order", order)
        elif key in state:
            state = state.remove(key) if kind == "remove" else state.remove(key).set(key, state[key])
    return state
