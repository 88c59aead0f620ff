"""Processes that die and nodes that fail, at a place that a test chooses; and whether a graph comes through that."""

from __future__ import annotations

import builtins
import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NoReturn, TypeAlias
from urllib.parse import unquote

import attrs

from stategraph import _plan
from stategraph import graph as _graph
from stategraph._engine.context import RunContext
from stategraph._engine.subgraphs import NestedRun
from stategraph._graph.compiled import CompiledGraph
from stategraph._plan import equipped, saved_keys
from stategraph._protocol import Task
from stategraph._text.shown import shorten
from stategraph._values.ids import NESTED, is_nested_id
from stategraph._values.progress import KeptParts, Part
from stategraph._values.provenance import RunStatus
from stategraph._values.sameness import differing_items
from stategraph.config import CheckpointConfig
from stategraph.graph import StateGraph
from stategraph.nodes.base import Node
from stategraph.nodes.step import StepContext
from stategraph.observers.base import NoopObserver
from stategraph.state import State
from stategraph.stores.base import CheckpointStore, RetentionPolicy
from stategraph.stores.memory import MemoryStore

Answers: TypeAlias = Mapping[str, Any] | Callable[[State], Mapping[str, Any]]
"""What is answered to pauses: answers by their keys, or a function of the paused State that returns updates."""


class Killed(BaseException):
    """The process of a run is dead. It is no Exception: nothing in a program that is killed would see it."""


class MortalStore(CheckpointStore):
    """Hands every call on to another store until its process dies. From then on nothing is written or read any more.

    What the other store holds then is what a killed process leaves.

    Args:
        kept: The other store.
        dies_at: The number of the write at which the process dies, from 1; None if it dies only by `die`.
        after: Whether that write is done first.
    """

    def __init__(self, kept: CheckpointStore, dies_at: int | None = None, *, after: bool = False) -> None:
        self.kept, self.is_dead = kept, False
        self._dies_at, self.after = dies_at, after
        self.writes: list[str] = []

    @property
    def keeps_parts(self) -> bool:  # type: ignore[override]
        """As the other one."""
        return self.kept.keeps_parts

    def die(self) -> NoReturn:
        """Let the process die: for use in a node, too."""
        self.is_dead = True
        raise Killed

    def save(self, state: State) -> None:
        self._write(f"step {state.step} is saved", self.kept.save, state)

    def amend(self, state: State) -> None:
        self._write(f"step {state.step} is saved once more", self.kept.amend, state)

    def delete(self, run_id: str) -> None:
        self._write("the run is deleted", self.kept.delete, run_id)

    def save_parts(self, run_id: str, parts: Sequence[Part]) -> None:
        labels = ", ".join(part.label for part in parts)
        self._write(f"parts {labels} of node {parts[0].node!r} are saved", self.kept.save_parts, run_id, parts)

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

    def _write(self, what: str, write: Callable[..., object], *arguments: Any, **options: Any) -> None:
        self._living()
        self.writes.append(what)
        is_last = len(self.writes) == self._dies_at
        if not is_last or self.after:
            write(*arguments, **options)
        if is_last:
            self.die()


# --------------------------------------------------------------------------- one death, one failure


@contextmanager
def kill_at(step: int | str, *, saved: bool = True) -> Iterator[None]:
    """Let the process of a run die when it saves a step: what is called in the block ends there.

    ::

        with kill_at(2):
            graph.execute(State(run_id="a"))
        assert graph.store.load("a").step == 2
        graph.resume("a")

    The block is left as if all in it had ended; the store holds what a killed process leaves. Runs of all graphs count
    that are called in the block, in any thread. Numbers are those of the steps of the outermost runs.

    Args:
        step: The number of the step, or the name of the node that makes it. Of a node of a nested graph, the name is a
            path, such as "research/search"; of a branch, "both/left/search".
        saved: Whether it is saved first; if not, the step before is the newest one.

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

    def dying(plan: CompiledGraph, config: Any, store: CheckpointStore, *about: Any, **more: Any) -> RunContext:
        synchronous = attrs.evolve(plan, write_behind=False)  # or the step would be saved, or not, by chance
        return _plan.new_run(synchronous, config, Dying(store), *about, **more)

    with _runs_made_by(dying), suppress(Killed):
        yield
    if not died:
        raise AssertionError(
            f"kill_at({step!r}): no run in the block has saved {'a step of node' if isinstance(step, str) else 'step'} "
            f"{step}; its interval says which steps a graph saves, "
            "and the last one is saved only with preserve=True"
        )


def _has_come_to(step: int | str, state: State) -> bool:
    """Return whether a State that is saved is that after a step, or a later one."""
    if not isinstance(step, str):
        return state.step >= step and not is_nested_id(state.run_id)  # their steps have numbers of their own
    is_after_a_step = state.status in (RunStatus.ACTIVE, RunStatus.COMPLETED)
    return is_after_a_step and step == _way_to(state.run_id) + state.checkpoint_node


def _way_to(run_id: str) -> str:
    """Return what leads to the graph of a nested run from the outermost one: names, each followed by a slash."""
    nested = [part.partition("/")[2].split("~") for part in run_id.split(NESTED)[1:]]
    ways = [name if not part or part[0].isdecimal() else f"{name}/{part[0]}" for name, *part in nested]
    return "".join(f"{unquote(way)}/" for way in ways)


@contextmanager
def fail_at(node: str, error: Exception | None = None, *, times: int = 1) -> Iterator[None]:
    """Let a node fail before it does anything, the first times that it is called in the block.

    Args:
        node: Its name in the graph that is called. Of a node of a nested graph it is a path, such as "research/search";
            of a branch, "both/left/search".
        error: What is raised; a RuntimeError if nothing is given.
        times: How often; attempts of a retry count.

    Raises:
        AssertionError: the node was not called.
    """
    left, raised = times, error or RuntimeError(f"fail_at({node!r})")

    def fail() -> None:
        nonlocal left
        left -= 1
        if left >= 0:
            raise raised

    def failing(plan: CompiledGraph, config: Any, store: CheckpointStore, *about: Any, **more: Any) -> RunContext:
        return _plan.new_run(_failing_at(node, fail, plan, store), config, store, *about, **more)

    with _runs_made_by(failing):
        yield
    if left == times:
        raise AssertionError(f"fail_at({node!r}): no run in the block has come to a node of this name")


def _failing_at(path: str, fail: Callable[[], None], plan: CompiledGraph, store: CheckpointStore) -> CompiledGraph:
    """Return a graph whose node at a path fails, if there is one."""
    stage = plan.stages.get(path)
    if stage is not None:
        stage = attrs.evolve(stage, node=_FailingNode(stage.node, fail), is_plain=False)
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


class _FailingNode(Node):
    """A node that is like another one, and fails first."""

    def __init__(self, node: Node, fail: Callable[[], None]) -> None:
        vars(self).update((name, getattr(node, name)) for name in dir(node) if not name.startswith("_"))
        del self.execute
        self._node, self._fail = node, fail

    def execute(self, step: StepContext) -> Task[Any]:
        self._fail()
        return (yield from self._node.execute(step))

    def problems(self, name: str) -> Iterator[str]:
        return self._node.problems(name)


@contextmanager
def _runs_made_by(make: Callable[..., RunContext]) -> Iterator[None]:
    """Have the runs of all graphs made by this function."""
    names = vars(_graph)
    before, names["new_run"] = names["new_run"], make
    try:
        yield
    finally:
        names["new_run"] = before


# --------------------------------------------------------------------------- every death


def assert_resumes_everywhere(
    graph: StateGraph, state: State, *, answers: Answers | None = None, ignore: Collection[str] = ()
) -> int:
    """Check that a run ends the same wherever its process is killed.

    The run is made on a memory store of its own, every step saved. It is killed before and after each write, goes on as
    `StateGraph.run` does, and has to end with the same data, after as many steps, as one that nobody disturbed.
    Nodes are called for real, and many times; nothing is written to the store of the graph.
    All of it happens in this process, so what nodes leave in global variables is still there after a kill.

    Args:
        graph: The graph.
        state: What the run begins with.
        answers: What pauses are answered with, if the run pauses.
        ignore: Keys that need not be the same, such as those with times in them; or one of them.

    Returns:
        How many times it was killed.

    Raises:
        AssertionError: it ends differently; or two runs that nobody disturbed do.
        ExecutionError: a run that nobody disturbed fails.
    """
    undisturbed = MortalStore(MemoryStore())
    expected = _to_the_end(_on(graph, undisturbed), state, answers)
    ignored = {ignore} if isinstance(ignore, str) else set(ignore)
    if graph.config.checkpoint.persist is not None:  # a run that was complete when its process was killed has no others
        saved = saved_keys(graph.config.checkpoint)
        ignored.update(key for key in expected if key not in saved)
    again = _to_the_end(_on(graph, MortalStore(MemoryStore())), state, answers)
    if different := _difference(expected, again, ignored):
        raise AssertionError(
            f"two runs that nobody disturbed end differently: {different}. Its nodes depend on something outside of "
            "the State; keys that may differ are named by ignore=(...)"
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
    """Run a graph until its process dies, and go on; return how it ends, or None if the process did not die.

    Parts that run at the same time may be saved together: then there are fewer writes than in another run.
    """
    with suppress(Killed):
        _to_the_end(_on(graph, dying), state, answers)
    return _to_the_end(_on(graph, MortalStore(dying.kept)), state, answers) if dying.is_dead else None


def _place(dying: MortalStore, total: int) -> str:
    """Say where a process died."""
    if not dying.is_dead:
        return "in a process that was to be killed later"
    when = "after" if dying.after else "before"
    return f"killed {when} write {len(dying.writes)} of {total}, when {dying.writes[-1]}"


def _on(graph: StateGraph, store: CheckpointStore) -> StateGraph:
    """Return a graph like this one over another store, with every step saved."""
    persist = graph.config.checkpoint.persist
    checkpoint = CheckpointConfig(interval=1, preserve=True, persist=persist)
    made = copy.copy(graph)
    made.config = attrs.evolve(graph.config, checkpoint=checkpoint)
    made.store, made.observer = store, NoopObserver()
    made._changed()
    return made


def _to_the_end(graph: StateGraph, state: State, answers: Answers | None) -> State:
    """Run, and answer whatever is asked."""
    state = graph.run(state)
    while state.status is RunStatus.PAUSED:
        state = graph.resume(state.run_id, _answer(state, answers), pause=state.pause)
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
            f"say what is answered, as answers={{{pause.response_param!r}: ...}}"
        )
    return {pause.response_param: answers[pause.response_param]}


def _difference(expected: State, ended: State, ignore: Collection[str]) -> str:
    """Return how two runs ended differently, in words; empty if they did not."""
    if expected.step != ended.step:
        return f"after {ended.step} steps, not {expected.step}"
    before, after = ({key: value for key, value in one.items() if key not in ignore} for one in (expected, ended))
    gone = sorted(before.keys() - after.keys())
    if gone:
        return f"{gone[0]!r} is not there; it was {shorten(before[gone[0]])}"
    changed = differing_items(before, after)
    if changed:
        key = min(changed)
        return f"{key!r} is {shorten(changed[key])}, " + (f"not {shorten(before[key])}" if key in before else "new")
    return ""
