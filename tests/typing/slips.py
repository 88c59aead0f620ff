"""Slips that a type checker has to report: each line that ends with "slip" is one, and no other line is.

`make check` has mypy and pyright look at it. It is never run.
"""

from stategraph import CheckpointConfig, GraphConfig, MapNode, RetryPolicy, State, StateGraph
from stategraph.stores import MemoryStore


def work(state: State) -> dict[str, int]:
    return {"n": 1}


def no_node() -> dict[str, int]:
    return {"n": 1}


CheckpointConfig(durability="asinc")  # slip
CheckpointConfig(retention="ful")  # slip
CheckpointConfig(interval="1")  # slip
CheckpointConfig(intervall=1)  # slip
GraphConfig(name=1)  # slip
graph = StateGraph("slips", store=MemoryStore())
graph.add_node("work", "work")  # slip
graph.add_node("work", no_node)  # slip
graph.add_node(work, "work")  # slip
graph.add_node("work", work, retry=3)  # slip
graph.add_node("work", work, retries=3)  # slip
graph.add_node("map", MapNode(len, over="items", into="sizes", on_error="colect"))  # slip
graph.add_node("map", MapNode(len, over=1, into="sizes"))  # slip
graph.add_edge("work", work)  # slip
graph.add_route("work", lambda state: state["n"], 5)  # slip
graph.execute({"n": 1})  # slip
graph.execute(State(), timeout="3")  # slip
graph.execute(State(), labels=["night"])  # slip
graph.execute(State(), time_out=3)  # slip
graph.resume(State())  # slip
graph.run_many(State())  # slip
graph.store.runs(status="complete")  # slip
graph.store.count(lables={"a": "b"})  # slip
graph.store.load("a", step="1")  # slip
RetryPolicy(max_attempts="3")  # slip
RetryPolicy(delay=3)  # slip
state = graph.execute(State())
state.run_id = "b"  # slip
state["n"] = 2  # slip
print(state.stepp)  # slip


@graph.node(retry=3)  # slip
def other(state: State) -> dict[str, int]:
    return {"n": 2}


# Correct lines, which are not reported.
CheckpointConfig(durability="async", retention="full", interval=1)
graph.add_node("work", work, retry=RetryPolicy(retry_on=(OSError, ValueError)), timeout=3)
graph.add_node("map", MapNode(len, over="items", into="sizes", on_error="collect", rate=3))
graph.add_route("work", lambda state: "a", {"a": "map"})
graph.execute(State({"n": 1}, run_id="a"), timeout=3, labels={"night": "1"}, wait=1.5)
graph.store.runs(status="completed", labels={"night": "1"})
for result in graph.run_many([State()], max_workers=2):
    print(result.run_id, result.state, result.error)
