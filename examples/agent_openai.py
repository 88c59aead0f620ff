"""An agent of the OpenAI agents library in a node that fails: each request and each call of a tool is an effect.

Its model follows a script, so it needs neither a key nor a network.

python examples/agent_openai.py
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from typing import Any

import agents
from agents import Agent, FunctionTool, Model, ModelResponse, Runner, Usage, function_tool
from agents.usage import RequestUsage
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

import stategraph.types
from stategraph import NodeContext, RetryPolicy, State, StateGraph, register_type

agents.set_tracing_disabled(True)
stategraph.types.openai()
for kept in (ModelResponse, Usage, RequestUsage):
    register_type(kept)


class DurableModel(Model):
    """A model whose responses are kept, in the order of its requests."""

    def __init__(self, model: Model, context: NodeContext) -> None:
        self.model, self.context, self.number = model, context, 0

    async def get_response(self, *args: Any, **options: Any) -> ModelResponse:
        """Return the next response."""
        self.number += 1

        async def ask() -> ModelResponse:
            return await self.model.get_response(*args, **options)

        response: ModelResponse = await self.context.effect(f"request {self.number}", ask, confirm=lambda key: None)
        return response

    def stream_response(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        """Stream a response, which is not kept."""
        return self.model.stream_response(*args, **options)


def durable_tool(tool: FunctionTool, context: NodeContext) -> FunctionTool:
    """Return the tool, with results that are kept under the ids of its calls."""

    async def invoke(about: Any, arguments: str) -> Any:
        return await context.effect(f"{tool.name} {about.tool_call_id}", partial(tool.on_invoke_tool, about, arguments))

    return replace(tool, on_invoke_tool=invoke)


# --------------------------------------------------------------------------- what is yours


class ScriptedModel(Model):
    """Responds by what it gets."""

    async def get_response(self, *args: Any, **options: Any) -> ModelResponse:
        """Call the tool first; then say what it returned."""
        print("  the model gets a request")
        outputs = [item["output"] for item in options["input"] if item.get("type") == "function_call_output"]
        call = ResponseFunctionToolCall(name="weigh", arguments='{"parcel": 2}', call_id="call-2", type="function_call")
        text = ResponseOutputText(text=f"It weighs {''.join(outputs)}.", annotations=[], type="output_text")
        said = ResponseOutputMessage(id="m", content=[text], role="assistant", status="completed", type="message")
        return ModelResponse([said if outputs else call], Usage(requests=1), None)

    def stream_response(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        """Refuse."""
        raise NotImplementedError


@function_tool
def weigh(parcel: int) -> str:
    """Weigh a parcel."""
    print(f"  parcel {parcel} is weighed")
    return f"{parcel} kg"


async def post(state: State, context: NodeContext) -> dict[str, Any]:
    """Let the agent weigh the parcel, and post it; the first attempt finds the post office closed."""
    print(f"attempt {context.attempt}:")
    model, tools = DurableModel(ScriptedModel(), context), [durable_tool(weigh, context)]
    result = await Runner.run(Agent("post", model=model, tools=[*tools]), state["question"])
    if context.attempt == 1:
        raise OSError("the post office is closed")
    return {"answer": result.final_output, "messages": result.to_input_list()}


def main() -> None:
    """Run an agent whose node fails once: the next attempt neither sends a request again nor calls the tool."""
    graph = StateGraph("post", store="memory")
    graph.add_node("post", post, retry=RetryPolicy(max_attempts=2, initial_delay=0.1))
    graph.set_entry_point("post")
    graph.set_exit_point("post")
    print(asyncio.run(graph.arun(State({"question": "How heavy is the parcel?"})))["answer"])


if __name__ == "__main__":
    main()
