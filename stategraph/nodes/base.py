"""Node: the work of a step; NodeContext and StepContext: the step, for functions and for nodes; Question."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar, overload

import attrs

from stategraph._protocol import Task
from stategraph._text.shown import shorten
from stategraph._values.ids import escaped, nested_id
from stategraph._values.progress import Answer, NodeOutline, Partial, Pause, Structures
from stategraph._values.provenance import ErrorInfo
from stategraph.state import State

if TYPE_CHECKING:
    from decimal import Decimal

    from typing_extensions import TypeVar as _TypeVar  # with a default; checkers know it without an installation

    from stategraph._schema.schema import Schema

    Deps_co = _TypeVar("Deps_co", default=Any, covariant=True)
else:
    Deps_co = TypeVar("Deps_co", covariant=True)
_Result = TypeVar("_Result")


def graph_of(given: Any) -> Any:
    """Return the GraphNode for a graph given in place of a function; None for anything else."""
    if isinstance(given, Node):
        return next((graph for graph in given.graphs if graph is given), None)
    return given.as_node() if hasattr(given, "as_node") else None


def check_key(name: str, key: object) -> None:
    """Raise TypeError, which names an argument, unless a key is a str."""
    if not isinstance(key, str):
        raise TypeError(f"{name}: {shorten(key)} is not allowed; the name of a key is")


class _Nothing:
    def __repr__(self) -> str:
        return "NOTHING"


NOTHING: Final = _Nothing()


class Node:
    """Base of the nodes that are more than a function. Methods that return a Task are parts of the run."""

    is_async: bool = False
    """Whether it must be awaited."""

    pauses: bool = False
    """Whether it needs a run that is saved, because it may pause."""

    has_parts: bool = False
    """Whether its work consists of parts, which are saved as they finish."""

    @property
    def graphs(self) -> tuple[Node, ...]:
        """The graphs that it runs, each as a GraphNode."""
        return ()

    otherwise: Any = NOTHING
    """The answer to a pause once its deadline has passed; NOTHING if there is none."""

    asks_for: frozenset[str] = frozenset()
    """The keys under which it takes answers, as far as known."""

    reads: frozenset[str] = frozenset()
    """The keys that it reads from the State, as far as known."""

    writes: frozenset[str] = frozenset()
    """The keys that it writes, as far as known before it runs."""

    def part_writes(self, value: Any) -> Collection[str]:
        """Return the keys to which a finished part with this value contributes."""
        return ()

    def execute(self, step: StepContext) -> Task[Any]:
        """Execute one step; return a State derived from the State of the step, or a mapping of updates to it."""
        raise NotImplementedError

    def question(self, step: StepContext) -> Task[Question]:
        """Return the question at which a run paused here, of this node or of a node of its graph."""
        yield from ()
        return Question(self)

    def accepted(self, answer: Any, about: Answer | None = None) -> Any:
        """Return a valid answer as the node stores it in the State. Raises ValueError for an invalid answer.

        `about` is known unless the value was there before the pause.
        """
        return answer

    def typed(self, name: str, schema: Schema) -> Node:
        """Return the node adapted to a graph with a schema. Raises TypeError if it takes another class."""
        return self

    def made_of(self) -> tuple[Any, ...] | None:
        """Return the functions and settings that decide its result; None if the result depends on anything else."""
        return None

    def outline(self, others: Structures) -> NodeOutline | None:
        """Return the details a picture shows besides its name; None for a function."""
        return None

    def problems(self, name: str) -> Iterator[str]:
        """Yield the reasons why it cannot work under this name in a graph."""
        yield from ()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}{self._about()}>"

    def _about(self) -> str:
        """Return what its repr says about it."""
        return ""


class CompositeNode(Node):
    """A node that executes other nodes."""

    has_parts = True

    @property
    def inner_nodes(self) -> Collection[Node]:
        """The nodes that it executes."""
        raise NotImplementedError

    @property
    def is_async(self) -> bool:  # type: ignore[override]
        """Whether one of them is async."""
        return any(node.is_async for node in self.inner_nodes)

    @property
    def pauses(self) -> bool:  # type: ignore[override]
        """Whether one of them pauses."""
        return any(node.pauses for node in self.inner_nodes)

    @property
    def asks_for(self) -> frozenset[str]:  # type: ignore[override]
        """The keys of all of them."""
        return frozenset().union(*(node.asks_for for node in self.inner_nodes))


LONGEST_KEY = 255
"""Maximum characters of an idempotency key: the limit of services such as Stripe."""


@attrs.frozen
class NodeContext(Generic[Deps_co]):
    """The current step, for a node that takes a context.

    If the store fails, or keeps no entries, `effect`, `spend`, `status` and `messages` end the call of the graph with
    that error. The node has not failed then: it cannot catch the error, and is not tried again.

    To test a node alone, make a context: ``NodeContext("run", "graph", "node", step=1)``. It belongs to no run, so that
    `effect` just calls, and `emit`, `spend` and `status` do nothing.

    For type checkers, ``NodeContext[Client]`` is one whose `deps` are a Client.

    Attributes:
        run_id: The run.
        graph: The name of the graph, from its config.
        node: The node.
        step: The number of the step once it is completed (the first one is 1).
        attempt: The number of the attempt of this step, from 1; for a separately retried item, of the item.
        generation: How often the run was rolled back.
        part: The branch, or the number of the item, if the node has several; otherwise empty.
        answer: The answer after which this step continues; None if it continues after none.
        last_error: The failure of the attempt before at this step or part, also if a resume began this attempt; None if
            there was none.
        deps: What the call gave to its nodes with ``deps=``, also to those of nested graphs; None if nothing. It is not
            saved: each call gives its own.
    """

    run_id: str
    graph: str
    node: str
    step: int
    attempt: int = 1
    generation: int = 0
    part: str = ""
    answer: Answer | None = None
    last_error: ErrorInfo | None = attrs.field(default=None, kw_only=True)
    deps: Deps_co = attrs.field(default=None, kw_only=True, eq=False, repr=False)
    # the step and the name of the node when the step began, if the graph has changed since
    _kept_at: tuple[int, str] | None = attrs.field(default=None, kw_only=True, eq=False, repr=False)
    _is_stopping: Callable[[], bool] = attrs.field(default=bool, kw_only=True, eq=False, repr=False)
    _outermost: str = attrs.field(default="", kw_only=True, eq=False, repr=False)  # the graph around a nested run

    _journal: Any = attrs.field(default=None, kw_only=True, eq=False, repr=False)  # of the step, while it runs

    @overload
    def effect(
        self,
        key: str,
        call: Callable[[], Awaitable[_Result]],
        *,
        confirm: Callable[[str], Awaitable[_Result | None] | _Result | None] | None = None,
    ) -> Coroutine[Any, Any, _Result]: ...
    @overload
    def effect(
        self, key: str, call: Callable[[], _Result], *, confirm: Callable[[str], _Result | None] | None = None
    ) -> _Result: ...
    def effect(self, key: str, call: Callable[[], Any], *, confirm: Callable[[str], Any] | None = None) -> Any:
        """Return what ``call()`` returns. Once that is known, the step does not call it again, even after a crash.

        The intention is saved before the call and the result after it. If the process ends in between, the outcome is
        unknown: `confirm` decides; without it the run pauses, and the answer is the result, or `stategraph.Repeat()`.

        Args:
            key: Identifies the effect among those of this step, or of this part of it.
            call: Does it. If it is async, so is this method: the result is awaited.
            confirm: Finds out whether the effect with a key happened: returns its result, or None if it did not, which
                lets `call` run. It is also called if an earlier call raised; without it such a call is repeated.

        Raises:
            ValueError: the attempt has used the key before.
            RuntimeError: the attempt is over, and a thread or a closure has kept this context.
            NotSerializableError: the result cannot be saved exactly. Its outcome then counts as unknown.
        """
        return call() if self._journal is None else self._journal.effect(key, call, confirm)

    def messages(self) -> list[Mapping[str, Any]]:
        """Return the messages that have come for the run and are not taken in yet; they stay.

        They are taken in after this step. See `StateGraph.send`.
        """
        found: list[Mapping[str, Any]] = [] if self._journal is None else self._journal.messages()
        return found

    def spend(self, **amounts: float | Decimal) -> None:
        """Record what the node has spent, by name, as in ``spend(tokens=120, usd=0.02)``.

        When this returns, it is durable and counts for good, also if the attempt fails: `State.spent` has the sums of
        the run, nested runs included.

        Raises:
            LimitError: The run has reached one of its limits; the amounts count all the same.
            ValueError: An amount is not a finite, non-negative number.
            RuntimeError: The call of the run has ended.
        """
        if self._journal is not None:
            self._journal.spend(amounts)

    def emit(self, chunk: Any) -> None:
        """Emit a chunk, as a generator node does by ``yield``: `StateGraph.stream` shows it while the node goes on.

        Callbacks, threads and tasks of the node may call it. Once the caller has left the stream, or the run is
        cancelled, it ends a sync node, and does nothing elsewhere. It does nothing if no one wants chunks, and
        once the attempt has ended: wait for threads that emit.

        Args:
            chunk: Any value that a State could hold.
        """
        if self._journal is not None:
            self._journal.emit(chunk)

    def status(self, text: str) -> None:
        """Say how far this step or part is, as in ``status("page 45 of 90")``. It replaces the status before.

        `CheckpointStore.under_way`, ``stategraph show`` and the page show it until the step is complete, also after a
        crash. When this returns, it is durable; if the run is not saved, it does nothing.

        Raises:
            TypeError: The text is not a str.
            RuntimeError: As for `effect`.
        """
        if not isinstance(text, str):
            raise TypeError(f"a status is a str, not {type(text).__name__}")
        if self._journal is not None:
            self._journal.status(text)

    @property
    def connection(self) -> Any:
        """The connection of the store, with a transaction that the save of this step commits: what the node writes in
        its own tables and the State after it are durable together, or neither is.

        It is a `sqlite3.Connection` or a `psycopg.Connection`. If the node raises or pauses, it is rolled back. See
        the page "Tables of your own".

        Raises:
            CheckpointError: the store is neither sqlite, disk nor postgres.
            RuntimeError: this is a part of a step, the run is not saved, or the attempt is over.
        """
        if self._journal is None:
            raise RuntimeError("this context belongs to no run, so it has no connection of a store")
        return self._journal.connection()

    @property
    def cancelled(self) -> bool:
        """Whether the run should stop: it was cancelled, or the timeout of the call has passed.

        A long-running node checks it now and then, and returns early or raises. It is always false in a process of
        `ParallelNode` or `MapNode`.
        """
        return self._is_stopping()

    @property
    def idempotency_key(self) -> str:
        """The same key whenever this step is repeated, even after a crash, and a different key for every other step.

        Pass it to services that do an operation once per key, such as payments. It contains the graph, the run, the
        step and the node (and the part), as in ``orders/order-1/#3/pay``; in a nested run, the outermost graph and the
        path from there, as in ``orders/order-1/#3/pay/#1/charge``. Names are percent-encoded except for the characters
        ``A-Z a-z 0-9 . _ ~ -``. It is ASCII and has at most 255 characters: the end of a longer key is replaced by
        ``##`` and the SHA-256 of the whole key. Two stores with runs of the same id and graph give the same keys, and
        so does a run that is deleted and begun again under its id.
        """
        kept = nested_id(self.run_id, *(self._kept_at or (self.step, self.node)), self.generation)
        part = f"/{escaped(self.part)}" if self.part else ""
        return _shortened(f"{escaped(self._outermost or self.graph)}/{kept}{part}")


def _shortened(key: str) -> str:
    if len(key) <= LONGEST_KEY:
        return key
    import hashlib  # imported when used

    digest = hashlib.sha256(key.encode()).hexdigest()
    return f"{key[: LONGEST_KEY - len(digest) - 2]}##{digest}"  # no other key has ## in it


class StepContext(Protocol):
    """One step of a run, as seen by its node.

    A method that returns a Task is a part of the run: call it with ``yield from``.

    Attributes:
        state: The input State of the step.
        attempt: The number of the attempt, from 1.
        is_done_before: Whether all parts, or the nested run, had finished earlier, so that the step only combines them.
    """

    state: State
    attempt: int
    is_done_before: bool

    @property
    def name(self) -> str:
        """The name of the node."""

    @property
    def is_cancelled(self) -> bool:
        """Whether the run is known to be cancelled."""

    @property
    def tracked_state(self) -> State:
        """The State for functions of the user: reads are recorded if the step may have to be repeated."""

    @property
    def state_for_parts(self) -> State:
        """Like tracked_state, with the values with which each part began: from before the answers, for example."""

    # ------------------------------------------------------------------ calling

    def context(self, part: str = "", attempt: int = 0) -> NodeContext:
        """Return the NodeContext of this step or, with `part`, of that part."""

    def check_limits(self) -> None:
        """Raise LimitError if the run has spent what the limits of the call allow."""

    def end_attempt(self, part: str = "") -> None:
        """Let this attempt at the step or, with `part`, at that part begin no more effects: its thread may go on."""

    def note_failure(self, error: Exception, part: str = "") -> None:
        """Remember the failure of an attempt at this step or, with `part`, at that part, for the next attempt."""

    def call(self, function: Callable[[Any], Any], argument: Any) -> Task[Any]:
        """Call a function that may take long, sync or async like the node; return its result."""

    def show_chunk(self, chunk: Any, part: str = "", attempt: int = 0) -> Task[None]:
        """Emit a chunk: show it at once. Keep one that is of no part with the run until the node has finished."""

    def show_yielded(self, chunk: Any) -> Task[None]:
        """Emit a chunk that the node yields, as `show_chunk`; also keep it for other readers if the node does so."""

    @property
    def emits(self) -> bool:
        """Whether anyone wants the chunks of its functions."""

    @property
    def streams(self) -> bool:
        """Whether the caller iterates over the run, and so gets the chunks."""

    sink: Callable[..., object] | None
    """Takes each chunk that a function emits, whether its attempt has ended, its `part` and its `attempt`."""

    def show_partial(self, partial: Partial) -> Task[None]:
        """Show chunks to the caller that iterates over the outermost run."""

    def checked(self, result: Any) -> Any:
        """Validate the result of the node, or of a part of it, against the schema of the graph, and return it."""

    def checked_item(self, key: str, place: str, item: Any) -> Any:
        """Validate an item of the list under a key against the schema of the graph, and return it."""

    def described(self, error: Exception) -> str:
        """Describe an exception, without values of keys that are not saved."""

    # ------------------------------------------------------------------ answers and parts

    def is_answer(self, key: str, *, also_given: bool = False) -> bool:
        """Return whether the State holds an unused answer under this key.

        An answer came by a resume of this step. With `also_given`, any value that answered no step counts.
        """

    def take_answers(self, keys: Iterable[str]) -> None:
        """Use the values of some keys as answers to this step; they answer no other step."""

    def save_input(self, *, at_last: bool = False) -> Task[None]:
        """Save the input State of the step, unless it is saved: saved parts refer to it."""

    def find_begun(self) -> Task[None]:
        """Note which graphs of parts an earlier call has begun."""

    def finished_parts(self, made_of: Mapping[str, Any], kind: str = "part") -> Task[dict[str, Any]]:
        """Return the values of the finished parts of this step, by their labels; or those of another kind of entries.

        `made_of` maps labels to the current inputs: parts that were made from other inputs are left out.
        """

    def keep_parts(self, finished: Mapping[str, Any], made_of: Mapping[str, Any], kind: str = "part") -> Task[None]:
        """Save finished parts of this step with their inputs, or another kind of entries of them."""

    def copier(self, value: Any) -> Callable[[], Any] | None:
        """Return a function that copies a value a part may change; None if the value cannot change or be copied."""

    def show_part(self, label: Any, value: Any) -> Task[None]:
        """Show a finished part to the caller that iterates over the run."""

    def emit_parts(self, parts: Iterable[PartOutcome], total: int) -> Task[None]:
        """Report the outcomes of parts of this step; `total` counts all of its parts."""

    # ------------------------------------------------------------------ nested graphs

    def nested(self, part: str = "", made_of: Any = None, *, is_branch: bool = False) -> NestedStep:
        """Return the nested run of this step or, with `part`, of that part of it, made from `made_of`."""


class NestedStep(Protocol):
    """The nested run of a step or of a part of it.

    Attributes:
        is_done_before: Whether it was complete before this attempt.
    """

    is_done_before: bool

    @property
    def before_updates(self) -> State | None:
        """The State without the changes that the nested run has not received; None if there are none."""

    def result(self, plan: Any, inputs: Mapping[str, Any], updates: Mapping[str, Any]) -> Task[State]:
        """Return the final State of the nested run: completed or, if it waits for an answer, paused.

        If it began before, it continues with its data updated.
        """

    def load(self) -> Task[State | None]:
        """Return its newest saved State, None if there is none."""

    def waiting_step(self, state: State, graph: Any) -> tuple[Node, StepContext] | None:
        """Return the node at which the nested run waits, and its step; None if it does not wait.

        Raises:
            GraphMismatchError: the graph has changed.
        """


@attrs.define(eq=False)
class PartOutcome:
    """The outcome of a part of a step, or of an attempt of it.

    Attributes:
        label: The label of the part.
        result: Its result, or the result made from the `collected` exception.
        error: Its exception, unless that was collected.
        collected: The exception that was turned into a result.
        took: Seconds that it took, if known.
        attempt: The number of the failed attempt, if the part is retried.
        delay: Seconds until the next attempt; None for a finished part.
        pauses: The pauses at which its graph waits.
        is_found: Whether it completed before this attempt of the step.
        is_of_graph: Whether its graph keeps the result.
        is_done_before: Whether its graph had ended before this attempt of the step.
    """

    label: str
    result: Any = None
    error: Exception | None = None
    collected: Exception | None = None
    took: float | None = None
    attempt: int = 0
    delay: float | None = None
    pauses: tuple[Pause, ...] = ()
    is_found: bool = False
    is_of_graph: bool = False
    is_done_before: bool = False

    @property
    def name(self) -> str:
        """The outcome as events name it."""
        if self.is_found:
            return "found"
        if self.delay is not None:
            return "retried"
        return "failed" if self.error else "collected" if self.collected else "completed"


@attrs.frozen
class Question:
    """The question at which a run paused.

    Attributes:
        node: The node that paused.
        fits: Validates the answer against the schemas of the graphs it passes through, or raises ValueError.
        is_gone: Whether the graph that paused begins again, from other data.
    """

    node: Node
    fits: tuple[Callable[[Any], Any], ...] = ()
    is_gone: bool = False

    @property
    def otherwise(self) -> Any:
        """The answer once the deadline has passed; NOTHING if there is none."""
        return self.node.otherwise

    def accepted(self, answer: Any, about: Answer | None = None) -> Any:
        """Return a valid answer as the node stores it in the State. Raises ValueError for an invalid answer."""
        answer = self.node.accepted(answer, about)
        for fit in self.fits:
            answer = fit(answer)
        return answer
