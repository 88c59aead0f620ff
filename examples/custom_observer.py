"""An observer of your own: it counts the completed nodes and the saves of a run.

python examples/custom_observer.py
"""

from collections import Counter

from stategraph import (
    CheckpointConfig,
    Event,
    EventType,
    GraphConfig,
    Observer,
    State,
    StateGraph,
    key_equals,
    register_observer,
)


class Statistics(Observer):
    """Counts for one run at a time. An exception here would be logged once, and the run would continue."""

    def __init__(self) -> None:
        self.completed: Counter[str] = Counter()
        self.saves = 0

    def wants(self, type: EventType) -> bool:
        """Return the wanted events. Events that no observer wants are not created."""
        return type in (EventType.NODE_COMPLETE, EventType.CHECKPOINT_SAVE)

    def on_event(self, event: Event) -> None:
        if event.type is EventType.CHECKPOINT_SAVE:
            self.saves += 1
        else:
            self.completed[event.data["node"]] += 1


def main() -> None:
    """Run a loop of nine steps, and save every second one."""
    statistics = Statistics()
    register_observer("statistics", statistics)
    graph = StateGraph(
        GraphConfig(name="custom-observer", observer="statistics", checkpoint=CheckpointConfig(interval=2))
    )
    graph.add_node("count_down", lambda state: {"left": state["left"] - 1})
    graph.add_node("lift_off", lambda state: {})
    graph.add_edge("count_down", "lift_off", key_equals("left", 0))
    graph.add_edge("count_down", "count_down")
    graph.set_entry_point("count_down")
    graph.set_exit_point("lift_off")

    graph.execute(State({"left": 8}))

    for node, times in statistics.completed.items():
        print(f"{node}: {times}")
    print(f"checkpoints: {statistics.saves}")


if __name__ == "__main__":
    main()
