"""The log of a worker, and its answers to health checks."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs

from stategraph._text.shown import clean
from stategraph.cli._output import Exit, Failure

_EVERY = 1.0  # seconds between two versions of a health file


@attrs.frozen
class Log:
    """Writes messages to stderr, also from handlers of signals, which may have interrupted print.

    Args:
        form: "lines" with times and levels, "json", or None for the messages alone.
    """

    form: str | None = None

    def write(self, level: str, message: str, **about: Any) -> None:
        """Write a message, in JSON with further fields."""
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        text = clean(" ".join(message.split()))
        if self.form == "json":
            text = json.dumps({"time": time, "level": level, "message": message, **about})
        elif self.form == "lines":
            text = f"{time} {level:<7} {text}"
        os.write(2, f"{text}\n".encode(errors="backslashreplace"))

    def event(self, level: str, message: str, **about: Any) -> None:
        """Write what stdout has as well, unless the messages stand alone."""
        if self.form is not None:
            self.write(level, message, **about)


class Health:
    """Answers health checks of a worker, in a thread.

    Args:
        place: A file, which is replaced every second and removed at the end; or PORT or HOST:PORT for HTTP. Without a
            host, only this machine can connect.
        look: Returns the health.

    Raises:
        Failure: nothing can be written or served there.
    """

    def __init__(self, place: str, look: Callable[[], Mapping[str, Any]]) -> None:
        self.look = look
        self._end = threading.Event()
        host, _, port = place.rpartition(":")
        self._file = None if port.isdecimal() and "/" not in place else Path(place)
        try:
            if self._file is None:
                self._serve(host.strip("[]") or "127.0.0.1", int(port))
            else:
                self._write(self._file)
                self._writer = threading.Thread(target=self._keep_writing, args=[self._file], daemon=True)
                self._writer.start()
        except (OSError, OverflowError) as error:
            raise Failure(Exit.USAGE, f"--health {place}: {error}; give another file, PORT or HOST:PORT") from error

    def end(self) -> None:
        """Remove the file, so that the worker no longer counts as alive."""
        self._end.set()
        if self._file is not None:
            self._writer.join()  # it would put the file there again
            self._file.unlink(missing_ok=True)

    def _keep_writing(self, file: Path) -> None:
        while not self._end.wait(_EVERY):
            self._write(file)

    def _write(self, file: Path) -> None:
        new = file.with_name(f".{file.name}.{os.getpid()}")
        new.write_text(json.dumps(self.look()) + "\n", encoding="ascii")
        new.replace(file)

    def _serve(self, host: str, port: int) -> None:
        from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer  # imported when used: 30 ms

        look = self.look

        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                health = look()
                body = json.dumps(health).encode()
                self.send_response(200 if health["alive"] else 503)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Log nothing."""

        server = ThreadingHTTPServer((host, port), Answer)
        threading.Thread(target=server.serve_forever, daemon=True).start()
