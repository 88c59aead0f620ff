"""CheckpointStore: what a store promises, for all of them."""

from __future__ import annotations

import builtins
import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from stategraph._values.answers import asking_again, gives_back, waiting_anew
from stategraph._values.ids import check_given_id
from stategraph._values.provenance import ParentStep, Part, RunStatus
from stategraph.errors import CheckpointNotFoundError, RunExistsError, StepConflictError, shorten
from stategraph.state import State, evolve
from stategraph.stores.retention import RetentionPolicy
from stategraph.stores.summaries import Difference, Pruned, Summary

if TYPE_CHECKING:
    from stategraph.stores._rows.integrity import SigningKey


class CheckpointStore(ABC):
    """Keeps the States of runs. Four methods make a store; everything else has a default here.

    Left by ``with``, a store is closed.

    A store is synchronous, and any thread may call it at any time. `stategraph.testing.CheckpointStoreContract` tests
    what is promised here; the tests of a store inherit it.
    """

    @abstractmethod
    def save(self, state: State) -> None:
        """Keep a State. When this returns, the State is as durable as the store promises.

        A later step takes the place of an earlier one. The newest step may be saved again, with another status or other
        provenance, never with other data. The State that is kept never changes, whatever happens to objects in it.

        Raises:
            NotSerializableError: a value cannot be kept exactly. This is found out before anything else happens.
            StepConflictError: the State is behind the newest step that is saved, or has other data than the same step.
            CheckpointSaveError: it could not be kept; what was saved before is still there.
        """

    @abstractmethod
    def load(self, run_id: str, step: int | None = None) -> State:
        """-> the newest State of a run, or the one at a step; equal to what was saved, in values and in types.

        Raises:
            ValueError: the step is no whole number from 0 on.
            CheckpointNotFoundError: there is none.
            CheckpointCorruptError: it is damaged.
            FormatError: a newer version of stategraph wrote it, or it holds a type that is not registered here.
        """

    @abstractmethod
    def delete(self, run_id: str) -> None:
        """Forget a run. One that is not there is forgotten already."""

    @abstractmethod
    def list(self) -> builtins.list[str]:
        """-> the ids of all runs that are kept, sorted."""

    def amend(self, state: State) -> None:
        """Keep a State in place of the newest one, whose data it may change.

        Only the engine calls this, when a run that had stopped goes on with other data. Here it saves or, where `save`
        refuses other data, deletes the run and saves: a process that is killed in between loses the run. A store that
        can do it in one go has a method for it.

        Raises:
            StepConflictError: the State is behind the newest step that is saved.
        """
        try:
            self.save(state)
        except StepConflictError:
            if self.load(state.run_id).step != state.step:
                raise
            self.delete(state.run_id)
            self.save(state)

    def save_many(self, states: Sequence[State]) -> None:
        """Save several States of one run, in order. Here one after the other; a store may do it at once."""
        for state in states:
            self.save(state)

    def flush(self) -> None:  # noqa: B027 - a default, as for all that follows
        """Wait until all that was saved before is as durable as the store promises. Here `save` has seen to that."""

    def _discard(self, run_id: str) -> None:
        """Forget a run that has completed and is not to be preserved. Only the engine calls this.

        Here it is deleted. A store that takes its time to leave no trace of what is deleted takes less of it here.
        """
        self.delete(run_id)

    def retain(self, run_id: str, policy: RetentionPolicy) -> None:  # noqa: B027
        """Learn what is to be kept of a run, from now on. Here it does nothing: the store keeps what it keeps.

        Every call of execute or resume tells it right before its first save, and once more after a save that failed, so
        a store need not remember it for runs that it does not hold.
        """

    signing_key: SigningKey | None = None
    """Gives the key that the store signs with, if it does. Caches of nodes are signed with it as well."""

    keeps_parts: bool = False
    """Whether finished parts of a step, and the runs of graphs within it, are kept. Where they are not, a step that did
    not complete is made again from its start."""

    def save_parts(self, run_id: str, parts: Sequence[Part]) -> None:
        """Keep finished parts of the step after the newest State of a run, which has been saved.

        Raises:
            NotSerializableError: the value of one cannot be kept exactly; the error names the part.
        """
        raise NotImplementedError

    def load_parts(self, run_id: str, step: int, node: str) -> dict[str, Any]:
        """-> the values of the parts that are kept of a step, by their labels."""
        raise NotImplementedError

    def drop_parts(self, run_id: str, step: int, *, newer_too: bool = False) -> None:
        """Forget the parts of all steps up to this one, and the runs of graphs within them.

        Args:
            run_id: The run.
            step: The step.
            newer_too: Forget the parts of later steps, too, as what they were made of has changed; not the runs.
        """
        raise NotImplementedError

    def history(self, run_id: str) -> builtins.list[Summary]:
        """-> the checkpoints of a run that are kept, in order, without their data; none for a run that is not there.

        What is not read is not checked: only `load` finds out all damage.
        """
        try:
            return [Summary.of(self.load(run_id))]
        except CheckpointNotFoundError:
            return []

    def runs(
        self, status: str | None = None, graph: str | None = None, limit: int = 100, after: str | None = None
    ) -> builtins.list[Summary]:
        """-> the newest checkpoint of each run, without its data; the run that began last comes first.

        Args:
            status: Only runs of this status.
            graph: Only runs of this graph.
            limit: At most so many.
            after: Go on behind the summary that has this cursor.

        As with `history`, only `load` finds out all damage. Here all runs are loaded, in the order of their ids,
        because the order in which they began is not known.
        """
        check_status(status)
        first = from_cursor(after) or 0
        numbered = builtins.list(enumerate(self.list()))[first:]
        found = (Summary.of(self.load(run_id), str(number + 1)) for number, run_id in numbered)
        wanted = (run for run in found if status in (None, run.status) and graph in (None, run.graph))
        return builtins.list(itertools.islice(wanted, check_limit(limit)))

    def fork(self, run_id: str, new_run_id: str, step: int | None = None) -> State:
        """Copy a run, with its history up to a step, under another id -> the State where the copy stands.

        The copy is active, unless it stands at an exit point, and tells by `State.parent` where it comes from. It does
        not depend on the source any more. Here only the newest State is copied.

        Args:
            run_id: The run.
            new_run_id: The id of the copy.
            step: Where the copy ends; at the newest step if not given.

        Raises:
            CheckpointNotFoundError: the run, or this step of it, is not kept.
            RunExistsError: there is a run of the new id, or of the id of a run within the copy.
        """
        forked = forked_from(self.load(run_id, step), new_run_id)
        if new_run_id in self.list():
            raise RunExistsError(new_run_id, str(self))
        self.save(forked)
        return forked

    def rollback(self, run_id: str, step: int) -> State:
        """Take a run back to a step: later ones are forgotten -> the State of that step, of the next generation.

        Raises:
            CheckpointNotFoundError: the run, or this step of it, is not kept.
        """
        state = self.load(run_id, step)
        state = rolled_back(state)
        self.amend(state)
        return state

    def diff(self, run_id: str, a: int, b: int) -> Difference:
        """-> how the data of step `b` of a run differ from those of step `a`.

        Raises:
            ValueError: one of them is no whole number from 0 on.
            CheckpointNotFoundError: one of them is not kept.
        """
        for name, step in (("a", a), ("b", b)):
            check_number(step, name)
        return Difference.between(self.load(run_id, a), self.load(run_id, b))

    def prune(self) -> Pruned:
        """Remove what is due by the policies of its runs -> what was removed. Here nothing ever is due."""
        return Pruned()

    def close(self) -> None:  # noqa: B027
        """Let go of files and connections. A closed store is not used again."""

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __str__(self) -> str:
        """-> the store in words, as errors name it."""
        return f"store {type(self).__qualname__}"


def forked_from(source: State, new_run_id: str) -> State:
    """-> the State of a run that is forked off at `source`."""
    is_over = source.status is RunStatus.COMPLETED
    # The copy of a run that waits goes on, or waits again, where that waits.
    copy = asking_again(source) if source.pause is None else waiting_anew(source, source.pause)
    return evolve(
        copy,
        run_id=check_given_id(new_run_id),
        status=source.status if is_over else RunStatus.ACTIVE,
        error=None,
        parent=ParentStep(source.run_id, source.step),
    )


def keeps_nested(source: State) -> bool:
    """Return whether a copy of a run keeps what is nested in the step after: not if that was made with answers that
    the copy takes back."""
    return source.pause is not None or not gives_back(source)


def rolled_back(state: State) -> State:
    """-> the State of a run that is taken back to it."""
    return evolve(asking_again(state), generation=state.generation + 1)


def check_status(status: str | None) -> None:
    """Raise ValueError unless a run can have this status, or it is None."""
    if status is not None and status not in builtins.list(RunStatus):
        raise ValueError(f"status: {shorten(status)} is not allowed; {', '.join(RunStatus)} are")


def check_number(step: object, name: str = "step") -> None:
    """Raise ValueError unless it is the number of a step; `name` is that of the argument."""
    if type(step) is not int or step < 0:
        raise ValueError(f"{name}: {shorten(step)} is not allowed; a whole number from 0 on is")


def check_limit(limit: int) -> int:
    """-> the limit, if it is one."""
    if type(limit) is not int or not 1 <= limit <= _LARGEST:
        raise ValueError(f"limit: {shorten(limit)} is not allowed; a whole number from 1 to {_LARGEST} is")
    return limit


def from_cursor(cursor: str | None) -> int | None:
    """-> the number that a cursor stands for."""
    if cursor is None:
        return None
    is_number = isinstance(cursor, str) and cursor.isdecimal() and cursor.isascii()
    if is_number and len(cursor) <= len(str(_LARGEST)) and int(cursor) <= _LARGEST:
        return int(cursor)
    raise ValueError(f"after: {shorten(cursor)} is not allowed; the cursor of a summary is, from runs() of this store")


_LARGEST = 2**63 - 1
"""The largest number that stores count to."""


def check_step(run_id: str, saved_step: int, step: int, same_data: bool) -> None:
    """Raise StepConflictError unless a State may be saved on top of the newest one.

    It may, if it has a later step, or the same step and the same data."""
    if step > saved_step:
        return
    if step < saved_step:
        reason = (
            f"step {step} is behind step {saved_step}, which is saved: another process has taken the run further, "
            "or an old State was executed; load the newest State, or give this one a run_id of its own"
        )
        raise StepConflictError(run_id, reason)
    if not same_data:
        raise StepConflictError(run_id, f"step {step} is saved with other data; a saved step never changes")
