"""MapNode: one call for each item of a list, at the same time."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import Any, Literal

from stategraph._protocol.commands import Task
from stategraph._text.shown import shorten
from stategraph._values.outline import NodeOutline, Structures
from stategraph._values.provenance import ErrorInfo
from stategraph.nodes._parts.jobs import Job
from stategraph.nodes._parts.run import Workers, do_parts
from stategraph.nodes._parts.trying import ItemPolicies
from stategraph.nodes.base import Node
from stategraph.nodes.function import FunctionNode
from stategraph.nodes.step import StepContext
from stategraph.policies import RetryPolicy
from stategraph.state import State


class MapNode(Node):
    """Calls a function for each item of a list, several at the same time, and puts the results into another in order.

    Each result is saved on its own as it comes: after a crash only the other items are done again.

    Args:
        function: A sync or async function of an item (and, if it has a second parameter for it, of a NodeContext).
        over: The key of the list or tuple.
        into: The key of the list of results.
        max_workers: How many items are done at the same time; by default up to four more than there are processors.
        on_error: "raise": once an item has failed, no other begins, and the errors are raised as an ExceptionGroup.
            "collect": an ErrorInfo takes the place of its result.
        processes: Do the items in processes, for work that keeps a processor busy. The function must be importable.
        retry: When and how often an item that failed is tried again, without the others. Attempts count on after a
            crash; a resume after the node has failed begins anew.
        timeout: Seconds that one attempt of an item may take. An async one is cancelled, a process is killed; a thread
            cannot be stopped, and goes on by itself.
        rate: How many items are begun in a second, at most, evenly spaced; each attempt counts.

    Raises:
        TypeError, ValueError: an argument is not what it should be.
    """

    has_parts = True

    def __init__(  # noqa: PLR0913 - what is said of each item
        self,
        function: Callable[..., Any],
        over: str,
        into: str,
        max_workers: int | None = None,
        *,
        on_error: Literal["raise", "collect"] = "raise",
        processes: bool = False,
        retry: RetryPolicy | None = None,
        timeout: float | None = None,
        rate: float | None = None,
    ) -> None:
        for name, key in (("over", over), ("into", into)):
            if not isinstance(key, str):
                raise TypeError(f"{name}: {shorten(key)} is not allowed; the name of a key is")
        if on_error not in ("raise", "collect"):
            raise ValueError(f'on_error: {shorten(on_error)} is not allowed; "raise" and "collect" are')
        self._function = FunctionNode.of(function)
        if self._function.is_generator:
            raise TypeError("a generator puts out chunks, which an item cannot do")
        if processes and (self._function.is_async or self._function.wants_context):
            raise TypeError("processes: what runs in a process is a sync function of an item alone")
        self.over, self.into, self.on_error = over, into, on_error
        self.is_async = self._function.is_async
        self._workers = Workers(max_workers, processes, policies=_policies(retry, timeout, rate))

    @property
    def function(self) -> Callable[..., Any]:
        """What is called for each item."""
        return self._function.given

    @property
    def reads(self) -> frozenset[str]:
        """The key of the list of items."""
        return frozenset([self.over])

    @property
    def writes(self) -> frozenset[str]:
        """The key of the list of results."""
        return frozenset([self.into])

    def part_writes(self, value: Any) -> Collection[str]:
        """Return the key of the list of results."""
        return (self.into,)

    def made_of(self) -> tuple[Any, ...]:
        return self.function, self.over, self.into, self.on_error

    def outline(self, others: Structures) -> NodeOutline:
        return NodeOutline("map", (f"each of {self.over}",))

    def execute(self, step: StepContext) -> Task[Any]:
        """Do the items, and list what they return."""
        items = step.tracked_state.get(self.over)
        if not isinstance(items, list | tuple):
            found = "not in the State" if self.over not in step.state else f"a {type(items).__name__}"
            raise TypeError(f"it goes over {self.over!r}, a list or a tuple, but that is {found}")
        jobs = [self._job(step, str(place), item) for place, item in enumerate(items)]
        accept = functools.partial(_accepted, step, self.into)
        results = yield from do_parts(step, jobs, self._workers, accept)
        return {self.into: [results[job.label] for job in jobs]}

    def _job(self, step: StepContext, label: str, item: Any) -> Job:
        collect = functools.partial(ErrorInfo.of, node=step.name) if self.on_error == "collect" else None
        return Job(label, self._function.bound(step, label), item, collect)


def _policies(retry: RetryPolicy | None, timeout: float | None, rate: float | None) -> ItemPolicies | None:
    return None if (retry, timeout, rate) == (None, None, None) else ItemPolicies(retry, timeout, rate)


def _accepted(step: StepContext, key: str, place: str, result: Any) -> Any:
    """Return the result of an item as it is kept."""
    if isinstance(result, State) and result.pause is not None:
        raise ValueError("an item cannot pause the run: pause in a node before or after")
    return step.checked_item(key, place, result)
