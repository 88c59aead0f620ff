"""Tokens that survive a reload: a callback of a node emits them, and a reader goes on at the last one that it got.

python examples/tokens.py
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from threading import Thread

from stategraph import NodeContext, State, StateGraph

WORDS = "Tokens are kept for readers that come late".split()


def model(question: str, on_token: Callable[[str], None]) -> str:
    """Answer as the client of a model does: it calls back with each token."""
    for word in WORDS:
        on_token(word)
    return " ".join(WORDS)


def answer(state: State, context: NodeContext) -> dict[str, str]:
    """Ask the model; its tokens are chunks of this node."""
    return {"answer": model(state["question"], context.emit)}


def chat_graph(store: Path) -> StateGraph:
    """Return the graph, as a worker and a server make it."""
    graph = StateGraph("chat", store=store, preserve=True)
    graph.add_node("answer", answer, persist_chunks=True)
    graph.set_entry_point("answer")
    graph.set_exit_point("answer")
    return graph


def main(store: Path) -> None:
    """Read some tokens while a worker is at it, leave, and read the others."""
    worker = Thread(target=chat_graph(store).turn, args=("chat-1", {"question": "What are tokens?"}))
    worker.start()
    reader = chat_graph(store).follow("chat-1", chunks=True, wait=60)
    print("read:", *(next(reader).partial.chunk for _ in range(3)))  # type: ignore[union-attr]
    worker.join()
    for state in chat_graph(store).follow("chat-1", after=reader.cursor, chunks=True):
        if state.partial:
            print(f"read later: {state.partial.number}. {state.partial.chunk}")
        else:
            print(f"{state.status}: {state['answer']}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder) / "runs.db")
