"""One graph with every feature, and what it comes to as a plain function.

Every function of it works through a `Tool`, which logs the work of each step. A feature that is added to
stategraph gets a place in `build_all_features` and its meaning in `expected`.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from typing import Any

from stategraph import (
    CheckpointStore,
    InterruptNode,
    MapNode,
    NodeContext,
    ParallelNode,
    Pause,
    RetryPolicy,
    State,
    StateGraph,
    Updates,
)
from tests.scenarios import chain, make_graph
from tests.simulated_process import Build, SimulatedProcess, Tool

ROUNDS = 2
INPUTS: dict[str, Any] = {"items": [3, 1, 2]}
DEFAULTS: dict[str, Any] = {"rate": 3}
AT_ONCE = RetryPolicy(max_attempts=3, initial_delay=0)

Function = Callable[..., Any]


def _as_async(function: Function) -> Function:
    @functools.wraps(function)
    async def node(*arguments: Any) -> Any:
        await asyncio.sleep(0)
        return function(*arguments)

    return node


def _as_async_generator(function: Function) -> Function:
    """Return a generator function as an async one: what that returns, this yields last."""

    async def node(state: State, context: NodeContext) -> AsyncGenerator[Any]:
        generator = function(state, context)
        while True:
            try:
                chunk = next(generator)
            except StopIteration as end:
                yield end.value if isinstance(end.value, State) else Updates(end.value)
                return
            await asyncio.sleep(0)
            yield chunk

    return node


class Functions:
    """The functions that are nodes, branches and items."""

    def __init__(self, tool: Tool) -> None:
        self.tool = tool

    def begin(self, state: State, context: NodeContext) -> dict[str, Any]:
        """The first of a loop."""
        self.tool.work(context, dict(state))
        number = state.get("round", 0) + 1
        items = [*state["items"], number]
        return {"round": number, "items": items, "total": state.get("total", 0) * state["rate"] % 1009}

    def fetch(self, state: State, context: NodeContext) -> State:
        """Fails twice, then works."""
        self.tool.work(context, context.attempt)
        if context.attempt < 3:
            raise ConnectionError(f"attempt {context.attempt}")
        return state.set("fetched", [*state.get("fetched", ()), state["round"]])

    def compute(self, state: State, context: NodeContext) -> dict[str, Any]:
        """Has a time limit, and keeps it."""
        self.tool.work(context, state["total"])
        return {"total": state["total"] + len(state["fetched"])}

    def risk(self, state: State, context: NodeContext) -> dict[str, Any]:
        """Fails in odd rounds."""
        self.tool.work(context, state["round"])
        if state["round"] % 2:
            raise ValueError(f"round {state['round']}")
        return {"risked": True}

    def mend(self, state: State, context: NodeContext) -> State:
        """Handles that."""
        self.tool.work(context, state["error"])
        return state.remove("error").set("mended", [*state.get("mended", ()), state["error"]["type"]])

    def left(self, state: State, context: NodeContext) -> dict[str, Any]:
        """A branch."""
        self.tool.work(context, state["total"])
        return {"votes": 1, "left": state["total"]}

    def right(self, state: State, context: NodeContext) -> State:
        """A branch that fails once in the world: the run fails, and is resumed."""
        self.tool.fail_once(context)
        self.tool.work(context, state["total"])
        return state.update({"votes": 10, "right": state["round"]})

    def score(self, item: int, context: NodeContext) -> int:
        """An item."""
        self.tool.work(context, item)
        return item * 7 % 5

    def weigh(self, item: int, context: NodeContext) -> int:
        """An item within the child."""
        self.tool.work(context, item)
        return item + 1

    def judge(self, state: State, context: NodeContext) -> dict[str, Any]:
        """The last node of the child."""
        self.tool.work(context, state["verdict"])
        return {"judged": [*state.get("judged", ()), state["verdict"]]}

    def report(self, state: State, context: NodeContext) -> Generator[Any, None, dict[str, Any]]:
        """Puts out chunks."""
        self.tool.work(context, state["scores"])
        yield from state["scores"]
        return {"total": state["total"] + sum(state["weights"]) + state["verdict"]}

    def end(self, state: State, context: NodeContext) -> dict[str, Any]:
        """The exit point."""
        self.tool.work(context, state["total"])
        return {"ended": True}


def add(a: int, b: int) -> int:
    """Reduce votes."""
    return a + b


def builds_all_features(kind: str = "sync", **checkpoint: Any) -> Build:
    """Return what builds the graph.

    Args:
        kind: The functions: "sync", "async", or "mixed".
        checkpoint: Options of its CheckpointConfig.
    """

    def build(store: CheckpointStore, process: SimulatedProcess, tool: Tool) -> StateGraph:
        return build_all_features(store, tool, kind, observer=process, **checkpoint)

    return build


def build_all_features(store: CheckpointStore, tool: Tool, kind: str = "sync", **options: Any) -> StateGraph:
    """Return the graph."""
    given, options = Functions(tool), {"preserve": True, **options}
    first = _as_async if kind in {"async", "mixed"} else _same
    second = _as_async if kind == "async" else _same
    stream = _as_async_generator if kind == "async" else _same
    steps: dict[str, Any] = {
        "weigh": MapNode(second(given.weigh), over="scores", into="weights"),
        "ask": InterruptNode("weights", "verdict"),
        "judge": first(given.judge),
    }
    child = make_graph(steps, store=store, name="child", observer=options.get("observer"))
    nodes: dict[str, Any] = {
        "begin": first(given.begin),
        "fan": ParallelNode({"left": first(given.left), "right": second(given.right)}, reducers={"votes": add}),
        "spread": MapNode(first(given.score), over="items", into="scores"),
        "child": child.as_node(),
        "report": stream(given.report),
        "approve": InterruptNode("total", "approval"),
        "end": second(given.end),
    }
    between = ["begin", "fetch", "compute", "risk", "fan", "spread", "child", "report", "approve"]
    again = lambda state: state["round"] < ROUNDS or state["approval"] % 2 == 0  # noqa: E731
    graph = make_graph(nodes, (), store=store, exits=["end"], name="features", **options)
    graph.add_node("fetch", second(given.fetch), retry=AT_ONCE)
    graph.add_node("compute", first(given.compute), timeout=60)
    graph.add_node("mend", second(given.mend))
    graph.add_node("risk", first(given.risk), on_error="mend")
    for edge in [*chain(between), ("mend", "fan"), ("approve", "begin", again), ("approve", "end")]:
        graph.add_edge(*edge)
    graph.set_defaults(DEFAULTS)
    return graph


def _same(function: Function) -> Function:
    return function


def answer(pause: Pause) -> int:
    """Return the answer of a person; it depends only on the shown value, so every process gives the same."""
    return reply(pause.response_param, pause.value)


def reply(key: str | None, shown: Any) -> int:
    """Return the answer under a key to a shown value."""
    if key == "verdict":
        return int(sum(shown)) % 10
    return int(shown) % 7


def expected(inputs: Mapping[str, Any] = INPUTS) -> tuple[dict[str, Any], int]:
    """Return the final data and step of a run, in plain Python."""
    data = {**DEFAULTS, **inputs}
    step = 0
    while True:
        data["round"] = data.get("round", 0) + 1
        data["items"] = [*data["items"], data["round"]]
        data["total"] = data.get("total", 0) * data["rate"] % 1009
        data["fetched"] = [*data.get("fetched", ()), data["round"]]
        data["total"] += len(data["fetched"])
        if data["round"] % 2:
            data["mended"] = [*data.get("mended", ()), "ValueError"]
            step += 1
        else:
            data["risked"] = True
        data |= {"votes": 11, "left": data["total"], "right": data["round"]}
        data["scores"] = [item * 7 % 5 for item in data["items"]]
        data["weights"] = [item + 1 for item in data["scores"]]
        data["verdict"] = reply("verdict", data["weights"])
        data["judged"] = [*data.get("judged", ()), data["verdict"]]
        data["total"] += sum(data["weights"]) + data["verdict"]
        data["approval"] = reply("approval", data["total"])
        step += 9
        if not (data["round"] < ROUNDS or data["approval"] % 2 == 0):
            return {**data, "ended": True}, step + 1
