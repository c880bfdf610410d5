"""What peers send: frames, headers of both kinds, bodies in RocketMQ's JSON, registrations of brokers."""

from __future__ import annotations

import zlib
from functools import partial
from types import ModuleType
from typing import Any

from campaign.hostile.target import COMPILED, Disagreement, Target, by_both, documented
from tiermq.broker.group.subscription import Heartbeat
from tiermq.errors import BadFrame, RequestRefused
from tiermq.kernel import pure
from tiermq.namesrv.topic_config import DataVersion, TopicConfig, decode_register_body, encode_register_body
from tiermq.remoting import frame as codec
from tiermq.remoting.access import ADMINISTRATOR, knows, of_group, reads, writes
from tiermq.remoting.codes import RequestCode
from tiermq.remoting.command import HeaderType, RemotingCommand
from tiermq.remoting.frame import decode_binary_header, decode_frame, decode_json_header, encode_frame
from tiermq.remoting.json_dialect import decode_body, encode_body
from tiermq.remoting.permissions import Account, Credentials

SEND = ("group", "orders", "TBW102", "4", "1", "0", "1700000000000", "0", "KEYS\x01k\x02WAIT\x01true\x02", "0", "false")
VALUES = (
    "producer_group", "topic", "default_topic", "default_topic_queue_nums", "queue_id", "sys_flag", "born_ms", "flag",
    "properties", "reconsume_times", "unit_mode", "max_reconsume_times", "batch", "code", "opaque", "version",
    "header_type", "is_oneway", "body",
)  # fmt: skip
JSON_WORDS = (b"{", b"}", b"[", b"]", b'"', b":", b",", b"null", b"true", b"NaN", b"Infinity", b"{{", b'{"a":', b"[[")
FIELD_WORDS = (b"code", b"extFields", b"flag", b"opaque", b"remark", b"version", b"language", b"topic", b"queueId")
PIECE_BYTES = (1, 3, 8, 1 << 30)
POWERLESS = Account("powerless", "secret")
ACCESSES = (ADMINISTRATOR, reads("topic"), writes("b"), knows("topic"), of_group("consumerGroup"))


def _commands() -> list[RemotingCommand]:
    send = dict(zip("abcdefghijk", SEND, strict=True))
    named = dict(zip(codec._NAMES, SEND, strict=False))
    signed = RemotingCommand(RequestCode.PULL_MESSAGE, ext={"topic": "orders", "queueId": "0"}, opaque=5)
    Credentials("key", "secret").sign(signed)
    return [
        RemotingCommand(RequestCode.SEND_MESSAGE_V2, ext=send, body=b"hello", opaque=1),
        RemotingCommand(RequestCode.SEND_MESSAGE, ext=named, body=b"hello", opaque=2),
        RemotingCommand(RequestCode.SEND_BATCH_MESSAGE, ext={**send, "m": "true"}, body=bytes(40), opaque=3),
        RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext={"topic": "orders"}, remark="why", opaque=4),
        signed,
        RemotingCommand(0, flag=1, opaque=6, body=b"an answer"),
        RemotingCommand(RequestCode.POP_MESSAGE, ext={"invisibleTime": "60000", "é": "ü"}, flag=2),
    ]


def _frames() -> list[bytes]:
    made = []
    for header_type in HeaderType:
        frames = []
        for command in _commands():
            command.header_type = header_type
            frames.append(encode_frame(command))
        made += [*frames, b"".join(frames[:3])]
    return made


def _headers(header_type: HeaderType) -> list[bytes]:
    made = []
    for command in _commands():
        command.header_type = header_type
        frame = encode_frame(command)
        made.append(frame[8 : 8 + int.from_bytes(frame[5:8], "big")])
    return made


def _meaning(frame: Any) -> tuple[Any, ...]:
    """What becomes of a frame, whichever form read it."""
    if type(frame).__name__ == "Frame":
        try:
            command = codec.command_of(pure.Frame(frame.header_type, frame.header, frame.body))
        except BadFrame:
            return ("bad",)
        if command.code not in codec.SEND_CODES or command.is_response:
            return ("command", *_values_of(command), bytes(command.body))
        try:
            frame = codec.send_request_of(command)
        except RequestRefused:
            return ("refused",)
    return ("send", *(getattr(frame, name) for name in VALUES))


def _try_frames(data: bytes) -> str:
    def read(twin: ModuleType) -> Any:
        said = []
        for piece_bytes in PIECE_BYTES if len(data) < 4096 else PIECE_BYTES[-1:]:
            reader, frames = twin.FrameReader(), []
            try:
                for at in range(0, len(data), piece_bytes):
                    frames += reader.feed(data[at : at + piece_bytes])
            except BadFrame:
                frames.append(None)
            broken = reader.broken
            meanings = [("broken",) if each is None else _meaning(each) for each in frames if each is not None]
            said.append((meanings, broken, None if broken else reader.pending_bytes))
        if any(each != said[0] for each in said):
            raise Disagreement(f"{twin.__name__}: frames depend on how they were cut: {said!r:.400}")
        return said[0]

    meanings, broken, _ = by_both("FrameReader", read)
    documented(lambda: decode_frame(data), BadFrame)
    kinds = ",".join(sorted({each[0] for each in meanings}))
    return f"{kinds or 'nothing'}{', broken' if broken else ''}"


def _values_of(command: RemotingCommand) -> tuple[Any, ...]:
    return command.code, command.opaque, command.flag, command.version, command.remark, command.ext


def _try_header(header_type: HeaderType, data: bytes) -> str:
    decode = decode_json_header if header_type is HeaderType.JSON else decode_binary_header
    command, said = documented(lambda: decode(data), BadFrame)
    if COMPILED is not None and COMPILED.parse_header(int(header_type), data) is not None:
        fast, _ = documented(lambda: codec.command_of(pure.Frame(int(header_type), data, b"")), BadFrame)
        if command is None or fast is None or _values_of(fast) != _values_of(command):
            raise Disagreement(f"the fast way reads {fast}, the general one {command or said}")
    if command is None:
        return said
    _, refused = documented(lambda: codec.send_request_of(command), RequestRefused)
    for access in ACCESSES:
        documented(partial(access.check, POWERLESS, command), RequestRefused)
    encode_frame(command.respond(1, str(command.ext)[:100], ext=command.ext))
    return f"command {refused or 'a send'}"


def _try_body(data: bytes) -> str:
    found, said = documented(lambda: decode_body(data), RequestRefused)
    if said:
        return said
    encode_body(found)
    _, beat = documented(lambda: Heartbeat.decode(data), RequestRefused)
    return f"{type(found).__name__} {beat}"


def body_seeds() -> list[bytes]:
    subscription = {
        "topic": "orders",
        "subString": "a || b",
        "expressionType": "TAG",
        "subVersion": 1,
        "tagsSet": ["a"],
    }
    consumer = {"groupName": "g", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "subscriptionDataSet": [subscription]}  # fmt: skip
    return [
        b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:{"maxOffset":7}}}',
        b'{"table":{0:12,"1":13},"x":[1.5,true,null,"\\u00e9"]}',
        encode_body({"clientID": "c@1", "consumerDataSet": [consumer], "producerDataSet": [{"groupName": "p"}]}),
        encode_body(
            {"clientId": "c", "consumerGroup": "g", "mqSet": [{"topic": "T", "brokerName": "b", "queueId": 0}]}
        ),
        encode_body({"acks": [{"c": "g", "t": "T", "q": 0, "so": 1, "r": "0", "bs": ""}]}),
    ]


def _registrations() -> list[bytes]:
    """The first byte says how it claims to be packed."""
    topics = [TopicConfig("orders", 4, 4), TopicConfig("more", 1, 1, attributes={"+message.type": "DELAY"})]
    plain = encode_register_body(topics, DataVersion(1, 1))
    line = b"orders 4 4 6 SINGLE_TAG"
    pieces = [b'{"counter":1,"timestamp":2}', (1).to_bytes(4, "big"), line, b"[]"]
    packed = b"".join(each if len(each) == 4 else len(each).to_bytes(4, "big") + each for each in pieces)
    return [b"\x00" + plain, b"\x01" + packed, b"\x02" + plain[:40]]


def _try_registration(data: bytes) -> str:
    kind, body = (data[0] % 3 if data else 0), data[1:]
    packed = zlib.compress(body) if kind == 1 else body
    version = 479 - 300 * (len(body) % 2)
    found, said = documented(
        lambda: list(decode_register_body(packed, compressed=kind > 0, version=version).topics), RequestRefused
    )
    return said or f"{min(3, len(found))} topics, {kind}"


def wire_targets() -> list[Target]:
    words = (*JSON_WORDS, *FIELD_WORDS)
    return [
        Target("frame", _frames, _try_frames, words),
        Target("header_json", lambda: _headers(HeaderType.JSON), lambda d: _try_header(HeaderType.JSON, d), words),
        Target(
            "header_binary", lambda: _headers(HeaderType.ROCKETMQ), lambda d: _try_header(HeaderType.ROCKETMQ, d), words
        ),
        Target(
            "body_json", body_seeds, _try_body, (*JSON_WORDS, b'{{"a":1}:1}', b"consumerDataSet", b"mqSet", b"acks")
        ),
        Target("registration", _registrations, _try_registration, JSON_WORDS),
    ]
