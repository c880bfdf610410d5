"""Messages of gRPC and of the store: what a producer sends as properties, what a consumer gets of a record.

    tag, keys, message_id          TAGS, KEYS, UNIQ_KEY            message_group     __SHARDINGKEY
    delivery_timestamp             TIMER_DELIVER_MS                type TRANSACTION  TRAN_MSG, PGROUP = the topic
    priority                       _SYS_MSG_PRIORITY_              lite_topic        __LITE_TOPIC
    born_host, born_timestamp      __BORNHOST, BORN_TIMESTAMP      trace_context     TRACE_CONTEXT

Invariants: what a client sends is checked whole before anything is stored; no property of a client has a reserved name.
A body by gzip is stored in zlib's frame, which remoting clients read; what gRPC clients get is by gzip or as it was
sent. Pure: nothing here is stored.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable
from typing import Any

from tiermq.errors import CorruptRecord, TierMQError
from tiermq.grpc.messages import (
    BESIDE_BYTES_MAX,
    DIGEST_BY_MD5,
    FILTER_BY_SQL,
    LONG_FIELDS,
    Code,
    Encoding,
    Message,
    MessageType,
    bytes_beside,
    message_class,
)
from tiermq.kernel import GrpcMessageWriter
from tiermq.message import properties as names
from tiermq.message.java_hash import java_hash
from tiermq.message.message_filter import tags_in
from tiermq.message.properties import decode_properties, encode_properties, get_property
from tiermq.message.stored_message import StoredMessage
from tiermq.message.system_flag import CompressionType, compression_type_number, is_compressed
from tiermq.message.topic_name import lite_queue, lite_topic_problem
from tiermq.settings import INT_MAX, LONG_MAX

SENT_BODY_BYTES_MAX = 4 * 1024 * 1024
PLAIN_BYTES_MAX = 16 * 1024 * 1024
"""Of a body that is decompressed."""
SHORT_BYTES_MAX = 256 * 1024
"""Of bodies that are decompressed, digested and copied on the loop; longer ones in the pool."""
USER_PROPERTIES_MAX = 128
USER_BYTES_MAX = 16 * 1024
GROUP_BYTES_MAX = 64
RECOVERY_S_MAX = 3600
AS_JAVA = "replace"
"""How bytes of a property are read that are no UTF-8, as remoting clients may send them: one such message must not keep
the others of its queue from their consumers.
"""
DIGITS_MAX = 19
"""Of a number of 63 bits."""
LITE_NAME = "__LITE_TOPIC"
BORN_HOST = "__BORNHOST"
TRACE_CONTEXT = "TRACE_CONTEXT"
ReceiveMessageResponse = message_class("ReceiveMessageResponse")
CALLED_GZIP = "__CALLED_GZIP"
"""A property of TierMQ's: the producer called the body gzip, and it is none."""
GZIP_MAGIC = b"\x1f\x8b"
ZLIB_MAGIC = b"\x78"
ZLIB_FLAG = 0x300
"""Of a record's system flag: the body is by zlib."""
_ZLIBS = (CompressionType.ZLIB, CompressionType.ZLIB_LEGACY)
RESERVED = frozenset(
    {
        value
        for name, value in vars(names).items()
        if name.isupper() and isinstance(value, str) and name not in ("KEY_SEPARATOR",)
    }
    | {
        LITE_NAME, BORN_HOST, TRACE_CONTEXT, CALLED_GZIP, "BUYER_ID", "TRANSFER_FLAG", "CORRECTION_FLAG", "MQ2_FLAG",
        "MIN_OFFSET", "MAX_OFFSET", "EXTEND_UNIQ_INFO", "MAX_RECONSUME_TIMES", "CONSUME_START_TIME", "INSTANCE_ID",
        "PROPERTY_CORRELATION_ID", "ARRIVE_TIME", "PUSH_REPLY_TIME", "__MSG_TYPE",
    }
)  # fmt: skip


APART = frozenset(
    (
        names.SHARDING_KEY, LITE_NAME, names.MESSAGE_PRIORITY, TRACE_CONTEXT, names.TIMER_DELIVER_MS,
        names.TIMER_OUT_MS, names.DLQ_ORIGIN_TOPIC, names.TRAN_MSG, names.DELAY, names.TIMER_DELAY_SEC,
        names.TIMER_DELAY_MS, CALLED_GZIP,
    )
)  # fmt: skip
"""What makes a consumer's message another than a plain one."""


class Refused(TierMQError):
    """What a call is answered in place of what it asked for."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code


def check_length(method: str, data: bytes) -> None:
    """Raises Refused for a request that would take too long to parse: bodies alone may be long."""
    if len(data) <= BESIDE_BYTES_MAX:
        return
    beside = bytes_beside(data, *LONG_FIELDS[method])
    if beside > BESIDE_BYTES_MAX:
        raise Refused(
            Code.BAD_REQUEST,
            f"expected at most {BESIDE_BYTES_MAX} bytes beside what may be long, found {beside}: split the request",
        )


def consistent_queue(text: str, queues: int) -> int:
    """The queue of a message group: the jump hash that RocketMQ's proxy uses, so that both choose the same."""
    state = java_hash(text) & 0xFFFFFFFFFFFFFFFF
    found = 0
    while True:
        state = (2862933555777941757 * state + 1) & 0xFFFFFFFFFFFFFFFF
        following = int((found + 1) / ((((state >> 33) & 0x7FFFFFFF) + 1) / 2147483648.0))
        if not 0 <= following < queues:
            return found
        found = following


def has_control(text: str) -> bool:
    return not text.isprintable() and any(ord(letter) < 32 or ord(letter) == 127 for letter in text)


def check_message(message: Any) -> None:
    """Raises Refused."""
    system, body = message.system_properties, message.body
    if not body:
        raise Refused(Code.MESSAGE_BODY_EMPTY, "message body cannot be empty")
    if len(body) > SENT_BODY_BYTES_MAX:
        raise Refused(
            Code.MESSAGE_BODY_TOO_LARGE, f"expected a body of at most {SENT_BODY_BYTES_MAX} bytes, found {len(body)}"
        )
    _check_properties(message)
    if system.HasField("born_timestamp") and not 0 <= timestamp_ms(system.born_timestamp) <= LONG_MAX:
        raise Refused(
            Code.BAD_REQUEST, f"born_timestamp: expected milliseconds of 64 bits, found {system.born_timestamp}"
        )
    if not system.message_id.strip() or has_control(system.message_id):
        raise Refused(Code.ILLEGAL_MESSAGE_ID, "message id cannot be blank")
    if system.HasField("orphaned_transaction_recovery_duration"):
        recovery_s = system.orphaned_transaction_recovery_duration.seconds
        if not 0 <= recovery_s <= RECOVERY_S_MAX:
            raise Refused(
                Code.BAD_REQUEST,
                f"orphaned_transaction_recovery_duration: expected at most {RECOVERY_S_MAX} s, found {recovery_s}",
            )
    if system.HasField("message_group"):
        group = system.message_group
        if not group.strip() or has_control(group) or len(group.encode()) >= GROUP_BYTES_MAX:
            raise Refused(
                Code.ILLEGAL_MESSAGE_GROUP,
                f"expected a message group of 1 to {GROUP_BYTES_MAX - 1} bytes without control characters, "
                f"found {group[:80]!r}",
            )
    if system.HasField("lite_topic") and (problem := lite_topic_problem(system.lite_topic)) is not None:
        raise Refused(Code.ILLEGAL_LITE_TOPIC, problem)
    if system.priority < 0:
        raise Refused(Code.BAD_REQUEST, f"priority: expected 0 or more, found {system.priority}")


def _check_properties(message: Any) -> None:
    system, total = message.system_properties, 0
    if len(message.user_properties) > USER_PROPERTIES_MAX:
        raise Refused(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"expected at most {USER_PROPERTIES_MAX} user properties, found {len(message.user_properties)}",
        )
    for name, value in message.user_properties.items():
        if name in RESERVED or not name or has_control(name) or has_control(value):
            raise Refused(
                Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
                f"expected a property that is not the system's, without control characters, found {name[:80]!r}",
            )
        total += len(name.encode()) + len(value.encode())
    if system.HasField("tag"):
        if not system.tag.strip() or "|" in system.tag or has_control(system.tag):
            raise Refused(
                Code.ILLEGAL_MESSAGE_TAG,
                f"expected a tag that is not blank, without | and control characters, found {system.tag[:80]!r}",
            )
        total += len(system.tag.encode())
    for key in system.keys:
        if not key.strip() or has_control(key):
            raise Refused(
                Code.ILLEGAL_MESSAGE_KEY,
                f"expected a key that is not blank, without control characters, found {key[:80]!r}",
            )
        total += len(key.encode())
    for name, text in ((BORN_HOST, system.born_host), (TRACE_CONTEXT, system.trace_context)):
        if has_control(text):
            raise Refused(
                Code.ILLEGAL_MESSAGE_PROPERTY_KEY, f"{name}: expected no control characters, found {text[:80]!r}"
            )
    if total > USER_BYTES_MAX:
        raise Refused(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"expected at most {USER_BYTES_MAX} bytes of properties, tag and keys, found {total}",
        )


def type_of(message: Any) -> MessageType:
    """What a message is, by what it has."""
    system = message.system_properties
    if system.message_type == MessageType.TRANSACTION:
        return MessageType.TRANSACTION
    if system.HasField("delivery_timestamp"):
        return MessageType.DELAY
    if system.HasField("message_group"):
        return MessageType.FIFO
    if system.HasField("lite_topic"):
        return MessageType.LITE
    return MessageType.PRIORITY if system.HasField("priority") else MessageType.NORMAL


def timestamp_ms(value: Any) -> int:
    return int(value.seconds) * 1000 + int(value.nanos) // 1_000_000


def set_timestamp(value: Any, time_ms: int) -> None:
    value.seconds, value.nanos = time_ms // 1000, time_ms % 1000 * 1_000_000


def properties_of(message: Any, topic: str, peer: str) -> bytes:
    """The property string of a message that was checked."""
    system = message.system_properties
    found: dict[str, str | None] = dict(message.user_properties)
    found[names.UNIQ_KEY] = system.message_id
    if system.tag:
        found[names.TAGS] = system.tag
    if system.keys:
        found[names.KEYS] = names.KEY_SEPARATOR.join(system.keys)
    if system.message_type == MessageType.TRANSACTION:
        found[names.TRAN_MSG], found[names.PGROUP] = "true", topic
        if recovery_s := system.orphaned_transaction_recovery_duration.seconds:
            found[names.CHECK_IMMUNITY_TIME_IN_SECONDS] = str(recovery_s)
    if system.HasField("delivery_timestamp"):
        found[names.TIMER_DELIVER_MS] = str(timestamp_ms(system.delivery_timestamp))
    if system.message_group:
        found[names.SHARDING_KEY] = system.message_group
    if system.lite_topic:
        found[LITE_NAME] = system.lite_topic
        if type_of(message) == MessageType.LITE:
            found[names.INNER_MULTI_DISPATCH] = lite_queue(topic, system.lite_topic)
    if system.HasField("priority"):
        found[names.MESSAGE_PRIORITY] = str(system.priority)
    if _is_called_gzip(message):
        found[CALLED_GZIP] = "true"
    if system.trace_context:
        found[TRACE_CONTEXT] = system.trace_context
    if system.HasField("born_timestamp"):
        found[names.BORN_TIMESTAMP] = str(timestamp_ms(system.born_timestamp))
    found[BORN_HOST] = system.born_host or peer
    return encode_properties(found)


def is_long_gzip(message: Any) -> bool:
    """Whether the body is by gzip, and longer than is decompressed on the loop, or damaged."""
    body = message.body
    if message.system_properties.body_encoding != Encoding.GZIP or body[:1] == ZLIB_MAGIC:
        return False
    inflating = zlib.decompressobj(wbits=31)
    try:
        inflating.decompress(body, SHORT_BYTES_MAX)
    except zlib.error:
        return True
    return not inflating.eof


def _is_called_gzip(message: Any) -> bool:
    """Whether the producer declares gzip and sends plain bytes: tests of RocketMQ do, and want them back."""
    body, encoding = message.body, message.system_properties.body_encoding
    return bool(encoding == Encoding.GZIP and body[:1] != ZLIB_MAGIC and body[:2] != GZIP_MAGIC)


def stored_body(message: Any) -> tuple[bytes, int]:
    """The body as it is stored, and its system flag. Raises Refused."""
    body: bytes = message.body
    if message.system_properties.body_encoding != Encoding.GZIP:
        return body, 0
    if _is_called_gzip(message):
        return body, 0
    if body[:1] == ZLIB_MAGIC:  # Some clients say gzip and mean zlib.
        return body, 1 | ZLIB_FLAG
    inflating, rest, total, checksum = zlib.decompressobj(wbits=31), body, 0, zlib.adler32(b"")
    try:
        while not inflating.eof and total <= PLAIN_BYTES_MAX:
            plain = inflating.decompress(rest, SHORT_BYTES_MAX)
            rest, total, checksum = inflating.unconsumed_tail, total + len(plain), zlib.adler32(plain, checksum)
            if not plain and not rest:
                break
    except zlib.error as error:
        raise Refused(Code.MESSAGE_CORRUPTED, f"expected a body by gzip, found other bytes: {error}") from error
    if not inflating.eof or total > PLAIN_BYTES_MAX:
        raise Refused(Code.MESSAGE_CORRUPTED, "expected a whole body by gzip, found a part, or one that is too long")
    start = _gzip_header_bytes(body)
    end = len(body) - len(inflating.unused_data) - 8
    return b"\x78\x9c" + body[start:end] + checksum.to_bytes(4, "big"), 1 | ZLIB_FLAG


def _gzip_header_bytes(body: bytes) -> int:
    """Where the compressed data begins in a gzip body that could be read."""
    flags, at = body[3], 10
    if flags & 4:
        at += 2 + int.from_bytes(body[at : at + 2], "little")
    for bit in (8, 16):
        if flags & bit:
            at = body.index(b"\0", at) + 1
    return at + 2 if flags & 2 else at


def given_body(message: StoredMessage) -> tuple[bytes, int]:
    """A record's body as gRPC clients read it, and its encoding."""
    if not is_compressed(message.sys_flag):
        return message.body, Encoding.IDENTITY
    if message.body[:2] == GZIP_MAGIC:
        return message.body, Encoding.GZIP
    try:
        plain = message.decompressed_body(max_bytes=PLAIN_BYTES_MAX)
    except CorruptRecord:
        return message.body, Encoding.GZIP  # Damaged, or longer than is worked on here: the client finds out.
    if compression_type_number(message.sys_flag) not in _ZLIBS:
        return plain, Encoding.IDENTITY
    tail = zlib.crc32(plain).to_bytes(4, "little") + (len(plain) & 0xFFFFFFFF).to_bytes(4, "little")
    return b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + message.body[2:-4] + tail, Encoding.GZIP


def are_long(messages: Iterable[StoredMessage]) -> bool:
    """Whether making what consumers get of these records takes too long for the loop."""
    total = 0
    for message in messages:
        total += len(message.body)
        if is_compressed(message.sys_flag) or total > SHORT_BYTES_MAX:
            return True
    return False


_HIDDEN = frozenset(name.encode() for name in RESERVED)
_WRITER = GrpcMessageWriter(_HIDDEN, frozenset(name.encode() for name in APART))
_PAGE_WRITER = GrpcMessageWriter(_HIDDEN, frozenset(name.encode() for name in (*APART, names.POP_CK, names.CRC32)))


def given_page(data: bytes, topic: bytes, handles: dict[int, bytes], tags: frozenset[str] | None) -> list[bytes] | None:
    """Records as answers of a receive, from their bytes; None if one of them is no plain one (`given_answer`), or has
    none of `tags`.
    """
    wanted = None if tags is None else frozenset(tag.encode() for tag in tags)
    return _PAGE_WRITER.write_page(topic, data, handles, wanted)


def given_answer(message: StoredMessage, topic: bytes, handle: str, attempt: int) -> bytes:
    """A record as the answer of a receive: ReceiveMessageResponse."""
    digest = hashlib.md5(message.body, usedforsecurity=False).hexdigest().upper().encode()
    plain = _WRITER.write(topic, message, digest, handle.encode(), attempt)
    if plain is not None:
        return plain
    answer = ReceiveMessageResponse()
    fill_message(answer.message, message, topic.decode(), handle=handle, attempt=attempt)
    made: bytes = answer.SerializeToString()
    return made


def text_in(message: StoredMessage, name: str) -> str | None:
    """A property, whatever bytes it has."""
    value = get_property(message.encoded_properties, name.encode())
    return None if value is None else value.decode(errors=AS_JAVA)


def wanted_tags(wanted: Any) -> frozenset[str] | None:
    """The tags that a client wants; None for all, and for another filter. The broker has compared hashes only."""
    if wanted.type == FILTER_BY_SQL or wanted.expression in ("", "*"):
        return None
    return tags_in(wanted.expression)[0]


def given_message(message: StoredMessage, topic: str, *, handle: str = "", attempt: int = 0) -> Any:
    """A record as a consumer gets it."""
    found = Message()
    fill_message(found, message, topic, handle=handle, attempt=attempt)
    return found


def fill_message(found: Any, message: StoredMessage, topic: str, *, handle: str = "", attempt: int = 0) -> None:
    """The same into a message that is there."""
    properties = decode_properties(message.encoded_properties, errors=AS_JAVA)
    found.topic.name = topic
    found.body, encoding = given_body(message)
    user, system = found.user_properties, found.system_properties
    for name, value in properties.items():
        if name not in RESERVED:
            user[name] = value
    system.body_encoding = Encoding.GZIP if CALLED_GZIP in properties else encoding
    system.body_digest.type = DIGEST_BY_MD5
    system.body_digest.checksum = hashlib.md5(found.body, usedforsecurity=False).hexdigest().upper()
    system.message_id = properties.get(names.UNIQ_KEY) or message.message_id
    system.message_type = _given_type(properties)
    if tag := properties.get(names.TAGS):
        system.tag = tag
    if keys := properties.get(names.KEYS):
        system.keys.extend(key for key in keys.split(names.KEY_SEPARATOR) if key)
    set_timestamp(system.born_timestamp, message.born_timestamp_ms)
    system.born_host = properties.get(BORN_HOST) or message.born_host
    set_timestamp(system.store_timestamp, message.store_timestamp_ms)
    system.store_host = message.store_host
    system.queue_id = message.queue_id
    system.queue_offset = message.queue_offset
    if handle:
        system.receipt_handle = handle
    if attempt:
        system.delivery_attempt = attempt
    _fill_later(system, properties)


def _fill_later(system: Any, properties: dict[str, str]) -> None:
    """What few messages have."""
    if group := properties.get(names.SHARDING_KEY):
        system.message_group = group
    if (lite := properties.get(LITE_NAME)) is not None:
        system.lite_topic = lite
    if (priority := _number(properties.get(names.MESSAGE_PRIORITY), INT_MAX)) is not None:
        system.priority = priority
    if trace := properties.get(TRACE_CONTEXT):
        system.trace_context = trace
    deliver_ms = _number(properties.get(names.TIMER_DELIVER_MS) or properties.get(names.TIMER_OUT_MS), LONG_MAX)
    if deliver_ms is not None:
        set_timestamp(system.delivery_timestamp, deliver_ms)
    if origin := properties.get(names.DLQ_ORIGIN_TOPIC):
        system.dead_letter_queue.topic = origin
        system.dead_letter_queue.message_id = properties.get(names.DLQ_ORIGIN_MESSAGE_ID, "")


def _number(text: str | None, most: int) -> int | None:
    """A property that is a number; None for what remoting clients may have written there."""
    if not text or len(text) > DIGITS_MAX or not (text.isascii() and text.isdigit()):
        return None
    return number if (number := int(text)) <= most else None


def _given_type(properties: dict[str, str]) -> MessageType:
    if properties.get(names.TRAN_MSG) == "true":
        return MessageType.TRANSACTION
    if any(
        name in properties
        for name in (names.DELAY, names.TIMER_DELIVER_MS, names.TIMER_DELAY_SEC, names.TIMER_DELAY_MS)
    ):
        return MessageType.DELAY
    if names.SHARDING_KEY in properties:
        return MessageType.FIFO
    if LITE_NAME in properties:
        return MessageType.LITE
    return MessageType.PRIORITY if names.MESSAGE_PRIORITY in properties else MessageType.NORMAL
