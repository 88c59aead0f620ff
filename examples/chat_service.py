"""A chat service: `uvicorn --app-dir examples chat_service:app`. Kill it at any time, and start it again."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from fastapi import Body, FastAPI
from pydantic_ai import Agent, ModelMessage
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel

from stategraph import CheckpointNotFoundError, InterruptNode, NodeContext, State, StateGraph
from stategraph.agents.pydantic_ai import durable
from stategraph.errors import RunBusyError, RunCompleteError, RunExistsError, StepConflictError
from stategraph.web import events


async def rules(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
    """Respond in the place of a model, which needs a key."""
    asked: Any = messages[-1].parts[-1]
    tool = DeltaToolCall(info.output_tools[0].name, '{"response": 30}', tool_call_id="refund")
    for word in ["refund"] if "refund" in asked.content else f"You said: {asked.content}".split():
        await asyncio.sleep(0.05)
        yield {0: tool} if word == "refund" else f"{word} "


async def reply(state: State, context: NodeContext) -> dict[str, Any]:
    """Answer what has been said since the last reply, or ask for a refund of some euros."""
    heard = context.effect("heard", lambda: len(state["said"]))  # the same again after a crash, whatever has been said
    prompt = "; ".join(state["said"][state["heard"] : heard])
    agent = Agent(FunctionModel(stream_function=rules), name="agent", output_type=[str, int])
    result: Any = await durable(agent, context, stream=True).run(prompt, message_history=list(state["messages"]))
    return {
        "messages": result.all_messages(),
        "heard": heard,
        "wish": 0 if isinstance(result.output, str) else result.output,
    }


graph = StateGraph("chat", store=os.environ.get("CHATS", "chats.db"), preserve=True)
graph.set_defaults({"said": [], "keys": [], "messages": [], "heard": 0, "wish": 0, "refunded": 0})
graph.add_node("reply", reply, persist_chunks=True)
graph.add_node("ask", InterruptNode("wish", "ok", deadline=float(os.environ.get("PATIENCE", "3600")), otherwise=False))
graph.add_node("refund", lambda state: {"refunded": state["refunded"] + state["wish"] * state["ok"], "wish": 0})
graph.add_node("rest", lambda state: {})
graph.add_edge("ask", "refund")
graph.add_edge("reply", "ask", lambda state: state["wish"] > 0)
for node in ("reply", "refund"):
    graph.add_edge(node, "reply", lambda state: len(state["said"]) > state["heard"])
    graph.add_edge(node, "rest")
graph.set_entry_point("reply")
graph.set_exit_point("rest")
graph.on_message(lambda state, new: {"said": [*state["said"], new["text"]], "keys": [*state["keys"], new["key"]]})


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Work while the application runs: one chat at a time, and a message that came at the very end is a turn."""

    async def work() -> None:
        while True:
            async for done in graph.arecover():
                if done.state and done.state.status == "completed" and len(done.state["said"]) > done.state["heard"]:
                    graph.submit(done.state)
            await asyncio.sleep(0.1)

    worker = asyncio.create_task(work())
    yield
    worker.cancel()


app = FastAPI(lifespan=lifespan)
app.mount("/events", events(graph))  # the tokens, for EventSource: /events/chat-1


@app.post("/chats/{chat}")
async def say(chat: str, text: str = Body(), key: str = Body()) -> None:
    """Begin a chat or its next turn, or tell the agent something while it is at work. A key is one message."""
    while True:
        state = State({"said": [], "keys": []}, run_id=chat)
        with suppress(CheckpointNotFoundError):
            state = graph.store.load(chat)
        if key in state["keys"]:
            return
        turn = {"said": [*state["said"], text], "keys": [*state["keys"], key], "heard": len(state["said"])}
        with suppress(RunExistsError, RunBusyError, RunCompleteError, StepConflictError):  # it has just changed
            if state.status == "cancelled":
                await graph.aturn(chat, turn, key=key)
            elif state.status == "completed" or not state.graph:
                await asyncio.to_thread(graph.submit, state.update(turn))
            else:
                await graph.asend(chat, {"text": text, "key": key}, key=key)
            return


@app.post("/chats/{chat}/{what}")
async def act(chat: str, what: str, pause: str = Body(""), approved: bool = Body(False)) -> Any:
    """Press a button: stop, or the answer to a question."""
    return await (graph.acancel(chat, wait=10) if what == "stop" else graph.aanswer(chat, approved, pause=pause))


@app.get("/chats/{chat}")
def look(chat: str) -> dict[str, Any]:
    """Show a chat: what was said, the replies, and what waits for an answer."""
    state = graph.store.load(chat)
    replies = [part.content for message in state["messages"] for part in message.parts if part.part_kind == "text"]
    asks = {"pause": state.pause.id, "euros": state.pause.value} if state.pause else None
    shown = {"status": state.status, "said": state["said"], "refunded": state["refunded"]}
    return shown | {"replies": replies, "asks": asks}
