"""A chat behind a webhook: a message that is delivered again is answered once.

    python examples/webhook.py

Services deliver a message again when no answer comes in time. Its id is the key of the turn, so the same message is the
same turn, also in another process, and after a crash. Messages that come while one is being answered wait in order.
"""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from stategraph import CheckpointConfig, GraphConfig, State, StateGraph


def answer(state: State) -> dict[str, Any]:
    """Answer a message. This is where a model would be asked, and paid."""
    return {"replies": [*state["replies"], f"you said {state['text']!r}"]}


def chat(path: Path) -> StateGraph:
    """Return the graph of the conversations. With the full history, each turn returns its own State."""
    graph = StateGraph(GraphConfig("chat", checkpoint=CheckpointConfig(preserve=True, retention="full")), store=path)
    graph.add_node("answer", answer)
    graph.set_entry_point("answer")
    graph.set_exit_point("answer")
    graph.set_defaults({"replies": []})
    return graph


def deliver(graph: StateGraph, event: dict[str, str]) -> str:
    """Return the reply to an event; what a handler of a web framework does."""
    final = graph.turn(event["channel"], {"text": event["text"]}, key=event["id"], busy="enqueue")
    return str(final["replies"][-1])


def main() -> None:
    """Deliver three events, each of them three times at the same time."""
    events = [{"channel": "C1", "id": f"Ev{number}", "text": f"hello {number}"} for number in range(3)]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as pool:
        graph = chat(Path(folder) / "chats.db")
        replies = list(pool.map(lambda event: deliver(graph, event), events * 3))
        print(*replies, sep="\n")
        print(f"{len(graph.store.load('C1')['replies'])} answers to {len(replies)} deliveries")
        graph.store.close()


if __name__ == "__main__":
    main()
