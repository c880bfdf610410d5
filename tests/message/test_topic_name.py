"""Legal names and the system's own."""

from __future__ import annotations

import pytest

from tiermq.errors import IllegalMessage
from tiermq.message.topic_name import (
    check_group,
    check_topic,
    dead_letter_topic,
    group_problem,
    is_dead_letter_topic,
    is_light_queue,
    is_retry_topic,
    is_system_topic,
    may_multi_dispatch,
    retry_topic,
    topic_problem,
)


@pytest.mark.parametrize(
    "topic",
    ["T", "order-events_1", "a|b", "%RETRY%group", "t" * 127, "%RETRY%" + "g" * 248, "%DLQ%" + "g" * 250, "%LMQ%x"],
)
def test_these_topics_are_legal(topic: str) -> None:
    assert topic_problem(topic) is None
    check_topic(topic)


@pytest.mark.parametrize(
    ("topic", "reason"),
    [
        ("", "blank"),
        ("  \t", "blank"),
        ("a b", "illegal characters"),
        ("a/b", "illegal characters"),
        ("..", "illegal characters"),
        ("a\x00", "illegal characters"),
        ("a\n", "illegal characters"),
        ("größe", "illegal characters"),
        ("主题", "illegal characters"),
        ("٣", "illegal characters"),
        ("t" * 128, "more than 127"),
        ("%RETRY%" + "g" * 249, "more than 255"),
    ],
)
def test_these_topics_are_refused_with_the_reason(topic: str, reason: str) -> None:
    assert reason in (topic_problem(topic) or "")
    with pytest.raises(IllegalMessage, match=reason):
        check_topic(topic)


def test_a_group_has_at_most_120_characters() -> None:
    assert group_problem("g" * 120) is None
    check_group("g" * 120)
    with pytest.raises(IllegalMessage, match="more than 120"):
        check_group("g" * 121)
    assert "blank" in (group_problem("") or "")


@pytest.mark.parametrize(
    "topic",
    [
        "TBW102", "SCHEDULE_TOPIC_XXXX", "BenchmarkTest", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRACE_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT",
        "CHECKPOINT_TOPIC", "rmq_sys_wheel_timer", "rmq_sys_REVIVE_LOG_c", "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
    ],
)  # fmt: skip
def test_system_topics_are_known(topic: str) -> None:
    assert is_system_topic(topic)


def test_users_topics_are_not_the_systems() -> None:
    assert not is_system_topic("TopicTest")
    assert not is_system_topic("%RETRY%rmq_sys_")


def test_prefixes_show_retry_dead_letter_and_light_queues() -> None:
    assert is_retry_topic(retry_topic("g"))
    assert is_dead_letter_topic(dead_letter_topic("g"))
    assert is_light_queue("%LMQ%q")
    assert not is_light_queue("q")


def test_retry_system_and_schedule_topics_are_not_dispatched_to_light_queues() -> None:
    assert may_multi_dispatch("TopicTest")
    assert [t for t in ("%RETRY%g", "rmq_sys_x", "SCHEDULE_TOPIC_XXXX") if may_multi_dispatch(t)] == []
