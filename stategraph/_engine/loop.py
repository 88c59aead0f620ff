"""The hot loop: step after step, every decision of a run and none of its I/O.

`execute` and `resume` are generators. They yield commands (run this node, save this State). A driver executes each
command and sends its result back, or throws its exception; the generator returns the final State. The pattern is known
as sans-I/O (https://sans-io.readthedocs.io). Here it lets one engine serve two drivers.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import isawaitable
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

from stategraph._engine.context import LOOK_AGAIN, RunContext, context_of
from stategraph._engine.endings import end_early, handle, no_way_on, too_many_nodes
from stategraph._engine.events import announce_completion, announce_entry, emit, show
from stategraph._engine.saving import drop_joined_parts, flush, heed_cancel, save, save_with_next
from stategraph._graph.compiled import CompiledNode
from stategraph._protocol.commands import Await, Delete, Save, Stopped, Task
from stategraph._values import clock
from stategraph._values.events import STEP_EVENTS, EventType
from stategraph._values.frozen import lay_over, plain_key
from stategraph._values.provenance import RunStatus
from stategraph.edges import NoWay, choose
from stategraph.nodes.function import FunctionNode, data_from
from stategraph.state import State, completed_by, data_of, evolve, told

if TYPE_CHECKING:
    from stategraph._values.progress import Pause

_MANY_KEYS = 500  # of a State: with fewer, comparing all keys is faster than tracking the changed ones


def run_from(run: RunContext, stage: CompiledNode | None) -> Task[State]:
    """Run from the node after a completed one (None: from the start), and handle whatever ends the run early."""
    try:
        steps = _steps(run, stage, run.state.progress.next_node if run.state.progress else "")
        if run.wanted:
            run.began_ns = clock.monotonic_ns()
            yield from emit(run, EventType.GRAPH_START, run.state)
            if hasattr(run.services.observer, "enter_node"):
                from stategraph._engine.placing import placed  # imported when used: few observers need it

                steps = placed(run, steps)
        pausing = yield from steps
        if pausing is None:
            yield from _complete(run)
        else:
            from stategraph._engine.pauses import pause_at  # imported when used

            yield from pause_at(run, *pausing)
    except GeneratorExit:  # the stream of the run was abandoned: that counts as a crash
        raise
    except BaseException as error:
        yield from end_early(run, error)
        raise
    yield from show(run, run.state)
    return run.state


def _steps(run: RunContext, stage: CompiledNode | None, name: str) -> Task[tuple[CompiledNode, Pause] | None]:  # noqa: PLR0912, PLR0915 - the one loop, best read in one piece
    """Execute steps until an exit point: follow an edge, run its target, save when a save is due.

    `name` is the first node, if it is already decided. If a node pauses the run, return it with its Pause.
    """
    plan, state = run.plan, run.state
    stages, interval, left = plan.stages, plan.interval, plan.max_iterations
    enter, keep, ownership = run.path.append, run.services.save, run.services.ownership
    watched = run.shows or not run.wanted.isdisjoint(STEP_EVENTS)
    tells_saves = EventType.CHECKPOINT_SAVE in run.wanted
    recent, keeps_recent = run.recent, plan.saves and interval != 1
    monotonic_ns, now_ns = clock.monotonic_ns, clock.now_ns
    asks, look_at = keeps_recent or plan.write_behind, monotonic() + LOOK_AGAIN
    data = data_of(state)
    jots = run.outer_step is None and interval == 1 and not plan.write_behind
    owners = ownership.owners if jots and ownership is not None else None
    jot = None if owners is None or ownership is None else owners.node_recorder(ownership)
    if stage is None:
        name, stage = name or plan.entry, stages[plan.entry]
    while name or not stage.is_exit:
        edge = None
        if not name:
            edge = stage.sure_edge or choose(stage.edges, state)
            if type(edge) is NoWay:
                raise (yield from no_way_on(run, stage, edge))
            name = edge.target
        enter(name)
        if jot is not None:
            jot(now_ns(), name.encode("utf-8", "replace"))
        if watched:
            yield from announce_entry(run, stage, edge, name, begins=left > 0)
        if not left:
            raise too_many_nodes(run, name)
        left -= 1
        stage, step, keys, following, began = stages[name], None, None, "", monotonic_ns()
        try:
            if stage.execution is None:
                result = yield (stage.kind, stage.function or _function(run, stage), state)
            else:
                step = stage.execution(run, stage, state)
                result = yield from step.result()
                data = data_of(step.state)  # a retry may have begun with copies
            if type(result) is dict:  # by far the most frequent case
                if len(data) > _MANY_KEYS:
                    result = result.copy()  # the node may keep the dict and change it
                    keys = tuple(map(plain_key, result))
                data = lay_over(data, result)
            else:
                if type(result) is not State and isawaitable(result):
                    result = yield (Await, result, name)
                if type(result) is State and result.pause is not None and result.run_id == state.run_id:
                    return stage, result.pause  # an unserializable pause is no failure of the node
                data = data_from(result, state if step is None else step.state)
        except Exception as error:
            keys, (following, data) = None, (yield from handle(run, stage, step, error, began))
        run.state = state = completed_by(name, state, data, monotonic_ns() - began, keys)
        if step is not None:
            run.state = state = step.completed(state, is_failed=bool(following))
        if following:
            from stategraph._values.progress import evolved  # imported when used: with handlers

            run.state = state = evolve(state, progress=evolved(state.progress, next_node=following))
        if watched:
            yield from announce_completion(run, following)
        if stage.is_exit and not following:  # saved together with the completion of the run
            return None
        # Saved before the edges are tried: a predicate that raises must not cost the node's work.
        if interval == 1 or (interval and state.step % interval == 0):
            began = monotonic_ns() if tells_saves else 0
            yield (Save, keep, state)
            run.saved = state
            if recent:
                recent.clear()
            if tells_saves:
                yield from emit(run, EventType.CHECKPOINT_SAVE, state, began)
            if run.has_joined_parts:
                yield from drop_joined_parts(run)
            if ownership is not None and ownership.is_cancelled:
                raise Stopped("it was cancelled")
        elif keeps_recent:
            recent.append(state)
        if asks and monotonic() >= look_at:
            look_at = yield from heed_cancel(run)
        if watched:
            yield from show(run, state)
        name = following
    return None


def _function(run: RunContext, stage: CompiledNode) -> Callable[[State], Any]:
    """Return the function of a node that takes a context, bound to the context of the current step."""
    context, function = context_of(run, stage.name, run.state), cast(FunctionNode, stage.node).function
    return lambda state: function(state, context)


def _complete(run: RunContext) -> Task[None]:
    """Complete the run: keep the final State or delete the run, as configured."""
    step, run.state = run.state, evolve(told(run.state), status=RunStatus.COMPLETED)
    state = run.state
    if run.plan.saves and run.plan.preserve:
        save_with_next(run, step)
        yield from save(run, state)
        if run.has_joined_parts:
            yield from drop_joined_parts(run)
            yield from flush(run, state)
    elif run.plan.saves and run.plan.forgets:
        yield (Delete, run.services.delete, state)
        yield from emit(run, EventType.CHECKPOINT_DELETE, state)
    yield from emit(run, EventType.GRAPH_COMPLETE, state, run.began_ns)
