"""Readers of a stream get each chunk of the final attempt once and in order, whatever is cut off, reloaded or killed.

Real HTTP clients read server-sent events of a real server. Each now and then drops its connection and goes on from its
last event, or forgets everything and begins again. Workers, and the server, are killed with SIGKILL.
``python -m proof.chunks serve FOLDER PORT`` and ``python -m proof.chunks work FOLDER RUN`` are the processes.
"""

from __future__ import annotations

import json
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException, HTTPResponse
from pathlib import Path
from typing import Any

import attrs

from proof import TOP
from proof.report import Report
from stategraph import NodeContext, State, StateGraph
from stategraph.stores import SqliteStore

STRIKES = 1_000  # disconnects, reloads and kills, at full length
READERS = 4
WRITTEN, TOLD = 300, 100  # chunks of the two nodes of a run
MOST_KILLS = 3  # of the worker of a run, so that it ends
LONGEST = 120.0  # seconds after which a reader that has not ended has failed
_RESTART = 0.05  # seconds before a reader connects again


def _graph(store: SqliteStore) -> StateGraph:
    def write(state: State) -> Any:
        for number in range(1, WRITTEN + 1):
            time.sleep(0.002)
            yield f"write {number}"
        return {}

    def tell(state: State, context: NodeContext) -> dict[str, Any]:
        for number in range(1, TOLD + 1):
            time.sleep(0.001)
            context.emit(f"tell {number}")
        return {}

    graph = StateGraph("chunks", store=store, preserve=True)
    graph.add_node("write", write, persist_chunks=True)
    graph.add_node("tell", tell, persist_chunks=True)
    graph.add_edge("write", "tell")
    graph.set_entry_point("write")
    graph.set_exit_point("tell")
    return graph


# --------------------------------------------------------------------------- a reader


@attrs.define
class _Reader:
    """A browser, as far as it matters: it keeps what it got and the id of its last event."""

    port: int
    run_id: str
    random: random.Random
    strikes: Counter[str] = attrs.field(factory=Counter)
    got: list[dict[str, Any]] = attrs.field(factory=list)
    last_id: str = ""
    has_ended: bool = False

    def read(self) -> None:
        """Read to the end of the run."""
        until = time.monotonic() + LONGEST
        while not self.has_ended and time.monotonic() < until:
            connection = HTTPConnection("127.0.0.1", self.port, timeout=30)
            try:
                connection.request("GET", f"/{self.run_id}", headers={"Last-Event-ID": self.last_id})
                self._take(connection.getresponse())
            except (OSError, HTTPException):  # the server is killed
                time.sleep(_RESTART)
            finally:
                connection.close()

    def _take(self, response: HTTPResponse) -> None:
        if response.status == 204:
            self.has_ended = True
        if response.status != 200:
            time.sleep(_RESTART)
            return
        left = self.random.randint(1, 80)
        while left and not self.has_ended:
            left -= self._event(response)
        if self.has_ended:
            return
        strike = "reloads" if self.random.random() < 0.2 else "disconnects"
        self.strikes[strike] += 1
        if strike == "reloads":
            self.got, self.last_id = [], ""

    def _event(self, response: HTTPResponse) -> int:
        """Read an event; return 1, or 0 for a comment."""
        fields: dict[str, str] = {}
        while line := response.readline():
            if line == b"\n":
                break
            name, _, value = line.decode().rstrip("\n").partition(": ")
            fields[name] = value
        if not line:
            raise HTTPException("the server is gone")
        self.last_id = fields.get("id", self.last_id)
        if fields.get("event") == "chunk":
            self.got.append(json.loads(fields["data"]))
        self.has_ended = fields.get("event") == "end"
        return int("event" in fields)

    def wrong(self) -> str:
        """Return what is wrong with what it got; empty if nothing is."""
        if not self.has_ended:
            return "it has not come to an end"
        for node, most in (("write", WRITTEN), ("tell", TOLD)):
            chunks = [each for each in self.got if each["path"] == [node]]
            attempts = [each["attempt"] for each in chunks]
            if attempts != sorted(attempts):
                return f"attempts of {node} are mixed"
            final = [each["chunk"] for each in chunks if each["attempt"] == attempts[-1]]
            if final != [f"{node} {number}" for number in range(1, most + 1)]:
                return f"of the final attempt of {node} it got {final[:3]}...{final[-3:]}, {len(final)} chunks"
        nodes = [each["node"] for each in self.got]
        return (
            "" if nodes == sorted(nodes, reverse=True) else "chunks of the second node came before those of the first"
        )


# --------------------------------------------------------------------------- the proof


def prove(share: float, seed: int) -> list[Report]:
    """Strike readers, workers and the server of runs until there were enough strikes."""
    with tempfile.TemporaryDirectory() as folder:
        stage = _Stage(Path(folder), random.Random(seed))  # noqa: S311 - no secret
        try:
            while stage.strikes.total() < max(20, STRIKES * share) and not stage.report.failures:
                stage.do_run()
        finally:
            stage.server.kill()
            stage.server.wait()
    stage.report.tried.update({"runs": stage.runs, "readers": stage.runs * READERS, **stage.strikes})
    return [stage.report]


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


@attrs.define
class _Stage:
    """A server, and runs with a worker and several readers each."""

    folder: Path
    chosen: random.Random
    port: int = attrs.field(factory=_free_port)
    strikes: Counter[str] = attrs.field(factory=Counter)
    runs: int = 0
    report: Report = attrs.field(init=False)
    server: subprocess.Popen[bytes] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.report = Report("readers get each chunk of the final attempt once and in order")
        self.server = self._begin("serve", str(self.port))

    def _begin(self, role: str, about: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "proof.chunks", role, str(self.folder), about]
        return subprocess.Popen(command, cwd=TOP)  # noqa: S603 - itself

    def do_run(self) -> None:
        """Let readers read a run whose worker, or whose server, is killed now and then."""
        self.runs += 1
        run_id = f"run-{self.runs}"
        readers = [
            _Reader(self.port, run_id, random.Random(self.chosen.random()))  # noqa: S311 - no secret
            for _ in range(READERS)
        ]
        with ThreadPoolExecutor(READERS) as threads:
            reading = [threads.submit(reader.read) for reader in readers]
            self._work(run_id)
            for each in reading:
                each.result()
        for reader in readers:
            self.strikes.update(reader.strikes)
            self.report.found["chunks that readers have in the end"] += len(reader.got)
            self.report.found["of these of earlier attempts"] += len(reader.got) - WRITTEN - TOLD
            if reader.wrong():
                self.report.failures.append(f"a reader of {run_id}: {reader.wrong()}")

    def _work(self, run_id: str) -> None:
        worker = self._begin("work", run_id)
        for _ in range(MOST_KILLS):
            time.sleep(self.chosen.uniform(0.7, 2.0))
            if self.chosen.random() < 0.2:
                self.strikes["kills of the server"] += 1
                self.server.send_signal(signal.SIGKILL)
                self.server.wait()
                self.server = self._begin("serve", str(self.port))
            elif worker.poll() is None:
                self.strikes["kills of a worker"] += 1
                worker.send_signal(signal.SIGKILL)
                worker.wait()
                worker = self._begin("work", run_id)
        worker.wait()


def _main(role: str, folder: str, about: str) -> None:
    with SqliteStore(Path(folder) / "runs.db") as store:
        graph = _graph(store)
        if role == "work":
            graph.run(State(run_id=about), wait=30)
            return
        import uvicorn

        from stategraph.web import events

        uvicorn.run(events(graph, wait=5), port=int(about), log_level="error", lifespan="off")


if __name__ == "__main__":
    _main(*sys.argv[1:])
