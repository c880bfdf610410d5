"""The inner batch: many messages of a batch queue kept as one record.

The record's body has the bytes of a client batch; SYSFLAG has NEED_UNWRAP and INNER_BATCH; INNER_NUM says how many
messages there are and INNER_BASE which queue offset the first one has. Message i has queue offset base + i.
"""

from __future__ import annotations

from tiermq.errors import CorruptRecord
from tiermq.message import crc
from tiermq.message.client_batch import decode_client_batch
from tiermq.message.properties import INNER_BASE, INNER_NUM, get_property, with_property
from tiermq.message.stored_message import StoredMessage
from tiermq.message.system_flag import INNER_BATCH, NEED_UNWRAP, is_inner_batch, without_compression

_NUM_MAX = 32767  # A batch unit keeps the number in 16 bits.
_BASE_MAX = (1 << 63) - 1


def inner_num(encoded_properties: bytes) -> int | None:
    """How many messages the record says it holds. Raises CorruptRecord if that is no such number."""
    return _number(encoded_properties, INNER_NUM, _NUM_MAX)


def inner_base(encoded_properties: bytes) -> int | None:
    """The queue offset of the first message. Raises CorruptRecord if that is no such number."""
    return _number(encoded_properties, INNER_BASE, _BASE_MAX)


def inner_span(encoded_properties: bytes, queue_offset: int) -> tuple[int, int]:
    """Base offset and count for a batch unit: from the properties if both are there, else one message."""
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
    """The messages inside `message`; the message itself, alone, when it is no inner batch.

    Each has its own flag, body and properties and its own queue offset; everything else, and the place in the commit
    log, is the record's. Raises CorruptRecord if the body is damaged or holds another number than INNER_NUM says.
    """
    if not is_inner_batch(message.sys_flag):
        return [message]
    elements = decode_client_batch(message.decompressed_body())
    base, count = inner_span(message.encoded_properties, message.queue_offset)
    if inner_num(message.encoded_properties) is not None and count != len(elements):
        raise CorruptRecord(
            f"inner batch of topic {message.topic!r} at physical offset {message.physical_offset}: "
            f"INNER_NUM says {count} messages, its body holds {len(elements)}"
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
