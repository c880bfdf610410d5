"""One pop, read from its command."""

from __future__ import annotations

from typing import Any, cast

import pytest

from broker.popping_peer import pop_fields
from tiermq.broker.pop import HOLD_MS_MAX, Pop
from tiermq.errors import RequestRefused
from tiermq.remoting.codes import RequestCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.connection import Connection

NOBODY = cast(Connection, None)


def made(code: int = RequestCode.POP_MESSAGE, **changes: object) -> Pop:
    ext = {name: str(value) for name, value in {**pop_fields(), **changes}.items()}
    return Pop(NOBODY, RemotingCommand(code, ext=ext), 1000)


def test_a_pop_waits_as_long_as_it_says_and_no_longer_than_may_be() -> None:
    assert made(pollTime=500).deadline_ms == 1500
    assert made(pollTime=-5).deadline_ms == 1000
    assert made(pollTime=10**12).deadline_ms == 1000 + HOLD_MS_MAX


def test_a_pop_watches_its_queues_and_its_retry_topics() -> None:
    assert made().watched == (("T", -1), ("%RETRY%G_T", -1), ("%RETRY%G+T", -1))
    assert made(queueId=3).watched[0] == ("T", 3)
    assert made(order="true").watched == (("T", -1),)
    assert made(topic="%RETRY%G_T").watched == (("%RETRY%G_T", -1),)


@pytest.mark.parametrize("name", ["consumerGroup", "topic", "queueId", "maxMsgNums", "invisibleTime", "pollTime"])
def test_what_is_needed_must_be_there(name: str) -> None:
    fields: dict[str, Any] = {each: str(value) for each, value in pop_fields().items() if each != name}
    with pytest.raises(RequestRefused, match=name):
        Pop(NOBODY, RemotingCommand(RequestCode.POP_MESSAGE, ext=fields), 0)


def test_a_notification_needs_less() -> None:
    fields = {"consumerGroup": "G", "topic": "T", "queueId": "-1", "pollTime": "0"}
    assert Pop(NOBODY, RemotingCommand(RequestCode.NOTIFICATION, ext=fields), 0).is_notification
