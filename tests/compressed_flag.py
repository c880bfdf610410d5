"""The system flag of a compressed body, as clients set it. The store and the broker only read it."""

from __future__ import annotations

from tiermq.message.system_flag import COMPRESSED, COMPRESSION_TYPE_MASK, COMPRESSION_TYPE_SHIFT, CompressionType


def with_compression(sys_flag: int, kind: CompressionType) -> int:
    """Mark the body as compressed by `kind`."""
    return (sys_flag & ~COMPRESSION_TYPE_MASK) | COMPRESSED | (kind << COMPRESSION_TYPE_SHIFT)
