"""A draft goes back and forth between a writer and a reviewer until it is good: edges with conditions, and a cycle.

The edges out of a node are tried in the order in which they were added, and the first whose predicate holds is taken.

Run it with ``python examples/review_loop.py``.
"""

from typing import Any

from stategraph import GraphConfig, State, StateGraph, and_, key_equals, not_

Updates = dict[str, Any]


def write(state: State) -> Updates:
    """Node: write the next draft."""
    drafts = state.get("drafts", 0) + 1
    return {"drafts": drafts, "text": f"draft {drafts} about {state['topic']}"}


def review(state: State) -> Updates:
    """Node: judge the draft. The second one is better than the first, the third is good."""
    return {"verdict": "good" if state["drafts"] > 2 else "rework"}


def publish(state: State) -> Updates:
    """Node: publish a good draft."""
    return {"published": state["text"]}


def give_up(state: State) -> Updates:
    """Node: give up after too many drafts."""
    return {"published": None}


def patience_is_over(state: State) -> bool:
    """Predicate: whether the draft is good. Any function from a State to a bool is a predicate."""
    return bool(state["drafts"] >= state["patience"])


def review_graph() -> StateGraph:
    """Return the graph: write -> review, then back to write, on to publish, or out."""
    graph = StateGraph(GraphConfig(name="review-loop"))
    graph.add_node("write", write)
    graph.add_node("review", review)
    graph.add_node("publish", publish)
    graph.add_node("give_up", give_up)
    graph.add_edge("write", "review")
    graph.add_edge("review", "write", and_(key_equals("verdict", "rework"), not_(patience_is_over)))
    graph.add_edge("review", "publish", key_equals("verdict", "good"))
    graph.add_edge("review", "give_up")
    graph.set_entry_point("write")
    graph.set_exit_point("publish")
    graph.set_exit_point("give_up")
    return graph


def main() -> None:
    """Run the graph with a high and with a low limit of drafts."""
    graph = review_graph()
    for patience in (5, 2):
        final = graph.execute(State({"topic": "checkpoints", "patience": patience}))
        result = final["published"] or "nothing published"
        print(f"patience {patience}: {result} ({final.step} steps, the last was {final.checkpoint_node})")


if __name__ == "__main__":
    main()
