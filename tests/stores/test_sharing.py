"""Containers that a value refers to more than once."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from stategraph import NotSerializableError, State, register_type
from stategraph._values.frozen import freeze_items
from stategraph.stores._codec import msgpack as codec
from stategraph.stores._codec import value_encoder
from stategraph.stores.sqlite import SqliteStore
from stategraph.testing import is_same


@register_type
@attrs.frozen(cache_hash=True)
class Two:
    first: Any
    second: Any = None


def encoded(value: Any, **more: Any) -> bytes:
    """Return the bytes of a value, as they are when a State holds it."""
    return codec.encode([freeze_items({"value": value, **more})])


def repeated(make: Callable[[Any, int], Any], levels: int, value: Any) -> Any:
    return functools.reduce(make, range(levels), value)


def hung(shared: Any, levels: int) -> Any:
    """Return a value in which another one is there once at each depth, and never twice at the same one."""
    return repeated(lambda chain, _: [chain, shared], levels, shared)


@pytest.mark.parametrize("shared", [[*range(20_000)], [*range(20_000), Two(0)]], ids=["settled", "with an object"])
def test_some_repetition_is_written(shared: list[Any]) -> None:
    """It comes back as it was."""
    value = hung(shared, 10)

    (loaded,) = codec.decode(encoded(value))

    assert is_same(loaded["value"], freeze_items({"value": value})["value"])


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda one: [one, one], id="lists"),
        pytest.param(lambda one: Two({"x": one}, one), id="objects", marks=pytest.mark.unmeasured),
    ],
)
@pytest.mark.parametrize("serializer", ["msgpack", "json"])
def test_a_small_value_that_would_fill_the_memory_is_refused(
    make: Callable[[Any], Any], serializer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """40 levels are written as a million million values."""
    monkeypatch.setattr(value_encoder, "_MOST_REPEATED", 100_000)  # the real one takes seconds to reach
    store = SqliteStore(tmp_path / "runs.db", serializer=serializer)

    with pytest.raises(NotSerializableError, match=r"^value.*refers to the same containers so often"):
        store.save(State({"value": repeated(lambda inner, _: make(inner), 40, [1])}, run_id="a"))

    assert store.list() == []
    store.close()
