"""The chunks of a node that is a generator, and its updates."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from inspect import isasyncgen
from typing import Any

import attrs

from stategraph._protocol.commands import CannotAwait, Finish, Task
from stategraph._text.shown import describe_exception, shorten
from stategraph.nodes._generators.feeds import Feed, ThreadFeed
from stategraph.nodes.step import StepContext
from stategraph.state import State


def _copied(data: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(data, Mapping):
        raise TypeError(f"Updates: {shorten(data)} is not allowed; a mapping of updates is")
    return dict(data)


@attrs.frozen(eq=False)
class Updates(Mapping[str, Any]):
    """Give the updates of a node that is a generator: ``yield Updates({"text": text})``, as the last thing it yields.

    A plain dict that is yielded is a chunk.

    Args:
        data: The updates, as a function that is a node returns them; empty if there are none.
    """

    data: Mapping[str, Any] = attrs.field(converter=_copied)

    def __getitem__(self, key: str) -> Any:
        return self.data[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.data)

    def __len__(self) -> int:
        return len(self.data)


class YieldedObject(Updates):
    """What an object of the schema changes: a chunk if something is yielded after it, else the updates."""


def take_chunks(step: StepContext, generator: Any) -> Task[Any]:
    """Show the chunks of a generator; return its updates, or a State.

    These are what it returns or, if it returns None, a State or the Updates that it yields last. A generator that gives
    neither has no updates.
    """
    feed = _feed_of(generator)
    held: State | Updates | None = None  # the result, unless something follows
    last: Any = None
    try:
        while True:
            is_over, item = yield from step.call(feed.next, None)
            if is_over and item is None:
                return _result(step.name, held, last)
            if held is not None:
                yield from step.show_chunk(_as_chunk(held))
            if is_over:
                return item
            held, last = item if isinstance(item, State | Updates) else None, item
            if held is None:
                yield from step.show_chunk(item)
    except (GeneratorExit, CannotAwait):  # no driver could close it
        raise
    except BaseException as error:
        try:
            yield (Finish, feed.close, None)
        except Exception as second:  # noqa: BLE001 - must not stand for what the generator is closed for
            error.add_note(f"While its generator was being closed: {describe_exception(second)}")
        raise


def _result(node: str, held: State | Updates | None, last: Any) -> State | dict[str, Any]:
    """Return the result of a generator that returned None."""
    if held is not None:
        return held if isinstance(held, State) else dict(held)
    if isinstance(last, Mapping):
        warnings.warn(
            f"node {node!r} yielded a dict last, which is a chunk now and no longer its updates. "
            "If it has updates, end it with `yield Updates({...})`; if it has none, with `yield Updates({})`",
            FutureWarning,
            stacklevel=2,
        )
    return {}


def _as_chunk(held: State | Updates) -> Any:
    if type(held) is Updates:
        raise TypeError("it went on after it had yielded its Updates: yield them once, as the last thing")
    return held if isinstance(held, State) else dict(held)


def _feed_of(generator: Any) -> Feed:
    if isasyncgen(generator):
        from stategraph.nodes._generators.task_feed import TaskFeed  # imported when used: asyncio takes 20 ms

        return TaskFeed(generator)
    return ThreadFeed(generator)
