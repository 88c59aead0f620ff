"""RunContext, the state of one call of execute or resume; the NodeContext of a step; and the events of a run."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from functools import partial
from inspect import CORO_CREATED, getcoroutinestate, isawaitable, iscoroutine
from threading import Lock
from time import monotonic
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar, cast

import attrs

from stategraph._engine.io import StoreSession
from stategraph._engine.journal import StepJournal
from stategraph._graph.compiled import CompiledGraph, CompiledNode
from stategraph._protocol import Await, Command, Gather, Notify, RunHere, RunNode, Show, Task
from stategraph._text.shown import describe_exception
from stategraph._util.callables import failures
from stategraph._values import clock
from stategraph._values.entries import Entry
from stategraph._values.events import EventType, Listener, notify, report
from stategraph._values.progress import Answer, Part
from stategraph._values.provenance import ErrorInfo, shortened_traceback
from stategraph._values.spending import Spending
from stategraph.edges import Edge, NoWay, describe_predicate, place_of
from stategraph.errors import ExecutionError, RunBusyError, RunLostError
from stategraph.nodes.base import NodeContext
from stategraph.state import State, data_of, first_graph, took_ns_of

PATH_LENGTH = 100  # nodes in the path of an error: the path stays short in a run of a million steps

NOTHING_GIVEN: Mapping[str, Any] = MappingProxyType({})

Keys: TypeAlias = Collection[str]


@attrs.define(eq=False)
class RunContext:
    """One call of execute or resume.

    Attributes:
        plan: The graph.
        session: The store session of the run, whose methods are the functions of commands.
        observer: Receives events.
        wanted: The types of events that the observer wants.
        state: The last completed State of the run.
        saved: The last State that the store has acknowledged.
        found: The State found in the store; it need not be saved again. Only its status may differ.
        shows: Whether the caller iterates over the run.
        patience: Seconds to wait for another owner of the run.
        takes_over: Whether to take the run from another owner.
        waits_since: The time at which the call began to wait for another owner, if it had to.
        answered: The stored answer that the call takes in; None for an answer of the call itself.
        while_busy: A task of the call, begun each time that another call is found at work on the run.
        accepts: Whether the input of a run that begins is saved before its first node.
        shown: Returns what events show of the value of a key; None for the value.
        signal: Stops the call; a `stategraph._drivers.limits.StopSignal`, or None. The engine only passes it to nodes.
        by: The name of the caller, if given.
        labels: The labels of the run, if this call begins it.
        is_job: Whether a worker makes the call. Then an exception that would end it, such as SystemExit, fails the run.
        allow_changed: Whether runs continue although the graph, or a nested one, has changed since they were saved.
        migrate: New names of nodes by their old ones.
        abandon_parts: Whether runs continue although the graph has no use for finished parts of the step under way.
        limits: What the outermost run may spend, by name.
        deadline_ns: The deadline of a run or a turn that this call begins; nanoseconds since 1970, 0 for none.
        deps: What the caller gives to the nodes; see `NodeContext.deps`.
        serves: The versions of the graph whose runs a sweep takes up; None for all.
        due_ns: The time before which no sweep begins it, likewise.
        place: The position of the run in the tree of events; part of each event.
        began_ns: When the call began, in clock.monotonic_ns, while an observer wants events.
        path: The last nodes entered.
        completed: The nodes completed in this call, while an observer wants events.
        nested_path: The path from the outermost graph to this one: names of nodes, each followed by a slash.
        outermost: The name of the outermost graph; empty if this graph is the outermost.
        outer_step: The StepExecution of the outer run, if the run is nested.
        renamed_nested: The new names of nodes of nested graphs, by the node that runs the graph.
        unsaved_parts: Finished parts of the current step that are saved only if the run ends early.
        redo: The parts of the step under way that are done again.
        repeat_effects: Whether graphs in the step under way may begin again although that repeats effects.
        has_joined_parts: Whether an unsaved State has joined saved parts.
        input_lock: Held by a part of the step that saves its input, or looks for the effects of the step.
        spending: What the outermost run has spent, with everything nested in it.
        effects: The effects of the steps under way that are known, by step: what is kept of each, by place and key.
        did: The keys of the effects that the current step did or may have done.
        failures: The failures of attempts, by the step before, the node and the part.
        is_in_part: Whether the run is nested in a branch or an item.
        is_over: Whether the attempt that ran it as a nested run has ended; threads of its nodes may go on.
        part: The part of the outer step that runs it; empty if the whole step does.
        chunks: The log of the chunks that are kept in the step under way, if the run is the outermost one; a
            `stategraph._engine.chunks.ChunkLog`.
        streams: Whether the caller of the outermost run iterates over it, and so gets the chunks of nodes.
        is_recomputing: Whether it runs a step again that is complete, for keys that are not saved.
    """

    plan: CompiledGraph
    session: StoreSession
    observer: Listener
    wanted: frozenset[EventType]
    shows: bool = False
    patience: float = 0.0
    takes_over: bool = False
    signal: Any = None
    by: str | None = None
    labels: Mapping[str, str] = NOTHING_GIVEN
    allow_changed: bool = False
    migrate: Mapping[str, str] = NOTHING_GIVEN
    abandon_parts: bool = False
    limits: Mapping[str, Any] = NOTHING_GIVEN
    deadline_ns: int = 0
    deps: Any = None
    serves: Collection[int] | None = None
    due_ns: int = attrs.field(default=0, init=False)
    waits_since: datetime | None = attrs.field(default=None, init=False)
    answered: Entry | None = attrs.field(default=None, init=False)
    while_busy: Callable[[RunBusyError], Task[None]] | None = attrs.field(default=None, init=False)
    accepts: bool = attrs.field(default=False, init=False)
    shown: Callable[[str, Any], Any] | None = attrs.field(default=None, init=False)
    state: State = attrs.field(init=False)
    saved: State | None = attrs.field(default=None, init=False)
    found: State | None = attrs.field(default=None, init=False)
    is_job: bool = attrs.field(default=False, init=False)
    place: Mapping[str, Any] = attrs.field(init=False)
    began_ns: int | None = attrs.field(default=None, init=False)
    path: deque[str] = attrs.field(factory=partial(deque, maxlen=PATH_LENGTH), init=False)
    completed: set[str] = attrs.field(factory=set, init=False)
    nested_path: str = attrs.field(default="", init=False)
    outermost: str = attrs.field(default="", init=False)
    outer_step: Any = attrs.field(default=None, init=False)
    renamed_nested: dict[str, dict[str, str]] = attrs.field(factory=dict, init=False)
    unsaved_parts: list[Part] = attrs.field(factory=list, init=False)
    redo: Sequence[str] = attrs.field(default=(), init=False)
    repeat_effects: bool = attrs.field(default=False, init=False)
    has_joined_parts: bool = attrs.field(default=False, init=False)
    input_lock: Lock = attrs.field(factory=Lock, init=False)
    spending: Spending = attrs.field(factory=Spending, init=False)
    effects: dict[int, dict[tuple[str, str], Entry]] = attrs.field(factory=dict, init=False)
    did: dict[str, None] = attrs.field(factory=dict, init=False)
    failures: dict[tuple[int, str, str], ErrorInfo] = attrs.field(factory=dict, init=False)
    is_in_part: bool = attrs.field(default=False, init=False)
    is_over: bool = attrs.field(default=False, init=False)
    part: str = attrs.field(default="", init=False)
    streams: bool = attrs.field(init=False)
    chunks: Any = attrs.field(default=None, init=False)
    is_recomputing: bool = attrs.field(default=False, init=False)

    @streams.default
    def _streams_to_caller(self) -> bool:
        return self.shows

    @place.default
    def _place_of_call(self) -> Mapping[str, Any]:
        return {"call_id": os.urandom(8).hex()} if self.wanted else NOTHING_GIVEN

    @property
    def outermost_run(self) -> RunContext:
        """The call of the outermost run; this one if it is not nested."""
        run = self
        while run.outer_step is not None:
            run = run.outer_step.run
        return run

    @property
    def emits(self) -> bool:
        """Whether anyone wants the chunks of nodes."""
        return self.streams or EventType.NODE_CHUNK in self.wanted

    def without_unsaved(self, value: Any) -> Any:
        """Return a value without values of keys that are not saved."""
        persist = self.plan.persist
        if persist is None:
            return value
        from stategraph._progress import unsaved_as, without_values  # imported when used: few graphs save some keys

        return without_values(value, data_of(self.state), unsaved_as(persist))

    def under_way(self) -> tuple[str, datetime] | tuple[()]:
        """Return the current node and the time at which it began; an empty tuple before the first node."""
        return (self.path[-1], self.state.timestamp) if self.path else ()


def fitting(run: RunContext, data: Mapping[str, Any], beside: Mapping[str, Any], node: str = "") -> Mapping[str, Any]:
    """Validate data from outside the run against the schema of the graph and return it. Raises SchemaError."""
    schema = run.plan.schema
    return data if schema is None else schema.checked(node, data, beside)


def with_origins(run: RunContext, state: State, before: State, put: Keys = (), gone: Keys = ()) -> State:
    """Return the State with updated origins of its keys, after a change that no node made.

    Args:
        run: The run.
        state: The State.
        before: The State before the change.
        put: The keys that were set.
        gone: The keys that were removed.
    """
    if run.plan.persist is None and state.progress is None:
        return state
    from stategraph._progress import Written, accounted

    return accounted(state, before, Written(frozenset(put), frozenset(gone)), run.plan.persist, run.plan.defaults)


# --------------------------------------------------------------------------- the NodeContext of a step


def context_of(run: RunContext, name: str, state: State, attempt: int = 1, part: str = "") -> NodeContext:
    """Return the NodeContext of a node's step or, with `part`, of one part of that step."""
    step = (state.run_id, run.plan.graph, name, state.step + 1, attempt, state.generation, part)
    at, is_stopping = kept_at(name, state), StopCheck(run.session, run.signal)
    journal = StepJournal(run, state, name, at[0], f"{at[1]}/{part}" if part else at[1], bool(part) or run.is_in_part)
    return NodeContext(
        *(*step, answer_of(state)),
        last_error=_last_error(run, state.step, name, part) if run.failures else None,
        deps=run.deps,
        kept_at=at,
        outermost=run.outermost or first_graph(state),
        is_stopping=is_stopping,
        journal=journal,
    )


def _last_error(run: RunContext, step: int, name: str, part: str) -> ErrorInfo | None:
    return run.failures.get((step, name, part)) or run.failures.get((step, name, ""))


@attrs.define(eq=False)
class StopCheck:
    """Answer a node that checks whether its run should stop.

    A node may check often, so the store is queried for requests of other processes only once in a while. A process that
    executes a part of the step has no access to this information.
    """

    _session: StoreSession
    _signal: Any

    def __call__(self) -> bool:
        session, owned = self._session, self._session.ownership
        if (owned is not None and (owned.is_cancelled or owned.is_lost)) or (self._signal and self._signal.is_due()):
            return True
        try:
            return monotonic() >= session.look_at and session.check_cancelled()
        except RunLostError:  # the next save or check of the engine raises it: a node could try again
            return True

    def __reduce__(self) -> tuple[Any, ...]:
        return partial, (bool,)


def answer_of(state: State) -> Answer | None:
    """Return the answer after which the step after a State continues; None if it continues after none."""
    progress = state.progress
    if progress is None or progress.given is None or progress.woken is None:
        return None
    (by, at_ns, how), key = progress.given, progress.woken.key_of_data
    return Answer(None if key is None else state.get(key), by, clock.to_datetime(at_ns), how)


def kept_at(name: str, state: State) -> tuple[int, str]:
    """Return the step and the name under which the next step keeps its parts and nested run if it is of this node."""
    step = state.step + 1
    return (step, name) if state.progress is None else state.progress.kept_at(name, step)


# --------------------------------------------------------------------------- events, and States that are shown


def emit_at(run: RunContext, type: EventType, state: State, ahead: int = 0, /, **about: Any) -> Task[None]:
    """Report an event at the step of a State, or that many steps ahead."""
    if type in run.wanted:
        about = {"run_id": state.run_id, "step": state.step + ahead, **_shown(run, about), **run.place}
        yield (Notify, partial(notify, run.observer, type, run.plan.graph), about)


_TEXTS = ("error", "reason")
"""The data of events that may quote values of the State."""


def _shown(run: RunContext, about: dict[str, Any]) -> dict[str, Any]:
    """Return the data of an event without values that are not saved, or that the store shows as others."""
    found = {name: run.without_unsaved(about[name]) for name in _TEXTS if name in about}
    shown = run.shown
    if shown is not None:
        from stategraph._progress import value_as  # imported when used: few stores have it

        named = {name: about[name] for name in ("chunk",) if name in about}
        found = {name: value_as(value, data_of(run.state), shown) for name, value in {**named, **found}.items()}
    return {**about, **found}


def emit(run: RunContext, type: EventType, state: State, began_ns: int | None = None, **more: object) -> Task[None]:
    """Report an event of the run with its last State; an event that ends something also has its duration."""
    if type in run.wanted:
        about: dict[str, Any] = {"node": state.checkpoint_node, "status": state.status.value}
        if began_ns is not None:
            about["took"] = seconds_since(began_ns)
        yield from emit_at(run, type, state, **{**about, **more})


def seconds_since(began_ns: int) -> float:
    """Return the seconds since a time of clock.monotonic_ns."""
    return (clock.monotonic_ns() - began_ns) / 1e9


def show(run: RunContext, state: State) -> Task[None]:
    """Show a State to the caller that iterates over the run. A nested run shows nothing: it is one step."""
    if run.shows:
        yield (Show, None, state)


def announce_entry(
    run: RunContext, stage: CompiledNode, way: Edge | NoWay | None, name: str, *, begins: bool
) -> Task[None]:
    """Report the edges that were tried after a node, the edge that was taken, and the start of the next node.

    Args:
        run: The run.
        stage: The node.
        way: The edge that was taken; None if the next node handles a failure, or continues after a pause.
        name: The next node.
        begins: Whether the next node starts: there may be no matching edge, or the run may have reached its node limit.
    """
    state = run.state
    edges: tuple[Edge, ...] = ()
    if way is not None:
        edges = stage.edges[: way.tried if isinstance(way, NoWay) else place_of(way, stage.edges) + 1]
    elif stage.policies.on_error == name and not (state.progress and state.progress.woken):
        handled = {"source": stage.name, "target": name, "edge": "on_error", "predicate": "on_error"}
        yield from emit_at(run, EventType.EDGE_TRANSITION, state, **handled)
    for edge in edges:
        about = {"source": edge.source, "target": edge.target, "edge": edge.name}
        about["predicate"] = describe_predicate(edge.predicate)
        yield from emit_at(run, EventType.EDGE_EVALUATE, state, **about, result=edge is way)
        if edge is way:
            yield from emit_at(run, EventType.EDGE_TRANSITION, state, **about)
    if begins:
        if name in run.completed:
            yield from emit_at(run, EventType.CYCLE_DETECTED, state, 1, node=name)
        yield from emit_at(run, EventType.NODE_START, state, 1, node=name)


def announce_completion(run: RunContext, handler: str) -> Task[None]:
    """Report that a node completed, or that it failed and another node handles the failure."""
    state, took = run.state, took_ns_of(run.state)
    run.completed.add(state.checkpoint_node)
    attempts, outcome = state.facts.attempts if state.facts else 1, "failed" if handler else "completed"
    about: dict[str, Any] = {"attempts": attempts, "outcome": outcome, "took": None if took is None else took / 1e9}
    yield from emit(run, EventType.NODE_COMPLETE, state, **about)


def announce_failure(run: RunContext, name: str, error: BaseException, attempt: int, began_ns: int) -> Task[None]:
    """Report that an attempt of a node failed."""
    if EventType.NODE_ERROR in run.wanted:
        about = {"attempt": attempt, **about_error(error), "took": seconds_since(began_ns)}
        yield from emit_at(run, EventType.NODE_ERROR, run.state, 1, node=name, **about)


def announce_error(run: RunContext, state: State, error: BaseException) -> Task[None]:
    """Report that the run ends early, and at which node: the failed node, otherwise the last one entered."""
    if EventType.GRAPH_ERROR in run.wanted:
        node, about = run.path[-1] if run.path else state.checkpoint_node, about_error(error)
        if isinstance(error, ExecutionError) and state.error is not None:
            node, info = error.node_name, state.error
            about |= {"error_type": info.type, "traceback": info.traceback}
        about["attempts"] = state.facts.attempts if state.facts else 1
        yield from emit(run, EventType.GRAPH_ERROR, state, run.began_ns, **{**about, "node": node})


def described(run: RunContext, error: BaseException) -> str:
    """Describe an exception, without values of keys that are not saved: the text is saved."""
    return str(run.without_unsaved(describe_exception(error)))


def about_error(error: BaseException) -> dict[str, Any]:
    """Return the event data that describe an exception."""
    about = {"error": describe_exception(error), "error_type": type(error).__name__}
    return {**about, "traceback": shortened_traceback(error)}


_Answer = TypeVar("_Answer")
_Inside: TypeAlias = Callable[[], AbstractContextManager[None]]


# --------------------------------------------------------------------------- observers around nodes


def observed(run: RunContext, task: Task[_Answer]) -> Task[_Answer]:
    """Run a task whose nodes the observer wraps in a context manager."""
    inside = partial(_inside, run.observer, run.place["call_id"], run.state.run_id)
    go_on, value = task.send, None
    while True:
        try:
            command = go_on(value)
        except StopIteration as end:
            return cast(_Answer, end.value)
        try:
            value = yield _observed(run, command, inside)
            go_on = task.send
        except GeneratorExit:
            task.close()
            raise
        except BaseException as error:
            if iscoroutine(command[1]) and getcoroutinestate(command[1]) == CORO_CREATED:
                command[1].close()  # the driver has closed the coroutine that was to await it
            go_on, value = task.throw, error


def _observed(run: RunContext, command: Command, inside: _Inside) -> Command:
    kind, function, argument = command
    if kind is Gather:
        tasks, *how = argument
        return kind, function, ((observed(run, task) for task in tasks), *how)
    if kind is Await:
        return kind, _awaited(inside, cast(Awaitable[Any], function)), argument
    if kind is RunNode or kind is RunHere:
        called = _call if kind is RunNode else _started
        return kind, partial(called, inside, cast(Callable[[Any], Any], function)), argument
    return command


def _call(inside: _Inside, function: Callable[[Any], Any], argument: Any) -> Any:
    with inside():
        return function(argument)


def _started(inside: _Inside, function: Callable[[Any], Any], argument: Any) -> Any:
    result = function(argument)
    return _awaited(inside, result) if isawaitable(result) else result


async def _awaited(inside: _Inside, awaitable: Awaitable[Any]) -> Any:
    with inside():
        return await awaitable


@contextmanager
def _inside(observer: Any, call_id: str, run_id: str) -> Iterator[None]:
    """Enter the observer's context manager around a node. An exception it raises is logged once."""
    leave: Callable[[], object] = bool
    try:
        leave = observer.enter_node(call_id, run_id)
    except failures() as error:
        report(observer, error)
    try:
        yield
    finally:
        try:
            leave()
        except failures() as error:
            report(observer, error)
