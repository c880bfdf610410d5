"""Requests and their answers."""

from __future__ import annotations

from tiermq.remoting.codes import VERSION
from tiermq.remoting.command import FLAG_ONEWAY, HeaderType, RemotingCommand


def test_an_answer_has_the_opaque_and_the_header_type_of_its_request() -> None:
    request = RemotingCommand(310, opaque=-7, header_type=HeaderType.ROCKETMQ)
    answer = request.respond(17, "no such topic", ext={"a": "b"})
    assert (answer.opaque, answer.header_type, answer.code) == (-7, HeaderType.ROCKETMQ, 17)
    assert answer.is_response
    assert not answer.is_oneway
    assert answer.version == VERSION
    assert answer.ext == {"a": "b"}


def test_a_request_says_whether_it_wants_an_answer() -> None:
    assert RemotingCommand(15, flag=FLAG_ONEWAY).is_oneway
    assert "one-way 15" in repr(RemotingCommand(15, flag=FLAG_ONEWAY))
    assert RemotingCommand(15) != RemotingCommand(16)
