"""A writer that hears what people say while it works: messages are taken in between two steps.

python examples/messages.py
"""

import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stategraph import CheckpointConfig, GraphConfig, State, StateGraph

STEPS = 4


def write(state: State) -> dict[str, Any]:
    """Node: write a line in the tone that was asked for last."""
    return {"lines": [*state.get("lines", ()), f"line {state.step + 1}, {state['tone']}"]}


def heard(state: State, updates: Mapping[str, Any]) -> dict[str, Any]:
    """Take a message in: keep the tone, and note that it was heard."""
    return {"tone": updates["tone"], "heard": [*state.get("heard", ()), updates["tone"]]}


def writer(path: Path) -> StateGraph:
    """Return the graph."""
    checkpoint = CheckpointConfig(store="sqlite", preserve=True, accept=True, options={"path": str(path)})
    graph = StateGraph(GraphConfig(name="writer", checkpoint=checkpoint))
    graph.add_node("write", write)
    graph.add_node("print", lambda state: {})
    graph.add_edge("write", "print", lambda state: state.step >= STEPS)
    graph.add_edge("write", "write")
    graph.set_entry_point("write")
    graph.set_exit_point("print")
    graph.on_message(heard)
    return graph


def main() -> None:
    """Write a text, and ask for another tone in the meantime."""
    with tempfile.TemporaryDirectory() as folder:
        graph = writer(Path(folder) / "runs.db")
        with graph.store, graph.stream(State({"tone": "plain"}, run_id="text")) as states:
            state = State()
            for state in states:
                if state.step == 2 and "heard" not in state:  # anyone may send, from any thread, process or machine
                    person = threading.Thread(target=graph.send, args=("text", {"tone": "cheerful"}))
                    person.start()
                    person.join()
        print(*state["lines"], f"heard: {', '.join(state['heard'])}", sep="\n")


if __name__ == "__main__":
    main()
