"""Parts in processes. A part that cannot be pickled, or whose process dies, fails alone."""

from __future__ import annotations

import os
import pickle
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from typing import Any, TypeVar

import attrs

from stategraph._text.shown import describe_exception, shorten
from stategraph._util.callables import name_of

_Error = TypeVar("_Error", bound=BaseException)
_LOOK = 1.0  # seconds between two checks whether the process has died
_PATIENCE = 5  # seconds for a process to end after its connection is closed


class StandInError(RuntimeError):
    """Replaces an exception that cannot be sent from its process; its class has the same name."""


class _Traceback(Exception):  # noqa: N818 - no error, but what is shown as the cause of one
    """The traceback of an exception in its process."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


@attrs.frozen
class _Reply:
    """The outcome of a function as bytes: if they cannot be unpickled, only this part fails.

    Attributes:
        packed: The result, or the exception and its arguments.
        name: The name of the class of the exception; empty for a result.
        text: The text of the exception.
        traceback: Its traceback.
        problem: Why it cannot be sent.
    """

    packed: bytes
    name: str = ""
    text: str = ""
    traceback: str = ""
    problem: str = ""


class Processes:
    """Calls functions in processes, one call at a time in each. Any thread may call.

    Functions, arguments and results are pickled. The processes are not forked: a lock that another thread holds would
    stay locked in the child.

    Args:
        functions: The functions to call.

    Raises:
        TypeError: a function cannot be sent to a process.
    """

    def __init__(self, functions: Iterable[Callable[[Any], Any]]) -> None:
        for function in {id(function): function for function in functions}.values():
            _check_importable(function)
        self._idle: list[_Process] = []
        self._all: set[_Process] = set()
        self._is_closed = False

    def call(self, function: Callable[[Any], Any], argument: Any, seconds: float | None) -> Any:
        """Call a function in a process; return its result or raise its exception.

        Raises:
            TypeError: the argument or the result cannot be sent.
            BrokenProcessPool: the process died.
            TimeoutError: it took longer than `seconds`. The process is killed.
        """
        try:
            packed = _pickled((function, argument))
        except Exception as error:
            problem = f"its argument, {shorten(argument)}, cannot be sent to a process: {describe_exception(error)}"
            raise TypeError(problem) from error
        try:
            process = self._idle.pop()
        except IndexError:
            process = _Process()
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
        return _answer(pickle.loads(reply))  # noqa: S301 - made by our own process

    def kill(self) -> None:
        """Kill all processes, without waiting for their end."""
        for process in [*self._all]:
            process.process.kill()

    def close(self, _: object = None) -> None:
        """End all processes. One at work is killed, and the thread that waits for it closes its connection."""
        self._is_closed = True
        for process in [*self._all]:
            if process in self._idle:
                process.end(is_idle=True)
            else:
                process.process.kill()


class _Process:
    """A process, and the connection to it."""

    def __init__(self) -> None:
        context = get_context("spawn")
        self._connection, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs,), name="stategraph part")
        self.process.start()
        theirs.close()  # so that the connection ends with the process
        self._is_ready = False

    def call(self, packed: bytes, seconds: float | None) -> bytes:
        """Return the reply to a call. The time that the process takes to start does not count."""
        with suppress(OSError):  # it has died: the wait below notices
            self._connection.send_bytes(packed)
        if not self._is_ready:
            self._receive(None)
            self._is_ready = True
        return self._receive(seconds)

    def _receive(self, seconds: float | None) -> bytes:
        until = None if seconds is None else time.monotonic() + seconds
        # The process may end before its connection: a process that it started holds the connection too.
        while not self._connection.poll(_LOOK if until is None else min(_LOOK, max(0.0, until - time.monotonic()))):
            if self.process.exitcode is not None:
                break
            if until is not None and time.monotonic() >= until:
                raise TimeoutError(f"it took longer than its timeout of {seconds} s")
        if self._connection.poll():
            with suppress(EOFError, OSError):
                return self._connection.recv_bytes()
        self.process.join(_PATIENCE)
        code = self.process.exitcode or 0
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        raise BrokenProcessPool(
            f"the process that did it died ({how}): killed, as for want of memory, or by what it did"
        )

    def end(self, *, is_idle: bool = False) -> None:
        """End the process: by closing the connection if it is idle, otherwise at once."""
        if is_idle:
            self._connection.close()
            self.process.join(_PATIENCE)  # longer, if a call left a thread that does not end
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


def _pickled(value: Any) -> bytes:
    return bytes(ForkingPickler.dumps(value))


def _answer(reply: _Reply) -> Any:
    """Return the result of a function from its process, or raise its exception."""
    if reply.name:
        raise _exception(reply)
    try:
        return pickle.loads(reply.packed)  # noqa: S301 - as above
    except (Exception, SystemExit) as error:
        problem = f"its result cannot be unpickled: {describe_exception(error)}"
        raise TypeError(problem) from error


def _exception(reply: _Reply) -> BaseException:
    """Return the exception of a function from its process, or a StandInError if it cannot be sent."""
    problem, error = reply.problem, None
    if not problem:
        try:
            error, args = pickle.loads(reply.packed)  # noqa: S301 - as above
            error.args = args  # restores the text: an __init__ may have changed the arguments again
        except (Exception, SystemExit) as failure:  # noqa: BLE001 - reported in a note
            problem = describe_exception(failure)
    if isinstance(error, SystemExit):
        error = BrokenProcessPool(f"what it did was to end its process: {describe_exception(error)}")
    if problem or not isinstance(error, BaseException):
        error = type(reply.name, (StandInError,), {"__module__": __name__})(reply.text)
        error.add_note(f"it stands for the exception of that name, which cannot be sent from its process: {problem}")
    return _caused(error, _Traceback(reply.traceback))


def _caused(error: _Error, cause: BaseException) -> _Error:
    error.__cause__ = cause
    return error


# --------------------------------------------------------------------------- in a process


def _work(connection: Connection) -> None:
    """Make one call after the other in a process; end when the parent process has ended, even during a call."""

    def watch() -> None:
        parent = parent_process()
        wait([parent.sentinel] if parent is not None else [])
        os._exit(1)

    threading.Thread(target=watch, name="stategraph parent", daemon=True).start()
    with suppress(EOFError, OSError, KeyboardInterrupt):
        connection.send_bytes(b"ready")
        while True:
            connection.send_bytes(_pickled(_reply_to(connection.recv_bytes())))


def _reply_to(packed: bytes) -> _Reply:
    """Call a function with an argument, and return the outcome."""
    try:
        function, argument = pickle.loads(packed)  # noqa: S301 - made by the parent process
        result = function(argument)
    except BaseException as error:  # noqa: BLE001 - raised in the process of the run
        return _raised(error)
    try:
        return _Reply(_pickled(result))
    except Exception as error:  # noqa: BLE001 - as above
        problem = f"its result, {shorten(result)}, cannot be sent from its process: {describe_exception(error)}"
        return _raised(_caused(TypeError(problem), error))


def _raised(error: BaseException) -> _Reply:
    name = type(error).__name__
    text = describe_exception(error).removeprefix(name).removeprefix(": ")
    trace = "".join(traceback.format_exception(error))
    try:
        return _Reply(_pickled((error, error.args)), name, text, trace)
    except Exception as problem:  # noqa: BLE001 - reported beside the exception
        return _Reply(b"", name, text, trace, describe_exception(problem))
