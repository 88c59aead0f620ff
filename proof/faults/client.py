"""Servers under the shim, two at a time, so that both cores are busy."""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

from proof import TOP
from proof.faults import shim
from proof.faults.shim import Change
from proof.report import Report

SERVERS = 2
TIMEOUT = 20.0
"""Seconds after which a process hangs."""


class Server:
    """A process that runs workloads. Its folder is `folder`."""

    def __init__(self, library: Path, folder: Path) -> None:
        self.folder = folder
        search = os.pathsep.join([str(TOP), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "LD_PRELOAD": str(library), "PYTHONPATH": search, "PROOF_FOLDER": str(folder)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "proof.faults.server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            cwd=TOP,
            text=True,
        )

    def ask(self, work: str, root: Path, **request: Any) -> dict[str, Any]:
        """Send a request; return the answer."""
        assert self._process.stdin is not None and self._process.stdout is not None  # noqa: S101, PT018
        message = {"work": work, "root": str(root), "timeout": TIMEOUT, **request}
        print(json.dumps(message), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the process under the shim has ended; what it says about that is on standard error")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def under_shim(title: str, prove: Callable[[Servers], Report]) -> list[Report]:
    """Run a proof with servers; skip it where there is no shim."""
    try:
        with Servers() as servers:
            return [prove(servers)]
    except shim.UnavailableError as error:
        return [Report(title, skipped=str(error))]


class Servers:
    """Some servers, and a folder for what they do that is removed in the end.

    Raises:
        UnavailableError: there can be none on this machine.
    """

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
        sent: deque[tuple[dict[str, Any], Future[dict[str, Any]]]] = deque()
        with ThreadPoolExecutor(SERVERS) as threads:
            for request in requests:
                sent.append((request, threads.submit(self.ask, **request)))
                if len(sent) > 2 * SERVERS:  # a request may have a folder of megabytes
                    yield _answered(*sent.popleft())
            while sent:
                yield _answered(*sent.popleft())

    def record(self, script: str, with_data: bool = False) -> tuple[Path, list[Change]]:
        """Run a script without faults -> the folder where it ran, which is gone, and the changes that it made there.

        Raises:
            UnavailableError: the shim does not see what this Python does to files.
        """
        root = self.folder / "record"
        request = {"script": script, "fault": int(shim.Fault.NOTHING), "at": 0}
        answer = self.ask("run", root, **request, record="data" if with_data else "kinds")
        if answer["ended"] != "ended":
            raise RuntimeError(f"the workload does not even work without faults: {answer}")
        made = shim.changes(root / "record")
        shutil.rmtree(root)
        if not {"W", "S"} <= {change.kind for change in made if change.path.startswith(f"{root}/store/")}:
            raise shim.UnavailableError("the shim does not see how this Python writes to databases")
        return root, made

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for server in self._all:
            server.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def _answered(request: dict[str, Any], answer: Future[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    return request, answer.result()
