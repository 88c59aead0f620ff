"""What the engine asks of a driver: one class for each kind of thing that touches the world.

All but `Await` are calls that are ready to be made: partials, because one or two are made for every step, and a partial
is made and called without running Python code. The class tells the driver where to make the call.
"""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from typing import Any, TypeAlias

import attrs


class RunNode(partial[Any]):
    """Call a node. The answer is what it returns, which may have to be awaited."""

    __slots__ = ()


class StartNode(partial[Any]):
    """Call a node that is known to be async. All that does is make an awaitable."""

    __slots__ = ()


@attrs.define(eq=False)
class Await:
    """Wait for what an async node returned. The answer is its result."""

    awaitable: Awaitable[Any]
    node_name: str


class Load(partial[Any]):
    """Load the newest State of a run. The answer is the State."""

    __slots__ = ()


class Save(partial[Any]):
    """Save a State. When the answer comes, it is as durable as the store promises."""

    __slots__ = ()


class Amend(partial[Any]):
    """Save a State in place of the newest saved one, whose data it may change."""

    __slots__ = ()


class Delete(partial[Any]):
    """Delete everything that is saved of a run."""

    __slots__ = ()


class Retain(partial[Any]):
    """Tell the store what is to be kept of a run."""

    __slots__ = ()


class Flush(partial[Any]):
    """Wait until all Saves are as durable as the store promises."""

    __slots__ = ()


class Notify(partial[Any]):
    """Tell the observer of an event. It must not wait, and never fails."""

    __slots__ = ()


Command: TypeAlias = RunNode | StartNode | Await | Load | Save | Amend | Delete | Retain | Flush | Notify

BLOCKING: tuple[type[Command], ...] = (RunNode, Load, Save, Amend, Delete, Retain, Flush)
"""The calls that may take long, and therefore are not made on an event loop."""


class Stopped(BaseException):
    """Thrown into the engine where it asks for a node, to say that the run is to stop: the cancel event was set, or the
    time is up (then ``__cause__`` is a TimeoutError)."""
