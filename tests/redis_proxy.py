"""A network between a store and its Redis server that can fail."""

from __future__ import annotations

from tests.postgres_proxy import Proxy
from tests.redis_server import Server, server


class RedisProxy(Proxy):
    """Hands on what clients and a Redis server say to each other."""

    socket_name = "socket"

    def __init__(self, to: Server | None = None) -> None:
        super().__init__(str((to or server()).folder))

    def is_trip(self, said: bytes, is_server: bool) -> bool:
        return not is_server  # an answer may come in several pieces, a question that is short comes in one

    @property
    def url(self) -> str:
        """Where clients connect to."""
        return f"unix://{self._own.name}/{self.socket_name}"

    def leads_to(self, other: Server) -> None:
        """Lead new connections to another server."""
        self.server = f"{other.folder}/{self.socket_name}"
