"""StateGraph: build a graph, validate it, execute and resume runs on it."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from stategraph._drivers.options import (
    Call,
    ChangedCall,
    ExecuteCall,
    ResumeCall,
    RunCall,
    TurnCall,
    asked_of,
    executed,
    resumed,
    signal_of,
    turned,
)
from stategraph._drivers.sync import drive
from stategraph._engine.context import RunContext
from stategraph._graph.builder import GraphBuilder
from stategraph._graph.compiled import CompiledGraph
from stategraph._plan import blocks, new_run, plan_of, short_config
from stategraph._protocol import Task
from stategraph._util.validators import naming_arguments
from stategraph._values.events import Listener
from stategraph.config import GraphConfig
from stategraph.observers import check_observer, get_observer, with_progress
from stategraph.state import State
from stategraph.stores.base import CheckpointStore
from stategraph.stores.registry import checked_store, get_checkpoint_store, is_memory_store

if TYPE_CHECKING:
    import threading

    from stategraph._capabilities import Batch
    from stategraph._drivers.streams import AsyncStream, Stream
    from stategraph._engine.calling import Recovered
    from stategraph.nodes.subgraph import GraphNode, Keys
    from stategraph.picture import Picture


class StateGraph(GraphBuilder):
    """A workflow: named steps, and conditional edges between them.

    Build it with `add_node`, `add_edge`, `set_entry_point` and `set_exit_point`; then `execute` a State on it, or
    `resume` a run that did not finish. Any number of threads and tasks may run one graph at the same time.

    Args:
        config: Its name, and what is saved when and where; or only its name: with a store, each step is saved then.
        observer: Hears of events, in place of the one that the config names: an observer, or the name of one.
        store: Keeps the States, in place of the one that the config names: a store, the file of a sqlite store, the
            folder of a disk store (a new one ends in "/"), or a URL of a server, as in
            ``StateGraph("orders", store="runs.db")``.
        preserve: Whether a completed run stays in the store, as conversations need it, in place of the config's.
        schema: A class or a TypedDict. Its fields are the keys that States may have; what comes into the graph,
            and what nodes return, is checked and made to fit their types before it is saved. A node whose first
            parameter is annotated with the class is given an object of it. See docs/typed-states.md.

    Raises:
        ConfigError: config is not a GraphConfig, schema is no such class, or the store does not take its options.
        UnknownNameError: no store or observer has the name in the config.
    """

    @naming_arguments("a GraphConfig takes all other settings")
    def __init__(
        self,
        config: GraphConfig | str,
        *,
        observer: Listener | str | None = None,
        store: CheckpointStore | str | os.PathLike[str] | None = None,
        preserve: bool | None = None,
        schema: type | None = None,
    ) -> None:
        is_short = isinstance(observer, str) or isinstance(store, str | os.PathLike) or preserve is not None
        if is_short or not isinstance(config, GraphConfig):
            config, store, observer = short_config(config, store, observer, preserve)
        if store is not None and not is_memory_store(store):
            config = config.for_store_object()
        checkpoint = config.checkpoint
        super().__init__(config.name, schema)
        self.config = config
        self.observer = get_observer(config.observer) if observer is None else check_observer(observer)
        options = checkpoint.store_options() if store is None else {}
        self.store = get_checkpoint_store(checkpoint.store, **options) if store is None else checked_store(store)
        self._plans: dict[bool, CompiledGraph] = {}  # by whether only some keys are saved

    def validate(self) -> None:
        """Check that runs can start, and can get from everywhere to an exit point.

        Raises:
            GraphError: they cannot; it lists all problems at once.
        """
        self._runnable()

    def picture(self, run: str | State | None = None) -> Picture:
        """Return a picture of the graph and, over it, of a run: its id, or a State of it. See docs/pictures.md.

        Raises:
            CheckpointNotFoundError, GraphMismatchError: the store has no such run; it is a run of another graph.
        """
        from stategraph.picture import picture_of  # imported when used

        return picture_of(self.name, self.structure, self.store, run)

    def as_node(self, inputs: Keys = None, outputs: Keys = None) -> GraphNode:
        """Return this graph as a node of another, which gives it a run of its own and keeps that in its own store.

        Args:
            inputs: What the nested run begins with: keys of the outer State; a mapping from nested keys to outer ones;
                or a function of the outer State. By default the whole State.
            outputs: What comes out: keys of the final nested State; a mapping from outer keys to nested ones; or a
                function of the final nested State. By default all that changed.
        """
        from stategraph.nodes.subgraph import GraphNode  # imported when used

        return GraphNode(self, partial(self._planned, is_nested=True), inputs, outputs)

    # ------------------------------------------------------------------ running

    def execute(self, state: State, **how: Unpack[ExecuteCall]) -> State:
        """Run a State from the entry point to an exit point.

        A State with a past, such as a loaded one, goes on counting its steps.

        Args:
            state: Where the run begins.
            wait: Seconds to wait for the run while another call is at work on it; None or 0 to be refused at once.
            take_over: Take the run away from a call that is at work on it, as one that hangs, which saves nothing more.
            cancel: Stops the run before the next node once it is set.
            timeout: Seconds after which the run is stopped before the next node; a node that is async is cut off.
            restart: Begin at the entry point though the run of the State is not complete, and leave it where it stands.
            by: Who gives the input, for the history.
            progress: Show on stderr, or in the notebook, how the run goes on. See docs/observers.md.
            labels: What the run is labelled with, a mapping of str to str, for ``store.runs(labels=...)``.

        Returns:
            The final State, of status completed; or paused, if a node pauses the run.

        Raises:
            GraphError: the graph is not valid.
            SchemaError: the State does not fit the schema.
            RunBusyError: another call is at work on the run. Nothing has been done.
            RunLostError: the run was taken over, rolled back or deleted. Nothing more of this call is saved.
            RunExistsError: the State is new and the store already has a run of its run_id; or that run is not complete.
            GraphMismatchError: the State is of a run of another graph that is not complete.
            ExecutionError: a node or a predicate raised, a node returned something else than a State or a mapping, or
                no edge passed. The last completed State is in it and, unless the interval is 0, in the store.
            MaxIterationsError: the call ran as many nodes as the config allows.
            RunCancelledError: `cancel` was set, the time is up, or the run was cancelled; resume goes on.
            CheckpointError: the store could not save; the State that was at stake is in it.
            AsyncNodeError: the graph has async nodes and an event loop is running in this thread: use `aexecute`.
        """
        return drive(executed(self._sync_run(how, ExecuteCall), state, how), signal_of(how))

    async def aexecute(self, state: State, **how: Unpack[ExecuteCall]) -> State:
        """Run a State as `execute` does, on the running event loop.

        Sync nodes and the store work in threads. To cancel the task stops the run, after the node that is running if
        that is a sync one.
        """
        from stategraph._drivers.aio import adrive  # imported when used: asyncio takes 20 ms

        run = self._new_run(how, ExecuteCall)
        return await adrive(executed(run, state, how), signal_of(how), self.store)

    def resume(self, run_id: str, updates: Mapping[str, Any] | None = None, **how: Unpack[ResumeCall]) -> State:
        """Go on with a run from its last checkpoint: take the next edge after the node that produced it.

        Args:
            run_id: The run.
            updates: Laid over the data of the checkpoint, and saved before the next node runs. Of a paused run: the
                answer under the key that it waits for, and anything else.
            allow_changed: Go on even if nodes or edges of the graph have changed since.
            migrate: New names of nodes that were renamed since, by their old ones; of a node of a nested graph, both
                after the name of the node that runs the graph and a slash.
            pause: The pause that the updates answer, or its id: another one is not answered.
            by: Who gives the answer or the updates, for the history.
            wait: As for `execute`, like all that may be said besides.

        Returns:
            The final State, of status completed; or paused, if a node pauses the run.

        Raises:
            SchemaError: the updates or the saved State do not fit the schema.
            AnswerError: the run is paused, and the updates hold no answer that is accepted; or an answer comes too
                late. The run stays as it is.
            CheckpointingDisabledError: the graph saves nothing (interval 0).
            CheckpointNotFoundError: the store has no checkpoint of the run.
            RunCompleteError: the run is complete.
            GraphMismatchError: it is a run of another graph, or of this one before it changed; it names the changes.
            And all that `execute` raises.
        """
        return drive(resumed(self._sync_run(how, ResumeCall), run_id, updates, how), signal_of(how))

    async def aresume(self, run_id: str, updates: Mapping[str, Any] | None = None, **how: Unpack[ResumeCall]) -> State:
        """Go on with a run as `resume` does, on the running event loop; see `aexecute`."""
        from stategraph._drivers.aio import adrive  # imported when used: asyncio takes 20 ms

        run = self._new_run(how, ResumeCall)
        return await adrive(resumed(run, run_id, updates, how), signal_of(how), self.store)

    def run(self, state: State, **how: Unpack[RunCall]) -> State:
        """Run a State once, however often this is called: its run_id shows whether it was done.

        If there is no such run, it is executed. If it is unfinished, it is resumed. If it is complete, paused or
        cancelled, nothing runs, and its State is returned. A complete run is only there with ``preserve=True``.

        The options are those of `execute`, the errors those of `execute` and `resume`.
        """
        from stategraph._engine.calling import run_once  # imported when used

        return drive(run_once(self._sync_run(how, RunCall), state), signal_of(how))

    async def arun(self, state: State, **how: Unpack[RunCall]) -> State:
        """Run a State as `run` does, on the running event loop; see `aexecute`."""
        from stategraph._drivers.aio import adrive  # imported when used: asyncio takes 20 ms
        from stategraph._engine.calling import run_once  # imported when used

        run = self._new_run(how, RunCall)
        return await adrive(run_once(run, state), signal_of(how), self.store)

    def run_many(self, states: Iterable[State], *, max_workers: int = 8, **how: Unpack[RunCall]) -> Batch:
        """Run many States, each as `run` does, some at the same time; iterate over what came of each, in their order.

        A run that fails does not stop the others: its result holds the error. States are taken as they are needed, at
        most twice as many as there are workers ahead of the results. To close the iterator, as leaving its ``with``
        does, stops the runs that are under way before their next node; `resume`, or the same call again, goes on.

        Args:
            states: The States. If iterating over them fails, or yields something else, that is raised after the
                results of those before.
            max_workers: How many run at the same time, each in a thread.
            how: What is said of each run, as `run` takes it.
        """
        from stategraph._capabilities import Batch  # imported when used

        self._runnable()
        return Batch(self.run, states, max_workers, how)

    def arun_many(
        self, states: Iterable[State], *, max_workers: int = 8, **how: Unpack[RunCall]
    ) -> AsyncGenerator[Recovered, None]:
        """Run many States as `run_many` does, on the running event loop, each in a task; ``aclose()`` cancels those."""
        from stategraph._capabilities import abatch  # imported when used

        self._runnable()
        return abatch(partial(self.arun, **how), states, max_workers)

    def turn(self, run_id: str, input: Mapping[str, Any], **how: Unpack[TurnCall]) -> State:
        """Go on with a conversation: finish the turn before, then execute the run with this input.

        The first turn begins the run. A turn that was cancelled is not finished. Turns take ``preserve=True``: a run
        that is deleted when it completes begins again. The options are those of `run`, and:

        Args:
            run_id: The conversation.
            input: Laid over the data with which the turn before has ended.
            allow_changed: As for `resume`, to finish the turn before; like `migrate`.
            unfinished: What becomes of a turn before that was cut off: "finish", or "discard", which rolls the run back
                to the end of the last completed turn. That takes ``retention="full"``.

        Raises:
            AnswerError: the turn before is paused; the input was not taken. And all that `execute` and `resume` raise.
        """
        run, retention = self._sync_run(how, TurnCall), self.config.checkpoint.retention
        return drive(turned(run, run_id, input, how, self.store, retention), signal_of(how))

    async def aturn(self, run_id: str, input: Mapping[str, Any], **how: Unpack[TurnCall]) -> State:
        """Go on with a conversation as `turn` does, on the running event loop; see `aexecute`."""
        from stategraph._drivers.aio import adrive  # imported when used: asyncio takes 20 ms

        run, retention = self._new_run(how, TurnCall), self.config.checkpoint.retention
        return await adrive(turned(run, run_id, input, how, self.store, retention), signal_of(how), self.store)

    def submit(self, state: State, *, labels: Mapping[str, str] | None = None) -> State:
        """Save a State as a run that waits for its first node: `recover` begins it.

        Raises:
            RunExistsError, RunBusyError, SchemaError, CheckpointError: as `execute`.
            CheckpointingDisabledError: the graph saves nothing (interval 0).
        """
        from stategraph._engine.calling import submit  # imported when used

        return drive(submit(self._new_run(RunCall(labels=labels), RunCall), state), None)

    def recover(
        self,
        *,
        limit: int | None = None,
        max_recoveries: int = 10,
        allow_changed: bool = False,
        migrate: Mapping[str, str] | None = None,
        cancel: threading.Event | None = None,
    ) -> Iterator[Recovered]:
        """Go on with unfinished runs of this graph that have no owner, the oldest first.

        Runs that are paused, cancelled or failed stay. Of processes that do this at the same time, one takes up a run.
        It yields what came of each run as it ends; if that is an error, the others go on.

        Args:
            limit: How many runs to go on with at most.
            max_recoveries: How many owners one step of a run may take down; then the run is failed.
            allow_changed: As for `resume`, for each run.
            migrate: As for `resume`, for each run.
            cancel: Once it is set, the run under way stops before its next node, and no other one begins. The run stays
                unfinished at its last step.

        Raises:
            CheckpointingDisabledError: the graph saves nothing (interval 0).
        """
        how = ChangedCall(cancel=cancel, allow_changed=allow_changed, migrate=migrate)
        from stategraph._capabilities import recovered_by  # imported when used

        return recovered_by(self._sweep(self._sync_run, limit, max_recoveries, how), signal_of(how))

    def arecover(
        self,
        *,
        limit: int | None = None,
        max_recoveries: int = 10,
        allow_changed: bool = False,
        migrate: Mapping[str, str] | None = None,
        cancel: threading.Event | None = None,
    ) -> AsyncIterator[Recovered]:
        """Go on with runs as `recover` does, on the running event loop; see `aexecute`."""
        how = ChangedCall(cancel=cancel, allow_changed=allow_changed, migrate=migrate)
        from stategraph._capabilities import arecovered_by  # imported when used

        return arecovered_by(self._sweep(self._new_run, limit, max_recoveries, how), signal_of(how), self.store)

    def cancel(self, run_id: str, *, by: str | None = None) -> None:
        """Cancel a run, whatever process is at work on it; `resume` takes it up again.

        Its owner stops at the next save, before the next node at the latest, with a RunCancelledError. A run without an
        owner is cancelled at once.

        Args:
            run_id: The run.
            by: Who cancels it, for the history: the first of several who do so while it is at work.

        Raises:
            CheckpointNotFoundError: there is no such run.
            RunCompleteError: it is complete.
            RunLostError: others took the run while this was under way; nothing has been changed.
        """
        from stategraph._engine.calling import cancel  # imported when used

        drive(cancel(self._new_run({"by": by}), run_id), None)

    def stream(self, state: State, **how: Unpack[ExecuteCall]) -> Stream:
        """Run a State as `execute` does, yielding it after every node, and after every chunk of a node.

        After a chunk, `State.partial` holds the chunks so far. The run goes on when the next State is requested; to
        leave the iteration stops it at a checkpoint, from which `resume` goes on.
        """
        from stategraph._drivers.streams import Stream  # imported when used

        task = executed(self._sync_run(how, ExecuteCall, shows=True), state, how)
        return Stream(task, signal_of(how))

    def stream_resume(self, run_id: str, updates: Mapping[str, Any] | None = None, **how: Unpack[ResumeCall]) -> Stream:
        """Go on with a run as `resume` does, yielding as `stream` does."""
        from stategraph._drivers.streams import Stream  # imported when used

        task = resumed(self._sync_run(how, ResumeCall, shows=True), run_id, updates, how)
        return Stream(task, signal_of(how))

    def astream(self, state: State, **how: Unpack[ExecuteCall]) -> AsyncStream:
        """Run a State as `stream` does, on the running event loop.

        A loop that may be left early is best put into ``async with graph.astream(state) as states``: then the run has
        stopped when it is left.
        """
        from stategraph._drivers.streams import AsyncStream  # imported when used: asyncio takes 20 ms

        task = executed(self._new_run(how, ExecuteCall, shows=True), state, how)
        return AsyncStream(task, signal_of(how), self.store)

    def astream_resume(
        self, run_id: str, updates: Mapping[str, Any] | None = None, **how: Unpack[ResumeCall]
    ) -> AsyncStream:
        """Go on with a run as `resume` does, yielding as `astream` does."""
        from stategraph._drivers.streams import AsyncStream  # imported when used: asyncio takes 20 ms

        task = resumed(self._new_run(how, ResumeCall, shows=True), run_id, updates, how)
        return AsyncStream(task, signal_of(how), self.store)

    def follow(self, run_id: str, *, wait: float | None = None, timeout: float | None = None) -> Iterator[State]:
        """Yield the States of a run that others are at work on: those that are kept so far, then each new one.

        They are those that `stream` yields, without chunks, and how the run paused, failed or was cancelled. It ends
        with the run, or when that is gone; States that retention drops before they are seen are left out.

        Args:
            run_id: The run.
            wait: Seconds to wait for it to begin, before a CheckpointNotFoundError.
            timeout: Seconds until a TimeoutError: a run whose owner was killed does not end until it is resumed.
        """
        from stategraph._capabilities import follow  # imported when used

        return follow(self.store, run_id, wait, timeout)

    def afollow(
        self, run_id: str, *, wait: float | None = None, timeout: float | None = None
    ) -> AsyncGenerator[State, None]:
        """Yield what `follow` yields, on the running event loop."""
        from stategraph._capabilities import afollow

        return afollow(self.store, run_id, wait, timeout)

    def _sweep(
        self, new_run: Callable[..., RunContext], limit: int | None, max_recoveries: int, how: ChangedCall
    ) -> Iterator[Task[Recovered | None]]:
        from stategraph._capabilities import sweep  # imported when used

        new_run = partial(new_run, how, ChangedCall)
        return sweep(self.store, self._name, new_run, limit, max_recoveries, signal_of(how))

    def _new_run(self, how: Call, kind: type = Call, *, shows: bool = False) -> RunContext:
        observer = with_progress(self.observer) if how.get("progress") else self.observer
        return new_run(self._runnable(), self.config, self.store, observer, shows=shows, asked=asked_of(how, kind))

    def _sync_run(self, how: Call, kind: type = Call, *, shows: bool = False) -> RunContext:
        return blocks(self._new_run(how, kind, shows=shows))

    def _runnable(self) -> CompiledGraph:
        plan = self._planned()
        if plan.lacks:
            raise self._error(plan.lacks)
        return plan

    def _planned(self, *, is_nested: bool = False) -> CompiledGraph:
        """Return the compiled graph. Nested, another one decides when something is saved; this one, what."""
        checkpoint = self.config.checkpoint
        saves_keys = checkpoint.persist is not None and (is_nested or checkpoint.interval > 0)
        plan = self._plans.get(saves_keys)
        if plan is None:
            with self._lock:
                handled = any(policies.on_error is not None for policies in self._policies.values())
                plan = self._plans[saves_keys] = plan_of(self._compiled, self.config, self.store, saves_keys, handled)
        return plan

    def _changed(self) -> None:
        self._plans = {}

    def __repr__(self) -> str:
        return f"StateGraph({self.name!r}, {len(self._nodes)} nodes, {len(self._edges)} edges, {self.store})"
