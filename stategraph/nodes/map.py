"""MapNode: one concurrent call for each item of a list."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Literal

from stategraph._text.shown import shorten, with_article
from stategraph._util.validators import naming_arguments
from stategraph._values.progress import NodeOutline, Structures
from stategraph.nodes._parts import Job, PartsNode, Workers, part_node
from stategraph.nodes.base import Node, StepContext, check_key
from stategraph.nodes.function import FunctionNode
from stategraph.policies import RetryPolicy
from stategraph.state import State

if TYPE_CHECKING:
    from stategraph.nodes.subgraph import GraphNode, Nestable


@naming_arguments()
class MapNode(PartsNode):
    """Calls a function for each item of a list, several at the same time, and collects the results in order.

    Each result is saved separately as it arrives: after a crash only the other items run again. Sync functions run in
    threads, async functions as tasks; an item whose task is cancelled by other code has failed.

    Args:
        function: A sync or async function of an item (and, if it has a second parameter for it, of a NodeContext). Or a
            graph, or the result of its `as_node`: it runs for each item, a mapping, as its input, and may pause. The
            result is selected by `outputs` or, without them, is all data of its final State.
        over: The key of the list or tuple.
        into: The key of the list of results.
        max_workers: The maximum number of items at the same time; by default the number of processors plus four.
        on_error: "raise": once an item has failed, no other begins, and the errors are raised as an ExceptionGroup.
            "collect": an ErrorInfo takes the place of its result.
        processes: Run the items in processes, for CPU-bound work. The function must be importable.
        retry: When and how often a failed item is retried, without the others. The count of attempts
            (`NodeContext.attempt`; without `retry` it is that of the node) continues after a crash; a resume after the
            node has failed begins again. A run that has to stop ends the wait for an attempt immediately.
        timeout: Seconds that one attempt of an item may take. An async item is cancelled, a process is killed; a thread
            cannot be stopped and is abandoned.
        rate: The maximum number of items that begin in a second, evenly spaced; each attempt counts.

    Raises:
        TypeError, ValueError: an argument is invalid.
    """

    def __init__(  # noqa: PLR0913 - the options of an item
        self,
        function: Callable[..., Any] | Node | Nestable,
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
        check_key("over", over)
        check_key("into", into)
        if on_error not in ("raise", "collect"):
            raise ValueError(f'on_error: {shorten(on_error)} is not allowed; use "raise" or "collect"')
        self.over: str = over
        self.into: str = into
        self.reads: frozenset[str] = frozenset([over])
        self.writes: frozenset[str] = frozenset([into])
        self.on_error: Literal["raise", "collect"] = on_error
        collects = on_error == "collect"
        self.workers: Workers = Workers(
            max_workers, processes, collects=collects, retry=retry, timeout=timeout, rate=rate
        )
        self._node = part_node(function, "an item", "item")
        self.workers.check([self._node])
        policies = {"retry": retry, "timeout": timeout, "rate": rate}
        given = ", ".join(name for name, value in policies.items() if value is not None)
        if given and not isinstance(self._node, FunctionNode):
            raise TypeError(
                f"{given}: for items that are graphs, give it to their nodes: graph.add_node(..., retry=...)"
            )

    @property
    def function(self) -> Callable[..., Any] | GraphNode:
        """The function that is called for each item, or the node of its graph."""
        return self._node.given if isinstance(self._node, FunctionNode) else self._node

    def _about(self) -> str:
        return f" over {self.over!r} into {self.into!r}"

    @property
    def inner_nodes(self) -> tuple[FunctionNode | GraphNode]:
        return (self._node,)

    def part_writes(self, value: Any) -> Collection[str]:
        """Return the key of the list of results."""
        return (self.into,)

    def made_of(self) -> tuple[Any, ...] | None:
        return None if self.graphs else (self.function, self.over, self.into, self.on_error)

    def outline(self, others: Structures) -> NodeOutline:
        outline = self._node.outline(others)
        return NodeOutline("map", (f"each of {self.over}",), None if outline is None else outline.nested)

    def jobs(self, step: StepContext) -> list[Job]:
        return [Job(str(place), item, self._node) for place, item in enumerate(self._items(step))]

    def state_of(self, job: Job) -> State:
        item = job.argument
        if not isinstance(item, Mapping):
            found = f"item {job.label} is {shorten(item)} ({type(item).__name__})"
            raise TypeError(f'{found}; a graph begins with a mapping, such as {{"item": ...}}')
        return State(item)

    def accepted_part(self, step: StepContext, label: str, result: Any) -> Any:
        return step.checked_item(self.into, label, result)

    def chunk(self, label: str, value: Any) -> tuple[int, Any]:
        return int(label), value

    def combined(self, step: StepContext, results: Mapping[str, Any]) -> dict[str, Any]:
        return {self.into: list(results.values())}

    def _items(self, step: StepContext) -> list[Any] | tuple[Any, ...]:
        items = step.tracked_state.get(self.over)
        if not isinstance(items, list | tuple):
            found = "not in the State" if self.over not in step.state else with_article(type(items).__name__)
            raise TypeError(f"it goes over {self.over!r}, a list or a tuple, but that is {found}")
        return items
