"""Which topics stay out of the tier."""

from __future__ import annotations

import pytest

from tiermq.message.topic_name import SYSTEM_TOPICS, TRANSACTION_TOPICS
from tiermq.tier.dispatch.plan import TopicFilter


@pytest.mark.parametrize(
    "topic",
    ["", " ", "rmq_sys_anything", "rmq_sys_REVIVE_LOG_x", "%LMQ%light", "broker-a", "cluster", *sorted(SYSTEM_TOPICS)],
)
def test_the_system_s_own_topics_are_never_tiered(topic: str) -> None:
    assert TopicFilter("broker-a", "cluster").is_filtered(topic)
    assert TopicFilter("broker-a", "cluster", whitelist=[topic]).is_filtered(topic)


@pytest.mark.parametrize("topic", ["orders", "%RETRY%group", "%DLQ%group", "rmq_system", "RMQ"])
def test_every_other_topic_is(topic: str) -> None:
    assert not TopicFilter("broker-a", "cluster").is_filtered(topic)


def test_with_a_whitelist_only_its_topics_enter() -> None:
    topics = TopicFilter(whitelist=["orders"])
    assert [topics.is_filtered(name) for name in ("orders", "others")] == [False, True]


def test_system_topics_that_are_named_enter_all_the_same() -> None:
    topics = TopicFilter("broker-a", "cluster", also=TRANSACTION_TOPICS, whitelist=["orders"])
    assert [topics.is_filtered(name) for name in sorted(TRANSACTION_TOPICS)] == [False, False, False]
    assert topics.is_filtered("SCHEDULE_TOPIC_XXXX")
