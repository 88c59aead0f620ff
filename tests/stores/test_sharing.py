"""Containers that are referred to again and again are written each time: how often is counted before, in any shape."""

import functools
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from stategraph import NotSerializableError, register_type
from stategraph._values.frozen import freeze_items
from stategraph.stores._codec import msgpack as codec
from stategraph.testing import is_same


@register_type
@attrs.frozen(cache_hash=True)
class Two:
    first: Any
    second: Any = None


def encoded(value: Any, **more: Any) -> bytes:
    """-> the bytes of a value, as they are when a State holds it."""
    return codec.encode([freeze_items({"value": value, **more})])


def repeated(make: Callable[[Any, int], Any], levels: int, value: Any) -> Any:
    return functools.reduce(make, range(levels), value)


def chained(make: Callable[[Any, Any], Any], levels: int = 60) -> Any:
    """-> a value in which each level refers to the two below it, so that it is met at many depths."""
    one, two = make(1, 2), make(3, 4)
    for _ in range(levels):
        one, two = two, make(one, two)
    return two


def hung(shared: Any, levels: int) -> Any:
    """-> a value in which another one is there once at each depth, and never twice at the same one."""
    return repeated(lambda chain, _: [chain, shared], levels, shared)


MANY = [*range(200_000)]

TOO_OFTEN: dict[str, Callable[[], Any]] = {
    "lists": lambda: chained(lambda one, two: [one, two]),
    "tuples": lambda: chained(lambda one, two: (one, two)),
    "dicts": lambda: chained(lambda one, two: {"one": one, "two": two}),
    "objects": lambda: chained(Two),
    "objects in lists": lambda: chained(lambda one, two: [Two(one, [two])], 40),
    "all": lambda: chained(lambda one, two: [{"one": Two(one)}, (one, {"two": [two]})], 24),
    "frozensets": lambda: repeated(lambda inner, n: frozenset({(inner, n), (inner, "x")}), 30, frozenset()),
    "sets of objects": lambda: repeated(lambda inner, n: Two(frozenset({Two(inner, n), Two(inner)})), 30, Two(0)),
    "keys": lambda: repeated(lambda inner, n: frozenset({(inner, n), (inner, "x")}), 30, frozenset()),
    "the same at each depth": lambda: hung(MANY, 90),
    "the same at each depth, with an object": lambda: hung([*MANY, Two(0)], 90),
    "a long tuple at each depth": lambda: hung((*MANY, Two(0)), 90),
    "three that take turns": lambda: repeated(lambda x, _: (x[1], x[2], [x[0], (x[1],), x[2]]), 90, ([1], [2], [3])),
}


@pytest.mark.parametrize("more", [{}, {"object": Two(1)}], ids=["settled", "with an object"])
@pytest.mark.parametrize("shape", TOO_OFTEN)
def test_what_would_be_written_too_often_is_refused(shape: str, more: dict[str, Any]) -> None:
    """However deep the same container is met again; nothing of it is written before."""
    value = TOO_OFTEN[shape]()

    with pytest.raises(NotSerializableError, match="refers to the same containers so often"):
        encoded({value: 1} if shape == "keys" else value, **more)


@pytest.mark.parametrize("shared", [[*range(20_000)], [*range(20_000), Two(0)]], ids=["settled", "with an object"])
def test_some_repetition_is_written(shared: list[Any]) -> None:
    """What is within the limit comes back as it was."""
    value = hung(shared, 10)

    (loaded,) = codec.decode(encoded(value))

    assert is_same(loaded["value"], freeze_items({"value": value})["value"])
