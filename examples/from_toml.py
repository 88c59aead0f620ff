"""Configure a graph by a file, and replace one value in the program.

python examples/from_toml.py
"""

import tempfile
from pathlib import Path

from stategraph import GraphConfig, State, StateGraph, get_checkpoint_store

CONFIG_FILE = Path(__file__).with_name("graph.toml")


def main() -> None:
    """Run the graph, then load the completed run from the store."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "runs"))
        config = GraphConfig.from_file(CONFIG_FILE).merge({"checkpoint": {"options": {"path": path}}})
        graph = StateGraph(config)
        graph.add_node("measure", lambda state: {"length": len(state["text"])})
        graph.add_node("report", lambda state: {"report": f"{state['length']} characters"})
        graph.add_edge("measure", "report")
        graph.set_entry_point("measure")
        graph.set_exit_point("report")

        graph.execute(State({"text": "checkpoint"}, run_id="measure-1"))

        # The same name and options open the same store, in this process and in any other.
        store = get_checkpoint_store("disk", path=path)
        saved = store.load("measure-1")
        print(f"{config.name}: {saved['report']}")
        print(f"kept: step {saved.step}, {saved.status}, by {saved.checkpoint_node}")
        store.close()


if __name__ == "__main__":
    main()
