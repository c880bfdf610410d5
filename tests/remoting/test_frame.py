"""Frames and both kinds of header, there and back, and what is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiermq.errors import BadFrame
from tiermq.remoting.codes import Language, RequestCode
from tiermq.remoting.command import HeaderType, RemotingCommand
from tiermq.remoting.frame import decode_frame, encode_frame

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


@given(COMMANDS)
def test_a_frame_reads_back_as_it_was(command: RemotingCommand) -> None:
    command.body = memoryview(bytes(command.body))
    assert decode_frame(encode_frame(command)) == command


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
