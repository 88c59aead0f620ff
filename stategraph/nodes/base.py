"""Node: what does the work of a step; and StepContext: what it may ask of the run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

import attrs

from stategraph._protocol.commands import Task
from stategraph.nodes.context import NodeContext
from stategraph.state import State

if TYPE_CHECKING:
    from stategraph._schema.schema import Schema  # imported when used: cattrs


class _Nothing:
    def __repr__(self) -> str:
        return "NOTHING"


NOTHING: Final = _Nothing()


@attrs.frozen
class Question:
    """What a run that paused was asked.

    Attributes:
        node: The node that asked.
        fits: What else makes an answer fit, or raises ValueError: the schemas of the graphs that it goes through.
    """

    node: Node
    fits: tuple[Callable[[Any], Any], ...] = ()

    @property
    def otherwise(self) -> Any:
        """The answer once the deadline has passed; NOTHING if there is none."""
        return self.node.otherwise

    def accepted(self, answer: Any) -> Any:
        """-> an answer as the node makes it part of the State. Raises ValueError if it will not do."""
        answer = self.node.accepted(answer)
        for fit in self.fits:
            answer = fit(answer)
        return answer


class Node:
    """Base of the nodes that are more than a function. A visit is a part of the run: it yields commands."""

    is_async: bool = False
    """Whether it has to be awaited."""

    pauses: bool = False
    """Whether it can only do its work in a run that is saved."""

    has_parts: bool = False
    """Whether it does its work in parts, which are saved as they finish."""

    runs_graph: bool = False
    """Whether it runs a graph."""

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
        """-> the keys that a finished part of it, of this value, contributes to."""
        return ()

    def execute(self, step: StepContext) -> Task[Any]:
        """Do the work of one step -> a State made from the one visited, or a mapping of updates to it."""
        raise NotImplementedError

    def asked(self, step: StepContext) -> Task[Question]:
        """-> what was asked, when a run paused here: by this node or, where it runs a graph, by one of that."""
        yield from ()
        return Question(self)

    def accepted(self, answer: Any) -> Any:
        """-> an answer to a pause, as the node makes it part of the State. Raises ValueError if it will not do."""
        return answer

    def typed(self, name: str, schema: Schema) -> Node:
        """-> the node as it works under this name in a graph with a schema."""
        return self

    def made_of(self) -> tuple[Any, ...] | None:
        """-> the functions and settings that decide what it returns; None if there is more to it than these."""
        return None

    def problems(self, name: str) -> Iterator[str]:
        """-> what keeps it from working under this name in a graph."""
        yield from ()


class NestedGraph(Protocol):
    """A graph made ready to run, as the node that runs it knows it."""

    @property
    def stages(self) -> Mapping[str, Any]:
        """Its nodes, each with its `node`, by their names."""

    @property
    def schema(self) -> Schema | None:
        """Its schema."""

    @property
    def async_node(self) -> str | None:
        """The name of a node that is async, if there is one."""


class StepContext(Protocol):
    """One step of a run, as the node that does its work knows it.

    What returns a Task is a part of the run: ``yield from`` does it.

    Attributes:
        state: The State that the step is made from.
        attempt: Which try it is, from 1.
        is_done_before: Whether all that it takes was finished before this call, and had only to be put together.
    """

    state: State
    attempt: int
    is_done_before: bool

    @property
    def name(self) -> str:
        """The name of the node."""

    @property
    def tracked_state(self) -> State:
        """The State as it is handed to the functions of a user: what they read of it is noted where that is needed."""

    # ------------------------------------------------------------------ calling

    def context(self, part: str = "") -> NodeContext:
        """Return what the node may know of its step, or a part of it of its part."""

    def call(self, function: Callable[[Any], Any], argument: Any) -> Task[Any]:
        """Return what a function returns that may take long: sync or async, as the node is."""

    def show_chunk(self, chunk: Any) -> Task[None]:
        """Emit a chunk: it is seen at once, and kept with the run while the node has not finished."""

    def checked(self, result: Any) -> Any:
        """Return what the node, or a part of it, returned, as the schema of the graph wants it."""

    def checked_item(self, key: str, place: str, item: Any) -> Any:
        """Return what is to stand at a place of the list under a key, as the schema of the graph wants it."""

    # ------------------------------------------------------------------ answers and parts

    def is_answer(self, key: str) -> bool:
        """Return whether the State holds an answer under this key that has not answered anything yet."""

    def take_answers(self, keys: Iterable[str]) -> None:
        """Let the values of some keys be answers to this step, and to no other."""

    def keep_incoming(self, *, at_last: bool = False) -> Task[None]:
        """Save the State that the step is made from, unless it is saved: what is kept of parts builds on it."""

    def finished_parts(self) -> Task[dict[str, Any]]:
        """Return the values of the parts of this step that were finished before, by their labels."""

    def keep_parts(self, finished: Mapping[str, Any]) -> Task[None]:
        """Save parts of this step that have finished."""

    # ------------------------------------------------------------------ a nested graph

    @property
    def before_updates(self) -> State | None:
        """The State without the updates that the nested run has not been given yet; None if there are none."""

    def run_nested(self, graph: Any, inputs: Mapping[str, Any], updates: Mapping[str, Any]) -> Task[State]:
        """Return the State that the run of a nested graph ends with: completed or, if it waits for an answer, paused.

        A run of it that was begun before goes on, with its data updated.
        """

    def load_nested(self) -> Task[State | None]:
        """Return the newest saved State of the nested run, None if there is none."""

    def waiting_step(self, nested: State, graph: Any) -> tuple[Node, StepContext] | None:
        """Return the node at which a nested run waits, and its step; None if it does not wait.

        Raises:
            GraphMismatchError: the graph has changed.
        """
