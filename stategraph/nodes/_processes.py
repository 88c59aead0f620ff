"""Parts in processes. A part that cannot be pickled, or whose process dies, fails alone."""

from __future__ import annotations

import math
import os
import pickle
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from typing import Any

import attrs

from stategraph._protocol import Stopped
from stategraph._text.shown import describe_exception, shorten
from stategraph._util.callables import name_of

_LOOK = 0.5  # seconds between two checks whether the process has died, or the run was cancelled
_PATIENCE = 5  # seconds for a process to end after its connection is closed, or after the run was cancelled


class StandInError(RuntimeError):
    """Replaces an exception that cannot be sent from its process; its class has the same name."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _stand_in, (type(self).__name__, str(self), *self.__notes__)


def _stand_in(name: str, text: str, *notes: str) -> StandInError:
    """Return the stand-in for an exception with this name and text."""
    error: StandInError = type(name, (StandInError,), {"__module__": __name__})(text)
    for note in notes:
        error.add_note(note)
    return error


class _Traceback(Exception):  # noqa: N818 - no error, but what is shown as the cause of one
    """The traceback of an exception in its process."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


@attrs.frozen
class _Failure:
    """An exception of a function in its process.

    Attributes:
        error: The exception, or its stand-in.
        args: Its arguments, which give its text: an ``__init__`` may change them again.
        traceback: Its traceback.
    """

    error: Exception
    args: tuple[Any, ...]
    traceback: str

    @classmethod
    def of(cls, error: Exception) -> _Failure:
        """Return the failure for an exception."""
        shown = "".join(traceback.format_exception(error))
        failure = cls(error, error.args, shown)
        try:
            pickle.loads(ForkingPickler.dumps(failure))  # noqa: S301 - made here
        except Exception as raised:  # noqa: BLE001 - reported in a note
            name = type(error).__name__
            text = describe_exception(error).removeprefix(name).removeprefix(": ")
            reason = f"which cannot be sent from its process: {describe_exception(raised)}"
            error = _stand_in(name, text, f"it stands for the exception of that name, {reason}")
            return cls(error, error.args, shown)
        return failure

    def exception(self) -> BaseException:
        """Return the exception with its traceback."""
        self.error.args = self.args
        self.error.__cause__ = _Traceback(self.traceback)
        return self.error


class Processes:
    """Calls functions in processes, one call at a time in each. Any thread may call.

    Functions, arguments and results are pickled. The processes are not forked: a lock that another thread holds would
    stay locked in the child.

    Args:
        functions: The functions to call.
        is_cancelled: Whether the run was cancelled. A process at work then gets SIGTERM, which it may handle, and is
            killed 5 seconds later.

    Raises:
        TypeError: a function cannot be sent to a process.
    """

    def __init__(self, functions: Iterable[Callable[[Any], Any]], is_cancelled: Callable[[], bool] = bool) -> None:
        for function in {id(function): function for function in functions}.values():
            _check_importable(function)
        self._idle: list[_Process] = []
        self._all: set[_Process] = set()
        self._is_closed = False
        self._is_cancelled = is_cancelled

    def call(self, function: Callable[[Any], Any], argument: Any, seconds: float | None) -> Any:
        """Call a function in a process; return its result or raise its exception.

        Raises:
            TypeError: the argument or the result cannot be sent.
            BrokenProcessPool: the process died.
            TimeoutError: it took longer than `seconds`. The process is killed.
        """
        packed = pickle.dumps(function), _packed("argument", argument)
        try:
            process = self._idle.pop()
        except IndexError:
            process = _Process(self._is_cancelled)
            self._all.add(process)
            if self._is_closed:
                process.process.kill()
        try:
            reply = process.call(packed, seconds)
        except BaseException:
            process.end()
            self._all.discard(process)
            raise
        self._idle.append(process)
        try:
            result = pickle.loads(reply)  # noqa: S301 - made by our own process
        except Exception as error:
            raise TypeError(f"its result cannot be unpickled: {describe_exception(error)}") from error
        if isinstance(result, _Failure):
            process.check_asked()
            raise result.exception()
        return result

    def kill(self) -> None:
        """Kill all processes, without waiting for their end."""
        for process in [*self._all]:
            process.process.kill()

    def close(self, _: object = None) -> None:
        """End all processes. One at work is killed, and the thread that waits for it closes its connection."""
        self._is_closed = True
        for process in self._all.difference(self._idle):
            process.process.kill()
        for process in self._idle:
            process.end(_PATIENCE)


class _Process:
    """A process, and the connection to it."""

    def __init__(self, is_cancelled: Callable[[], bool]) -> None:
        self._is_cancelled, self._asked_until = is_cancelled, 0.0
        context = get_context("spawn")
        self._connection, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs,), name="stategraph part")
        self.process.start()
        theirs.close()  # so that the connection ends with the process

    def call(self, packed: tuple[bytes, bytes], seconds: float | None) -> bytes:
        """Return the reply to a call. The time to start, and to import what it needs, does not count."""
        with suppress(OSError):  # it has died: the wait below notices
            for part in packed:
                self._connection.send_bytes(part)
        self._receive(None)
        return self._receive(seconds)

    def _receive(self, seconds: float | None) -> bytes:
        until = math.inf if seconds is None else time.monotonic() + seconds
        # The process may end before its connection: a process that it started holds the connection too.
        while not self._connection.poll(min(_LOOK, max(0.0, until - time.monotonic()))):
            if self.process.exitcode is not None:
                break
            if time.monotonic() >= until:
                raise TimeoutError(f"it took longer than its timeout of {seconds} s")
            if self._is_cancelled():
                self._ask()
        with suppress(EOFError, OSError):
            if self._connection.poll():
                return self._connection.recv_bytes()
        self.process.join(_PATIENCE)
        self.check_asked()
        code = self.process.exitcode or 0
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        raise BrokenProcessPool(
            f"its process died ({how}): it crashed or was killed, for example because memory ran out; or the main "
            'script runs the graph when it is imported: put that below if __name__ == "__main__"'
        )

    def _ask(self) -> None:
        """Ask the process to end its call, once; raise Stopped if it has had its time."""
        if not self._asked_until:
            self._asked_until = time.monotonic() + _PATIENCE
            if os.name != "nt":  # there it would kill the process at once
                self.process.terminate()
        elif time.monotonic() >= self._asked_until:
            self.check_asked()

    def check_asked(self) -> None:
        """Raise Stopped if the process got SIGTERM: a failure since then may come from that."""
        if self._asked_until:
            raise Stopped("it was cancelled")

    def end(self, patience: float = 0) -> None:
        """End the process. With `patience`, let it end by itself for so many seconds; it must be idle."""
        if patience:
            self._connection.close()
            self.process.join(patience)  # a call may have left a thread that does not end
        self.process.kill()
        self.process.join()
        self._connection.close()


def _check_importable(function: Callable[[Any], Any]) -> None:
    """Raise TypeError if a function cannot be sent to a process, before a process starts and perhaps waits for ever."""
    try:
        pickle.dumps(function)
    except Exception as error:
        raise TypeError(
            f"processes: {name_of(function)} cannot be sent to a process ({error}): "
            "define it at the top of a module that can be imported"
        ) from error


def _packed(name: str, value: Any) -> bytes:
    """Pickle an argument or a result."""
    try:
        return bytes(ForkingPickler.dumps(value))
    except Exception as error:
        found = f"its {name}, {shorten(value)}, cannot be sent between processes"
        raise TypeError(f"{found}: {describe_exception(error)}") from error


# --------------------------------------------------------------------------- in a process


def _work(connection: Connection) -> None:
    """Make one call after the other in a process; end when the parent process has ended, even during a call."""

    def watch() -> None:
        parent = parent_process()
        wait([parent.sentinel] if parent is not None else [])
        os._exit(1)

    threading.Thread(target=watch, name="stategraph parent", daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: None)  # a call may handle it; otherwise it has some time to end
    with suppress(EOFError, OSError, KeyboardInterrupt):
        while True:
            call = _unpacked(connection.recv_bytes(), connection.recv_bytes())
            connection.send_bytes(b"ready")
            connection.send_bytes(_reply_to(call))


def _unpacked(function: bytes, argument: bytes) -> tuple[Any, Any] | Exception:
    """Return a function and its argument, or the exception of importing their modules."""
    try:
        return pickle.loads(function), pickle.loads(argument)  # noqa: S301 - made by the parent process
    except Exception as error:  # noqa: BLE001 - raised by the call
        return error


def _reply_to(call: tuple[Any, Any] | Exception) -> bytes:
    """Call a function with its argument; return the result or the failure, pickled."""
    try:
        if isinstance(call, Exception):
            return bytes(ForkingPickler.dumps(_Failure.of(call)))
        function, argument = call
        return _packed("result", function(argument))
    except Exception as error:  # noqa: BLE001 - raised in the process of the run
        return bytes(ForkingPickler.dumps(_Failure.of(error)))
