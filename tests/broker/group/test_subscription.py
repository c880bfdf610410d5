"""What clients say of themselves: subscriptions and heartbeats, in the dialects of several languages."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiermq.broker.group.subscription import ConsumeFromWhere, ConsumeType, Heartbeat, MessageModel, Subscription
from tiermq.errors import RequestRefused

SUBSCRIPTIONS = st.builds(
    Subscription,
    st.text(min_size=1),
    st.text(),
    st.sampled_from(["TAG", "SQL92"]),
    st.frozensets(st.text()),
    st.frozensets(st.integers(-(2**31), 2**31 - 1)),
    st.integers(-(2**63), 2**63 - 1),
    st.booleans(),
)


@given(SUBSCRIPTIONS)
def test_a_subscription_survives_its_json(subscription: Subscription) -> None:
    assert Subscription.from_json(json.loads(json.dumps(subscription.to_json()))) == subscription


def test_a_java_heartbeat_is_understood() -> None:
    reported = {
        "clientID": "10.0.0.9@4711#123",
        "heartbeatFingerprint": 7,
        "withoutSub": False,
        "producerDataSet": [{"groupName": "PG"}],
        "consumerDataSet": [
            {
                "consumeFromWhere": "CONSUME_FROM_TIMESTAMP",
                "consumeType": "CONSUME_ACTIVELY",
                "groupName": "CG",
                "messageModel": "BROADCASTING",
                "unitMode": True,
                "subscriptionDataSet": [
                    {"codeSet": [2598919], "subString": "TagA", "subVersion": 5, "tagsSet": ["TagA"], "topic": "T"}
                ],
            }
        ],
    }
    beat = Heartbeat.decode(json.dumps(reported).encode())
    assert (beat.client_id, beat.producers, beat.fingerprint) == ("10.0.0.9@4711#123", ("PG",), 7)
    (consumer,) = beat.consumers
    assert consumer.consume_from_where is ConsumeFromWhere.CONSUME_FROM_TIMESTAMP
    assert consumer.consume_type is ConsumeType.CONSUME_ACTIVELY
    assert consumer.message_model is MessageModel.BROADCASTING
    assert consumer.unit_mode
    assert consumer.subscriptions == (
        Subscription("T", "TagA", "TAG", frozenset({"TagA"}), frozenset({2598919}), version=5),
    )


def test_a_cpp_heartbeat_with_numbers_for_enums_and_text_for_numbers_is_understood() -> None:
    reported = {
        "clientID": "c",
        "consumerDataSet": [
            {
                "groupName": "CG",
                "consumeType": 1,
                "messageModel": 1,
                "consumeFromWhere": 0,
                "subscriptionDataSet": [{"topic": "T", "subString": "*", "subVersion": "1790000000000"}],
            }
        ],
    }
    (consumer,) = Heartbeat.decode(json.dumps(reported).encode()).consumers
    assert consumer.message_model is MessageModel.CLUSTERING
    assert consumer.subscriptions[0].version == 1_790_000_000_000


@pytest.mark.parametrize(
    "reported",
    [
        {},
        {"clientID": ""},
        {"clientID": 5},
        {"clientID": "c", "consumerDataSet": {}},
        {"clientID": "c", "consumerDataSet": [{}]},
        {"clientID": "c", "producerDataSet": [7]},
        {"clientID": "c", "consumerDataSet": [{"groupName": "g", "subscriptionDataSet": [{"subString": "*"}]}]},
        {
            "clientID": "c",
            "consumerDataSet": [{"groupName": "g", "subscriptionDataSet": [{"topic": "T", "subVersion": "x"}]}],
        },
    ],
)
def test_what_is_no_heartbeat_is_refused(reported: dict[str, Any]) -> None:
    with pytest.raises(RequestRefused, match="expected"):
        Heartbeat.decode(json.dumps(reported).encode())


@pytest.mark.parametrize(
    ("expression", "kind", "tags"),
    [(None, None, set()), ("*", "TAG", set()), ("", "TAG", set()), ("A||B", None, {"A", "B"}), (" A || ", "", {"A"})],
)
def test_a_pull_may_bring_a_tag_expression(expression: str | None, kind: str | None, tags: set[str]) -> None:
    found = Subscription.of("T", expression, kind)
    assert found.tags == tags
    assert len(found.codes) == len(tags)
    assert found.is_by_tag


def test_a_pull_may_bring_sql() -> None:
    found = Subscription.of("T", "a = 1", "SQL92", 9)
    assert (found.is_by_tag, found.expression, found.version) == (False, "a = 1", 9)


@pytest.mark.parametrize(("expression", "kind"), [("||", "TAG"), ("", "SQL92"), (None, "SQL92")])
def test_an_expression_of_nothing_is_refused(expression: str | None, kind: str) -> None:
    with pytest.raises(RequestRefused, match="expected"):
        Subscription.of("T", expression, kind)
