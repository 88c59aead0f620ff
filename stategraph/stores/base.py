"""CheckpointStore: what a store promises, for all of them."""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod

from stategraph.errors import StepConflictError
from stategraph.state import State


class CheckpointStore(ABC):
    """Keeps the States of runs. Four methods make a store; everything else has a default here.

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
            CheckpointNotFoundError: there is none.
            CheckpointCorruptError: it is damaged.
            FormatError: a newer version of stategraph wrote it.
        """

    @abstractmethod
    def delete(self, run_id: str) -> None:
        """Forget a run. One that is not there is forgotten already."""

    @abstractmethod
    def list(self) -> builtins.list[str]:
        """-> the ids of all runs that are kept, sorted."""

    def amend(self, state: State) -> None:
        """Keep a State in place of the newest one, whose data it may change. Only the engine calls this, when a run that
        had stopped goes on with other data.

        Here it saves. That is right for a store whose `save` takes any State of the run.

        Raises:
            StepConflictError: the State is behind the newest step that is saved.
        """
        self.save(state)

    def close(self) -> None:
        """Let go of files and connections. A closed store is not used again."""

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return False

    def __str__(self) -> str:
        """-> the store in words, as errors name it."""
        return f"store {type(self).__qualname__}"


def check_follows(run_id: str, saved_step: int, step: int, same_data: bool) -> None:
    """Raise StepConflictError unless a State may be saved on top of the newest one: it has a later step, or the same step
    and the same data."""
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
