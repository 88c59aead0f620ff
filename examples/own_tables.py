"""Stock in a table of its own: the reservation and the State that knows of it are one commit, also if a node fails."""

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from stategraph import ExecutionError, NodeContext, State, StateGraph


def reserve(state: State, context: NodeContext) -> dict[str, Any]:
    """Node: take pieces from the stock; what it has written is rolled back if there are too few."""
    stock = context.connection
    stock.execute("UPDATE stock SET pieces = pieces - ? WHERE item = ?", (state["pieces"], state["item"]))
    ((left,),) = stock.execute("SELECT pieces FROM stock WHERE item = ?", (state["item"],))
    if left < 0:
        raise ValueError(f"{-left} too few")
    return {"left": left}


def main() -> None:
    """Order twice; the second order fails."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "shop.db"
        graph = StateGraph("orders", store=str(path), preserve=True)
        graph.add_node("reserve", reserve)
        graph.set_entry_point("reserve")
        graph.set_exit_point("reserve")
        with closing(graph.store), closing(sqlite3.connect(path, isolation_level=None)) as shop:
            shop.execute("CREATE TABLE stock (item TEXT PRIMARY KEY, pieces INTEGER)")
            shop.execute("INSERT INTO stock VALUES ('lamp', 5)")
            for run_id, pieces in (("order-1", 3), ("order-2", 4)):
                try:
                    final = graph.execute(State({"item": "lamp", "pieces": pieces}, run_id=run_id))
                    print(f"{run_id}: {final['left']} left")
                except ExecutionError as error:
                    print(error)
            print("in stock:", *shop.execute("SELECT pieces FROM stock").fetchone())


if __name__ == "__main__":
    main()
