"""Compressed bodies: zlib, LZ4 and zstd, chosen by SYSFLAG.

The store keeps bodies as they were sent; readers use this module. LZ4 bodies are LZ4 *frames* whose blocks are
independent: RocketMQ's reader (lz4-java's frame stream) refuses linked blocks. LZ4 and zstd bodies may be several
frames in a row, as Java's streams read them.

Decompression is bounded: a body of a few bytes can claim to be gigabytes.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable
from functools import lru_cache
from typing import Protocol

import lz4.frame

from tiermq.errors import CorruptRecord
from tiermq.message.system_flag import CompressionType, compression_type_number, is_compressed

if sys.version_info >= (3, 14):
    from compression import zstd as zstd
else:
    from backports import zstd as zstd

DECOMPRESSED_BYTES_MAX = 128 * 1024 * 1024
COMPRESSION_LEVEL = 5  # The Java client's default.


class _FrameReader(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes | None: ...
    def decompress(self, data: bytes, /, max_length: int = -1) -> bytes: ...


def compress(body: bytes, kind: CompressionType, level: int = COMPRESSION_LEVEL) -> bytes:
    """`body` as `kind` compresses it; LZ4 ignores `level`, as RocketMQ does."""
    if kind is CompressionType.LZ4:
        return bytes(lz4.frame.compress(body, block_linked=False, store_size=False))
    if kind is CompressionType.ZSTD:
        return _zstd_compressor(level).compress(body, zstd.ZstdCompressor.FLUSH_FRAME)
    return zlib.compress(body, level)


@lru_cache
def _zstd_compressor(level: int) -> zstd.ZstdCompressor:
    """One for all threads: a call makes a whole frame, under the lock of the compressor. A new one costs 100 us."""
    return zstd.ZstdCompressor(level=level)


def decompress(body: bytes, sys_flag: int, *, max_bytes: int = DECOMPRESSED_BYTES_MAX) -> bytes:
    """The body that the producer sent; `body` when SYSFLAG has no compression bit.

    Raises CorruptRecord when the bytes are damaged, truncated, followed by other bytes, or would exceed `max_bytes`.
    """
    if not is_compressed(sys_flag):
        return body
    number = compression_type_number(sys_flag)
    try:
        if number == CompressionType.LZ4:
            return _decompress_frames(lz4.frame.LZ4FrameDecompressor, body, max_bytes)
        if number == CompressionType.ZSTD:
            return _decompress_frames(zstd.ZstdDecompressor, body, max_bytes)
        if number in (CompressionType.ZLIB, CompressionType.ZLIB_LEGACY):
            return _decompress_zlib(body, max_bytes)
    except (zlib.error, zstd.ZstdError, RuntimeError, EOFError, MemoryError) as error:
        name = CompressionType(number).name
        raise CorruptRecord(f"body of {len(body)} bytes: not a valid {name} stream: {error}") from error
    raise CorruptRecord(f"body of {len(body)} bytes: compression type {number} of SYSFLAG {sys_flag:#x} is unknown")


def _decompress_zlib(body: bytes, max_bytes: int) -> bytes:
    stream = zlib.decompressobj()
    result = stream.decompress(body, max_bytes + 1)
    _check_bound(len(result), max_bytes)
    _check_end(stream.eof, stream.unused_data)
    return result


def _decompress_frames(new: Callable[[], _FrameReader], body: bytes, max_bytes: int) -> bytes:
    pieces: list[bytes] = []
    total = 0
    while True:
        stream = new()
        rest = body
        step_bytes = max(65536, 8 * len(body))  # The stream allocates its whole step before it starts.
        while not stream.eof:
            piece = stream.decompress(rest, max_length=min(step_bytes, max_bytes - total + 1))
            rest = b""
            total += len(piece)
            _check_bound(total, max_bytes)
            pieces.append(piece)
            if not piece and not stream.eof:
                _check_end(ended=False, rest=b"")
        if not stream.unused_data:
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        body = stream.unused_data


def _check_bound(found_bytes: int, max_bytes: int) -> None:
    if found_bytes > max_bytes:
        raise CorruptRecord(f"compressed body: expected at most {max_bytes} bytes when decompressed, found more")


def _check_end(ended: bool, rest: bytes) -> None:
    if not ended:
        raise CorruptRecord("compressed body: the stream is cut before its end")
    if rest:
        raise CorruptRecord(f"compressed body: {len(rest)} foreign bytes follow the end of the stream")
