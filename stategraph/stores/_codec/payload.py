"""Payloads: the content of a row as bytes. A row names its encoding, so that a store may hold rows of several."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from stategraph.errors import ConfigError, FormatError, UnknownNameError
from stategraph.stores._codec.type_codecs import DecodeError
from stategraph.stores.serializers import find_format, registered_format

LARGEST = 1 << 28
"""Bytes that a payload may have to be compressed, and may be decompressed to: a small row must not fill the memory."""

_ALLOWANCE, _RATIO = 1 << 22, 100
"""A payload may be decompressed to `_ALLOWANCE` bytes, or to `_RATIO` times its own size. A value takes up to a hundred
times the memory of its bytes, and only a large row may fill it. More is neither compressed nor decompressed.

A snapshot and the rows that build on it are loaded together. So they share one allowance: their excess, which is all
that they become beyond `_RATIO` times their sizes, is at most `_ALLOWANCE`. Many small rows take no more than one."""

_SMALLEST = 4096  # bytes: below, there is little to gain
_WORTHWHILE = 0.9  # of the size that may be left, so that compression is worth decompressing at every load
_ZSTD = "+zstd"


class PayloadCodec:
    """Encodes and decodes payloads.

    Args:
        serializer: Name of the serializer of new payloads.
        compress: Whether new ones of more than 4 KB are compressed, where that saves a tenth or more.

    Raises:
        UnknownNameError: No serializer has this name.
        ConfigError: `compress` is no bool, or the package for it is not installed.
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
        """Encode values. What could not be decompressed again is not compressed.

        Args:
            parts: The values.
            excess: The excess of the rows that this one builds on.

        Returns:
            The encoding, the payload, and the excess of all these rows.

        Raises:
            NotSerializableError: A value cannot be kept exactly.
        """
        payload = self._encode(parts)
        if self._zstd is not None and _SMALLEST < len(payload) <= LARGEST:
            compressor = self._zstd.ZstdCompressor(level=1)  # several threads must not share one
            compressed = compressor.compress(payload)
            total = excess + _excess(len(payload), compressed)
            is_loadable = len(payload) <= _most(compressed) and total <= _ALLOWANCE
            if is_loadable and len(compressed) <= _WORTHWHILE * len(payload):
                return self._name + _ZSTD, compressed, total
        return self._name, payload, excess

    def decode(self, run_id: str, rows: Sequence[tuple[int, str, bytes]]) -> list[Any]:
        """Return the values of a snapshot, and of the rows that build on it.

        Args:
            run_id: Their run.
            rows: The step, the encoding and the payload of each.

        Raises:
            DecodeError: A payload cannot be decoded, or they would be decompressed to too much.
            FormatError: A serializer is not registered in this process.
            ConfigError: One is compressed, and the package for it is not installed.
        """
        if excess_of((encoding, payload) for _, encoding, payload in rows) > _ALLOWANCE:
            most = f"{_RATIO} times as many as they are, and {_ALLOWANCE}"
            raise DecodeError(f"its compressed bytes claim to be more than {most}; so many are not written so")
        return [self._decode_row(run_id, *row) for row in rows]

    def _decode_row(self, run_id: str, step: int, encoding: str, payload: bytes) -> Any:
        reader = self._readers.get(encoding)
        if reader is None:
            reader = self._readers[encoding] = _make_reader(run_id, step, encoding)
        return reader(payload)


def _make_reader(run_id: str, step: int, encoding: str) -> Callable[[bytes], Any]:
    """Return the function that decodes payloads of an encoding; run and step are for the error."""
    name = encoding.removesuffix(_ZSTD)
    try:
        decode = registered_format(name).decode
    except UnknownNameError as error:
        reason = f"its step {step} was saved by a serializer that is not registered here: {error}"
        way_out = f"register_serializer makes it known, or open the store with serializer={name!r} if it is installed"
        raise FormatError(run_id, f"{reason}; {way_out}") from None
    return decode if name == encoding else lambda payload: decode(_decompress(payload))


def _most(compressed: bytes) -> int:
    """Return how many bytes these may be decompressed to."""
    return min(LARGEST, max(_ALLOWANCE, _RATIO * len(compressed)))


def excess_of(payloads: Iterable[tuple[str, bytes]]) -> int:
    """Return how many bytes payloads, each with its encoding, are decompressed to beyond `_RATIO` times their sizes.

    Raises:
        DecodeError: A compressed payload is damaged.
        ConfigError: One is compressed, and the package for it is not installed.
    """
    return sum(_excess(_size_of(payload), payload) for encoding, payload in payloads if encoding.endswith(_ZSTD))


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


def _decompress(compressed: bytes) -> bytes:
    _size_of(compressed)
    zstd = _zstandard()
    try:
        data: bytes = zstd.ZstdDecompressor().decompress(compressed, allow_extra_data=False)
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
