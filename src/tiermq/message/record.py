"""Whole records: values to bytes and back. The layout is in `layout.py`.

This is the reference: the kernel's encoder must write the same bytes. Decoding is strict; damage raises CorruptRecord
with the reason and the position, and a decoded message encodes to the same bytes again.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator, Mapping

from tiermq.errors import CorruptRecord, IllegalMessage
from tiermq.message import crc
from tiermq.message.hosts import encode_host
from tiermq.message.layout import (
    FIXED_FIELDS,
    FIXED_PARTS,
    FIXED_SIZES,
    HOST_V6_BYTES,
    MAGIC_OF_VERSION,
    MAGIC_V1,
    MAGIC_V2,
    PORT_MAX,
    PROPERTIES_BYTES_MAX,
    PROPERTIES_LENGTH,
    RECORD_BYTES_MAX,
    RECORD_BYTES_MIN,
    SHAPE_MASK,
    SHAPE_SHIFT,
    SYS_FLAG_LOW_BYTE_AT,
    TOPIC_BYTES_MAX_V1,
    TOPIC_BYTES_MAX_V2,
    TOPIC_LENGTH_V1,
    TOPIC_LENGTH_V2,
    ReadableBuffer,
    RecordVersion,
    record_size,
)
from tiermq.message.properties import PROPERTY_SEPARATOR, delete_property, encode_properties
from tiermq.message.record_head import HeadKind, RecordHead, read_head
from tiermq.message.stored_message import StoredMessage
from tiermq.message.system_flag import with_host_shapes

__all__ = [
    "CrcPropertyCheck",
    "HeadKind",
    "RecordHead",
    "StoredMessage",
    "choose_version",
    "decode_record",
    "decode_records",
    "encode_record",
    "read_head",
    "reencode",
]


class CrcPropertyCheck(enum.Enum):
    """How decoding treats the whole-record CRC property."""

    IGNORE = 0  # For records whose physical offset was rewritten, which makes the property stale.
    IF_PRESENT = 1
    REQUIRE = 2  # A record without it is corrupt (RocketMQ's forceVerifyPropCRC).


def choose_version(topic_bytes: int) -> RecordVersion:
    """V2 when the topic's length needs a second byte.

    RocketMQ compares the number of characters instead, so 100 Chinese ones would make it write an unreadable record.
    For every legal topic name both rules agree.
    """
    return RecordVersion.V1 if topic_bytes <= TOPIC_BYTES_MAX_V1 else RecordVersion.V2


def encode_record(
    *,
    topic: str,
    body: bytes,
    queue_id: int = 0,
    flag: int = 0,
    queue_offset: int = 0,
    physical_offset: int = 0,
    sys_flag: int = 0,
    born_timestamp_ms: int = 0,
    born_host: str = "127.0.0.1:0",
    store_timestamp_ms: int = 0,
    store_host: str = "127.0.0.1:0",
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
    properties: bytes | Mapping[str, str | None] = b"",
    version: RecordVersion | None = None,
    body_crc: int | None = None,
    crc_property: bool = False,
) -> bytes:
    """One record.

    `properties` is an encoded property string, written unchanged, or a mapping, whose CRC property is dropped: only the
    store may set one, or a client could make its message look damaged. `version` and `body_crc` are computed
    unless given. The host bits of `sys_flag` are set and cleared by the hosts. With `crc_property` an older CRC
    property is removed and a new one ends the record. Raises IllegalMessage for values that no record can hold.
    """
    topic_raw = _encode_topic(topic)
    if version is None:
        version = choose_version(len(topic_raw))
    if isinstance(properties, bytes):
        properties_raw = properties
    else:
        properties_raw = delete_property(encode_properties(properties), crc.CRC_PROPERTY_NAME)
    if crc_property:
        properties_raw = _make_room_for_crc_property(properties_raw)
    born = encode_host(born_host)
    store = encode_host(store_host)
    sys_flag = with_host_shapes(sys_flag, born_v6=len(born) == HOST_V6_BYTES, store_v6=len(store) == HOST_V6_BYTES)
    size = record_size(len(body), len(topic_raw), len(properties_raw), sys_flag, version)
    _check_lengths(size, len(topic_raw), len(properties_raw), version)
    values = (
        size, MAGIC_OF_VERSION[version], crc.body_crc(body) if body_crc is None else body_crc,
        queue_id, flag, queue_offset, physical_offset, sys_flag,
        born_timestamp_ms, born[:-4], int.from_bytes(born[-4:], "big"),
        store_timestamp_ms, store[:-4], int.from_bytes(store[-4:], "big"),
        reconsume_times, prepared_transaction_offset, len(body),
    )  # fmt: skip
    try:
        head = FIXED_PARTS[(sys_flag & SHAPE_MASK) >> SHAPE_SHIFT].pack(*values)
    except struct.error as error:
        fields = dict(zip(FIXED_FIELDS, values, strict=True))
        raise IllegalMessage(f"topic {topic!r}: a field is no integer or out of range ({error}): {fields}") from error
    topic_length = (TOPIC_LENGTH_V1 if version is RecordVersion.V1 else TOPIC_LENGTH_V2).pack(len(topic_raw))
    properties_length = PROPERTIES_LENGTH.pack(len(properties_raw))
    record = bytearray().join((head, body, topic_length, topic_raw, properties_length, properties_raw))
    assert len(record) == size
    if crc_property:
        crc.seal_crc_property(record)
    return bytes(record)


def _encode_topic(topic: str) -> bytes:
    try:
        return topic.encode()
    except UnicodeEncodeError as error:
        raise IllegalMessage(f"topic {topic!r} cannot be encoded as UTF-8: {error}") from error


def _make_room_for_crc_property(properties: bytes) -> bytes:
    """`properties` without an older CRC property, and 20 bytes at the end for the new one."""
    properties = delete_property(properties, crc.CRC_PROPERTY_NAME)
    if properties and not properties.endswith(PROPERTY_SEPARATOR):
        properties += PROPERTY_SEPARATOR
    return properties + bytes(crc.CRC_PROPERTY_BYTES)


def _check_lengths(size: int, topic_bytes: int, properties_bytes: int, version: RecordVersion) -> None:
    topic_max = TOPIC_BYTES_MAX_V1 if version is RecordVersion.V1 else TOPIC_BYTES_MAX_V2
    if topic_bytes > topic_max:
        raise IllegalMessage(f"the topic takes {topic_bytes} bytes; a {version.name} record holds {topic_max}")
    if properties_bytes > PROPERTIES_BYTES_MAX:
        raise IllegalMessage(
            f"properties of {properties_bytes} bytes, more than {PROPERTIES_BYTES_MAX}; use the body for large values"
        )
    if size > RECORD_BYTES_MAX:
        raise IllegalMessage(f"the record would take {size} bytes, more than {RECORD_BYTES_MAX}")


def reencode(message: StoredMessage, *, topic: str | None = None, properties: bytes | None = None) -> bytes:
    """The bytes that `message` was decoded from, including a CRC property in its property string.

    `topic` and `properties` replace the message's; everything else stays unchanged.
    """
    return encode_record(
        topic=message.topic if topic is None else topic,
        body=message.body,
        queue_id=message.queue_id,
        flag=message.flag,
        queue_offset=message.queue_offset,
        physical_offset=message.physical_offset,
        sys_flag=message.sys_flag,
        born_timestamp_ms=message.born_timestamp_ms,
        born_host=message.born_host,
        store_timestamp_ms=message.store_timestamp_ms,
        store_host=message.store_host,
        reconsume_times=message.reconsume_times,
        prepared_transaction_offset=message.prepared_transaction_offset,
        properties=message.encoded_properties if properties is None else properties,
        version=message.version if topic is None else None,
        body_crc=message.body_crc,
    )


def decode_record(
    buffer: ReadableBuffer,
    position: int = 0,
    *,
    check_crc: bool = True,
    expect_physical_offset: int | None = None,
    crc_property: CrcPropertyCheck = CrcPropertyCheck.IF_PRESENT,
) -> StoredMessage:
    """The record that starts at `position`; more bytes may follow it. All values are copies.

    Raises CorruptRecord on any damage. Without `check_crc` neither the body's CRC nor the CRC property is checked.
    """
    rest = len(buffer) - position
    if position < 0 or rest < RECORD_BYTES_MIN:
        raise _explain(buffer, position)
    shape = (buffer[position + SYS_FLAG_LOW_BYTE_AT] & SHAPE_MASK) >> SHAPE_SHIFT
    body_at = position + FIXED_SIZES[shape]
    if body_at > len(buffer):
        raise _explain(buffer, position)
    # fmt: off
    (
        size, magic, body_crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_ms, born_address,
        born_port, store_ms, store_address, store_port, reconsume_times, prepared_offset, body_length,
    ) = FIXED_PARTS[shape].unpack_from(buffer, position)
    # fmt: on
    end = position + size
    topic_at = body_at + body_length + (1 if magic == MAGIC_V1 else 2)
    # One chain for the valid case; `_explain` finds the failed check.
    if (
        (magic != MAGIC_V1 and magic != MAGIC_V2)
        or size > rest
        or body_length < 0
        or topic_at + 2 > end
        or born_port > PORT_MAX
        or store_port > PORT_MAX
    ):
        raise _explain(buffer, position)
    body = bytes(buffer[body_at : body_at + body_length])
    if magic == MAGIC_V1:
        version = RecordVersion.V1
        topic_length = buffer[topic_at - 1]
    else:
        version = RecordVersion.V2
        topic_length = (buffer[topic_at - 2] << 8) | buffer[topic_at - 1]
    properties_at = topic_at + topic_length + 2
    # A length whose sign bit is set is damage, even where it would add up.
    if topic_length > (TOPIC_BYTES_MAX_V1 if magic == MAGIC_V1 else TOPIC_BYTES_MAX_V2) or properties_at > end:
        raise _explain(buffer, position)
    properties_length = (buffer[properties_at - 2] << 8) | buffer[properties_at - 1]
    if properties_length > PROPERTIES_BYTES_MAX or properties_at + properties_length != end:
        raise _explain(buffer, position)
    try:
        topic = str(buffer[topic_at : topic_at + topic_length], "utf-8")
    except UnicodeDecodeError as error:
        raise _damaged(position, f"expected a topic in UTF-8, found {len(error.object)} bytes that are none") from error
    encoded_properties = bytes(buffer[properties_at:end])

    if expect_physical_offset is not None and physical_offset != expect_physical_offset:
        raise _damaged(position, f"expected physical offset {expect_physical_offset}, found {physical_offset}")
    if check_crc:
        if crc.crc32(body) & 0x7FFFFFFF != body_crc:
            raise _damaged(position, f"body CRC: the record has {body_crc}, its body gives {crc.body_crc(body)}")
        if crc_property is not CrcPropertyCheck.IGNORE:
            _check_crc_property(buffer, position, end, encoded_properties, crc_property)
    return StoredMessage(
        topic, body, encoded_properties, version, size, body_crc, queue_id, flag, queue_offset, physical_offset,
        sys_flag, born_ms, born_address, born_port, store_ms, store_address, store_port, reconsume_times,
        prepared_offset,
    )  # fmt: skip


def decode_records(
    buffer: ReadableBuffer,
    *,
    check_crc: bool = True,
    crc_property: CrcPropertyCheck = CrcPropertyCheck.IF_PRESENT,
) -> Iterator[StoredMessage]:
    """The records that fill `buffer`, one after the other. Raises CorruptRecord at the first that is damaged."""
    position = 0
    while position < len(buffer):
        message = decode_record(buffer, position, check_crc=check_crc, crc_property=crc_property)
        yield message
        position += message.size


def _check_crc_property(
    buffer: ReadableBuffer, position: int, end: int, properties: bytes, check: CrcPropertyCheck
) -> None:
    if not crc.has_crc_property(properties):
        if check is CrcPropertyCheck.REQUIRE:
            raise _damaged(position, "expected a CRC property at its end, found none")
        return
    if not crc.verify_crc_property(buffer[position:end]):
        raise _damaged(position, "its CRC property does not agree with its bytes")


def _explain(buffer: ReadableBuffer, position: int) -> CorruptRecord:
    """The reason why the record at `position` was refused, from `read_head`."""
    if position < 0:
        return _damaged(position, "a buffer starts at byte 0")
    head = read_head(buffer, position)
    if head.kind is HeadKind.OK:  # The scan does not check ports.
        return _damaged(position, f"a host's port is above {PORT_MAX}")
    if head.kind is HeadKind.BLANK:
        return _damaged(position, f"expected a message, found a blank record of size {head.size} (the end of a file)")
    return CorruptRecord(f"record at {head.reason}")


def _damaged(position: int, reason: str) -> CorruptRecord:
    return CorruptRecord(f"record at byte {position}: {reason}")
