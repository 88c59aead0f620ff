"""The example `chat_service`, as a process that is killed while people chat."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pydantic_ai")
pytest.importorskip("fastapi")

EXAMPLES = Path(__file__).parents[2] / "examples"


class Service:
    """The service, in a process of its own. A request waits until it is there."""

    def __init__(self, folder: Path, patience: float = 600) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._folder, self._patience = folder, patience
        self.start()

    def start(self) -> None:
        """Start it."""
        command = [
            sys.executable,
            "-m",
            "uvicorn",
            "--app-dir",
            str(EXAMPLES),
            "--port",
            str(self.port),
            "chat_service:app",
        ]
        more = {"CHATS": str(self._folder / "chats.db"), "PATIENCE": str(self._patience)}
        self._process = subprocess.Popen(command, env=os.environ | more, stderr=subprocess.DEVNULL)

    def kill(self) -> None:
        """Kill it."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def ask(self, path: str, data: Any = None) -> Any:
        """Send a request, again and again while no one listens."""
        body = None if data is None else json.dumps(data).encode()
        until = time.monotonic() + 120
        while True:
            request = urllib.request.Request(
                f"http://127.0.0.1:{self.port}{path}", body, {"Content-Type": "application/json"}
            )
            try:
                with urllib.request.urlopen(request, timeout=120) as answer:
                    return json.loads(answer.read())
            except (urllib.error.URLError, ConnectionError) as error:
                if isinstance(error, urllib.error.HTTPError) or time.monotonic() > until:
                    raise
                time.sleep(0.05)

    def say(self, text: str, key: str) -> None:
        """Say something, as a client does that got no answer: it says it again."""
        self.ask("/chats/a", {"text": text, "key": key})

    def until(self, holds: Callable[[Any], bool]) -> Any:
        """Return what a page shows once something holds."""
        until = time.monotonic() + 120
        while not holds(chat := self.ask("/chats/a")):
            assert time.monotonic() < until, chat
            time.sleep(0.05)
        return chat

    def chunks(self, after: str = "", most: int = 10_000) -> Iterator[tuple[str, Any]]:
        """Yield tokens with their ids until the connection ends, as EventSource does."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/events/a?after={after}", timeout=120) as stream:
            kind = cursor = ""
            for line in stream:
                name, _, value = line.decode().strip().partition(": ")
                kind, cursor = (value, cursor) if name == "event" else (kind, value if name == "id" else cursor)
                if name == "data" and kind == "chunk":
                    yield cursor, json.loads(value)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    tmp_path.chmod(0o700)
    service = Service(tmp_path)
    yield service
    service.kill()


def done(chat: Any) -> bool:
    return bool(chat["status"] == "completed")


def test_nothing_that_was_said_is_lost_and_each_is_answered_once(service: Service) -> None:
    """Whatever is killed: turns, messages while the agent is at work, an approval; a refund is made once."""
    words = "one two three four five six seven eight nine ten"
    service.say(words, "1")
    service.kill()
    service.start()
    service.say("and more", "2")
    service.say("and more", "2")
    chat = service.until(done)
    assert chat["said"] == [words, "and more"]
    assert "; ".join(reply.removeprefix("You said: ").strip() for reply in chat["replies"]) == f"{words}; and more"

    service.say("a refund, please", "3")
    asks = service.until(lambda chat: chat["asks"])["asks"]
    assert asks["euros"] == 30
    service.kill()
    service.start()
    service.ask("/chats/a/approval", {"pause": asks["pause"], "approved": True})
    service.kill()
    service.start()
    assert service.until(done)["refunded"] == 30


def test_tokens_survive_a_reload_and_a_stop_stops(service: Service) -> None:
    """A page that was reloaded reads on where it was; after a stop, what is said next is the next turn."""
    service.say("hello", "1")
    service.until(done)
    service.say("a b c d e f g h i j", "2")
    first = []
    for cursor, chunk in service.chunks():
        first.append((cursor, chunk["chunk"]))
        if len(first) == 6:
            break
    rest = [chunk["chunk"] for _, chunk in service.chunks(first[-1][0])]
    read = "".join([chunk for _, chunk in first] + rest)
    assert read == "You said: hello You said: a b c d e f g h i j "

    service.say(" ".join(["long"] * 2_000), "3")
    service.until(lambda chat: chat["status"] == "active")
    assert service.ask("/chats/a/stop", {}) == "cancelled"
    service.say("short", "4")
    assert service.until(done)["replies"][-1] == "You said: short "


def test_an_approval_has_a_deadline(tmp_path: Path) -> None:
    """No one answers in time: the answer is no, and the worker goes on by itself."""
    tmp_path.chmod(0o700)
    service = Service(tmp_path, patience=1)
    try:
        service.say("a refund, please", "1")
        assert service.until(done)["refunded"] == 0
    finally:
        with suppress(ProcessLookupError):
            service.kill()
