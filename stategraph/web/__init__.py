"""The page, which shows the runs of a store in a browser and changes them; and events of runs for your own pages.

The page needs the extra ``[ui]``. ``stategraph ui`` serves it; `app` is for your own application. See "The page".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from stategraph.errors import ConfigError

if TYPE_CHECKING:
    from stategraph.graph import StateGraph
    from stategraph.state import State
    from stategraph.stores.base import CheckpointStore
    from stategraph.web._events import Events
    from stategraph.web._guard import Guard

__all__ = ["app", "events"]

_MISSING = "the page needs starlette and jinja2: pip install 'durable-stategraph[ui]'"


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


def events(
    graph: StateGraph[Any],
    *,
    shown: Callable[[State], Any] | None = None,
    heartbeat: float = 15.0,
    wait: float | None = None,
) -> Events:
    """Return an ASGI application that sends the chunks and States of a run to a browser, as server-sent events.

    Mount it, as in ``Mount("/events", events(graph))`` of Starlette or ``app.mount("/events", events(graph))`` of
    FastAPI: ``/events/chat-1`` has the events of the run ``chat-1``. It needs neither. It only reads: a browser that
    leaves does not stop the run. It lets everyone read who gets there: your application decides who does.

    Args:
        graph: The graph of the runs, or another one with their store.
        shown: Returns what the event of a State holds, as JSON; by default its step, node and status, and no data.
        heartbeat: Seconds of silence after which a comment is sent, so that proxies keep the connection.
        wait: Seconds to wait for a run to begin before the answer is 404.
    """
    from stategraph.web._events import Events, step_of  # imported when used: asyncio takes 20 ms

    return Events(graph, shown or step_of, heartbeat, wait)
