"""StateGraph: build a graph, validate it, and execute and resume its runs."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, Unpack, cast, overload

import attrs

from stategraph._calls import (
    AnswerCall,
    Call,
    ExecuteCall,
    FollowCall,
    GraphOptions,
    RecoverCall,
    ReplayCall,
    ResumeCall,
    RunCall,
    TurnCall,
    answer_task,
    cancel_task,
    check_blocking,
    checked_options,
    execute_task,
    new_run,
    resume_task,
    run_task,
    send_task,
    signal_of,
    time_ns,
    turn_task,
)
from stategraph._drivers.sync import drive
from stategraph._engine.context import RunContext
from stategraph._graph.builder import GraphBuilder
from stategraph._graph.compiled import CompiledGraph
from stategraph._plan import plan_of, short_config
from stategraph._protocol import Task
from stategraph._util.callables import module_of_caller, showing_options, without_calls
from stategraph._util.validators import naming_arguments
from stategraph._values.events import Listener, check_observer
from stategraph._values.provenance import RunStatus
from stategraph.config import GraphConfig
from stategraph.observers import get_observer, with_others
from stategraph.state import S, State
from stategraph.stores.base import CheckpointStore
from stategraph.stores.registry import checked_store, get_checkpoint_store, is_memory_store

if TYPE_CHECKING:
    from stategraph._batches import Batch
    from stategraph._drivers.limits import StopSignal
    from stategraph._drivers.streams import AsyncStream, Stream
    from stategraph._engine.calling import Recovered, RunCheck
    from stategraph._following import AsyncFollowing, Following
    from stategraph._owners.base import Refused
    from stategraph.nodes.function import AnyKeys
    from stategraph.nodes.subgraph import GraphNode, Keys
    from stategraph.picture import Picture
    from stategraph.stores.summaries import Replayed

_Answer = TypeVar("_Answer")
_TaskOf: TypeAlias = Callable[..., Task[_Answer]]
"""Returns the task of a call, given its run, its options and its arguments."""


@showing_options
class StateGraph(GraphBuilder[S]):
    """A workflow: named nodes, and edges with conditions between them.

    Build it with `add_node`, `add_edge`, `set_entry_point` and `set_exit_point`. Then `execute` a State on it, or
    `resume` a run that did not finish. Threads and tasks may share a graph.

    Args:
        config: The configuration; or only the name of the graph, which then saves every step if it has a store.
        observer: Receives events: an observer, or the name of one. It replaces the observer of the config.
        store: Keeps the States: a store, the file of a sqlite store, the folder of a disk store (a new one ends in
            "/"), or the URL of a server, as in ``StateGraph("orders", store="runs.db")``. It replaces the store of the
            config.
        preserve: Whether a completed run stays in the store, as conversations require. It replaces the value of the
            config.
        schema: A class or a TypedDict whose fields are the keys of the States. The input and the results of nodes are
            validated and converted to the types of the fields before they are saved. A node whose first parameter is
            annotated with the class receives an instance of it. See the page "Typed States".

    Raises:
        ConfigError: The config is not a GraphConfig, the schema cannot be used, or the store does not take its options.
        UnknownNameError: No store or observer has the name in the config.
    """

    @overload
    def __init__(
        self: StateGraph[AnyKeys], config: GraphConfig | str, *, schema: None = None, **how: Unpack[GraphOptions]
    ) -> None: ...
    @overload
    def __init__(self, config: GraphConfig | str, *, schema: type[S], **how: Unpack[GraphOptions]) -> None: ...
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
        config, store, observer = short_config(config, store, observer, preserve)
        if store is not None and not is_memory_store(store):
            config = config.for_store_object()
        checkpoint = config.checkpoint
        super().__init__(config.name, schema)
        self._identity = module_of_caller(), config.settings_as_json(), config.version
        self.config: GraphConfig = config
        self.observer: Listener = get_observer(config.observer) if observer is None else check_observer(observer)
        if store is None:
            store = get_checkpoint_store(checkpoint.store, **checkpoint.store_options())
        self.store: CheckpointStore = checked_store(store)
        self._refused: dict[str, Refused] = {}  # by the options of a sweep
        self._plans: dict[bool, CompiledGraph] = {}  # by whether only some keys are saved

    def validate(self) -> None:
        """Check that runs can start, and can reach an exit point from every node.

        Raises:
            GraphError: They cannot; the error lists all problems.
        """
        with without_calls:
            self._runnable()

    def picture(self, run: str | State | None = None) -> Picture:
        """Return a picture of the graph, complete or not, or of the run with a run id or State.

        See the page "Pictures".

        Raises:
            CheckpointNotFoundError: The store has no such run.
            GraphMismatchError: The run belongs to another graph.
        """
        from stategraph.picture import picture_of  # imported when used

        return picture_of(self.name, self.structure, self.store, run)

    @naming_arguments()
    def as_node(self, inputs: Keys = None, outputs: Keys = None) -> GraphNode:
        """Return this graph as a node of another graph. Its run is nested in the outer run and saved in that store.

        Args:
            inputs: The data of the nested run: keys of the outer State; a mapping from nested keys to outer keys; or a
                function of the outer State. By default the whole State.
            outputs: The result of the node: keys of the final nested State; a mapping from outer keys to nested keys;
                or a function of the final nested State. By default all changes.
        """
        from stategraph.nodes.subgraph import GraphNode  # imported when used

        return GraphNode(self, partial(self._planned, is_nested=True), inputs, outputs)

    # ------------------------------------------------------------------ running

    def execute(self, state: State[S], **how: Unpack[ExecuteCall]) -> State[S]:
        """Run a State from the entry point to an exit point.

        Steps are counted from the number of the State: a new State has 0, a loaded one its last step.

        Args:
            state: The input.
            wait: Seconds to wait while another call owns the run; None or 0 raises RunBusyError at once.
            take_over: Take the run from the call that owns it, for example one that hangs. That call can no longer
                save.
            cancel: Stops the run before the next node once it is set.
            timeout: Seconds after which the run stops before the next node; an async node is cancelled.
            restart: Begin at the entry point even if the run of the State is not complete, and abandon its position.
            by: The author of the input, for the history.
            progress: Show the progress of the run on stderr or in the notebook. See the page "Observers".
            labels: The labels of the run, a mapping of str to str, for ``store.runs(labels=...)``.
            observer: Receives the events of this call too: an observer, or the name of one.
            deps: What the nodes of this call need, such as a client or a session: `NodeContext.deps`. It is not saved.
            limits: What the run may spend, by name, as in ``{"usd": 5}``. See the page "Budgets".
            deadline: When the run must be complete: an aware datetime, or seconds from now. Once it has passed, the run
                fails with a TimeoutError: before its next node, or at the next await; in the next sweep if no one is at
                work on it.

        Returns:
            The final State. Its status is completed, or paused if a node paused the run.

        Raises:
            GraphError: The graph is not valid.
            SchemaError: The State does not fit the schema.
            RunBusyError: Another call owns the run. Nothing has changed.
            RunLostError: The run was taken over, rolled back or deleted. This call can no longer save.
            RunExistsError: The State is new, and the store has a run with its run_id; or that run is not complete.
            GraphMismatchError: The State belongs to an incomplete run of another graph.
            ExecutionError: A node or a predicate raised, a node returned neither a State nor a mapping, or no edge
                could be taken. The error holds the last completed State. Unless the interval is 0, it is saved, too.
            MaxIterationsError: The call ran as many nodes as the config allows.
            LimitError: The run has spent what `limits` allow.
            RunCancelledError: `cancel` was set, the timeout passed, or the run was cancelled; `resume` continues it.
            CheckpointError: The store could not save. The error holds the unsaved State.
            AsyncNodeError: The graph has async nodes, and an event loop is running in this thread: use `aexecute`.
        """
        return drive(*self._task(ExecuteCall, execute_task, how, state))

    async def aexecute(self, state: State[S], **how: Unpack[ExecuteCall]) -> State[S]:
        """Run a State as `execute` does, on the running event loop.

        Sync nodes and the store work in threads. Cancelling the task stops the run: an async node at once, a sync node
        after it has returned.
        """
        return await self._adrive(ExecuteCall, execute_task, how, state)

    def resume(self, run_id: str, updates: Mapping[str, Any] | None = None, **how: Unpack[ResumeCall]) -> State[S]:
        """Continue a run from its last checkpoint, with the next edge out of the last completed node.

        Args:
            run_id: The run.
            updates: New values of keys, saved before the next node runs. For a paused run, the answer under the key
                that the pause names, and any other values.
            allow_changed: Continue even if nodes or edges of the graph have changed.
            migrate: New names of renamed nodes by their old names. For a node of a nested graph, prefix both names
                with the name of the node that runs the graph and a slash.
            abandon_parts: Continue even if parts of the step under way are finished that the changed graph has no use
                for; they are deleted.
            pause: The pause to answer, or its id. If the run does not wait at it, nothing changes.
            redo: Items and branches of the step under way that are done again although they are done, or their errors
                are collected, as in ``["map/3"]``; see `CheckpointStore.under_way`. Their effects stay done.
            repeat_effects: Let a graph of the step under way begin again, because of `redo` or of other updates,
                although that repeats its effects.
            by: The author of the answer or the updates, for the history.
            wait: As for `execute`, like all other options.

        Returns:
            The final State. Its status is completed, or paused if a node paused the run.

        Raises:
            SchemaError: The updates or the saved State do not fit the schema.
            AnswerError: The run is paused, and the updates hold no valid answer; or the answer is too late. The run
                has not changed.
            CheckpointingDisabledError: The graph saves nothing (interval 0).
            CheckpointNotFoundError: The store has no checkpoint of the run.
            RunCompleteError: The run is complete.
            UnknownNameError: The step under way has no part that `redo` names.
            EffectsError: A graph of the step under way would begin again and repeat effects. None is repeated.
            GraphMismatchError: The run belongs to another graph, or to an earlier form of this one; the error names
                the changes.
            And all errors of `execute`.
        """
        return drive(*self._task(ResumeCall, resume_task, how, run_id, updates))

    async def aresume(
        self, run_id: str, updates: Mapping[str, Any] | None = None, **how: Unpack[ResumeCall]
    ) -> State[S]:
        """Continue a run as `resume` does, on the running event loop; see `aexecute`."""
        return await self._adrive(ResumeCall, resume_task, how, run_id, updates)

    def run(self, state: State[S], **how: Unpack[RunCall]) -> State[S]:
        """Run a State once per run_id, however often this is called.

        A new run is executed. An unfinished run is resumed. If the run is complete, paused or cancelled, nothing runs,
        and its State is returned. Completed runs remain in the store only with ``preserve=True``.

        The options are those of `execute`, except for `restart`, the errors those of `execute` and `resume`, and:

        Raises:
            RunExistsError: The run began with other data. Labels, and keys that are not saved, do not count.
        """
        return drive(*self._task(RunCall, run_task, how, state))

    async def arun(self, state: State[S], **how: Unpack[RunCall]) -> State[S]:
        """Run a State as `run` does, on the running event loop; see `aexecute`."""
        return await self._adrive(RunCall, run_task, how, state)

    def run_many(self, states: Iterable[State[S]], *, max_workers: int = 8, **how: Unpack[RunCall]) -> Batch:
        """Run many States as `run` does, several at the same time; iterate over the results in the order of the States.

        A failed run does not stop the others: its result holds the error. States are taken lazily, at most two per
        worker ahead of the results. Closing the iterator, for example by leaving its ``with`` block, stops the active
        runs before their next node; `resume`, or the same call again, continues them.

        Args:
            states: The States. If iterating over them fails or yields another object, the exception is raised after
                the results of the States before.
            max_workers: The number of runs at the same time, each in a thread.
            how: The options of each run, as for `run`.
        """
        from stategraph._batches import Batch  # imported when used

        self._runnable()
        return Batch(self.run, states, max_workers, how)

    def arun_many(
        self, states: Iterable[State[S]], *, max_workers: int = 8, **how: Unpack[RunCall]
    ) -> AsyncGenerator[Recovered, None]:
        """Run many States as `run_many` does, each in a task of the running event loop; ``aclose()`` cancels them."""
        from stategraph._batches import abatch  # imported when used

        self._runnable()
        return abatch(partial(self.arun, **how), states, max_workers)

    def turn(self, run_id: str, input: Mapping[str, Any], **how: Unpack[TurnCall]) -> State[S]:
        """Continue a conversation: finish the previous turn, then execute the run with this input.

        The first turn begins the run. A cancelled turn is not finished. Conversations require ``preserve=True``: a run
        that is deleted when it completes begins again. The options are those of `run`, and:

        Args:
            run_id: The conversation.
            input: New values of keys, applied to the final data of the previous turn.
            key: Makes it the same turn however often it is given: the same key again returns its result and runs
                nothing. If retention no longer keeps the result, that is the newest State.
            busy: What to do if another call is at work on the run: "reject" this turn; "enqueue" it; "interrupt" the
                turn under way before its next node; or "rollback" that turn as well, which requires
                ``retention="full"``. Except with "reject", the turn is stored, and the call waits for it: without
                limit, or as long as `wait` says.
            allow_changed: As for `resume`, for finishing the previous turn; also `migrate` and `abandon_parts`.
            unfinished: Whether to "finish" an interrupted previous turn or to "discard" it, which rolls the run back to
                the end of the last completed turn and requires ``retention="full"``.

        Raises:
            AnswerError: The previous turn is paused; the input was not used, or waits if it was stored.
            EntryExistsError: A turn with other input has had the key.
            EntriesNotKeptError: The store can keep no keys and no turns that wait.
            And all errors of `execute` and `resume`.
        """
        return drive(*self._task(TurnCall, turn_task, how, run_id, input))

    async def aturn(self, run_id: str, input: Mapping[str, Any], **how: Unpack[TurnCall]) -> State[S]:
        """Continue a conversation as `turn` does, on the running event loop; see `aexecute`."""
        return await self._adrive(TurnCall, turn_task, how, run_id, input)

    def submit(
        self,
        state: State[S],
        *,
        labels: Mapping[str, str] | None = None,
        at: datetime | float | None = None,
        deadline: datetime | float | None = None,
    ) -> State[S]:
        """Save a State as a run that waits for its first node. `recover` begins it.

        As for `execute`, the State may be new, or that of a completed run, with new input: then the run waits for the
        first node of its next turn. A State that was submitted before is not saved again.

        Args:
            state: The input.
            labels: As for `execute`.
            at: When it begins: an aware datetime, or seconds from now. Sweeps leave it alone until then.
            deadline: As for `execute`.

        Returns:
            The State as it was saved.

        Raises:
            RunExistsError, RunBusyError, GraphMismatchError, SchemaError, CheckpointError: As for `execute`.
            CheckpointingDisabledError: The graph saves nothing (interval 0).
        """
        from stategraph._engine.calling import submit  # imported when used

        run = self._new_run(RunCall(labels=labels, deadline=deadline), RunCall)
        run.due_ns = time_ns("at", at)
        return drive(submit(run, state), None)

    def recover(self, **how: Unpack[RecoverCall]) -> Iterator[Recovered]:
        """Continue runs of this graph that have no owner: first those that are due, then unfinished ones. Yield each
        result.

        A run is due when the time of its `WaitNode`, its next attempt or its `submit` has come, when the deadline of a
        pause with an `otherwise` has passed, or when its answer is stored; never early. Other paused, cancelled and
        failed runs are left alone. Of several processes that call this at the same time, only one
        continues a given run. An error of one run does not stop the others,
        nor does a SystemExit of a node. A run that does not fit the graph is yielded once; further calls leave it alone
        until it or the graph changes.

        Args:
            limit: The most runs to continue; None, the default, for all.
            max_recoveries: The most owners that one step of a run may lose before the run fails; 10 by default.
            allow_changed: As for `resume`, for each run.
            migrate: As for `resume`, for each run; also `abandon_parts`, `limits`, `observer` and `deps`.
            serves: Continue only runs of these versions of the graph, as in ``[2, 3]``. Runs without a version count as
                version 1.
            cancel: Once it is set, the active run stops before its next node, and no other run begins. The run stays
                unfinished at its last step.

        Raises:
            CheckpointingDisabledError: The graph saves nothing (interval 0).
        """
        from stategraph._sweeps import recovered_by  # imported when used

        return recovered_by(*self._sweep(how, blocks=True))

    def arecover(self, **how: Unpack[RecoverCall]) -> AsyncIterator[Recovered]:
        """Continue runs as `recover` does, on the running event loop; see `aexecute`."""
        from stategraph._sweeps import arecovered_by  # imported when used

        return arecovered_by(*self._sweep(how, blocks=False), self.store)

    @overload
    def cancel(self, run_id: str, *, by: str | None = None, wait: None = None) -> None: ...
    @overload
    def cancel(self, run_id: str, *, by: str | None = None, wait: float) -> RunStatus: ...
    def cancel(self, run_id: str, *, by: str | None = None, wait: float | None = None) -> RunStatus | None:
        """Cancel a run in any process; `resume` continues it.

        The owner of the run stops at its next save, or before its next node, and raises RunCancelledError. If it waits
        for an async node or for a retry, it stops there, 0.25 seconds later at most. Processes of a `MapNode` or a
        `ParallelNode` get SIGTERM, and are killed 5 seconds later. A run without an owner is cancelled at once. A run
        whose last node ends by itself completes.

        Args:
            run_id: The run.
            by: The author of the cancellation, for the history. If several callers cancel an owned run, the first one
                counts.
            wait: Seconds to wait until the owner has stopped; None returns at once.

        Returns:
            With `wait`, the status that came of it: cancelled, or completed; active if the owner is still at work.

        Raises:
            CheckpointNotFoundError: There is no such run.
            RunCompleteError: The run is complete.
            GraphMismatchError: It is a run of another graph.
            RunLostError: The run was taken over, rolled back or deleted during the call. Nothing has changed.
        """
        return drive(*self._task(Call, cancel_task, {"by": by, "wait": wait}, run_id, blocks=False))

    @overload
    async def acancel(self, run_id: str, *, by: str | None = None, wait: None = None) -> None: ...
    @overload
    async def acancel(self, run_id: str, *, by: str | None = None, wait: float) -> RunStatus: ...
    async def acancel(self, run_id: str, *, by: str | None = None, wait: float | None = None) -> RunStatus | None:
        """Cancel a run as `cancel` does, on the running event loop."""
        return await self._adrive(Call, cancel_task, {"by": by, "wait": wait}, run_id)

    def send(self, run_id: str, updates: Mapping[str, Any], *, by: str | None = None, key: str | None = None) -> None:
        """Send a message to a run, which may be at work in any process. When this returns, the message is durable.

        The run takes it in between two steps, once, after the messages before it: as ``resume(run_id, updates)`` does,
        or as `on_message` decides. A run without an owner takes it in when it is resumed. A message is no answer.

        Args:
            run_id: The run.
            updates: New values of keys.
            by: The author, for the history.
            key: An id of the message. A message with the same key again is the same message: it is sent once.

        Raises:
            CheckpointNotFoundError: There is no such run.
            RunCompleteError: The run is complete.
            SchemaError: The updates do not fit the schema.
            EntryExistsError: Another message has had the key.
            EntriesNotKeptError: The store keeps no entries.
        """
        drive(*self._task(Call, send_task, {"by": by}, run_id, updates, key, blocks=False))

    async def asend(
        self, run_id: str, updates: Mapping[str, Any], *, by: str | None = None, key: str | None = None
    ) -> None:
        """Send a message as `send` does, on the running event loop."""
        await self._adrive(Call, send_task, {"by": by}, run_id, updates, key)

    def answer(self, run_id: str, value: Any, **how: Unpack[AnswerCall]) -> None:
        """Store the answer to a paused run, and return. When this returns, the answer is durable.

        The next call that works on the run continues with it: `run`, `resume` without an answer, or `recover`.

        Args:
            run_id: The run.
            value: The answer.
            pause: The pause to answer, or its id; required if the run waits at several.
            by: The author of the answer, for the history.
            key: An id of the answer. An answer with the same key again is the same answer: it is stored once.
            allow_changed: As for `resume`; also `migrate`.

        Raises:
            AnswerError: The run does not wait there, the answer is not valid, or the deadline has passed; or the pause
                was answered before.
            CheckpointNotFoundError: There is no such run.
            RunCompleteError: The run is complete.
            EntryExistsError: Another answer has had the key.
            EntriesNotKeptError: The store keeps no entries.
        """
        drive(*self._task(AnswerCall, answer_task, how, run_id, value, blocks=False))

    async def aanswer(self, run_id: str, value: Any, **how: Unpack[AnswerCall]) -> None:
        """Store an answer as `answer` does, on the running event loop."""
        await self._adrive(AnswerCall, answer_task, how, run_id, value)

    def stream(self, state: State[S], **how: Unpack[ExecuteCall]) -> Stream[S]:
        """Run a State as `execute` does. Yield it after every node, and after every chunk of a node.

        After a chunk, `State.partial` holds the chunks so far. The run continues when the next State is requested.
        Leaving the iteration stops the run at a checkpoint, from which `resume` continues.
        """
        return self._stream(ExecuteCall, execute_task, how, state)

    def stream_resume(
        self, run_id: str, updates: Mapping[str, Any] | None = None, **how: Unpack[ResumeCall]
    ) -> Stream[S]:
        """Continue a run as `resume` does, yielding States as `stream` does."""
        return self._stream(ResumeCall, resume_task, how, run_id, updates)

    def astream(self, state: State[S], **how: Unpack[ExecuteCall]) -> AsyncStream[S]:
        """Run a State as `stream` does, on the running event loop.

        Use ``async with graph.astream(state) as states`` around a loop that may end early: the run has stopped when the
        block is left.
        """
        return self._astream(ExecuteCall, execute_task, how, state)

    def astream_resume(
        self, run_id: str, updates: Mapping[str, Any] | None = None, **how: Unpack[ResumeCall]
    ) -> AsyncStream[S]:
        """Continue a run as `resume` does, yielding States as `astream` does."""
        return self._astream(ResumeCall, resume_task, how, run_id, updates)

    def stream_turn(self, run_id: str, input: Mapping[str, Any], **how: Unpack[TurnCall]) -> Stream[S]:
        """Continue a conversation as `turn` does, yielding States as `stream` does.

        A turn whose result is known, because its key was given before, yields that alone.
        """
        return self._stream(TurnCall, turn_task, how, run_id, input)

    def astream_turn(self, run_id: str, input: Mapping[str, Any], **how: Unpack[TurnCall]) -> AsyncStream[S]:
        """Continue a conversation as `turn` does, yielding States as `astream` does."""
        return self._astream(TurnCall, turn_task, how, run_id, input)

    def follow(self, run_id: str, **how: Unpack[FollowCall]) -> Following[S]:
        """Yield the States of a run that another call owns: the saved ones, then each new one.

        They are the States that `stream` yields, without chunks, and the State in which the run paused, failed or was
        cancelled. The iteration ends when the run ends or is deleted. It skips States that retention removes before
        they are read. It polls the store every 5 to 250 milliseconds, for a fifth of the time at most.

        Args:
            run_id: The run.
            after: The `cursor` of an earlier iteration, in any process: this one continues there.
            chunks: Also yield a State for each chunk of nodes that are added with ``persist_chunks=True``, once and in
                order: its `partial` has the chunk, and the number of the attempt that emitted it.
            wait: Seconds to wait for the run to begin before CheckpointNotFoundError is raised.
            timeout: Seconds until TimeoutError is raised: a run whose owner was killed does not end until it is
                resumed.
        """
        from stategraph._following import Following, Looks  # imported when used

        return Following(Looks(self.store, run_id, how))

    def afollow(self, run_id: str, **how: Unpack[FollowCall]) -> AsyncFollowing[S]:
        """Yield the States that `follow` yields, on the running event loop."""
        from stategraph._following import AsyncFollowing, Looks  # imported when used

        return AsyncFollowing(Looks(self.store, run_id, how))

    def check_runs(
        self, store: CheckpointStore | None = None, *, serves: Collection[int] | None = None
    ) -> Iterator[RunCheck]:
        """Yield for each run of this graph that is not complete whether it can go on here. Nothing is run or changed.

        Runs nested in it, and the finished parts of its step under way, are checked as well.

        Args:
            store: The store of the runs, such as a copy; by default that of the graph.
            serves: The versions that workers serve, see `recover`; a run of another version cannot go on.

        Raises:
            GraphError: The graph is not valid.
        """
        from stategraph._sweeps import checked_runs  # imported when used

        store = self.store if store is None else checked_store(store)
        plan = attrs.evolve(self._planned(), saves=True, write_behind=False, loads_parts=store.keeps_parts)
        how: dict[str, Any] = {"shows": False, "options": checked_options(cast(Call, {"serves": serves}), RecoverCall)}
        return checked_runs(partial(new_run, plan, self.config, store, get_observer("noop"), **how))

    def replay(self, run_id: str, nodes: Collection[str] | None = None, **how: Unpack[ReplayCall]) -> list[Replayed]:
        """Run steps of a run again on the inputs that they had, and compare the results with those that are kept.

        Nothing is saved or emitted, so nodes may have changed, and get another model by `deps`. Steps whose input and
        result are not both kept are left out: ``retention="full"`` with ``interval=1`` keeps all. Results of caches are
        not used.

        Args:
            run_id: The run, complete or not.
            nodes: The nodes whose steps run again; by default all that the graph has.
            repeat_effects: Call the effects of nodes again. By default an effect is an error of its step.
            observer: Receives the events of this call too.
            deps: As for `execute`.

        Returns:
            The steps, in order. A step that fails has an error, and those after it run all the same.

        Raises:
            ConfigError: `nodes` is a str.
            UnknownNameError: The graph has no such node.
            CheckpointNotFoundError: The store has no such run.
            GraphMismatchError: It is a run of another graph, or its data cannot be upgraded.
        """
        from stategraph._replaying import replay  # imported when used

        return drive(*self._task(ReplayCall, replay, how, run_id, nodes))

    async def areplay(
        self, run_id: str, nodes: Collection[str] | None = None, **how: Unpack[ReplayCall]
    ) -> list[Replayed]:
        """Run steps again as `replay` does, on the running event loop; see `aexecute`."""
        from stategraph._replaying import replay  # imported when used

        return await self._adrive(ReplayCall, replay, how, run_id, nodes)

    # ------------------------------------------------------------------ inside

    def _task(
        self, kind: type, task_of: _TaskOf[_Answer], how: Any, *arguments: Any, shows: bool = False, blocks: bool = True
    ) -> tuple[Task[_Answer], StopSignal | None]:
        """Return the task of a call, and the signal that may stop it."""
        with without_calls:
            run = self._new_run(how, kind, shows=shows, blocks=blocks)
            return task_of(run, how, *arguments), run.signal

    def _adrive(self, kind: type, task_of: _TaskOf[_Answer], how: Any, *arguments: Any) -> Awaitable[_Answer]:
        from stategraph._drivers.aio import adrive  # imported when used: asyncio takes 20 ms

        return adrive(*self._task(kind, task_of, how, *arguments, blocks=False), self.store)

    def _stream(self, kind: type, task_of: _TaskOf[State], how: Call, *arguments: Any) -> Stream[S]:
        from stategraph._drivers.streams import Stream  # imported when used

        return Stream(*self._task(kind, task_of, how, *arguments, shows=True))

    def _astream(self, kind: type, task_of: _TaskOf[State], how: Call, *arguments: Any) -> AsyncStream[S]:
        from stategraph._drivers.streams import AsyncStream  # imported when used: asyncio takes 20 ms

        return AsyncStream(*self._task(kind, task_of, how, *arguments, shows=True, blocks=False), self.store)

    def _sweep(self, how: RecoverCall, *, blocks: bool) -> tuple[Iterator[Task[Recovered | None]], StopSignal | None]:
        """Return tasks that each recover a run, and the signal that may stop them."""
        from stategraph._sweeps import sweep  # imported when used

        options = cast(Call, how)
        new_run, signal = partial(self._new_run, options, RecoverCall, blocks=blocks), signal_of(options)
        options_of_fit = [how.get(name) for name in ("allow_changed", "migrate", "abandon_parts", "serves")]
        refusals = lambda kind: self._refused.setdefault(f"{options_of_fit}{kind}", {})  # noqa: E731
        tasks = sweep(self.store, new_run, how.get("limit"), how.get("max_recoveries", 10), signal, refusals)
        return tasks, signal

    def _new_run(self, how: Call, kind: type = Call, *, shows: bool = False, blocks: bool = False) -> RunContext:
        """Return the context of a call, which blocks this thread or awaits on an event loop."""
        observer = with_others(self.observer, how.get("observer"), "progress" if how.get("progress") else None)
        options = checked_options(how, kind)
        run = new_run(self._runnable(), self.config, self.store, observer, shows=shows, options=options)
        if blocks:
            check_blocking(run)
        return run

    def _runnable(self) -> CompiledGraph:
        plan = self._planned()
        if plan.obstacle:
            raise self._error(plan.obstacle)
        return plan

    def _planned(self, *, is_nested: bool = False) -> CompiledGraph:
        """Return the compiled graph. If it is nested, the outer graph determines when it saves, and this one what."""
        checkpoint = self.config.checkpoint
        saves_keys = checkpoint.persist is not None and (is_nested or checkpoint.interval > 0)
        plan = self._plans.get(saves_keys)
        if plan is None:
            with self._lock:
                handled = any(policies.on_error is not None for policies in self._policies.values())
                plan = self._plans[saves_keys] = plan_of(self._compiled, self.config, self.store, saves_keys, handled)
        return plan

    def _changed(self) -> None:
        self._plans, self._refused = {}, {}

    def _repr_html_(self) -> str:
        """Return the picture, for notebooks."""
        return self.picture()._repr_html_()

    def __repr__(self) -> str:
        return f"StateGraph({self.name!r}, {len(self._nodes)} nodes, {len(self._edges)} edges, {self.store})"
