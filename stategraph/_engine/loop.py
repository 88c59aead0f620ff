"""Every decision of a run, and none of its I/O.

`Engine.execute` and `Engine.resume` are generators. They yield commands (run this node, save this State); a driver
carries each one out and sends back what came of it, or throws what was raised; what the generator returns is the final
State. The pattern is known as sans-I/O (https://sans-io.readthedocs.io). Here it lets one engine serve two drivers.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import isawaitable
from typing import Any, cast

import attrs

from stategraph._engine.context import error_data
from stategraph._engine.start import Start
from stategraph._engine.step import Visit
from stategraph._graph.compiled import Stage
from stategraph._protocol.commands import Await, Delete, Parts, Save, Task
from stategraph._values.events import STEP_EVENTS, EventType
from stategraph._values.frozen import lay_over
from stategraph._values.provenance import Pause, RunStatus, evolved
from stategraph.edges import NoWay, choose
from stategraph.nodes.context import NodeContext
from stategraph.nodes.function import FunctionNode, data_from
from stategraph.state import State, completed_by, data_of, evolve


@attrs.define(eq=False)
class Engine(Start):
    """One call of execute or resume. How a run begins is in `Start`, how it ends before its time in `Run`."""

    def _run(self, stage: Stage | None) -> Task[State]:
        """Run on from a stage that is completed (None: from the start), and see to what ends the run early."""
        try:
            yield from self._emit(EventType.GRAPH_START, self.state)
            yield from self._steps(stage, self.state.progress.next_node if self.state.progress else "")
            if self.state.status is not RunStatus.PAUSED:
                yield from self._complete()
        except GeneratorExit:  # the driver is gone, and this may be a finaliser: another one ends the run
            self.hand_over(self._end_dropped())
            raise
        except BaseException as error:
            yield from self._end_early(error)
            raise
        yield from self.show(self.state)
        return self.state

    def _steps(self, stage: Stage | None, following: str) -> Task[None]:  # noqa: PLR0912, PLR0915 - the one loop, best read in one piece
        """Step after step until an exit point or a pause: take an edge, run the node behind it, save what is due.

        `following` is the first node, where that is decided already.
        """
        plan, state = self.plan, self.state
        stages, interval, enter = plan.stages, plan.interval, self.path.append
        watched = self.shows or not self.wanted.isdisjoint(STEP_EVENTS)
        tells_saves = EventType.CHECKPOINT_SAVE in self.wanted
        save = self.services.save
        left = plan.max_iterations
        pause: Pause | None = None
        recent, keeps_recent = self.recent, plan.saves and interval != 1
        data, name = data_of(state), following
        if stage is None:
            name, stage = following or plan.entry, stages[plan.entry]
        while name or not stage.is_exit:
            if not name:
                edge = stage.sure_edge or choose(stage.edges, state)
                if watched:
                    yield from self._announce_edges(stage, edge)
                if type(edge) is NoWay:
                    raise self._stuck(stage, edge)
                name = edge.target
            elif watched:
                yield from self._announce_handler(stage, name)
            enter(name)
            if not left:
                raise self._endless(name)
            left -= 1
            if watched:
                yield from self._announce(name)
            stage = stages[name]
            visit = None
            following = ""
            try:
                if stage.is_plain:
                    result = yield (stage.kind, stage.function or self._function(stage), state)
                else:
                    visit = Visit(self, stage, state)
                    result = yield from visit.result()
                if type(result) is dict:  # the most frequent case by far
                    data = lay_over(data, result)
                else:
                    if type(result) is not State and isawaitable(result):
                        result = yield (Await, result, name)
                    if type(result) is State and result.pause is not None and result.run_id == state.run_id:
                        pause = result.pause
                        break
                    data = data_from(result, state)
            except Exception as error:
                visit = Visit(self, stage, state) if visit is None else visit
                yield from visit.tell_failure(error)
                failure = self._failed(visit, error)
                if stage.policies.on_error is None:
                    raise failure from error
                following = stage.policies.on_error
                data = lay_over(data, self._fitting(error_data(failure), state, name))
            self.state = state = completed_by(name, state, data)
            if visit is not None:
                self.state = state = self._after(visit, state, following)
            if watched:
                self.completed.add(name)
                yield from self._emit(EventType.NODE_COMPLETE, state)
            # Saved before the edges are tried: a predicate that raises must not cost the node's work.
            if interval == 1 or (interval and state.step % interval == 0):
                yield (Save, save, state)
                self.saved = state
                if recent:
                    recent.clear()
                if tells_saves:
                    yield from self._emit(EventType.CHECKPOINT_SAVE, state)
                if self._joined:
                    yield from self._drop_parts()
            elif keeps_recent:
                recent.append(state)
            if watched and (following or not stage.is_exit):
                yield from self.show(state)
            name = following
        if pause is not None:  # out here: what cannot be saved is no failure of the node
            yield from self._pause(stage, pause)

    def _after(self, visit: Visit, state: State, following: str) -> State:
        """-> the State after a visit, with what the run has to know of it."""
        self.unsaved_parts.clear()
        self._joined = self._joined or visit.stage.node.has_parts
        progress = visit.progress_after(state, is_failed=bool(following))
        return evolve(state, progress=evolved(progress, next_node=following) if following else progress)

    def _drop_parts(self) -> Task[None]:
        """Forget parts that a saved State has joined."""
        self._joined = False
        if self.plan.loads_parts:
            yield (Parts, self.services.drop_parts, (self.state.run_id, self.state.step, False))

    def _pause(self, stage: Stage, pause: Pause) -> Task[None]:
        """Save the run as one that waits."""
        if not self.plan.saves:
            why = "checkpoint.interval is 0 or, within a graph, the store keeps no parts"
            raise self._failure(stage.name, f"cannot pause: nothing is saved ({why})")
        schema, key = self.plan.schema, pause.response_param
        if schema is not None and key is not None and key not in schema.fields:
            why = f"the answer is to come under {key!r}, which is no field of {schema.name}"
            raise self._failure(stage.name, f"cannot pause: {why}")
        pause = attrs.evolve(pause, node=stage.name)
        self.state = state = evolve(self.state, status=RunStatus.PAUSED, pause=pause)
        about = {"pause_node": pause.node, "reason": pause.reason, "response_param": pause.response_param}
        yield from self._save((Save, self.services.save, state), state)
        yield from self._flush(state)
        yield from self._emit(EventType.GRAPH_PAUSE, state, **about)

    def _function(self, stage: Stage) -> Callable[[State], Any]:
        """-> the function of a node that wants a context, with the context of the step that is being made."""
        state, function = self.state, cast(FunctionNode, stage.node).function
        name, progress = stage.name, state.progress
        kept = name if progress is None else progress.kept_name(name)
        step = (state.run_id, self.plan.graph, name, state.step + 1, 1, state.generation)
        context = NodeContext(*step, kept_name=kept, outermost=self.outermost)
        return lambda state: function(state, context)

    def _complete(self) -> Task[None]:
        """The exit point is reached: keep the final State or forget the run, as configured."""
        self.state = state = evolve(self.state, status=RunStatus.COMPLETED)
        if self.plan.saves and self.plan.preserve:
            yield from self._save((Save, self.services.save, state), state)
            if self._joined:
                yield from self._drop_parts()
            yield from self._flush(state)
        elif self.plan.saves and self.plan.forgets:
            yield (Delete, self.services.delete, state)
            yield from self._emit(EventType.CHECKPOINT_DELETE, state)
        yield from self._emit(EventType.GRAPH_COMPLETE, state)
