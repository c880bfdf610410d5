"""SYSFLAG: the flags of a record in one i32.

    bit  0      body is compressed
    bit  1      multi-tags
    bits 2-3    transaction type: 0 none, 4 prepared, 8 commit, 12 rollback
    bit  4      born host is IPv6
    bit  5      store host is IPv6
    bit  6      consumers must unwrap the body
    bit  7      the body is an inner batch
    bits 8-10   compression type: 0 zlib (old clients), 1 LZ4 frame, 2 zstd, 3 zlib

Unknown bits are kept unchanged.
"""

from __future__ import annotations

import enum

COMPRESSED = 0x01
MULTI_TAGS = 0x02
TRANSACTION_MASK = 0x0C
BORN_HOST_V6 = 0x10
STORE_HOST_V6 = 0x20
NEED_UNWRAP = 0x40
INNER_BATCH = 0x80
COMPRESSION_TYPE_MASK = 0x700
COMPRESSION_TYPE_SHIFT = 8


class TransactionType(enum.IntEnum):
    """The transaction bits, in place. Only NONE and COMMIT records enter a consume queue."""

    NONE = 0x00
    PREPARED = 0x04
    COMMIT = 0x08
    ROLLBACK = 0x0C


class CompressionType(enum.IntEnum):
    """How a compressed body was compressed."""

    ZLIB_LEGACY = 0
    LZ4 = 1
    ZSTD = 2
    ZLIB = 3


def transaction_type(sys_flag: int) -> TransactionType:
    return TransactionType(sys_flag & TRANSACTION_MASK)


def with_transaction_type(sys_flag: int, kind: TransactionType) -> int:
    return (sys_flag & ~TRANSACTION_MASK) | kind


def enters_consume_queue(sys_flag: int) -> bool:
    """Prepared and rolled back records are stored, but no consumer may see them."""
    return sys_flag & TRANSACTION_MASK in (TransactionType.NONE, TransactionType.COMMIT)


def is_compressed(sys_flag: int) -> bool:
    return sys_flag & COMPRESSED != 0


def compression_type_number(sys_flag: int) -> int:
    """0..7; only 0..3 have a meaning."""
    return (sys_flag & COMPRESSION_TYPE_MASK) >> COMPRESSION_TYPE_SHIFT


def without_compression(sys_flag: int) -> int:
    return sys_flag & ~(COMPRESSION_TYPE_MASK | COMPRESSED)


def is_inner_batch(sys_flag: int) -> bool:
    return sys_flag & INNER_BATCH != 0


def with_host_shapes(sys_flag: int, *, born_v6: bool, store_v6: bool) -> int:
    """Set *and clear* the host bits by the address families.

    RocketMQ only sets them, so a client that sends the bit with an IPv4 address causes an unreadable record.
    """
    sys_flag &= ~(BORN_HOST_V6 | STORE_HOST_V6)
    return sys_flag | (BORN_HOST_V6 if born_v6 else 0) | (STORE_HOST_V6 if store_v6 else 0)
