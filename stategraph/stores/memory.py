"""The "memory" store: for tests, and for runs that need not outlive their process."""

from __future__ import annotations

import builtins
import itertools
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from typing import Any

import attrs

from stategraph._util.dropped import reaper
from stategraph._values import clock
from stategraph._values.answers import gives_back
from stategraph._values.frozen import are_settled
from stategraph._values.ids import check_run_id, is_nested_id, outer_id, step_of
from stategraph._values.provenance import ParentStep, Part
from stategraph.errors import CheckpointNotFoundError, CheckpointSaveError, NotSerializableError, RunExistsError
from stategraph.state import State, data_of, evolve, time_ns_of, with_data
from stategraph.stores._files.fork_safety import protect_at_fork
from stategraph.stores._rows.reentrance import Access, used_below
from stategraph.stores.base import (
    CheckpointStore,
    check_limit,
    check_number,
    check_status,
    check_step,
    forked_from,
    from_cursor,
    rolled_back,
)
from stategraph.stores.retention import Policy
from stategraph.stores.summaries import Pruned, Summary

_MOST_WAITING = 10_000  # policies of runs that are not saved yet


@attrs.frozen
class _Encoded:
    """A State with objects that may still change: they are kept as bytes, and what it waits for as a text."""

    state: State
    body: bytes
    pause: str | None

    @property
    def step(self) -> int:
        return self.state.step

    def restored(self) -> State:
        from stategraph.stores._codec.delta import restore  # imported when used: 20 ms
        from stategraph.stores._codec.pauses import pause_from_json

        data, about = restore([self.body])
        return evolve(with_data(self.state, data), progress=about["progress"], pause=pause_from_json(self.pause))


@attrs.define(eq=False)
class _Run:
    """A run: its number in the order in which runs began, what is kept of it, and its checkpoints in order."""

    number: int
    policy: Policy
    kept: list[State | _Encoded]
    parts: dict[tuple[int, str, str], State | _Encoded] = attrs.field(factory=dict)

    def cut(self) -> int:
        """Drop what is not to be seen any more -> how many checkpoints."""
        superfluous = max(0, len(self.kept) - (self.policy.visible or len(self.kept)))
        del self.kept[:superfluous]
        return superfluous

    @property
    def run_id(self) -> str:
        return _provenance_of(self.kept[-1]).run_id

    def is_over(self, now: int) -> bool:
        """Whether its time is over."""
        newest = _provenance_of(self.kept[-1])
        return self.policy.is_over(newest.status, time_ns_of(newest), now)


class MemoryStore(CheckpointStore):
    """Keeps States as they are, for they are immutable: saving one takes the same short time whatever its size."""

    def __init__(self) -> None:
        self._runs: dict[str, _Run] = {}
        self._policies: dict[str, Policy] = {}  # of runs that are still to begin
        self._inner: dict[str, set[str]] = {}  # what is directly within a run
        self._numbers = itertools.count(1)
        self.renew()
        protect_at_fork(self)

    def at_rest(self) -> AbstractContextManager[object]:
        """-> keeps other threads from changing it while the process is forked (see `_files.fork_safety`)."""
        return self._lock

    def renew(self) -> None:
        """In a child that was forked: have a lock of its own."""
        self._access = Access()
        self._lock, self._is_inside = self._access.guard, self._access.is_held_here

    @property
    def _alone(self) -> AbstractContextManager[bool]:
        """The lock. Raises if this thread holds it: then it is changing the store, further down its stack."""
        return self._access.to_change(self)

    def save(self, state: State) -> None:
        self._keep(state)

    def amend(self, state: State) -> None:
        self._keep(state, may_change_data=True)

    def retain(self, run_id: str, policy: Policy) -> None:
        with self._alone:
            run = self._runs.get(check_run_id(run_id))
            if run is not None:
                run.policy = policy
                return
            self._policies[run_id] = policy
            while len(self._policies) > _MOST_WAITING:
                del self._policies[next(iter(self._policies))]

    def _keep(self, state: State, may_change_data: bool = False) -> None:
        kept, run_id = _as_kept(state), state.run_id
        compared: State | _Encoded | None = None
        while True:
            if self._is_inside():
                raise used_below(self, run_id, CheckpointSaveError)
            with self._lock:
                run = self._runs.get(run_id)
                if run is None:
                    self._begin(_Run(next(self._numbers), self._policies.get(run_id) or Policy(), [kept]))
                    return
                newest = run.kept[-1]
                if newest is compared:
                    run.kept[-1] = kept
                    return
                if newest.step < state.step:
                    if run.policy.retention == "latest":
                        run.kept = [kept]
                    else:
                        run.kept.append(kept)
                        run.cut()
                    return
            # Out here: whoever made the values may use the store while they are compared.
            same_data = may_change_data or _have_same_data(newest, state)
            check_step(run_id, newest.step, state.step, same_data)
            compared = newest

    def _begin(self, run: _Run) -> None:
        run_id = run.run_id
        self._runs[run_id] = run
        self._policies.pop(run_id, None)
        while is_nested_id(run_id):
            self._inner.setdefault(outer_id(run_id), set()).add(run_id)
            run_id = outer_id(run_id)

    keeps_parts = True

    def save_parts(self, run_id: str, parts: Sequence[Part]) -> None:
        kept = {(part.step, part.node, part.label): _part_as_kept(part, run_id) for part in parts}
        with self._alone:
            if run_id in self._runs:
                self._runs[run_id].parts.update(kept)

    def load_parts(self, run_id: str, step: int, node: str) -> dict[str, Any]:
        run = self._runs.get(check_run_id(run_id))
        parts = {} if run is None else run.parts.copy()
        return {label: _state_of(kept)["value"] for (at, of, label), kept in parts.items() if (at, of) == (step, node)}

    def drop_parts(self, run_id: str, step: int, *, newer_too: bool = False) -> None:
        with self._alone:
            run = self._runs.get(check_run_id(run_id))
            if run is not None:
                run.parts = {} if newer_too else {key: part for key, part in run.parts.items() if key[0] > step}
                self._drop_runs_within(run_id, up_to=step)

    def _drop_runs_within(self, run_id: str, up_to: int | None = None) -> None:
        """Forget the runs of graphs within steps of a run, of all of them or up to one."""
        for inner in self._inner.pop(run_id, set()):
            if up_to is not None and step_of(inner) > up_to:
                self._inner.setdefault(run_id, set()).add(inner)
                continue
            self._runs.pop(inner, None)
            self._drop_runs_within(inner)

    def load(self, run_id: str, step: int | None = None) -> State:
        if step is not None:
            check_number(step)
        run = self._settled().get(check_run_id(run_id))
        found = [] if run is None else [kept for kept in tuple(run.kept) if step in (None, kept.step)]
        if not found:
            raise CheckpointNotFoundError(run_id, str(self), step)
        return _state_of(found[-1])

    def delete(self, run_id: str) -> None:
        with self._alone:
            self._runs.pop(check_run_id(run_id), None)
            self._policies.pop(run_id, None)
            self._drop_runs_within(run_id)

    def _settled(self) -> dict[str, _Run]:
        """-> the runs, once those have ended that were dropped."""
        reaper.settle(self)
        return self._runs

    def list(self) -> builtins.list[str]:
        return sorted(run_id for run_id in tuple(self._settled()) if not is_nested_id(run_id))

    def history(self, run_id: str) -> builtins.list[Summary]:
        run = self._settled().get(check_run_id(run_id))
        return [] if run is None else [Summary.of(_told(kept)) for kept in tuple(run.kept)]

    def runs(
        self, status: str | None = None, graph: str | None = None, limit: int = 100, after: str | None = None
    ) -> builtins.list[Summary]:
        check_status(status)
        before = from_cursor(after)
        newest_first = sorted(self._settled().values(), key=lambda run: run.number, reverse=True)
        found = (
            Summary.of(_told(run.kept[-1]), str(run.number))
            for run in newest_first
            if not is_nested_id(run.run_id) and (before is None or run.number < before)
        )
        wanted = (run for run in found if status in (None, run.status) and graph in (None, run.graph))
        return builtins.list(itertools.islice(wanted, check_limit(limit)))

    def rollback(self, run_id: str, step: int) -> State:
        check_number(step)
        with self._alone:  # from the look to the change: whoever deletes the run meanwhile waits
            state = self.load(run_id, step)
            state = rolled_back(state)
            kept = self._runs[run_id].kept
            kept[:] = [*(one for one in kept if one.step < step), _as_kept(state)]
            self._runs[run_id].parts.clear()
            self._drop_runs_within(run_id)
        return state

    def fork(self, run_id: str, new_run_id: str, step: int | None = None) -> State:
        with self._alone:
            source = self.load(run_id, step)
            forked = forked_from(source, new_run_id)
            policy = self._policies.get(new_run_id) or self._runs[run_id].policy
            # What is within a step whose answers are taken back was made with these.
            is_kept = source.pause is not None or not gives_back(source)
            copies = list(self._copies(run_id, forked, policy, is_kept=is_kept))
            for copy in copies:
                if copy.run_id in self._runs:
                    raise RunExistsError(copy.run_id, str(self))
            for copy in copies:
                copy.number = next(self._numbers)
                self._begin(copy)
        return forked

    def _copies(self, run_id: str, newest: State, policy: Policy, *, is_kept: bool = True) -> Iterator[_Run]:
        """-> a run with the history that another has up to this State of it, and copies of what is within the step
        after."""
        source = self._runs[run_id]
        earlier = [_renamed(kept, newest.run_id) for kept in source.kept if kept.step < newest.step]
        parts = {key: part for key, part in source.parts.items() if key[0] == newest.step + 1 and is_kept}
        yield _Run(0, policy, [*earlier, _as_kept(newest)], parts)
        for inner in self._inner.get(run_id, ()) if is_kept else ():
            run = self._runs.get(inner)
            if run is not None and step_of(inner) == newest.step + 1:
                parent = ParentStep(newest.run_id, newest.step)
                new_id = newest.run_id + inner.removeprefix(run_id)
                yield from self._copies(inner, evolve(self.load(inner), run_id=new_id, parent=parent), run.policy)

    def prune(self) -> Pruned:
        now = clock.now_ns()
        with self._alone:
            over = [run_id for run_id, run in self._runs.items() if run.is_over(now) and not is_nested_id(run_id)]
            for run_id in over:
                del self._runs[run_id]
                self._drop_runs_within(run_id)
            return Pruned(tuple(over), sum(run.cut() for run in self._runs.values()))

    def __str__(self) -> str:
        return "memory store"


def _as_kept(state: State) -> State | _Encoded:
    if state.observer is not None:
        state = evolve(state, observer=None)
    if not are_settled(data_of(state).values()):
        return _encoded(state)
    waits = state.pause is not None or state.progress is not None
    return _encoded(state) if waits and _waits_with_objects(state) else state


def _part_as_kept(part: Part, run_id: str) -> State | _Encoded:
    try:
        return _as_kept(State({"value": part.value}))
    except NotSerializableError as error:
        from stategraph.stores._rows.nested import named_by_part  # imported when used: 20 ms

        raise named_by_part(error, [part], run_id) from error.__cause__


def _waits_with_objects(state: State) -> bool:
    """Whether there are objects that may change in what it waits for, has put out so far, or was given anew."""
    shown = () if state.pause is None else (state.pause.value,)
    chunks = () if state.partial is None else state.partial.chunks
    progress = state.progress
    old = () if progress is None else chain(*progress.replaced.values(), *progress.answer.values())
    return not are_settled((*shown, *chunks, *old))


def _encoded(state: State) -> _Encoded:
    from stategraph.stores._codec.pauses import pause_to_json  # imported when used: 20 ms

    return _Encoded(with_data(state, {}), _body_of(state), pause_to_json(state.pause))


def _state_of(kept: State | _Encoded) -> State:
    return kept if isinstance(kept, State) else kept.restored()


def _provenance_of(kept: State | _Encoded) -> State:
    return kept if isinstance(kept, State) else kept.state


def _told(kept: State | _Encoded) -> State:
    """-> the State without its data, where these take decoding, for a summary of it."""
    if isinstance(kept, State) or kept.pause is None:
        return _provenance_of(kept)
    from stategraph.stores._codec.pauses import pause_from_json  # imported when used: 20 ms

    return evolve(kept.state, pause=pause_from_json(kept.pause))


def _renamed(kept: State | _Encoded, run_id: str) -> State | _Encoded:
    renamed = evolve(_provenance_of(kept), run_id=run_id)
    return renamed if isinstance(kept, State) else _Encoded(renamed, kept.body, kept.pause)


def _have_same_data(kept: State | _Encoded, state: State) -> bool:
    from stategraph.stores._codec.delta import have_same_data  # imported when used: 20 ms

    return have_same_data(_state_of(kept), state, {})


def _body_of(kept: State | _Encoded) -> bytes:
    """-> the data as bytes. Raises NotSerializableError if they cannot be kept exactly."""
    if isinstance(kept, _Encoded):
        return kept.body
    from stategraph.stores._codec.delta import Delta  # imported when used: 20 ms

    return Delta.between(None, kept, {}).to_payload()
