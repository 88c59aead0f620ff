"""Bodies: what a row holds, as bytes. A row names the way it was made, so that a store may hold rows of several."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from stategraph.errors import ConfigError, FormatError, UnknownNameError
from stategraph.stores._codec.type_codecs import DecodeError
from stategraph.stores._rows.records import CheckpointRecord
from stategraph.stores.serializers import find_format, registered_format

LARGEST = 1 << 28
"""Bytes of a body that are compressed, or decompressed, at most: a small row must not fill the memory."""

_UNASKED, _RATIO = 1 << 22, 100
"""Bytes that any row may be decompressed to, and how many times its own size a row beyond: what is decoded of a byte
takes up to a hundred, and it must take a large row to fill the memory. More is neither compressed nor decompressed.

A snapshot and the rows that build on it are loaded together. So what all of these become beyond the second is no more
than the first: many small rows take no more memory than one."""

_SMALLEST = 4096  # bytes: below, there is little to gain
_PAYS = 0.9  # of the bytes that may be left, so that it is worth decompressing them at every load
_ZSTD = "+zstd"


class Bodies:
    """Makes bodies of values, and values of bodies.

    Args:
        serializer: Name of the serializer of new bodies.
        compress: Whether new ones of more than 4 KB are compressed, where that saves a tenth or more.

    Raises:
        UnknownNameError: no serializer has this name.
        ConfigError: compress is no bool, or what it takes is not installed.
    """

    def __init__(self, serializer: str = "msgpack", compress: bool = False) -> None:
        if type(compress) is not bool:
            raise ConfigError("checkpoint.options.compress", compress, "true or false")
        written = find_format(serializer)
        self._readers: dict[str, Callable[[bytes], Any]] = {serializer: written.decode}
        self._encode = written.encode
        self._name = serializer
        self._zstd: Any = _zstandard() if compress else None

    def encode(self, parts: list[Any], excess: int = 0) -> tuple[str, bytes, int]:
        """-> the encoding of a body, the body, and the excess with it. What cannot be loaded again is not compressed.

        Args:
            parts: The values.
            excess: That of the rows that it builds on, as `excess_of` tells it.

        Raises:
            NotSerializableError: a value cannot be kept exactly.
        """
        body = self._encode(parts)
        if self._zstd is not None and _SMALLEST < len(body) <= LARGEST:
            compressor = self._zstd.ZstdCompressor(level=1)  # several threads must not share one
            compressed = compressor.compress(body)
            with_it = excess + _excess(len(body), compressed)
            is_small = len(body) <= _most(compressed) and with_it <= _UNASKED
            if is_small and len(compressed) <= _PAYS * len(body):
                return self._name + _ZSTD, compressed, with_it
        return self._name, body, excess

    def decode(self, run_id: str, rows: Sequence[CheckpointRecord]) -> list[Any]:
        """-> the values of a snapshot, and of the rows that build on it.

        Raises:
            DecodeError: a body is none, or together they claim to be more bytes than are written so.
            FormatError: the serializer of one is not known here.
            ConfigError: one is compressed, and what that takes is not installed.
        """
        excess = excess_of((row.encoding, row.body) for row in rows)
        if excess > _UNASKED:
            most = f"{_RATIO} times as many as they are, and {_UNASKED}"
            raise DecodeError(f"its compressed bytes claim to be more than {most}; so many are not written so")
        return [self._decoded(run_id, row) for row in rows]

    def _decoded(self, run_id: str, row: CheckpointRecord) -> Any:
        read = self._readers.get(row.encoding)
        if read is None:
            read = self._readers[row.encoding] = _reader(run_id, row)
        return read(row.body)


def _reader(run_id: str, row: CheckpointRecord) -> Callable[[bytes], Any]:
    """-> what reads bodies that are encoded as this one is."""
    name = row.encoding.removesuffix(_ZSTD)
    try:
        decode = registered_format(name).decode
    except UnknownNameError as error:
        reason = f"its step {row.step} was saved by a serializer that is not registered here: {error}"
        way_out = f"register_serializer makes it known, or open the store with serializer={name!r} if it is installed"
        raise FormatError(run_id, f"{reason}; {way_out}") from None
    return decode if name == row.encoding else lambda body: decode(_decompressed(body))


def _most(compressed: bytes) -> int:
    """-> how many bytes may be made of these."""
    return min(LARGEST, max(_UNASKED, _RATIO * len(compressed)))


def excess_of(bodies: Iterable[tuple[str, bytes]]) -> int:
    """-> how many bytes beyond `_RATIO` times their sizes these bodies, with their encodings, are decompressed to.

    Raises:
        DecodeError: a compressed body is none.
        ConfigError: there are compressed ones, and what that takes is not installed.
    """
    return sum(_excess(_size_of(body), body) for encoding, body in bodies if encoding.endswith(_ZSTD))


def _excess(size: int, compressed: bytes) -> int:
    return max(0, size - _RATIO * len(compressed))


def _size_of(compressed: bytes) -> int:
    zstd = _zstandard()
    try:
        size: int = zstd.frame_content_size(compressed)
    except zstd.ZstdError as error:
        raise DecodeError(f"its bytes cannot be decompressed: {error}") from error
    if not 0 <= size <= _most(compressed):
        raise DecodeError(f"its compressed bytes claim to be {size} bytes; at most {_most(compressed)} are written so")
    return size


def _decompressed(body: bytes) -> bytes:
    _size_of(body)
    zstd = _zstandard()
    try:
        data: bytes = zstd.ZstdDecompressor().decompress(body, allow_extra_data=False)
    except zstd.ZstdError as error:
        raise DecodeError(f"its bytes cannot be decompressed: {error}") from error
    return data


def _zstandard() -> Any:
    try:
        import zstandard  # imported when used: an extra
    except ImportError as error:
        way_out = "the package zstandard comes first, as the extra stategraph[zstd] brings it"
        raise ConfigError("checkpoint.options.compress", True, way_out) from error
    return zstandard
