"""Programs as graphs of stategraph."""

from __future__ import annotations

import asyncio
import functools
import tempfile
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Sequence
from typing import Any, cast

import attrs

from proof.programs import (
    BORDER,
    DEFAULTS,
    DERIVED,
    REDUCED,
    Program,
    Step,
    changed,
    derived,
    item_result,
    reduced,
    seen,
)
from stategraph import (
    CachePolicy,
    CheckpointStore,
    InterruptNode,
    MapNode,
    NodeContext,
    ParallelNode,
    RetryPolicy,
    State,
    StateGraph,
    Updates,
)
from tests.scenarios import make_graph
from tests.simulated_process import TURN, Build, SimulatedProcess, Tool

_CACHE = tempfile.TemporaryDirectory(prefix="stategraph-proof-")  # one for all runs: a wrong result would be found
_AT_ONCE = RetryPolicy(max_attempts=3, initial_delay=0)
_Function = Callable[..., Any]


def builds(program: Program, *, is_typed: bool = False, is_selective: bool = False, **checkpoint: Any) -> Build:
    """Return what builds the graph of a program.

    Args:
        program: The program.
        is_typed: Whether the outermost graph has a schema.
        is_selective: Whether keys that can be derived again are not saved.
        checkpoint: Other options of the outermost graph's CheckpointConfig.
    """

    def build(store: CheckpointStore, process: SimulatedProcess, tool: Tool) -> StateGraph:
        schema = _schema_for(program) if is_typed else None
        return _Builder(store, process, tool, is_selective).graph(program, schema=schema, **checkpoint)

    return build


class _Builder:
    def __init__(self, store: CheckpointStore, process: SimulatedProcess, tool: Tool, is_selective: bool) -> None:
        self._store, self._life, self._tool, self._is_selective = store, process, tool, is_selective

    def graph(self, program: Program, *, is_alone: bool = True, **options: Any) -> StateGraph:
        """Return the graph of a program, and those within; unless it is alone with its data, it saves all of it."""
        names = [program.name(place) for place in range(len(program.steps))]
        last = names[-1]
        end = self._node(program.steps[-1], last)
        persist = _kept(program) if self._is_selective and is_alone else None
        options |= {"store": self._store, "observer": self._life, "persist": persist}
        graph = make_graph({last: end}, (), name=f"graph {program.prefix}", **options)
        for place, (step, name) in enumerate(zip(program.steps[:-1], names, strict=False)):
            graph.add_node(name, self._node(step, name), **self._policies(program, step, place))
        for place, (step, name) in enumerate(zip(program.steps[:-1], names, strict=False)):
            if step.kind == "loop":
                graph.add_edge(name, names[max(0, place - 2)], _less_than(name, step.number + 1))
            if step.kind == "skip" and program.handler(place) != place + 1:
                graph.add_edge(name, names[program.handler(place)], _is_odd)
            graph.add_edge(name, names[place + 1])
        graph._entry = names[0]
        graph.set_defaults(DEFAULTS)
        return graph

    def _policies(self, program: Program, step: Step, place: int) -> dict[str, Any]:
        again = step.kind == "retry" or (step.kind == "hopeless" and step.flag) or (bool(step.branches) and step.flag)
        again = again or (step.kind in {"map", "child", "hopeless child"} and step.number == 2)
        return {
            "retry": _AT_ONCE if again else None,
            "cache": _cache_of(step),
            "timeout": 60 if step.kind == "timed" else None,
            "on_error": program.name(program.handler(place)) if step.is_hopeless else None,
        }

    def _node(self, step: Step, name: str) -> Any:
        match step.kind:
            case "ask":
                return InterruptNode("n", step.key, take_given=step.flag)
            case "parallel" | "hopeless branch":
                return self._parallel(step, name)
            case "map":
                item = self._item(step)
                return MapNode(item, "items", "mapped", on_error="collect" if step.flag else "raise")
            case "child" | "hopeless child":
                keys = BORDER if step.flag else None
                return self.graph(cast(Program, step.within), is_alone=step.flag).as_node(keys, keys)
            case "cached":
                return _made(_cached(name), step)
            case "derive":
                return _made(_deriving(name, step.sources), step)
            case "stream":
                return _stream(self._function(step, name), step)
        return _made(self._function(step, name), step)

    def _function(self, step: Step, name: str) -> _Function:
        tool, kind = self._tool, step.kind

        def node(state: State, context: NodeContext) -> Any:
            if kind == "ask within" and step.key not in state:
                return state.set("kept", 1).paused("it asks", state["n"], response_param=step.key)
            if kind == "transient":
                tool.fail_once(context)
            tool.work(context, seen(state))
            if kind in {"hopeless", "failing"} or (kind == "retry" and context.attempt <= step.number):
                raise ValueError(name)
            new, gone = changed(step.change, name, state)
            if kind == "loop":
                new[name] = state.get(name, 0) + 1
            return _result(state, new, gone, as_state=step.flag)

        return node

    def _parallel(self, step: Step, name: str) -> ParallelNode:
        branches = {
            str(place): self._branch(step, change, f"{name}.{place}", fails=step.number == 1 and place == 0)
            for place, change in enumerate(step.branches)
        }
        if step.kind == "hopeless branch":
            branches["bad"] = self._function(Step("hopeless"), name)
        reducers = {key: functools.partial(reduced, key) for key in REDUCED}
        is_patient = step.flag or step.kind == "hopeless branch"
        return ParallelNode(branches, reducers=reducers, on_failure="finish" if is_patient else "cancel")

    def _branch(self, step: Step, change: str, name: str, *, fails: bool) -> _Function:
        fails = fails and step.kind == "parallel"

        def branch(state: State, context: NodeContext) -> Any:
            if fails:
                self._tool.fail_once(context)
            self._tool.work(context, seen(state))
            return _result(state, *changed(change, name, state), as_state=False)

        return _made(branch, step)

    def _item(self, step: Step) -> _Function:
        def item(value: int, context: NodeContext) -> int:
            if step.number == 1 and not step.flag and context.part == "0":
                self._tool.fail_once(context)
            self._tool.work(context, value)
            if step.flag and value == 3:
                raise ValueError("three")
            return item_result(value)

        return _made(item, step)


def _cached(name: str) -> _Function:
    """Return a function of the key "n" alone."""

    def cached(state: State) -> dict[str, Any]:
        return {"n": (state["n"] * 3 + len(name)) % 1009}

    return cached


def _deriving(name: str, sources: Sequence[str]) -> _Function:
    """Return a function of keys that never change."""
    return lambda state: derived(name, sources, state)


def _cache_of(step: Step) -> CachePolicy | None:
    if step.kind == "cached" or (step.kind == "derive" and step.flag):
        return CachePolicy(["n"] if step.kind == "cached" else ["base", *step.sources], path=_CACHE.name)
    return None


def _types(program: Program) -> dict[str, Any]:
    """Return all keys that are saved of a run of the program, with their types."""
    types: dict[str, Any] = {"n": int, "base": int, "items": list[int], "trace": list[str], "mark": str, "kept": int}
    types[TURN] = int
    types |= {"a": int, "b": int, "mapped": list[Any], "error": dict[str, Any]}
    return types | dict.fromkeys(_loops(program), int)


def _kept(program: Program) -> list[str]:
    return list(_types(program))


def _schema_for(program: Program) -> type:
    """Return a class with all keys that a run of the program may have."""
    names = [DERIVED + program.name(place) for place in range(len(program.steps))]
    types = _types(program) | dict.fromkeys(names, int)
    fields = {name: attrs.field(type=kind, kw_only=True) for name, kind in types.items()}
    return attrs.make_class("Everything", fields, frozen=True)


def _loops(program: Program) -> Iterator[str]:
    """Yield the names of the nodes that count their rounds, those of graphs within too."""
    for place, step in enumerate(program.steps):
        if step.kind == "loop":
            yield program.name(place)
        if step.within is not None:
            yield from _loops(step.within)


def _result(state: State, new: dict[str, Any], gone: list[str], *, as_state: bool) -> Any:
    if not gone and not as_state:
        return new
    for key in gone:
        state = state.remove(key)
    return state.update(new)


def _made(function: _Function, step: Step) -> _Function:
    if not step.is_async:
        return function

    @functools.wraps(function)
    async def node(*arguments: Any) -> Any:
        await asyncio.sleep(0)
        return function(*arguments)

    return node


def _stream(function: _Function, step: Step) -> _Function:
    def stream(state: State, context: NodeContext) -> Generator[Any, None, Any]:
        yield from range(step.number)
        return function(state, context)

    async def astream(state: State, context: NodeContext) -> AsyncGenerator[Any]:
        for number in range(step.number):
            await asyncio.sleep(0)
            yield number
        result = function(state, context)
        yield result if isinstance(result, State) else Updates(result)

    return astream if step.is_async else stream


def _less_than(key: str, most: int) -> Callable[[State], bool]:
    return lambda state: state[key] < most


def _is_odd(state: State) -> bool:
    return bool(state["n"] % 2)
