"""What the engine asks of a driver.

A command is a tuple ``(kind, function, argument)``: call this with that, and answer what it returns. The kind tells the
driver what the call is for, and thereby where to make it. They are plain tuples because one or two are made for every
step, and an object of a class takes five times as long to make.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, Protocol, TypeAlias, TypeVar

from stategraph._util.callables import failure_of


class CommandType:
    """Base of the kinds of commands. They are never instantiated."""


class RunNode(CommandType):
    """Call a node with a State. The answer is what it returns, which may have to be awaited."""


class StartNode(CommandType):
    """Call a node that is known to be async. All that does is make an awaitable."""


class Await(CommandType):
    """Wait for what an async node returned: ``(Await, awaitable, name of the node)``. The answer is its result."""


class Own(CommandType):
    """Become the owner of a run."""


class Load(CommandType):
    """Load the newest State of a run. The answer is the State."""


class Save(CommandType):
    """Save a State. When the answer comes, it is as durable as the store promises."""


class Amend(CommandType):
    """Save a State in place of the newest saved one, whose data it may change."""


class Delete(CommandType):
    """Delete everything that is saved of the run of a State."""


class Flush(CommandType):
    """Wait until all Saves are as durable as the store promises."""


class Finish(CommandType):
    """Call, and if need be await, what a node needs for its end. Nothing stops or limits it."""


class Parts(CommandType):
    """Save, load or drop the finished parts of a step that has not completed."""


class Cache(CommandType):
    """Look for the result of a node in its cache, or keep it there. That never fails."""


class Limit(CommandType):
    """Set a limit to what follows: ``(Limit, error, seconds)``.

    Until the matching Unlimit, a node that is called or awaited when the time is over is cut off, and what `error`
    makes, an Expired, is raised.
    """


class Unlimit(CommandType):
    """Take back the newest Limit."""


class Sleep(CommandType):
    """Wait: ``(Sleep, None, seconds)``."""


class Gather(CommandType):
    """Begin several tasks, which are done at the same time: ``(Gather, None, (tasks, how many, async node))``.

    The last is the name of the node if its tasks await something, and empty otherwise. Those that do are done on one
    event loop. The answer is a `Gathered`.
    """


class Gathered(Protocol):
    """Tasks that are done at the same time. Once one has raised, no other begins, and those at work are stopped."""

    def reports(self, _: object = None, /) -> Any:
        """Wait; return what the tasks have reported since the last call; called by `Reports`.

        That is nothing once all are over. If one has raised, its error is raised instead. A call says that all that was
        returned before is saved: at most twice as many tasks as are done at the same time have begun and are not saved.
        """

    def stop(self, _: object = None, /) -> Any:
        """Stop those that are at work, wait for their end, and return what they have reported; called by `Finish`."""

    def halt(self) -> None:
        """Stop those that are at work, without waiting for them."""


class Reports(CommandType):
    """Wait for reports of gathered tasks: ``(Reports, gathered.reports, None)``."""


class Report(CommandType):
    """Report something to the task that has gathered this one: ``(Report, None, what)``."""


class Show(CommandType):
    """Show a State to the caller who iterates over the run: ``(Show, None, state)``."""


class Notify(CommandType):
    """Tell the observer of an event. It must not wait, and never fails."""


Command: TypeAlias = tuple[type[CommandType], Callable[[Any], Any] | Awaitable[Any] | None, Any]

Perform: TypeAlias = dict[type[CommandType], Callable[[Any, Any], Any]]
"""What carries out commands in the thread of the run, by their types."""

_Answer = TypeVar("_Answer")
Task: TypeAlias = Generator[Command, Any, _Answer]
"""A part of a run: yields commands, is sent their answers, returns its own."""

BLOCKING: tuple[type[CommandType], ...] = (RunNode, Own, Load, Save, Amend, Delete, Flush, Parts, Cache)
"""Calls that may take long, and therefore are not made on an event loop."""

WAITING: tuple[type[CommandType], ...] = (Await, Finish, Limit, Unlimit, Sleep, Gather, Reports)
"""What makes a driver wait, or limits how long it may: a bare run asks for none of it."""


class Escaped(BaseException):
    """Thrown into the engine for a GeneratorExit that a command raised (its ``__cause__``).

    The engine would take the GeneratorExit itself for its own end.
    """


class Stopped(BaseException):
    """Thrown into the engine in answer to a node: the run is to stop.

    The cancel event was set, or the time is up (then ``__cause__`` is a TimeoutError).
    """


class Expired(BaseException):
    """Raised when the time of a Limit is over.

    Only the step that set the limit makes a failure of it. Nothing nested in that step may retry or handle it.
    """


class CannotAwait(BaseException):
    """Raised if something is to be awaited by a driver that blocks, while an event loop is running in its thread.

    Its ``__cause__`` is an AsyncNodeError. This is a mistake of the caller, not of the node, and nothing is tried
    again.
    """


class StoreFailed(BaseException):
    """Raised while a step is made, if the store could not do what the step takes, or holds what does not fit.

    Its ``__cause__`` says what. This is no failure of the node, and nothing is tried again.
    """


def escaped(error: BaseException) -> BaseException:
    """Return what to raise in the engine for an error that a call raised, and that no cancellation can have caused."""
    if not isinstance(error, GeneratorExit):
        return failure_of(error)
    wrapper = Escaped()
    wrapper.__cause__ = error
    return wrapper
