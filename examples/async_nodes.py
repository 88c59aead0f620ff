"""Async nodes: many concurrent runs on one event loop, and a run that times out and is resumed.

python examples/async_nodes.py
"""

import asyncio
from typing import Any

from stategraph import CheckpointConfig, GraphConfig, NodeContext, RunCancelledError, State, StateGraph

Updates = dict[str, Any]

service_is_up = asyncio.Event()


async def fetch(state: State) -> Updates:
    """Node: call a service and await its answer."""
    if state["page"] == "slow":
        await service_is_up.wait()
    return {"text": f"text of {state['page']}"}


def count(state: State, context: NodeContext) -> Updates:
    """Node: count the words. A sync node runs in a worker thread, so the event loop is not blocked."""
    return {"length": len(state["text"]), "counted_in": context.step}


def fetch_graph() -> StateGraph:
    """Return the graph: find -> fetch -> count."""
    config = GraphConfig(name="async-nodes", checkpoint=CheckpointConfig(interval=1))
    graph = StateGraph(config)
    graph.add_node("find", lambda state: {"page": state["topic"]})
    graph.add_node("fetch", fetch)
    graph.add_node("count", count)
    graph.add_edge("find", "fetch")
    graph.add_edge("fetch", "count")
    graph.set_entry_point("find")
    graph.set_exit_point("count")
    return graph


async def side_by_side(graph: StateGraph) -> None:
    """Run three States concurrently."""
    finals = await asyncio.gather(*(graph.aexecute(State({"topic": topic})) for topic in ("a", "bb", "ccc")))
    print("side by side:", ", ".join(f"{final['topic']} {final['length']}" for final in finals))


async def cut_off(graph: StateGraph) -> None:
    """Time out on a slow service, and resume the run when the service is up."""
    try:
        await graph.aexecute(State({"topic": "slow"}, run_id="slow-1"), timeout=0.1)
    except RunCancelledError as error:
        print(error)
    service_is_up.set()
    final = await graph.aresume("slow-1")
    print(f"resumed: {final['text']!r} has {final['length']} characters, counted in step {final['counted_in']}")


async def main() -> None:
    """Run both parts of the example."""
    graph = fetch_graph()
    await side_by_side(graph)
    await cut_off(graph)


if __name__ == "__main__":
    asyncio.run(main())
