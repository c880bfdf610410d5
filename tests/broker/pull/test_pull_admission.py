"""Every reason for which a pull is refused, with the code that clients expect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from broker.consuming import Peer, bodies_of, part, pull_fields, put, running
from tiermq.broker.broker import Broker
from tiermq.broker.group.group_table import SubscriptionGroup
from tiermq.broker.pull.pull_admission import Pull
from tiermq.broker.pull.pull_processor import PullProcessor
from tiermq.errors import RequestRefused
from tiermq.namesrv.topic_config import TopicConfig
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.connection import Connection

NO_PERMISSION = ResponseCode.NO_PERMISSION


def forbid_group(broker: Broker) -> None:
    broker.parts.groups.put(SubscriptionGroup("G", consume_enable=False))


def forbid_broadcast(broker: Broker) -> None:
    broker.parts.groups.put(SubscriptionGroup("G", consume_broadcast_enable=False))


def forbid_topic(broker: Broker) -> None:
    broker.parts.topics.put(TopicConfig("T", 4, 4, perm=2))


def forbid_both(broker: Broker) -> None:
    broker.parts.groups.set_forbidden("G", "T", 4)


@pytest.mark.parametrize(
    ("change", "model", "forbidden_type"),
    [
        (forbid_group, "CLUSTERING", "2"),
        (forbid_topic, "CLUSTERING", "3"),
        (forbid_broadcast, "BROADCASTING", "4"),
        (forbid_both, "CLUSTERING", "5"),
    ],
)
def test_what_is_forbidden_is_refused_at_once_and_reports_by_whom(
    tmp_path: Path, change: Callable[[Broker], None], model: str, forbidden_type: str
) -> None:
    with running(tmp_path) as broker, Peer(broker) as peer:
        peer.join(model=model)
        put(broker, "a")
        assert peer.pull().code == 0
        change(broker)
        answer = peer.pull()
        assert (answer.code, answer.ext) == (NO_PERMISSION, {"forbiddenType": forbidden_type})


def test_a_broker_that_may_not_be_read_reports_so(tmp_path: Path) -> None:
    with running(tmp_path, broker_permission=2) as broker, Peer(broker) as peer:
        peer.join()
        answer = peer.pull()
        assert (answer.code, answer.ext) == (NO_PERMISSION, {"forbiddenType": "1"})


def test_a_group_comes_by_itself_only_where_that_is_allowed(tmp_path: Path) -> None:
    with running(tmp_path, auto_create_subscription_group=False) as broker, Peer(broker) as peer:
        assert peer.pull().code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    with running(tmp_path) as broker, Peer(broker) as peer:
        assert peer.pull(sysFlag=4, subscription="*").code == ResponseCode.PULL_NOT_FOUND
        assert broker.parts.groups.get("G") is not None
        assert peer.pull(consumerGroup="bad name", sysFlag=4).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"topic": "unknown"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queueId": 4}, ResponseCode.INVALID_PARAMETER),
        ({"queueId": -1}, ResponseCode.INVALID_PARAMETER),
        ({"consumerGroup": "nobody"}, ResponseCode.SUBSCRIPTION_NOT_EXIST),
        ({"topic": "U"}, ResponseCode.SUBSCRIPTION_NOT_EXIST),
        ({"subVersion": 2}, ResponseCode.SUBSCRIPTION_NOT_LATEST),
        ({"sysFlag": 4, "subscription": "||"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ({"sysFlag": 4, "subscription": "a =", "expressionType": "SQL92"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ({"sysFlag": 4, "subscription": "a", "expressionType": "XPATH"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ({"sysFlag": "x"}, ResponseCode.SYSTEM_ERROR),
    ],
)
def test_a_pull_that_does_not_fit_is_refused(tmp_path: Path, changes: dict[str, Any], code: int) -> None:
    with running(tmp_path) as broker, Peer(broker) as peer:
        broker.parts.topics.put(TopicConfig("U"))
        peer.join()
        put(broker, "a")
        assert peer.pull().code == 0
        answer = peer.pull(**changes)
        assert answer.code == code
        assert answer.remark
        assert broker.parts.server.handler_errors == 0


def test_a_registered_expression_that_is_none_has_a_code_of_its_own(tmp_path: Path) -> None:
    with running(tmp_path) as broker, Peer(broker) as peer:
        peer.join(expression="a = ", expression_type="SQL92")
        assert peer.pull().code == ResponseCode.FILTER_DATA_NOT_EXIST
        peer.join(expression="a = 1", expression_type="SQL92", version=2)
        assert peer.pull().code == ResponseCode.PULL_NOT_FOUND


def test_sql_that_is_switched_off_is_refused(tmp_path: Path) -> None:
    with running(tmp_path, enable_property_filter=False) as broker, Peer(broker) as peer:
        peer.join(expression="a = 1", expression_type="SQL92")
        assert peer.pull().code == ResponseCode.SYSTEM_ERROR
        assert peer.pull(sysFlag=4, subscription="a = 1", expressionType="SQL92").code == ResponseCode.SYSTEM_ERROR


def test_what_was_found_right_is_looked_at_again_when_anything_changes(tmp_path: Path) -> None:
    with running(tmp_path) as broker, Peer(broker) as peer:
        put(broker, "a", tags="A")
        put(broker, "b", tags="B")
        peer.join()
        assert bodies_of(peer.pull()) == ["a", "b"]
        peer.join(expression="B", version=2)
        assert bodies_of(peer.pull()) == ["b"]
        assert bodies_of(peer.pull(sysFlag=4, subscription="A")) == ["a"], "its own expression wins"
        assert bodies_of(peer.pull()) == ["b"], "and is not remembered"
        topic = broker.parts.topics.get("T")
        assert topic is not None
        broker.parts.topics.put(replace(topic, read_queues=0))
        assert peer.pull().code == ResponseCode.INVALID_PARAMETER


def test_what_was_given_out_is_counted_by_group_and_topic(tmp_path: Path) -> None:
    with running(tmp_path) as broker, Peer(broker) as peer:
        put(broker, "a", "b")
        peer.join()
        answer = peer.pull()
        counted = part(broker, PullProcessor).admission.remembered["G", "T"]
        assert (counted.message_count, counted.byte_count) == (2, len(answer.body))


def test_retries_are_filtered_as_their_first_topic_is_where_that_is_wanted(tmp_path: Path) -> None:
    with running(tmp_path, filter_support_retry=True) as broker, Peer(broker) as peer:
        peer.join(expression="n > 1", expression_type="SQL92")
        beat = {"topic": "%RETRY%G", "subVersion": 1, "subString": "*"}
        data = {
            "clientID": "c1",
            "consumerDataSet": [
                {
                    "groupName": "G",
                    "subscriptionDataSet": [
                        beat,
                        {"topic": "T", "subVersion": 1, "subString": "n > 1", "expressionType": "SQL92"},
                    ],
                }
            ],
        }
        assert peer.ask(34, data).code == 0
        for number in (1, 2):
            properties = {"n": str(number), "RETRY_TOPIC": "T"}
            put(broker, f"{number}", topic="%RETRY%G", properties=properties)
        put(broker, "3", topic="%RETRY%G", properties={"n": "0", "RETRY_TOPIC": "another"})
        put(broker, "4", topic="%RETRY%G", properties={"n": "0"})
        assert bodies_of(peer.pull(topic="%RETRY%G")) == ["2", "3", "4"]


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
