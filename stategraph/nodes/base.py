"""Node: what does the work of a step."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, Final

from stategraph._protocol.commands import Task

if TYPE_CHECKING:
    from stategraph._schema.schema import Schema  # imported when used: cattrs
    from stategraph._values.progress import NodeOutline, Structures
    from stategraph.nodes.step import Question, StepContext


def graph_of(given: Any) -> Any:
    """Return the GraphNode for a graph that is given in place of a function; None if it is none."""
    if isinstance(given, Node):
        return next((graph for graph in given.graphs if graph is given), None)
    return given.as_node() if hasattr(given, "as_node") else None


class _Nothing:
    def __repr__(self) -> str:
        return "NOTHING"


NOTHING: Final = _Nothing()


class Node:
    """Base of the nodes that are more than a function. Its methods that return a Task are parts of the run."""

    is_async: bool = False
    """Whether it has to be awaited."""

    pauses: bool = False
    """Whether it can only do its work in a run that is saved."""

    has_parts: bool = False
    """Whether it does its work in parts, which are saved as they finish."""

    @property
    def graphs(self) -> tuple[Node, ...]:
        """The graphs that it runs, each as a GraphNode."""
        return ()

    otherwise: Any = NOTHING
    """The answer to a pause once its deadline has passed; NOTHING if there is none."""

    @property
    def asks_for(self) -> frozenset[str]:
        """The keys under which it is known to take answers."""
        return frozenset()

    @property
    def reads(self) -> frozenset[str]:
        """The keys that it is known to take from the State."""
        return frozenset()

    @property
    def writes(self) -> frozenset[str]:
        """The keys that it is known to write; what else it writes shows when it runs."""
        return frozenset()

    def part_writes(self, value: Any) -> Collection[str]:
        """Return the keys that a finished part of it, of this value, contributes to."""
        return ()

    def execute(self, step: StepContext) -> Task[Any]:
        """Do the work of one step; return a State made from that of the step, or a mapping of updates to it."""
        raise NotImplementedError

    def asked(self, step: StepContext) -> Task[Question]:
        """Return what was asked when a run paused here: by this node or, if it runs a graph, by a node of that."""
        from stategraph.nodes.step import Question  # imported when used: few nodes ask

        yield from ()
        return Question(self)

    def accepted(self, answer: Any) -> Any:
        """Return an answer to a pause, as the node makes it part of the State. Raises ValueError if it refuses it."""
        return answer

    def typed(self, name: str, schema: Schema) -> Node:
        """Return the node as it works under this name in a graph with a schema."""
        return self

    def made_of(self) -> tuple[Any, ...] | None:
        """Return the functions and settings that decide what it returns; None if other things do, too."""
        return None

    def outline(self, others: Structures) -> NodeOutline | None:
        """Return what a picture shows of it besides its name; None for a function."""
        return None

    def problems(self, name: str) -> Iterator[str]:
        """Yield what keeps it from working under this name in a graph."""
        yield from ()
