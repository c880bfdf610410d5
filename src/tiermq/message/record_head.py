"""RecordHead: the fields that a scan of the commit log needs of each record, read without copying the body.

`read_head` never raises on bytes: it returns OK, BLANK (the rest of the file is empty), HALF (the record is valid, but
its end is missing) or CORRUPT, with the reason. It checks the structure only, not checksums.
"""

from __future__ import annotations

import enum

from tiermq.message.layout import (
    BLANK_BYTES_MIN,
    FIXED_PARTS,
    FIXED_SIZES,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTIES_LENGTH,
    RECORD_BYTES_MIN,
    SHAPE_MASK,
    SHAPE_SHIFT,
    SIZE_AND_MAGIC,
    SYS_FLAG_LOW_BYTE_AT,
    TOPIC_LENGTH_V1,
    TOPIC_LENGTH_V2,
    ReadableBuffer,
    RecordVersion,
)


class HeadKind(enum.Enum):
    """The kind of data at a position of the log."""

    OK = 0
    BLANK = 1
    HALF = 2
    CORRUPT = 3


class RecordHead:
    """One record as a scan sees it. Positions count from the start of the buffer.

    `size` is the record's for OK, the length of the empty rest for BLANK, TOTALSIZE for HALF, and for CORRUPT
    the bytes that a reader may skip to reach the next record, or 0 when nothing is known about that.
    All other fields have a meaning only for OK.
    """

    __slots__ = (
        "body_length",
        "body_position",
        "kind",
        "physical_offset",
        "prepared_transaction_offset",
        "properties_length",
        "properties_position",
        "queue_id",
        "queue_offset",
        "reason",
        "size",
        "store_timestamp_ms",
        "sys_flag",
        "topic",
        "version",
    )

    def __init__(
        self,
        kind: HeadKind,
        size: int,
        reason: str = "",
        version: RecordVersion = RecordVersion.V1,
        topic: bytes = b"",
        queue_id: int = 0,
        queue_offset: int = 0,
        physical_offset: int = 0,
        store_timestamp_ms: int = 0,
        sys_flag: int = 0,
        prepared_transaction_offset: int = 0,
        body_position: int = 0,
        body_length: int = 0,
        properties_position: int = 0,
        properties_length: int = 0,
    ) -> None:
        self.kind = kind
        self.size = size
        self.reason = reason
        self.version = version
        self.topic = topic
        self.queue_id = queue_id
        self.queue_offset = queue_offset
        self.physical_offset = physical_offset
        self.store_timestamp_ms = store_timestamp_ms
        self.sys_flag = sys_flag
        self.prepared_transaction_offset = prepared_transaction_offset
        self.body_position = body_position
        self.body_length = body_length
        self.properties_position = properties_position
        self.properties_length = properties_length

    def __repr__(self) -> str:
        if self.kind is not HeadKind.OK:
            return f"RecordHead({self.kind.name}, size={self.size}, reason={self.reason!r})"
        return (
            f"RecordHead(OK, size={self.size}, topic={self.topic!r}, queue_id={self.queue_id}, "
            f"queue_offset={self.queue_offset}, physical_offset={self.physical_offset})"
        )


def read_head(buffer: ReadableBuffer, position: int = 0, available: int | None = None) -> RecordHead:
    """The head of the record at `position`, of which `available` bytes (by default all that follow) may be read."""
    if position < 0:
        raise ValueError(f"a position in a buffer is not negative, found {position}")
    rest = len(buffer) - position
    if available is None or available > rest:
        available = rest
    early = _read_size_and_magic(buffer, position, available)
    if early is not None:
        return early
    shape = (buffer[position + SYS_FLAG_LOW_BYTE_AT] & SHAPE_MASK) >> SHAPE_SHIFT
    # fmt: off
    (
        size, magic, _, queue_id, _, queue_offset, physical_offset, sys_flag, _, _, _, store_timestamp_ms, _, _, _,
        prepared_transaction_offset, body_length,
    ) = FIXED_PARTS[shape].unpack_from(buffer, position)
    # fmt: on
    body_position = position + FIXED_SIZES[shape]
    end = position + size
    topic_length_struct = TOPIC_LENGTH_V1 if magic == MAGIC_V1 else TOPIC_LENGTH_V2
    topic_at = body_position + body_length + topic_length_struct.size
    if body_length < 0 or topic_at + PROPERTIES_LENGTH.size > end:
        return _corrupt(position, size, f"body length {body_length} does not fit size {size}")
    (topic_length,) = topic_length_struct.unpack_from(buffer, topic_at - topic_length_struct.size)
    properties_at = topic_at + topic_length + PROPERTIES_LENGTH.size
    if topic_length < 0 or properties_at > end:
        return _corrupt(position, size, f"topic length {topic_length} does not fit size {size}")
    (properties_length,) = PROPERTIES_LENGTH.unpack_from(buffer, properties_at - PROPERTIES_LENGTH.size)
    if properties_at + properties_length != end:  # A negative length cannot add up.
        found = properties_at + properties_length - position
        return _corrupt(position, size, f"property length {properties_length} makes {found} bytes of size {size}")
    return RecordHead(
        HeadKind.OK, size, "", RecordVersion.V1 if magic == MAGIC_V1 else RecordVersion.V2,
        bytes(buffer[topic_at : topic_at + topic_length]), queue_id, queue_offset, physical_offset, store_timestamp_ms,
        sys_flag, prepared_transaction_offset, body_position, body_length, properties_at, properties_length,
    )  # fmt: skip


def _read_size_and_magic(buffer: ReadableBuffer, position: int, available: int) -> RecordHead | None:
    """The result if the first 8 bytes decide it; None when a whole record of a known magic follows."""
    if available < BLANK_BYTES_MIN:
        return RecordHead(HeadKind.HALF, 0, f"byte {position}: only {max(available, 0)} bytes are left")
    size, magic = SIZE_AND_MAGIC.unpack_from(buffer, position)
    if magic == MAGIC_BLANK:
        if size < BLANK_BYTES_MIN:
            return _corrupt(position, 0, f"a blank record has at least {BLANK_BYTES_MIN} bytes, found size {size}")
        return RecordHead(HeadKind.BLANK, size)
    if magic not in (MAGIC_V1, MAGIC_V2):
        found = "nothing but zeros" if size == 0 and magic == 0 else f"magic {magic & 0xFFFFFFFF:#010x}"
        return _corrupt(position, 0, f"expected the magic of a record, found {found}")
    if size < RECORD_BYTES_MIN:
        return _corrupt(position, 0, f"a record has at least {RECORD_BYTES_MIN} bytes, found size {size}")
    if size > available:
        return RecordHead(HeadKind.HALF, size, f"byte {position}: size {size}, but only {available} bytes are left")
    shape = (buffer[position + SYS_FLAG_LOW_BYTE_AT] & SHAPE_MASK) >> SHAPE_SHIFT
    if size < FIXED_SIZES[shape]:
        return _corrupt(position, size, f"its hosts need more than the {size} bytes of its size")
    return None


def _corrupt(position: int, size: int, reason: str) -> RecordHead:
    return RecordHead(HeadKind.CORRUPT, size, f"byte {position}: {reason}")
