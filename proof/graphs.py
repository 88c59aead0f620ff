"""Programs as graphs of stategraph."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any, cast

from proof.programs import BORDER, DEFAULTS, REDUCED, Program, Step, changed, item_result, reduced, seen
from stategraph import (
    CheckpointStore,
    InterruptNode,
    MapNode,
    NodeContext,
    ParallelNode,
    RetryPolicy,
    State,
    StateGraph,
)
from tests.lives import Build, Life, Tool
from tests.scenarios import make_graph

_AT_ONCE = RetryPolicy(max_attempts=3, initial_delay=0)
_Function = Callable[..., Any]


def builds(program: Program, **checkpoint: Any) -> Build:
    """-> what builds the graph of a program."""

    def build(store: CheckpointStore, life: Life, tool: Tool) -> StateGraph:
        return _Builder(store, life, tool).graph(program, **checkpoint)

    return build


class _Builder:
    def __init__(self, store: CheckpointStore, life: Life, tool: Tool) -> None:
        self._store, self._life, self._tool = store, life, tool

    def graph(self, program: Program, **checkpoint: Any) -> StateGraph:
        """-> the graph of a program, and those within."""
        names = [program.name(place) for place in range(len(program.steps))]
        last = names[-1]
        end = self._node(program.steps[-1], last)
        graph = make_graph(
            {last: end}, (), store=self._store, observer=self._life, name=f"graph {program.prefix}", **checkpoint
        )
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
            "timeout": 60 if step.kind == "timed" else None,
            "on_error": program.name(program.handler(place)) if step.is_hopeless else None,
        }

    def _node(self, step: Step, name: str) -> Any:
        match step.kind:
            case "ask":
                return InterruptNode("n", step.key)
            case "parallel" | "hopeless branch":
                return self._parallel(step, name)
            case "map":
                item = self._item(step)
                return MapNode(item, "items", "mapped", on_error="collect" if step.flag else "raise")
            case "child" | "hopeless child":
                keys = BORDER if step.flag else None
                return self.graph(cast(Program, step.within)).as_node(keys, keys)
            case "stream":
                return _stream(self._function(step, name), step)
        return _made(self._function(step, name), step)

    def _function(self, step: Step, name: str) -> _Function:
        tool, kind = self._tool, step.kind

        def node(state: State, context: NodeContext) -> Any:
            if kind == "ask within" and step.key not in state:
                return state.set("lost", 1).paused("it asks", state["n"], response_param=step.key)
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
        yield function(state, context)

    return astream if step.is_async else stream


def _less_than(key: str, most: int) -> Callable[[State], bool]:
    return lambda state: state[key] < most


def _is_odd(state: State) -> bool:
    return bool(state["n"] % 2)
