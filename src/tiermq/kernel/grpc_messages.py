"""GrpcMessageWriter: plain records as answers of a receive, in the bytes that protobuf makes of them.

    StoredMessage ─► body as it is, properties in printable ASCII, none that makes it another than a plain one ─► bytes
                 └─► None: the general path, by protobuf objects (`broker/grpc/grpc_message.py`)
    records of a pop, the words of handles by queue, and the tags that are wanted ─► bytes of each; None if one of them
    needs the general path, such as one with another tag, which the client does not get

Contract of both twins: protobuf reads from the bytes what the general path fills in. Properties in `hidden` are the
broker's and no consumer sees them; a message with one in `special` is left to the general path.
"""

from __future__ import annotations

import hashlib
import re

from tiermq.errors import CorruptRecord
from tiermq.message.layout import RecordVersion
from tiermq.message.properties import get_property
from tiermq.message.record import decode_records
from tiermq.message.stored_message import StoredMessage

COMPRESSED_FLAGS = 0x701
"""Of a record's system flag: its body is compressed, and how."""
HOSTS_V6 = 0x30
"""Of the same."""
_PLAIN = re.compile(rb"[ -~]+\Z")


class GrpcMessageWriter:
    """See the module."""

    __slots__ = ("_hidden", "_special")

    def __init__(self, hidden: frozenset[bytes], special: frozenset[bytes]) -> None:
        self._hidden = hidden
        self._special = special

    def write(self, topic: bytes, message: StoredMessage, digest: bytes, handle: bytes, attempt: int) -> bytes | None:
        """ReceiveMessageResponse with a message whose body has the MD5 `digest`; None: the general path."""
        if message.sys_flag & COMPRESSED_FLAGS:
            return None
        found: dict[bytes, bytes] = {}
        user = b""
        for each in message.encoded_properties.removesuffix(b"\x02").split(b"\x02"):
            name, split, value = each.partition(b"\x01")
            if not split or not _PLAIN.match(name) or not _PLAIN.match(value) or name in self._special:
                return None
            if name in (b"UNIQ_KEY", b"TAGS", b"KEYS", b"__BORNHOST"):
                found[name] = value
            elif name not in self._hidden:
                user += _field(0x12, _field(0x0A, name) + _field(0x12, value))
        key = found.get(b"UNIQ_KEY")
        if key is None:
            return None
        system = _field(0x0A, found[b"TAGS"]) if b"TAGS" in found else b""
        for each in found.get(b"KEYS", b"").split(b" "):
            system += _field(0x12, each) if each else b""
        system += _field(0x1A, key) + _field(0x22, b"\x08\x02" + _field(0x12, digest)) + b"\x28\x01\x30\x01"
        system += _field(0x3A, _time(message.born_timestamp_ms))
        system += _field(0x42, found.get(b"__BORNHOST") or message.born_host.encode())
        system += _field(0x4A, _time(message.store_timestamp_ms)) + _field(0x52, message.store_host.encode())
        system += _field(0x62, handle) if handle else b""
        system += b"\x68" + _varint(message.queue_id) + b"\x70" + _varint(message.queue_offset)
        system += b"\x80\x01" + _varint(attempt) if attempt else b""
        return _field(
            0x12, _field(0x0A, _field(0x12, topic)) + user + _field(0x1A, system) + _field(0x22, message.body)
        )

    def write_page(
        self, topic: bytes, data: bytes, handles: dict[int, bytes], tags: frozenset[bytes] | None = None
    ) -> list[bytes] | None:
        """The same of whole records that are delivered for the first time, of version 1 and between IPv4 hosts.
        `handles`: what the handles of a queue's messages begin with; offsets in the queue and in the log follow.
        `tags`: one of them each message has; None: any, or none.
        """
        found: list[bytes] = []
        try:
            for message in decode_records(data):
                words = handles.get(message.queue_id)
                is_usual = message.version is RecordVersion.V1 and message.sys_flag & HOSTS_V6 == 0
                is_first = not message.reconsume_times and min(message.queue_offset, message.physical_offset) >= 0
                if words is None or not is_usual or not is_first:
                    return None
                if tags is not None and get_property(message.encoded_properties, b"TAGS") not in tags:
                    return None
                digest = hashlib.md5(message.body, usedforsecurity=False).hexdigest().upper().encode()
                handle = b"%b %d %d" % (words, message.queue_offset, message.physical_offset)
                if (made := self.write(topic, message, digest, handle, 1)) is None:
                    return None
                found.append(made)
        except CorruptRecord:  # As the general path will find, which says how.
            return None
        return found


def _time(time_ms: int) -> bytes:
    return b"\x08" + _varint(time_ms // 1000) + b"\x10" + _varint(time_ms % 1000 * 1_000_000)


def _field(tag: int, data: bytes) -> bytes:
    return bytes((tag,)) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    made = bytearray()
    value &= 0xFFFF_FFFF_FFFF_FFFF
    while value >= 128:
        made.append(value & 127 | 128)
        value >>= 7
    made.append(value)
    return bytes(made)
