"""Serving the page by uvicorn, until it is interrupted."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from stategraph.cli._exits import Exit, Failure


@contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """Listen at an address.

    Raises:
        Failure: that cannot be done, such as where another process does so.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as found:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((host, port))
        except OSError as error:
            reason = f"nothing can listen at {host}, port {port}: {error.strerror or error}; --port takes another"
            raise Failure(Exit.FAILED, reason) from None
        found.listen(128)
        yield found


def serve(page: ASGIApp, at: socket.socket) -> None:
    """Serve an application on a socket that listens."""
    config = uvicorn.Config(page, log_level="warning", access_log=False, timeout_graceful_shutdown=1, ws="none")
    uvicorn.Server(config).run(sockets=[at])
