"""``stategraph ui``."""

from __future__ import annotations

from importlib.util import find_spec

import click

from stategraph.cli._asked import Asked, asked, common
from stategraph.cli._exits import Exit, Failure
from stategraph.cli._graphs import load_graph
from stategraph.cli._screen import note

_EXAMPLES = """
\b
Examples:
  stategraph --store runs.db ui
  stategraph ui --graph app.flows:orders --graph app.flows:refunds
  stategraph ui --host 0.0.0.0 --allow-host runs.example

Without a graph, runs are only shown. With one, the store is that of the graph, unless --store names it.
"""
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - what to open on this machine then


@click.command("ui", epilog=_EXAMPLES)
@click.option("--graph", "names", multiple=True, metavar="MODULE:NAME", help="Let runs of this graph be changed.")
@click.option("--port", type=click.IntRange(0, 65_535), default=7420, show_default=True, help="0 for any free one.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen: by default, this machine alone.")
@click.option("--allow-host", "allowed", multiple=True, metavar="NAME", help="A name under which others reach it.")
@click.option("--root-path", default="", metavar="PATH", help="Where a reverse proxy has the page, such as /runs.")
@common
@asked
def command(
    request: Asked, names: tuple[str, ...], port: int, host: str, allowed: tuple[str, ...], root_path: str
) -> None:
    """Show the runs in a browser.

    The address that is printed has a token in it: whoever has that is let in.
    """
    if find_spec("uvicorn") is None or find_spec("jinja2") is None or find_spec("starlette") is None:
        raise Failure(Exit.FAILED, "the page needs starlette, uvicorn and jinja2: pip install '.[ui]'")
    graphs = [load_graph(name) for name in names]
    store = request.open() if request.store or not graphs else graphs[0].store
    from stategraph.web import app
    from stategraph.web._guard import host_of
    from stategraph.web._serving import listening, serve

    own = _EVERYWHERE.get(host, host)
    listened = f"[{own}]" if ":" in own else own
    page = app(store, graphs, hosts={"localhost", "127.0.0.1", "[::1]", listened, *allowed}, root_path=root_path)
    with listening(host, port) as socket:
        name = host_of(allowed[0]) if allowed else listened
        address = f"http://{name}:{socket.getsockname()[1]}{page.root_path}/?token={page.token}"
        if host not in _LOOPBACK:
            note(f"stategraph: {host} can be reached from other machines, and what is sent is not encrypted")
        if host in _EVERYWHERE and not allowed:
            note("stategraph: --allow-host NAME lets in requests for the name of this machine; others are refused")
        if request.is_json:
            request.screen.record({"address": address})
        else:
            request.screen.line(address)
        serve(page, socket)
