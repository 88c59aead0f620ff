"""Server-sent events of runs, as an ASGI application that needs no framework."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from typing import Any, TypeAlias
from urllib.parse import parse_qs

from stategraph._progress import state_as, value_as
from stategraph.errors import CheckpointNotFoundError, ConfigError, InvalidRunIdError
from stategraph.graph import StateGraph
from stategraph.state import State, data_of

Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # nginx would hold events back
]
_NO_ID = "this is not the id of an event of this run"
_FIRST = 1.0  # seconds to wait for the first event before the response begins
_RETRY = b"retry: 1000\n\n"  # milliseconds after which a browser connects again


def step_of(state: State) -> dict[str, Any]:
    """Return what an event says about a State: nothing of its data."""
    return {"step": state.step, "node": state.checkpoint_node, "status": str(state.status)}


class Events:
    """Serves the events of a run at the end of its path; see `stategraph.web.events`."""

    def __init__(
        self, graph: StateGraph[Any], shown: Callable[[State], Any], heartbeat: float, wait: float | None
    ) -> None:
        self._graph, self._shown, self._heartbeat, self._wait = graph, shown, heartbeat, wait

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer a request, as an ASGI application."""
        if scope["type"] != "http":
            return None
        if scope["method"] != "GET":
            return await _answer(send, 405, "events are read with GET")
        query, headers = parse_qs(scope["query_string"].decode("latin-1")), dict(scope["headers"])
        after = headers.get(b"last-event-id", b"").decode("latin-1") or query.get("after", [""])[0]
        try:
            states = self._graph.afollow(_run_id_in(scope, query), after=after or None, chunks=True, wait=self._wait)
        except ConfigError:
            return await _answer(send, 400, _NO_ID)
        left = asyncio.ensure_future(_disconnected(receive))
        following = asyncio.ensure_future(_next(states))
        try:
            await asyncio.wait({left, following}, timeout=_FIRST, return_when=asyncio.FIRST_COMPLETED)
            if following.done() and following.exception() is None and following.result() is None:
                return await _answer(send, 204, "")  # there will be no more: a browser does not connect again
            if following.done() and isinstance(following.exception(), CheckpointNotFoundError | InvalidRunIdError):
                return await _answer(send, 404, "there is no such run")
            if following.done() and isinstance(following.exception(), ValueError):
                return await _answer(send, 400, _NO_ID)
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            await _send(send, _RETRY)
            status = ""
            while not left.done():
                if not following.done():
                    await _send(send, b":\n\n")
                elif (state := following.result()) is None:
                    await _send(send, _event("end", states.cursor, {"status": status}))
                    return await _send(send, b"", more=False)
                else:
                    status = str(state.status)
                    await _send(send, self._event_of(state, states.cursor))
                    following = asyncio.ensure_future(_next(states))
                wanted = {left, following}
                await asyncio.wait(wanted, timeout=self._heartbeat, return_when=asyncio.FIRST_COMPLETED)
        finally:
            left.cancel()
            following.cancel()
            await states.aclose()

    def _event_of(self, state: State, cursor: str | None) -> bytes:
        chunk, shown = state.partial, self._graph.store.shown
        if chunk is None:
            return _event("state", cursor, self._shown(state if shown is None else state_as(state, shown)))
        about = {name: getattr(chunk, name) for name in ("node", "path", "part", "attempt", "number", "chunk")}
        if shown is not None:
            about["chunk"] = value_as(chunk.chunk, data_of(state), shown)
        return _event("chunk", cursor, about)


def _run_id_in(scope: Mapping[str, Any], query: Mapping[str, list[str]]) -> str:
    """Return the run id: a parameter of the route or the address, or the path below that of the application."""
    path, root = scope["path"], scope.get("root_path", "")
    below = path[len(root) :] if path.startswith(f"{root}/") else path
    return str(scope.get("path_params", {}).get("run_id") or query.get("run_id", [below.strip("/")])[0])


def _event(kind: str, cursor: str | None, about: Any) -> bytes:
    return f"id: {cursor or ''}\nevent: {kind}\ndata: {json.dumps(about, default=str)}\n\n".encode()


async def _next(states: Any) -> State | None:
    """Return the next State; None at the end."""
    return await anext(states, None)


async def _disconnected(receive: Receive) -> None:
    """Wait until the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send(send: Send, body: bytes, *, more: bool = True) -> None:
    with suppress(OSError):  # the client has left
        await send({"type": "http.response.body", "body": body, "more_body": more})


async def _answer(send: Send, code: int, text: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8")]
    await send({"type": "http.response.start", "status": code, "headers": headers})
    await _send(send, text.encode(), more=False)
