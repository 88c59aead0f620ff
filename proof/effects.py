"""Effects happen once each, wherever the run is killed.

A service in a process of its own pays refunds, and writes a log. It kills its client at some requests: before it pays,
or after it has paid and before it answers. The client is killed at random moments as well. A client that finds an
unknown outcome confirms it with the service, or its run pauses and the answer comes from the service.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
from collections import Counter
from contextlib import AbstractContextManager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs

from proof.children import Killer, forked, lines_of
from proof.report import Report
from proof.workload import open_store
from stategraph import (
    CheckpointConfig,
    GraphConfig,
    MapNode,
    NodeContext,
    ParallelNode,
    Repeat,
    RetryPolicy,
    State,
    StateGraph,
)
from stategraph.config import Durability, Retention
from stategraph.stores import CheckpointStore

KILLS = 10_000  # at full length
_RUN = "run"
_REFUNDS = 25  # of a run: see `_Nodes.whole`
_AT_REQUESTS = 0.15  # the share of requests at which the service kills its client


@attrs.frozen
class Case:
    """How the run is saved, and who knows the outcome of an effect."""

    durability: Durability
    interval: int
    retention: Retention
    confirms: bool


CASES = [
    Case("sync", 1, "latest", False),
    Case("sync", 1, "full", True),
    Case("sync", 3, "latest", False),
    Case("async", 1, "latest", False),
    Case("async", 1, "full", True),
    Case("exit", 1, "latest", False),
]

# --------------------------------------------------------------------------- the service


def serve(folder: Path, listener: socket.socket, seed: int) -> None:
    """Answer one request after the other, in the order in which they come, until the process is killed."""
    choice = random.Random(seed)  # noqa: S311 - no secret
    paid: dict[str, str] = {}
    log = os.open(folder / "service.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    while True:
        client, _ = listener.accept()
        with client, suppress(OSError):
            asked = client.recv(4096)
            if not asked:
                continue
            what, key, pid = json.loads(asked)
            when = choice.choice(["before", "after"]) if what == "pay" and choice.random() < _AT_REQUESTS else ""
            if when == "before":
                os.kill(pid, signal.SIGKILL)
                continue
            if what == "pay":
                paid[key] = f"receipt of {key}"
                os.write(log, f"{key}\n".encode())
            if when == "after":
                os.kill(pid, signal.SIGKILL)
                continue
            client.sendall(json.dumps(paid.get(key)).encode())


def _ask(folder: Path, what: str, key: str) -> Any:
    with socket.socket(socket.AF_UNIX) as service:
        service.connect(str(folder / "service"))
        service.sendall(json.dumps([what, key, os.getpid()]).encode())
        return json.loads(service.recv(4096))


# --------------------------------------------------------------------------- the run


class _Nodes:
    """The nodes of a process, which refund by effects. The service knows an effect by its place in the run."""

    def __init__(self, folder: Path, case: Case, store: CheckpointStore) -> None:
        self._folder, self._case, self._store = folder, case, store

    def _effect(self, context: NodeContext, key: str, *, is_async: bool = False) -> Any:
        name = f"{context.idempotency_key} {key}"

        def pay() -> Any:
            return _ask(self._folder, "pay", name)

        async def apay() -> Any:
            return await asyncio.to_thread(pay)

        confirm = (lambda key: _ask(self._folder, "look", name)) if self._case.confirms else None
        # A person who is asked sees where the effect is.
        (self._folder / f"name {key}").write_text(name)
        return context.effect(key, apay if is_async else pay, confirm=confirm)

    def one(self, given: Any, context: NodeContext) -> dict[str, Any]:
        """Refund once."""
        self._effect(context, _key_of(context, "one"))
        return {}

    def several(self, given: Any, context: NodeContext) -> dict[str, Any]:
        """Refund three times, in as many attempts."""
        for number in range(3):
            self._effect(context, _key_of(context, str(number)))
            if context.attempt == number + 1 < 3:
                raise OSError("no connection")
        return {}

    async def awaits(self, given: Any, context: NodeContext) -> dict[str, Any]:
        """Refund twice at the same time."""
        await asyncio.gather(*(self._effect(context, _key_of(context, name), is_async=True) for name in "xy"))
        return {}

    def graph(self, name: str, nodes: dict[str, Any]) -> StateGraph:
        """Return a graph of nodes in a row."""
        case = self._case
        checkpoint = CheckpointConfig(
            interval=case.interval, durability=case.durability, retention=case.retention, preserve=True
        )
        graph = StateGraph(GraphConfig(name, checkpoint=checkpoint), store=self._store)
        for node, work in nodes.items():
            retry = RetryPolicy(max_attempts=3, initial_delay=0) if work == self.several else None
            graph.add_node(node, work, retry=retry)
        for source, target in pairwise(nodes):
            graph.add_edge(source, target)
        graph.set_entry_point(next(iter(nodes)))
        graph.set_exit_point([*nodes][-1])
        return graph

    def whole(self) -> StateGraph:
        """Return the graph of the run: 1 + 3 + 2 + (1 + 3) + 4 + 4 * 2 + 2 + 1 refunds."""
        inner = self.graph("inner", {"first": self.one, "fails": self.several})
        item = self.graph("item", {"one": self.one, "two": self.one})
        return self.graph(
            "refunds",
            {
                "alone": self.one,
                "fails": self.several,
                "awaits": self.awaits,
                "nested": inner.as_node(outputs={}),
                "items": MapNode(self.one, "all", "done", 3),
                "graphs": MapNode(item.as_node(outputs={}), "all", "made", 3),
                "branches": ParallelNode({"left": self.one, "right": self.one}),
                "end": self.one,
            },
        )


def _key_of(context: NodeContext, key: str) -> str:
    """Return a key that names the effect alone in the run, so that a person who is asked can find it."""
    return f"{key}-{context.idempotency_key.replace('/', '.')}"


def live(folder: Path, case: Case) -> None:
    """Run or resume the run to its end, in a process that may be killed. A person looks in the service."""
    with open_store(folder) as store:
        graph = _Nodes(folder, case, store).whole()
        state = graph.run(State({"all": [{"n": 1}, {"n": 2}, {"n": 3}, {"n": 4}]}, run_id=_RUN))
        asked = os.open(folder / "asked.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        while state.pause is not None:
            pause = state.pause
            key = str(pause.value)
            os.write(asked, f"{key}\n".encode())
            happened = _ask(folder, "look", (folder / f"name {key}").read_text())
            answer = Repeat() if happened is None else happened
            state = graph.resume(_RUN, {str(pause.response_param): answer}, pause=pause)


# --------------------------------------------------------------------------- killing it


class _Killer(Killer):
    """Kills runs of one case, and compares the log of the service with what each run should have done."""

    def around(self, folder: Path) -> AbstractContextManager[object]:
        return _service(folder, self.random)

    def life(self, folder: Path) -> bool:
        """Run a process for some refunds; return whether the run has ended."""
        log, moment = folder / "service.log", self.random.expovariate(50)
        enough = len(lines_of(log)) + self.random.randint(0, 3)
        return self.lives(lambda: live(folder, self.case), lambda: len(lines_of(log)) >= enough, moment=moment)

    def compare(self, folder: Path) -> None:
        """Check that each refund was paid once."""
        paid = Counter(lines_of(folder / "service.log"))
        with open_store(folder) as store:
            state, left = store.load(_RUN), store.entries(_RUN)
        twice = [name for name, number in paid.items() if number > 1]
        if state.status != "completed" or left:
            self.fail(f"the run is {state.status}, and {len(left)} entries are left")
        if twice or len(paid) != _REFUNDS:
            self.fail(f"doubled: {twice[:5]}; {len(paid)} of {_REFUNDS} were paid")
        self.report.tried["runs"] += 1
        self.report.found["effects, each done once"] += len(paid)
        self.report.found["unknown outcomes that were asked for"] += len(lines_of(folder / "asked.log"))


class _service:  # noqa: N801 - a context manager
    def __init__(self, folder: Path, choice: random.Random) -> None:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(folder / "service"))
        listener.listen(100)
        seed = choice.randrange(2**32)
        self._pid = forked(lambda: serve(folder, listener, seed))
        listener.close()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)


def prove(share: float, seed: int) -> list[Report]:
    """Kill runs of every case."""
    title = "effects happen once each, wherever the run is killed, and unknown outcomes are asked for"
    return _Killer.prove(title, max(1, round(KILLS * share)), CASES, seed)
