"""A network between a store and its server that can fail: in either direction, and before or after a commit."""

from __future__ import annotations

import select
import socket
import tempfile
import threading
from pathlib import Path


class Proxy:
    """Hands on what clients and server say to each other.

    Attributes:
        server: The socket of the server.
        mode: "pass" hands on all, "hole" swallows all, "deaf" swallows what the server says, "cut before" closes a
            connection when the client says something, "cut after" when the server has answered; both do so once, and
            pass from then on.
        opened: How many connections were opened.
        answers: How often the server was ready for the next question, since that was set to 0: its round trips.
    """

    socket_name = ".s.PGSQL.5432"

    def __init__(self, folder: str) -> None:
        self.server = f"{folder}/{self.socket_name}"
        self._own = tempfile.TemporaryDirectory(prefix="stategraph-proxy-")
        self.mode, self.opened, self.answers = "pass", 0, 0
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(f"{self._own.name}/{self.socket_name}")
        self._listening.listen(50)
        self._sockets: list[socket.socket] = [self._listening]
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def is_trip(self, said: bytes, is_server: bool) -> bool:
        """-> whether this shows one round trip: the server says that it is ready for the next question."""
        return is_server and said.endswith(b"Z\0\0\0\5I")

    @property
    def dsn(self) -> str:
        """Where clients connect to."""
        return f"postgresql://postgres:@/postgres?host={self._own.name}"

    def _start(self, work, *arguments) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except (OSError, ValueError):
                return
            self.opened += 1
            server = socket.socket(socket.AF_UNIX)
            try:
                server.connect(self.server)
            except OSError:
                client.close()
                server.close()
                continue
            self._sockets += client, server
            self._start(self._hand_on, client, server)

    def _hand_on(self, client: socket.socket, server: socket.socket) -> None:
        try:
            while True:
                for heard in select.select([client, server], [], [], 0.2)[0]:
                    said = heard.recv(65536)
                    is_cut = (self.mode == "cut before" and heard is client) or (
                        self.mode == "cut after" and heard is server
                    )
                    if not said or is_cut:
                        self.mode = "pass" if is_cut else self.mode
                        return
                    self.answers += self.is_trip(said, heard is server)
                    if self.mode == "hole" or (self.mode == "deaf" and heard is server):
                        continue
                    (server if heard is client else client).sendall(said)
        except (OSError, ValueError):
            return
        finally:
            client.close()
            server.close()

    def close(self) -> None:
        """Cut all."""
        self._listening.shutdown(socket.SHUT_RDWR)
        for one in self._sockets:
            one.close()
        for thread in self._threads:
            thread.join(5)
        self._own.cleanup()


def folder_of(dsn: str) -> str:
    """-> the folder in which the server that a dsn names has its socket."""
    return str(Path(dsn.partition("host=")[2]))
