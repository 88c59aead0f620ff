"""Agents of Pydantic AI in nodes: what is done is not done again; what is unknown or needs approval is asked for."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from typing import Any

import pytest

pytest.importorskip("pydantic_ai")

from pydantic import BaseModel
from pydantic_ai import (
    Agent,
    ApprovalRequired,
    CallDeferred,
    ModelRetry,
    RunContext,
    ToolDenied,
    ToolFailed,
    ToolReturn,
)
from pydantic_ai.capabilities import ModelFallback
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.toolsets import FunctionToolset

from stategraph import (
    ExecutionError,
    LimitError,
    NodeContext,
    NotSerializableError,
    ParallelNode,
    Repeat,
    State,
    StateGraph,
)
from stategraph.agents.pydantic_ai import durable
from stategraph.stores.memory import MemoryStore
from stategraph.testing.crashing import Killed, MortalStore
from tests.scenarios import DRIVERS, RUN, Scene, make_graph, reopened

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the library are not about us

Calls = list[tuple[str, dict[str, Any]]]


def scripted(*rounds: Calls, asked: list[int] | None = None) -> FunctionModel:
    """A model that calls tools, round after round, and then says "done". It notes each request."""

    def calls(messages: list[ModelMessage]) -> Calls | None:
        number = sum(isinstance(message, ModelResponse) for message in messages)
        if asked is not None:
            asked.append(number)
        return rounds[number] if number < len(rounds) else None

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        wanted = calls(messages)
        if wanted is None:
            return ModelResponse([TextPart("done")])
        ids = enumerate(wanted)
        return ModelResponse([ToolCallPart(tool, args, tool_call_id=f"{tool}-{place}") for place, (tool, args) in ids])

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
        wanted = calls(messages)
        for word in ("do", "ne") if wanted is None else ():
            yield word
        for place, (tool, args) in enumerate(wanted or ()):
            yield {place: DeltaToolCall(tool, json.dumps(args), tool_call_id=f"{tool}-{place}")}

    return FunctionModel(respond, stream_function=stream)


def plain(messages: list[ModelMessage]) -> Any:
    """Messages without times."""

    def stripped(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: stripped(each) for key, each in value.items() if key != "timestamp"}
        return [stripped(each) for each in value] if isinstance(value, list) else value

    return stripped(ModelMessagesTypeAdapter.dump_python(messages, mode="json"))


def agent_graph(agent: Any, store: Any, *, prompt: str = "go", **options: Any) -> StateGraph:
    """A graph with one node, which runs the agent."""

    async def ask(state: State, context: NodeContext) -> dict[str, Any]:
        result = await durable(agent, context, **options).run(prompt)
        return {"messages": result.all_messages(), "said": result.output}

    return make_graph({"ask": ask}, store=store, preserve=True)


def answered(play: Scene, graph: StateGraph, state: State, answers: Mapping[str, Any]) -> State:
    """Answer the pauses of a run, each by the first word that its key or value has, until it completes."""
    for _ in range(20):
        if state.pause is None:
            return state
        pause: Any = state.pause.each[-1]
        word = next(word for word in answers if word in str(pause.response_param))
        state = play.resume(graph, {pause.response_param: answers[word]}, pause=pause)
    raise AssertionError(f"the run asks again and again: {state.pause}")


class Desk:
    """Books two seats at once and then a third, cancels one with an approval, and notes what it did."""

    def __init__(self, dies: Mapping[str, BaseException] | None = None) -> None:
        self.did: list[str] = []
        self.asked: list[int] = []
        self._dies = dict(dies or {})
        seats = [("book", {"seat": 1}), ("book", {"seat": 2})], [("book", {"seat": 3})], [("cancel", {"seat": 1})]
        self.agent = Agent(scripted(*seats, asked=self.asked), name="desk")
        self.agent.tool_plain(self.book)
        self.agent.tool_plain(requires_approval=True)(self.cancel)

    async def book(self, seat: int) -> Any:
        """Book a seat."""
        await asyncio.sleep(0.01)
        return self._done(f"book {seat}", {"seat": seat, "rows": [seat]})

    def cancel(self, seat: int) -> Any:
        """Cancel a seat."""
        return self._done(f"cancel {seat}", f"cancelled {seat}")

    def _done(self, what: str, result: Any) -> Any:
        self.did.append(what)
        if error := self._dies.pop(what, None):
            raise error
        return result


DONE = ["book 1", "book 2", "book 3", "cancel 1"]


@pytest.fixture
def play(memory_play: Scene) -> Scene:
    return memory_play


# --------------------------------------------------------------------------- crashes


def deaths() -> Iterator[MortalStore]:
    """Stores that die at the first write, at the second, and so on: before it or after it."""
    return (MortalStore(MemoryStore(), number, after=number % 2 == 1) for number in range(1, 100))


def test_wherever_it_dies_it_goes_on_at_the_call_under_way() -> None:
    """Each tool was called once at the end, whatever the kill; one request may be sent again; messages are the same."""
    desk, driver = Desk(), DRIVERS["async"]
    scene = Scene(MemoryStore(), driver, lambda node: node)
    graph = agent_graph(desk.agent, scene.store)
    whole = answered(scene, graph, scene.execute(graph, State(run_id=RUN)), {"approval": True})
    expected, died = plain(whole["messages"]), 0
    assert sorted(desk.did) == DONE

    for store in deaths():
        desk = Desk()
        scene = Scene(store, driver, lambda node: node)
        graph = agent_graph(desk.agent, store)
        with suppress(Killed):
            answered(scene, graph, scene.execute(graph, State(run_id=RUN)), {"approval": True})
        if not store.is_dead:
            break
        died += 1
        scene = Scene(store.kept, driver, lambda node: node)
        graph = agent_graph(desk.agent, store.kept)
        state = store.kept.load(RUN) if RUN in store.kept.list() else scene.execute(graph, State(run_id=RUN))
        state = scene.resume(graph) if state.status == "active" else state
        seats = {"1/book/book-0": 1, "1/book/book-1": 2, "2/book/book-0": 3}
        outcomes: dict[str, Any] = {
            key: {"seat": seat, "rows": [seat]} for key, seat in seats.items() if f"book {seat}" in desk.did
        }
        outcomes |= {"cancel/cancel-0": "cancelled 1"} if "cancel 1" in desk.did else {}
        final = answered(scene, graph, state, {"approval": True, **outcomes, "desk": Repeat()})
        assert sorted(desk.did) == DONE
        assert len(desk.asked) <= 4 + 1
        assert plain(final["messages"]) == expected
    assert died > 20


def test_a_tool_that_died_is_asked_for_and_those_beside_it_are_not(play: Scene) -> None:
    """The pause has the node, the tool and the arguments; what was done at the same time is known before the run
    pauses."""
    desk = Desk(dies={"book 1": Killed()})
    graph = agent_graph(desk.agent, play.store)
    with pytest.raises(Killed):
        play.execute(graph, State(run_id=RUN))

    state: Any = play.resume(graph)

    first = "desk/1/book/book-0"
    for pause in state.pause.each:
        if pause.response_param != first:
            outcome = {"seat": 2, "rows": [2]} if "book 2" in desk.did else Repeat()
            state = play.resume(graph, {pause.response_param: outcome}, pause=pause.id)
    asked = {"tool": "book", "args": {"seat": 1}}
    assert [(pause.node, pause.response_param, pause.value) for pause in state.pause.each] == [("ask", first, asked)]
    assert state.pause.reason == "the outcome of a call of book is unknown"
    assert sorted(desk.did) == ["book 1", "book 2"]
    state = play.resume(graph, {first: {"seat": 1, "rows": [1]}})
    assert answered(play, graph, state, {"approval": True}).status == "completed"
    assert sorted(desk.did) == DONE


def test_a_tool_that_only_reads_is_called_again_and_one_that_can_be_looked_up_is(play: Scene) -> None:
    """`repeat` calls it again, `confirm` asks a function, which gets the id of the call and its arguments."""
    looked: list[Any] = []

    def find(call_id: str, args: Mapping[str, Any]) -> Any:
        looked.append((call_id, dict(args)))
        return {"seat": 1, "rows": [1]}

    for options, did in (({"repeat": ["book"]}, 2), ({"confirm": {"book": find}}, 1)):
        desk = Desk(dies={"book 1": Killed()})
        graph = agent_graph(desk.agent, play.store, **options)
        with pytest.raises(Killed):
            play.execute(graph, State(run_id=RUN))
        state = answered(play, graph, play.resume(graph), {"approval": True})
        assert state.status == "completed"
        assert Counter(desk.did)["book 1"] == did
        play.store.delete(RUN)
    assert ("book-0", {"seat": 1}) in looked


@pytest.mark.parametrize("repeats", [True, False])
def test_a_request_that_died_is_sent_again_or_asked_for(play: Scene, repeats: bool) -> None:
    """A request costs money and changes nothing: it is repeated, unless `repeat_requests` is false."""
    dies = [Killed()]

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if dies:
            raise dies.pop()
        return ModelResponse([TextPart("hello")])

    graph = agent_graph(Agent(FunctionModel(respond)), play.store, repeat_requests=repeats)
    with pytest.raises(Killed):
        play.execute(graph, State(run_id=RUN))

    state: Any = play.resume(graph)

    if not repeats:
        assert (state.pause.node, state.pause.value) == ("ask", "agent/request 1")
        state = play.resume(graph, {"agent/request 1": ModelResponse([TextPart("hello")])})
    assert state["said"] == "hello"


def test_a_node_that_fails_after_its_agent_runs_does_not_run_it_again(play: Scene) -> None:
    """Also a sync node, which calls `run_sync`, and two runs of one agent in one node."""
    desk, fails = Desk(), [ValueError("no")]
    desk.agent = Agent(scripted([("book", {"seat": 1})], asked=desk.asked), tools=[desk.book])

    def ask(state: State, context: NodeContext) -> dict[str, Any]:
        agent = durable(desk.agent, context)
        first = agent.run_sync("go")
        second = agent.run_sync("again", message_history=first.all_messages())
        if fails:
            raise fails.pop()
        return {"said": [first.output, second.output], "ids": [m.run_id for m in second.all_messages()]}

    graph = make_graph({"ask": ask}, store=play.store, preserve=True)
    with suppress(RuntimeError):
        play.execute(graph, State(run_id=RUN))
    final: Any = play.resume(graph)

    assert final["said"] == ["done", "done"]
    assert desk.did == ["book 1"]
    assert len(set(final["ids"])) == 2


# --------------------------------------------------------------------------- what else an agent does


def test_what_a_tool_tells_its_model_is_kept(play: Scene) -> None:
    """A retry that a tool asks for and a failure are results: they are not done again, and the model reads the same."""
    did: list[str] = []
    fails = [Killed()]

    def once(what: str) -> str:
        did.append(what)
        if what == "wait":
            raise ModelRetry("not yet")
        if what == "gone":
            raise ToolFailed("it is gone")
        if what == "end" and fails:
            raise fails.pop()
        return what

    agent = Agent(scripted([("once", {"what": "wait"})], [("once", {"what": "gone"})], [("once", {"what": "end"})]))
    agent.tool_plain(once)
    graph = agent_graph(agent, play.store, repeat=["once"])
    with pytest.raises(Killed):
        play.execute(graph, State(run_id=RUN))

    messages = plain(play.resume(graph)["messages"])

    assert did == ["wait", "gone", "end", "end"]
    outcomes = [
        part["outcome"] for message in messages for part in message["parts"] if part["part_kind"] == "tool-return"
    ]
    assert outcomes == ["retried", "failed", "success"]


class Seat(BaseModel):
    """What no State can hold: it is not registered."""

    number: int
    rows: set[int] = {1}


def test_a_result_that_a_state_cannot_hold_is_kept_as_the_model_reads_it(play: Scene) -> None:
    """Also inside of a ToolReturn."""

    def find() -> Seat:
        return Seat(number=1)

    def look() -> ToolReturn:
        return ToolReturn(Seat(number=1), content="seen")

    agent = Agent(scripted([("find", {}), ("look", {})]), tools=[find, look])

    final: Any = play.execute(agent_graph(agent, play.store))

    returns = [part for part in final["messages"][2].parts if part.part_kind == "tool-return"]
    assert [part.content for part in returns] == [{"number": 1, "rows": [1]}] * 2


def test_calls_that_wait_are_pauses_side_by_side(play: Scene) -> None:
    """Approvals and results from elsewhere are answered in any order; only True approves, and a text says why not."""
    did: list[str] = []

    def pay(ctx: RunContext[None], to: str) -> str:
        if not ctx.tool_call_approved:
            raise ApprovalRequired(metadata={"because": "it is money"})
        did.append(to)
        return f"paid {to}"

    def ask_ann(ctx: RunContext[None]) -> str:
        raise CallDeferred

    agent = Agent(scripted([("pay", {"to": "ann"}), ("pay", {"to": "bob"}), ("ask_ann", {})]), tools=[pay, ask_ann])
    graph = agent_graph(agent, play.store)

    state: Any = play.execute(graph, State(run_id=RUN))

    ann, bob, asked = sorted(state.pause.each, key=lambda pause: pause.response_param.replace("ask", "z"))
    assert ann.value == {"tool": "pay", "args": {"to": "ann"}, "because": "it is money"}
    assert (ann.reason, asked.reason) == tuple(
        f"the {what} is needed" for what in ("approval of a call of pay", "result of a call of ask_ann")
    )
    state = play.resume(graph, {bob.response_param: "too much"}, pause=bob)
    state = play.resume(graph, {asked.response_param: "fine"}, pause=asked)
    assert did == []
    state = play.resume(graph, {ann.response_param: True}, pause=ann)
    contents = [part.content for part in state["messages"][2].parts]
    assert (did, contents) == (["ann"], ["paid ann", "too much", "fine"])


def test_several_graphs_wait_for_approvals_side_by_side(play: Scene) -> None:
    """Agents in branches that are graphs: each has its effects and its pauses."""
    did: list[str] = []

    def branch(name: str) -> StateGraph:
        def act() -> None:
            did.append(name)

        agent = Agent(scripted([("act", {})]), name="actor")
        agent.tool_plain(requires_approval=True)(act)
        return agent_graph(agent, play.store)

    both = ParallelNode({name: branch(name).as_node(outputs={f"said_{name}": "said"}) for name in ("left", "right")})
    graph = make_graph({"both": both}, store=play.store, preserve=True)

    state: Any = play.execute(graph, State(run_id=RUN))

    assert {pause.part for pause in state.pause.each} == {"left", "right"}
    for pause in state.pause.each:
        state = play.resume(graph, {pause.response_param: True}, pause=pause.id)
    assert sorted(did) == ["left", "right"]
    assert state["said_left"] == state["said_right"] == "done"


def test_an_agent_that_a_tool_runs_goes_on_where_it_was(play: Scene) -> None:
    """Its effects are below the call of the tool, so calls at the same time do not mix."""
    did: list[str] = []
    dies = [Killed()]

    def note(what: str) -> str:
        did.append(what)
        return what

    def die() -> str:
        if dies:
            raise dies.pop()
        return "ok"

    outer = Agent(scripted([("research", {"about": "bees"}), ("research", {"about": "ants"})]), name="outer")

    @outer.tool
    async def research(ctx: RunContext[Any], about: str) -> str:
        model = scripted([("note", {"what": about})], [("die", {})])
        inner = Agent(model, name="inner", tools=[note, die])
        agent = durable(inner, ctx.deps, repeat=["die"])
        return f"{about}: {(await agent.run(about)).output}"

    async def ask(state: State, context: NodeContext) -> dict[str, Any]:
        result: Any = await durable(outer, context, repeat=["research"]).run("go", deps=context)
        return {"found": [part.content for part in result.all_messages()[2].parts]}

    graph = make_graph({"ask": ask}, store=play.store, preserve=True)
    with pytest.raises(Killed):
        play.execute(graph, State(run_id=RUN))

    state: Any = answered(play, graph, play.resume(graph), {"note": Repeat()})

    assert state["found"] == ["bees: done", "ants: done"]
    assert sorted(did) == ["ants", "bees"]


def test_tokens_are_spent_once_and_a_limit_loses_no_response(play: Scene) -> None:
    """A request that was kept spends nothing again; at the limit its response is kept."""
    desk = Desk()
    desk.agent = Agent(scripted([("book", {"seat": 1})], asked=desk.asked), tools=[desk.book])
    graph = agent_graph(desk.agent, play.store)
    with pytest.raises(LimitError):
        play.execute(graph, State(run_id=RUN), limits={"tokens": 1})

    final: Any = play.resume(graph, limits={"tokens": 10_000})

    usage = sum(m.usage.total_tokens for m in final["messages"] if isinstance(m, ModelResponse))
    assert final.spent == {"tokens": usage}
    assert len(desk.asked) == 2


def test_a_fallback_keeps_the_place_of_the_request(play: Scene) -> None:
    """A request that fails is not counted: what the second model answered is found again."""
    dies = [Killed()]

    def busy(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        raise ModelHTTPError(503, "busy")

    def die() -> str:
        if dies:
            raise dies.pop()
        return "ok"

    second: list[int] = []
    fallback = ModelFallback(scripted([("die", {})], asked=second))
    agent = Agent(FunctionModel(busy), capabilities=[fallback], tools=[die])
    graph = agent_graph(agent, play.store, repeat=["die"])
    with pytest.raises(Killed):
        play.execute(graph, State(run_id=RUN))

    assert play.resume(graph)["said"] == "done"
    assert second == [0, 1]


def test_text_is_emitted_as_it_arrives_and_again_by_a_later_attempt(play: Scene) -> None:
    """With `stream=True` the caller of the graph sees it; `run_stream` of the library works as well."""
    fails = [ValueError("no")]

    async def ask(state: State, context: NodeContext) -> dict[str, Any]:
        agent = Agent(scripted())
        first = await durable(agent, context, stream=True).run("go")
        async with durable(agent, context).run_stream("more") as second:
            texts = [text async for text in second.stream_text(delta=True)]
        if context.attempt == 1 and fails:
            raise fails.pop()
        return {"said": [first.output, "".join(texts)]}

    graph = make_graph({"ask": ask}, store=play.store, preserve=True)

    async def stream(call: Any) -> list[Any]:
        states = [state async for state in call]
        return [state.partial.chunks[-1] for state in states if state.partial] + [dict(states[-1])] if states else []

    with suppress(RuntimeError):
        asyncio.run(stream(graph.astream(State(run_id=RUN))))
    *chunks, final = asyncio.run(stream(graph.astream_resume(RUN)))

    assert chunks == ["done", "done"]
    assert final["said"] == ["done", "done"]


def test_toolsets_and_the_test_model_of_the_library(play: Scene) -> None:
    """Tools of toolsets are effects too, and the history has the keys."""
    seen: list[str] = []
    toolset = FunctionToolset[Any]()
    toolset.add_function(lambda: seen.append("x"), name="note")
    graph = agent_graph(Agent(TestModel(), toolsets=[toolset], name="tester"), play.store)

    play.execute(graph, State(run_id=RUN))

    effects = {key for row in play.store.history(RUN) for key in row.effects}
    assert {"tester/request 1", "tester/request 2"} < effects
    assert any(key.startswith("tester/1/note/") for key in effects)


def test_without_a_store_an_agent_just_runs_and_an_approval_says_what_is_missing() -> None:
    """Nothing is kept, so nothing can wait."""
    desk = Desk()

    async def ask(state: State, context: NodeContext) -> dict[str, Any]:
        return {"said": (await durable(desk.agent, context).run("go")).output}

    graph = make_graph({"ask": ask}, store=MemoryStore(), interval=0)
    with pytest.raises(ExecutionError, match="waits for an answer, but the run is not saved: give it a store"):
        asyncio.run(graph.aexecute(State(run_id=RUN)))
    assert sorted(desk.did) == DONE[:-1]


def test_a_node_is_tested_alone_with_a_context_of_no_run() -> None:
    """The agent then runs as it is."""
    result = durable(Agent(TestModel(custom_output_text="yes")), NodeContext("run", "graph", "node", 1)).run_sync("go")

    assert result.output == "yes"


@pytest.mark.parametrize(
    ("arguments", "options", "says"),
    [
        ((NodeContext("run", "graph", "node", 1), Agent(TestModel())), {}, "not NodeContext and Agent"),
        (("openai:gpt", NodeContext("run", "graph", "node", 1)), {}, "not str and NodeContext"),
        ((Agent(TestModel()), None), {}, "not Agent and NoneType"),
        (
            (Agent(TestModel()), NodeContext("run", "graph", "node", 1)),
            {"repeat": "pay"},
            r"repeat=\['pay'\], not a str",
        ),
    ],
)
def test_wrong_arguments_are_refused_at_once(arguments: Any, options: Any, says: str) -> None:
    """Before anything runs: `"pay" in "payments"` would repeat a call that no one named."""
    with pytest.raises(TypeError, match=says):
        durable(*arguments, **options)


@pytest.mark.parametrize("options", [{"repeat": ["bok"]}, {"confirm": {"bok": lambda call_id, args: None}}])
def test_a_name_of_no_tool_is_refused_before_a_request(play: Scene, options: dict[str, Any]) -> None:
    """The error lists the tools. A tool that is not for this step, or that another run of the node brings, is known."""
    desk = Desk()
    other = FunctionToolset[Any]()
    other.add_function(lambda: "x", name="later", prepare=lambda ctx, definition: None)
    desk.agent = Agent(desk.agent.model, tools=[desk.book], toolsets=[lambda ctx: other])
    with pytest.raises(ExecutionError, match=r"no tool is named 'bok'; .*'book'.*known: 'book', 'later'"):
        play.execute(agent_graph(desk.agent, play.store, **options))
    assert desk.asked == []

    options = {"repeat": ["later"], "confirm": {"book": lambda call_id, args: None}}
    play.store.delete(RUN)
    with suppress(ExecutionError):  # it knows no `cancel`
        play.execute(agent_graph(desk.agent, play.store, **options))
    assert desk.asked


def test_the_result_of_a_run_is_not_saved(play: Scene) -> None:
    """The error says what to save in place of it."""

    async def ask(state: State, context: NodeContext) -> dict[str, Any]:
        return {"result": await durable(Agent(TestModel()), context).run("go")}

    graph = make_graph({"ask": ask}, store=play.store, preserve=True)
    with pytest.raises(NotSerializableError, match=r"save result\.output and result\.all_messages\(\)"):
        play.execute(graph)


def test_every_message_of_a_run_comes_back(any_play: Scene) -> None:
    """From any store, as it was."""
    desk = Desk()
    graph = agent_graph(desk.agent, any_play.store)
    if not any_play.store.keeps_entries:
        pytest.skip("it keeps no entries")
    final: Any = answered(any_play, graph, any_play.execute(graph, State(run_id=RUN)), {"approval": ToolDenied("no")})

    assert reopened(any_play.store).load(RUN)["messages"] == final["messages"]
    assert plain(final["messages"])[-2]["parts"][0]["outcome"] == "denied"
