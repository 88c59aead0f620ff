"""FileRef: a file in a State, by its path and digest."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import BinaryIO

import attrs

from stategraph._values.registered_types import register_type


def _absolute(path: str | os.PathLike[str]) -> str:
    return os.path.abspath(path)


@register_type(name="stategraph.FileRef")
@attrs.frozen
class FileRef:
    """A file that a State refers to, in place of its content. Reading it checks that it is still the same.

    Making one reads the file; saving and loading a State do not.

    Args:
        path: The file.

    Attributes:
        path: Its absolute path.
        digest: The SHA-256 of its content, in hexadecimal digits.

    Raises:
        OSError: The file cannot be read.
    """

    path: str = attrs.field(converter=_absolute)
    digest: str = attrs.field(init=False)

    @digest.default
    def _digest_now(self) -> str:
        with open(self.path, "rb") as file:  # noqa: PTH123 - a path as text is loaded on every system
            return _digest_of(file)

    def open(self) -> BinaryIO:
        """Return the file, open for reading, once its content is checked.

        Raises:
            ValueError: It has changed.
            OSError: It cannot be read.
        """
        with ExitStack() as opened:
            file = opened.enter_context(open(self.path, "rb"))  # noqa: PTH123 - as above
            found = _digest_of(file)
            if found == self.digest:
                file.seek(0)
                opened.pop_all()  # the caller closes it
                return file
        was = f"its SHA-256 is {found} and was {self.digest}"
        raise ValueError(f"{self.path} has changed since the State refers to it: {was}; restore the file")

    def read_bytes(self) -> bytes:
        """Return the content. Raises the errors of `open`."""
        with self.open() as file:
            return file.read()


def _digest_of(file: BinaryIO) -> str:
    import hashlib  # imported when used: OpenSSL takes 4 ms

    return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
