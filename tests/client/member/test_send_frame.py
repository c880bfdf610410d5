"""The frame of a send is the command that the general codec would write."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiermq.client.cluster_client import QueuePlace
from tiermq.client.member.outgoing import Outgoing
from tiermq.client.member.send_frame import SendTemplate
from tiermq.client.send_fields import send_fields
from tiermq.errors import BadFrame
from tiermq.message.properties import encode_properties
from tiermq.remoting.codes import RequestCode
from tiermq.remoting.command import HeaderType, RemotingCommand
from tiermq.remoting.frame import decode_frame, send_request_of

PLACE = QueuePlace("broker-ä", "127.0.0.1:1", 3)
texts = st.text(st.characters(codec="utf-8", exclude_characters="\x00\x01\x02"), min_size=1, max_size=20)


@given(
    st.binary(min_size=1, max_size=50),
    st.dictionaries(texts, texts),
    st.integers(0, 2**31 - 1),
    st.booleans(),
    st.sampled_from([(0, 0), (0x301, 7), (0x301, 0), (0, 7)]),
)
def test_a_frame_decodes_to_the_same_fields(
    body: bytes, properties: dict[str, str], opaque: int, is_batch: bool, flags: tuple[int, int]
) -> None:
    sys_flag, flag = flags
    code = RequestCode.SEND_BATCH_MESSAGE if is_batch else RequestCode.SEND_MESSAGE_V2
    outgoing = Outgoing(
        "orders", body, encode_properties({"P": "p", **properties}), sys_flag, flag, "K", 1_700_000_000_000
    )
    head = SendTemplate("shop", "orders", PLACE).encode(
        code, opaque, outgoing.properties, len(body), sys_flag=sys_flag, born_ms=outgoing.born_ms, flag=flag
    )
    command = decode_frame(head + body)
    expected = RemotingCommand(
        code,
        opaque=opaque,
        ext=send_fields(
            "shop",
            "orders",
            PLACE,
            outgoing.properties,
            outgoing.born_ms,
            sys_flag=sys_flag,
            flag=flag,
            is_batch=is_batch,
        ),
        body=body,
        header_type=HeaderType.ROCKETMQ,
    )
    command.body = bytes(command.body)
    assert command == expected
    request = send_request_of(command)
    assert (request.topic, request.queue_id, request.sys_flag, request.flag) == ("orders", 3, sys_flag, flag)
    assert (request.body, request.properties, request.batch) == (body, outgoing.properties, is_batch)


def test_a_oneway_frame_asks_for_no_answer() -> None:
    head = SendTemplate("shop", "orders", PLACE).encode(RequestCode.SEND_MESSAGE_V2, 0, b"", 1, is_oneway=True)
    assert decode_frame(head + b"x").is_oneway


def test_a_message_that_no_frame_can_hold_is_refused() -> None:
    with pytest.raises(BadFrame, match="at most"):
        SendTemplate("shop", "orders", PLACE).encode(RequestCode.SEND_MESSAGE_V2, 0, b"", 17 << 20)
