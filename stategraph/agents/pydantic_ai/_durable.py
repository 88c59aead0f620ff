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
from itertools import count
from typing import Any, TypeAlias, TypeVar

import attrs

from stategraph import types
from stategraph._protocol import OutcomeUnknown
from stategraph._values.progress import Pause, pause_of
from stategraph.errors import NotSerializableError, UnknownNameError
from stategraph.nodes.base import NodeContext
from stategraph.stores._codec.msgpack import encode_value

types.pydantic_ai()  # before the imports: its error says what to install

from pydantic import ValidationError
from pydantic_ai import (
    AbstractToolset,
    FunctionToolset,
    ModelResponse,
    ModelRetry,
    PartStartEvent,
    RunContext,
    TextPart,
    TextPartDelta,
    ToolApproved,
    ToolDenied,
    ToolFailed,
    ToolReturn,
    WrapperToolset,
)
from pydantic_ai.agent import AbstractAgent, WrapperAgent
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.durable_exec import conversation_id_from_run_id
from pydantic_ai.models import CompletedStreamedResponse, Model, ModelRequestParameters
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults
from pydantic_core import to_jsonable_python

_Deps = TypeVar("_Deps")
_Output = TypeVar("_Output")
_Find: TypeAlias = Callable[[str, Mapping[str, Any]], Any]

_within: ContextVar[str] = ContextVar("_within", default="")
"""The key of the tool call under way, followed by a slash: agents that it runs have theirs below it."""


def durable(
    agent: AbstractAgent[_Deps, _Output],
    context: NodeContext[Any],
    *,
    name: str = "",
    repeat: Collection[str] = (),
    confirm: Mapping[str, _Find] | None = None,
    repeat_requests: bool = True,
    stream: bool = False,
) -> AbstractAgent[_Deps, _Output]:
    """Return an agent whose runs go on where they were when the node runs again, also after a crash.

    Each request to the model and each call of a tool is an effect of the step (`NodeContext.effect`). A call that waits
    for an approval, or for a result from elsewhere, pauses the run; several have a pause each. Tokens are counted by
    `NodeContext.spend`.

    Args:
        agent: The agent.
        context: The step in which it runs.
        name: Begins the keys of its effects; by default, its own name. Runs of one name are numbered as they begin, so
            give names to runs that begin at the same time in no certain order.
        repeat: The tools that are called again if it is unknown whether a call took place: those that only read, and
            those that run another durable agent. For all others, a person answers.
        confirm: Functions by tool that find out whether a call took place. One gets the id of the call (the
            `tool_call_id` of its RunContext) and the arguments, and returns the result, or None if it did not.
        repeat_requests: Whether a request to the model is sent again if its outcome is unknown; if not, the run
            pauses.
        stream: Whether to emit the text of each response as it arrives (`NodeContext.emit`). Streamed runs always do.

    Returns:
        An agent for this attempt of the step. If the context belongs to no run, as in a test: the agent as it is.

    Raises:
        TypeError: An argument has the wrong type.
        UnknownNameError: `repeat` or `confirm` names no tool of the agent; the run raises it when it knows its tools.
    """
    if not isinstance(agent, AbstractAgent) or not isinstance(context, NodeContext):
        raise TypeError(
            "durable(agent, context) takes an agent of Pydantic AI and the NodeContext that the node gets, not "
            f"{type(agent).__name__} and {type(context).__name__}"
        )
    if isinstance(repeat, str):
        raise TypeError(f"repeat is a list of names of tools, as in repeat=[{repeat!r}], not a str")
    if context._journal is None:
        return agent
    return _DurableAgent(agent, _Plan(context, name, frozenset(repeat), confirm or {}, repeat_requests, stream))


@attrs.frozen
class _Plan:
    """What `durable` was given, apart from the agent."""

    context: NodeContext[Any]
    name: str
    repeat: frozenset[str]
    confirm: Mapping[str, _Find]
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
    """The effects of one run of an agent."""

    def __init__(self, plan: _Plan, name: str) -> None:
        super().__init__()
        self._plan, self.context = plan, plan.context
        names = (f"{_within.get()}{name}{f' {number}' if number > 1 else ''}" for number in count(1))
        self._name = next(filter(self.context._journal.claim, names))
        self._responses, self._calls, self._asking = 0, 0, list[Pause]()
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
        """Ask a person for each call that waits."""

        def keyed(calls: list[Any], what: str) -> dict[str, Any]:
            return {f"{self._key(ctx, call.tool_name, call.tool_call_id)}/{what}": call for call in calls}

        approvals, results = keyed(requests.approvals, "approval"), keyed(requests.calls, "result")
        questions = {
            key: (f"the {key.rpartition('/')[2]} of a call of {call.tool_name} is needed", _shown(requests, call))
            for key, call in (approvals | results).items()
        }
        answers = await asyncio.to_thread(self.context._journal.ask, questions)
        return DeferredToolResults(
            approvals={call.tool_call_id: _decision(answers[key]) for key, call in approvals.items()},
            calls={call.tool_call_id: answers[key] for key, call in results.items()},
        )

    def _key(self, ctx: RunContext[Any], tool: str, call_id: str | None) -> str:
        return f"{self._name}/{ctx.run_step}/{tool}/{call_id}"

    async def request(self, send: Callable[[], Awaitable[ModelResponse]]) -> tuple[ModelResponse, bool]:
        """Return the next response of the model, and whether it was kept before. A failed request is not counted."""
        tokens = list[int]()

        async def sent() -> ModelResponse:
            response = await send()
            tokens.append(response.usage.total_tokens)
            return response

        confirm = _did_not_happen if self._plan.repeat_requests else None
        response = await self.context.effect(f"{self._name}/request {self._responses + 1}", sent, confirm=confirm)
        self._responses += 1
        if tokens:  # once the response is kept: a limit that is reached does not lose it
            await asyncio.to_thread(partial(self.context.spend, tokens=tokens[0]))
        return deepcopy(response), not tokens  # the library changes its own

    async def call(self, tool: str, args: dict[str, Any], ctx: RunContext[Any], call: Callable[[], Any]) -> Any:
        """Return the result of a tool, or raise what the model gets from it."""
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

        def asks(pause: Pause) -> Pause:
            if pause.response_param != key:  # of an agent that the tool runs
                return pause
            reason = f"the outcome of a call of {tool} is unknown"
            return attrs.evolve(pause, reason=reason, value=_described(tool, args))

        effect = self.context.effect(key, outcome, confirm=self._find(tool, args, ctx))
        result = await self._beside_others(effect, asks)
        if isinstance(result, ModelRetry | ToolFailed):
            raise deepcopy(result)
        return result

    def check_names(self, tools: Collection[str]) -> None:
        """Raise UnknownNameError if `repeat` or `confirm` names another tool."""
        for name in sorted({*self._plan.repeat, *self._plan.confirm} - {*tools}):
            raise UnknownNameError("tool", name, tools)

    def _find(self, tool: str, args: dict[str, Any], ctx: RunContext[Any]) -> Callable[[str], Any] | None:
        """Return what finds out whether a call took place; None if a person answers."""
        if tool in self._plan.repeat:
            return _did_not_happen
        find = self._plan.confirm.get(tool)
        return None if find is None else partial(_found, find, str(ctx.tool_call_id), args)

    async def _beside_others(self, call: Awaitable[Any], asks: Callable[[Pause], Pause]) -> Any:
        """Await a call. Before the run pauses, calls at the same time end, so that their outcomes are known."""
        self._calls += 1
        self._no_calls.clear()
        try:
            return await call
        except OutcomeUnknown as unknown:
            self._asking += map(asks, unknown.args[0].each)
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

    async def request(
        self, messages: Any, model_settings: Any, model_request_parameters: ModelRequestParameters
    ) -> ModelResponse:
        given = messages, model_settings, model_request_parameters
        if self._streams:
            return await self._streamed(*given)
        return (await self._effects.request(partial(self.wrapped.request, *given)))[0]

    @asynccontextmanager
    async def request_stream(
        self,
        messages: Any,
        model_settings: Any,
        model_request_parameters: ModelRequestParameters,
        run_context: Any = None,
    ) -> AsyncGenerator[CompletedStreamedResponse]:
        response = await self._streamed(messages, model_settings, model_request_parameters, run_context)
        yield CompletedStreamedResponse(response, model_request_parameters=model_request_parameters, replay_events=True)

    async def compact_messages(self, *args: Any, **options: Any) -> ModelResponse:
        return (await self._effects.request(partial(self.wrapped.compact_messages, *args, **options)))[0]

    async def _streamed(self, *given: Any) -> ModelResponse:
        """Return a response whose text is emitted: as it arrives, or at once if it was kept before."""
        emit = self._effects.context.emit

        async def send() -> ModelResponse:
            async with self.wrapped.request_stream(*given) as stream:
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

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, Any]:
        tools = await super().get_tools(ctx)
        names = {*tools}
        # Also those that are not for this step.
        self.apply(lambda leaf: names.update(leaf.tools if isinstance(leaf, FunctionToolset) else ()))
        self.effects.check_names(names)
        return tools

    async def call_tool(self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: Any) -> Any:
        call = partial(super().call_tool, name, tool_args, ctx, tool)
        return await self.effects.call(name, tool_args, ctx, call)


def _did_not_happen(_: str) -> None:
    """Answer that an effect did not happen, so that it is done again."""


def _found(find: _Find, call_id: str, args: Mapping[str, Any], _: str) -> Any:
    return find(call_id, args)


def _decision(answer: Any) -> bool | ToolApproved | ToolDenied:
    """Return the answer to a request for approval. Nothing but True approves; a text is the reason to deny."""
    return answer if isinstance(answer, bool | ToolApproved | ToolDenied) else ToolDenied(str(answer))


def _shown(requests: DeferredToolRequests, call: Any) -> Any:
    """Return what a person sees of a call that waits for an answer."""
    about = requests.metadata.get(call.tool_call_id, {})
    return _described(call.tool_name, call.args_as_dict(), **about)


def _described(tool: str, args: Mapping[str, Any], **about: Any) -> Any:
    return to_jsonable_python({"tool": tool, "args": args, **about}, fallback=repr)


def _text_of(event: Any) -> str:
    """Return the text that an event of a stream brings."""
    part = event.part if isinstance(event, PartStartEvent) else getattr(event, "delta", None)
    if isinstance(part, TextPart):
        return part.content
    return part.content_delta if isinstance(part, TextPartDelta) else ""


def _as_kept(result: Any) -> Any:
    """Return the result of a tool as it is, or as the JSON that the model reads if a State cannot hold it."""
    if isinstance(result, ToolReturn):
        return replace(result, return_value=_as_kept(result.return_value))
    try:
        encode_value(result, "")
    except NotSerializableError:
        return to_jsonable_python(result)
    return result
