"""``stategraph ui``: serves the page until it is interrupted."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import click

from stategraph.cli._opening import load_graph
from stategraph.cli._options import ALLOW_CHANGED, RENAMES, Request, command
from stategraph.cli._output import Exit, Failure, note

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - the address to open on this machine


@command(
    """
  stategraph --store runs.db ui
  stategraph ui --graph app.flows:orders --graph app.flows:refunds
  stategraph ui --host 0.0.0.0 --allow-host runs.example

Without a graph, the page changes nothing. With a graph, the store is that of the graph unless --store names it.
""",
    click.option("--graph", "names", multiple=True, metavar="MODULE:NAME", help="Allow changes to runs of this graph."),
    click.option(
        "--port", type=click.IntRange(0, 65_535), default=7420, show_default=True, help="The port; 0 for a free one."
    ),
    click.option(
        "--host", default="127.0.0.1", show_default=True, help="Where to listen; by default only on this machine."
    ),
    click.option("--allow-host", "allowed", multiple=True, metavar="NAME", help="Another name of this page."),
    click.option("--root-path", default="", metavar="PATH", help="The path on a reverse proxy, such as /runs."),
    ALLOW_CHANGED,
    RENAMES,
)
def ui(request: Request, /, names: tuple[str, ...], port: int, host: str, allowed: tuple[str, ...], **how: Any) -> None:
    """Show the runs in a browser.

    The printed address has a token, which lets in the browser that opens it.
    """
    if not all(map(find_spec, ("starlette", "uvicorn", "jinja2"))):
        raise Failure(Exit.FAILED, "the page needs starlette, uvicorn and jinja2: pip install 'durable-stategraph[ui]'")
    graphs = [load_graph(name) for name in names]
    store = request.open() if request.address or not graphs else graphs[0].store
    from stategraph.web import app
    from stategraph.web._guard import host_of
    from stategraph.web._serving import serve

    own = _EVERYWHERE.get(host, host)
    listened = f"[{own}]" if ":" in own else own
    page = app(store, graphs, hosts={"localhost", "127.0.0.1", "[::1]", listened, *allowed}, **how)
    with listening(host, port) as listener:
        name = host_of(allowed[0]) if allowed else listened
        address = f"http://{name}:{listener.getsockname()[1]}{page.root_path}/?token={page.token}"
        if host not in _LOOPBACK:
            note(f"stategraph: other machines can reach {host}, and nothing is encrypted")
        if host in _EVERYWHERE and not allowed:
            note("stategraph: requests under the name of this machine are refused: --allow-host NAME allows them")
        if request.is_json:
            request.screen.record({"address": address})
        else:
            request.screen.line(address)
        serve(page, listener)


@contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """Listen at an address.

    Raises:
        Failure: the address is not free, for instance.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            reason = f"cannot listen at {host}, port {port}: {error.strerror or error}; --port takes another"
            raise Failure(Exit.FAILED, reason) from None
        listener.listen(128)
        yield listener
