"""StepContext: what a node may ask of the run; Question: what it asks of people."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from stategraph._protocol.commands import Task
from stategraph.state import State

if TYPE_CHECKING:
    from stategraph.nodes.context import NodeContext


class StepContext(Protocol):
    """One step of a run, as the node that does its work knows it.

    What returns a Task is a part of the run: ``yield from`` does it.

    Attributes:
        state: The State that the step is made from.
        attempt: Which try it is, from 1.
        is_done_before: Whether all parts, or the nested run, were finished before, so that they are only combined now.
    """

    state: State
    attempt: int
    is_done_before: bool

    @property
    def name(self) -> str:
        """The name of the node."""

    @property
    def tracked_state(self) -> State:
        """The State as it is handed to the functions of a user: reads are noted if the step may have to be repeated."""

    @property
    def state_for_parts(self) -> State:
        """The same without what answers a part: all parts see the State that they were made of before it asked."""

    # ------------------------------------------------------------------ calling

    def context(self, part: str = "", attempt: int = 0) -> NodeContext:
        """Return the NodeContext of this step or, with `part`, of that part."""

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
        """Take the values of some keys as answers to this step; they will answer no other."""

    def keep_incoming(self, *, at_last: bool = False) -> Task[None]:
        """Save the State that the step is made from, unless it is saved: what is kept of parts builds on it."""

    def finished_parts(self, made_of: Mapping[str, Any], mark: str = "") -> Task[dict[str, Any]]:
        """Return the values of the parts of this step that were finished before, by their labels.

        `made_of` has, by label, what they are made of now: of those that were made of something else, none is returned.
        With a `mark`, it is what was kept of the parts with that.
        """

    def keep_parts(self, finished: Mapping[str, Any], made_of: Mapping[str, Any], mark: str = "") -> Task[None]:
        """Save parts of this step that have finished, with what they were made of; with a `mark`, something else."""

    def copier(self, value: Any) -> Callable[[], Any] | None:
        """Return what makes copies of a value that a part may change; None if it cannot change or be copied."""

    def show_part(self, label: Any, value: Any) -> Task[None]:
        """Show a part that has finished to whoever iterates over the run."""

    def tell_parts(self, parts: Iterable[PartTold], total: int) -> Task[None]:
        """Report what came of parts of this step, which has so many."""

    # ------------------------------------------------------------------ nested graphs

    def nested(self, part: str = "", made_of: Any = None, *, is_branch: bool = False) -> NestedStep:
        """Return the run of a graph as this step or, with `part`, as that part of it, made of this."""


class NestedStep(Protocol):
    """The run of a graph as a step of a run, or as a part of one.

    Attributes:
        is_done_before: Whether it was complete before this attempt.
    """

    is_done_before: bool

    @property
    def before_updates(self) -> State | None:
        """The State without the updates that it has not been given yet; None if there are none."""

    def result(self, plan: Any, inputs: Mapping[str, Any], updates: Mapping[str, Any]) -> Task[State]:
        """Return the State that it ends with: completed or, if it waits for an answer, paused.

        If it was begun before, it goes on, with its data updated.
        """

    def load(self) -> Task[State | None]:
        """Return its newest saved State, None if there is none."""

    def waiting_step(self, state: State, graph: Any) -> tuple[WaitingNode, StepContext] | None:
        """Return the node at which it waits, and its step; None if it does not wait.

        Raises:
            GraphMismatchError: the graph has changed.
        """


@attrs.frozen
class PartTold:
    """What came of a part of a step.

    Attributes:
        label: Its label.
        outcome: "completed"; "collected", if it failed and what is kept of it says so; "found", if that was before this
            attempt; "failed"; or "retried", if an attempt of it has failed and another follows.
        error: What it raised.
        took: For how many seconds it was done, if that is known.
        attempt: Of one that is retried, which of its attempts has failed.
        delay: The seconds until the next one.
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
        """Return what was asked."""


class AskingNode(Protocol):
    """The node that asked; see `Node`."""

    @property
    def otherwise(self) -> Any:
        """The answer once the deadline has passed."""

    def accepted(self, answer: Any) -> Any:
        """Return an answer as the node makes it part of the State. Raises ValueError if it is refused."""


@attrs.frozen
class Question:
    """What a run that paused was asked.

    Attributes:
        node: The node that asked.
        fits: What else makes an answer fit, or raises ValueError: the schemas of the graphs that it goes through.
    """

    node: AskingNode
    fits: tuple[Callable[[Any], Any], ...] = ()

    @property
    def otherwise(self) -> Any:
        """The answer once the deadline has passed; NOTHING if there is none."""
        return self.node.otherwise

    def accepted(self, answer: Any) -> Any:
        """Return an answer as the node makes it part of the State. Raises ValueError if it is refused."""
        answer = self.node.accepted(answer)
        for fit in self.fits:
            answer = fit(answer)
        return answer
