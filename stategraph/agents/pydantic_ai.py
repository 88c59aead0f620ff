"""Agents of Pydantic AI inside of nodes: each request to a model and each call of a tool is an effect.

The library does all of its work again after a crash, with the kept responses and results in place of the calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, count
from typing import Any, TypeVar

import attrs

from stategraph import types
from stategraph._protocol import OutcomeUnknown
from stategraph._values.progress import Pause, pause_of
from stategraph.errors import NotSerializableError
from stategraph.nodes.base import NodeContext
from stategraph.stores._codec.msgpack import encode_value

types.pydantic_ai()  # first: the error of a missing library says how to install it

from pydantic import ValidationError  # noqa: E402
from pydantic_ai import AbstractToolset, ModelRetry, RunContext, ToolFailed, ToolReturn  # noqa: E402
from pydantic_ai.agent import AbstractAgent, WrapperAgent  # noqa: E402
from pydantic_ai.capabilities import AbstractCapability  # noqa: E402
from pydantic_ai.durable_exec import conversation_id_from_run_id  # noqa: E402
from pydantic_ai.messages import (  # noqa: E402
    ModelResponse,
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
)
from pydantic_ai.models import CompletedStreamedResponse, Model  # noqa: E402
from pydantic_ai.models.wrapper import WrapperModel  # noqa: E402
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, ToolApproved, ToolDenied  # noqa: E402
from pydantic_ai.toolsets import WrapperToolset  # noqa: E402
from pydantic_core import to_jsonable_python  # noqa: E402

_Deps = TypeVar("_Deps")
_Output = TypeVar("_Output")

_within: ContextVar[str] = ContextVar("_within", default="")
"""The key of the tool call under way, followed by a slash: agents that it runs have theirs below it."""


def durable(
    agent: AbstractAgent[_Deps, _Output],
    context: NodeContext[Any],
    *,
    name: str = "",
    repeat: Collection[str] = (),
    confirm: Mapping[str, Callable[[str, Mapping[str, Any]], Any]] | None = None,
    repeat_requests: bool = True,
    stream: bool = False,
) -> AbstractAgent[_Deps, _Output]:
    """Return an agent whose runs go on where they were, also after a crash, when the node runs again.

    Each request to the model and each call of a tool is an effect of the step (`NodeContext.effect`). Calls that wait for
    an approval, or for a result from elsewhere, pause the run, each with a pause of its own. Tokens are counted by
    `NodeContext.spend`.

    Args:
        agent: The agent.
        context: The step in which it runs.
        name: Begins the keys of its effects; by default, its own name. Runs of one name are numbered as they begin: give
            names to runs that begin concurrently in no certain order.
        repeat: The tools that may be called again if it is unknown whether a call took place: those that only read, and
            those that run another durable agent. For other tools, a person is asked.
        confirm: Functions that find out whether a call took place, by tool. One gets the id of the call
            (`RunContext.tool_call_id`) and its arguments; it returns the result, or None if the call did not take place.
        repeat_requests: Whether a request to a model whose outcome is unknown is sent again; otherwise a person is asked.
        stream: Whether to emit the text of responses as it arrives (`NodeContext.emit`). Streamed runs always do.
    """
    return _DurableAgent(agent, _Plan(context, name, frozenset(repeat), confirm or {}, repeat_requests, stream))


@attrs.frozen
class _Plan:
    """What `durable` was given, apart from the agent."""

    context: NodeContext[Any]
    name: str
    repeat: frozenset[str]
    confirm: Mapping[str, Callable[[str, Mapping[str, Any]], Any]]
    repeat_requests: bool
    stream: bool


class _DurableAgent(WrapperAgent[_Deps, _Output]):
    def __init__(self, wrapped: AbstractAgent[_Deps, _Output], plan: _Plan) -> None:
        super().__init__(wrapped)
        self._plan = plan

    @asynccontextmanager
    async def iter(self, *args: Any, capabilities: Any = None, **options: Any) -> AsyncGenerator[Any]:
        """Begin a run. All ways to run an agent call this."""
        effects = _Effects(self._plan, self._plan.name or self.name or "agent")
        async with self.wrapped.iter(*args, capabilities=[*(capabilities or ()), effects], **options) as run:
            yield run


class _Effects(AbstractCapability[Any]):
    """One run of an agent: the keys of its effects, and what surrounds them."""

    def __init__(self, plan: _Plan, name: str) -> None:
        super().__init__()
        self._plan, self.context = plan, plan.context
        numbers = (f"{_within.get()}{name}{number}" for number in chain([""], map(" {}".format, count(2))))
        self._name = next(filter(self.context._journal.claim, numbers))
        self._responses = 0
        self._calls, self._asking = 0, list[Pause]()
        self._no_calls = asyncio.Event()

    def get_default_run_id(self) -> str:
        return f"{self.context.idempotency_key}/{self._name}"

    def get_default_conversation_id(self, run_id: str) -> str:
        return conversation_id_from_run_id(run_id)

    def get_wrapper_model(self, model: Model) -> Model:
        return _DurableModel(model, self, self._plan.stream)

    def get_wrapper_toolset(self, toolset: AbstractToolset[Any]) -> AbstractToolset[Any]:
        return _DurableToolset(toolset, self)

    async def handle_deferred_tool_calls(
        self, ctx: RunContext[Any], *, requests: DeferredToolRequests
    ) -> DeferredToolResults:
        keys = {
            call.tool_call_id: f"{self._key(ctx, call.tool_name, call.tool_call_id)}/{what}"
            for what, calls in (("approval", requests.approvals), ("result", requests.calls))
            for call in calls
        }
        questions = {
            keys[call.tool_call_id]: (f"{what} a call of {call.tool_name}", _shown(requests, call))
            for what, calls in (("approve", requests.approvals), ("give the result of", requests.calls))
            for call in calls
        }
        answers = await asyncio.to_thread(self.context._journal.ask, questions)
        return DeferredToolResults(
            approvals={call.tool_call_id: _decision(answers[keys[call.tool_call_id]]) for call in requests.approvals},
            calls={call.tool_call_id: answers[keys[call.tool_call_id]] for call in requests.calls},
        )

    def _key(self, ctx: RunContext[Any], tool: str, call_id: str | None) -> str:
        return f"{self._name}/{ctx.run_step}/{tool}/{call_id}"

    async def request(self, send: Callable[[], Awaitable[ModelResponse]]) -> tuple[ModelResponse, bool]:
        """Return the next response of the model, and whether it was kept before. A request that fails is not counted."""
        tokens = list[int]()

        async def sent() -> ModelResponse:
            response = await send()
            tokens.append(response.usage.total_tokens)
            return response

        confirm = _did_not_happen if self._plan.repeat_requests else None
        response = await self.context.effect(f"{self._name}/request {self._responses + 1}", sent, confirm=confirm)
        self._responses += 1
        if tokens:  # after the response is kept: at a limit of the run, it is not lost
            await asyncio.to_thread(partial(self.context.spend, tokens=tokens[0]))
        return deepcopy(response), not tokens  # the library changes its own

    async def call(
        self, tool: str, args: dict[str, Any], ctx: RunContext[Any], call: Callable[[], Awaitable[Any]]
    ) -> Any:
        """Return the result of a tool, or raise what it tells the model."""
        key = self._key(ctx, tool, ctx.tool_call_id)

        async def outcome() -> Any:
            token = _within.set(f"{key}/")
            try:
                return _as_kept(await call())
            except ValidationError as error:
                return ModelRetry(str(error))
            except (ModelRetry, ToolFailed) as error:
                return error
            finally:
                _within.reset(token)

        find = self._plan.confirm.get(tool)
        confirm = _did_not_happen if tool in self._plan.repeat else find and (lambda _: find(str(ctx.tool_call_id), args))
        result = await self._beside_others(self.context.effect(key, outcome, confirm=confirm))
        if isinstance(result, ModelRetry | ToolFailed):
            raise deepcopy(result)
        return result

    async def _beside_others(self, call: Awaitable[Any]) -> Any:
        """Await a call. Before the run pauses, calls at the same time end, so that their outcomes are known."""
        self._calls += 1
        self._no_calls.clear()
        try:
            return await call
        except OutcomeUnknown as unknown:
            self._asking += unknown.args[0].each
        finally:
            self._calls -= 1
            if not self._calls:
                self._no_calls.set()
        await self._no_calls.wait()
        raise OutcomeUnknown(pause_of(self._asking))


class _DurableModel(WrapperModel):
    def __init__(self, wrapped: Model, effects: _Effects, streams: bool) -> None:
        super().__init__(wrapped)
        self._effects, self._streams = effects, streams

    async def request(self, *asked: Any) -> ModelResponse:
        if self._streams:
            return await self._streamed(*asked)
        return (await self._effects.request(partial(self.wrapped.request, *asked)))[0]

    @asynccontextmanager
    async def request_stream(self, *asked: Any, **options: Any) -> AsyncGenerator[CompletedStreamedResponse]:
        response, parameters = await self._streamed(*asked, **options), options.get("model_request_parameters")
        parameters = asked[2] if parameters is None else parameters
        yield CompletedStreamedResponse(response, model_request_parameters=parameters, replay_events=True)

    async def compact_messages(self, *args: Any, **options: Any) -> ModelResponse:
        return (await self._effects.request(partial(self.wrapped.compact_messages, *args, **options)))[0]

    async def _streamed(self, *asked: Any, **options: Any) -> ModelResponse:
        """Return a response whose text is emitted: as it arrives, or at once if it was kept before."""
        emit = self._effects.context.emit

        async def send() -> ModelResponse:
            async with self.wrapped.request_stream(*asked, **options) as stream:
                async for event in stream:
                    if text := _text_of(event):
                        emit(text)
            return stream.get()

        response, is_old = await self._effects.request(send)
        for part in response.parts if is_old else ():
            if isinstance(part, TextPart) and part.content:
                emit(part.content)
        return response


@dataclass
class _DurableToolset(WrapperToolset[Any]):
    effects: _Effects

    async def call_tool(self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: Any) -> Any:
        return await self.effects.call(name, tool_args, ctx, partial(super().call_tool, name, tool_args, ctx, tool))


def _did_not_happen(*_: Any) -> None:
    """Answer that an effect did not happen, so that it is done again."""


def _decision(answer: Any) -> bool | ToolApproved | ToolDenied:
    """Return the answer to a request for approval. Nothing but True approves; a text is the reason to deny."""
    return answer if isinstance(answer, bool | ToolApproved | ToolDenied) else ToolDenied(str(answer))


def _shown(requests: DeferredToolRequests, call: Any) -> dict[str, Any]:
    """Return what a person sees of a call that waits for an answer."""
    shown = {"tool": call.tool_name, "args": call.args_as_dict(), **requests.metadata.get(call.tool_call_id, {})}
    return to_jsonable_python(shown, fallback=repr)  # type: ignore[no-any-return]


def _text_of(event: ModelResponseStreamEvent) -> str:
    """Return the text that an event of a stream brings."""
    if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
        return event.part.content
    return event.delta.content_delta if isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta) else ""


def _as_kept(result: Any) -> Any:
    """Return the result of a tool as it is, or as the JSON that the model reads if a State cannot hold it."""
    if isinstance(result, ToolReturn):
        return replace(result, return_value=_as_kept(result.return_value))
    try:
        encode_value(result, "")
    except NotSerializableError:
        return to_jsonable_python(result)
    return result
