"""The loop of an agent with the messages, models and tools of LangChain: each request and each call is an effect.

Its model follows a script, so it needs neither a key nor a network.

python examples/agent_langchain.py
"""

import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from langchain_core.language_models import BaseChatModel, FakeMessagesListChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import BaseTool, tool

import stategraph.types
from stategraph import NodeContext, Repeat, State, StateGraph

stategraph.types.langchain()


def loop(model: BaseChatModel, tools: dict[str, BaseTool], messages: list[BaseMessage], context: NodeContext) -> None:
    """Add what the model says and what its tools return, until it calls no more tools."""
    while True:
        request = f"request {len(messages)}"
        message = context.effect(request, partial(model.invoke, list(messages)), confirm=lambda key: None)
        messages.append(message)
        if not message.tool_calls:
            return
        for call in message.tool_calls:
            result: Any = context.effect(f"{call['name']} {call['id']}", partial(tools[call["name"]].invoke, call))
            messages.append(result)


# --------------------------------------------------------------------------- what is yours


class ScriptedModel(FakeMessagesListChatModel):
    """Responds by the number of its messages, so a process that goes on gets the next one."""

    def _generate(self, messages: list[BaseMessage], *args: Any, **options: Any) -> ChatResult:
        number = sum(isinstance(message, AIMessage) for message in messages)
        return ChatResult(generations=[ChatGeneration(message=self.responses[number])])


@tool
def weigh(parcel: int) -> str:
    """Weigh a parcel; the first process dies at parcel 2."""
    print(f"  parcel {parcel} is weighed", flush=True)
    if parcel == 2 and "--dies" in sys.argv:
        os._exit(1)
    return f"{parcel} kg"


def calls_of(name: str, *arguments: dict[str, int]) -> AIMessage:
    """Return a message that calls a tool."""
    wanted = [{"name": name, "args": args, "id": "-".join(["call", *map(str, args.values())])} for args in arguments]
    return AIMessage("", tool_calls=wanted)


first, second = calls_of("weigh", {"parcel": 1}, {"parcel": 2}), calls_of("weigh", {"parcel": 3})
model = ScriptedModel(responses=[first, second, AIMessage("6 kg in all.")])


def post(state: State, context: NodeContext) -> dict[str, Any]:
    """Let the model weigh the parcels."""
    messages: list[BaseMessage] = [HumanMessage(state["question"])]
    loop(model, {"weigh": weigh}, messages, context)
    return {"messages": messages}


def post_graph(folder: Path) -> StateGraph:
    """Return the graph: one node, with an agent."""
    graph = StateGraph("post", store=folder / "runs.db", preserve=True)
    graph.add_node("post", post)
    graph.set_entry_point("post")
    graph.set_exit_point("post")
    return graph


def main() -> None:
    """Let a process die, and go on in this one."""
    question = State({"question": "How heavy are the parcels?"}, run_id="parcels-1")
    if "--dies" in sys.argv:
        post_graph(Path(sys.argv[-1])).run(question)
    with tempfile.TemporaryDirectory() as folder:
        print("a process that dies:", flush=True)
        subprocess.run([sys.executable, __file__, "--dies", folder], check=False)
        graph = post_graph(Path(folder))
        pause = graph.run(question).pause
        assert pause is not None
        print(f"another one asks: {pause.reason}: {pause.value}")
        final = graph.resume("parcels-1", {"weigh call-2": Repeat()})  # or what the parcel weighs
        print(final["messages"][-1].content)


if __name__ == "__main__":
    main()
