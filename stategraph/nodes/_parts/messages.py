"""What goes to the processes of a pool and back, by pickle: calls and their outcomes."""

from __future__ import annotations

import traceback
from typing import Any, TypeAlias, TypeVar

import attrs

from stategraph._text.shown import describe_exception, shorten
from stategraph.nodes._parts.jobs import Job, Outcome, outcome_of_error

_Error = TypeVar("_Error", bound=BaseException)


@attrs.frozen
class _Result:
    """What a function has returned, as bytes: if they cannot be read, only this job fails."""

    packed: bytes


@attrs.frozen
class _Raised:
    """What a function has raised, as bytes, and in words in case the bytes cannot be read."""

    packed: bytes
    name: str
    text: str
    traceback: str
    problem: str = ""


_Reply: TypeAlias = _Result | _Raised


class StandInError(RuntimeError):
    """Stands for an exception that cannot be sent from its process; its class has the same name."""


class _Traceback(Exception):  # noqa: N818 - no error, but what is shown as the cause of one
    """The traceback of an exception in its process."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


def pickled(value: Any) -> bytes:
    from multiprocessing.reduction import ForkingPickler

    return bytes(ForkingPickler.dumps(value))


def unpickled(packed: bytes) -> Any:
    import pickle

    return pickle.loads(packed)  # noqa: S301 - this process, or one of its own, has made it


def do(packed: bytes) -> _Reply:
    """Call a function with an argument, in a process, and return the outcome."""
    try:
        function, argument = unpickled(packed)
        result = function(argument)
    except BaseException as error:  # noqa: BLE001 - raised in the process of the run
        return _raised(error)
    try:
        return _Result(pickled(result))
    except Exception as error:  # noqa: BLE001 - as above
        what = f"its result, {shorten(result)}, cannot be sent from its process: {describe_exception(error)}"
        return _raised(caused(TypeError(what), error))


def _raised(error: BaseException) -> _Raised:
    name = type(error).__name__
    text = describe_exception(error).removeprefix(name).removeprefix(": ")
    trace = "".join(traceback.format_exception(error))
    try:
        return _Raised(pickled((error, error.args)), name, text, trace)
    except Exception as problem:  # noqa: BLE001 - told beside the exception
        return _Raised(b"", name, text, trace, describe_exception(problem))


def outcome_of(job: Job, reply: _Reply) -> Outcome:
    """Return the outcome of a job, from what its process sent."""
    if isinstance(reply, _Raised):
        return outcome_of_error(job, _exception(reply))
    try:
        return Outcome(job.label, unpickled(reply.packed))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - an error of the job
        what = f"its result cannot be made again of what its process sent: {describe_exception(error)}"
        return outcome_of_error(job, caused(TypeError(what), error))


def _exception(raised: _Raised) -> BaseException:
    """Return what a function raised in its process or, if that cannot be sent, an exception that stands for it."""
    problem = raised.problem
    error: BaseException | None = None
    if not problem:
        try:
            error, args = unpickled(raised.packed)
            error.args = args  # its text: an __init__ that made the arguments has made something of them again
        except (Exception, SystemExit) as failure:  # noqa: BLE001 - told in a note
            problem = describe_exception(failure)
    if isinstance(error, SystemExit):
        from concurrent.futures.process import BrokenProcessPool

        error = BrokenProcessPool(f"what it did was to end its process: {describe_exception(error)}")
    if problem or not isinstance(error, BaseException):
        error = type(raised.name, (StandInError,), {"__module__": __name__})(raised.text)
        error.add_note(f"it stands for the exception of that name, which cannot be sent from its process: {problem}")
    return caused(error, _Traceback(raised.traceback))


def caused(error: _Error, cause: BaseException) -> _Error:
    error.__cause__ = cause
    return error
