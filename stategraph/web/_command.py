"""``stategraph ui``: serves the page by uvicorn, until it is interrupted."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import click

from stategraph.cli._exits import Exit, Failure
from stategraph.cli._opening import load_graph
from stategraph.cli._options import Request, command
from stategraph.cli._output import note

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - what to open on this machine then


@command(
    """
  stategraph --store runs.db ui
  stategraph ui --graph app.flows:orders --graph app.flows:refunds
  stategraph ui --host 0.0.0.0 --allow-host runs.example

Without a graph, runs are only shown. With one, the store is that of the graph, unless --store names it.
""",
    click.option("--graph", "names", multiple=True, metavar="MODULE:NAME", help="Let runs of this graph be changed."),
    click.option("--port", type=click.IntRange(0, 65_535), default=7420, show_default=True, help="0 for any free one."),
    click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen: by default, this machine."),
    click.option("--allow-host", "allowed", multiple=True, metavar="NAME", help="A name under which others reach it."),
    click.option("--root-path", default="", metavar="PATH", help="Where a reverse proxy has the page, such as /runs."),
)
def ui(
    request: Request, /, names: tuple[str, ...], port: int, host: str, allowed: tuple[str, ...], root_path: str
) -> None:
    """Show the runs in a browser.

    The address that is printed has a token in it, which lets in the browser that opens it.
    """
    if not all(map(find_spec, ("starlette", "uvicorn", "jinja2"))):
        raise Failure(Exit.FAILED, "the page needs starlette, uvicorn and jinja2: pip install '.[ui]'")
    graphs = [load_graph(name) for name in names]
    store = request.open() if request.address or not graphs else graphs[0].store
    import uvicorn

    from stategraph.web import app
    from stategraph.web._guard import host_of

    own = _EVERYWHERE.get(host, host)
    listened = f"[{own}]" if ":" in own else own
    page = app(store, graphs, hosts={"localhost", "127.0.0.1", "[::1]", listened, *allowed}, root_path=root_path)
    with listening(host, port) as listener:
        name = host_of(allowed[0]) if allowed else listened
        address = f"http://{name}:{listener.getsockname()[1]}{page.root_path}/?token={page.token}"
        if host not in _LOOPBACK:
            note(f"stategraph: {host} can be reached from other machines, and what is sent is not encrypted")
        if host in _EVERYWHERE and not allowed:
            note("stategraph: --allow-host NAME lets in requests for the name of this machine; others are refused")
        if request.is_json:
            request.screen.record({"address": address})
        else:
            request.screen.line(address)
        config = uvicorn.Config(page, log_level="warning", access_log=False, timeout_graceful_shutdown=1, ws="none")
        uvicorn.Server(config).run(sockets=[listener])


@contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """Listen at an address.

    Raises:
        Failure: that cannot be done, such as where another process does so.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            reason = f"nothing can listen at {host}, port {port}: {error.strerror or error}; --port takes another"
            raise Failure(Exit.FAILED, reason) from None
        listener.listen(128)
        yield listener
