"""The chunks of a node that is a generator, and what it returns."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import isasyncgen
from typing import Any, Final

from stategraph._protocol.commands import CannotAwait, Finish, Task
from stategraph._text.shown import describe_exception
from stategraph.nodes._generators.feeds import Feed, ThreadFeed
from stategraph.nodes.step import StepContext
from stategraph.state import State

_OVER: Final = object()


def take_chunks(step: StepContext, generator: Any) -> Task[Any]:
    """Show what a generator yields; return its result.

    That is what it returns or, if it returns nothing, what it yielded last, if that can be the result of a node. An
    async generator cannot return anything: the State or mapping that it yields last is its result.
    """
    feed = _feed_of(generator)
    held: Any = _OVER  # a State or a mapping: a chunk only if something comes behind it
    try:
        while True:
            is_over, item = yield from step.call(feed.next, None)
            if is_over and item is None and held is not _OVER:
                return held
            if held is not _OVER:
                yield from step.show_chunk(held)
            if is_over:
                return item
            held = _OVER
            if isinstance(item, State | Mapping):
                held = item
            else:
                yield from step.show_chunk(item)
    except (GeneratorExit, CannotAwait):  # no driver could close it
        raise
    except BaseException as error:
        try:
            yield (Finish, feed.close, None)
        except Exception as second:  # noqa: BLE001 - must not stand for what the generator is closed for
            error.add_note(f"While its generator was being closed: {describe_exception(second)}")
        raise


def _feed_of(generator: Any) -> Feed:
    if isasyncgen(generator):
        from stategraph.nodes._generators.task_feed import TaskFeed  # imported when used: asyncio takes 20 ms

        return TaskFeed(generator)
    return ThreadFeed(generator)
