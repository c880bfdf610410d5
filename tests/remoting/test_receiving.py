"""From frames to commands and sends, by the general path."""

from __future__ import annotations

import pytest

from tiermq.errors import BadFrame, RequestRefused
from tiermq.kernel import Frame, FrameReader
from tiermq.remoting.codes import Language, RequestCode
from tiermq.remoting.command import HeaderType, RemotingCommand
from tiermq.remoting.frame import encode_frame
from tiermq.remoting.receiving import command_of, command_of_send, send_request_of

NAMED = {"producerGroup": "g", "topic": "T", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "queueId": "1",
         "sysFlag": "0", "bornTimestamp": "5", "flag": "0", "properties": "a\x01b\x02", "batch": "1"}  # fmt: skip


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
