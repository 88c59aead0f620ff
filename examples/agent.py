"""An agent of Pydantic AI whose process dies: it goes on where it was, and asks before it refunds.

Its model follows a script, so it needs neither a key nor a network.

python examples/agent.py
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from pydantic_ai import Agent, ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from stategraph import NodeContext, State, StateGraph
from stategraph.agents.pydantic_ai import durable

SCRIPT: list[Any] = [
    ToolCallPart("find_order", {"number": 17}, tool_call_id="call-1"),
    ToolCallPart("refund", {"number": 17, "euros": 30}, tool_call_id="call-2"),
    TextPart("30 EUR are on their way."),
]


def follow_script(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Respond to a request, in the place of a model."""
    number = sum(isinstance(message, ModelResponse) for message in messages)
    print(f"  request {number + 1}", flush=True)
    return ModelResponse([SCRIPT[number]])


agent = Agent(FunctionModel(follow_script), name="support", instructions="Help with orders.")


@agent.tool_plain
def find_order(number: int) -> dict[str, Any]:
    """Look an order up; the first process dies in the meantime."""
    print(f"  order {number} is looked up", flush=True)
    if "--dies" in sys.argv:
        os._exit(1)
    return {"number": number, "euros": 30}


@agent.tool_plain(requires_approval=True)
def refund(number: int, euros: int) -> str:
    """Refund an order."""
    print(f"  {euros} EUR are refunded")
    return "done"


def support(state: State, context: NodeContext) -> dict[str, Any]:
    """Answer the question of a customer."""
    result = durable(agent, context, repeat=["find_order"]).run_sync(state["question"])
    return {"answer": result.output, "messages": result.all_messages()}


def support_graph(folder: Path) -> StateGraph:
    """Return the graph: one node, with an agent."""
    graph = StateGraph("support", store=folder / "runs.db", preserve=True)
    graph.add_node("support", support)
    graph.set_entry_point("support")
    graph.set_exit_point("support")
    return graph


def main() -> None:
    """Let a process die, go on in this one, and approve the refund."""
    question = State({"question": "Where is my money?"}, run_id="chat-1")
    if "--dies" in sys.argv:
        support_graph(Path(sys.argv[-1])).run(question)
    with tempfile.TemporaryDirectory() as folder:
        print("a process that dies:", flush=True)
        subprocess.run([sys.executable, __file__, "--dies", folder], check=False)
        print("another one goes on:")
        graph = support_graph(Path(folder))
        pause = graph.run(question).pause
        assert pause is not None
        assert pause.response_param is not None
        print(f"it waits: {pause.reason} {dict(pause.value['args'])}")
        final = graph.resume("chat-1", {pause.response_param: True}, pause=pause)
        print(f"{final['answer']} ({len(final['messages'])} messages, {final.spent['tokens']} tokens)")


if __name__ == "__main__":
    main()
