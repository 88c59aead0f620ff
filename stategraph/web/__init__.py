"""The page: it shows the runs of a store in a browser and, with their graphs, changes them.

It needs the extra ``[ui]``. ``stategraph ui`` serves it; `app` is for your own application. See docs/web.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
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
    allow_changed: bool = False,
    migrate: Mapping[str, str] | None = None,
) -> Guard:
    """Return the page as an ASGI application, to be served or mounted.

    It never runs code from the store. It makes changes through the store of the graph.

    Args:
        store: The store whose runs it shows.
        graphs: Runs of these graphs can be answered, resumed, cancelled, forked and rolled back; others are only shown.
        token: The secret in the address ``/?token=...``, which leads a browser to a random path, with a session cookie
            for it until this process ends. By default a new one, the attribute `token` of the result. An empty token
            lets everyone in: use it only in an application with its own login.
        hosts: The names of the page, without ports. Requests under other names are refused.
        root_path: The path of the page on a reverse proxy, such as ``/runs``. The proxy may pass requests on with it or
            without it. `Mount` of starlette needs none.
        allow_changed: As for `StateGraph.resume`, for answers and resumes.
        migrate: As for `StateGraph.resume`; of several graphs, each takes the names that it has.

    Raises:
        ConfigError: two graphs have the same name, or a host is not a name.
        ImportError: starlette or jinja2 is missing.
    """
    if find_spec("starlette") is None or find_spec("jinja2") is None:
        raise ImportError(_MISSING)
    from stategraph.turns import by_names
    from stategraph.web._app import Pages  # imported when used: starlette takes 100 ms
    from stategraph.web._guard import Guard

    graphs = [*graphs]
    by_name = by_names(graphs)
    for graph in graphs:
        if by_name[graph.name] is not graph:
            raise ConfigError("graphs", graph.name, "a different name for each graph")
    guard = Guard(token, hosts, root_path)
    guard.app = Pages(store, by_name, guard.csrf, allow_changed, migrate or {}).routed()
    return guard
