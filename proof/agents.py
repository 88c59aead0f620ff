"""Agents whose process is killed, at random and around each of their calls, do each call once and end the same.

The tools write a log. A process that finds a call whose outcome is unknown pauses, and the answer comes from the log.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import attrs

from proof.children import Killer, forked, lines_of
from proof.report import Report
from proof.workload import open_store
from stategraph import NodeContext, Repeat, State, StateGraph
from stategraph.stores import CheckpointStore
from stategraph.stores.memory import MemoryStore

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))  # where the agent of LangChain is

CALLS = 100  # of a run
KILLS = 2_000  # at full length
_RUN = "run"


@attrs.frozen
class Case:
    """Whose agent it is, where its process is killed, and how many calls it makes."""

    library: str
    at: str
    calls: int


# --------------------------------------------------------------------------- the agents


class Work:
    """The tool of an agent: it writes a log. It may kill its process before or after that, once for each call."""

    def __init__(self, folder: Path, case: Case) -> None:
        self._folder, self._dies = folder, case.at == "each call"

    def do(self, number: int) -> str:
        """Do one piece of work."""
        self._die(f"before {number}")
        _log(self._folder / "done.log", number)
        self._die(f"after {number}")
        return f"did {number}"

    def _die(self, when: str) -> None:
        marker = self._folder / when
        if self._dies and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def _pydantic_ai(
    work: Work, calls: int, asked: Callable[[int], None]
) -> Callable[[State, NodeContext], dict[str, Any]]:
    from pydantic_ai import Agent, ModelMessagesTypeAdapter, ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import FunctionModel
    from pydantic_ai.usage import UsageLimits

    from stategraph.agents.pydantic_ai import durable

    def respond(messages: Any, info: Any) -> ModelResponse:
        number = sum(isinstance(message, ModelResponse) for message in messages)
        asked(number)
        parts: list[Any] = [TextPart("done")]
        if number < calls:
            parts = [ToolCallPart("do", {"number": number}, tool_call_id=f"call-{number}")]
        return ModelResponse(parts)

    def node(state: State, context: NodeContext) -> dict[str, Any]:
        agent = Agent(FunctionModel(respond), name="agent", tools=[work.do])
        result = durable(agent, context).run_sync("go", usage_limits=UsageLimits(request_limit=None))
        return {"messages": _without_times(ModelMessagesTypeAdapter.dump_python(result.all_messages(), mode="json"))}

    return node


def _langchain(work: Work, calls: int, asked: Callable[[int], None]) -> Callable[[State, NodeContext], dict[str, Any]]:
    from langchain_core.messages import AIMessage, HumanMessage
    from langchain_core.tools import tool

    from agent_langchain import ScriptedModel, calls_of, loop

    class Asked(ScriptedModel):
        def _generate(self, messages: list[Any], *args: Any, **options: Any) -> Any:
            asked(sum(isinstance(message, AIMessage) for message in messages))
            return super()._generate(messages, *args, **options)

    def node(state: State, context: NodeContext) -> dict[str, Any]:
        model = Asked(responses=[*(calls_of("do", {"number": n}) for n in range(calls)), AIMessage("done")])
        messages: list[Any] = [HumanMessage("go")]
        loop(model, {"do": tool(description="Do it.")(work.do)}, messages, context)
        return {"messages": [[message.type, message.content] for message in messages]}

    return node


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_times(each) for key, each in value.items() if key != "timestamp"}
    return [_without_times(each) for each in value] if isinstance(value, list) else value


# --------------------------------------------------------------------------- the run


def _graph(folder: Path, case: Case, store: CheckpointStore) -> StateGraph:
    made = {"pydantic_ai": _pydantic_ai, "langchain": _langchain}[case.library]
    graph = StateGraph("agent", store=store, preserve=True)
    graph.add_node("agent", made(Work(folder, case), case.calls, partial(_log, folder / "asked.log")))
    graph.set_entry_point("agent")
    graph.set_exit_point("agent")
    return graph


def live(folder: Path, case: Case) -> None:
    """Run or resume the run to its end. A person looks into the log."""
    with open_store(folder) as store:
        graph = _graph(folder, case, store)
        state = graph.run(State(run_id=_RUN))
        while state.pause is not None:
            pause = state.pause
            number = str(pause.response_param).rpartition("-")[2]
            happened = number in lines_of(folder / "done.log")
            _log(folder / "unknown.log", number)
            answer: Any = f"did {number}" if happened else Repeat()
            if happened and case.library == "langchain":
                from langchain_core.messages import ToolMessage

                answer = ToolMessage(answer, name="do", tool_call_id=f"call-{number}")
            state = graph.resume(_RUN, {str(pause.response_param): answer}, pause=pause)
        (folder / "messages.json").write_text(json.dumps(_plain(state["messages"])))


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value))


def live_undisturbed(folder: Path, case: Case) -> None:
    """Run the run in memory, where no one kills it."""
    state = _graph(folder, attrs.evolve(case, at="nowhere"), MemoryStore()).run(State(run_id=_RUN))
    (folder / "messages.json").write_text(json.dumps(_plain(state["messages"])))


def _log(path: Path, line: object) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(file, f"{line}\n".encode())
    os.close(file)


# --------------------------------------------------------------------------- killing it


class _Killer(Killer):
    """Kills runs of one case, and compares what each has done."""

    def life(self, folder: Path) -> bool:
        """Run a process; return whether the run has ended. It kills itself, or is killed some calls later."""
        log, moment = folder / "done.log", self.random.expovariate(8)
        # Each life repeats what the library itself does for all calls before: counted in seconds, few would get far.
        enough = len(lines_of(log)) + (self.random.randint(0, 10) if self.case.at == "random" else sys.maxsize)
        return self.lives(lambda: live(folder, self.case), lambda: len(lines_of(log)) >= enough, moment=moment)

    def compare(self, folder: Path) -> None:
        """Check that each call was done once, that few requests were sent again, and that the messages are the same."""
        done, asked = Counter(lines_of(folder / "done.log")), Counter(lines_of(folder / "asked.log"))
        if done != Counter(map(str, range(self.case.calls))):
            self.fail(f"the calls were done {done.most_common(3)}, {len(done)} of {self.case.calls}")
        again = sum(asked.values()) - len(asked)
        if len(asked) != self.case.calls + 1 or again > self.report.tried["kills"]:
            self.fail(f"{again} of {len(asked)} requests were sent again")
        rest = folder / "undisturbed"
        rest.mkdir()
        os.waitpid(forked(lambda: live_undisturbed(rest, self.case)), 0)
        if (folder / "messages.json").read_text() != (rest / "messages.json").read_text():
            self.fail("the messages are others than those of a run that no one killed")
        self.report.tried["runs"] += 1
        self.report.found["calls, each done once"] += len(done)
        self.report.found["requests that were sent again"] += again
        self.report.found["unknown outcomes that were asked for"] += len(lines_of(folder / "unknown.log"))


def prove(share: float, seed: int) -> list[Report]:
    """Kill runs of every case."""
    for name in ("stategraph.agents.pydantic_ai", "pydantic_ai.models.function", "agent_langchain"):
        importlib.import_module(name)  # once, not in each process: this takes seconds
    calls, reports = max(5, min(CALLS, round(CALLS * share * 4))), list[Report]()
    for library in ("pydantic_ai", "langchain"):
        _import_the_rest(Case(library, "nowhere", 1))
        title = f"agents of {library} go on at the call under way, ask if its outcome is unknown, and end the same"
        cases = [Case(library, at, calls) for at in ("each call", "random")]
        reports += _Killer.prove(title, max(2, round(KILLS * share / 2)), cases, seed)
    return reports


def _import_the_rest(case: Case) -> None:
    """Run a run in this process. The thread has an event loop of its own, which no process inherits."""
    with tempfile.TemporaryDirectory() as folder:
        first = Thread(target=live, args=(Path(folder), case))
        first.start()
        first.join()
