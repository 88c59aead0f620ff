"""The "memory" store: for tests, and for runs that need not outlive their process."""

from __future__ import annotations

import builtins
import sys
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from stategraph._owners.base import NewEntriesError, Ownership, owned, owned_if_free, owner_here, process_name
from stategraph._values import clock
from stategraph._values.entries import (
    STEPS_OF_CHUNKS,
    Entry,
    are_of_inbox,
    check_kinds,
    due_ns_after,
    lasting_kinds,
    named_by_entry,
    selected,
)
from stategraph._values.frozen import are_settled
from stategraph._values.ids import check_given_id, check_run_id, is_nested_id, outer_id, step_of
from stategraph._values.provenance import ParentStep, RunStatus
from stategraph.errors import (
    CheckpointNotFoundError,
    CheckpointSaveError,
    NotSerializableError,
    RunExistsError,
)
from stategraph.state import (
    State,
    check_successor,
    data_of,
    due_ns_of,
    evolve,
    is_changed_while_paused,
    provenance_of,
    taken_of,
    time_ns_of,
    with_data,
)
from stategraph.stores._checks import (
    RunFilter,
    begins_again,
    check_numbers,
    check_state,
    check_taken,
    check_unknown,
    forked_from,
    is_in_story,
    keeps_nested,
    later,
    rolled_back,
    row_cursor,
    steps_under_way,
)
from stategraph.stores._files.fork_safety import ForkSafe
from stategraph.stores.base import CheckpointStore, RetentionPolicy

if TYPE_CHECKING:
    from stategraph.stores.summaries import Pruned, Summary


@attrs.frozen
class _Encoded:
    """A State with mutable objects.

    Attributes:
        head: The State without its data.
        payload: The State as bytes.
    """

    head: State
    payload: bytes

    @property
    def step(self) -> int:
        """The step of the State."""
        return self.head.step

    @property
    def generation(self) -> int:
        """The generation of the State."""
        return self.head.generation


_Kept: TypeAlias = State | _Encoded


@attrs.frozen
class _KeptEntry:
    """An entry, and its value as the only value of a State."""

    entry: Entry
    value: _Kept


@attrs.define(eq=False)
class _Run:
    """A run.

    Attributes:
        number: Counts runs in the order in which they began.
        policy: Its retention policy.
        kept: Its checkpoints, in order; never empty, because readers take no lock.
        created_ns: When it began; nanoseconds since 1970, UTC.
        entries: Its entries, those with names by these, except:
        named: The entries of its inbox that have names: no save removes them, or looks at them.
        numbers: The number of the newest entry of each step, and of the inbox (0), even if that is removed.
        due_ns: The time at which it can go on by itself, in nanoseconds since 1970; None if it waits for a caller.
    """

    number: int
    policy: RetentionPolicy
    kept: list[_Kept]
    created_ns: int
    entries: dict[object, _KeptEntry] = attrs.field(factory=dict)
    named: dict[object, _KeptEntry] = attrs.field(factory=dict)
    numbers: Counter[int] = attrs.field(factory=Counter)
    due_ns: int | None = None

    def cut_journal(self, last: int, taken: int = 0, lasting: Collection[str] = (), after: int = sys.maxsize) -> None:
        """Remove the entries of the journal up to a step, and those of the inbox up to a number that have no name.

        Entries of the kinds in `lasting` stay if their step comes after the step `after`.
        """
        left = {
            key: kept
            for key, kept in self.entries.items()
            if kept.entry.step > last - (STEPS_OF_CHUNKS if kept.entry.kind == "chunk" else 0)
            or (kept.entry.kind in lasting and kept.entry.step > after)
            or (not kept.entry.step and kept.entry.seq > taken)
        }
        over = min(last, after)
        self.entries = left
        self.numbers = Counter({step: seq for step, seq in self.numbers.items() if not 0 < step <= over})

    def cut(self) -> int:
        """Remove the checkpoints that retention does not keep; return their number."""
        superfluous = self.policy.first_kept(self.kept)
        del self.kept[:superfluous]
        return superfluous

    def summary(self, kept: _Kept, revision: int, **more: Any) -> Summary:
        """Return a checkpoint without its data."""
        from stategraph.stores.summaries import Summary  # imported when used, as below: few runs need it

        shown, created = Summary.of(_head_of(kept)), clock.to_datetime(self.created_ns)
        return attrs.evolve(shown, revision=revision, created=created, **{"due": None, **more})

    def newest(self) -> Summary:
        """Return the newest checkpoint without its data."""
        kept = tuple(self.kept)
        revision = sum(checkpoint.step == kept[-1].step for checkpoint in kept) - 1
        from stategraph.stores.summaries import as_time

        return self.summary(kept[-1], revision, cursor=str(self.number), due=as_time(self.due_ns))


class MemoryStore(ForkSafe, CheckpointStore):
    """Keeps States as they are, because they are immutable: a save takes the same short time for any size.

    Args:
        redact: As for RowStore.
    """

    keeps_parts = True
    never_waits = True
    checks_owners = True

    def __init__(self, *, redact: Any = None) -> None:
        if redact is not None:
            from stategraph.stores._seen import shown_by  # imported when used, as below

            self.shown: Callable[[str, Any], Any] | None = shown_by(redact)
        self._runs_by_id: dict[str, _Run] = {}
        self._nested: dict[str, set[str]] = {}  # the ids of the directly nested runs of a run, by its id
        self._policies: dict[str, RetentionPolicy] = {}  # of runs that have not begun
        self._begun = self._changes = 0
        super().__init__()

    def _change(self, ownership: Ownership) -> None:
        """Begin a change by an owner. The caller has the lock, which Ctrl-C could leave locked in a @contextmanager."""
        ownership.check()
        self._changes += 1

    def __str__(self) -> str:
        return "memory store"

    def _own(self, ownership: Ownership, *, take_over: bool = False) -> None:
        ownership.store = self
        with self.lock if take_over else nullcontext():  # so that a former owner writes nothing afterwards
            self._owners.take(ownership, take_over=take_over)

    # ------------------------------------------------------------------ saving and loading

    def save(self, state: State) -> None:
        try:
            self._keep(state)
        except AttributeError as error:
            check_state(state, error)
            raise

    def amend(self, state: State) -> None:
        self._keep(state, may_change_data=True)

    def _keep(self, state: State, may_change_data: bool = False) -> None:
        kept, run_id = _as_kept(state), state.run_id
        ownership = owner_here(self, run_id)
        if ownership is None:
            with owned(self, run_id):
                self._keep(state, may_change_data)
            return
        with self.alone(run_id, CheckpointSaveError):
            ownership.check()
            self._changes += 1
            run = self._runs_by_id.get(run_id)
            if run is not None and state.status is RunStatus.COMPLETED:
                self._check_inbox(run, ownership, run_id, taken_of(state))
            elif run is not None and ownership.refuses_new_entries:
                self._check_inbox(run, ownership, run_id, ownership.inbox)
            if run is None:
                run = self._begin(run_id, RetentionPolicy(), [kept], time_ns_of(state))
                if ownership.run_id == run_id:
                    run.named = {entry.identity: _as_kept_entry(entry, run_id) for entry in ownership.brings}
            elif run.kept[-1].step >= state.step or run.kept[-1].generation > state.generation:
                newest = _head_of(run.kept[-1])
                self._keep_again(run, kept, state, may_change_data)
                if may_change_data and begins_again(newest, state):
                    self._cut(run, state, state.step + 1, newer_too=False)
            elif run.policy.retention == "latest":
                run.kept = [kept]
            else:
                run.kept.append(kept)
                run.cut()
            if run.entries:
                run.cut_journal(min(steps_under_way(state)) - 1, taken_of(state))
            if not is_changed_while_paused(state):  # a stored answer may have made it due
                run.due_ns = due_ns_of(state) if state.progress or state.pause else None
            if ownership.inbox is not None and ownership.run_id == run_id:
                ownership.inbox = run.numbers[0]

    def _check_inbox(self, run: _Run, ownership: Ownership, run_id: str, known: int | None) -> None:
        """Raise NewEntriesError if a run has entries in its inbox after the newest one that a write knows."""
        if ownership.inbox is not None and known != run.numbers[0] and ownership.run_id == run_id:
            ownership.inbox = run.numbers[0]
            raise NewEntriesError(run_id)

    def _keep_again(self, run: _Run, kept: _Kept, state: State, may_change_data: bool) -> None:
        """Save a State whose step or generation is not later than the newest one."""
        newest = _state_of(run.kept[-1])
        is_same = data_of(newest) is data_of(state)  # for instance if only the status is new
        if run.policy.keeps_all or not is_same:
            from stategraph.stores._codec.states import are_of_one_save, have_same_data

            is_same = is_same or have_same_data(newest, state, {})
        check_successor(newest, state, may_change_data or is_same)
        is_replaced = not run.policy.keeps_all or (is_same and are_of_one_save(newest, state))
        run.kept[len(run.kept) - is_replaced :] = [kept]

    def _begin(self, run_id: str, policy: RetentionPolicy, kept: builtins.list[_Kept], created_ns: int) -> _Run:
        """Begin a run, with the policy that is set for it or else this one."""
        self._begun += 1
        policy = self._policies.pop(run_id, policy)
        run = self._runs_by_id[run_id] = _Run(self._begun, policy, kept, created_ns)
        newest = _head_of(kept[-1])
        run.numbers[0], run.due_ns = taken_of(newest), due_ns_of(newest)
        while is_nested_id(run_id):
            self._nested.setdefault(outer_id(run_id), set()).add(run_id)
            run_id = outer_id(run_id)
        return run

    def retain(self, run_id: str, policy: RetentionPolicy) -> None:
        with self.alone(run_id):
            run = self._runs_by_id.get(check_run_id(run_id))
            if run is not None:
                run.policy = policy
                return
            self._policies[run_id] = policy

    def load(
        self, run_id: str, step: int | None = None, revision: int | None = None, *, unknown: str | None = None
    ) -> State:
        if unknown is not None:  # the values are in memory, so none is unknown
            check_unknown(unknown)
        run = self._runs_by_id.get(check_run_id(run_id))
        if run is not None and step is None and revision is None:
            return _state_of(run.kept[-1])
        return _state_of(self._found(run_id, step, revision)[2])

    def _found(self, run_id: str, step: int | None, revision: int | None) -> tuple[_Run, int, _Kept]:
        """Return a run, the index of one of its checkpoints, and the checkpoint."""
        check_numbers(step, revision)
        run = self._runs_by_id.get(check_run_id(run_id))
        kept = () if run is None else tuple(run.kept)
        wanted = kept[-1].step if step is None and kept else step
        places = [place for place, checkpoint in enumerate(kept) if checkpoint.step == wanted]
        if run is None or (revision or 0) >= len(places):
            raise CheckpointNotFoundError(run_id, str(self), step, revision)
        place = places[-1 if revision is None else revision]
        return run, place, kept[place]

    def delete(self, run_id: str, *, take_over: bool = False) -> None:
        with owned(self, check_run_id(run_id), take_over=take_over) as ownership, self.alone(run_id):
            self._change(ownership)
            self._drop(run_id)
            self._policies.pop(run_id, None)

    def _redact(self, run_id: str, key: str, by: str | None) -> None:
        from stategraph.stores._rows.redacting import Redaction  # imported when used: 20 ms

        redaction = Redaction(key)
        with self.alone(run_id):
            self._changes += 1
            run, _, _ = self._found(run_id, None, None)
            runs = [each for at, each in self._runs_by_id.items() if at == run_id or at.startswith(f"{run_id}/#")]
            for each in (*runs, *runs):
                each.kept = [_as_kept(redaction.state(_state_of(kept))) for kept in each.kept]
                for entries in (each.entries, each.named):
                    for name, kept in entries.items():
                        entries[name] = _as_kept_entry(redaction.entry(_entry_of(kept)), run_id)
            newest = redaction.recorded(_state_of(run.kept[-1]), by)
            run.kept[len(run.kept) - (not run.policy.keeps_all) :] = [_as_kept(newest)]

    def _discard(self, run_id: str) -> None:
        with owned(self, run_id) as ownership, self.alone(run_id):
            run = self._runs_by_id.get(run_id)
            if run is not None:
                self._check_inbox(run, ownership, run_id, ownership.inbox)
            self._change(ownership)
            self._drop(run_id)

    def _drop(self, run_id: str) -> None:
        """Remove a run and all its nested runs."""
        self._runs_by_id.pop(run_id, None)
        for nested_id in self._nested.pop(run_id, ()):
            self._drop(nested_id)

    # ------------------------------------------------------------------ entries

    def append(self, run_id: str, entries: Sequence[Entry]) -> builtins.list[Entry]:
        if not entries:
            return []
        kept = [_as_kept_entry(entry, run_id) for entry in entries]
        if are_of_inbox(entries):
            check_given_id(run_id)
            with self.alone(run_id):
                return self._append(run_id, kept)
        with owned(self, run_id) as ownership, self.alone(run_id):
            self._change(ownership)
            return self._append(run_id, kept)

    def _append(self, run_id: str, new: Sequence[_KeptEntry]) -> builtins.list[Entry]:
        run = self._runs_by_id.get(run_id)
        if run is None:
            raise CheckpointNotFoundError(run_id, str(self))
        newest = _head_of(run.kept[-1])
        given = [kept.entry for kept in new if not kept.entry.step and kept.entry.identity not in run.named]
        check_taken(given, newest)
        self._changes += 1
        found: builtins.list[Entry] = []
        for kept in new:
            entry = kept.entry
            kept_here = run.named if entry.name and not entry.step else run.entries
            same = kept_here.get(entry.identity) if entry.name else None
            if same is None or entry.step:  # in the inbox, the earlier one of a name stays
                seq = same.entry.seq if same else run.numbers[entry.step] + 1
                run.numbers[entry.step] = max(run.numbers[entry.step], seq)
                same = attrs.evolve(kept, entry=attrs.evolve(entry, seq=seq))
                kept_here[entry.identity if entry.name else (entry.step, seq)] = same
            found.append(_entry_of(same))
        due_ns = due_ns_after(given)
        run.due_ns = run.due_ns if due_ns is None else due_ns
        return found

    def entries(
        self, run_id: str, *, step: int | None = None, kinds: Collection[str] | None = None, after: int = 0
    ) -> builtins.list[Entry]:
        check_kinds(kinds)
        run = self._runs_by_id.get(check_run_id(run_id))
        entries = () if run is None else (*run.entries.values(), *(run.named.values() if not step else ()))
        return selected(map(_entry_of, entries), step, kinds, after)

    def drop_parts(self, run_id: str, step: int, *, newer_too: bool = False) -> None:
        with owned(self, check_run_id(run_id)) as ownership, self.alone(run_id):
            self._change(ownership)
            run = self._runs_by_id.get(run_id)
            if run is None:
                return
            self._cut(run, _head_of(run.kept[-1]), step, newer_too=newer_too)

    def _cut(self, run: _Run, newest: State, step: int, *, newer_too: bool) -> None:
        run.cut_journal(sys.maxsize if newer_too else step, 0, lasting_kinds(newer_too), newest.step)
        nested_ids = self._nested.get(newest.run_id, set())
        for nested_id in [found for found in nested_ids if step_of(found) <= step]:
            if not (run.policy.keeps_all and is_in_story(nested_id, newest.step, newest.generation)):
                nested_ids.discard(nested_id)
                self._drop(nested_id)

    # ------------------------------------------------------------------ lists

    def list(self) -> builtins.list[str]:
        return sorted(run_id for run_id in [*self._runs_by_id] if not is_nested_id(run_id))

    def history(self, run_id: str, *, after: str | None = None) -> builtins.list[Summary]:
        run = self._runs_by_id.get(check_run_id(run_id))
        if run is None:
            return []
        rows = tuple(run.kept)
        newer = rows if after is None else later(rows, after, _cursor_of)
        found: builtins.list[Summary] = []
        revisions = Counter(kept.step for kept in rows[: len(rows) - len(newer)])
        for kept in newer:
            found.append(run.summary(kept, revisions[kept.step], owner=process_name(), cursor=_cursor_of(kept)))
            revisions[kept.step] += 1
        return found

    def _runs(self, which: RunFilter, limit: int, after: int | None) -> builtins.list[Summary]:
        newest_first = sorted(self._runs_by_id.items(), key=lambda item: item[1].number, reverse=True)
        found = (
            run.newest()
            for run_id, run in newest_first
            if which.takes_id(run_id) and (after is None or run.number < after)
        )
        return [*islice((run for run in found if which.takes(run, self.owner)), limit)]

    def _due(self, graph: str, limit: int) -> builtins.list[tuple[int, str]]:
        runs = [*self._runs_by_id.items()]
        due = sorted((run.due_ns, run_id, run) for run_id, run in runs if run.due_ns is not None)
        found = ((at, run_id) for at, run_id, run in due if _head_of(run.kept[-1]).graph == graph)
        return [*islice(found, limit)]

    def _change_token(self, run_id: str | None) -> str:
        if run_id is None:
            return str(self._changes)
        run = self._runs_by_id.get(check_run_id(run_id))
        return "" if run is None else f"{run.number}-{len(run.kept)}-{_cursor_of(run.kept[-1])}"

    # ------------------------------------------------------------------ time travel

    def _roll_back(self, run_id: str, step: int, revision: int | None, by: str | None) -> State:
        with owned(self, run_id) as ownership, self.alone(run_id):
            self._change(ownership)
            run, place, kept = self._found(run_id, step, revision)
            newest = _head_of(run.kept[-1])
            spent = selected(map(_entry_of, run.entries.values()), newest.step + 1, ("spend",))
            state = rolled_back(_state_of(kept), newest, by, spent)
            run.kept[len(run.kept) if run.policy.keeps_all else place :] = [_as_kept(state)]  # atomic for readers
            run.cut_journal(sys.maxsize)
            run.due_ns = due_ns_of(state)
            if not run.policy.keeps_all:
                for nested_id in self._nested.pop(run_id, ()):
                    self._drop(nested_id)
            return state

    def _fork(self, run_id: str, new_run_id: str, step: int | None, revision: int | None) -> State:
        with owned(self, new_run_id) as ownership, self.alone(new_run_id):
            self._change(ownership)
            for taken in {new_run_id, *self._nested.get(new_run_id, ())} & self._runs_by_id.keys():
                raise RunExistsError(taken, str(self))
            run, place, kept = self._found(run_id, step, revision)
            source = _state_of(kept)
            forked = forked_from(source, new_run_id)
            # The nested runs of a completed step belong to this run; the copy repeats that step.
            with_nested = keeps_nested(source) and source.step == run.kept[-1].step
            self._copy(run_id, place, forked, with_nested=with_nested)
            return forked

    def _copy(self, run_id: str, place: int, newest: State, *, with_nested: bool) -> None:
        """Begin a run with this State and the history of another run before an index."""
        source, new_id = self._runs_by_id[run_id], newest.run_id
        earlier = [_as_kept(evolve(_state_of(kept), run_id=new_id)) for kept in source.kept[:place]]
        copy = self._begin(new_id, source.policy, [*earlier, _as_kept(newest)], time_ns_of(newest))
        if not with_nested:
            return
        steps = steps_under_way(newest)
        copy.entries = {key: kept for key, kept in source.entries.items() if kept.entry.step in steps}
        copy.numbers |= {step: source.numbers[step] for step in steps}
        for nested_id in tuple(self._nested.get(run_id, ())):
            nested = self._runs_by_id.get(nested_id)
            if nested is not None and step_of(nested_id) in steps:
                state, parent = _state_of(nested.kept[-1]), ParentStep(new_id, step_of(nested_id) - 1)
                state = evolve(state, run_id=new_id + nested_id.removeprefix(run_id), parent=parent)
                self._copy(nested_id, len(nested.kept) - 1, state, with_nested=True)

    def prune(self) -> Pruned:
        from stategraph.stores.summaries import Pruned

        with self.alone(""):
            self._changes += 1
            now, over = clock.now_ns(), []
            for run_id, run in self._runs_by_id.items():
                newest = _head_of(run.kept[-1])
                if not is_nested_id(run_id) and run.policy.is_over(newest.status, time_ns_of(newest), now):
                    over.append(run_id)
            with owned_if_free(self, over) as removed:
                for run_id in removed:
                    self._drop(run_id)
            return Pruned(tuple(removed), sum(run.cut() for run in self._runs_by_id.values()))


# --------------------------------------------------------------------------- checkpoints


def _as_kept(state: State) -> _Kept:
    """Return a State in the form in which it is kept.

    Raises:
        NotSerializableError: an object in it cannot be kept exactly.
    """
    about = provenance_of(state)
    if about.observer is not None:
        state = evolve(state, observer=None)
    if are_settled(data_of(state).values()) and (about.is_plain or not _has_further_objects(state)):
        return state
    from stategraph.stores.toolkit import state_to_bytes  # imported when used: 20 ms

    return _Encoded(with_data(state, {}), state_to_bytes(state))


def _as_kept_entry(entry: Entry, run_id: str) -> _KeptEntry:
    """Return an entry as it is kept. Raises NotSerializableError, which names it, if its value cannot be kept."""
    try:
        return _KeptEntry(attrs.evolve(entry, value=None), _as_kept(State({"value": entry.value})))
    except NotSerializableError as error:
        raise named_by_entry(error, entry, run_id) from error.__cause__


def _entry_of(kept: _KeptEntry) -> Entry:
    return attrs.evolve(kept.entry, value=_state_of(kept.value)["value"])


def _has_further_objects(state: State) -> bool:
    """Return whether there are mutable objects in the pause, the emitted chunks, or replaced values and answers."""
    pause, progress = state.pause, state.progress
    shown = () if pause is None else [request.value for request in pause.each]
    chunks = () if state.partial is None else state.partial.chunks
    old = (
        ()
        if progress is None
        else chain(*progress.replaced.values(), *progress.overtaken.values(), *progress.answer.values())
    )
    return not are_settled((*shown, *chunks, *old))


def _state_of(kept: _Kept) -> State:
    """Return a kept State, with copies of the objects in it."""
    if isinstance(kept, State):
        return kept
    from stategraph.stores.toolkit import state_from_bytes

    return state_from_bytes(kept.head.run_id, kept.payload)


def _cursor_of(kept: _Kept) -> str:
    return row_cursor(kept.step, time_ns_of(kept if isinstance(kept, State) else kept.head))


def _head_of(kept: _Kept) -> State:
    """Return a State for its provenance, without its data if they would have to be decoded."""
    return _state_of(kept) if isinstance(kept, State) or kept.head.pause is not None else kept.head
