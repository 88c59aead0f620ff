"""Calls on one run, driven command by command, on graphs with every kind of node."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs

from stategraph import InterruptNode, MapNode, ParallelNode, RetryPolicy, State, StateGraph, Updates
from stategraph._drivers.sync import Performer
from stategraph._engine.calling import cancel
from stategraph._engine.loop import execute
from stategraph._engine.resume import resume
from stategraph._protocol import CommandType, Own, RunHere, RunNode, Show, Sleep, Task
from stategraph.errors import CheckpointNotFoundError
from tests.scenarios import RUN, make_graph

# --------------------------------------------------------------------------- graphs


def _noting(name: str) -> Callable[..., dict[str, Any]]:
    return lambda state: {"by": [*state.get("by", ()), name]}


def _nodes(kind: str, name: str) -> dict[str, Any]:
    """Return the middle of a graph, whose nodes note by which call they are run."""

    async def waits(state: State) -> dict[str, Any]:
        return _noting(name)(state)

    def chunks(state: State) -> Iterator[Any]:
        yield "chunk"
        yield Updates(_noting(name)(state))

    def fails(state: State, context: Any) -> dict[str, Any]:
        if context.attempt == 1:
            raise ConnectionError
        return _noting(name)(state)

    middles: dict[str, dict[str, Any]] = {
        "plain": {"b": _noting(name)},
        "async": {"b": waits},
        "chunks": {"b": chunks},
        "retry": {"b": fails},
        "parallel": {
            "b": ParallelNode({"x": lambda state: {"x": name}, "y": lambda state: {"y": name}}, max_workers=1)
        },
        "map": {"b": MapNode(lambda item: [item, name], over="items", into="mapped", max_workers=1)},
        "pause": {"b": InterruptNode("items", "answer")},
        "answer": {"b": InterruptNode("items", "answer")},  # begun up to there
    }
    return middles.get(kind, {})


KINDS = ("plain", "async", "chunks", "retry", "parallel", "map", "nested", "pause", "answer")


def graph_of(kind: str, name: str, store: Any, durability: str) -> StateGraph:
    """Return a graph of this kind, whose nodes note that they are run by a call of this name."""
    middle = _nodes(kind, name)
    if kind == "nested":
        inner = make_graph({"x": _noting(name), "y": _noting(name)}, store=store, name="inner")
        middle = {"b": inner.as_node()}
    policies = {"b": {"retry": RetryPolicy(max_attempts=2, initial_delay=0)}} if kind == "retry" else {}
    nodes = {"a": _noting(name), **middle, "c": _noting(name)}
    options: dict[str, Any] = {
        "preserve": True,
        "durability": durability,
        "retention": "latest" if durability == "exit" else "full",
    }
    return make_graph(nodes, store=store, policies=policies, **options)


# --------------------------------------------------------------------------- calls

CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "start": ("execute", {}),
    "start, waiting": ("execute", {"wait": 1e9}),
    "resume": ("resume", {}),
    "resume, waiting": ("resume", {"wait": 1e9}),
    "resume, taking over": ("resume", {"take_over": True}),
    "delete": ("delete", {}),
    "delete, taking over": ("delete", {"take_over": True}),
    "rollback": ("rollback", {}),
    "rollback, taking over": ("rollback", {"take_over": True}),
    "cancel": ("cancel", {}),
}
"""The method and options of each call."""


class ByHand(CommandType):
    """The kind of the only command of a direct call of a store."""


@attrs.frozen
class Case:
    """Calls on one run, and a fault of the first.

    Attributes:
        store: "memory" or "sqlite", where each call acts like another process.
        kind: The kind of the middle node.
        begun: Whether the run was begun, and stopped after its first step.
        calls: The names of the calls.
        fault: The fault of the first call: "", "interrupted before", "interrupted after" or "crashes".
        at: The number of the command with the fault.
        durability: The durability of all calls.
    """

    store: str
    kind: str
    begun: bool
    calls: tuple[str, ...]
    fault: str = ""
    at: int = 0
    durability: str = "sync"


class Call:
    """A call, driven command by command.

    Attributes:
        log: The answers so far.
        end: The result or error; None while the call is active.
        run: Its context, if it runs a graph.
    """

    def __init__(self, case: Case, number: int, store: Any) -> None:
        self.store, self.name = store, "ABC"[number]
        self.what, how = CALLS[case.calls[number]]
        self.fault, self.at = (case.fault, case.at) if number == 0 else ("", 0)
        self.log: list[tuple[str, str]] = []
        self.end: State | BaseException | None = None
        self.run: Any = None
        self.is_in_node = self.has_own = self.was_refused = self.is_gone = False
        self._performer = Performer(None)
        self._performer.perform |= {ByHand: lambda function, how: function(**how), Show: _nothing, Sleep: _nothing}
        self.task = self._task(case, how)
        self._go_on(self.task.send, None)

    def _task(self, case: Case, how: dict[str, Any]) -> Task[Any]:
        if self.what in {"execute", "resume", "cancel"}:
            graph = graph_of(case.kind, self.name, self.store, case.durability)
            self.run = graph._new_run(how)  # type: ignore[arg-type]
            if self.what == "execute":
                return execute(self.run, State({"items": [1, 2]}, run_id=RUN))
            if self.what == "cancel":
                return cancel(self.run, RUN)
            return resume(self.run, RUN, answers(self.store))
        return self._by_hand(how)

    def _by_hand(self, how: dict[str, Any]) -> Task[Any]:
        arguments = {"run_id": RUN, **({"step": 1} if self.what == "rollback" else {}), **how}
        yield ByHand, getattr(self.store, self.what), arguments

    @property
    def ownership(self) -> Any:
        """Its ownership of the run."""
        return None if self.run is None else self.run.session.ownership

    @property
    def is_owner(self) -> bool:
        """Whether it owns the run."""
        return self.has_own and not self.is_lost

    @property
    def is_lost(self) -> bool:
        """Whether it owned the run and has lost it."""
        if not self.has_own or self.is_gone:
            return False
        before = self.ownership.is_lost  # looking must not change it
        is_lost: bool = self.store._has_lost(self.ownership)
        self.ownership.is_lost = before
        return is_lost

    @property
    def can_go_on(self) -> bool:
        """Whether it has not ended, and does not wait for others."""
        is_waiting = self.kind is Sleep and not self.has_own and self.store.owner(RUN) is not None
        return self.end is None and not is_waiting

    def step(self) -> None:
        """Perform its command and advance to the next; a node takes two steps, begin and end."""
        at = len(self.log) + 1
        if self.kind in {RunNode, RunHere} and not self.is_in_node:
            self.is_in_node = True
            self.log.append(("begins", ""))
            return
        self.is_in_node = False
        if self.fault == "crashes" and at == self.at:
            self.crash()
            return
        if self.fault == "interrupted before" and at == self.at:
            self._note("interrupt", "")
            self._go_on(self.task.throw, KeyboardInterrupt())
            return
        kind = self.kind
        go_on: Callable[[Any], Any] = self.task.throw
        value: Any
        try:
            answer = self._performer.perform[kind](self.function, self.argument)
        except BaseException as error:  # noqa: BLE001 - thrown into the task
            value = error
        else:
            go_on, value = self.task.send, answer
            self.has_own = self.has_own or kind is Own
        if self.fault == "interrupted after" and at == self.at:
            go_on, value = self.task.throw, KeyboardInterrupt()
        self._note(kind.__name__, _shown(value))
        self._go_on(go_on, value)

    def _note(self, kind: str, answer: str) -> None:
        self.log.append((kind, answer))

    def _go_on(self, go_on: Callable[[Any], Any], value: Any) -> None:
        try:
            self.kind, self.function, self.argument = go_on(value)
        except StopIteration as end:
            self.end = end.value if isinstance(end.value, State) else State()
            self.has_own = False
        except BaseException as error:  # noqa: BLE001 - it is looked at
            self.end = error
            self.has_own = False

    def close(self) -> None:
        """Close the task."""
        self.task.close()
        self._performer.close()

    def crash(self) -> None:
        """End as a process that is killed: its locks fall, and nothing else happens."""
        self.task.close()
        owners = self.store._log.table.owners
        owners._by_run.clear()
        owners._locks = None
        self.is_gone, self.has_own, self.end = True, False, KeyboardInterrupt()
        self.log.append(("crashed", ""))


def _nothing(*_: Any) -> None:
    pass


def answers(store: Any) -> Mapping[str, Any] | None:
    """Return the answer to the question of the run, if it has one."""
    try:
        return {"answer": 1} if store.load(RUN).pause is not None else None
    except CheckpointNotFoundError:
        return None


def _shown(value: Any) -> str:
    if isinstance(value, State):
        return shown_state(value)
    return (
        type(value).__name__ if isinstance(value, BaseException) or not isinstance(value, dict | list) else repr(value)
    )


def shown_state(state: State) -> str:
    """Return the fields that decide how a State continues, as text."""
    return f"{state.step} {state.status} {state.generation} {state.pause is not None} {dict(state)}"
