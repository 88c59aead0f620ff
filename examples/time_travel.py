"""Keep every step of a run: look back, compare, fork from the middle, roll back.

Run it with ``python examples/time_travel.py``.
"""

import tempfile
from pathlib import Path
from typing import Any

from stategraph import CheckpointConfig, GraphConfig, State, StateGraph

Updates = dict[str, Any]


def load(state: State) -> Updates:
    """Node: return the measurements, one of which is wrong."""
    return {"values": [3.0, 4.0, 500.0, 5.0]}


def clean(state: State) -> Updates:
    """Node: leave out values above the limit."""
    return {"cleaned": [value for value in state["values"] if value <= state["limit"]]}


def average(state: State) -> Updates:
    """Node: compute the mean of the remaining values."""
    return {"mean": sum(state["cleaned"]) / len(state["cleaned"])}


def pipeline(path: Path) -> StateGraph:
    """Return the graph: load -> clean -> average. It keeps every checkpoint."""
    checkpoint = CheckpointConfig(
        store="sqlite", interval=1, retention="full", preserve=True, options={"path": str(path)}
    )
    graph = StateGraph(GraphConfig(name="time-travel", checkpoint=checkpoint))
    graph.add_node("load", load)
    graph.add_node("clean", clean)
    graph.add_node("average", average)
    graph.add_edge("load", "clean")
    graph.add_edge("clean", "average")
    graph.set_entry_point("load")
    graph.set_exit_point("average")
    return graph


def main() -> None:
    """Run with a limit that is too high, notice it, and continue from the middle with another limit."""
    with tempfile.TemporaryDirectory() as folder:
        graph = pipeline(Path(folder) / "runs.db")
        store = graph.store
        final = graph.execute(State({"limit": 1000}, run_id="first"))
        print(f"first: mean {final['mean']}")

        for row in store.history("first"):
            print(f"  step {row.step}: {row.kind}, {row.status}")
        print(f"  from step 1 to 2: {sorted(store.diff('first', 1, 2).added)} came")
        print(f"  at step 1 the State had {sorted(store.load('first', 1))}")

        store.fork("first", "second", step=1)
        final = graph.resume("second", {"limit": 100})
        assert final.parent is not None
        print(f"second, forked off {final.parent.run_id} at step {final.parent.step}: mean {final['mean']}")

        back = store.rollback("first", 1)
        print(f"first again: at step {back.step}, with {sorted(back)}")
        print(f"runs, the newest first: {[(run.run_id, run.step) for run in store.runs()]}")
        store.close()


if __name__ == "__main__":
    main()
