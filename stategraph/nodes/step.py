"""StepContext: the services of the run for a node; Question: what a node asks people."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from stategraph._protocol import Task
from stategraph.state import State

if TYPE_CHECKING:
    from stategraph.nodes.context import NodeContext


class StepContext(Protocol):
    """One step of a run, as seen by its node.

    A method that returns a Task is a part of the run: call it with ``yield from``.

    Attributes:
        state: The input State of the step.
        attempt: The number of the attempt, from 1.
        is_done_before: Whether all parts, or the nested run, had finished earlier, so that the step only combines them.
    """

    state: State
    attempt: int
    is_done_before: bool

    @property
    def name(self) -> str:
        """The name of the node."""

    @property
    def tracked_state(self) -> State:
        """The State for functions of the user: reads are recorded if the step may have to be repeated."""

    @property
    def state_for_parts(self) -> State:
        """The same without the answers to a part: all parts see the State from which they began before the question."""

    # ------------------------------------------------------------------ calling

    def context(self, part: str = "", attempt: int = 0) -> NodeContext:
        """Return the NodeContext of this step or, with `part`, of that part."""

    def call(self, function: Callable[[Any], Any], argument: Any) -> Task[Any]:
        """Call a function that may take long, sync or async like the node; return its result."""

    def show_chunk(self, chunk: Any) -> Task[None]:
        """Emit a chunk: show it at once, and keep it with the run until the node has finished."""

    def checked(self, result: Any) -> Any:
        """Validate the result of the node, or of a part of it, against the schema of the graph, and return it."""

    def checked_item(self, key: str, place: str, item: Any) -> Any:
        """Validate an item of the list under a key against the schema of the graph, and return it."""

    # ------------------------------------------------------------------ answers and parts

    def is_answer(self, key: str) -> bool:
        """Return whether the State holds an unused answer under this key."""

    def take_answers(self, keys: Iterable[str]) -> None:
        """Use the values of some keys as answers to this step; they answer no other step."""

    def keep_incoming(self, *, at_last: bool = False) -> Task[None]:
        """Save the input State of the step, unless it is saved: saved parts refer to it."""

    def finished_parts(self, made_of: Mapping[str, Any], mark: str = "") -> Task[dict[str, Any]]:
        """Return the values of the finished parts of this step, by their labels.

        `made_of` maps labels to the current inputs: parts that were made from other inputs are left out. With a `mark`,
        return the values that `keep_parts` saved with that mark.
        """

    def keep_parts(self, finished: Mapping[str, Any], made_of: Mapping[str, Any], mark: str = "") -> Task[None]:
        """Save finished parts of this step with their inputs; with a `mark`, save other values of the parts."""

    def copier(self, value: Any) -> Callable[[], Any] | None:
        """Return a function that copies a value a part may change; None if the value cannot change or be copied."""

    def show_part(self, label: Any, value: Any) -> Task[None]:
        """Show a finished part to the caller that iterates over the run."""

    def tell_parts(self, parts: Iterable[PartTold], total: int) -> Task[None]:
        """Report the outcomes of parts of this step; `total` counts all of its parts."""

    # ------------------------------------------------------------------ nested graphs

    def nested(self, part: str = "", made_of: Any = None, *, is_branch: bool = False) -> NestedStep:
        """Return the nested run of this step or, with `part`, of that part of it, made from `made_of`."""


class NestedStep(Protocol):
    """The nested run of a step or of a part of it.

    Attributes:
        is_done_before: Whether it was complete before this attempt.
    """

    is_done_before: bool

    @property
    def before_updates(self) -> State | None:
        """The State without the updates that the nested run has not received; None if there are none."""

    def result(self, plan: Any, inputs: Mapping[str, Any], updates: Mapping[str, Any]) -> Task[State]:
        """Return the final State of the nested run: completed or, if it waits for an answer, paused.

        If it began before, it continues with its data updated.
        """

    def load(self) -> Task[State | None]:
        """Return its newest saved State, None if there is none."""

    def waiting_step(self, state: State, graph: Any) -> tuple[WaitingNode, StepContext] | None:
        """Return the node at which the nested run waits, and its step; None if it does not wait.

        Raises:
            GraphMismatchError: the graph has changed.
        """


@attrs.frozen
class PartTold:
    """The outcome of a part of a step.

    Attributes:
        label: Its label.
        outcome: "completed"; "collected", if it failed and its kept value is the error; "found", if it completed before
            this attempt; "failed"; or "retried", if an attempt of it has failed and another follows.
        error: The exception it raised.
        took: Seconds that it took, if known.
        attempt: The number of the failed attempt, if it is retried.
        delay: The seconds until the next attempt.
    """

    label: str
    outcome: str
    error: BaseException | None = None
    took: float | None = None
    attempt: int = 0
    delay: float | None = None


class WaitingNode(Protocol):
    """The node at which a nested run waits; see `Node`."""

    def asked(self, step: StepContext) -> Task[Question]:
        """Return the question."""


class AskingNode(Protocol):
    """The node that asked; see `Node`."""

    @property
    def otherwise(self) -> Any:
        """The answer once the deadline has passed."""

    def accepted(self, answer: Any) -> Any:
        """Return a valid answer as the node stores it in the State. Raises ValueError for an invalid answer."""


@attrs.frozen
class Question:
    """The question at which a run paused.

    Attributes:
        node: The node that asked.
        fits: Validates the answer against the schemas of the graphs it passes through, or raises ValueError.
    """

    node: AskingNode
    fits: tuple[Callable[[Any], Any], ...] = ()

    @property
    def otherwise(self) -> Any:
        """The answer once the deadline has passed; NOTHING if there is none."""
        return self.node.otherwise

    def accepted(self, answer: Any) -> Any:
        """Return a valid answer as the node stores it in the State. Raises ValueError for an invalid answer."""
        answer = self.node.accepted(answer)
        for fit in self.fits:
            answer = fit(answer)
        return answer
