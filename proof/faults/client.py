"""Asks servers under the shim, two at a time, so that both cores are at work."""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import proof
from proof.faults import shim

SERVERS = 2
TIMEOUT = 20.0
"""Seconds after which a process hangs."""


class Server:
    """A process that runs workloads. Its folder is `folder`."""

    def __init__(self, library: Path, folder: Path) -> None:
        self.folder = folder
        here = str(Path(proof.__path__[0]).parent)
        search = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "LD_PRELOAD": str(library), "PYTHONPATH": search, "PROOF_FOLDER": str(folder)}
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", "proof.faults.server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            cwd=here,
            text=True,
        )

    def ask(self, work: str, root: Path, **request: Any) -> dict[str, Any]:
        """Send a request -> the answer."""
        assert self._process.stdin is not None and self._process.stdout is not None  # noqa: S101, PT018
        asked = {"work": work, "root": str(root), "timeout": TIMEOUT, **request}
        print(json.dumps(asked), file=self._process.stdin, flush=True)
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


class Servers:
    """Some servers, and a folder for what they do that is removed in the end. Raises Unavailable where there can be none."""

    def __init__(self) -> None:
        library = shim.build()
        self.folder = Path(tempfile.mkdtemp(prefix="stategraph-proof-"))
        self._idle: queue.SimpleQueue[Server] = queue.SimpleQueue()
        self._all = []
        for number in range(SERVERS):
            folder = self.folder / str(number)
            folder.mkdir()
            self._all.append(Server(library, folder))
            self._idle.put(self._all[-1])

    def ask(self, work: str, root: Path | None = None, **request: Any) -> dict[str, Any]:
        """Send a request to one that is idle -> the answer."""
        server = self._idle.get()
        try:
            return server.ask(work, root or server.folder / "case", **request)
        finally:
            self._idle.put(server)

    def ask_all(self, requests: Iterable[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """Send requests to all servers -> each with its answer."""
        with ThreadPoolExecutor(SERVERS) as threads:
            yield from threads.map(lambda request: (request, self.ask(**request)), requests)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for server in self._all:
            server.close()
        shutil.rmtree(self.folder, ignore_errors=True)
