"""The commands of the engine to a driver.

A command is a tuple ``(kind, function, argument)``: call the function with the argument, and send back the result. The
kind says what the call is for, and thereby where to make it. Commands are plain tuples because every step makes one
or two, and an object of a class takes five times as long to make.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, Protocol, TypeAlias, TypeVar


class CommandType:
    """Base of the kinds of commands. They are never instantiated."""


class RunNode(CommandType):
    """Call a node with a State. The answer is its result, which may have to be awaited."""


class RunHere(CommandType):
    """Call a function in the thread of the run or on its event loop, and await its result if necessary.

    The function is that of an async node, makes the feed of a generator, or waits for parts. If the driver cannot await
    the result, that is the answer.
    """


class Await(CommandType):
    """Await a result that `RunHere` has not awaited: ``(Await, awaitable, name of the node)``."""


class Own(CommandType):
    """Become the owner of a run."""


class Load(CommandType):
    """Read from the store: the newest State of a run, its cancellation, or the next run without an owner."""


class Save(CommandType):
    """Save a State. At the answer, it is as durable as the store promises or, with durability "async", only queued."""


class Amend(CommandType):
    """Change a saved run: replace its newest State, cancel it or clear its cancellation, or roll it back."""


class Delete(CommandType):
    """Delete all saved data of the run of a State."""


class Flush(CommandType):
    """Wait until all Saves are as durable as the store promises."""


class Assist(CommandType):
    """Call, and await if necessary, a function that serves a node: at its end, or for its cache.

    Nothing stops or limits it.
    """


class Parts(CommandType):
    """Save, load or drop the finished parts of a step that has not completed."""


class Limit(CommandType):
    """Limit the following commands: ``(Limit, error, seconds)``.

    Until the matching Unlimit, a node call or await that reaches the limit is cut off, and the Expired that `error`
    makes is raised.
    """


class Unlimit(CommandType):
    """Remove the newest Limit."""


class Until(CommandType):
    """Stop the run at a time, as its signal would: ``(Until, None, ns)``. The answer is the signal from now on."""


class Sleep(CommandType):
    """Sleep: ``(Sleep, None, seconds)``."""


class Watch(CommandType):
    """Call a function now and then while the run waits: ``(Watch, look, None)``. It raises if the run should stop."""


class Gather(CommandType):
    """Begin several tasks that run concurrently: ``(Gather, None, (tasks, how many, async node))``.

    The last item is the name of the node if its tasks await, and empty otherwise. Tasks that await run on one event
    loop. The answer is a `Gathered`.
    """


class Gathered(Protocol):
    """Tasks that run concurrently. Once one has raised, no other begins, and the running ones are stopped."""

    def reports(self, _: object = None, /) -> Any:
        """Wait; return the reports of the tasks since the last call; called by `RunHere`.

        The list is empty once all tasks have ended. If one has raised, its error is raised instead. Calling it also
        confirms that the reports returned before are saved: the number of tasks that have begun and are not saved is
        at most twice the number that run at the same time.
        """

    def emit(self, report: Any, /) -> object:
        """Add a report of a running task, from any thread."""

    def stop(self, _: object = None, /) -> Any:
        """Stop the running tasks, wait for their end, and return their reports; called by `Assist`."""

    def halt(self) -> None:
        """Stop the running tasks without waiting for them."""


class Report(CommandType):
    """Report to the task that gathered this one: ``(Report, None, report)``."""


class Show(CommandType):
    """Show a State to the caller that iterates over the run: ``(Show, None, state)``."""


class Notify(CommandType):
    """Notify the observer of an event. It must not wait, and never fails."""


Command: TypeAlias = tuple[type[CommandType], Callable[[Any], Any] | Awaitable[Any] | None, Any]

Perform: TypeAlias = dict[type[CommandType], Callable[[Any, Any], Any]]
"""Functions that execute commands in the thread of the run, by their types."""

_Answer = TypeVar("_Answer")
Task: TypeAlias = Generator[Command, Any, _Answer]
"""A part of a run: yields commands, receives their answers, returns its own."""

STORE: tuple[type[CommandType], ...] = (Own, Load, Save, Amend, Flush, Parts)
"""Calls of the store, except Delete."""

BLOCKING: tuple[type[CommandType], ...] = (RunNode, *STORE, Delete)
"""Calls that may take long, and are therefore not made on an event loop."""


class Stopped(BaseException):
    """Thrown into the engine: the run should stop.

    The cancel event was set, the time is up (then ``__cause__`` is a TimeoutError), another caller cancelled the run,
    or its caller requests no more States.
    """


class Expired(BaseException):
    """Raised when the time of a Limit is up.

    Only the step that set the limit turns it into a failure. Nothing nested in that step may retry or handle it.
    """


class OutcomeUnknown(BaseException):
    """Raised by `NodeContext.effect` if it is unknown whether an effect happened: the run pauses.

    Its argument is the Pause. No node is to handle it.
    """


def pause_asked_by(error: BaseException) -> Any:
    """Return the Pause of an OutcomeUnknown, which may be in a group; raise any other exception.

    A StoreFailed in a group is raised alone.
    """
    while isinstance(error, BaseExceptionGroup):  # of the tasks of an async node
        found: BaseExceptionGroup[BaseException] | None = error.subgroup(StoreFailed)
        found = error.subgroup(OutcomeUnknown) if found is None else found
        if found is None:
            raise error
        error = found.exceptions[0]
    if not isinstance(error, OutcomeUnknown):
        raise error
    return error.args[0]


class CannotAwait(BaseException):
    """Raised if a blocking driver should await something while an event loop is running in its thread.

    Its ``__cause__`` is an AsyncNodeError. This is a mistake of the caller, not of the node, and nothing is retried.
    """


class StoreFailed(BaseException):
    """Raised during a step if the store fails, or holds data that does not fit.

    Its ``__cause__`` is the reason. This is no failure of the node, and nothing is retried.
    """


def limited(task: Task[_Answer], seconds: float, node: str, *, is_async: bool) -> Task[_Answer]:
    """Run a task and cut it off when the time of the node is up; return its result.

    Args:
        task: The work of the node.
        seconds: How long it may take.
        node: Its name.
        is_async: Whether an overdue node is cancelled; the thread of a sync node cannot be stopped.

    Raises:
        TimeoutError: it took longer.
    """
    expired = Expired(f"the timeout of {seconds} s of node {node!r} passed")
    yield (Limit, lambda _: expired, seconds)
    try:
        answer = yield from task
    except GeneratorExit:
        raise
    except BaseException as error:
        yield (Unlimit, None, None)
        if error is expired:
            left = "" if is_async else "; its thread cannot be stopped, and goes on by itself"
            raise TimeoutError(f"it took longer than its timeout of {seconds} s{left}") from None
        raise
    yield (Unlimit, None, None)
    return answer
