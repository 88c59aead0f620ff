"""The engine alone, driven command by command without I/O."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from stategraph import CheckpointSaveError, EventType, ExecutionError, RunCancelledError, RunStatus, State
from stategraph._engine import loop
from stategraph._engine import resume as resuming
from stategraph._engine.context import RunContext
from stategraph._owners.base import Ownership
from stategraph._protocol import Amend, Await, Load, Notify, RunHere, RunNode, Save, Stopped
from stategraph._values.events import NoopObserver
from tests.scenarios import RUN, FourMethodStore, as_async, make_graph, shorter_than, traces

NO_EVENTS: frozenset[EventType] = frozenset()
ALL_EVENTS = frozenset(EventType)
EDGES = [("a", "b"), ("b", "a", shorter_than(4)), ("b", "c"), ("c", "d")]  # runs a b a b c d


@pytest.fixture(autouse=True)
def no_time_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep a slow machine from asking in between whether a run was cancelled: commands are counted here."""
    monkeypatch.setattr(loop, "monotonic", lambda: 0.0)


class World:
    """A StoreSession that keeps States in attributes."""

    is_cancelled = False
    ownership = None
    look_at = 1.0
    inbox = 0

    def __init__(self) -> None:
        self.kept: State | None = None

    def own(self, about: tuple[Ownership, bool]) -> None:
        """There is no other owner."""

    def stop_if_cancelled(self, _: None) -> None:
        """The run is not cancelled."""

    def watch_inbox(self, run: Any) -> None:
        """The run has no inbox."""

    def refuse_new_entries(self, refuses: bool) -> None:
        """The run has no inbox."""

    def roll_back(self) -> None:
        """No node writes to own tables."""

    def save_with_next(self, state: State) -> None:
        """Keep the State at once: only the newest counts here."""

    def save(self, state: State) -> None:
        """Keep a State."""
        self.kept = state

    amend = save

    def find(self, run_id: str) -> State | None:
        """Return the saved State, if there is one."""
        return self.kept

    load = find

    def delete(self, state: State) -> None:
        """Forget it."""
        self.kept = None


class GoneError(Exception):
    """The driver has gone away, and left the engine where it was."""


class Drive:
    """A driver that can be stepped, and throws at will."""

    def __init__(
        self,
        world: World,
        start: Callable[[RunContext], Any],
        wanted: frozenset[EventType],
        nodes: Any = None,
        **options: Any,
    ) -> None:
        graph = make_graph(nodes or traces("abcd"), EDGES, store=FourMethodStore(), **options)
        self.world = world
        self.run_context = RunContext(graph._planned(), world, NoopObserver(), wanted)  # type: ignore[arg-type]
        self.task = start(self.run_context)
        self.commands: list[Any] = []
        self.leaves_at = -1

    def run(self, faults: Mapping[int, BaseException]) -> State:
        """Perform the commands, but throw where there is a fault for the number of the command."""
        go_on, value = self.task.send, None
        while len(self.commands) < 200:
            try:
                command = go_on(value)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            number = len(self.commands)
            self.commands.append(command)
            if number == self.leaves_at:
                self.give_up(command)
                raise GoneError
            try:
                if number in faults:
                    self.give_up(command)
                value = faults[number] if number in faults else self.perform(command)
                go_on = self.task.throw if number in faults else self.task.send
            except BaseException as error:
                go_on, value = self.task.throw, error
        raise AssertionError("the engine does not end")

    def give_up(self, command: Any) -> None:
        """Close the awaitable that will not be awaited."""
        kind, awaitable, _ = command
        if kind is Await:
            awaitable.close()

    def perform(self, command: Any) -> Any:
        """Carry out a command in this thread."""
        kind, function, argument = command
        if kind is not Await:
            return function(argument)
        with pytest.raises(StopIteration) as end:
            while True:
                function.send(None)
        return end.value.value


def execute(run: RunContext) -> Any:
    """Begin a fresh run."""
    return loop.execute(run, State(run_id=RUN))


def resume(run: RunContext) -> Any:
    """Resume the run, with updates."""
    return resuming.resume(run, RUN, {"n": 1})


# --------------------------------------------------------------------------- something thrown in at every command

CONFIGS = [
    (start, wanted, interval, kind)
    for start in (execute, resume)
    for wanted in (NO_EVENTS, ALL_EVENTS)
    for interval in (1, 2, 10)
    for kind in ("sync", "async")
]


def make_drive(start: Any, wanted: frozenset[EventType], interval: int, kind: str, preserve: bool = False) -> Drive:
    """Return a run of a graph; to resume there is one that stands at its first node."""
    world = World()
    if start is resume:
        world.kept = State({"trace": ["a"]}, run_id=RUN, checkpoint_node="a", step=1, status="failed")
    nodes = {name: as_async(node) if kind == "async" else node for name, node in traces("abcd").items()}
    return Drive(world, start, wanted, nodes=nodes, interval=interval, preserve=preserve)


def commands_of(*config: Any) -> list[Any]:
    """Return the commands of a run that nothing disturbs."""
    drive = make_drive(*config)
    drive.run({})
    return drive.commands


everywhere = pytest.mark.parametrize(("start", "wanted", "interval", "kind"), CONFIGS)


def assert_nothing_is_lost(drive: Drive) -> None:
    """Every completed step is in the store."""
    state = getattr(drive.run_context, "state", None)
    if state is None or state.step == 0:  # nothing was completed
        return
    assert drive.world.kept is not None
    assert (drive.world.kept.step, drive.world.kept.get("trace")) == (state.step, state.get("trace"))


@everywhere
def test_an_interrupt_loses_nothing(start: Any, wanted: Any, interval: int, kind: str) -> None:
    """An interrupt at any command passes unchanged, and the last completed State is saved."""
    for number in range(len(commands_of(start, wanted, interval, kind))):
        drive, interrupt = make_drive(start, wanted, interval, kind), KeyboardInterrupt()

        with pytest.raises(KeyboardInterrupt) as caught:
            drive.run({number: interrupt})

        assert caught.value is interrupt
        assert_nothing_is_lost(drive)


@everywhere
def test_an_error_of_a_node_loses_nothing(start: Any, wanted: Any, interval: int, kind: str) -> None:
    """It becomes an ExecutionError, and the last completed State is saved."""
    for number, command in enumerate(commands_of(start, wanted, interval, kind)):
        if command[0] in (RunNode, RunHere, Await):
            drive = make_drive(start, wanted, interval, kind)

            with pytest.raises(ExecutionError, match="no topic") as caught:
                drive.run({number: ValueError("no topic")})

            assert drive.world.kept == caught.value.state
            assert_nothing_is_lost(drive)


@everywhere
def test_an_error_of_the_store_passes(start: Any, wanted: Any, interval: int, kind: str) -> None:
    """It carries its State, which the store session has set; no command follows except notifications."""
    for number, command in enumerate(commands_of(start, wanted, interval, kind)):
        if command[0] in (Load, Save, Amend):
            drive, thrown = make_drive(start, wanted, interval, kind), CheckpointSaveError(RUN, "full")

            with pytest.raises(CheckpointSaveError) as caught:
                drive.run({number: thrown})

            assert caught.value is thrown
            assert all(later[0] is Notify for later in drive.commands[number + 1 :])


@everywhere
def test_a_stop_loses_nothing(start: Any, wanted: Any, interval: int, kind: str) -> None:
    """A stop before a node becomes a RunCancelledError; the run is saved as active."""
    for number, command in enumerate(commands_of(start, wanted, interval, kind)):
        if command[0] in (RunNode, RunHere, Await):
            drive, stopped = make_drive(start, wanted, interval, kind), Stopped("enough")
            stopped.__cause__ = TimeoutError()

            with pytest.raises(RunCancelledError, match="enough") as caught:
                drive.run({number: stopped})

            assert type(caught.value.__cause__) is TimeoutError
            assert drive.world.kept == caught.value.state
            assert caught.value.state.status is RunStatus.ACTIVE
            assert_nothing_is_lost(drive)


@everywhere
def test_a_driver_that_goes_away(start: Any, wanted: Any, interval: int, kind: str) -> None:
    """Closing the engine ends it: no driver is left to carry out a command."""
    for number in range(len(commands_of(start, wanted, interval, kind))):
        drive = make_drive(start, wanted, interval, kind)
        drive.leaves_at = number
        with pytest.raises(GoneError):
            drive.run({})

        drive.task.close()

        assert inspect.getgeneratorstate(drive.task) == inspect.GEN_CLOSED
