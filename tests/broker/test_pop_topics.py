"""Names of POP's retry topics."""

from __future__ import annotations

from tiermq.broker.pop_topics import pop_retry_topic, pop_retry_topics, real_topic, topic_to_come_back_to


def test_retry_topics_have_rocketmq_s_names() -> None:
    assert pop_retry_topics("G", "T") == ("%RETRY%G_T", "%RETRY%G+T")
    assert pop_retry_topic("G", "%RETRY%G_T") == "%RETRY%G_T", "a retry topic has no retry topic of its own"


def test_a_mark_says_which_topic_is_meant() -> None:
    assert [real_topic("G", "T", mark) for mark in "012"] == ["T", "%RETRY%G_T", "%RETRY%G+T"]


def test_what_was_popped_comes_back_to_a_topic_that_the_store_takes() -> None:
    popped_from = ["T", "%RETRY%G_T", "%RETRY%G+T", "%RETRY%G+A+B"]
    assert [topic_to_come_back_to("G", topic) for topic in popped_from] == [*["%RETRY%G_T"] * 3, "%RETRY%G_A+B"]
