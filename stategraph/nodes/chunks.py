"""The chunks of a node that is a generator, and what it returns."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Mapping
from inspect import GEN_RUNNING, getgeneratorstate, isasyncgen
from typing import TYPE_CHECKING, Any, Final

from stategraph.commands import CannotAwait, Finish, Task
from stategraph.errors import describe_exception
from stategraph.state import State

if TYPE_CHECKING:
    from stategraph.visit import Visit

_OVER: Final = object()


def take_chunks(visit: Visit, generator: Any) -> Task[Any]:
    """Show what a generator yields -> what it returns, or what it yields last, where that can be the result of a node.

    An async generator cannot return anything: what it yields last, a State or a mapping, are its updates.
    """
    advance = _anext if isasyncgen(generator) else _next
    held: Any = _OVER  # a State or a mapping: a chunk only if something comes behind it
    try:
        while True:
            is_over, item = yield from visit.call(advance, generator)
            if is_over and item is None and held is not _OVER:
                return held
            if held is not _OVER:
                yield from visit.show_chunk(held)
            if is_over:
                return item
            held = _OVER
            if isinstance(item, State | Mapping):
                held = item
            else:
                yield from visit.show_chunk(item)
    except (GeneratorExit, CannotAwait):  # there is no driver that could close it
        raise
    except BaseException as error:
        try:
            yield (Finish, _aclose if isasyncgen(generator) else _close, generator)
        except Exception as second:  # noqa: BLE001 - must not stand for what the generator is closed for
            error.add_note(f"While its generator was being closed: {describe_exception(second)}")
        raise


def _next(generator: Generator[Any, None, Any]) -> tuple[bool, Any]:
    """-> whether it is over, and what it has yielded or, at its end, returned."""
    try:
        return False, next(generator)
    except StopIteration as end:
        return True, end.value


async def _anext(generator: AsyncGenerator[Any, None]) -> tuple[bool, Any]:
    try:
        return False, await anext(generator)
    except StopAsyncIteration:
        return True, None


def _close(generator: Generator[Any, None, Any]) -> None:
    if getgeneratorstate(generator) != GEN_RUNNING:  # in a thread that was left to itself when the time was up
        generator.close()


async def _aclose(generator: AsyncGenerator[Any, None]) -> None:
    await generator.aclose()
