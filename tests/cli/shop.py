"""A shop whose orders the command looks at: a graph that asks a person, and ways to call the command."""

import atexit
import contextlib
import fcntl
import functools
import io
import json
import os
import pty
import select
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import stategraph
from stategraph.cli import main

REPOSITORY = Path(stategraph.__file__).parents[1]

APP = """
import attrs
from stategraph import (
    CheckpointConfig, GraphConfig, InterruptNode, MapNode, State, StateGraph, register_type
)

@register_type(name="shop.Order")
@attrs.frozen
class Order:
    id: int
    note: str

def make(kind="sqlite", path="runs.db"):
    where = {"dsn" if kind == "postgres" else "path": path}
    checkpoint = CheckpointConfig(store=kind, retention="full", preserve=True, options=where)
    graph = StateGraph(GraphConfig("orders", observer="noop", checkpoint=checkpoint))
    graph.add_node("price", lambda state: {"order": Order(7, "two chairs"), "total": 42, "log": ["priced"]})
    graph.add_node("approve", InterruptNode("order", response_param="approved", reason="more than 40"))
    def ship(state):
        if state["approved"] == "burn":
            raise ValueError("the van\\x1b[31m burns")
        return {"shipped": state["approved"], "log": [*state["log"], "shipped"]}
    graph.add_node("ship", ship)
    graph.add_edge("price", "approve")
    graph.add_edge("approve", "ship")
    graph.set_entry_point("price")
    graph.set_exit_point("ship")
    return graph

graph = make()
number = 5

def letters():
    checkpoint = CheckpointConfig(store="sqlite", retention="full", preserve=True, options={"path": "letters.db"})
    graph = StateGraph(GraphConfig("letters", observer="noop", checkpoint=checkpoint))
    def write(state):
        if state.get("bad"):
            raise ValueError("no ink")
        import time
        time.sleep(state.get("seconds", 0.01))
        return {"written": True}
    graph.add_node("write", write)
    graph.add_node("send", lambda state: {"sent": True})
    graph.add_edge("write", "send")
    graph.set_entry_point("write")
    graph.set_exit_point("send")
    return graph

def many():
    checkpoint = CheckpointConfig(store="sqlite", retention="full", preserve=True, options={"path": "runs.db"})
    all_orders = StateGraph(GraphConfig("all-orders", observer="noop", checkpoint=checkpoint))
    all_orders.add_node("each", MapNode(make().as_node(outputs=["shipped"]), over="orders", into="shipped"))
    all_orders.set_entry_point("each")
    all_orders.set_exit_point("each")
    return all_orders

def broken():
    raise RuntimeError("no graph today")
"""

TOML = """
name = "orders"
[checkpoint]
store = "sqlite"
[checkpoint.options]
path = "runs.db"
"""


class Result(NamedTuple):
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str


def call(*arguments: str) -> Result:
    """Call the command in this process, as with pipes."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(arguments)
        except SystemExit as end:
            code: Any = end.code
    return Result(int(code or 0), out.getvalue(), err.getvalue())


def commands() -> list[str]:
    """Return the names of all commands, in the order in which the help lists them."""
    listed = call("--help").out.partition("Commands:\n")[2].partition("\n\n")[0]
    return [line.split()[0] for line in listed.splitlines()]


def environment(**changes: str) -> dict[str, str]:
    """Return an environment in which stategraph and the modules of the working directory can be imported."""
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
    return {**kept, "PYTHONPATH": str(REPOSITORY), "TERM": "xterm-256color", **changes}


def command(*arguments: str) -> list[str]:
    """Return what starts the command as a process."""
    return [sys.executable, "-m", "stategraph.cli", *arguments]


_FORKS = """
import gc, importlib, json, os, pkgutil, sys
import stategraph.cli, stategraph.graph
for package in ("cli", "_drivers", "_engine", "_graph", "nodes"):
    for module in pkgutil.walk_packages([f"{stategraph.__path__[0]}/{package}"], f"stategraph.{package}."):
        importlib.import_module(module.name)
gc.freeze()
for line in sys.stdin:
    request = json.loads(line)
    child = os.fork()
    if child == 0:
        for number, name in enumerate(request["files"]):
            os.dup2(os.open(name, (os.O_WRONLY | os.O_CREAT) if number else os.O_RDONLY, 0o600), number)
        sys.stdin, sys.stdout, sys.stderr = open(0, closefd=False), open(1, "w"), open(2, "w")
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["environment"])
        stategraph.cli.main(request["arguments"])
        sys.exit()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@functools.cache
def _forks() -> Any:
    """Return a process that has imported the command, and forks another one for each call."""
    pipe = subprocess.PIPE
    server = subprocess.Popen([sys.executable, "-c", _FORKS], env=environment(), stdin=pipe, stdout=pipe, text=True)
    atexit.register(server.kill)
    return server


def process(*arguments: str, cwd: Path, given: str = "", **changes: str) -> Result:
    """Call the command in a new process."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in ("in", "out", "err")]
        files[0].write_text(given)
        call = {
            "arguments": arguments,
            "cwd": str(cwd),
            "environment": environment(**changes),
            "files": [*map(str, files)],
        }
        print(json.dumps(call), file=_forks().stdin, flush=True)
        code = int(_forks().stdout.readline())
        return Result(code, files[1].read_text(encoding="utf-8"), files[2].read_text(encoding="utf-8"))


def completed(*words: str, cwd: Path) -> list[str]:
    """Return what a shell offers to complete the last of these words."""
    line = {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    return [
        found.partition(",")[2] for found in process(cwd=cwd, _STATEGRAPH_COMPLETE="bash_complete", **line).out.split()
    ]


@contextlib.contextmanager
def started(*arguments: str, cwd: Path) -> Iterator[Any]:
    """Start the command as a process, whose output is in pipes; kill it at the end of the block."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command(*arguments), cwd=cwd, env=environment(), stdout=pipe, stderr=pipe, text=True
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def at_terminal(*arguments: str, cwd: Path, typed: str = "", width: int = 80, **changes: str) -> Result:
    """Call the command at a pseudo terminal, at which this is typed once something stands there."""
    leader, follower = pty.openpty()
    env = environment(COLUMNS=str(width), **changes)
    child = subprocess.Popen(
        command(*arguments),
        cwd=cwd,
        env=env,
        stdin=follower,
        stdout=follower,
        stderr=follower,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - Ctrl-C is to come to the command
    )
    os.close(follower)
    seen, until = b"", time.monotonic() + 300
    while time.monotonic() < until:
        if not select.select([leader], [], [], 0.1)[0]:
            continue
        try:
            read = os.read(leader, 65_536)
        except OSError:  # the other side has closed it
            break
        if not read:
            break
        seen += read
        if typed:
            time.sleep(0.3)  # until it waits: Python misses an interrupt that comes right before it reads
            os.write(leader, typed.encode())
            typed = ""
    os.close(leader)
    return Result(child.wait(300), seen.decode(errors="replace").replace("\r\n", "\n"), "")


def listing(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return all files below a folder, with their times and contents."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}
