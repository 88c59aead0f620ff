"""An assistant that remembers. A conversation is one run: each turn completes it, and the next turn continues it.

    python examples/assistant.py                       talk to it; what it remembers is in assistant.db
    echo "my name is Ada" | python examples/assistant.py
    echo "what is my name?" | python examples/assistant.py    another process remembers

A few rules stand in for a model, so the example needs no service. Replace them with a call of a real model.
"""

import argparse
import operator
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stategraph import CheckpointConfig, GraphConfig, State, StateGraph, key_equals

Updates = dict[str, Any]

OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
RULES = {
    "remember": r"my (?P<key>\w+) is (?P<value>.+)",
    "recall": r"what is my (?P<key>\w+)",
    "calculate": r"(?P<left>\d+) *(?P<operation>[-+*]) *(?P<right>\d+)",
}


def listen(state: State) -> Updates:
    """Node: record the message, and find the rule for it."""
    said = state["said"].strip()
    for intent, pattern in RULES.items():
        if found := re.search(pattern, said.rstrip("?.!"), re.IGNORECASE):
            return {"messages": [*state["messages"], said], "intent": intent, "found": found.groupdict()}
    return {"messages": [*state["messages"], said], "intent": "chat", "found": {}}


def remember(state: State) -> Updates:
    """Node: remember a fact."""
    key, value = state["found"]["key"].lower(), state["found"]["value"]
    return {"facts": {**state["facts"], key: value}, "answer": f"I will remember that your {key} is {value}."}


def recall(state: State) -> Updates:
    """Node: look up a fact."""
    key = state["found"]["key"].lower()
    value = state["facts"].get(key)
    return {"answer": f"Your {key} is {value}." if value else f"You have not told me your {key}."}


def calculate(state: State) -> Updates:
    """Node: call a tool."""
    found = state["found"]
    result = OPERATIONS[found["operation"]](int(found["left"]), int(found["right"]))
    return {"answer": f"{found['left']} {found['operation']} {found['right']} is {result}."}


def chat(state: State) -> Updates:
    """Node: answer a message that matches no other rule."""
    return {"answer": f"You have said {len(state['messages']) // 2 + 1} things to me. Tell me more."}


def reply(state: State) -> Updates:
    """Node: add the answer to the conversation."""
    return {"messages": [*state["messages"], state["answer"]]}


def assistant_graph(path: Path) -> StateGraph:
    """Return the graph: listen -> the node of the rule -> reply. Completed runs are kept for the next turn."""
    checkpoint = CheckpointConfig(store="sqlite", preserve=True, options={"path": str(path)})
    graph = StateGraph(GraphConfig(name="assistant", checkpoint=checkpoint))
    graph.add_node("listen", listen)
    graph.add_node("reply", reply)
    for intent, node in (("remember", remember), ("recall", recall), ("calculate", calculate), ("chat", chat)):
        graph.add_node(intent, node)
        graph.add_edge("listen", intent, key_equals("intent", intent))
        graph.add_edge(intent, "reply")
    graph.set_entry_point("listen")
    graph.set_exit_point("reply")
    graph.set_defaults({"messages": [], "facts": {}})
    return graph


def say(graph: StateGraph, chat_id: str, said: str) -> State:
    """Run one turn. The first turn starts the run; an interrupted turn is finished first."""
    return graph.turn(chat_id, {"said": said})


def lines() -> Iterator[str]:
    """Yield the lines that are typed or piped in."""
    if not sys.stdin.isatty():
        yield from sys.stdin
        return
    print("Talk to me. An empty line ends it.")
    while said := input("> "):
        yield said


def main() -> None:
    """Hold a conversation."""
    parser = argparse.ArgumentParser(description="An assistant that remembers.")
    parser.add_argument("--store", type=Path, default=Path("assistant.db"), help="the file of the conversations")
    parser.add_argument("--chat", default="chat-1", help="which of them to go on with")
    given = parser.parse_args()
    graph = assistant_graph(given.store)
    with graph.store:
        for said in lines():
            state = say(graph, given.chat, said)
            print(f"{state['answer']} [step {state.step}]")


if __name__ == "__main__":
    main()
