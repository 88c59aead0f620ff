"""Calls that run or resume a graph: their options, their contexts and their tasks."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast

from stategraph._drivers.limits import StopSignal
from stategraph._engine.context import RunContext
from stategraph._engine.io import StoreSession
from stategraph._engine.loop import execute
from stategraph._graph.compiled import CompiledGraph
from stategraph._protocol import Task
from stategraph._text.shown import meant
from stategraph._util.validators import (
    LIMITS,
    LONGEST_WAIT,
    are_labels,
    are_limits,
    is_author,
    is_count,
    is_duration,
    maps_texts,
)
from stategraph._values import clock
from stategraph._values.events import EventType, Listener, NoopObserver, wanted_events
from stategraph._values.progress import Pause, deadline_of
from stategraph._values.provenance import LABELS, NO_LABELS, RunStatus, checked_labels
from stategraph.config import GraphConfig
from stategraph.errors import ConfigError
from stategraph.state import State
from stategraph.stores.base import CheckpointStore, RetentionPolicy

if TYPE_CHECKING:
    from stategraph.stores._save_queue import SaveQueue


class GraphOptions(TypedDict, total=False):
    """Options of a graph; see `StateGraph`."""

    observer: Listener | str | None
    store: CheckpointStore | str | os.PathLike[str] | None
    preserve: bool | None


class Call(TypedDict, total=False):
    """Options of every call.

    Attributes:
        wait: Seconds to wait for the run while another call is at work on it; None or 0 raises at once.
        take_over: Take the run from another call that is at work on it, for example one that hangs: that call can no
            longer save.
        cancel: Stops the run before the next node once it is set.
        timeout: Seconds after which the run stops before the next node; an async node is cancelled.
        by: The name of the caller, for the history: the author of the input, the answer or the updates.
        progress: Show the progress of the run on stderr or in the notebook.
        observer: Receives the events of this call too, after the observer of the graph; or the name of one.
        deps: What the nodes of this call need, such as a client or a session: `NodeContext.deps`. It is not saved.
        limits: What the run may spend, by name, as in ``{"usd": 5}``; see the page "Budgets".
    """

    wait: float | None
    take_over: bool
    cancel: threading.Event | None
    timeout: float | None
    by: str | None
    progress: bool
    observer: Listener | str | None
    deps: Any
    limits: Mapping[str, float] | None


class RunCall(Call, total=False):
    """Options of a call that may begin a run.

    Attributes:
        labels: The labels of the run, for `CheckpointStore.runs`.
        deadline: When the run or the turn that the call begins must be complete: an aware datetime, or seconds from
            now. Once it has passed, the run has failed with a TimeoutError, whichever call works on it then.
    """

    labels: Mapping[str, str] | None
    deadline: datetime | float | None


class ExecuteCall(RunCall, total=False):
    """Options of a call that executes a State.

    Attributes:
        restart: Begin at the entry point even if the run of the State is not complete.
    """

    restart: bool


class ChangedCall(Call, total=False):
    """Options of a call that continues a run whose graph may have changed.

    Attributes:
        allow_changed: Continue even if nodes or edges of the graph have changed since.
        migrate: New names of nodes that were renamed since, by their old ones. For a node of a nested graph, prefix
            both names with the name of the node that runs the graph and a slash.
        abandon_parts: Continue even if parts of the step under way are finished that the changed graph has no use for.
    """

    allow_changed: bool
    migrate: Mapping[str, str] | None
    abandon_parts: bool


class RecoverCall(TypedDict, total=False):
    """Options of a call that recovers runs; see `StateGraph.recover`."""

    limit: int | None
    max_recoveries: int
    allow_changed: bool
    migrate: Mapping[str, str] | None
    abandon_parts: bool
    cancel: threading.Event | None
    observer: Listener | str | None
    deps: Any
    limits: Mapping[str, float] | None
    serves: Collection[int] | None


class FollowCall(TypedDict, total=False):
    """Options of a call that follows a run; see `StateGraph.follow`."""

    after: str | None
    chunks: bool
    wait: float | None
    timeout: float | None


class AnswerCall(TypedDict, total=False):
    """Options of a call that stores an answer.

    Attributes:
        pause: The pause to answer, or its id; required if the run waits at several.
        by: The author, for the history.
        key: An id of the answer. An answer with the same key again is the same answer.
        allow_changed: As for `StateGraph.resume`.
        migrate: As for `StateGraph.resume`.
    """

    pause: Pause | str | None
    by: str | None
    key: str | None
    allow_changed: bool
    migrate: Mapping[str, str] | None


class ResumeCall(ChangedCall, total=False):
    """Options of a call that resumes a run.

    Attributes:
        pause: The pause to answer, or its id. If the run does not wait at it, nothing changes.
        redo: Items and branches of the step under way that are done again, as in "map/3".
        repeat_effects: Let graphs of the step under way begin again although that repeats their effects.
    """

    pause: Pause | str | None
    redo: list[str] | tuple[str, ...]
    repeat_effects: bool


class ReplayCall(TypedDict, total=False):
    """Options of a call that runs steps again; see `StateGraph.replay`."""

    repeat_effects: bool
    observer: Listener | str | None
    deps: Any


class TurnCall(RunCall, ChangedCall, total=False):
    """Options of a turn of a conversation.

    Attributes:
        key: The key of the turn, which makes it the same turn however often it is given.
        busy: What to do if another call is at work on the run.
        unfinished: Whether to finish or to discard an interrupted previous turn.
    """

    key: str | None
    busy: Literal["reject", "enqueue", "interrupt", "rollback"]
    unfinished: Literal["finish", "discard"]


_GATHER_CHUNKS = 0.05  # seconds that a chunk waits for others; a killed process may lose those

_FLAG = lambda flag: isinstance(flag, bool), "True or False"
_ALLOWED: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "wait": (lambda wait: wait is None or is_duration(wait), "a non-negative number of seconds"),
    "take_over": _FLAG,
    "progress": _FLAG,
    "restart": _FLAG,
    "allow_changed": _FLAG,
    "abandon_parts": _FLAG,
    "repeat_effects": _FLAG,
    "chunks": _FLAG,
    "redo": (
        lambda names: isinstance(names, list | tuple) and all(isinstance(name, str) for name in names),
        'a list of names of items and branches, as in ["map/3"]',
    ),
    "by": (is_author, "a str that says who, without lone surrogates"),
    "labels": (lambda labels: labels is None or are_labels(labels), LABELS),
    "migrate": (
        lambda names: names is None or (maps_texts(names) and all(names.values())),
        "a mapping of old names of nodes to new ones",
    ),
    "limits": (lambda limits: limits is None or are_limits(limits), LIMITS),
    "limit": (
        lambda limit: limit is None or is_count(limit, at_least=1),
        "a positive integer, the most runs to continue; or None for all",
    ),
    "max_recoveries": (
        lambda most: is_count(most, at_least=1),
        "a positive integer: the most owners that a step may lose",
    ),
    "serves": (
        lambda versions: (
            versions is None
            or (
                isinstance(versions, list | tuple | set | frozenset)
                and all(is_count(each, at_least=1) for each in versions)
            )
        ),
        "a list of versions of the graph, positive integers",
    ),
    "key": (lambda key: key is None or (is_author(key) and bool(key)), "a str that is not empty, or None"),
    "busy": (
        ("reject", "enqueue", "interrupt", "rollback").__contains__,
        '"reject", "enqueue", "interrupt" or "rollback"',
    ),
    "unfinished": (("finish", "discard").__contains__, '"finish" or "discard"'),
}
"""Checks of options, and the allowed values. StopSignal and the engine check the others."""


def checked_options(how: Call, kind: type = Call) -> tuple[Any, ...]:
    """Return the options of a call as the last arguments of RunContext, from `patience` on.

    Raises:
        TypeError: the call does not take such an option.
        ConfigError: an option is invalid.
    """
    if not how:  # most calls
        return ()
    known = tuple(kind.__annotations__)
    options = cast(dict[str, Any], how)
    for name, value in options.items():
        if name not in known:
            way_out = meant(name, known) or f"there are {', '.join(known)}; data goes into a mapping: {{{name!r}: ...}}"
            raise TypeError(f"{name!r} is not an argument of this call; {way_out}")
        is_allowed, allowed = _ALLOWED.get(name, (None, ""))
        if is_allowed is not None and not is_allowed(value):
            raise ConfigError(name, value, allowed)
    get = options.get
    owning = get("wait") or 0.0, get("take_over", False)
    origin = get("by"), checked_labels(get("labels") or NO_LABELS)
    changed = get("allow_changed", False), get("migrate") or {}, get("abandon_parts", False), get("limits") or {}
    return *owning, signal_of(how), *origin, *changed, time_ns("deadline", get("deadline")), get("deps"), get("serves")


def time_ns(name: str, given: datetime | float | None) -> int:
    """Return an aware datetime, or seconds from now, in nanoseconds since 1970; 0 for None. Raises ConfigError."""
    if given is None:
        return 0
    try:
        at = deadline_of(clock.to_datetime(clock.now_ns()), given)
        return max(clock.to_ns(cast(datetime, at)), 1)
    except (TypeError, ValueError):
        allowed = f"an aware datetime, or a number of seconds from now, up to {LONGEST_WAIT:,}"
        raise ConfigError(name, given, allowed) from None


def signal_of(how: Call) -> StopSignal | None:
    """Return the signal that may stop a call, or None.

    Raises:
        ConfigError: an option is invalid.
    """
    cancel, timeout = how.get("cancel"), how.get("timeout")
    return None if cancel is None and timeout is None else StopSignal.of(cancel, timeout)


def new_run(
    plan: CompiledGraph, config: GraphConfig, store: CheckpointStore, observer: Listener, *, shows: bool, options: Any
) -> RunContext:
    """Return the context of a call.

    Args:
        plan: The compiled graph.
        config: Its configuration.
        store: Its store.
        observer: Receives the events of the run.
        shows: Whether the caller iterates over the States of the run.
        options: The options of the call, as the last arguments of RunContext.
    """
    checkpoint = config.checkpoint
    queue: SaveQueue | None = None
    if plan.write_behind:
        from stategraph.stores._save_queue import SaveQueue  # imported when used: for durability "async"

        queue = SaveQueue(store)
    policy = RetentionPolicy(checkpoint.retention, checkpoint.window, checkpoint.ttl)
    session = StoreSession(store, policy, plan.persist, queue)
    session.queue_of_chunks = partial(_queue_of_chunks, store)
    wanted = frozenset[EventType]() if type(observer) is NoopObserver else wanted_events(observer)
    run = RunContext(plan, session, observer, wanted, shows, *options)
    run.accepts, run.shown = checkpoint.accept, store.shown
    run.limits = {**checkpoint.limits, **run.limits}
    return run


def _queue_of_chunks(store: CheckpointStore) -> SaveQueue:
    from stategraph.stores._save_queue import SaveQueue

    return SaveQueue(store, _GATHER_CHUNKS)


def check_blocking(run: RunContext) -> None:
    """Raise AsyncNodeError if the graph has async nodes and an event loop is running in this thread."""
    plan, node = run.plan, run.plan.async_node
    if plan.nested_run is not None:  # nested graphs may have changed after this graph was compiled
        node = next((name for name, stage in plan.stages.items() if stage.node.is_async), None)
    if node is not None:
        from stategraph._drivers.sync import check_no_loop  # imported when used: with async nodes

        check_no_loop(node, shows=run.shows)


# --------------------------------------------------------------------------- tasks, given the run and the options


def execute_task(run: RunContext, how: ExecuteCall, state: State) -> Task[State]:
    """Return the task of a call that executes a State."""
    return execute(run, state, restart=how.get("restart", False))


def resume_task(run: RunContext, how: ResumeCall, run_id: str, updates: Mapping[str, Any] | None) -> Task[State]:
    """Return the task of a call that resumes a run."""
    from stategraph._engine.resume import resume  # imported when used: most processes begin runs

    run.repeat_effects = how.get("repeat_effects", False)
    return resume(run, run_id, updates, how.get("pause"), tuple(how.get("redo", ())))


def run_task(run: RunContext, _: RunCall, state: State) -> Task[State]:
    """Return the task of a call that runs a State once."""
    from stategraph._engine.calling import run_once  # imported when used

    return run_once(run, state)


def turn_task(run: RunContext, how: TurnCall, run_id: str, given: Mapping[str, Any]) -> Task[State]:
    """Return the task of a turn of a conversation."""
    from stategraph._engine.turns import Turn, execute_turn  # imported when used

    turn = Turn(run_id, given, how.get("key"), how.get("busy", "reject"), how.get("unfinished") == "discard")
    return execute_turn(run, turn, waits=how.get("wait") is not None)


def send_task(run: RunContext, _: Call, run_id: str, updates: Mapping[str, Any], key: str | None) -> Task[None]:
    """Return the task of a call that sends a message."""
    from stategraph._engine.calling import send  # imported when used, as below

    return send(run, run_id, updates, key)


def answer_task(run: RunContext, how: AnswerCall, run_id: str, value: Any) -> Task[None]:
    """Return the task of a call that stores an answer."""
    from stategraph._engine.calling import answer

    return answer(run, run_id, value, how.get("pause"), how.get("key"))


def cancel_task(run: RunContext, how: Call, run_id: str) -> Task[RunStatus | None]:
    """Return the task of a call that cancels a run."""
    from stategraph._engine.calling import cancel

    return cancel(run, run_id, how.get("wait"))
