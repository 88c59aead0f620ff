"""Start: how a run comes to go, newly, once more, or from where it was saved; by itself, or within another."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, cast

import attrs

from stategraph._engine.context import with_notes
from stategraph._engine.pauses import Waking
from stategraph._engine.recompute import restored
from stategraph._engine.selective import Written, accounted
from stategraph._engine.step import Visit, is_overdue
from stategraph._graph.compatibility import by_graph, check_fits, moved
from stategraph._graph.compiled import Plan, Stage
from stategraph._protocol.commands import Amend, CannotAwait, Load, Parts, Save, Stopped, StoreFailed, Task
from stategraph._values.answers import awake
from stategraph._values.events import STATE_EVENTS, EventType
from stategraph._values.frozen import freeze_items, lay_over
from stategraph._values.ids import check_given_id
from stategraph._values.provenance import ParentStep, Progress, RunStatus, evolved
from stategraph._values.sameness import differing_items
from stategraph.errors import (
    AsyncNodeError,
    CheckpointError,
    CheckpointingDisabledError,
    CheckpointNotFoundError,
    GraphMismatchError,
    RunCancelledError,
    RunExistsError,
)
from stategraph.state import State, data_of, evolve, with_data

_NOTHING: Mapping[str, Any] = MappingProxyType({})


@attrs.define(eq=False)
class Start(Waking):
    """The beginnings of a run. Each ends where the run goes on behind a stage."""

    def _run(self, stage: Stage | None) -> Task[State]:
        """Run on from a stage that is completed; None: from the start."""
        raise NotImplementedError

    def execute(self, state: State) -> Task[State]:
        """Run a State from the entry point to an exit point."""
        self.state = yield from self._admit(state)
        return (yield from self._run(None))

    def resume(
        self, run_id: str, updates: Mapping[str, Any], allow_changed: bool, migrate: Mapping[str, str] = _NOTHING
    ) -> Task[State]:
        """Run on from the newest saved State of a run, with its data updated."""
        check_given_id(run_id)
        if not self.plan.saves:
            raise CheckpointingDisabledError(self.plan.graph)
        loaded = yield (Load, self.services.load, run_id)
        self.found = loaded.step, loaded.generation
        yield from self._emit(EventType.CHECKPOINT_LOAD, loaded)
        self.allow_changed = allow_changed
        saved = self._moved(loaded, migrate)
        check_fits(self.plan, saved, allow_changed)
        behind = yield from self._revive(saved, updates, is_same=not migrate)
        return (yield from self._run(behind))

    def _moved(self, saved: State, migrate: Mapping[str, str]) -> State:
        """-> a saved State with its nodes renamed; those of graphs within wait for these."""
        own, self.renamed_within = by_graph(migrate, self.plan)
        return moved(saved, own, self.plan)

    def _revive(
        self, saved: State, updates: Mapping[str, Any], inputs: Mapping[str, Any] = _NOTHING, *, is_same: bool
    ) -> Task[Stage | None]:
        """Bring a saved State back to life, durably if it changes -> the stage that it stands behind.

        `inputs` are what the run began with, where that is known.
        """
        run_id, step = saved.run_id, saved.step
        if saved.status is RunStatus.PAUSED:
            saved, updates = yield from self._woken(saved, updates)
            is_same = False
        else:
            updates = yield from self._answered_anew(saved, updates)
        saved = _open_to_answers(saved, updates)
        updates = self._fitting(updates, saved)
        whole, changes = yield from self._whole(saved, updates, inputs)
        data = lay_over(data_of(whole), changes)
        if self.plan.persist is not None:  # those that are not saved come again
            unsaved = {key: value for key, value in self.plan.defaults.items() if key not in self.plan.persist}
            data = lay_over(unsaved, data)
        state = self._accounted(self._stamp(with_data(whole, data)), whole, Written(changes))
        self.state = self._noting_replaced(state, data_of(whole)) if changes else state
        if self.plan.loads_parts:  # first: parts that were made of other data must never be found behind these
            yield (Parts, self.services.drop_parts, (run_id, saved.step, bool(updates)))
        if updates or not is_same:
            kind, save = (Amend, self.services.amend) if saved.step == step else (Save, self.services.save)
            yield from self._save((kind, save, self.state), self.state)
        yield from self._emit(EventType.CHECKPOINT_RESUME, self.state)
        return self.plan.stages.get(saved.checkpoint_node)

    def _whole(
        self, saved: State, updates: Mapping[str, Any], inputs: Mapping[str, Any] = _NOTHING
    ) -> Task[tuple[State, Mapping[str, Any]]]:
        """-> a saved State with the keys that were not saved, and the updates that remain to be laid over it.

        While they are computed the run stays as it is saved, so that it can be resumed in the same way again.
        """
        if saved.progress is None or not saved.progress.origins:
            return saved, updates
        self.state = self.saved = evolve(saved, progress=evolved(saved.progress, partial=None))
        try:
            whole = yield from restored(self, self.state, updates, inputs)
        except GeneratorExit:
            raise
        except BaseException as error:
            yield from self._end_early(error)
            raise
        self.saved = None
        return whole

    def _accounted(self, state: State, before: State, written: Written) -> State:
        """-> the State with the origins of its keys, after something else than a node has written."""
        return accounted(state, before, written, self.plan.persist, self.plan.defaults)

    def _noting_replaced(self, state: State, before: dict[str, Any]) -> State:
        """-> the State with what is different from before, if there may be runs within that know the old values only.

        What was noted when it was resumed the last time stays, for that may not have come to them either.
        """
        if not self.plan.loads_parts:
            return state
        persist = self.plan.persist
        values = before if persist is None else {key: before[key] for key in before.keys() & persist}
        given = differing_items(before, data_of(state))
        replaced = {key: (values[key],) if key in values else () for key in given}
        earlier = state.progress.replaced if state.progress else {}
        return evolve(state, progress=evolved(state.progress, replaced={**replaced, **earlier}))

    def run_child(
        self, visit: Visit, plan: Plan, saved: State | None, inputs: Mapping[str, Any], updates: Mapping[str, Any]
    ) -> Task[State]:
        """-> the State that the run of a graph within ends with: begun with inputs, or gone on with updates."""
        services = self.services.within(plan.graph, plan.persist)
        child = type(self)(plan, services, self.wanted, hand_over=self.hand_over)
        child.within, child.allow_changed = f"{self.within}{visit.stage.name}/", self.allow_changed
        child.around, child.outermost = visit, self.outermost or self.plan.graph
        child.state = child.begun_within(visit, inputs) if saved is None else saved
        try:
            return (yield from child.run_within(visit, saved, inputs, updates))
        except RunCancelledError as error:
            raise with_notes(Stopped(error.reason), error) from error.__cause__
        except (CheckpointError, GraphMismatchError) as error:
            raise StoreFailed from error
        except AsyncNodeError as error:
            raise CannotAwait from error
        finally:  # whatever comes of it: what has answered within answers nothing out here any more
            visit.take_answers(key for key in child.answered if visit.shares(key, inputs))

    @property
    def answered(self) -> frozenset[str]:
        """The keys whose values have served as answers."""
        return self.state.progress.answered if self.state.progress else frozenset()

    def begun_within(self, visit: Visit, inputs: Mapping[str, Any]) -> State:
        """-> the State with which a run begins that is a step of another."""
        parent, progress = ParentStep(visit.state.run_id, visit.state.step), visit.progress_within(inputs)
        data = self._completed_data(freeze_items(self._fitting(inputs, {})))
        again = visit.state.generation  # steps of a run that was rolled back are others than before, within as well
        begun = self._stamp(
            State(data, run_id=visit.child_run_id(), parent=parent, progress=progress, generation=again)
        )
        return self._accounted(begun, begun, Written())

    def run_within(
        self, visit: Visit, saved: State | None, inputs: Mapping[str, Any], updates: Mapping[str, Any]
    ) -> Task[State]:
        """As execute or, where a State of the run is saved, resume; answers come from the run that it is within."""
        if saved is None:
            yield from visit.hand_on_updates()
            return (yield from self._run(None))
        if saved.status is RunStatus.COMPLETED:  # and the step that it is part of was not saved any more
            return (yield from self._whole(saved, _NOTHING, inputs))[0]
        self.found = saved.step, saved.generation
        saved = self._moved(saved, visit.renames)
        check_fits(self.plan, saved, self.allow_changed, self.within)
        pause, updates = saved.pause, {**updates}
        if pause is not None and visit.answers(pause):
            saved = awake(saved, pause)
            if pause.response_param is not None:
                updates[pause.response_param] = visit.state[pause.response_param]
        elif pause is not None and not is_overdue(pause):
            if (
                saved.structure != self.plan.structure or visit.renames
            ):  # allowed: the next resume need not say so again
                saved = evolve(saved, structure=self.plan.structure)
                yield from self._save((Amend, self.services.amend, saved), saved)
            return saved
        # A pause whose deadline has passed unanswered begins anew.
        saved = evolve(saved, status=RunStatus.ACTIVE)
        behind = yield from self._revive(saved, updates, inputs, is_same=pause is None and not visit.renames)
        yield from visit.hand_on_updates()
        return (yield from self._run(behind))

    def _admit(self, state: State) -> Task[State]:
        """-> the State as it enters the graph; a State with a past is brought back to life durably."""
        check_given_id(state.run_id)
        is_new = state.step == 0 and state.graph is None
        before, written = state, Written()
        newest = None if is_new else (yield from self._newest_of(state))
        self._check_not_of_another(newest)
        if not is_new and state.progress is not None:
            before, state, written = yield from self._continued(state, newest)
        given = data_of(state)
        if self.plan.schema is not None:
            given = freeze_items(self._fitting(given, {}))
        started = self._stamp(with_data(state, self._completed_data(given)))
        started = self._accounted(evolve(started, checkpoint_node=""), before, written)
        if not self.plan.saves:
            return started
        if is_new:
            yield from self._check_new(state)
        else:
            if self.plan.loads_parts:  # what is within the step that did not complete was made of other data
                yield (Parts, self.services.drop_parts, (state.run_id, state.step + 1, True))
            yield from self._save((Amend, self.services.amend, started), started)
        return started

    def _check_not_of_another(self, newest: State | None) -> None:
        """Raise GraphMismatchError if a run of another graph, which could still go on there, would be lost."""
        if newest is None or newest.graph in (None, self.plan.graph) or newest.status is RunStatus.COMPLETED:
            return
        change = f"it is a run of graph {newest.graph!r} that is not complete, not of {self.plan.graph!r}"
        way_out = "Resume it with that graph, or execute the State under a run_id of its own (store.fork makes a copy)."
        raise GraphMismatchError(newest.run_id, (change,), way_out)

    def _completed_data(self, data: dict[str, Any]) -> dict[str, Any]:
        """-> the data, with the graph's defaults where they have no value."""
        defaults = self.plan.defaults
        return data if defaults.keys() <= data.keys() else lay_over(dict(defaults), data)

    def _continued(self, state: State, newest: State | None) -> Task[tuple[State, State, Written]]:
        """-> of a State with a past: what was saved, the State, each with all of its keys, and what is different.

        Values that are new to the run can be answers again; of one that was deleted when it completed, none is known.
        """
        progress = cast(Progress, state.progress)
        new = set() if newest is None else differing_items(newest, state).keys()
        answered = progress.answered - new
        left = evolved(progress.without_step(), answered=answered)
        # Where it is not what was saved last, all keys are new.
        is_newest = newest is not None and newest.step == state.step
        saved = evolve(newest if newest is not None and is_newest else with_data(state, {}), progress=left)
        whole, changes = yield from self._whole(saved, differing_items(saved, state))
        made = {key: value for key, value in data_of(whole).items() if key not in saved and key not in state}
        state = evolve(with_data(state, {**data_of(state), **made}), progress=whole.progress)
        return whole, state, Written(changes, saved.keys() - state.keys())

    def _newest_of(self, state: State) -> Task[State | None]:
        """-> the newest saved State of the run, if there is one."""
        if not self.plan.saves:
            return None
        try:
            saved: State = yield (Load, self.services.load, state.run_id)
        except CheckpointNotFoundError:
            return None
        return saved

    def _check_new(self, state: State) -> Task[None]:
        """Raise RunExistsError if the store holds another State of a run that is to begin."""
        try:
            saved = yield (Load, self.services.load, state.run_id)
        except CheckpointNotFoundError:
            return
        has_same_data = saved.keys() == state.keys() and not differing_items(saved, state)
        if not has_same_data or with_data(saved, {}) != with_data(state, {}):  # objects may refuse to be compared
            raise RunExistsError(state.run_id, self.plan.store)
        self.found = saved.step, saved.generation

    def _stamp(self, state: State) -> State:
        """-> the State as one that runs on this graph."""
        plan = self.plan
        if state.observer is None and not self.wanted.isdisjoint(STATE_EVENTS):
            state = evolve(state, observer=self.services.observer)
        progress = state.progress and evolved(state.progress, partial=None)
        fresh = {"status": RunStatus.ACTIVE, "error": None, "pause": None, "progress": progress}
        return evolve(state, graph=plan.graph, structure=plan.structure, **fresh)


def _open_to_answers(saved: State, updates: Mapping[str, Any]) -> State:
    """-> the State, in which the values that are given now can be answers."""
    progress = saved.progress
    if progress is None or progress.answered.isdisjoint(updates):
        return saved
    return evolve(saved, progress=evolved(progress, answered=progress.answered - updates.keys()))
