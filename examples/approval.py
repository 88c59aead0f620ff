"""An order that a person must approve. The run waits in a file, for days if necessary, and any process can continue it.

    python examples/approval.py order desk-7 950       begin an order; over 500 it needs an approval
    python examples/approval.py waiting                list the orders that wait
    python examples/approval.py answer desk-7 yes      answer, in this process or in another one, today or next week

In a terminal the program asks for the answer at once. Elsewhere, give it as an argument.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from stategraph import CheckpointConfig, GraphConfig, InterruptNode, RunStatus, State, StateGraph, StateGraphError
from stategraph import key_equals as equals

Updates = dict[str, Any]

LIMIT = 500
ANSWERS = ("yes", "no")


def propose(state: State) -> Updates:
    """Node: describe the decision."""
    return {"question": f"spend {state['amount']} EUR?"}


def needs_approval(state: State) -> bool:
    """Predicate: whether the order is too expensive to go through without approval."""
    return bool(state["amount"] > LIMIT)


def is_an_answer(answer: object) -> bool:
    """The answers that the run accepts. It refuses any other answer and continues to wait."""
    return answer in ANSWERS


def approval_graph(path: Path = Path("approval.db")) -> StateGraph:
    """The graph: propose -> approve -> order or reject, with every step in a file."""
    # Completed orders stay in the file, so their ids cannot be used again.
    checkpoint = CheckpointConfig(store="sqlite", interval=1, preserve=True, options={"path": str(path)})
    graph = StateGraph(GraphConfig(name="approval", checkpoint=checkpoint))
    graph.add_node("propose", propose)
    graph.add_node("approve", InterruptNode("question", "approved", reason="over the limit", validator=is_an_answer))
    graph.add_node("order", lambda state: {"outcome": f"ordered for {state['amount']} EUR"})
    graph.add_node("reject", lambda state: {"outcome": "rejected"})
    graph.add_edge("propose", "approve", needs_approval)
    graph.add_edge("propose", "order")
    graph.add_edge("approve", "order", equals("approved", "yes"))
    graph.add_edge("approve", "reject")
    graph.set_entry_point("propose")
    graph.set_exit_point("order")
    graph.set_exit_point("reject")
    return graph


def tell(state: State) -> None:
    """Print the status of an order."""
    if state.pause is not None:
        print(f"{state.run_id} waits: {state.pause.value} ({state.pause.reason})")
    else:
        print(f"{state.run_id}: {state['outcome']}")


def ask(graph: StateGraph, state: State) -> State:
    """Ask the person at the terminal until the answer is valid."""
    while state.status is RunStatus.PAUSED:
        try:
            state = graph.resume(state.run_id, {"approved": input(f"{state['question']} [yes/no] ")})
        except StateGraphError as error:
            print(error)
    return state


def order(graph: StateGraph, given: argparse.Namespace) -> None:
    """Start an order."""
    state = graph.execute(State({"amount": given.amount}, run_id=given.name))
    tell(ask(graph, state) if sys.stdin.isatty() else state)


def answer(graph: StateGraph, given: argparse.Namespace) -> None:
    """Answer an order that waits, and continue it."""
    if given.answer is not None:
        tell(graph.resume(given.name, {"approved": given.answer}))
    elif sys.stdin.isatty():
        tell(ask(graph, graph.store.load(given.name)))
    else:
        raise SystemExit("there is no terminal to ask at: give the answer as an argument")


def waiting(graph: StateGraph, given: argparse.Namespace) -> None:
    """List the orders that wait, without loading them."""
    for run in graph.store.runs(status="paused"):
        if run.pause is not None:
            print(f"{run.run_id}: {run.pause.reason}")


def main() -> None:
    """Run the command that was given."""
    parser = argparse.ArgumentParser(description="An order that a person must approve.")
    parser.add_argument("--store", type=Path, default=Path("approval.db"), help="the file of the runs")
    commands = parser.add_subparsers(required=True, metavar="command")
    for do, arguments in ((order, ["name", "amount"]), (answer, ["name", "answer"]), (waiting, [])):
        command = commands.add_parser(do.__name__, help=(do.__doc__ or "").rstrip("."))
        command.set_defaults(do=do)
        for argument in arguments:
            command.add_argument(
                argument, type=int if argument == "amount" else str, nargs="?" if argument == "answer" else None
            )
    given = parser.parse_args()
    try:
        graph = approval_graph(given.store)
        with graph.store:
            given.do(graph, given)
    except StateGraphError as error:
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    main()
