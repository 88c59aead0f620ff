"""What the engine asks of a driver: one class for each thing that touches the world.

These are plain mutable classes because one is made for every node that runs, and a frozen one takes three times as long.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any, TypeAlias

import attrs

from stategraph.events import EventType
from stategraph.nodes.context import NodeContext
from stategraph.nodes.function import FunctionNode
from stategraph.state import State


@attrs.define(eq=False)
class RunNode:
    """Call the node; the answer is what it returns, which may have to be awaited (`Await`)."""

    node: FunctionNode
    arguments: tuple[State] | tuple[State, NodeContext]


@attrs.define(eq=False)
class Await:
    """Wait for what an async node returned; the answer is its result."""

    awaitable: Awaitable[Any]
    node_name: str


@attrs.define(eq=False)
class Load:
    """Load the newest State of a run; the answer is the State."""

    run_id: str


@attrs.define(eq=False)
class Save:
    """Save the State. When the answer comes, it is as durable as the store promises."""

    state: State


@attrs.define(eq=False)
class Amend:
    """Save the State in place of the newest saved one, whose data it may change."""

    state: State


@attrs.define(eq=False)
class Delete:
    """Delete everything that is saved of a run."""

    run_id: str


@attrs.define(eq=False)
class Emit:
    """Tell the observer of an event."""

    type: EventType
    data: Mapping[str, Any]


Command: TypeAlias = RunNode | Await | Load | Save | Amend | Delete | Emit


class Stopped(BaseException):
    """Thrown into the engine where it asks for a node, to say that the run is to stop: the cancel event was set, or the
    time is up (then ``__cause__`` is a TimeoutError)."""
