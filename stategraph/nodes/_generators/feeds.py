"""Feeds: each drives one generator from its start to its end."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Generator
from queue import SimpleQueue
from typing import Any, Protocol, TypeAlias

Advance: TypeAlias = tuple[bool, Any]
"""Whether a generator is over, and what it has yielded or, at its end, returned."""


class Feed(Protocol):
    """Drives a generator, which goes on only when it is asked to.

    `next` and `close` block or, if the generator is async, have to be awaited. For the generator it is one activity
    from its start to its end, in one context, and in one thread or task. So what it holds while it yields, such as a
    context variable, a lock or a task group, is still its own when it goes on.
    """

    def next(self, _: object = None) -> Any:
        """Let the generator go on to what it yields next, or to its end. Raise what it raises."""

    def close(self, _: object = None) -> Any:
        """Close the generator where it has stopped. Raise what it raises then, if it is a failure.

        One that is left at work, because its time is up, is closed where it stops next, and nobody waits for that.
        """


class ThreadFeed:
    """Drives a sync generator: in the thread of the run or, if the driver makes its calls in others, in one of its own.

    Args:
        generator: The generator, which has not begun.
    """

    def __init__(self, generator: Generator[Any, None, Any]) -> None:
        self._generator = generator
        self._context = contextvars.copy_context()
        self._home = threading.get_ident()
        self._is_at_home: bool | None = None
        self._thread: _OwnThread | None = None
        self._lock = threading.Lock()
        self._is_busy = self._is_closed = False

    def next(self, _: object = None) -> Advance:
        if self._is_at_home is None:
            self._is_at_home = threading.get_ident() == self._home
            self._context = contextvars.copy_context()  # with what was put around the node
        is_over, item = self._context.run(self._advance) if self._is_at_home else self._call(self._advance)
        if is_over:
            self.close()  # which ends the thread
        return is_over, item

    def close(self, _: object = None) -> None:
        with self._lock:
            self._is_closed, was_closed = True, self._is_closed
        if was_closed:
            return
        if self._thread is None:
            self._context.run(self._generator.close)
            return
        closed = self._thread.begin(self._generator.close)
        self._thread.end()
        if not self._is_busy:
            self._thread.join()
            _result(closed)

    def _advance(self) -> Advance:
        try:
            return False, next(self._generator)
        except StopIteration as end:
            return True, end.value

    def _call(self, function: Callable[[], Any]) -> Any:
        """Call a function in the thread of the generator, and wait for it."""
        with self._lock:
            if self._is_closed:
                raise RuntimeError("nobody waits for this call any more")
            if self._thread is None:
                self._thread = _OwnThread(self._context)
            self._is_busy = True
            done = self._thread.begin(function)
        try:
            return _result(done)
        finally:
            self._is_busy = False


_Done: TypeAlias = SimpleQueue[tuple[Any, BaseException | None]]
_Calls: TypeAlias = SimpleQueue[tuple[Callable[[], Any], _Done] | None]


class _OwnThread:
    """A thread that makes one call after another, in a context. Nobody waits for it at the end of the process."""

    def __init__(self, context: contextvars.Context) -> None:
        self._calls: _Calls = SimpleQueue()
        self._thread = threading.Thread(
            target=context.run, args=(_make_calls, self._calls), name="stategraph node", daemon=True
        )
        self._thread.start()
        self.join = self._thread.join

    def begin(self, function: Callable[[], Any]) -> _Done:
        """Start a call when those before are done; return where the answer will be."""
        done: _Done = SimpleQueue()
        self._calls.put((function, done))
        return done

    def end(self) -> None:
        """Have the thread end when all calls are done."""
        self._calls.put(None)

    __del__ = end  # of a run that was not brought to an end


def _make_calls(calls: _Calls) -> None:
    while (call := calls.get()) is not None:
        function, done = call
        try:
            done.put((function(), None))
        except BaseException as error:  # noqa: BLE001 - raised where somebody waits for it
            done.put((None, error))
        del call, function, done  # or they would keep alive who is to end this
    while not calls.empty() and (late := calls.get()) is not None:  # who has come too late waits for nothing
        late[1].put((None, RuntimeError("nobody waits for this call any more")))


def _result(done: _Done) -> Any:
    answer, error = done.get()
    if error is not None:
        raise error
    return answer
