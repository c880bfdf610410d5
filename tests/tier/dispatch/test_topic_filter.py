"""Which topics stay out of the tier."""

from __future__ import annotations

import pytest

from tiermq.message.topic_name import SYSTEM_TOPICS, TRANSACTION_TOPICS
from tiermq.tier.dispatch.topic_filter import TopicFilter


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


def test_a_topic_is_kept_out_from_the_moment_it_is_blacklisted() -> None:
    topics = TopicFilter()
    assert not topics.is_filtered("orders")
    topics.add_to_blacklist("orders")
    assert topics.is_filtered("orders")
    topics.remove_from_blacklist("orders")
    assert not topics.is_filtered("orders")


def test_with_a_whitelist_only_its_topics_enter() -> None:
    topics = TopicFilter(whitelist=["orders"])
    assert [topics.is_filtered(name) for name in ("orders", "others")] == [False, True]
    topics.set_whitelist(["others"])
    assert [topics.is_filtered(name) for name in ("orders", "others")] == [True, False]
    topics.set_whitelist(None)
    assert not topics.is_filtered("orders")


def test_system_topics_that_are_named_enter_all_the_same() -> None:
    topics = TopicFilter("broker-a", "cluster", also=TRANSACTION_TOPICS, whitelist=["orders"])
    assert [topics.is_filtered(name) for name in sorted(TRANSACTION_TOPICS)] == [False, False, False]
    assert topics.is_filtered("SCHEDULE_TOPIC_XXXX")
    topics.add_to_blacklist("RMQ_SYS_TRANS_HALF_TOPIC")
    assert topics.is_filtered("RMQ_SYS_TRANS_HALF_TOPIC")
