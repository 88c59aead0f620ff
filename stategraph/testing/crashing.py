"""Kill a run or let a node fail at a chosen place, and check that graphs recover."""

from __future__ import annotations

import builtins
import copy
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn, TypeAlias
from urllib.parse import unquote

import attrs

from stategraph import _calls
from stategraph import graph as _graph
from stategraph._engine.context import RunContext
from stategraph._engine.subgraphs import NestedRun
from stategraph._graph.compiled import CompiledGraph
from stategraph._plan import equipped, saved_keys
from stategraph._protocol import Task
from stategraph._text.shown import shorten
from stategraph._values import clock
from stategraph._values.entries import Entry
from stategraph._values.events import NoopObserver
from stategraph._values.ids import NESTED, is_nested_id
from stategraph._values.progress import KeptParts
from stategraph._values.provenance import RunStatus
from stategraph._values.sameness import differing_items
from stategraph.config import CheckpointConfig
from stategraph.graph import StateGraph
from stategraph.nodes.base import Node, StepContext
from stategraph.state import State
from stategraph.stores.base import CheckpointStore, RetentionPolicy
from stategraph.stores.memory import MemoryStore

Answers: TypeAlias = Mapping[str, Any] | Callable[[State], Mapping[str, Any]]
"""Answers to pauses: a mapping from keys to answers, or a function from the paused State to updates."""


class Killed(BaseException):
    """The process of a run is dead. It is a BaseException: a killed program handles no exception."""


class MortalStore(CheckpointStore):
    """Passes all calls to another store until its process dies, and then refuses them.

    The other store then holds the data that a killed process leaves.

    Args:
        kept: The other store.
        dies_at: The number of the write at which the process dies, from 1; None if only `die` kills it.
        after: Whether to do that write first.
    """

    def __init__(self, kept: CheckpointStore, dies_at: int | None = None, *, after: bool = False) -> None:
        self.kept: CheckpointStore = kept
        self.is_dead: bool = False
        self.after: bool = after
        self._dies_at = dies_at
        self.writes: list[str] = []

    @property
    def keeps_parts(self) -> bool:  # type: ignore[override]
        """Whether the other store keeps parts."""
        return self.kept.keeps_parts

    @property
    def keeps_entries(self) -> bool:
        """Whether the other store keeps entries."""
        return self.kept.keeps_entries

    def die(self) -> NoReturn:
        """Kill the process. A node may call this, too."""
        self.is_dead = True
        raise Killed

    def save(self, state: State) -> None:
        self._write(f"step {state.step} is saved", self.kept.save, state)

    def amend(self, state: State) -> None:
        self._write(f"step {state.step} is saved again", self.kept.amend, state)

    def delete(self, run_id: str) -> None:
        self._write("the run is deleted", self.kept.delete, run_id)

    def append(self, run_id: str, entries: Sequence[Entry]) -> builtins.list[Entry]:
        names = ", ".join(entry.name or entry.kind for entry in entries)
        what = f"{entries[0].kind} {names} of node {entries[0].place!r} is kept"
        kept: builtins.list[Entry] = self._write(what, self.kept.append, run_id, entries)
        return kept

    def entries(
        self, run_id: str, *, step: int | None = None, kinds: Collection[str] | None = None, after: int = 0
    ) -> builtins.list[Entry]:
        return self._living().entries(run_id, step=step, kinds=kinds, after=after)

    def drop_parts(self, run_id: str, step: int, *, newer_too: bool = False) -> None:
        self._write("parts are dropped", self.kept.drop_parts, run_id, step, newer_too=newer_too)

    def load(self, run_id: str, step: int | None = None, revision: int | None = None) -> State:
        return self._living().load(run_id, step, revision)

    def list(self) -> builtins.list[str]:
        return self._living().list()

    def retain(self, run_id: str, policy: RetentionPolicy) -> None:
        self._living().retain(run_id, policy)

    def load_parts(self, run_id: str, step: int, node: str) -> KeptParts:
        return self._living().load_parts(run_id, step, node)

    def _living(self) -> CheckpointStore:
        if self.is_dead:
            raise Killed
        return self.kept

    def _write(self, what: str, write: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        self._living()
        self.writes.append(what)
        is_last = len(self.writes) == self._dies_at
        result = write(*arguments, **options) if not is_last or self.after else None
        if is_last:
            self.die()
        return result


# --------------------------------------------------------------------------- one kill, one failure


@contextmanager
def kill_at(step: int | str, *, saved: bool = True) -> Iterator[None]:
    """Kill the process of a run when it saves a step. The calls in the block end there.

    ::

        with kill_at(2):
            graph.execute(State(run_id="a"))
        assert graph.store.load("a").step == 2
        graph.resume("a")

    The block ends without an exception, and the store holds the data that a killed process leaves. This applies to all
    graphs that are called in the block, in any thread. A number counts the steps of the outermost runs.

    Args:
        step: The number of the step, or the name of its node. A node of a nested graph is named by its path, such as
            "research/search", or "both/left/search" in a branch.
        saved: Whether to save the step first. If not, the step before it is the newest one.

    Raises:
        AssertionError: no run saved this step.
    """
    died = False

    class Dying(MortalStore):
        def save(self, state: State) -> None:
            nonlocal died
            if not _has_come_to(step, state):
                self._living().save(state)
                return
            if saved and (state.step == step or isinstance(step, str)):
                self._living().save(state)
            died = True
            self.die()

    def dying(plan: CompiledGraph, store: CheckpointStore) -> tuple[CompiledGraph, CheckpointStore]:
        return attrs.evolve(plan, write_behind=False), Dying(store)  # else chance decides whether the step is saved

    with _changed_runs(dying), suppress(Killed):
        yield
    if not died:
        raise AssertionError(
            f"kill_at({step!r}): no run in the block has saved {'a step of node' if isinstance(step, str) else 'step'} "
            f"{step}; its interval says which steps a graph saves, "
            "and the last one is saved only with preserve=True"
        )


def _has_come_to(step: int | str, state: State) -> bool:
    """Return whether a saved State is at a step, or after it."""
    if not isinstance(step, str):
        return state.step >= step and not is_nested_id(state.run_id)  # nested runs count their own steps
    is_after_a_step = state.status in (RunStatus.ACTIVE, RunStatus.COMPLETED)
    return is_after_a_step and step == _way_to(state.run_id) + state.checkpoint_node


def _way_to(run_id: str) -> str:
    """Return the path from the outermost graph to that of a nested run: names, each followed by a slash."""
    nested = [part.partition("/")[2].split("~") for part in run_id.split(NESTED)[1:]]
    ways = [name if not part or part[0].isdecimal() else f"{name}/{part[0]}" for name, *part in nested]
    return "".join(f"{unquote(way)}/" for way in ways)


@contextmanager
def fail_at(node: str, error: Exception | None = None, *, times: int = 1) -> Iterator[None]:
    """Let the first calls of a node in the block fail before it does anything.

    Args:
        node: The name of the node. A node of a nested graph is named by its path, such as "research/search", or
            "both/left/search" in a branch.
        error: The exception to raise; a RuntimeError by default.
        times: How many calls fail. Each attempt of a retry counts.

    Raises:
        AssertionError: the node was not called.
    """
    left, raised = times, error or RuntimeError(f"fail_at({node!r})")

    def fail() -> None:
        nonlocal left
        left -= 1
        if left >= 0:
            raise raised

    with _changed_runs(lambda plan, store: (_failing_at(node, fail, plan, store), store)):
        yield
    if left == times:
        raise AssertionError(f"fail_at({node!r}): no run in the block has come to a node of this name")


def _failing_at(path: str, fail: Callable[[], None], plan: CompiledGraph, store: CheckpointStore) -> CompiledGraph:
    """Return a copy of a graph whose node at this path fails; the graph itself if it has no such node."""
    stage = plan.stages.get(path)
    if stage is not None:
        stage = attrs.evolve(stage, node=_failing(stage.node, fail), is_plain=False)
        return equipped(attrs.evolve(plan, stages={**plan.stages, path: stage}), store)
    if path.partition("/")[0] not in plan.stages:
        return plan

    class Failing(NestedRun):
        def result(self, plan: CompiledGraph, inputs: Mapping[str, Any], updates: Mapping[str, Any]) -> Task[State]:
            way = f"{self.step.name}/{self.branch}"
            if path.startswith(way):
                plan = _failing_at(path.removeprefix(way), fail, plan, store)
            return super().result(plan, inputs, updates)

    return attrs.evolve(plan, nested_run=Failing)


def _failing(node: Node, fail: Callable[[], None]) -> Node:
    """Return a copy of a node that first calls a function which may raise."""

    def execute(step: StepContext) -> Task[Any]:
        fail()
        return (yield from node.execute(step))

    failing = copy.copy(node)
    object.__setattr__(failing, "execute", execute)
    return failing


@contextmanager
def _changed_runs(
    change: Callable[[CompiledGraph, CheckpointStore], tuple[CompiledGraph, CheckpointStore]],
) -> Iterator[None]:
    """Replace the compiled graph and the store of each run that begins in the block."""

    def new_run(plan: CompiledGraph, config: Any, store: CheckpointStore, *about: Any, **more: Any) -> RunContext:
        plan, store = change(plan, store)
        return _calls.new_run(plan, config, store, *about, **more)

    names = vars(_graph)
    before, names["new_run"] = names["new_run"], new_run
    try:
        yield
    finally:
        names["new_run"] = before


# --------------------------------------------------------------------------- all kills


def assert_resumes_everywhere(
    graph: StateGraph, state: State, *, answers: Answers | None = None, ignore: Collection[str] = ()
) -> int:
    """Check that a run ends the same wherever its process is killed.

    Each run has its own memory store, which saves every step. It is killed before and after each write, continues as
    `StateGraph.run` does, and must end with the same data and number of steps as an undisturbed run. Nodes are really
    called, many times. Nothing is written to the store of the graph. Everything happens in this process, so global
    variables survive a kill.

    Args:
        graph: The graph.
        state: The State that the run begins with.
        answers: The answers to pauses, if the run pauses.
        ignore: A key that may differ, such as one with a time, or several keys.

    Returns:
        How many times the run was killed.

    Raises:
        AssertionError: the run ends differently, or two undisturbed runs do.
        ExecutionError: an undisturbed run fails.
    """
    undisturbed = MortalStore(MemoryStore())
    expected = _to_the_end(graph, undisturbed, state, answers)
    ignored = {ignore} if isinstance(ignore, str) else set(ignore)
    if graph.config.checkpoint.persist is not None:  # a run that completed before the kill has only these
        saved = saved_keys(graph.config.checkpoint)
        ignored.update(key for key in expected if key not in saved)
    again = _to_the_end(graph, MortalStore(MemoryStore()), state, answers)
    if different := _difference(expected, again, ignored):
        raise AssertionError(
            f"two undisturbed runs end differently: {different}. The nodes depend on something outside of the State; "
            "ignore=(...) names keys that may differ"
        )
    total = len(undisturbed.writes)
    deaths = 0
    for number in range(1, total + 1):
        for after in (False, True):
            dying = MortalStore(MemoryStore(), number, after=after)
            try:
                ended = _killed_once(graph, state, answers, dying)
            except Exception as error:
                raise AssertionError(f"{_place(dying, total)}, it does not go on: {error!r}") from error
            if ended is not None and (different := _difference(expected, ended, ignored)):
                raise AssertionError(f"{_place(dying, total)}, it ends differently: {different}")
            deaths += dying.is_dead
    return deaths


def _killed_once(graph: StateGraph, state: State, answers: Answers | None, dying: MortalStore) -> State | None:
    """Run a graph until its process dies, and continue; return the last State, or None if the process did not die.

    Parts that run at the same time may share a write, so a run may have fewer writes than another.
    """
    with suppress(Killed):
        _to_the_end(graph, dying, state, answers)
    return _to_the_end(graph, MortalStore(dying.kept), state, answers) if dying.is_dead else None


def _place(dying: MortalStore, total: int) -> str:
    """Return in words where a process died."""
    if not dying.is_dead:
        return "before the process was killed"
    when = "after" if dying.after else "before"
    return f"killed {when} write {len(dying.writes)} of {total}, when {dying.writes[-1]}"


def _to_the_end(graph: StateGraph, store: CheckpointStore, state: State, answers: Answers | None) -> State:
    """Run a copy of a graph to its end on a store that saves every step, and answer its pauses."""
    persist = graph.config.checkpoint.persist
    copied = copy.copy(graph)
    copied.config = attrs.evolve(graph.config, checkpoint=CheckpointConfig(interval=1, preserve=True, persist=persist))
    copied.store, copied.observer = store, NoopObserver()
    copied._changed()
    state = copied.run(state)
    while state.status is RunStatus.PAUSED:
        state = copied.resume(state.run_id, _answer(state, answers), pause=state.pause)
    return state


def _answer(state: State, answers: Answers | None) -> Mapping[str, Any]:
    pause = state.pause
    if callable(answers):
        return answers(state)
    if pause is None or pause.response_param is None:
        return {}
    if answers is None or pause.response_param not in answers:
        raise AssertionError(
            f"the run pauses at node {pause.node!r} for {pause.response_param!r}: "
            f"give the answer, as answers={{{pause.response_param!r}: ...}}"
        )
    return {pause.response_param: answers[pause.response_param]}


def _difference(expected: State, ended: State, ignore: Collection[str]) -> str:
    """Return in words how the ends of two runs differ; empty if they do not."""
    if expected.step != ended.step:
        return f"after {ended.step} steps, not {expected.step}"
    before, after = ({key: value for key, value in state.items() if key not in ignore} for state in (expected, ended))
    gone = sorted(before.keys() - after.keys())
    if gone:
        return f"{gone[0]!r} is missing; it was {shorten(before[gone[0]])}"
    changed = differing_items(before, after)
    if changed:
        key = min(changed)
        return f"{key!r} is {shorten(changed[key])}, " + (f"not {shorten(before[key])}" if key in before else "new")
    return ""


# --------------------------------------------------------------------------- time and ids


_BEGINNING = datetime(2020, 1, 1, tzinfo=UTC)


@attrs.define
class FixedClock:
    """A clock that tests advance; see `fixed`."""

    _next_ns: int
    _tick_ns: int

    def advance(self, by: timedelta | float) -> None:
        """Let a time pass: a timedelta, or seconds."""
        self._next_ns += (
            round((by if isinstance(by, timedelta) else timedelta(seconds=by)) / timedelta(microseconds=1)) * 1000
        )

    def _read(self) -> int:
        now, self._next_ns = self._next_ns, self._next_ns + self._tick_ns
        return now

    def _pause(self, seconds: float) -> float:
        self.advance(seconds)
        return 0.0


@contextmanager
def fixed(start: datetime = _BEGINNING, tick: timedelta = timedelta(seconds=1)) -> Iterator[FixedClock]:
    """Fix time and ids; yield the clock, whose ``advance(seconds)`` lets time pass.

    The clock begins at `start` and advances by `tick` whenever it is read. Delays between attempts advance it, too,
    instead of taking time. Steps take no time, and new runs are named ``run-1``, ``run-2`` and so on. This applies to
    the whole process: do not run such tests in parallel threads.

    Args:
        start: The first time; aware.
        tick: How far the clock advances; may be negative.
    """
    times = FixedClock(clock.to_ns(start), tick // timedelta(microseconds=1) * 1000)
    ids = (f"run-{count}" for count in itertools.count(1))
    before = clock.now_ns, clock.monotonic_ns, clock.new_run_id, clock.pause
    clock.now_ns, clock.monotonic_ns, clock.new_run_id, clock.pause = times._read, int, ids.__next__, times._pause
    try:
        yield times
    finally:
        clock.now_ns, clock.monotonic_ns, clock.new_run_id, clock.pause = before
