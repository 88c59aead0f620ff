"""Processes that crash, are cancelled or interrupted at a given point of a run, for tests and proofs."""

from __future__ import annotations

import asyncio
import builtins
import threading
from collections.abc import Callable, Mapping, Sequence
from inspect import isfunction
from pathlib import Path
from typing import Any, TypeAlias

import attrs

from stategraph import (
    CheckpointNotFoundError,
    CheckpointStore,
    Event,
    EventType,
    ExecutionError,
    NodeContext,
    Pause,
    RunCancelledError,
    RunStatus,
    State,
    StateGraph,
)
from stategraph._progress import persisted
from stategraph.stores.disk import DiskStore
from stategraph.stores.memory import MemoryStore
from stategraph.stores.sqlite import SqliteStore
from tests.scenarios import RUN

MOST_CALLS = 200
"""Calls of execute and resume that one process makes at most: a run that needs more never ends."""


class Crash(BaseException):
    """The process is dead: nothing that it does after this leaves a trace."""


class SimulatedProcess:
    """One process. It counts the points that it comes to; at one of them something may happen to it.

    Args:
        until: The number of that point, from 1; None if nothing ever happens.
        act: What happens; it dies if nothing is given.
        kinds: The points that count: "store" before and after each operation of the store, "work" before and after
            each effect of a node or part, "call" around each call of the graph, "event" at each event.
    """

    def __init__(
        self,
        until: int | None = None,
        act: Callable[[SimulatedProcess], None] | None = None,
        kinds: Sequence[str] = ("store", "work", "call"),
    ) -> None:
        self.until, self.act, self.kinds = until, act or SimulatedProcess.die, kinds
        self.passed: list[str] = []
        self.events: list[list[Event]] = []
        self.stopped: list[BaseException] = []
        self.is_dead = False
        self.cancel = threading.Event()
        self.stop_task: Callable[[], object] = bool
        self.listener: Callable[[Event], object] = bool
        self._lock = threading.RLock()

    def point(self, kind: str, name: str) -> None:
        """Come to a point."""
        with self._lock:
            if self.is_dead:
                raise Crash(name)
            if kind in self.kinds:
                self.passed.append(name)
                if len(self.passed) == self.until:
                    self.act(self)

    def alive(self, what: Callable[[], object]) -> None:
        """Do something that leaves a trace, unless it is dead."""
        with self._lock:
            if self.is_dead:
                raise Crash
            what()

    def die(self) -> None:
        """Die here."""
        self.is_dead = True
        raise Crash(self.passed[-1])

    def on_event(self, event: Event) -> None:
        """Hear of an event, as the observer of the graph."""
        self.events[-1].append(event)
        self.listener(event)
        self.point("event", event.type)


def cancels(process: SimulatedProcess) -> None:
    """Set the cancel event, as another thread might do at any time."""
    process.cancel.set()


def cancels_task(process: SimulatedProcess) -> None:
    """Cancel the task that runs the graph; of the blocking driver, set the cancel event."""
    process.cancel.set()
    process.stop_task()


def interrupts(process: SimulatedProcess) -> None:
    """Raise what Ctrl-C raises."""
    raise KeyboardInterrupt


# --------------------------------------------------------------------------- what outlives a process


def key_of(context: NodeContext) -> str:
    """Return the idempotency key of a step without the graph, which a store does not know when it keeps parts."""
    return context.idempotency_key.partition("/")[2]


class Everything(set[str]):
    """All that may fail once has failed before."""

    def __contains__(self, key: object) -> bool:
        return True


@attrs.define(eq=False)
class Journal:
    """The effects of nodes and parts, and the saves that the store has acknowledged.

    Attributes:
        done: Every effect: the key of its step, and a text of what went into it.
        repeated: Effects of steps and parts that were saved already, which must not be.
        failed: Effects that have failed once.
    """

    done: list[tuple[str, str]] = attrs.field(factory=list)
    repeated: list[str] = attrs.field(factory=list)
    failed: set[str] = attrs.field(factory=set)
    _steps: dict[str, int] = attrs.field(factory=dict)
    _parts: set[str] = attrs.field(factory=set)

    def note(self, context: NodeContext, what: str) -> None:
        """Take down an effect."""
        key = key_of(context)
        if context.step <= self._steps.get(context.run_id, 0) or key in self._parts:
            self.repeated.append(key)
        self.done.append((key, what))

    def acknowledge(self, method: str, arguments: tuple[Any, ...]) -> None:
        """Learn of an operation of the store that has succeeded."""
        if method in {"save", "amend"}:
            self.reach(arguments[0].run_id, arguments[0].step)
        elif method == "save_many":
            self.reach(arguments[0][-1].run_id, arguments[0][-1].step)
        elif method == "save_parts":
            run_id, parts = arguments
            done = [part for part in parts if part.kind == "part"]
            self._parts.update(key_of(NodeContext(run_id, "", part.node, part.step, part=part.label)) for part in done)
        elif method == "delete":
            (gone,) = arguments
            self._steps = {run: step for run, step in self._steps.items() if not f"{run}/".startswith(f"{gone}/")}
            self._parts = {key for key in self._parts if not key.startswith(f"{gone}/")}

    def trust(self, event: Event) -> None:
        """Take an event at its word: a part that it calls complete, and a step that it calls saved, are safe."""
        data = event.data
        if event.type is EventType.PART_COMPLETE:
            self._parts.add(key_of(NodeContext(data["run_id"], "", data["node"], data["step"], part=data["part"])))
        elif event.type is EventType.CHECKPOINT_SAVE:
            self.reach(data["run_id"], data["step"])

    def reach(self, run_id: str, step: int) -> None:
        """Learn that a step of a run is safe."""
        self._steps[run_id] = max(step, self._steps.get(run_id, 0))


class MortalStore(CheckpointStore):
    """Hands every operation on to another store, while its process is alive."""

    def __init__(self, inner: CheckpointStore, process: SimulatedProcess, journal: Journal) -> None:
        self.inner, self._life, self._journal = inner, process, journal

    @property
    def keeps_parts(self) -> bool:  # type: ignore[override]
        return self.inner.keeps_parts

    def save(self, state: State) -> None:
        self._do("save", state)

    def load(self, run_id: str, step: int | None = None, revision: int | None = None) -> State:
        loaded: State = self._do("load", run_id, step, revision)
        return loaded

    def delete(self, run_id: str) -> None:
        self._do("delete", run_id)

    def list(self) -> builtins.list[str]:
        return self.inner.list()

    def _do(self, method: str, *arguments: Any, **options: Any) -> Any:
        self._life.point("store", f"before {method}")
        answer = getattr(self.inner, method)(*arguments, **options)
        self._journal.acknowledge(method, arguments)
        self._life.point("store", f"after {method}")
        return answer


def _handed_on(method: str) -> Callable[..., Any]:
    def operation(self: MortalStore, *arguments: Any, **options: Any) -> Any:
        return self._do(method, *arguments, **options)

    return operation


for _name, _operation in vars(CheckpointStore).items():  # every other method of a store
    if isfunction(_operation) and not _name.startswith("_") and _name not in {*vars(MortalStore), "close"}:
        setattr(MortalStore, _name, _handed_on(_name))

STORES: dict[str, Callable[[Path], CheckpointStore]] = {
    "memory": lambda folder: MemoryStore(),
    "sqlite": lambda folder: SqliteStore(folder / "runs.db"),
    "disk": lambda folder: DiskStore(folder / "runs"),
}


@attrs.define(eq=False)
class World:
    """State that outlives a process: the files of the store (or the memory store itself) and the journal.

    Attributes:
        is_prompt: Whether what events call complete or saved is safe, as it is unless States are saved later.
    """

    kind: str
    folder: Path
    journal: Journal = attrs.field(factory=Journal)
    is_prompt: bool = True
    _memory: MemoryStore = attrs.field(factory=MemoryStore)

    def opened(self) -> CheckpointStore:
        """Return the store, as a new process finds it."""
        return self._memory if self.kind == "memory" else STORES[self.kind](self.folder)


class Tool:
    """A tool of nodes: each call records an effect, between two points where a process may end."""

    def __init__(self, process: SimulatedProcess, journal: Journal) -> None:
        self._life, self._journal = process, journal

    def work(self, context: NodeContext, what: object = "") -> None:
        """Have an effect."""
        key = key_of(context)
        self._life.point("work", f"before {key}")
        self._life.alive(lambda: self._journal.note(context, repr(what)))
        self._life.point("work", f"after {key}")

    def fail_once(self, context: NodeContext) -> None:
        """Fail, the first time in the world."""
        key, failed = key_of(context), self._journal.failed
        if key not in failed:
            self._life.alive(lambda: failed.add(key))
            raise ConnectionError(key)


# --------------------------------------------------------------------------- living

Build: TypeAlias = Callable[[CheckpointStore, SimulatedProcess, Tool], StateGraph]
Answer: TypeAlias = Callable[[Pause], Any]


def call_sync(graph: StateGraph, process: SimulatedProcess, method: str, *arguments: Any) -> State:
    """Call `execute` or `resume`."""
    final: State = getattr(graph, method)(*arguments, cancel=process.cancel)
    return final


def call_async(graph: StateGraph, process: SimulatedProcess, method: str, *arguments: Any) -> State:
    """Call `aexecute` or `aresume` on a new event loop."""

    async def run() -> State:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        process.stop_task = lambda: loop.call_soon_threadsafe(task.cancel)
        try:
            final: State = await getattr(graph, f"a{method}")(*arguments, cancel=process.cancel)
        finally:
            process.stop_task = bool
        return final

    return asyncio.run(run())


class LeftError(Exception):
    """The caller left an iteration over a run before it ended."""


CALLS: dict[str, Callable[..., State]] = {"sync": call_sync, "async": call_async}
TURN = "turn"
"""The key of the number of a further input, from 1."""


def live(
    world: World,
    build: Build,
    data: Mapping[str, Any],
    answer: Answer,
    *,
    driver: str = "sync",
    calls: Mapping[str, Callable[..., State]] = CALLS,
    process: SimulatedProcess,
    turns: Sequence[Mapping[str, Any]] = (),
) -> State:
    """Begin or resume the run in one process and answer its questions; return its final State.

    After a cancellation or an interrupt another call resumes the run. Each turn is a further input to the complete run.

    Raises:
        Crash: the process is over.
    """
    with world.opened() if world.kind != "memory" else _Kept(world.opened()) as store:
        if world.is_prompt:
            process.listener = world.journal.trust
        graph = build(MortalStore(store, process, world.journal), process, Tool(process, world.journal))
        keys = None if (persist := graph.config.checkpoint.persist) is None else frozenset(persist)
        arguments: tuple[Any, ...]
        for _ in range(MOST_CALLS):
            try:
                saved = store.load(RUN)
            except CheckpointNotFoundError:
                method, arguments = "execute", (State(data, run_id=RUN),)
            else:
                done = saved.get(TURN, 0)
                if saved.status is not RunStatus.COMPLETED:
                    method, arguments = "resume", (RUN, _answers(saved, answer))
                elif done == len(turns):
                    return saved
                else:
                    method, arguments = "execute", (saved.update(turns[done], **{TURN: done + 1}),)
            process.events.append([])
            try:
                process.point("call", f"before {method}")
                final = calls[driver](graph, process, method, *arguments)
                if final.status is RunStatus.COMPLETED and final.get(TURN, 0) == len(turns):
                    return final
                assert store.load(RUN) == persisted(final, keys), "a pause that is not saved as it is returned"
                process.point("call", f"after {method}")
            except (ExecutionError, RunCancelledError, KeyboardInterrupt, asyncio.CancelledError, LeftError) as error:
                process.stopped.append(error)
                process.cancel = threading.Event()
        raise AssertionError(f"the run did not complete within {MOST_CALLS} calls") from process.stopped[-1]


def _answers(saved: State, answer: Answer) -> dict[str, Any] | None:
    pause = saved.pause
    return None if pause is None or pause.response_param is None else {pause.response_param: answer(pause)}


@attrs.frozen
class _Kept:
    """A store that is not closed when a process ends."""

    store: CheckpointStore

    def __enter__(self) -> CheckpointStore:
        return self.store

    def __exit__(self, *exception: object) -> None: ...
