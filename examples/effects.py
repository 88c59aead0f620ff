"""Effects: a node refunds three orders, is killed during the second, and refunds none of them twice.

python examples/effects.py
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from stategraph import NodeContext, State, StateGraph

ORDERS = ("17", "18", "19")


class Bank:
    """Stands in for a service that outlives the process: it keeps its refunds in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def refund(self, order: str) -> str:
        """Refund an order; the first process dies before it gets the receipt of the second."""
        with self.path.open("a") as file:
            file.write(f"{order}\n")
        if order == "18" and "--dies" in sys.argv:
            os._exit(1)
        return f"receipt {order}"

    def find(self, order: str) -> str | None:
        """Return the receipt of a refund, None if there was none."""
        return f"receipt {order}" if order in self.path.read_text().split() else None


def refund_graph(folder: Path) -> StateGraph:
    """Return the graph: one node that refunds all orders."""
    bank = Bank(folder / "bank.txt")

    def refund(state: State, context: NodeContext) -> dict[str, list[str]]:
        receipts = [context.effect(order, lambda: bank.refund(order), confirm=bank.find) for order in state["orders"]]  # noqa: B023 - called at once
        return {"receipts": receipts}

    graph = StateGraph("refunds", store=folder / "runs.db", preserve=True)
    graph.add_node("refund", refund)
    graph.set_entry_point("refund")
    graph.set_exit_point("refund")
    return graph


def main() -> None:
    """Let a process die, and go on in this one."""
    if "--dies" in sys.argv:
        refund_graph(Path(sys.argv[-1])).run(State({"orders": ORDERS}, run_id="refunds-1"))
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, __file__, "--dies", folder], check=False)
        print("before:", (Path(folder) / "bank.txt").read_text().split())
        graph = refund_graph(Path(folder))
        print("then:", graph.run(State({"orders": ORDERS}, run_id="refunds-1"))["receipts"])
        print("refunded:", (Path(folder) / "bank.txt").read_text().split())
        print("effects:", graph.store.history("refunds-1")[-1].effects)


if __name__ == "__main__":
    main()
