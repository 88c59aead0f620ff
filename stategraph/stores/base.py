"""CheckpointStore: what every store promises."""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from threading import RLock
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias, Unpack

import attrs

from stategraph._owners.holds import Hold, Owners, guard_writes, held, on_behalf_of
from stategraph._values.ids import check_given_id, check_run_id, given_id
from stategraph._values.provenance import RunStatus
from stategraph.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    FormatError,
    RunBusyError,
    RunCompleteError,
    RunExistsError,
    StepConflictError,
)

if TYPE_CHECKING:
    from stategraph._values.progress import KeptParts, Part
    from stategraph._values.provenance import Owner, StatusName
    from stategraph.state import State
    from stategraph.stores._checks import Narrower, RunFilter, Which
    from stategraph.stores.summaries import Difference, Pruned, Summary, Verified

__all__ = ["RETENTIONS", "CheckpointStore", "Policy", "RetentionPolicy", "SigningKey"]

SigningKey: TypeAlias = Callable[[], bytes]
"""Gives a key that rows are signed with."""


RETENTIONS = ("latest", "full", "windowed")


@attrs.frozen
class RetentionPolicy:
    """What is kept of a run.

    Attributes:
        retention: Which of its checkpoints: "latest", "full" (all), or "windowed".
        window: How many of the newest ones, if it is "windowed".
        ttl: For how many seconds after its completion the run is kept; None for ever.
    """

    retention: str = "latest"
    window: int | None = None
    ttl: float | None = None

    def is_over(self, status: RunStatus, time_ns: int, now_ns: int) -> bool:
        """Return whether a run whose newest checkpoint has this status and time is not to be kept any longer."""
        return status is RunStatus.COMPLETED and self.ttl is not None and time_ns + self.ttl * 1e9 <= now_ns

    @property
    def max_checkpoints(self) -> int | None:
        """How many of the newest steps are kept; None for all."""
        return 1 if self.retention == "latest" else self.window

    @property
    def keeps_all(self) -> bool:
        """Whether nothing that was saved is ever replaced."""
        return self.retention == "full"

    def first_kept(self, checkpoints: Sequence[Any]) -> int:
        """Return the place of the first of these checkpoints of a run, in order, that is kept."""
        most = self.max_checkpoints
        if most is None:
            return 0
        steps: set[int] = set()
        for place in range(len(checkpoints), 0, -1):
            steps.add(checkpoints[place - 1].step)
            if len(steps) > most:
                return place
        return 0


Policy = RetentionPolicy
"""The name by which `stategraph.stores` exports it."""


class CheckpointStore(ABC):
    """Keeps the States of runs. Four methods make a store; everything else has a default.

    A store is a context manager that closes it. It is synchronous, and any thread may call it at any time.
    `stategraph.testing.CheckpointStoreContract` tests what is promised here; the tests of a store inherit it.
    """

    @abstractmethod
    def save(self, state: State) -> None:
        """Keep a State. When this returns, the State is as durable as the store promises.

        A later step replaces an earlier one. The newest step may be saved again with another status or other
        provenance, but never with other data. With retention "full" nothing is replaced: each save adds a checkpoint.
        The State that is kept never changes, whatever happens to objects in it.

        Raises:
            NotSerializableError: a value cannot be kept exactly. Nothing has been saved.
            RunBusyError: another call owns the run: it is at work on it.
            StepConflictError: a later step is saved, or the same step with other data.
            CheckpointSaveError: it could not be saved. What was saved before is still there.
        """

    @abstractmethod
    def load(self, run_id: str, step: int | None = None, revision: int | None = None) -> State:
        """Return the newest State of a run, or that of a step. It equals what was saved, in values and in types.

        A store that keeps several checkpoints of a step gives the newest of them, or with `revision`, from 0, that one.
        A store of four methods need not take a revision: it is never asked for one. Built-in stores take
        ``unknown="opaque"`` as well: what this process cannot make is an `Opaque` then, for those who only look.

        Raises:
            ValueError: the step or the revision is not a non-negative int.
            CheckpointNotFoundError: there is no such run, or no such step or revision of it.
            CheckpointCorruptError: it is damaged.
            FormatError: a newer version of stategraph wrote it, or it holds a type that is not registered here.
        """

    @abstractmethod
    def delete(self, run_id: str) -> None:
        """Forget a run. Nothing happens if there is none of this id.

        Every store takes ``take_over=True`` as well, which deletes a run that has an owner. A store of four
        methods need not know of it.

        Raises:
            RunBusyError: the run has an owner.
            RunLostError: others took the run while this was under way; nothing has been changed.
        """

    @abstractmethod
    def list(self) -> builtins.list[str]:
        """Return the ids of all runs that are kept, sorted."""

    def amend(self, state: State) -> None:
        """Keep a State in place of the newest one, whose data it may change.

        Only the engine calls this, when a run that had stopped goes on with other data. The default saves or, if `save`
        refuses other data, deletes the run and saves: a process that is killed in between loses the run. A store that
        can do it in one transaction overrides this.

        Raises:
            StepConflictError: a later step is saved.
        """
        try:
            self.save(state)
        except StepConflictError:
            if self.load(state.run_id).step != state.step:
                raise
            self.delete(state.run_id)
            self.save(state)

    def save_many(self, states: Sequence[State]) -> None:
        """Save several States of one run, in order. The default saves one after the other."""
        for state in states:
            self.save(state)

    def _save_runs(self, runs: Sequence[tuple[Hold | None, Sequence[State]]]) -> builtins.list[Exception | None]:
        """Save States of several runs, each on behalf of the owner of its run; return the error of each, or None."""
        errors: builtins.list[Exception | None] = []
        for hold, states in runs:
            try:
                with on_behalf_of(hold):
                    self.save_many(states)
                errors.append(None)
            except Exception as error:  # noqa: BLE001 - raised for the run
                errors.append(error)
        return errors

    @property
    def _is_server(self) -> bool:
        """Whether a call may wait for a server, which answers several threads at the same time."""
        return True

    def flush(self) -> None:  # noqa: B027 - a default, as for all that follows
        """Wait until all that was saved is as durable as the store promises. By default, `save` has waited for that."""

    def _discard(self, run_id: str) -> None:
        """Forget a run that has completed and is not to be preserved. Only the engine calls this.

        The default deletes it. A store in which `delete` takes time to leave no trace may save that time here.
        """
        self.delete(run_id)

    def retain(self, run_id: str, policy: RetentionPolicy) -> None:  # noqa: B027
        """Set what is to be kept of a run, from now on. The default does nothing.

        Every call of execute or resume sets it right before its first save, and again after a save that failed, so a
        store need not remember it for runs that it does not hold.
        """

    signing_key: SigningKey | None = None
    """Returns the key that the store signs with, if it does. Caches of nodes are signed with it as well."""

    keeps_parts: bool = False
    """Whether finished parts of a step, and the nested runs within it, are kept. If not, a step that did not complete
    runs again from its start."""

    def save_parts(self, run_id: str, parts: Sequence[Part]) -> None:
        """Keep finished parts of the step after the newest State of a run, which has been saved.

        Raises:
            NotSerializableError: the value of one cannot be kept exactly; the error names the part.
        """
        raise NotImplementedError

    def load_parts(self, run_id: str, step: int, node: str) -> KeptParts:
        """Return the values of the parts that are kept of a step, by their labels, and what each was made of."""
        raise NotImplementedError

    def drop_parts(self, run_id: str, step: int, *, newer_too: bool = False) -> None:
        """Forget the parts of all steps up to this one, and the nested runs within them.

        Args:
            run_id: The run.
            step: The step.
            newer_too: Forget the parts of later steps, too, as what they were made of has changed; not nested runs.
        """
        raise NotImplementedError

    def history(self, run_id: str) -> builtins.list[Summary]:
        """Return the checkpoints of a run that are kept, in order, without their data.

        The list is empty if there is no such run. What is not read is not checked: only `load` finds all damage.
        """
        from stategraph.stores.summaries import Summary  # imported when used, here and below: no run asks for it

        try:
            return [Summary.of(self.load(run_id))]
        except CheckpointNotFoundError:
            return []

    def runs(
        self,
        status: StatusName | None = None,
        graph: str | None = None,
        limit: int = 100,
        after: str | None = None,
        **which: Unpack[Narrower],
    ) -> builtins.list[Summary]:
        """Return the newest checkpoint of each run, without its data; the run that began last comes first.

        Args:
            status: Only runs of this status.
            graph: Only runs of this graph.
            limit: At most so many.
            after: Go on after the summary that has this cursor.
            prefix: Only runs whose ids begin with this.
            parent: Only runs that were forked from this run, or are nested in it; else, nested runs are left out.
            labels: Only runs that have these labels, among others.
            since: Only runs that began at this time or later: an aware datetime.
            owned: Only runs that have an owner; with False, only others.

        As with `history`, only `load` finds all damage.

        Raises:
            ValueError: an argument is not what it should be.
        """
        from stategraph.stores._checks import check_limit, filtered, from_cursor

        return self._runs(filtered({"status": status, "graph": graph, **which}), check_limit(limit), from_cursor(after))

    def iter_history(self, run_id: str) -> Iterator[Summary]:
        """Yield what `history` returns; of a long one that is kept as a whole, a page at a time is held in memory.

        Raises:
            CheckpointError: others have deleted the run, or some of its checkpoints, since the first one was yielded.
        """
        yield from self.history(run_id)

    def iter_runs(self, **which: Unpack[Which]) -> Iterator[Summary]:
        """Yield what `runs` returns, page by page, without a limit."""
        after = None
        while page := self.runs(after=after, **which):
            yield from page
            after = page[-1].cursor

    def count(self, **which: Unpack[Which]) -> int:
        """Return how many runs `iter_runs` yields.

        A SQL database counts them as their columns stand: damaged runs, too, which `iter_runs` leaves out. A million
        runs are not read, let alone their checksums compared, for a number.
        """
        return sum(1 for _ in self.iter_runs(**which))

    def _runs(self, which: RunFilter, limit: int, after: int | None) -> builtins.list[Summary]:
        """Return the newest checkpoint of each run, as `runs`.

        The default loads all runs, in the order of their ids, because it does not know the order in which they began.
        """
        from stategraph.stores.summaries import Summary

        numbered = [*enumerate(self.list(), 1)][after or 0 :]
        found = (Summary.of(self.load(run_id), str(number)) for number, run_id in numbered if which.takes_id(run_id))
        return [*islice((run for run in found if which.takes(run, self.owner)), limit)]

    def fork(self, run_id: str, new_run_id: str, step: int | None = None, revision: int | None = None) -> State:
        """Copy a run, with its history up to a step, under another id; return the newest State of the copy.

        The copy is active, unless it stands at an exit point, and `State.parent` says where it comes from. It does not
        depend on the source any more. The default copies only the newest State.

        Args:
            run_id: The run.
            new_run_id: The id of the copy.
            step: Where the copy ends; at the newest step if not given.
            revision: Which revision of the step; the newest if not given. The default knows of no revisions.

        Raises:
            CheckpointNotFoundError: the run, or this step of it, is not kept.
            RunExistsError: there is a run of the new id, or of the id of a nested run of the copy.
        """
        from stategraph.stores._checks import check_numbers

        check_numbers(step, revision)
        with held(self, check_given_id(new_run_id)):
            return self._fork(check_run_id(run_id), new_run_id, step, revision)

    def _fork(self, run_id: str, new_run_id: str, step: int | None, revision: int | None) -> State:
        from stategraph.stores._time_travel import forked_from

        forked = forked_from(self._revision(run_id, step, revision), new_run_id)
        if new_run_id in self.list():
            raise RunExistsError(new_run_id, str(self))
        self.save(forked)
        return forked

    def rollback(
        self, run_id: str, step: int, revision: int | None = None, *, take_over: bool = False, by: str | None = None
    ) -> State:
        """Take a run back to a step and forget later ones; return the State of that step, of the next generation.

        With retention "full" nothing is forgotten: what came later stays in the history, before a checkpoint of kind
        "rollback".

        Args:
            run_id: The run.
            step: The step; 0 is before the first one, if the input is kept.
            revision: Which revision of the step; the newest if not given. The default knows of no revisions.
            take_over: Take the run from its owner.
            by: Who takes it back, for the history.

        Raises:
            RunBusyError: the run has an owner.
            RunLostError: others took the run while this was under way; nothing has been changed.
            CheckpointNotFoundError: the run, or this step of it, is not kept.
        """
        from stategraph.stores._checks import check_number, check_numbers

        check_number(step)
        check_numbers(revision=revision)
        if take_over:  # a step that is not there costs no owner its run
            self._revision(run_id, step, revision)
        with held(self, check_run_id(run_id), take_over=take_over):
            return self._roll_back(run_id, step, revision, by)

    def _roll_back(self, run_id: str, step: int, revision: int | None, by: str | None) -> State:
        from stategraph.stores._time_travel import rolled_back

        state = rolled_back(self._revision(run_id, step, revision), self.load(run_id).parent, by)
        self.amend(state)
        return state

    def _revision(self, run_id: str, step: int | None, revision: int | None) -> State:
        """Load a State. Only a store that keeps revisions is asked for one."""
        return self.load(run_id, step) if revision is None else self.load(run_id, step, revision)

    def cancel(self, run_id: str, *, by: str | None = None) -> Owner | None:
        """Cancel a run: at once, or, if it has an owner, with the owner's next save; return the owner.

        It takes no graph; `StateGraph.cancel` does the same for a run of its own.

        Raises:
            CheckpointNotFoundError: there is no such run.
            RunCompleteError: it is complete.
            RunLostError: others took the run while this was under way; nothing has been changed.
        """
        try:
            self._save_cancelled(run_id, by)
        except RunBusyError as busy:
            self._cancel(run_id, by)
            owner: Owner = busy.owner
        else:
            return None
        try:  # once more: its owner may have let go of it before it could read that
            self._save_cancelled(run_id, by)
        except (RunBusyError, CheckpointNotFoundError, RunCompleteError):
            return owner
        return None

    def _save_cancelled(self, run_id: str, by: str | None) -> None:
        from stategraph.state import evolve, told

        with held(self, check_given_id(run_id)):
            state = self.load(run_id)
            if state.status is RunStatus.COMPLETED:
                raise RunCompleteError(run_id, state.checkpoint_node)
            if state.status is not RunStatus.CANCELLED:
                self.save(evolve(told(state, by=by), status=RunStatus.CANCELLED))

    def diff(self, run_id: str, a: int, b: int, other: str | None = None) -> Difference:
        """Return how the data of step `b` of a run, or of another run, differ from those of step `a`.

        Args:
            run_id: The run.
            a: A step of it.
            b: A step of it, or of the other run.
            other: The other run, if `b` is a step of another.

        Raises:
            ValueError: one of them is not a non-negative int.
            CheckpointNotFoundError: one of them is not kept.
        """
        from stategraph.stores._checks import check_number
        from stategraph.stores.summaries import Difference

        for name, step in (("a", a), ("b", b)):
            check_number(step, name)
        return Difference.between(self.load(run_id, a), self.load(run_id if other is None else other, b))

    def prune(self) -> Pruned:
        """Remove what the retention policies of runs do not keep; return what was removed. By default, nothing is.

        Runs that have an owner stay.
        """
        from stategraph.stores.summaries import Pruned

        return Pruned()

    def verify(self) -> Verified:
        """Read everything that is kept, and say what of it is damaged. Nothing is changed.

        The default reads what `history` and `load` give.
        """
        from stategraph.stores.summaries import Damage, Verified

        statuses = Counter[str]()
        checkpoints = 0
        damaged: builtins.list[Damage] = []
        unreadable: builtins.list[Damage] = []
        for run_id in self.list():
            status = "damaged"
            try:
                rows = self.history(run_id)
                for row in rows:
                    status = row.status.value
                    self._revision(run_id, row.step, row.revision if len(rows) > 1 else None)
                    checkpoints += 1
            except CheckpointNotFoundError:  # it was deleted at the same time
                continue
            except FormatError as error:
                unreadable.append(Damage(run_id, error.reason))
            except CheckpointError as error:
                damaged.append(Damage(run_id, error.reason))
            statuses[status] += 1
        return Verified(dict(sorted(statuses.items())), 0, checkpoints, tuple(damaged), tuple(unreadable))

    def changed_since(self, token: str | None, run_id: str | None = None) -> str | None:
        """Return another token if runs may have changed since this one was returned, None if nothing has.

        For views that are kept up to date: ask, and look again if there is another token. It costs little in the
        built-in stores, however many runs there are; the default looks at all of them.

        Args:
            token: What was returned before; None at first, for which there always is another one.
            run_id: Only ask about this run, and not about what is nested in it.
        """
        now = self._change_token(run_id)
        return None if now == token else now

    def _change_token(self, run_id: str | None) -> str:
        from hashlib import sha256  # imported when used: OpenSSL takes 4 ms

        shown = self.iter_runs() if run_id is None else self.history(run_id)[-1:]
        return sha256("\n".join(map(repr, shown)).encode(errors="backslashreplace")).hexdigest()

    # ------------------------------------------------------------------ owners

    def owner(self, run_id: str) -> Owner | None:
        """Return who owns a run: the call that is at work on it. None if there is none.

        A store knows of calls in this process at least. What it knows beyond that, its class says.
        """
        hold = self._owners.get(given_id(check_run_id(run_id)))
        return None if hold is None else hold.owner

    @property
    def _owners(self) -> Owners:
        """The runs that are owned in this process."""
        owners: Owners = vars(self).get("_owners_") or vars(self).setdefault("_owners_", Owners())
        return owners

    def _own(self, hold: Hold, *, take_over: bool = False) -> None:
        """Acquire a run; raise RunBusyError if it has another owner, unless that is to lose it."""
        hold.store, hold.lock = self, RLock()
        self._owners.take(hold, take_over=take_over)

    def _has_lost(self, hold: Hold) -> bool:
        """Return whether a run was taken from its owner."""
        return hold.is_lost

    def _cancel(self, run_id: str, by: str | None) -> None:
        """Note that a run is cancelled, for its owner or the next one."""
        self._owners.cancel(run_id, by)

    def _is_cancelled(self, hold: Hold) -> bool:
        """Return whether a run was cancelled, and not taken up since."""
        return hold.is_cancelled

    def _cancelled_by(self, run_id: str) -> str | None:
        """Return who has cancelled a run that was at work, if that was said."""
        return self._owners.cancelled_by(run_id)

    def _take_up(self, hold: Hold) -> None:
        """Forget that a run was cancelled, for its owner goes on with it."""
        self._owners.take_up(hold)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if not cls.compares_holds:
            guard_writes(cls, CheckpointStore)

    never_waits: ClassVar[bool] = False
    """Whether no call waits for a disk, a network or anything else that is slow: an event loop may make it."""

    compares_holds: ClassVar[bool] = False
    """Whether the store itself refuses what others than the owner of a run write; if not, this class guards it."""

    def close(self) -> None:  # noqa: B027
        """Close files and connections. A closed store is not used again."""

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __str__(self) -> str:
        """Return the store in words, as errors name it."""
        return f"store {type(self).__qualname__}"
