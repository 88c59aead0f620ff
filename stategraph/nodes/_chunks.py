"""Generators as nodes: driving them, their chunks, and their updates."""

from __future__ import annotations

import contextvars
import threading
import warnings
from collections import deque
from collections.abc import Callable, Generator, Mapping
from functools import partial
from inspect import isasyncgen
from queue import SimpleQueue
from typing import Any, TypeAlias

import attrs

from stategraph._protocol import Assist, CannotAwait, RunHere, Stopped, Task
from stategraph._text.shown import describe_exception, shorten
from stategraph.nodes.base import StepContext
from stategraph.state import State


class Updates(dict[str, Any]):
    """Return the updates of a generator node: ``yield Updates({"text": text})`` as the last item it yields.

    A plain dict that is yielded is a chunk.

    Args:
        data: The updates, in the form in which a function node returns them; empty if there are none.
    """

    def __init__(self, data: Mapping[str, Any]) -> None:
        if not isinstance(data, Mapping):
            raise TypeError(f"Updates: {shorten(data)} is not allowed; a mapping of updates is")
        super().__init__(data)


class ChangesOfObject(Updates):
    """The changes of a schema object: a chunk if another item is yielded after it, otherwise the updates."""


@attrs.frozen
class TypedGenerator:
    """A generator that yields or returns schema objects, and a function that turns these into their changes."""

    generator: Any
    without_object: Callable[[Any], Any]


def take_chunks(step: StepContext, node: Any) -> Task[Any]:
    """Show the chunks of a generator; return its updates, or a State.

    The result is the generator's return value or, if that is None, a State or Updates that it yields last. A generator
    with neither has no updates.
    """
    emitted: deque[Any] = deque()  # by its context
    if step.emits:
        step.sink = lambda chunk, _, **__: emitted.append(chunk)
    generator = yield from step.call(node.bound(step), step.tracked_state)
    without_object: Callable[[Any], Any] | None = None
    if isinstance(generator, TypedGenerator):
        generator, without_object = generator.generator, generator.without_object
    feed = yield (RunHere, _feed_of, generator)  # in the thread of the run, not in one that carries it on
    held: State | Updates | None = None  # the result, unless another item follows
    last: Any = None
    try:
        while True:
            is_over, item = yield from step.call(feed.next, None)
            while emitted:
                yield from step.show_chunk(emitted.popleft())
            if without_object is not None:
                item = without_object(item)
            if is_over and item is None:
                return _result(step.name, held, last)
            if held is not None:
                yield from step.show_yielded(_as_chunk(held))
            if is_over:
                return item
            held, last = item if isinstance(item, State | Updates) else None, item
            if held is None:
                yield from step.show_yielded(item)
    except (GeneratorExit, CannotAwait):  # no driver could close it
        raise
    except BaseException as error:
        yield from _closed(feed, error)
        raise


def take_emitted(step: StepContext, node: Any) -> Task[Any]:
    """Show the chunks that a function emits by its context; return its result."""
    feed = yield (RunHere, _async_feed if node.is_async else FunctionFeed, step.streams)
    step.sink = lambda chunk, is_past, **_: feed.emit(chunk, is_past)
    function = partial(node.bound(step), step.tracked_state)
    try:
        while True:
            is_over, item = yield from step.call(feed.next, function)
            if is_over:
                return item
            yield from step.show_chunk(item)
    except (GeneratorExit, CannotAwait):  # as above
        feed.is_closed = True  # a thread ends at its next chunk
        raise
    except BaseException as error:
        yield from _closed(feed, error)
        raise


def _closed(feed: Any, error: BaseException) -> Task[None]:
    """Close a feed after an error, to which another one becomes a note."""
    try:
        yield (Assist, feed.close, None)
    except Exception as second:  # noqa: BLE001 - must not replace the error that closes the feed
        error.add_note(f"While its generator was being closed: {describe_exception(second)}")


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


# --------------------------------------------------------------------------- driving a generator


Advance: TypeAlias = tuple[bool, Any]
"""Whether a generator has ended, and the value it yielded or, at its end, returned."""

_Answers: TypeAlias = SimpleQueue[tuple[Any, BaseException | None]]


def _feed_of(generator: Any) -> Any:
    """Return the object that drives a generator, which advances only on request.

    Its methods `next` and `close` block or, if the generator is async, must be awaited. The generator runs from its
    start to its end in one context, and in one thread or task: a context variable, a lock or a task group that it holds
    while it yields still belongs to it when it continues.
    """
    if isasyncgen(generator):
        from stategraph.nodes._task_feed import TaskFeed  # imported when used: asyncio takes 20 ms

        return TaskFeed(generator)
    return ThreadFeed(generator)


def _async_feed(_: bool) -> Any:
    from stategraph.nodes._task_feed import FunctionTaskFeed  # imported when used: asyncio takes 20 ms

    return FunctionTaskFeed()


class FunctionFeed:
    """Calls a sync function, and passes on the chunks that it emits: while it runs, if it has a thread of its own.

    It has one if the driver uses worker threads, and if the caller iterates over the run.

    Args:
        streams: Whether the caller iterates over the run.
    """

    def __init__(self, streams: bool) -> None:
        self._home = None if streams else threading.get_ident()
        self._thread: threading.Thread | None = None
        self._found: _Answers = SimpleQueue()
        self._has_begun = self.is_closed = self._has_emitted = False

    def emit(self, chunk: Any, is_past: bool) -> None:
        """Pass a chunk on. Once the attempt has ended or the run has stopped, end the function instead."""
        if not (is_past or self.is_closed):
            self._found.put(((False, chunk), None))
        elif threading.current_thread() is self._thread:
            raise Stopped("its run has stopped")

    def next(self, function: Callable[[], Any]) -> Advance:
        """Return the next chunk, or the result. Raise the exception of the function."""
        if not self._has_begun:
            self._has_begun = True
            self._begin(partial(contextvars.copy_context().run, _put_outcome, self._found, _called, function))
        self._has_emitted = False
        advance, error = self._found.get()
        if error is not None:
            raise error
        self._has_emitted = not advance[0]
        found: Advance = advance
        return found

    def close(self, _: object = None) -> None:
        """Let the function end at its next chunk, and wait for that, unless it has been left at work."""
        self.is_closed = True
        if self._thread is not None and self._has_emitted:
            self._thread.join()

    def _begin(self, call: Callable[[], None]) -> None:
        if threading.get_ident() == self._home:
            call()
        else:
            self._thread = threading.Thread(target=call, name="stategraph node", daemon=True)
            self._thread.start()


def _called(function: Callable[[], Any]) -> Advance:
    return True, function()


class ThreadFeed:
    """Drives a sync generator in the thread of the run or, if the driver uses worker threads, in its own thread.

    Args:
        generator: The generator, which has not begun.
    """

    def __init__(self, generator: Generator[Any, None, Any]) -> None:
        self._generator = generator
        self._home = threading.get_ident()
        self._context: contextvars.Context | None = None
        self._thread: threading.Thread | None = None
        self._requests: SimpleQueue[bool] = SimpleQueue()
        self._answers: _Answers = SimpleQueue()
        self._is_busy = self._is_closed = False

    def next(self, _: object = None) -> Advance:
        """Advance the generator to its next item, or to its end. Raise its exception."""
        if self._is_closed:
            raise RuntimeError("this generator is closed")
        context = self._begin() if self._context is None else self._context
        if self._thread is None:
            advance = context.run(_advance, self._generator)
        else:
            self._is_busy = True
            self._requests.put(True)
            try:
                advance = self._answer()
            finally:
                self._is_busy = False
        if advance[0]:
            self.close()  # this ends the thread
        return advance

    def close(self, _: object = None) -> None:
        """Close the generator where it has stopped. Raise its exception if that is a failure.

        A generator that is still at work after its time is up is closed where it stops next; this call does not wait.
        """
        if self._is_closed:
            return
        self._is_closed = True
        if self._thread is None:
            context = contextvars.copy_context() if self._context is None else self._context
            context.run(self._generator.close)
            return
        self._requests.put(False)
        if not self._is_busy:
            self._thread.join()
            self._answer()

    def __del__(self) -> None:
        self._requests.put(False)  # of an abandoned run

    def _begin(self) -> contextvars.Context:
        context = self._context = contextvars.copy_context()  # with the observer's context around the node
        if threading.get_ident() != self._home:
            drive = partial(context.run, _drive, self._generator, self._requests, self._answers)
            # A daemon: the process does not wait for it at its end.
            self._thread = threading.Thread(target=drive, name="stategraph generator", daemon=True)
            self._thread.start()
        return context

    def _answer(self) -> Any:
        answer, error = self._answers.get()
        if error is not None:
            raise error
        return answer


def _advance(generator: Generator[Any, None, Any]) -> Advance:
    try:
        return False, next(generator)
    except StopIteration as end:
        return True, end.value


def _drive(generator: Generator[Any, None, Any], requests: SimpleQueue[bool], answers: _Answers) -> None:
    """Drive a generator in a thread until it is closed."""
    while requests.get():
        _put_outcome(answers, _advance, generator)
    _put_outcome(answers, lambda generator: generator.close(), generator)


def _put_outcome(answers: _Answers, function: Callable[[Any], Any], generator: Any) -> None:
    try:
        answers.put((function(generator), None))
    except BaseException as error:  # noqa: BLE001 - raised in the thread that waits for it
        answers.put((None, error))
