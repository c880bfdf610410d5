"""Frames and both kinds of header, there and back, and what is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiermq.errors import BadFrame, RequestRefused
from tiermq.kernel import Frame, FrameReader, SendRequest
from tiermq.remoting.codes import Language, RequestCode
from tiermq.remoting.command import HeaderType, RemotingCommand
from tiermq.remoting.frame import (
    RequestTemplate,
    command_of,
    command_of_send,
    decode_binary_header,
    decode_frame,
    decode_json_header,
    encode_binary_header,
    encode_frame,
    encode_json_header,
    send_request_of,
)

I32 = st.integers(-(1 << 31), (1 << 31) - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)
COMMANDS = st.builds(
    RemotingCommand,
    st.integers(0, 32_000),
    opaque=I32,
    flag=st.integers(0, 3),
    language=st.sampled_from(Language),
    version=st.integers(0, 32_767),
    remark=st.none() | TEXT,
    ext=st.dictionaries(TEXT, TEXT, max_size=5),
    body=st.binary(max_size=100),
    header_type=st.sampled_from(HeaderType),
)
ROUTE_REQUEST = bytes.fromhex(
    "0000002d01000029006900 01df 00000007 00000000 00000000 00000014 0005746f706963 00000009546f70696354657374"
)
NAMED = {"producerGroup": "g", "topic": "T", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "queueId": "1",
         "sysFlag": "0", "bornTimestamp": "5", "flag": "0", "properties": "a\x01b\x02", "batch": "1"}  # fmt: skip


@given(COMMANDS)
def test_a_frame_reads_back_as_it_was(command: RemotingCommand) -> None:
    command.body = memoryview(bytes(command.body))
    assert decode_frame(encode_frame(command)) == command


@given(st.integers(0, 0x7FFFFFFF), st.integers(0, 1 << 62), st.integers(1, 1024), st.text(max_size=20))
def test_a_template_makes_the_frames_that_the_codec_makes(opaque: int, offset: int, most: int, topic: str) -> None:
    template = RequestTemplate(
        RequestCode.PULL_MESSAGE, {"topic": topic, "queueId": "3"}, ("queueOffset", "maxMsgNums")
    )
    ext = {"topic": topic, "queueId": "3", "queueOffset": str(offset), "maxMsgNums": str(most)}
    command = RemotingCommand(RequestCode.PULL_MESSAGE, opaque=opaque, ext=ext, header_type=HeaderType.ROCKETMQ)
    assert template.encode(opaque, offset, most) == encode_frame(command)


def test_a_binary_route_request_has_the_bytes_of_rocketmq() -> None:
    command = RemotingCommand(
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        opaque=7,
        language=Language.JAVA,
        ext={"topic": "TopicTest"},
        header_type=HeaderType.ROCKETMQ,
    )
    assert encode_frame(command) == ROUTE_REQUEST
    assert decode_frame(ROUTE_REQUEST).ext == {"topic": "TopicTest"}


def json_frame(header: object) -> bytes:
    data = json.dumps(header).encode()
    return (4 + len(data)).to_bytes(4, "big") + len(data).to_bytes(4, "big") + data


def test_numbers_booleans_and_unknown_languages_of_other_clients_are_understood() -> None:
    read = decode_frame(
        json_frame({"code": 310, "extFields": {"e": 0, "k": False, "x": None}, "language": "KLINGON", "opaque": -1})
    )
    assert read.ext == {"e": "0", "k": "false"}
    assert read.language == Language.OTHER
    assert read.opaque == -1


def test_the_pop_family_survives_a_binary_header() -> None:
    command = RemotingCommand(RequestCode.POP_MESSAGE, header_type=HeaderType.ROCKETMQ)
    assert decode_frame(encode_frame(command)).code == RequestCode.POP_MESSAGE


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x00\x00\x00\x04",
        json_frame([1]),
        json_frame({"opaque": 1}),
        json_frame({"code": "ten"}),
        json_frame({"code": 1, "opaque": 1 << 40}),
        json_frame({"code": 1, "extFields": [1]}),
        ROUTE_REQUEST[:-1],
        ROUTE_REQUEST[:4] + b"\x02" + ROUTE_REQUEST[5:],
        ROUTE_REQUEST[:5] + b"\xff\xff\xff" + ROUTE_REQUEST[8:],
    ],
)
def test_what_is_no_frame_is_refused(frame: bytes) -> None:
    with pytest.raises(BadFrame):
        decode_frame(frame)


@given(st.data())
def test_damaged_frames_are_refused_or_read_but_nothing_else_happens(data: st.DataObject) -> None:
    frame = bytearray(encode_frame(data.draw(COMMANDS)))
    for _ in range(data.draw(st.integers(1, 3))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode_frame(bytes(frame))
    except BadFrame:
        return


def test_a_value_of_no_bytes_reads_as_absent() -> None:
    command = RemotingCommand(1, ext={"a": "", "b": "x"}, header_type=HeaderType.ROCKETMQ)
    assert decode_binary_header(encode_binary_header(command)).ext == {"b": "x"}


def test_a_name_that_is_too_long_is_refused() -> None:
    with pytest.raises(BadFrame, match="field name"):
        encode_binary_header(RemotingCommand(1, ext={"a" * 40_000: "x"}, header_type=HeaderType.ROCKETMQ))


def test_an_unknown_language_is_another() -> None:
    header = bytearray(encode_binary_header(RemotingCommand(1, header_type=HeaderType.ROCKETMQ)))
    header[2] = 200
    assert decode_binary_header(bytes(header)).language == 7


def test_fields_are_in_alphabetical_order_and_absent_ones_are_left_out() -> None:
    command = RemotingCommand(105, opaque=7, language=Language.JAVA, ext={"topic": "T"})
    assert encode_json_header(command) == (
        b'{"code":105,"extFields":{"topic":"T"},"flag":0,"language":"JAVA","opaque":7,'
        b'"serializeTypeCurrentRPC":"JSON","version":479}'
    )


def test_a_value_that_is_an_object_becomes_its_text() -> None:
    assert decode_json_header(b'{"code":1,"extFields":{"a":{"b":1}}}').ext == {"a": '{"b":1}'}


@pytest.mark.parametrize("number", [b"Infinity", b"1e999", b"NaN", b"[[]]", b"1" * 5000])
def test_a_header_whose_number_is_none_is_a_bad_frame(number: bytes) -> None:
    with pytest.raises(BadFrame):
        decode_json_header(b'{"code":%b,"opaque":1}' % number)


def test_replies_are_spelled_like_sends() -> None:
    reply = send_request_of(RemotingCommand(RequestCode.SEND_REPLY_MESSAGE, ext=NAMED, body=b"x"))
    assert (reply.topic, reply.queue_id, reply.properties, reply.batch, reply.body) == (
        "T",
        1,
        b"a\x01b\x02",
        True,
        b"x",
    )
    with pytest.raises(RequestRefused, match="field a"):
        send_request_of(RemotingCommand(RequestCode.SEND_REPLY_MESSAGE_V2, ext=NAMED))


@pytest.mark.parametrize("header_type", HeaderType)
def test_the_command_of_a_send_is_the_one_that_came(header_type: int) -> None:
    sent = RemotingCommand(10, ext={**NAMED, "AccessKey": "ak"}, body=b"x", header_type=header_type, opaque=3)
    (found,) = FrameReader().feed(encode_frame(sent))
    assert isinstance(found, Frame | SendRequest)
    command = command_of(found) if isinstance(found, Frame) else command_of_send(found)
    assert command == sent


def test_languages_codes_and_damage() -> None:
    pop = RemotingCommand(RequestCode.POP_MESSAGE, header_type=HeaderType.ROCKETMQ, language=Language.GO)
    (frame,) = FrameReader().feed(encode_frame(pop))
    assert isinstance(frame, Frame)
    assert command_of(frame).code == RequestCode.POP_MESSAGE
    assert command_of(frame).language == Language.GO
    assert command_of(Frame(0, b'{"code":1,"language":"KLINGON"}', b"")).language == Language.OTHER
    for header_type in HeaderType:
        with pytest.raises(BadFrame):
            command_of(Frame(int(header_type), b"{", b""))
