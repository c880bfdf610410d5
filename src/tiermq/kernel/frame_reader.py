"""Frames of the wire protocol, parsed from a socket's bytes, and the most frequent responses.

    length i32 | type u8, header length u24 | header | body        length counts everything behind it

Contract of both twins: `FrameReader.feed` returns every complete frame of the received bytes. A frame is a `Frame`
(its header still bytes) or, where the compiled twin can parse the header, a `SendRequest` of a send or an `AckRequest`
of an acknowledgement by POP; the receiver of a `Frame` of one of these does the same by the general path. This twin
always returns `Frame`s, since a special codec in Python is no faster than the general one.

Invariants: lengths are checked before anything is kept, so that garbage is refused at its first eight bytes and at
most one frame and one read are buffered; complete frames before garbage are returned, then `broken` is the reason why
the rest is refused. One reader belongs to one connection, and to the thread of its event loop.
"""

from __future__ import annotations

import json
import struct

from tiermq.errors import BadFrame
from tiermq.kernel.message import Message
from tiermq.message.client_batch import decode_client_batch
from tiermq.message.properties import join_properties

LENGTHS = struct.Struct(
    ">"
    "i"  # Everything behind this field.
    "I"  # Header type in the highest byte, header length in the other three.
)
FIXED = struct.Struct(
    ">"
    "h"  # code
    "B"  # language
    "h"  # version
    "i"  # opaque
    "i"  # flag
    "i"  # length of the remark
)
FRAME_BYTES_MAX = 16 * 1024 * 1024
HEADER_MASK = (1 << 24) - 1
_LANGUAGE_PYTHON = 3
_RESPONSE_BIT = 1
assert LENGTHS.size == 8
assert FIXED.size == 17


class Frame:
    """One frame with an unparsed header."""

    __slots__ = ("body", "header", "header_type")

    def __init__(self, header_type: int, header: bytes, body: bytes) -> None:
        self.header_type = header_type
        self.header = header
        self.body = body


class SendRequest:
    """A send request, of any of its header formats. `flag` is the message's, not the command's."""

    __slots__ = (
        "batch",
        "body",
        "born_ms",
        "code",
        "default_topic",
        "default_topic_queue_nums",
        "flag",
        "header",
        "header_type",
        "is_oneway",
        "max_reconsume_times",
        "opaque",
        "producer_group",
        "properties",
        "queue_id",
        "reconsume_times",
        "sys_flag",
        "topic",
        "unit_mode",
        "version",
    )

    def __init__(
        self,
        code: int,
        opaque: int,
        *,
        producer_group: str,
        topic: str,
        default_topic: str,
        default_topic_queue_nums: int,
        queue_id: int,
        sys_flag: int,
        born_ms: int,
        flag: int,
        properties: bytes = b"",
        reconsume_times: int = 0,
        unit_mode: bool = False,
        max_reconsume_times: int = -1,
        batch: bool = False,
        body: bytes = b"",
        is_oneway: bool = False,
        header_type: int = 0,
        version: int = 0,
        header: bytes = b"",
    ) -> None:
        self.code = code
        self.opaque = opaque
        self.producer_group = producer_group
        self.topic = topic
        self.default_topic = default_topic
        self.default_topic_queue_nums = default_topic_queue_nums
        self.queue_id = queue_id
        self.sys_flag = sys_flag
        self.born_ms = born_ms
        self.flag = flag
        self.properties = properties
        self.reconsume_times = reconsume_times
        self.unit_mode = unit_mode
        self.max_reconsume_times = max_reconsume_times
        self.batch = batch
        self.body = body
        self.is_oneway = is_oneway
        self.header_type = header_type
        self.version = version
        self.header = header


class AckRequest:
    """ACK_MESSAGE (200051) of a message whose receipt names the queue and the offset of the request.

    `receipt` is the receipt without its offset and what follows: equal for all messages of a check point.
    """

    __slots__ = ("group", "header", "header_type", "is_oneway", "offset", "opaque", "queue_id", "receipt", "topic")

    def __init__(
        self,
        opaque: int,
        *,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        receipt: str,
        is_oneway: bool = False,
        header_type: int = 0,
        header: bytes = b"",
    ) -> None:
        self.opaque = opaque
        self.group = group
        self.topic = topic
        self.queue_id = queue_id
        self.offset = offset
        self.receipt = receipt
        self.is_oneway = is_oneway
        self.header_type = header_type
        self.header = header


class FrameReader:
    """See the module. `pending_bytes` is the buffered part of an incomplete frame."""

    __slots__ = (
        "_frame_bytes_max",
        "_header_bytes_max",
        "_kept",
        "_wanted_bytes",
        "broken",
        "parse_sends",
        "pending_bytes",
    )

    def __init__(
        self,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        parse_sends: bool = True,
        header_bytes_max: int = FRAME_BYTES_MAX,
    ) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._header_bytes_max = header_bytes_max
        self._kept: list[bytes] = []
        self._wanted_bytes = LENGTHS.size
        self.broken: str | None = None
        self.parse_sends = parse_sends
        self.pending_bytes = 0

    def feed(self, data: bytes) -> list[Frame | SendRequest | AckRequest]:
        """The frames that are complete now. Raises BadFrame if the next bytes are not a frame, then always."""
        if self.broken is not None:
            raise BadFrame(self.broken)
        if self._kept:
            self._kept.append(data)
            self.pending_bytes += len(data)
            if self.pending_bytes < self._wanted_bytes:
                return []
            data = b"".join(self._kept)
            self._kept = []
            self.pending_bytes = 0
        frames: list[Frame | SendRequest | AckRequest] = []
        at = 0
        while True:
            left = len(data) - at
            if left < LENGTHS.size:
                self._wanted_bytes = LENGTHS.size
                break
            length, mixed = LENGTHS.unpack_from(data, at)
            header_type, header_length = mixed >> 24, mixed & HEADER_MASK
            is_whole = 4 + header_length <= length <= self._frame_bytes_max - 4
            if not is_whole or header_length > self._header_bytes_max or header_type > 1:
                self.broken = refusal(length, header_type, header_length, self._frame_bytes_max, self._header_bytes_max)
                if not frames:
                    raise BadFrame(self.broken)
                return frames
            if left < 4 + length:
                self._wanted_bytes = 4 + length
                break
            body_at = at + LENGTHS.size + header_length
            frames.append(Frame(header_type, data[at + LENGTHS.size : body_at], data[body_at : at + 4 + length]))
            at += 4 + length
        if left:
            self._kept.append(data[at:] if at else data)
            self.pending_bytes = left
        return frames


def refusal(length: int, header_type: int, header_length: int, frame_bytes_max: int, header_bytes_max: int) -> str:
    """Why eight bytes are not the beginning of a frame."""
    return (
        f"expected a frame of at most {frame_bytes_max} bytes, with a header of at most {header_bytes_max} bytes and "
        f"of type 0 (JSON) or 1 (ROCKETMQ), found lengths {length} and {header_length} and type {header_type}; "
        "the peer may speak another protocol"
    )


def parse_header(
    header_type: int, header: bytes
) -> tuple[int, int | str, int, int, int, str | None, dict[str, str]] | None:
    """(code, language, version, opaque, flag, remark, ext) of a plain header; None: use the general codec.

    This twin always uses the general codec.
    """
    del header_type, header
    return None


def escaped_text(raw: bytes) -> str | None:
    """A JSON text with backslashes, without its quotes; None: it is invalid."""
    try:
        return str(json.loads(b'"%b"' % raw))
    except ValueError:
        return None


def message_of_send(send: SendRequest, queue_id: int, properties: bytes, born_host: bytes) -> Message:
    """The message to store for a send that is not a batch, with the properties and the queue that the broker chose.

    `born_host` is in its stored form of 8 or 20 bytes. Raises IllegalMessage for values that no record can hold.
    """
    return Message(
        send.topic,
        send.body,
        queue_id,
        encoded_properties=properties,
        flag=send.flag,
        sys_flag=send.sys_flag,
        born_timestamp_ms=send.born_ms,
        born_host=born_host,
        reconsume_times=send.reconsume_times,
    )


def send_answer(
    header_type: int,
    opaque: int,
    code: int,
    version: int,
    message_id: str,
    queue_id: int,
    queue_offset: int,
    transaction_id: str,
    region: str,
    trace_on: str,
    remark: str | None = None,
    recall_handle: str = "",
) -> bytes:
    """The whole response frame of a send. An empty transaction id or recall handle is left out."""
    fields = [("msgId", message_id), ("queueId", str(queue_id)), ("queueOffset", str(queue_offset))]
    if transaction_id:
        fields.append(("transactionId", transaction_id))
    fields += [("MSG_REGION", region), ("TRACE_ON", trace_on)]
    if recall_handle:
        fields.append(("recallHandle", recall_handle))
    return _answer(header_type, opaque, code, version, remark, fields, 0)


def pull_answer(
    header_type: int,
    opaque: int,
    code: int,
    version: int,
    remark: str | None,
    suggest_which_broker_id: int,
    next_begin_offset: int,
    min_offset: int,
    max_offset: int,
    body_bytes: int,
) -> bytes:
    """The response frame of a pull, up to its body of `body_bytes`, which is sent behind it."""
    fields = [
        ("suggestWhichBrokerId", str(suggest_which_broker_id)),
        ("nextBeginOffset", str(next_begin_offset)),
        ("minOffset", str(min_offset)),
        ("maxOffset", str(max_offset)),
    ]
    return _answer(header_type, opaque, code, version, remark, fields, body_bytes)


def ack_answers(acks: list[AckRequest], version: int) -> bytes:
    """The response frames of acknowledgements that succeeded, in their order; one-way ones have none."""
    return b"".join(
        _answer(each.header_type, each.opaque, 0, version, None, [], 0) for each in acks if not each.is_oneway
    )


def _answer(
    header_type: int,
    opaque: int,
    code: int,
    version: int,
    remark: str | None,
    fields: list[tuple[str, str]],
    body_bytes: int,
) -> bytes:
    if header_type == 0:
        noted = "" if remark is None else f'"remark":{_quoted(remark)},'
        named = ",".join(f'"{name}":{_quoted(value)}' for name, value in fields)
        ext = f'"extFields":{{{named}}},' if fields else ""
        text = (
            f'{{"code":{code},{ext}"flag":{_RESPONSE_BIT},"language":"PYTHON","opaque":{opaque},'
            f'{noted}"serializeTypeCurrentRPC":"JSON","version":{version}}}'
        )
        header = text.encode("utf-8", "replace")
    else:
        note = (remark or "").encode("utf-8", "replace")
        entries = bytearray()
        for name, value in fields:
            encoded = value.encode("utf-8", "replace")
            entries += struct.pack(">h", len(name)) + name.encode() + struct.pack(">i", len(encoded)) + encoded
        header = b"".join(
            (
                FIXED.pack(code, _LANGUAGE_PYTHON, version, opaque, _RESPONSE_BIT, len(note)),
                note,
                struct.pack(">i", len(entries)),
                entries,
            )
        )
    return LENGTHS.pack(4 + len(header) + body_bytes, header_type << 24 | len(header)) + header


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def messages_of_batch(envelope: Message) -> list[Message]:
    """The messages of a client's batch: the envelope's topic, queue, system flags, times and hosts; the element's body,
    flag and properties, followed by the envelope's properties. Both twins.

    [] for an empty body. Raises CorruptRecord for a body that is not a batch, IllegalMessage for an element that no
    record can hold.
    """
    return [
        Message(
            envelope.topic,
            element.body,
            envelope.queue_id,
            encoded_properties=join_properties(element.encoded_properties, envelope.encoded_properties),
            flag=element.flag,
            sys_flag=envelope.sys_flag,
            born_timestamp_ms=envelope.born_timestamp_ms,
            born_host=envelope.born_host,
            reconsume_times=envelope.reconsume_times,
        )
        for element in decode_client_batch(envelope.body)
    ]
