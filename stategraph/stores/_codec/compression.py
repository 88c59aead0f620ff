"""Compressed payloads, with zstandard."""

from __future__ import annotations

from typing import Any

from stategraph.errors import ConfigError
from stategraph.stores._codec.type_codecs import DecodeError

LARGEST = 1 << 28
"""The most bytes of a payload that is compressed, and of a decompressed one: a small row must not fill the memory."""

_SMALLEST = 4096  # bytes: smaller payloads gain little
_WORTHWHILE = 0.9  # the largest ratio of sizes that justifies decompression at every load
ZSTD = "+zstd"


def compressed(zstd: Any, payload: bytes) -> bytes | None:
    """Return a compressed payload; None if it is too small, too large, or hardly becomes smaller."""
    if not _SMALLEST < len(payload) <= LARGEST:
        return None
    smaller: bytes = zstd.ZstdCompressor(level=1).compress(payload)  # several threads must not share a compressor
    return smaller if len(smaller) <= _WORTHWHILE * len(payload) else None


def decompress(compressed: bytes) -> bytes:
    """Return a decompressed payload.

    Raises:
        DecodeError: It is damaged, or larger than any payload that is compressed.
        ConfigError: The package zstandard is not installed.
    """
    zstd = zstandard_package()
    try:
        size = zstd.frame_content_size(compressed)
        if not 0 <= size <= LARGEST:
            raise DecodeError(f"its compressed bytes claim to be {size} bytes; at most {LARGEST} are written so")
        data: bytes = zstd.ZstdDecompressor().decompress(compressed, allow_extra_data=False)
    except zstd.ZstdError as error:
        raise DecodeError(f"its bytes cannot be decompressed: {error}") from error
    return data


def zstandard_package() -> Any:
    """Return the package zstandard. Raises ConfigError if it is not installed."""
    try:
        import zstandard  # imported when used: an extra
    except ImportError as error:
        way_out = "the package zstandard comes first, as the extra stategraph[zstd] brings it"
        raise ConfigError("checkpoint.options.compress", True, way_out) from error
    return zstandard
