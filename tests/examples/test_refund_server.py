"""Two servers over one store, with real requests and repeated clicks."""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

SERVER = Path(__file__).parents[2] / "examples" / "refund_server.py"
CLICKS = 12


class Server:
    """A process that serves refunds."""

    def __init__(self, path: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        command = [sys.executable, str(SERVER), str(self.port), str(path)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        while self.process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                time.sleep(0.02)
            else:
                return
        raise AssertionError("the server has ended")

    def ask(self, path: str, body: Any = None) -> tuple[int, Any]:
        """Return the status and the body of a response."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data)
        try:
            with urllib.request.urlopen(request, timeout=300) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:  # Python 3.14 warns of one that is left open
                return error.code, json.load(error)

    def printed(self) -> str:
        """End the server; return its output."""
        self.process.terminate()
        return self.process.communicate()[0]


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[Server]]:
    """Two servers over one store."""
    started = [Server(tmp_path / "refunds.db") for _ in range(2)]
    yield started
    for one in started:
        one.process.kill()
        one.process.wait()
        if one.process.stdout is not None:
            one.process.stdout.close()


def at_once(servers: list[Server], path: str, body: Any) -> list[tuple[int, Any]]:
    """Send the same request many times at the same moment, to both servers."""
    barrier = threading.Barrier(CLICKS)

    def click(number: int) -> tuple[int, Any]:
        barrier.wait()
        return servers[number % len(servers)].ask(path, body)

    with ThreadPoolExecutor(CLICKS) as pool:
        return list(pool.map(click, range(CLICKS)))


@pytest.mark.timeout(600)
def test_repeated_requests_count_once(servers: list[Server]) -> None:
    """A refund that is begun by many requests is one; of many clicks on "yes", one pays."""
    begun = at_once(servers, "/refunds/r-7", {"amount": 950})
    assert [status for status, _ in begun] == [200] * CLICKS
    pauses = {reply["asks"]["pause"] for _, reply in begun}
    assert len(pauses) == 1

    yes = {"pause": pauses.pop(), "decision": "yes"}
    answered = at_once(servers, "/refunds/r-7/answer", yes)

    assert sorted(status for status, _ in answered) == [200] + [409] * (CLICKS - 1)
    assert servers[0].ask("/refunds/r-7")[1]["paid"] == 950
    assert servers[1].ask("/refunds/r-7", {"amount": 950})[1]["status"] == "completed"
    assert "".join(one.printed() for one in servers) == "paid 950 EUR\n"


@pytest.mark.timeout(600)
def test_a_server_is_killed_while_clicks_come_in(servers: list[Server], tmp_path: Path) -> None:
    """Another server takes over: each request and each approval survives, and no click is lost for good."""
    names = [f"/refunds/r-{number}" for number in range(8)]
    victim = threading.Timer(random.uniform(0.0, 0.2), servers[0].process.kill)
    victim.start()
    for number, name in enumerate(names):
        _until_answered(servers, number, name, {"amount": 5})
    victim.join()
    for number, name in enumerate(names):
        pause = servers[1].ask(name)[1]["asks"]["pause"]
        _until_answered(servers, number, f"{name}/answer", {"pause": pause, "decision": "yes"})

    again = [servers[1].ask(name, {"amount": 5}) for name in names]  # a repeated request continues the run
    assert {reply["status"] for _, reply in again} == {"completed"}


def _until_answered(servers: list[Server], number: int, path: str, body: Any) -> None:
    """Send a request to one server and, if that is gone, to the other, as a load balancer does."""
    for attempt in range(2):
        try:
            status, reply = servers[(number + attempt) % 2].ask(path, body)
            assert status == 200 or "answer" in path, reply  # answered, and killed before it could say so
        except OSError:
            continue
        return
    raise AssertionError("no server has answered")
