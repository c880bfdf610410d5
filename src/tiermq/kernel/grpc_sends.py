"""GrpcSendReader: a SendMessage request of gRPC with one plain message, from its bytes to a send of the fast path.

    protobuf bytes ─► one message, of known fields, printable ASCII, nothing that defers or orders it ─► SendRequest
                  └─► None: the general path, which parses by protobuf, checks, and answers what is wrong

A plain message has a topic, an id and a body, and may have tag, keys, user properties, trace context, and who made it
when. Contract of both twins: the properties are those that the general path makes (`broker/grpc/grpc_message.py`), user
properties in the order in which they came; a request that the general path would refuse, or would store in another way,
is None. `grpc_send_answer` is what protobuf makes of the answer for one stored message.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tiermq.kernel.frame_reader import SendRequest

GRPC_SEND_CODE = 310
"""SEND_MESSAGE_V2."""
GRPC_STATUS_OK = b"\x08\xa0\x9c\x01\x12\x02OK"
PARTS_MAX = 16
"""Keys, or user properties, of a plain message."""
SECONDS_MAX = 100_000_000_000
NUMBER_MAX = 64
"""Of a field."""
_PLAIN = re.compile(rb"(?=.*[!-~])[ -~]+\Z", re.DOTALL)
_NUMBERS = frozenset((5, 6, 13))
"""Of a message's system properties that are numbers: encoding, type, queue."""
_PARTS = frozenset((1, 2, 3, 4, 7, 8, 18))


class _NotPlain(Exception):
    pass


class GrpcSendReader:
    """See the module. `reserved`: names that user properties cannot have."""

    __slots__ = ("_body_bytes_max", "_reserved", "_user_bytes_max")

    def __init__(self, reserved: frozenset[bytes], user_bytes_max: int, body_bytes_max: int) -> None:
        self._reserved = reserved
        self._user_bytes_max = user_bytes_max
        self._body_bytes_max = body_bytes_max

    def read(self, data: bytes, peer: bytes, now_ms: int) -> tuple[SendRequest, bytes] | None:
        """The send, without a queue, and the message's id; None for one that needs the general path.

        `peer` is where the message was made unless it names that itself, `now_ms` when.
        """
        try:
            return self._read(data, peer, now_ms)
        except _NotPlain:
            return None

    def _read(self, data: bytes, peer: bytes, now_ms: int) -> tuple[SendRequest, bytes]:
        [(number, message)] = _some(_fields(data), 1)
        _require(number == 1 and isinstance(message, bytes))
        once: dict[int, bytes] = {}
        user: dict[bytes, bytes] = {}
        assert isinstance(message, bytes)
        for number, part in _fields(message):
            _require(isinstance(part, bytes) and 1 <= number <= 4)
            assert isinstance(part, bytes)
            if number == 2:
                name, value = _pair(part)
                _require(name not in user and name not in self._reserved and len(user) < PARTS_MAX)
                user[name] = value
            else:
                _require(number not in once)
                once[number] = part
        _require(once.keys() == {1, 3, 4} and 0 < len(once[4]) <= self._body_bytes_max)
        topic = _topic(once[1])
        texts, keys, born_ms = _system(once[3])
        _require(3 in texts and b"|" not in texts.get(1, b""))
        text_bytes = sum(len(name) + len(value) for name, value in user.items()) + len(texts.get(1, b""))
        _require(text_bytes + sum(map(len, keys)) <= self._user_bytes_max)
        pairs = [*user.items(), (b"UNIQ_KEY", texts[3])]
        if 1 in texts:
            pairs.append((b"TAGS", texts[1]))
        if keys:
            pairs.append((b"KEYS", b" ".join(keys)))
        if 18 in texts:
            pairs.append((b"TRACE_CONTEXT", texts[18]))
        if born_ms is not None:
            pairs.append((b"BORN_TIMESTAMP", b"%d" % born_ms))
        pairs.append((b"__BORNHOST", texts.get(8, peer)))
        send = SendRequest(
            GRPC_SEND_CODE,
            0,
            producer_group=topic,
            topic=topic,
            default_topic="",
            default_topic_queue_nums=0,
            queue_id=-1,
            sys_flag=0,
            born_ms=now_ms if born_ms is None else born_ms,
            flag=0,
            properties=b"".join(b"%s\x01%s\x02" % pair for pair in pairs),
            body=once[4],
        )
        return send, texts[3]


def grpc_send_answer(key: bytes, offset: int) -> bytes:
    """The answer for one message that was stored: SendMessageResponse, with OK."""
    entry = _field(0x0A, GRPC_STATUS_OK) + _field(0x12, key) + _field(0x1A, key)
    if offset:
        entry += b"\x20" + _varint(offset)
    return _field(0x0A, GRPC_STATUS_OK) + _field(0x12, entry)


def _require(holds: bool) -> None:
    if not holds:
        raise _NotPlain


def _some(fields: Iterator[tuple[int, bytes | int]], count: int) -> list[tuple[int, bytes | int]]:
    found = list(fields)
    _require(len(found) == count)
    return found


def _fields(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    at = 0
    while at < len(data):
        tag, at = _number(data, at)
        _require(tag >> 3 <= NUMBER_MAX and tag & 7 in (0, 2))
        value, at = _number(data, at)
        if tag & 7 == 0:
            yield tag >> 3, value
            continue
        _require(value <= len(data) - at)
        yield tag >> 3, data[at : at + value]
        at += value


def _number(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 64, 7):
        _require(at < len(data))
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at
    raise _NotPlain


def _text(part: bytes | int) -> bytes:
    """One that is printable ASCII and not blank."""
    _require(isinstance(part, bytes) and _PLAIN.match(part) is not None)
    assert isinstance(part, bytes)
    return part


def _pair(data: bytes) -> tuple[bytes, bytes]:
    found: dict[int, bytes] = {}
    for number, part in _fields(data):
        _require(number in (1, 2) and number not in found)
        found[number] = _text(part)
    _require(len(found) == 2)
    return found[1], found[2]


def _topic(data: bytes) -> str:
    name = b""
    for number, part in _fields(data):
        if number == 1 and isinstance(part, bytes):
            _require(not part or _PLAIN.match(part) is not None)
        else:
            _require(number == 2 and not name)
            name = _text(part)
    _require(bool(name))
    return name.decode()


def _system(data: bytes) -> tuple[dict[int, bytes], list[bytes], int | None]:
    """Texts by number of field, keys, and when the message was made."""
    texts: dict[int, bytes] = {}
    keys: list[bytes] = []
    born_ms: int | None = None
    for number, part in _fields(data):
        if isinstance(part, int):
            _require(number in _NUMBERS and (part <= 1 or number == 13))
            continue
        _require(number in _PARTS)
        if number == 2:
            _require(len(keys) < PARTS_MAX)
            keys.append(_text(part))
        elif number == 4:
            _digest(part)
        elif number == 7:
            _require(born_ms is None)
            born_ms = _time_ms(part)
        else:
            _require(number not in texts)
            texts[number] = _text(part)
    return texts, keys, born_ms


def _digest(data: bytes) -> None:
    for number, part in _fields(data):
        if isinstance(part, int):
            _require(number == 1)
        else:
            _require(number == 2 and (not part or _PLAIN.match(part) is not None))


def _time_ms(data: bytes) -> int:
    seconds = nanos = 0
    for number, value in _fields(data):
        _require(isinstance(value, int))
        assert isinstance(value, int)
        if number == 1 and value <= SECONDS_MAX:
            seconds = value
        else:
            _require(number == 2 and value < 1_000_000_000)
            nanos = value
    return seconds * 1000 + nanos // 1_000_000


def _field(tag: int, data: bytes) -> bytes:
    return bytes((tag,)) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    made = bytearray()
    while value >= 128:
        made.append(value & 127 | 128)
        value >>= 7
    made.append(value)
    return bytes(made)
