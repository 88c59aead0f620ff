"""The page: see the runs of a store in a browser and, where their graphs are given, take hold of them.

It needs the extra ``[ui]``. ``stategraph ui`` serves it; `app` is for an application of one's own. See
docs/web.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from importlib.util import find_spec
from typing import TYPE_CHECKING

from stategraph.errors import ConfigError

if TYPE_CHECKING:
    from stategraph.graph import StateGraph
    from stategraph.stores.base import CheckpointStore
    from stategraph.web._guard import Guard

__all__ = ["app"]

_MISSING = "the page needs starlette and jinja2: pip install '.[ui]'"


def app(
    store: CheckpointStore,
    graphs: Iterable[StateGraph] = (),
    *,
    token: str | None = None,
    hosts: Collection[str] = ("localhost", "127.0.0.1", "[::1]"),
    root_path: str = "",
) -> Guard:
    """Return the page as an ASGI application, to be served or mounted.

    Nothing of the store is ever run. What is changed is changed through the store of the graph.

    Args:
        store: Whose runs are shown.
        graphs: Runs of these can be answered, resumed, cancelled, forked and rolled back; others are only shown.
        token: A browser that gives it in an address, ``/?token=...``, is let in, and known by a session cookie until
            this process ends. One is made if none is given: it is the attribute `token` of the result. An empty one
            lets in everybody who reaches the page: only for an application that has a login of its own.
        hosts: The names, without ports, under which the page is reached; requests for others are refused.
        root_path: The path under which a reverse proxy has the page, such as ``/runs``. The proxy may leave it out of
            the requests that it passes on, or not. `Mount` of starlette says it by itself.

    Raises:
        ConfigError: two graphs have the same name, or a host has no name.
        ImportError: starlette or jinja2 is missing.
    """
    if find_spec("starlette") is None or find_spec("jinja2") is None:
        raise ImportError(_MISSING)
    from stategraph.web._app import Pages  # imported when used: starlette takes 100 ms
    from stategraph.web._guard import Guard

    by_name: dict[str, StateGraph] = {}
    for graph in graphs:
        if by_name.setdefault(graph.name, graph) is not graph:
            raise ConfigError("graphs", graph.name, "a name of its own for each graph")
    guard = Guard(token, hosts, root_path)
    guard.app = Pages(store, by_name, guard.csrf).routed()
    return guard
