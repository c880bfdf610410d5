"""What both twins of `Message` and `PutResult` share: checking values, merging properties, ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tiermq.errors import IllegalMessage
from tiermq.message.hosts import encode_host
from tiermq.message.properties import decode_properties, delete_property, encode_properties, waits_for_store

_CRC_PROPERTY = b"__CRC32#"
_INNER = b"INNER_"  # Start of every property that ties a message to its queue offset.
INNER_BATCH_FLAG = 0x80
_I32 = range(-(2**31), 2**31)
_I64 = range(-(2**63), 2**63)


def prepare_message(
    topic: object,
    body: object,
    queue_id: object,
    keys: str | Iterable[str],
    tags: str,
    properties: Mapping[str, str] | None,
    encoded_properties: bytes | None,
    flag: int,
    sys_flag: int,
    born_timestamp_ms: int,
    born_host: str | bytes,
    reconsume_times: int,
    prepared_transaction_offset: int,
) -> tuple[str, bytes, bytes, bytes, bool, bool]:
    """Check every value and give (topic, body, encoded properties, born host, waits for store, special).

    Raises IllegalMessage for what no record can hold. Sizes are not checked here: their limits belong to a store.
    """
    if type(topic) is not str or not topic:
        raise IllegalMessage(f"a topic is a non-empty str, found {topic!r}")
    if not isinstance(body, (bytes, bytearray, memoryview)):
        raise IllegalMessage(f"a body is bytes, found {type(body).__name__}")
    if type(queue_id) is not int or not 0 <= queue_id < 2**31:
        raise IllegalMessage(f"a queue id is an int from 0 to 2**31-1, found {queue_id!r}")
    if not (
        type(flag) is type(sys_flag) is type(reconsume_times) is int
        and type(born_timestamp_ms) is type(prepared_transaction_offset) is int
        and flag in _I32
        and sys_flag in _I32
        and reconsume_times in _I32
        and born_timestamp_ms in _I64
        and prepared_transaction_offset in _I64
    ):
        _check_numbers(flag, sys_flag, reconsume_times, born_timestamp_ms, prepared_transaction_offset)
    encoded = merge_properties(keys, tags, properties, encoded_properties)
    host = encode_host(born_host) if isinstance(born_host, str) else born_host
    if not isinstance(host, (bytes, bytearray, memoryview)) or len(host) not in (0, 8, 20):
        raise IllegalMessage(f"a host is text such as 1.2.3.4:5, or its 8 or 20 bytes, found {born_host!r}")
    special = bool(sys_flag & INNER_BATCH_FLAG) or _INNER in encoded
    return topic, bytes(body), encoded, bytes(host), waits_for_store(encoded), special


def _check_numbers(
    flag: int, sys_flag: int, reconsume_times: int, born_timestamp_ms: int, prepared_transaction_offset: int
) -> None:
    """Refuse what does not fit; flags of an enumeration, which are ints of their own type, do."""
    for name, value in (("flag", flag), ("sys_flag", sys_flag), ("reconsume_times", reconsume_times)):
        # Not `value not in` alone: for anything but a plain int a range is searched number by number.
        if not isinstance(value, int) or int(value) not in _I32:
            raise IllegalMessage(f"{name} must fit 32 bits, found {value!r}")
    for name, value in (
        ("born_timestamp_ms", born_timestamp_ms),
        ("prepared_transaction_offset", prepared_transaction_offset),
    ):
        if not isinstance(value, int) or int(value) not in _I64:
            raise IllegalMessage(f"{name} must fit 64 bits, found {value!r}")


def merge_properties(
    keys: str | Iterable[str], tags: str, properties: Mapping[str, str] | None, encoded: bytes | None
) -> bytes:
    """One encoded property string out of the ways to give properties."""
    if encoded is not None:
        if keys or tags or properties:
            raise IllegalMessage("give either encoded_properties or keys, tags and properties, not both")
        if not isinstance(encoded, (bytes, bytearray, memoryview)):
            raise IllegalMessage(f"encoded properties are bytes, found {type(encoded).__name__}")
        merged = bytes(encoded)
    else:
        try:
            named = dict(properties or {})
            joined = keys if isinstance(keys, str) else " ".join(keys)
        except (TypeError, ValueError) as error:
            raise IllegalMessage(f"properties are a mapping of text, keys are text: {error}") from error
        if joined:
            named["KEYS"] = joined
        if tags:
            named["TAGS"] = tags
        merged = encode_properties(named)
    if b"\0" in merged:
        # Bytes that a power cut kept from the disk read as zeros: recovery tells a torn record by them.
        raise IllegalMessage("properties hold a NUL byte: no name and no value may")
    if _CRC_PROPERTY in merged:
        # A whole-record CRC belongs to one stored record; a re-sent message must not carry the old one along.
        merged = delete_property(merged, _CRC_PROPERTY)
    return merged


def properties_of(encoded: bytes) -> dict[str, str]:
    return decode_properties(encoded)


def offset_message_id(store_host: bytes, physical_offset: int) -> str:
    """Upper-case hex of address, port and offset: 32 digits for IPv4, 56 for IPv6."""
    return (store_host + physical_offset.to_bytes(8, "big")).hex().upper()
