"""Compressed payloads: how far they may be decompressed, so that a small row does not fill the memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stategraph.errors import ConfigError
from stategraph.stores._codec.type_codecs import DecodeError

LARGEST = 1 << 28
"""Bytes that a payload may have to be compressed, and may be decompressed to: a small row must not fill the memory."""

ALLOWANCE, RATIO = 1 << 22, 100
"""A payload may be decompressed to `ALLOWANCE` bytes, or to `RATIO` times its own size. A value takes up to a hundred
times the memory of its bytes, and only a large row may fill it. More is neither compressed nor decompressed.

A snapshot and the rows that build on it are loaded together. So they share one allowance: their excess, which is all
that they become beyond `RATIO` times their sizes, is at most `ALLOWANCE`. Many small rows take no more than one."""

_SMALLEST = 4096  # bytes: below, there is little to gain
_WORTHWHILE = 0.9  # of the size that may be left, so that compression is worth decompressing at every load
ZSTD = "+zstd"


def compressed(zstd: Any, payload: bytes, excess: int) -> tuple[bytes, int] | None:
    """Return a payload compressed, and the excess of it and the rows that it builds on.

    None where that does not pay, or could not be decompressed again.
    """
    if not _SMALLEST < len(payload) <= LARGEST:
        return None
    smaller: bytes = zstd.ZstdCompressor(level=1).compress(payload)  # several threads must not share a compressor
    total = excess + _excess(len(payload), smaller)
    is_loadable = len(payload) <= _most(smaller) and total <= ALLOWANCE
    return (smaller, total) if is_loadable and len(smaller) <= _WORTHWHILE * len(payload) else None


def _most(compressed: bytes) -> int:
    """Return how many bytes these may be decompressed to."""
    return min(LARGEST, max(ALLOWANCE, RATIO * len(compressed)))


def excess_of(payloads: Iterable[tuple[str, bytes]]) -> int:
    """Return how many bytes payloads, each with its encoding, are decompressed to beyond `RATIO` times their sizes.

    Raises:
        DecodeError: A compressed payload is damaged.
        ConfigError: One is compressed, and the package for it is not installed.
    """
    return sum(_excess(_size_of(payload), payload) for encoding, payload in payloads if encoding.endswith(ZSTD))


def _excess(size: int, compressed: bytes) -> int:
    return max(0, size - RATIO * len(compressed))


def _size_of(compressed: bytes) -> int:
    zstd = zstandard_package()
    try:
        size: int = zstd.frame_content_size(compressed)
    except zstd.ZstdError as error:
        raise DecodeError(f"its bytes cannot be decompressed: {error}") from error
    if not 0 <= size <= _most(compressed):
        raise DecodeError(f"its compressed bytes claim to be {size} bytes; at most {_most(compressed)} are written so")
    return size


def decompress(compressed: bytes) -> bytes:
    _size_of(compressed)
    zstd = zstandard_package()
    try:
        data: bytes = zstd.ZstdDecompressor().decompress(compressed, allow_extra_data=False)
    except zstd.ZstdError as error:
        raise DecodeError(f"its bytes cannot be decompressed: {error}") from error
    return data


def zstandard_package() -> Any:
    try:
        import zstandard  # imported when used: an extra
    except ImportError as error:
        way_out = "the package zstandard comes first, as the extra stategraph[zstd] brings it"
        raise ConfigError("checkpoint.options.compress", True, way_out) from error
    return zstandard
