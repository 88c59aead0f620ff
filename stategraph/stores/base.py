"""CheckpointStore: the interface of every store."""

from __future__ import annotations

import builtins
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial, wraps
from itertools import islice
from operator import attrgetter
from threading import RLock
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias, Unpack

import attrs

from stategraph._owners.base import Owners, Ownership, guard_writes, on_behalf_of, owned
from stategraph._text.shown import shorten
from stategraph._util.callables import showing_options
from stategraph._util.validators import is_seconds
from stategraph._values import clock
from stategraph._values.entries import Entry, message_of
from stategraph._values.frozen import check_mapping
from stategraph._values.ids import check_given_id, check_run_id, given_id, outer_id, step_of
from stategraph._values.progress import evolved
from stategraph._values.provenance import Kind, RunStatus
from stategraph._values.registered_types import noting_older
from stategraph.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    EffectsError,
    EntriesNotKeptError,
    EntryExistsError,
    FormatError,
    RunBusyError,
    RunCompleteError,
    RunExistsError,
    StepConflictError,
)
from stategraph.state import State, recorded, time_ns_of, turns_of
from stategraph.stores._checks import (
    ExtraFilters,
    Filters,
    RunFilter,
    check_author,
    check_limit,
    check_number,
    check_numbers,
    filtered,
    forked_from,
    from_cursor,
    keeps_nested,
    later,
    rolled_back,
    row_cursor,
    updated,
)

if TYPE_CHECKING:
    from stategraph._values.progress import KeptParts, Part
    from stategraph._values.provenance import Owner, StatusName
    from stategraph.stores.summaries import Difference, Pruned, Summary, UnderWay, Verified

__all__ = ["RETENTIONS", "CheckpointStore", "Policy", "RetentionPolicy", "SigningKey"]

SigningKey: TypeAlias = Callable[[], bytes]
"""Returns a key for signing rows."""


RETENTIONS = ("latest", "full", "windowed")


@attrs.frozen
class RetentionPolicy:
    """How much of a run a store keeps.

    Attributes:
        retention: The checkpoints to keep: "latest", "full" (all), or "windowed".
        window: The number of newest steps to keep if retention is "windowed".
        ttl: Seconds to keep a run after its completion; None to keep it forever.
    """

    retention: str = "latest"
    window: int | None = None
    ttl: float | None = None

    def __attrs_post_init__(self) -> None:
        is_window = self.window is None or (is_seconds(self.window) and isinstance(self.window, int))
        is_ttl = isinstance(self.ttl, int | float | None) and not isinstance(self.ttl, bool)
        if self.retention not in RETENTIONS or not is_window or not is_ttl:
            allowed = f"{', '.join(RETENTIONS)}, a positive number of checkpoints and a number of seconds are"
            raise ValueError(f"{shorten(self)} is not allowed; {allowed}")

    def is_over(self, status: RunStatus, time_ns: int, now_ns: int) -> bool:
        """Return whether a run with this status and time of its newest checkpoint has expired."""
        return status is RunStatus.COMPLETED and self.ttl is not None and time_ns + self.ttl * 1e9 <= now_ns

    @property
    def max_checkpoints(self) -> int | None:
        """The number of newest steps to keep; None for all."""
        return 1 if self.retention == "latest" else self.window

    @property
    def keeps_all(self) -> bool:
        """Whether a save never replaces a checkpoint."""
        return self.retention == "full"

    def first_kept(self, checkpoints: Sequence[Any]) -> int:
        """Return the index of the first checkpoint to keep, given the checkpoints of a run in order."""
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
"""`stategraph.stores` exports the class by this name."""


def _checked(load: Callable[..., State]) -> Callable[..., State]:
    """Wrap the method `load` of a store so that it returns nothing but States, as the contract says."""

    @wraps(load)
    def checked(store: CheckpointStore, run_id: str, *arguments: Any, **named: Any) -> State:
        state: Any = load(store, run_id, *arguments, **named)
        if isinstance(state, State):
            return state
        contract = "load returns a State, and raises CheckpointNotFoundError if the store has none"
        reason = f"{type(store).__qualname__}.load returned {shorten(state)}: by its contract, {contract}"
        if state is None:
            raise CheckpointNotFoundError(run_id, str(store), way_out=reason)
        raise CheckpointError(run_id, reason)

    return checked


@showing_options
class CheckpointStore(ABC):
    """Keeps the States of runs. Four methods make a store; all others have a default.

    A store is a context manager that closes itself. It is synchronous, and any thread may call it at any time.
    `stategraph.testing.CheckpointStoreContract` tests these promises; the tests of a store inherit from it.
    """

    @abstractmethod
    def save(self, state: State) -> None:
        """Save a State. When this returns, the State is as durable as the store promises.

        A later step replaces an earlier one. The newest step may be saved again with another status or other
        provenance, but never with other data. With retention "full" nothing is replaced: each save adds a checkpoint,
        unless it repeats the newest one exactly. The saved State never changes, even if objects in the original do.

        Raises:
            NotSerializableError: a value cannot be kept exactly. Nothing has been saved.
            RunBusyError: another call owns the run and is at work on it.
            StepConflictError: the store holds a later step, or the same step with other data.
            CheckpointSaveError: the State could not be saved. Earlier checkpoints are intact.
        """

    @abstractmethod
    def load(self, run_id: str, step: int | None = None, revision: int | None = None) -> State:
        """Return the newest State of a run, or the State of a step. It equals the saved one, in values and in types.

        If a store keeps several checkpoints of a step, this returns the newest, or the one that `revision` selects,
        counted from 0. A store of four methods need not accept a revision: it never gets one. Built-in stores also
        accept ``unknown="opaque"``, for inspection: a value that this process cannot construct becomes an `Opaque`.

        Raises:
            ValueError: the step or the revision is not a non-negative int.
            CheckpointNotFoundError: the store has no such run, or no such step or revision of it.
            CheckpointCorruptError: the checkpoint is damaged.
            FormatError: a newer version of stategraph wrote it, or it holds a type that is not registered here.
        """

    @abstractmethod
    def delete(self, run_id: str, *_: Any, **how: Any) -> None:
        """Delete a run. Do nothing if there is no run with this id.

        Every store also accepts ``take_over=True``, which deletes a run that has an owner. A store of four methods
        need not declare it.

        Raises:
            RunBusyError: the run has an owner.
            RunLostError: another call took the run over in the meantime; nothing has been changed.
        """

    if TYPE_CHECKING:  # of the durable stores, one of which most graphs have

        def export_run(self, run_id: str, *, encrypted: bool = ...) -> Iterator[str]: ...
        def import_runs(self, lines: Iterable[str]) -> builtins.list[str]: ...

    @abstractmethod
    def list(self) -> builtins.list[str]:
        """Return the ids of all runs in the store, sorted."""

    def amend(self, state: State) -> None:
        """Save a State in place of the newest one; its data may differ.

        Only the engine calls this, when it continues a stopped run with other data. The default saves or, if `save`
        refuses other data, deletes the run and saves: a process that is killed in between loses the run. A store
        with transactions overrides this.

        A State of kind "input" begins the step under way of a run that is not complete with other input: the same
        commit removes the journal of the step, except what is spent, and its nested runs.

        Raises:
            StepConflictError: the store holds a later step.
            NotSerializableError, RunBusyError, CheckpointSaveError: as `save`.
        """
        try:
            self.save(state)
        except StepConflictError:
            if self.load(state.run_id).step != state.step:
                raise
            self.delete(state.run_id)
            self.save(state)

    def save_many(self, states: Sequence[State]) -> None:
        """Save several States of one run, in order. The default saves one after another."""
        for state in states:
            self.save(state)

    def _save_runs(self, runs: Sequence[tuple[Ownership | None, Sequence[State]]]) -> builtins.list[Exception | None]:
        """Save States of several runs, each on behalf of the owner of its run; return an error or None for each run."""
        errors: builtins.list[Exception | None] = []
        for ownership, states in runs:
            try:
                with on_behalf_of(ownership):
                    self.save_many(states)
                errors.append(None)
            except Exception as error:  # noqa: BLE001 - raised for its run
                errors.append(error)
        return errors

    @property
    def _is_server(self) -> bool:
        """Whether a call may wait for a server, which can answer several threads at once."""
        return True

    def flush(self) -> None:  # noqa: B027 - a default, like all methods below
        """Wait until all saved States are as durable as the store promises. By default, `save` has waited already."""

    def _discard(self, run_id: str) -> None:
        """Delete a completed run that should not be preserved. Only the engine calls this.

        The default deletes it. A store whose `delete` spends time on erasing all traces may skip that here.
        """
        self.delete(run_id)

    def retain(self, run_id: str, policy: RetentionPolicy) -> None:  # noqa: B027
        """Set the retention policy of a run. The default does nothing.

        Every call of execute or resume sets it right before its first save, and again after a failed save, so a store
        need not remember it for runs that it does not hold.
        """

    signing_key: SigningKey | None = None
    """Returns the key that signs rows, if the store signs them. Caches of nodes are signed with it as well."""

    cipher: Any = None
    """Encrypts rows, if the store does. Caches of nodes are encrypted with it as well."""

    def append(self, run_id: str, entries: Sequence[Entry]) -> builtins.list[Entry]:
        """Append entries to the journal or to the inbox of a run; return them as they are kept, with their numbers.

        When this returns, they are as durable as a saved State. The journal is written by the owner of the run alone,
        for the step after its newest State, and an entry replaces an earlier one of its name. Anyone may append to the
        inbox, where the earlier entry of a name stays and is returned. An appended answer makes the run due at once.

        A store of four methods keeps no entries.

        Raises:
            CheckpointNotFoundError: there is no such run.
            RunCompleteError: it is complete, and takes no more messages and answers.
            NotSerializableError: a value cannot be kept exactly; the error names the entry. Nothing is appended.
            RunBusyError, RunLostError, CheckpointSaveError: as `save`, for the journal.
            EntriesNotKeptError: the store keeps no entries.
        """
        raise EntriesNotKeptError(run_id, str(self), "append")

    def entries(
        self, run_id: str, *, step: int | None = None, kinds: Collection[str] | None = None, after: int = 0
    ) -> builtins.list[Entry]:
        """Return the entries of a run in the order of their steps and numbers; none if there is no such run.

        Args:
            run_id: The run.
            step: Only the journal of this step; 0 for the inbox.
            kinds: Only entries of these kinds.
            after: Only entries with higher numbers.

        Raises:
            CheckpointCorruptError, FormatError: as `load`.
            EntriesNotKeptError: the store keeps no entries.
        """
        raise EntriesNotKeptError(run_id, str(self), "entries")

    def _entry_named(self, run_id: str, kind: str, name: str) -> Entry | None:
        """Return the entry of the inbox of a run that has a kind and a name."""
        return next((entry for entry in self.entries(run_id, step=0, kinds=(kind,)) if entry.name == name), None)

    def send(self, run_id: str, updates: Mapping[str, Any], *, by: str | None = None, key: str | None = None) -> None:
        """Send a message to a run, as `StateGraph.send` does, without the checks of a graph.

        Raises:
            CheckpointNotFoundError: there is no such run.
            RunCompleteError: the run is complete.
            EntryExistsError: another message has had the key.
            EntriesNotKeptError: the store keeps no entries.
        """
        from stategraph.stores._codec.msgpack import digest_of  # imported when used: few runs get messages

        message = message_of(updates, key, by)
        message = attrs.evolve(message, made_of=digest_of({"value": message.value}))
        (kept,) = self.append(run_id, [message])
        if kept.made_of != message.made_of:
            raise EntryExistsError(run_id, "message", kept.name)

    def update(
        self,
        run_id: str,
        updates: Mapping[str, Any],
        *,
        remove: Collection[str] = (),
        by: str | None = None,
    ) -> State:
        """Change the data of a run that no process is at work on, such as one that waits, and leave it where it is.

        The history has the change, as one of kind "update". The next call that continues the run checks the data by the
        schema of the graph, and nested runs get them as after ``resume(run_id, updates)``.

        Args:
            run_id: The run.
            updates: New values of keys.
            remove: Keys to remove.
            by: The author, for the history.

        Returns:
            The State as it was saved.

        Raises:
            CheckpointNotFoundError: there is no such run.
            RunCompleteError: the run is complete.
            AnswerError: an update is the answer that the run waits for.
            UnknownNameError: the State has no key that is to be removed.
            ValueError: the run does not save a key.
            RunBusyError: the run has an owner.
        """
        check_mapping(updates)
        with owned(self, check_given_id(run_id)):
            state = updated(self.load(run_id), updates, remove, by)
            self.amend(state)
            return state

    def redact(self, run_id: str, key: str, *, by: str | None = None) -> None:
        """Take the values of a key out of everything that is stored of a run: its checkpoints, entries and nested runs.

        The run goes on without the key, and the history has the redaction, of kind "redact". Forks stay as they are.
        The page "Privacy" describes what else may have the values. After an error or a crash, another call does the
        rest.

        Args:
            run_id: The run; it may be complete.
            key: The key.
            by: The author, for the history.

        Raises:
            CheckpointNotFoundError: there is no such run.
            UnknownNameError: the run has had no such key.
            RunBusyError: the run has an owner.
            CheckpointCorruptError: something of the run is damaged. Nothing has been changed.
            CheckpointError: the store of four methods cannot redact; or as `save`.
        """
        check_author(by)
        if not isinstance(key, str):
            raise TypeError(f"the key is a str, not {shorten(key)}: redact one key at a time")
        with owned(self, check_given_id(run_id)):
            self._redact(run_id, key, by)

    def _redact(self, run_id: str, key: str, by: str | None) -> None:
        raise CheckpointError(run_id, f"the {self} cannot redact: save the run without {key!r}, or delete it")

    shown: Callable[[str, Any], Any] | None = None
    """The function of the option ``redact=``: returns what people see of the value of a key. None for the value."""

    @property
    def keeps_entries(self) -> bool:
        """Whether the class of the store has `append` and `entries`."""
        return type(self).append is not CheckpointStore.append

    keeps_parts: bool = False
    """Whether the store keeps finished parts of a step, and its nested runs. If not, an incomplete step runs again from
    its start."""

    def save_parts(self, run_id: str, parts: Sequence[Part]) -> None:
        """Save finished parts of the step after the newest State of a run. That State is saved already.

        Raises:
            NotSerializableError: the value of a part cannot be kept exactly; the error names the part.
        """
        self.append(run_id, [part.entry for part in parts])

    def load_parts(self, run_id: str, step: int, node: str) -> KeptParts:
        """Return the kept values of the parts of a step, by label, and their inputs."""
        from stategraph._values.progress import KeptParts  # imported when used: few runs have parts

        return KeptParts.of(self.entries(run_id, step=step, kinds=("part",)), node)

    def drop_parts(self, run_id: str, step: int, *, newer_too: bool = False) -> None:
        """Delete the parts of all steps up to this one, and the nested runs in them.

        Args:
            run_id: The run.
            step: The step.
            newer_too: Delete the parts of later steps as well, because their inputs have changed; keep nested runs, and
                the effects of these steps.
        """
        raise NotImplementedError

    def history(self, run_id: str, *, after: str | None = None) -> builtins.list[Summary]:
        """Return the kept checkpoints of a run, in order, without their data.

        The list is empty if there is no such run. Data is not read, so it is not checked: only `load` finds all damage.

        Args:
            run_id: The run.
            after: Only checkpoints after the one with this cursor; the built-in stores do not read those before. If
                that checkpoint is gone, return those that were saved later, or else the newest.

        Raises:
            ValueError: `after` is no cursor.
        """
        from stategraph.stores.summaries import Summary  # imported when used, here and below: no run needs it

        try:
            state = self.load(run_id)
        except CheckpointNotFoundError:
            return []
        rows = [Summary.of(state, row_cursor(state.step, time_ns_of(state)))]
        return rows if after is None else [*later(rows, after, attrgetter("cursor"))]

    def runs(
        self,
        status: StatusName | None = None,
        graph: str | None = None,
        limit: int = 100,
        after: str | None = None,
        **which: Unpack[ExtraFilters],
    ) -> builtins.list[Summary]:
        """Return the newest checkpoint of each run, without its data, newest run first.

        A store of four methods lists runs by their ids, because it does not know in which order they began.

        Args:
            status: Only runs with this status.
            graph: Only runs of this graph.
            limit: The most summaries to return.
            after: Continue after the summary with this cursor.
            prefix: Only runs whose ids begin with this.
            parent: Only forks and nested runs of this run. Without it, nested runs are left out.
            labels: Only runs that have at least these labels.
            since: Only runs that began at this time or later: an aware datetime.
            owned: True for runs that have an owner, False for runs that have none.
            overdue: True for runs that can go on by themselves since a time that has passed: waits, pauses with an
                `otherwise`, stored answers, and submitted runs. False for all others.

        As with `history`, only `load` finds all damage.

        Raises:
            ValueError: an argument is invalid.
        """
        return self._runs(filtered({"status": status, "graph": graph, **which}), check_limit(limit), from_cursor(after))

    def iter_history(self, run_id: str) -> Iterator[Summary]:
        """Yield the checkpoints that `history` returns. Of a long history, hold only a page at a time in memory.

        Raises:
            CheckpointError: the run, or some of its checkpoints, were deleted since the first one was yielded.
        """
        yield from self.history(run_id)

    def iter_runs(self, **which: Unpack[Filters]) -> Iterator[Summary]:
        """Yield the runs that `runs` returns, page by page, without a limit."""
        after = None
        while page := self.runs(after=after, **which):
            yield from page
            after = page[-1].cursor

    def _loads(self, **which: Unpack[Filters]) -> Iterator[tuple[str, Callable[[], State]]]:
        """Yield the runs that `runs` returns, each with a function that loads its newest State."""
        for run in self.iter_runs(**which):
            yield run.run_id, partial(self.load, run.run_id)

    def count(self, **which: Unpack[Filters]) -> int:
        """Return the number of runs that `iter_runs` yields.

        A SQL database counts rows without reading them or comparing checksums, so it includes damaged runs, which
        `iter_runs` leaves out.
        """
        return sum(1 for _ in self.iter_runs(**which))

    def _runs(self, which: RunFilter, limit: int, after: int | None) -> builtins.list[Summary]:
        """Return the newest checkpoint of each run, as `runs`. The default loads all runs, sorted by their ids."""
        from stategraph.stores.summaries import Summary

        numbered = [*enumerate(self.list(), 1)][after or 0 :]
        found = (Summary.of(self.load(run_id), str(number)) for number, run_id in numbered if which.takes_id(run_id))
        return [*islice((run for run in found if which.takes(run, self.owner)), limit)]

    def _due(self, graph: str, limit: int) -> builtins.list[tuple[int, str]]:
        """Return the runs of a graph with the earliest times at which they can go on by themselves, and these times.

        The times are in nanoseconds since 1970, and may be in the future.
        """
        runs = ((clock.to_ns(run.due), run.run_id) for run in self.iter_runs(graph=graph) if run.due is not None)
        return sorted(runs)[:limit]

    def _now_ns(self) -> int:
        """Return the time in nanoseconds since 1970, by the clock of the server if there is one."""
        return clock.now_ns()

    def _check_effects(self, run_id: str, step: int, *, keeps_newest: bool = False) -> None:
        """Raise EffectsError if a run that goes back to a step, or a copy of it, would repeat effects.

        With `keeps_newest`, a copy of the newest step has the entries of the step under way.
        """
        done: dict[tuple[int, str, str], None] = {}
        newest, last = None, sys.maxsize
        for row in reversed(self.history(run_id)):
            newest = row.step if newest is None else newest
            if step < row.step <= last:
                done |= dict.fromkeys((row.step, row.checkpoint_node, key) for key in row.effects)
            if row.kind is Kind.ROLLBACK:  # later steps were rolled back before
                last = min(last, row.step)
        if not (keeps_newest and step == newest):
            done |= dict.fromkeys(self._effects_under_way(run_id, newest or 0))
        if done:
            raise EffectsError(run_id, tuple(sorted(done)))

    def _effects_under_way(self, run_id: str, newest: int = 0) -> Iterator[tuple[int, str, str]]:
        """Yield the step, the place and the key of each effect after the newest step, also in nested runs."""
        if not self.keeps_entries:
            return
        from stategraph.stores._codec.type_codecs import unknown_shown  # imported when used: 20 ms

        with unknown_shown():
            kept = self.entries(run_id, kinds=("effect",))
        yield from ((entry.step, entry.place, entry.name) for entry in kept if entry.value)
        for run in self.iter_runs(parent=run_id):
            step, place = step_of(run.run_id), run.run_id.rpartition("/")[2]
            if outer_id(run.run_id) == run_id and step > newest:  # and not a fork
                yield from ((step, place, key) for key in self._effects_in(run.run_id))

    def _effects_in(self, run_id: str) -> builtins.list[str]:
        """Return the keys of the effects of a nested run."""
        done = [key for row in self.history(run_id)[-1:] for key in row.effects]
        return [*done, *(key for _, _, key in self._effects_under_way(run_id))]

    def fork(
        self,
        run_id: str,
        new_run_id: str,
        step: int | None = None,
        revision: int | None = None,
        *,
        repeat_effects: bool = False,
    ) -> State:
        """Copy a run, with its history up to a step, to another id; return the newest State of the copy.

        The copy is active, unless it ends at an exit point, and `State.parent` names the source. It does not depend on
        the source. The default copies only the newest State.

        Args:
            run_id: The run.
            new_run_id: The id of the copy.
            step: The last step of the copy; the newest step by default.
            revision: The revision of the step; the newest by default. The default implementation has no revisions.
            repeat_effects: Copy the run also if the copy would repeat effects.

        Raises:
            EffectsError: the run did effects after the step; see `NodeContext.effect`.
            CheckpointNotFoundError: the run, or this step of it, is not kept.
            RunExistsError: there is a run with the new id, or with the id of a nested run of the copy.
        """
        check_numbers(step, revision)
        with owned(self, check_given_id(new_run_id)), noting_older({}):
            if not repeat_effects:
                source = self._revision(check_run_id(run_id), step, revision)
                keeps_newest = keeps_nested(source)  # not if the copy pauses again: then its step begins again
                if step is not None or not keeps_newest:
                    self._check_effects(run_id, source.step, keeps_newest=keeps_newest)
            return self._fork(check_run_id(run_id), new_run_id, step, revision)

    def _fork(self, run_id: str, new_run_id: str, step: int | None, revision: int | None) -> State:
        forked = forked_from(self._revision(run_id, step, revision), new_run_id)
        if new_run_id in self.list():
            raise RunExistsError(new_run_id, str(self))
        self.save(forked)
        return forked

    def rollback(
        self,
        run_id: str,
        step: int,
        revision: int | None = None,
        *,
        take_over: bool = False,
        by: str | None = None,
        repeat_effects: bool = False,
    ) -> State:
        """Roll a run back to a step and remove later ones; return the State of that step, in the next generation.

        With retention "full" nothing is removed: later steps stay in the history, before a checkpoint of kind
        "rollback".

        Args:
            run_id: The run.
            step: The step; 0 is the input, before the first step, if the store keeps it.
            revision: The revision of the step; the newest by default. The default implementation has no revisions.
            take_over: Take the run from its owner.
            by: The name to record in the history for this rollback.
            repeat_effects: Roll the run back also if it would repeat effects.

        Raises:
            EffectsError: the run did effects after the step, or may have done; see `NodeContext.effect`.
            ValueError: the step or the revision is not a non-negative int.
            RunBusyError: the run has an owner.
            RunLostError: another call took the run over in the meantime; nothing has been changed.
            CheckpointNotFoundError: the run, or this step of it, is not kept.
            CheckpointCorruptError, FormatError: as `load`.
            CheckpointSaveError: as `save`.
        """
        check_number(step)
        check_numbers(revision=revision)
        if take_over:  # first check that the step exists; else an owner would lose its run for nothing
            with noting_older({}):
                self._revision(run_id, step, revision)
        with owned(self, check_run_id(run_id), take_over=take_over), noting_older({}):
            if not repeat_effects:
                self._check_effects(run_id, step)
            return self._roll_back(run_id, step, revision, by)

    def _roll_back(self, run_id: str, step: int, revision: int | None, by: str | None) -> State:
        state = rolled_back(self._revision(run_id, step, revision), self.load(run_id), by)
        self.amend(state)
        return state

    def _revision(self, run_id: str, step: int | None, revision: int | None) -> State:
        """Load a State. Pass a revision only if there is one: other stores do not accept it."""
        return self.load(run_id, step) if revision is None else self.load(run_id, step, revision)

    def cancel(self, run_id: str, *, by: str | None = None) -> Owner | None:
        """Cancel a run: at once or, if it has an owner, through the owner; return the owner.

        It needs no graph; `StateGraph.cancel` does the same for runs of its graph, and says when the owner stops.

        Raises:
            CheckpointNotFoundError: there is no such run.
            RunCompleteError: the run is complete.
            RunLostError: another call took the run over in the meantime; nothing has been changed.
        """
        try:
            self._save_cancelled(run_id, by)
        except RunBusyError as busy:
            self._cancel(run_id, by)
            owner: Owner = busy.owner
        else:
            return None
        try:  # again: the owner may have released the run before it could see the cancellation
            self._save_cancelled(run_id, by)
        except (RunBusyError, CheckpointNotFoundError, RunCompleteError):
            return owner
        return None

    def _save_cancelled(self, run_id: str, by: str | None) -> State:
        """Save a run as cancelled, as its owner or if it has none; return its State. Turns that wait come next."""
        with owned(self, check_given_id(run_id)) as ownership, noting_older({}):
            state = self.load(run_id)
            if state.status is RunStatus.COMPLETED:
                raise RunCompleteError(run_id, state.checkpoint_node)
            has_inbox, begun = self.keeps_entries, turns_of(state)
            while True:  # again: a turn may come before the save, which would take back that it made the run due
                turns = self.entries(run_id, step=0, kinds=("turn",), after=begun) if has_inbox else ()
                progress = evolved(state.progress, due_ns=turns[0].at_ns if turns else 0)
                if state.status is RunStatus.CANCELLED and progress == state.progress:
                    break
                state = recorded(state, by=by, status=RunStatus.CANCELLED, progress=progress)
                self.save(state)
            if ownership.is_cancelled:  # the State records it now
                self._take_up(ownership)
            return state

    def diff(self, run_id: str, a: int, b: int, other: str | None = None) -> Difference:
        """Compare the data of step `a` of a run with those of step `b`, of the same run or of another.

        Args:
            run_id: The run.
            a: A step of the run.
            b: A step of the run, or of the other run.
            other: The other run, if `b` is a step of it.

        Returns:
            The keys with their values: `added`, `removed` and `changed`, which has pairs of values.

        Raises:
            ValueError: a step is not a non-negative int.
            CheckpointNotFoundError: a step is not kept.
        """
        from stategraph.stores.summaries import Difference

        for name, step in (("a", a), ("b", b)):
            check_number(step, name)
        return Difference.between(self.load(run_id, a), self.load(run_id if other is None else other, b))

    def prune(self) -> Pruned:
        """Remove checkpoints and runs that retention policies do not keep; return the removed ones.

        The default removes nothing. Runs that have an owner stay.
        """
        from stategraph.stores.summaries import Pruned

        return Pruned()

    def verify(self) -> Verified:
        """Read everything in the store and report damage. Change nothing.

        The default calls `history` and `load`.
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

    def under_way(self, run_id: str) -> UnderWay:
        """Return what is known of the step under way of a run, while it happens or before it goes on.

        Raises:
            CheckpointNotFoundError: there is no such run.
            CheckpointCorruptError, FormatError: as `load`.
        """
        from stategraph.stores._under_way import under_way

        return under_way(self, run_id)

    def _redo(self, run_id: str, names: Sequence[str], repeat_effects: bool) -> None:
        """Have parts of the step under way of a run done again. Only the owner of the run calls this.

        Raises:
            UnknownNameError: the step has no such part.
            EffectsError: a graph would repeat effects, and `repeat_effects` is false.
        """
        from stategraph.stores._under_way import redo

        redo(self, run_id, names, repeat_effects)

    def changed_since(self, token: str | None, run_id: str | None = None) -> str | None:
        """Return a new token if runs may have changed since the given one was returned; None if nothing has changed.

        Meant for live views: poll, and reload when there is a new token. It costs little in the built-in stores,
        however many runs there are; the default reads all of them.

        Args:
            token: The token of the previous call; None at first, which always returns one.
            run_id: Watch only the States of this run, without its nested runs and its step under way.
        """
        now = self._change_token(run_id)
        return None if now == token else now

    def _change_token(self, run_id: str | None) -> str:
        from hashlib import sha256  # imported when used: OpenSSL takes 4 ms

        shown = self.iter_runs() if run_id is None else self.history(run_id)[-1:]
        return sha256("\n".join(map(repr, shown)).encode(errors="backslashreplace")).hexdigest()

    # ------------------------------------------------------------------ owners

    def owner(self, run_id: str) -> Owner | None:
        """Return the owner of a run, the call that is at work on it. None if there is none.

        Every store knows at least the calls in this process. The class of a store documents what else it knows.
        """
        ownership = self._owners.get(given_id(check_run_id(run_id)))
        return None if ownership is None else ownership.owner

    @property
    def _owners(self) -> Owners:
        """The runs that are owned in this process."""
        owners: Owners = vars(self).get("_owners_") or vars(self).setdefault("_owners_", Owners())
        return owners

    def _own(self, ownership: Ownership, *, take_over: bool = False) -> None:
        """Acquire a run; raise RunBusyError if it has another owner, unless `take_over`."""
        ownership.store, ownership.lock = self, RLock()
        self._owners.take(ownership, take_over=take_over)

    def _has_lost(self, ownership: Ownership) -> bool:
        """Return whether another call took the run from this owner."""
        return ownership.is_lost

    def _cancel(self, run_id: str, by: str | None) -> None:
        """Record that a run is cancelled, for its owner or the next one."""
        self._owners.cancel(run_id, by)

    def _begin_at_node(self, ownership: Ownership) -> Any:
        """Begin the transaction of a node that writes to its own tables; return its connection."""
        reason = f"the {self} has no connection for nodes; context.connection needs the sqlite, disk or postgres store"
        raise CheckpointError(ownership.run_id, reason)

    def _is_cancelled(self, ownership: Ownership) -> bool:
        """Return whether the run was cancelled and not continued since."""
        return ownership.is_cancelled

    def _cancelled_by(self, run_id: str) -> str | None:
        """Return the name of the caller that cancelled a run at work, if it gave one."""
        return self._owners.cancelled_by(run_id)

    def _take_up(self, ownership: Ownership) -> None:
        """Clear the cancellation of a run, because its owner continues it."""
        self._owners.take_up(ownership)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.__module__.startswith("stategraph."):
            showing_options(cls)
        if not cls.checks_owners:
            guard_writes(cls, CheckpointStore)
            if "load" in vars(cls):
                setattr(cls, "load", _checked(cls.load))  # noqa: B010 - mypy refuses an assignment

    never_waits: ClassVar[bool] = False
    """Whether calls never wait for a disk, a network or anything else slow, so that an event loop may make them."""

    checks_owners: ClassVar[bool] = False
    """Whether the store itself refuses writes by calls that do not own the run; if not, this class guards it."""

    def close(self) -> None:  # noqa: B027
        """Close files and connections. The store cannot be used afterwards."""

    @property
    def closed(self) -> bool:
        """Whether the store is closed."""
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __str__(self) -> str:
        """Return the name of the store for error messages."""
        return f"store {type(self).__qualname__}"

    def __repr__(self) -> str:
        return f"<{self}>"
