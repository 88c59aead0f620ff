"""Serves the page with uvicorn."""

from __future__ import annotations

import asyncio
from socket import socket

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from stategraph.web._guard import Guard

_MOST_CONNECTIONS = 100


class _Protocol(H11Protocol):
    """Closes a connection without a request when there are many: half-open ones would take all file descriptors."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        others = [other for other in self.connections if isinstance(other, _Protocol) and other._is_idle]
        super().connection_made(transport)
        if len(self.connections) > _MOST_CONNECTIONS and others:
            others[0].transport.close()

    @property
    def _is_idle(self) -> bool:
        """Whether it is open and at work on no request."""
        return (self.cycle is None or self.cycle.response_complete) and not self.transport.is_closing()


def serve(page: Guard, listener: socket) -> None:
    """Serve a page until the process is interrupted."""
    config = uvicorn.Config(
        page, http=_Protocol, log_level="warning", access_log=False, timeout_graceful_shutdown=1, ws="none", backlog=64
    )
    uvicorn.Server(config).run(sockets=[listener])
