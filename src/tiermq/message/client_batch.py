"""The classic batch: several messages in the body of one send request.

    0      4       8     12     16        20
    +------+-------+-----+------+---------+------+------------+------------+
    | size | magic | crc | flag | bodyLen | body | propLen i16| properties |   repeated, big-endian
    +------+-------+-----+------+---------+------+------------+------------+

Clients write 0 as magic and crc and nobody reads them, so they are carried but not judged. Everything that a whole
batch shares (topic, queue, SYSFLAG, hosts, times) is in the request's header. The store makes a record of each
element. The same bytes are the body of an inner batch.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

from tiermq.errors import CorruptRecord, IllegalMessage
from tiermq.message.layout import PROPERTIES_BYTES_MAX, PROPERTIES_LENGTH, RECORD_BYTES_MAX

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
    """Whether a body has more than `most` elements, without decoding them. What is no batch has not."""
    position, count = 0, 0
    while count <= most and position + ELEMENT_OVERHEAD_BYTES <= len(data):
        size = int.from_bytes(data[position : position + 4], "big", signed=True)
        if size < ELEMENT_OVERHEAD_BYTES:
            return False
        position += size
        count += 1
    return count > most


def decode_client_batch(data: bytes) -> list[BatchElement]:
    """The elements of a batch body; none of an empty one. Raises CorruptRecord unless the bytes add up exactly."""
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
