"""The frame of a send, ready but for what differs between messages: a send is a producer's hot path.

    length i32 | 1 u8, header length u24 | code, language, version, opaque, flag | no remark | fields | body

The fields are those of SEND_MESSAGE_V2 in the binary header: a name of one letter behind its length, a value behind its
length. Group, topic, queue and broker name are encoded once (`SendTemplate`).
"""

from __future__ import annotations

import struct

from tiermq.client.cluster_client import QueuePlace
from tiermq.client.send_fields import DEFAULT_QUEUES
from tiermq.errors import BadFrame
from tiermq.kernel import FRAME_BYTES_MAX
from tiermq.message.topic_name import AUTO_CREATE_TOPIC
from tiermq.remoting.codes import VERSION, Language, RequestCode
from tiermq.remoting.command import FLAG_ONEWAY

_HEAD = struct.Struct(
    ">"
    "i"  # length            of everything behind it
    "I"  # type and header   1 in the highest byte, the header's length in the others
    "h"  # code
    "B"  # language
    "h"  # version
    "i"  # opaque
    "i"  # flag
    "i"  # remark            its length, 0
    "i"  # fields            their length
)
_NAME = struct.Struct(">hci")  # Length of the name, the name, length of the value.
_BINARY = 1 << 24
_BEFORE_HEADER = 8
assert _HEAD.size == 29
assert _NAME.size == 7


def _field(name: bytes, value: bytes) -> bytes:
    return _NAME.pack(1, name, len(value)) + value


class SendTemplate:
    """The fields that all sends of one group to one queue share. Belongs to the loop of its producer."""

    __slots__ = ("_first", "_last", "_usual")

    def __init__(self, group: str, topic: str, place: QueuePlace) -> None:
        self._first = b"".join(
            (
                _field(b"a", group.encode()),
                _field(b"b", topic.encode()),
                _field(b"c", AUTO_CREATE_TOPIC.encode()),
                _field(b"d", b"%d" % DEFAULT_QUEUES),
                _field(b"e", b"%d" % place.queue_id),
            )
        )
        self._last = b"".join((_field(b"k", b"false"), _field(b"n", place.broker_name.encode())))
        self._usual = self._fixed(RequestCode.SEND_MESSAGE_V2, 0, 0, 0)

    def _fixed(self, code: RequestCode, sys_flag: int, flag: int, reconsume_times: int) -> tuple[bytes, bytes, bytes]:
        """What is before the time, between it and the properties, and behind them."""
        is_batch = b"true" if code == RequestCode.SEND_BATCH_MESSAGE else b"false"
        return (
            self._first + _field(b"f", b"%d" % sys_flag),
            _field(b"h", b"%d" % flag),
            _field(b"j", b"%d" % reconsume_times) + _field(b"m", is_batch) + self._last,
        )

    def encode(
        self,
        code: RequestCode,
        opaque: int,
        properties: bytes,
        body_bytes: int,
        *,
        sys_flag: int = 0,
        born_ms: int = 0,
        flag: int = 0,
        reconsume_times: int = 0,
        is_oneway: bool = False,
    ) -> bytes:
        """The frame up to its body, which is sent behind it. Raises BadFrame for more than a frame can have."""
        if sys_flag or flag or reconsume_times or code != RequestCode.SEND_MESSAGE_V2:
            before, between, behind = self._fixed(code, sys_flag, flag, reconsume_times)
        else:
            before, between, behind = self._usual
        born = b"%d" % born_ms
        fields = b"".join(
            (
                before,
                _NAME.pack(1, b"g", len(born)),
                born,
                between,
                _NAME.pack(1, b"i", len(properties)),
                properties,
                behind,
            )
        )
        header_bytes = _HEAD.size - _BEFORE_HEADER + len(fields)
        length = 4 + header_bytes + body_bytes
        if length > FRAME_BYTES_MAX - 4:
            raise BadFrame(f"expected a message of at most {FRAME_BYTES_MAX} bytes with its frame, found {length}")
        flags = FLAG_ONEWAY if is_oneway else 0
        head = _HEAD.pack(length, _BINARY | header_bytes, code, Language.PYTHON, VERSION, opaque, flags, 0, len(fields))
        return head + fields
