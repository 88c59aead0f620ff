"""StepJournal: the entries of a step, for its node while it runs.

A node calls it in its own thread. The engine waits for the node in the meantime, so nothing else writes to the run but
other parts of the same step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from inspect import isawaitable
from typing import Any, NoReturn

import attrs

from stategraph._engine.spending import check_limits
from stategraph._protocol import StoreFailed
from stategraph._values.entries import Entry
from stategraph._values.frozen import freeze
from stategraph._values.spending import checked_amounts
from stategraph.errors import CheckpointError, NotSerializableError
from stategraph.state import State, taken_of

_OVER = (
    "its attempt is over: the node has returned or failed, or its timeout has passed; a context may be used only until "
    "then, also by threads and functions of the node"
)


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
        used: A mark for each key of an effect of this attempt; of an async one, its coroutine. Threads of the node may
            do effects at the same time.
        sink: Takes the chunks that are emitted, and whether the attempt has ended; None if no one wants them now.
        chunks: Keeps these chunks, a `stategraph._engine.chunks.KeptChunks`; None if the node keeps none.
    """

    run: Any
    state: State
    node: str
    step: int
    place: str
    is_part: bool = False
    is_over: bool = False
    used: dict[str, Any] = attrs.field(factory=dict)
    sink: Callable[[Any, bool], object] | None = None
    chunks: Any = None

    @property
    def is_kept(self) -> bool:
        """Whether the run is saved, so that entries outlive the process."""
        return bool(self.run.outermost_run.plan.saves) and not self.run.is_recomputing

    @property
    def is_left(self) -> bool:
        """Whether the call of the run has ended."""
        ownership = self.run.session.ownership
        return ownership is not None and ownership.task is None

    @property
    def is_past(self) -> bool:
        """Whether the attempt, or one of a graph around it, has ended."""
        run = self.run
        return self.is_over or run.is_over or run.state.step != self.state.step or self.is_left

    def check_open(self, what: str) -> None:
        """Raise RuntimeError if the attempt is over: a thread or a closure may have kept its context."""
        if self.run.is_recomputing:
            raise self._closed(
                what,
                "the step is complete, and runs again: in replay, where repeat_effects=True allows it; or for keys "
                "that are not saved, so give them to resume, or name them in persist",
            )
        if self.is_past:
            raise self._closed(what, _OVER)

    def _closed(self, what: str, why: str) -> RuntimeError:
        return RuntimeError(f"{what} of node {self.node!r} in step {self.step} of run {self.state.run_id!r}: {why}")

    def effect(self, key: str, call: Callable[[], Any], confirm: Callable[[str], Any] | None) -> Any:
        """Do an effect, as `NodeContext.effect`."""
        from stategraph._engine.effects import effect  # imported when used

        return effect(self, key, call, confirm)

    def returned(self, result: Any) -> Any:
        """Return what the function of the node has returned. Raises RuntimeError if it has left an effect unawaited."""
        if self.used and not isawaitable(result):
            from stategraph._engine.effects import check_awaited

            check_awaited(self)
        return result

    def emit(self, chunk: Any) -> None:
        """Emit a chunk, as `NodeContext.emit`."""
        if self.sink is None and self.chunks is None:
            return
        chunk, is_past = freeze(chunk), self.is_past
        if self.chunks is not None and not is_past:
            self.chunks.keep(chunk)
        if self.sink is not None:
            self.sink(chunk, is_past)

    def ask(self, questions: Mapping[str, tuple[str, Any]]) -> dict[str, Any]:
        """Return the answers to questions; if one is missing, the run pauses."""
        from stategraph._engine.effects import ask  # imported when used

        return ask(self, questions)

    def claim(self, key: str) -> bool:
        """Mark a key as used by this attempt; return whether it was free."""
        mark = object()
        return self.used.setdefault(key, mark) is mark

    def save_input(self) -> None:
        """Save the State that the step began with, durably, unless it is saved."""
        save_input(self.run)

    def append(self, kind: str, value: Any, name: str = "", made_of: str = "") -> Entry:
        """Append an entry to the journal; when this returns, it is durable.

        Raises:
            NotSerializableError: Its value cannot be kept exactly.
            StoreFailed: The store keeps no entries, or could not keep this one.
        """
        save_input(self.run)
        return _append(self.run, Entry(kind, value, self.step, self.place, name, made_of))

    def entries_of_step(self, *kinds: str) -> list[Entry]:
        """Return the entries of all places of the step of some kinds, in order."""
        return _entries(self.run, self.state.run_id, self.step, kinds)

    def status(self, text: str) -> None:
        """Say how far the step is, as `NodeContext.status`."""
        if not self.run.is_recomputing:
            self.check_open("status")
        if self.is_kept:
            self.append("status", self.run.without_unsaved(text), "status")

    def messages(self) -> list[Any]:
        """Return the updates of the messages that wait in the inbox of the outermost run."""
        outermost = self.run.outermost_run
        if not self.is_kept or not self.run.session.store.keeps_entries:
            return []
        found, taken = _entries(self.run, outermost.state.run_id, 0, ("message",)), taken_of(outermost.state)
        return [entry.value for entry in found if entry.seq > taken]

    def spend(self, amounts: Mapping[str, Any]) -> None:
        """Keep what the node has spent, durably if the run is saved.

        The journal of the outermost run has it: a nested run may be deleted or begin again, and what it spent is spent.

        Raises:
            LimitError: The run has reached a limit.
            RuntimeError: The call of the run has ended.
        """
        if self.is_left:  # until then it counts, also after the attempt: it is spent
            raise self._closed("spend", _OVER)
        amounts, run, outermost = checked_amounts(amounts), self.run, self.run.outermost_run
        with run.spending.lock:
            if self.is_kept:
                save_input(outermost)
                entry = Entry("spend", amounts, outermost.state.step + 1, f"{run.nested_path}{self.place}")
                _append(outermost, entry)
            run.spending.add(amounts)
        check_limits(run, self.node)

    def connection(self) -> Any:
        """Return the connection with the transaction that the save of the step commits; begin it at the first call.

        Raises:
            CheckpointError: The store has no such connection.
            RuntimeError: There is no State with which to commit it.
        """
        self.check_open("context.connection")
        for why, is_true in (
            ("nothing of this run is saved: give the graph a store", not self.run.plan.saves),
            ("a branch or an item has no State of its own: write in a node before or after", self.is_part),
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
            "effects, spending, status, messages and chunks are not available in a process of ParallelNode or MapNode: "
            "it has no store; use threads (processes=False), or do it in a node before or after"
        )


def save_input(run: Any) -> None:
    """Save the State that the current step of a run began with, durably, unless it is saved.

    Raises:
        StoreFailed: The store could not keep it.
    """
    with run.input_lock, storing(run):
        if run.state is not run.saved:
            if run.outer_step is not None:
                save_input(run.outer_step.run)
            run.session.save(run.state)
            run.saved = run.state
        if run.session.queue is not None:  # then a saved State may only be queued
            run.session.flush(run.state)


def _append(run: Any, entry: Entry) -> Entry:
    with storing(run, NotSerializableError):  # that is a mistake of the node
        kept: list[Entry] = run.session.store_entries(run.state, [entry])
        return kept[0]


def _entries(run: Any, run_id: str, step: int, kinds: Collection[str]) -> list[Entry]:
    with storing(run):
        found: list[Entry] = run.session.entries((run_id, step, kinds))
        return found


@contextmanager
def storing(run: Any, *mistakes: type[BaseException]) -> Iterator[None]:
    """Raise a failure of the store as such, and not as a failure of the node; but not mistakes of the node."""
    try:
        yield
    except mistakes:
        raise
    except CheckpointError as error:
        if run.session.ownership is not None and run.session.ownership.owners is None:
            raise  # in a forked child, which has no engine
        raise StoreFailed from error
