"""Compare two settings of a pipeline. The shared steps run once; a fork for each setting continues from there.

Run it with ``python examples/compare_settings.py``.
"""

import math
import tempfile
from pathlib import Path
from typing import Any

from stategraph import CheckpointConfig, GraphConfig, State, StateGraph

Updates = dict[str, Any]

SETTINGS = {"careful": {"window": 5, "limit": 3.0}, "eager": {"window": 5, "limit": 1.5}}
PEAKS = {40: 9.0, 41: 4.0, 90: -7.0, 130: 2.5, 170: 2.0}

measurements = {"taken": 0}


def measure(state: State) -> Updates:
    """Node: the expensive part, which runs once. It returns a slow wave with a few peaks."""
    measurements["taken"] += 1
    return {"values": [math.sin(place / 20) + PEAKS.get(place, 0.0) for place in range(200)]}


def smooth(state: State) -> Updates:
    """Node: predict each value from its neighbours."""
    values, reach = state["values"], state["window"] // 2
    around = [[*values[max(0, i - reach) : i], *values[i + 1 : i + reach + 1]] for i in range(len(values))]
    return {"expected": [sum(some) / len(some) for some in around]}


def detect(state: State) -> Updates:
    """Node: find the values that are too far from their prediction."""
    pairs = zip(state["values"], state["expected"], strict=True)
    return {"found": [i for i, (value, expected) in enumerate(pairs) if abs(value - expected) > state["limit"]]}


def pipeline(path: Path) -> StateGraph:
    """Return the graph: measure -> smooth -> detect. It keeps every step, because only kept steps can be forked."""
    checkpoint = CheckpointConfig(
        store="sqlite", interval=1, retention="full", preserve=True, options={"path": str(path)}
    )
    graph = StateGraph(GraphConfig(name="compare-settings", checkpoint=checkpoint))
    graph.add_node("measure", measure)
    graph.add_node("smooth", smooth)
    graph.add_node("detect", detect)
    graph.add_edge("measure", "smooth")
    graph.add_edge("smooth", "detect")
    graph.set_entry_point("measure")
    graph.set_exit_point("detect")
    return graph


def main() -> None:
    """Run once, fork after the expensive step for each setting, and compare the results."""
    with tempfile.TemporaryDirectory() as folder:
        graph = pipeline(Path(folder) / "runs.db")
        graph.execute(State({"window": 3, "limit": 5.0}, run_id="base"))
        expensive = next(row.step for row in graph.store.history("base") if row.checkpoint_node == "measure")

        for name, settings in SETTINGS.items():
            graph.store.fork("base", name, step=expensive)
            graph.resume(name, settings)

        for run in reversed(graph.store.runs()):
            state = graph.store.load(run.run_id)
            origin = f"from {run.parent.run_id}, step {run.parent.step}" if run.parent else "from the start"
            print(f"{run.run_id:8} limit {state['limit']}: {len(state['found'])} peaks {state['found']} ({origin})")
        print(f"measured {measurements['taken']} time")
        graph.store.close()


if __name__ == "__main__":
    main()
