"""A pull as it is read from its command."""

from __future__ import annotations

from typing import cast

import pytest

from broker.consuming import pull_fields
from tiermq.broker.pull import Pull
from tiermq.errors import RequestRefused
from tiermq.remoting.codes import RequestCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.connection import Connection


def pull_of(**changes: object) -> Pull:
    ext = {name: str(value) for name, value in {**pull_fields(5), **changes}.items() if value is not None}
    return Pull(cast("Connection", None), RemotingCommand(RequestCode.PULL_MESSAGE, ext=ext))


def test_every_field_is_read() -> None:
    pull = pull_of(commitOffset=4, sysFlag=3, suspendTimeoutMillis=7_000, subVersion=9)
    assert (pull.group, pull.topic, pull.queue_id, pull.offset, pull.max_messages) == ("G", "T", 0, 5, 32)
    assert (pull.flags, pull.commit_offset, pull.suspend_ms, pull.subscription_version) == (3, 4, 7_000, 9)
    assert pull.message_filter is None


@pytest.mark.parametrize("field", ["consumerGroup", "topic", "queueId", "queueOffset", "maxMsgNums", "sysFlag"])
def test_a_pull_that_lacks_a_field_is_refused(field: str) -> None:
    with pytest.raises(RequestRefused, match=field):
        pull_of(**{field: None})


def test_how_long_it_may_wait_is_needed_only_of_a_pull_that_may() -> None:
    assert pull_of(sysFlag=0, suspendTimeoutMillis=None).suspend_ms == 0
    with pytest.raises(RequestRefused, match="suspendTimeoutMillis"):
        pull_of(sysFlag=2, suspendTimeoutMillis=None)


@pytest.mark.parametrize(("field", "value"), [("queueId", 2**31), ("queueOffset", "1.5"), ("maxMsgNums", "many")])
def test_a_pull_with_a_number_that_is_none_is_refused(field: str, value: object) -> None:
    with pytest.raises(RequestRefused, match=field):
        pull_of(**{field: value})
