"""The property string: `name 0x01 value 0x02`, repeated.

Reading follows RocketMQ: split on 0x02 (the last one may be missing); an entry counts only if its first 0x01 leaves a
name before and a value behind; of equal names the last one wins. So an empty value can be written, and is dropped
when read. Writing is stricter than RocketMQ: text that contains a separator is refused, because it would be read
back as something else.

The bytes are UTF-8. A Java broker copies the properties of a client's batch unchecked, so other bytes may occur;
`get_property` returns them unchanged, and `decode_properties` refuses them unless `errors` replaces them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from tiermq.errors import CorruptRecord, IllegalMessage

NAME_VALUE_SEPARATOR = b"\x01"
PROPERTY_SEPARATOR = b"\x02"

KEYS = "KEYS"
TAGS = "TAGS"
WAIT = "WAIT"
DELAY = "DELAY"
UNIQ_KEY = "UNIQ_KEY"
REAL_TOPIC = "REAL_TOPIC"
REAL_QID = "REAL_QID"
RETRY_TOPIC = "RETRY_TOPIC"
TRAN_MSG = "TRAN_MSG"
PGROUP = "PGROUP"
TRAN_PREPARED_QUEUE_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
TRANSACTION_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
CHECK_IMMUNITY_TIME_IN_SECONDS = "CHECK_IMMUNITY_TIME_IN_SECONDS"
TRANSACTION_ID = "__transactionId__"
INNER_NUM = "INNER_NUM"
INNER_BASE = "INNER_BASE"
INNER_MULTI_DISPATCH = "INNER_MULTI_DISPATCH"
MESSAGE_PRIORITY = "_SYS_MSG_PRIORITY_"
INNER_MULTI_QUEUE_OFFSET = "INNER_MULTI_QUEUE_OFFSET"
TIERMQ_SENDER = "TIERMQ_SENDER"
"""Of a half message: the account that sent it. Only it, or one that may read the topic, gets transaction checks."""
TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
TIMER_DELAY_MS = "TIMER_DELAY_MS"
TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
TIMER_OUT_MS = "TIMER_OUT_MS"
TIMER_ENQUEUE_MS = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS = "TIMER_DEQUEUE_MS"
TIMER_ROLL_TIMES = "TIMER_ROLL_TIMES"
TIMER_DEL_UNIQKEY = "TIMER_DEL_UNIQKEY"
CLUSTER = "CLUSTER"
DUP_INFO = "DUP_INFO"
CRC32 = "__CRC32#"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
RECONSUME_TIME = "RECONSUME_TIME"
MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
MSG_REGION = "MSG_REGION"
TRACE_ON = "TRACE_ON"
MSG_TYPE = "MSG_TYPE"
CORRELATION_ID = "CORRELATION_ID"
REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
TTL = "TTL"
POP_CK = "POP_CK"
FIRST_POP_TIME = "1ST_POP_TIME"
GIVEN_BACK = "TIERMQ_GIVEN_BACK"
"""Of a copy that came back to a POP group: group, topic, queue, start offset and pop time of the check point, and the
message's offset."""
SHARDING_KEY = "__SHARDINGKEY"
INSTANCE_ID = "INSTANCE_ID"
BORN_TIMESTAMP = "BORN_TIMESTAMP"
DLQ_ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"

KEY_SEPARATOR = " "


def encode_properties(properties: Mapping[str, str | None]) -> bytes:
    """The property string of a mapping, in its order; entries whose value is None are left out."""
    pieces: list[str] = []
    for name, value in properties.items():
        if value is None:
            continue
        if not isinstance(name, str) or not isinstance(value, str):
            raise IllegalMessage(f"property names and values are text, found {name!r}: {value!r}")
        if not name:
            raise IllegalMessage(f"a property needs a name; the value without one is {value!r}")
        if "\x01" in name or "\x02" in name or "\x01" in value or "\x02" in value:
            raise IllegalMessage(
                f"property {name!r}: the characters 0x01 and 0x02 separate properties and cannot be part of {value!r}"
            )
        pieces.append(f"{name}\x01{value}\x02")
    try:
        return "".join(pieces).encode()
    except UnicodeEncodeError as error:
        raise IllegalMessage(f"properties must be encodable as UTF-8: {error}") from error


def decode_properties(encoded: bytes, *, errors: str = "strict") -> dict[str, str]:
    """All properties of a property string.

    Raises CorruptRecord when the bytes are not UTF-8, unless `errors` names a codec error handler ("replace" reads as
    Java does, "backslashreplace" is for display).
    """
    try:
        text = encoded.decode("utf-8", errors)
    except UnicodeDecodeError as error:
        raise CorruptRecord(
            f"property string of {len(encoded)} bytes: expected UTF-8, found {error.reason} at byte {error.start}; "
            "read single properties as bytes with get_property"
        ) from error
    properties: dict[str, str] = {}
    for piece in text.split("\x02"):
        name, _, value = piece.partition("\x01")
        if name and value:
            properties[name] = value
    return properties


def get_property(encoded: bytes | bytearray, name: bytes) -> bytes | None:
    """The value that `decode_properties` would give for `name`, without decoding all properties. None if absent."""
    needle = _needle(name)
    if needle is None:
        return None
    end = len(encoded)
    # From the back, because the last of equal names wins; an empty value does not count.
    while (at := encoded.rfind(needle, 0, end)) >= 0:
        start = at + len(needle)
        stop = encoded.find(b"\x02", start)
        value = encoded[start:] if stop < 0 else encoded[start:stop]
        if value:
            return bytes(value)
        end = at
    if encoded.startswith(needle[1:]):
        start = len(needle) - 1
        stop = encoded.find(b"\x02", start)
        return bytes(encoded[start:] if stop < 0 else encoded[start:stop]) or None
    return None


@lru_cache(maxsize=1024)
def _needle(name: bytes) -> bytes | None:
    """What precedes the value of `name` anywhere but at the start; None for an invalid name."""
    if not name or NAME_VALUE_SEPARATOR in name or PROPERTY_SEPARATOR in name:
        return None
    return PROPERTY_SEPARATOR + name + NAME_VALUE_SEPARATOR


def get_text_property(encoded: bytes | bytearray, name: str) -> str | None:
    """`get_property` as text. Raises CorruptRecord when the value is not UTF-8."""
    value = get_property(encoded, name.encode())
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise CorruptRecord(
            f"property {name}: expected UTF-8, found {len(value)} other bytes ({error.reason})"
        ) from error


def delete_property(encoded: bytes, name: bytes) -> bytes:
    """The property string without any entry called `name`, whatever its value; all other bytes stay unchanged."""
    if not name or name not in encoded:
        return encoded
    head = name + NAME_VALUE_SEPARATOR
    pieces = encoded.split(PROPERTY_SEPARATOR)
    # Each entry is removed with the separator that ends it; the last one may have none.
    entries = [piece + PROPERTY_SEPARATOR for piece in pieces[:-1]]
    entries.append(pieces[-1])
    return b"".join(entry for entry in entries if not entry.startswith(head))


def with_property(encoded: bytes, name: str, value: str) -> bytes:
    """The property string with `name` set to `value` as its last entry, and any older entry of that name removed."""
    without = delete_property(encoded, name.encode())
    if without and not without.endswith(PROPERTY_SEPARATOR):
        without += PROPERTY_SEPARATOR
    return without + encode_properties({name: value})


def without_light_queues(encoded: bytes) -> bytes:
    """The property string of a copy for a retry or dead-letter topic: no light queue gets the message again."""
    return delete_property(delete_property(encoded, INNER_MULTI_DISPATCH.encode()), INNER_MULTI_QUEUE_OFFSET.encode())


def join_properties(first: bytes, second: bytes) -> bytes:
    """Two encoded strings as one; where both name a property, the second's value counts, since later ones win."""
    if not first or not second or first.endswith(b"\x02"):
        return first + second
    return first + b"\x02" + second


def waits_for_store(encoded: bytes | bytearray) -> bool:
    """Whether the producer waits for flush and replicas: WAIT is absent or "true" in any case."""
    value = get_property(encoded, b"WAIT")
    return value is None or value.lower() == b"true"


def index_keys(unique_key: str | None, keys: str | None) -> tuple[str, ...]:
    """The indexed keys of a record: its unique key first, then each key of its KEYS property."""
    pieces = [piece for piece in keys.split(" ") if piece] if keys else []
    return (unique_key, *pieces) if unique_key else tuple(pieces)
