"""Client batches and inner batches: several messages in one send request, or in one record.

    0      4       8     12     16        20
    +------+-------+-----+------+---------+------+------------+------------+
    | size | magic | crc | flag | bodyLen | body | propLen i16| properties |   repeated, big-endian
    +------+-------+-----+------+---------+------+------------+------------+

Clients write 0 as magic and crc; they are kept but not checked. Fields that the whole batch shares (topic, queue,
SYSFLAG, hosts, times) are in the request's header. The store writes a record for each element. The same bytes
are the body of an inner batch.

Inner batch: many messages of a batch queue stored as one record. SYSFLAG has NEED_UNWRAP and INNER_BATCH; INNER_NUM is
the number of messages and INNER_BASE the queue offset of the first one. Message i has queue offset base + i.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

from tiermq.errors import CorruptRecord, IllegalMessage
from tiermq.message import crc
from tiermq.message.layout import PROPERTIES_BYTES_MAX, PROPERTIES_LENGTH, RECORD_BYTES_MAX
from tiermq.message.properties import INNER_BASE, INNER_NUM, get_property, with_property
from tiermq.message.stored_message import StoredMessage
from tiermq.message.system_flag import INNER_BATCH, NEED_UNWRAP, is_inner_batch, without_compression
from tiermq.settings import LONG_MAX

BATCH_ELEMENTS_MAX = 8_192
"""Messages of a batch that a broker takes: it stores all of them before it serves another request."""
ELEMENT_HEAD = struct.Struct(
    ">"
    "i"  # size         of the whole element
    "i"  # magic        0
    "i"  # crc          0
    "i"  # flag         the user's
    "i"  # body_length
)
ELEMENT_OVERHEAD_BYTES = ELEMENT_HEAD.size + PROPERTIES_LENGTH.size
assert ELEMENT_OVERHEAD_BYTES == 22


@dataclass(frozen=True, slots=True)
class BatchElement:
    """One message of a client's batch."""

    flag: int
    body: bytes
    encoded_properties: bytes
    magic: int = 0
    body_crc: int = 0


def encode_client_batch(elements: Iterable[BatchElement]) -> bytes:
    """The body of a batch request. Raises IllegalMessage for an element that the format cannot hold."""
    pieces: list[bytes] = []
    for number, element in enumerate(elements):
        properties_length = len(element.encoded_properties)
        size = ELEMENT_OVERHEAD_BYTES + len(element.body) + properties_length
        if properties_length > PROPERTIES_BYTES_MAX:
            raise IllegalMessage(
                f"batch element {number}: properties of {properties_length} bytes, more than {PROPERTIES_BYTES_MAX}"
            )
        if size > RECORD_BYTES_MAX:
            raise IllegalMessage(f"batch element {number}: {size} bytes do not fit one message")
        try:
            head = ELEMENT_HEAD.pack(size, element.magic, element.body_crc, element.flag, len(element.body))
        except struct.error as error:
            raise IllegalMessage(f"batch element {number}: flag {element.flag!r} is not a 32-bit integer") from error
        pieces += (head, element.body, PROPERTIES_LENGTH.pack(properties_length), element.encoded_properties)
    return b"".join(pieces)


def has_more_elements(data: bytes, most: int) -> bool:
    """Whether a body has more than `most` elements, without decoding them. False for an invalid batch."""
    position, count = 0, 0
    while count <= most and position + ELEMENT_OVERHEAD_BYTES <= len(data):
        size = int.from_bytes(data[position : position + 4], "big", signed=True)
        if size < ELEMENT_OVERHEAD_BYTES:
            return False
        position += size
        count += 1
    return count > most


def largest_properties(data: bytes) -> int:
    """The size of the largest properties of a body's elements, without decoding them; 0 for an invalid batch."""
    position, most = 0, 0
    while position + ELEMENT_OVERHEAD_BYTES <= len(data):
        size, _, _, _, body_length = ELEMENT_HEAD.unpack_from(data, position)
        if size < ELEMENT_OVERHEAD_BYTES:
            return most
        most = max(most, size - ELEMENT_OVERHEAD_BYTES - max(0, body_length))
        position += size
    return most


def decode_client_batch(data: bytes) -> list[BatchElement]:
    """The elements of a batch body; [] for an empty one. Raises CorruptRecord unless the bytes add up exactly."""
    elements: list[BatchElement] = []
    position = 0
    end = len(data)
    while position < end:
        element, position = _decode_element(data, position, end)
        elements.append(element)
    return elements


def _decode_element(data: bytes, position: int, end: int) -> tuple[BatchElement, int]:
    rest = end - position
    if rest < ELEMENT_OVERHEAD_BYTES:
        raise _damaged(position, f"expected at least {ELEMENT_OVERHEAD_BYTES} bytes, found {rest}")
    size, magic, crc, flag, body_length = ELEMENT_HEAD.unpack_from(data, position)
    if not ELEMENT_OVERHEAD_BYTES <= size <= rest:
        raise _damaged(position, f"size {size} is not between {ELEMENT_OVERHEAD_BYTES} and the {rest} bytes left")
    if not 0 <= body_length <= size - ELEMENT_OVERHEAD_BYTES:
        raise _damaged(position, f"body length {body_length} does not fit size {size}")
    body_at = position + ELEMENT_HEAD.size
    properties_at = body_at + body_length + PROPERTIES_LENGTH.size
    (properties_length,) = PROPERTIES_LENGTH.unpack_from(data, body_at + body_length)
    if properties_length != size - ELEMENT_OVERHEAD_BYTES - body_length:
        raise _damaged(
            position, f"property length {properties_length} and body length {body_length} do not make {size}"
        )
    body = bytes(data[body_at : body_at + body_length])
    properties = bytes(data[properties_at : position + size])
    return BatchElement(flag, body, properties, magic, crc), position + size


def _damaged(position: int, reason: str) -> CorruptRecord:
    return CorruptRecord(f"batch element at byte {position}: {reason}; the whole batch is refused")


_NUM_MAX = 32767  # A batch unit keeps the number in 16 bits.


def inner_num(encoded_properties: bytes) -> int | None:
    """INNER_NUM, the number of messages in the record. Raises CorruptRecord if it is invalid."""
    return _number(encoded_properties, INNER_NUM, _NUM_MAX)


def inner_base(encoded_properties: bytes) -> int | None:
    """INNER_BASE, the queue offset of the first message. Raises CorruptRecord if it is invalid."""
    return _number(encoded_properties, INNER_BASE, LONG_MAX)


def inner_span(encoded_properties: bytes, queue_offset: int) -> tuple[int, int]:
    """Base offset and count for a batch unit: from the properties if both exist, else one message."""
    base = inner_base(encoded_properties)
    count = inner_num(encoded_properties)
    if base is None or count is None:
        return queue_offset, 1
    return base, count


def with_inner_num(encoded_properties: bytes, count: int) -> bytes:
    return with_property(encoded_properties, INNER_NUM, str(count))


def with_inner_base(encoded_properties: bytes, base: int) -> bytes:
    return with_property(encoded_properties, INNER_BASE, str(base))


def unwrap_inner_batch(message: StoredMessage) -> list[StoredMessage]:
    """The messages inside `message`; `[message]` when it is not an inner batch.

    Each has its own flag, body, properties and queue offset; everything else, and the offset in the commit log, is the
    record's. Raises CorruptRecord if the body is damaged or its number of messages is not INNER_NUM.
    """
    if not is_inner_batch(message.sys_flag):
        return [message]
    elements = decode_client_batch(message.decompressed_body())
    base, count = inner_span(message.encoded_properties, message.queue_offset)
    if inner_num(message.encoded_properties) is not None and count != len(elements):
        raise CorruptRecord(
            f"inner batch of topic {message.topic!r} at physical offset {message.physical_offset}: "
            f"INNER_NUM is {count} messages, its body has {len(elements)}"
        )
    sys_flag = without_compression(message.sys_flag) & ~(NEED_UNWRAP | INNER_BATCH)
    return [
        StoredMessage(
            topic=message.topic,
            body=element.body,
            encoded_properties=element.encoded_properties,
            version=message.version,
            size=message.size,
            body_crc=crc.body_crc(element.body),
            queue_id=message.queue_id,
            flag=element.flag,
            queue_offset=base + index,
            physical_offset=message.physical_offset,
            sys_flag=sys_flag,
            born_timestamp_ms=message.born_timestamp_ms,
            born_address=message.born_address,
            born_port=message.born_port,
            store_timestamp_ms=message.store_timestamp_ms,
            store_address=message.store_address,
            store_port=message.store_port,
            reconsume_times=message.reconsume_times,
            prepared_transaction_offset=message.prepared_transaction_offset,
        )
        for index, element in enumerate(elements)
    ]


def _number(encoded_properties: bytes, name: str, maximum: int) -> int | None:
    value = get_property(encoded_properties, name.encode())
    if value is None:
        return None
    if not value.isdigit() or len(value) > 19 or int(value) > maximum:
        raise CorruptRecord(f"property {name}: expected a number of 0..{maximum}, found {value!r}")
    return int(value)
