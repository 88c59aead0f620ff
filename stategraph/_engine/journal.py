"""StepJournal: the entries of a step, for its node while it runs.

A node calls it in its own thread. The engine waits for the node in the meantime, so nothing else writes to the run but
other parts of the same step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import attrs

from stategraph._engine.spending import check_limits
from stategraph._owners.base import on_behalf_of
from stategraph._values.entries import Entry
from stategraph._values.ids import given_id
from stategraph._values.spending import checked_amounts
from stategraph.state import State, taken_of


@attrs.define(eq=False)
class StepJournal:
    """The journal of a step, and the inbox of its run.

    Attributes:
        run: The run, a `stategraph._engine.context.RunContext`.
        state: The input State of the step.
        node: The node.
        step: The step under which entries are kept.
        place: The node or, for a part of the step, "node/part".
        is_part: Whether it is of a part of a step, or of a graph that one runs.
        is_over: Whether the attempt has ended; after a timeout its thread goes on.
        used: A mark for each key of an effect of this attempt. Threads of the node may do effects at the same time.
    """

    run: Any
    state: State
    node: str
    step: int
    place: str
    is_part: bool = False
    is_over: bool = False
    used: dict[str, object] = attrs.field(factory=dict)

    @property
    def is_kept(self) -> bool:
        """Whether the run is saved, so that entries outlive the process."""
        return bool(self.run.outermost_run.plan.saves)

    @property
    def is_past(self) -> bool:
        """Whether the attempt, or one of a graph around it, has ended."""
        return self.is_over or self.run.is_over

    def effect(self, key: str, call: Callable[[], Any], confirm: Callable[[str], Any] | None) -> Any:
        """Do an effect, as `NodeContext.effect`."""
        from stategraph._engine.effects import effect  # imported when used

        return effect(self, key, call, confirm)

    def save_input(self) -> None:
        """Save the State that the step began with, durably, unless it is saved."""
        save_input(self.run)

    def append(self, kind: str, value: Any, name: str = "", made_of: str = "") -> Entry:
        """Append an entry to the journal; when this returns, it is durable.

        Raises:
            CheckpointError: The store could not keep it.
            EntriesNotKeptError: The store keeps no entries.
        """
        save_input(self.run)
        entry = Entry(kind, value, self.step, self.place, name, made_of)
        kept: list[Entry] = self.run.session.store_entries(self.state, [entry])
        return kept[0]

    def entries_of_step(self, *kinds: str) -> list[Entry]:
        """Return the entries of all places of the step of some kinds, in order."""
        with on_behalf_of(self.run.session.ownership):
            found: list[Entry] = self.run.session.store.entries(self.state.run_id, step=self.step, kinds=kinds)
            return found

    def messages(self) -> list[Any]:
        """Return the updates of the messages that wait in the inbox of the outermost run."""
        store, run_id = self.run.session.store, given_id(self.state.run_id)
        if not self.is_kept or not store.keeps_entries:
            return []
        found = store.entries(run_id, step=0, kinds=("message",), after=taken_of(self.run.outermost_run.state))
        return [entry.value for entry in found]

    def spend(self, amounts: Mapping[str, Any]) -> None:
        """Keep what the node has spent, durably if the run is saved.

        The journal of the outermost run has it: a nested run may be deleted or begin again, and what it spent is spent.

        Raises:
            LimitError: The run has reached a limit.
        """
        amounts, run, outermost = checked_amounts(amounts), self.run, self.run.outermost_run
        with run.spending.lock:
            if self.is_kept:
                save_input(outermost)
                entry = Entry("spend", amounts, outermost.state.step + 1, f"{run.nested_path}{self.place}")
                outermost.session.store_entries(outermost.state, [entry])
            run.spending.add(amounts)
        check_limits(run, self.node)

    def connection(self) -> Any:
        """Return the connection with the transaction that the save of the step commits; begin it at the first call.

        Raises:
            CheckpointError: The store has no such connection.
            RuntimeError: There is no State with which to commit it.
        """
        for why, is_true in (
            ("nothing of this run is saved: give the graph a store", not self.run.plan.saves),
            ("a branch or an item has no State of its own: write in a node before or after", self.is_part),
            ("the timeout of this attempt has passed", self.is_past),
        ):
            if is_true:
                raise RuntimeError(f"there is no context.connection: {why}")
        save_input(self.run)
        return self.run.session.connection(self.state)

    def __reduce__(self) -> tuple[Any, ...]:
        return NoJournal, ()


class NoJournal:
    """Takes the place of a StepJournal in a process of a map, which has no store."""

    def __getattr__(self, name: str) -> NoReturn:
        raise RuntimeError(
            "effects, spending, status and messages are not available in a process of ParallelNode or MapNode: it has "
            "no store; use threads (processes=False), or do it in a node before or after"
        )


def save_input(run: Any) -> None:
    """Save the State that the current step of a run began with, durably, unless it is saved."""
    with run.input_lock:
        if run.state is not run.saved:
            if run.outer_step is not None:
                save_input(run.outer_step.run)
            run.session.save(run.state)
            run.saved = run.state
        if run.session.queue is not None:  # then a saved State may only be queued
            run.session.flush(run.state)
