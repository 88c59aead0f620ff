"""A network between a store and its server that can fail in either direction, before or after a commit."""

from __future__ import annotations

import queue
import select
import socket
import tempfile
import threading
from contextlib import suppress
from pathlib import Path


class Proxy:
    """Hands on what clients and server say to each other.

    Attributes:
        server: The socket of the server.
        mode: "pass" hands on all, "hole" swallows all, "deaf" swallows what the server says, "cut before" closes a
            connection when the client says something, "cut after" when the server has answered; both do so once, and
            pass from then on.
        opened: How many connections were opened.
        dropped: Connections that hand on nothing any more, and no one is told, as a NAT drops them; see `drop`.
        answers: How often the server was ready for the next question, since that was set to 0: its round trips.
    """

    socket_name = ".s.PGSQL.5432"

    def __init__(self, folder: str) -> None:
        self.server = f"{folder}/{self.socket_name}"
        self._own = tempfile.TemporaryDirectory(prefix="stategraph-proxy-")
        self.mode, self.opened, self.answers = "pass", 0, 0
        self.dropped: dict[socket.socket, str] = {}
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(f"{self._own.name}/{self.socket_name}")
        self._listening.listen(50)
        self._sockets: list[socket.socket] = [self._listening]
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def is_trip(self, said: bytes, is_server: bool) -> bool:
        """Return whether this shows one round trip: the server says that it is ready for the next question."""
        return is_server and said.endswith(b"Z\0\0\0\5I")

    @property
    def dsn(self) -> str:
        """Where clients connect to."""
        return f"postgresql://postgres:@/postgres?host={self._own.name}"

    def drop(self, mode: str = "hole") -> None:
        """Drop all open connections silently: from now on they have this mode, new ones pass."""
        self.dropped |= dict.fromkeys(self._sockets[1::2], mode)

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
                    mode = self.dropped.get(client, self.mode)
                    if mode == "hole" or (mode == "deaf" and heard is server):
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
            thread.join(60)
        self._own.cleanup()


class Pooler:
    """Lends sessions of a server to clients, for a transaction each and in turn, as PgBouncer does in transaction mode.

    Args:
        folder: Where the socket of the server is.
        sessions: How many there are.
    """

    def __init__(self, folder: str, sessions: int) -> None:
        self._server, self._most = f"{folder}/{Proxy.socket_name}", sessions
        self._own = tempfile.TemporaryDirectory(prefix="stategraph-pooler-")
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(f"{self._own.name}/{Proxy.socket_name}")
        self._listening.listen(50)
        self._greeting, self._sockets = b"", [self._listening]
        self._sessions: queue.Queue[socket.socket] = queue.Queue()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def dsn(self) -> str:
        """Where clients connect to."""
        return f"postgresql://postgres:@/postgres?host={self._own.name}"

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                self._sockets.append(client)
                size = self._read(client, 4)
                startup = size + self._read(client, int.from_bytes(size) - 4)
                if not self._greeting:
                    for _ in range(self._most):
                        self._greeting = self._opened(startup)
                client.sendall(self._greeting)
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _opened(self, startup: bytes) -> bytes:
        """Open a session; -> what the server says of it."""
        session = socket.socket(socket.AF_UNIX)
        session.connect(self._server)
        self._sockets.append(session)
        session.sendall(startup)
        said = b""
        while not said.endswith(b"Z\0\0\0\5I"):
            said += session.recv(65536)
        self._sessions.put(session)
        return said

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError):
            while (said := self._message(client))[:1] != b"X":
                session = self._sessions.get()
                self._lend(session, client, said)
                self._sessions.put(session)

    def _lend(self, session: socket.socket, client: socket.socket, said: bytes) -> None:
        """Hand on what a client and a session say, until the transaction is over."""
        session.sendall(said)
        waiting = int(said[:1] in b"SQ")  # questions, each of which ends with a sync or is a query
        while True:
            for heard in select.select([client, session], [], [])[0]:
                said = self._message(heard)
                (session if heard is client else client).sendall(said)
                waiting += (said[:1] in b"SQ") if heard is client else -(said[:1] == b"Z")
                if heard is session and said == b"Z\0\0\0\5I" and not waiting:
                    return

    def _message(self, source: socket.socket) -> bytes:
        head = self._read(source, 5)
        return head + self._read(source, int.from_bytes(head[1:]) - 4)

    def _read(self, source: socket.socket, size: int) -> bytes:
        said = b""
        while len(said) < size:
            more = source.recv(size - len(said))
            if not more:
                raise OSError("it is closed")
            said += more
        return said

    def close(self) -> None:
        """Cut all."""
        self._listening.shutdown(socket.SHUT_RDWR)
        for each in self._sockets:
            each.close()
        self._own.cleanup()


def folder_of(dsn: str) -> str:
    """Return the folder in which the server that a dsn names has its socket."""
    return str(Path(dsn.partition("host=")[2]))
