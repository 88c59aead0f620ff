"""Node: the work of a step."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, Final

from stategraph._protocol import Task

if TYPE_CHECKING:
    from stategraph._schema.schema import Schema  # imported when used: cattrs
    from stategraph._values.progress import NodeOutline, Structures
    from stategraph.nodes.step import Question, StepContext


def graph_of(given: Any) -> Any:
    """Return the GraphNode for a graph given in place of a function; None for anything else."""
    if isinstance(given, Node):
        return next((graph for graph in given.graphs if graph is given), None)
    return given.as_node() if hasattr(given, "as_node") else None


class _Nothing:
    def __repr__(self) -> str:
        return "NOTHING"


NOTHING: Final = _Nothing()


class Node:
    """Base of the nodes that are more than a function. Methods that return a Task are parts of the run."""

    is_async: bool = False
    """Whether it must be awaited."""

    pauses: bool = False
    """Whether it needs a run that is saved, because it may pause."""

    has_parts: bool = False
    """Whether its work consists of parts, which are saved as they finish."""

    @property
    def graphs(self) -> tuple[Node, ...]:
        """The graphs that it runs, each as a GraphNode."""
        return ()

    otherwise: Any = NOTHING
    """The answer to a pause once its deadline has passed; NOTHING if there is none."""

    @property
    def asks_for(self) -> frozenset[str]:
        """The keys under which it takes answers, as far as known."""
        return frozenset()

    @property
    def reads(self) -> frozenset[str]:
        """The keys that it reads from the State, as far as known."""
        return frozenset()

    @property
    def writes(self) -> frozenset[str]:
        """The keys that it writes, as far as known before it runs."""
        return frozenset()

    def part_writes(self, value: Any) -> Collection[str]:
        """Return the keys to which a finished part with this value contributes."""
        return ()

    def execute(self, step: StepContext) -> Task[Any]:
        """Execute one step; return a State derived from the State of the step, or a mapping of updates to it."""
        raise NotImplementedError

    def asked(self, step: StepContext) -> Task[Question]:
        """Return the question at which a run paused here, asked by this node or by a node of its graph."""
        from stategraph.nodes.step import Question  # imported when used: few nodes ask

        yield from ()
        return Question(self)

    def accepted(self, answer: Any) -> Any:
        """Return a valid answer as the node stores it in the State. Raises ValueError for an invalid answer."""
        return answer

    def typed(self, name: str, schema: Schema) -> Node:
        """Return the node adapted to a graph with a schema, under this name."""
        return self

    def made_of(self) -> tuple[Any, ...] | None:
        """Return the functions and settings that decide its result; None if the result depends on anything else."""
        return None

    def outline(self, others: Structures) -> NodeOutline | None:
        """Return the details a picture shows besides its name; None for a function."""
        return None

    def problems(self, name: str) -> Iterator[str]:
        """Yield the reasons why it cannot work under this name in a graph."""
        yield from ()
