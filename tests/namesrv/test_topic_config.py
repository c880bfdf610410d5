"""Topics and versions as RocketMQ's JSON."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiermq.errors import RequestRefused
from tiermq.namesrv.topic_config import DataVersion, TopicConfig
from tiermq.remoting.json_dialect import text_map_in
from tiermq.settings import INT_MAX, LONG_MAX

INT32 = st.integers(-INT_MAX - 1, INT_MAX)
INT64 = st.integers(-LONG_MAX - 1, LONG_MAX)
CONFIGS = st.builds(
    TopicConfig,
    st.text(min_size=1, max_size=8),
    INT32,
    INT32,
    INT32,
    INT32,
    st.booleans(),
    st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=2),
    st.sampled_from(["SINGLE_TAG", "MULTI_TAG"]),
)


@given(CONFIGS)
def test_a_topic_reads_back_as_it_was_written(config: TopicConfig) -> None:
    assert TopicConfig.from_json(config.to_json()) == config


@given(st.builds(DataVersion, INT64, INT64, INT64))
def test_a_version_reads_back_as_it_was_written(version: DataVersion) -> None:
    assert DataVersion.from_json(version.to_json()) == version


def test_the_fields_have_rocketmq_s_names() -> None:
    assert TopicConfig("orders", 4, 8).to_json() == {
        "attributes": {},
        "order": False,
        "perm": 6,
        "readQueueNums": 4,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "orders",
        "topicSysFlag": 0,
        "writeQueueNums": 8,
    }


def test_absent_fields_have_java_s_defaults_and_the_key_is_the_name() -> None:
    assert TopicConfig.from_json({"perm": "7"}, "orders") == TopicConfig("orders", 16, 16, 7)


def test_the_next_version_counts_and_keeps_the_state() -> None:
    assert DataVersion(1, 2, 3).next(9) == DataVersion(9, 3, 3)
    assert DataVersion(1, 2, 3).next(9, state_version=4) == DataVersion(9, 3, 4)


def test_values_of_a_map_become_text() -> None:
    assert text_map_in({"a": 1, "b": True, "c": "x", "d": None}, "attributes") == {"a": "1", "b": "true", "c": "x"}


@pytest.mark.parametrize(
    "bad",
    [
        [],
        "text",
        {},
        {"topicName": 7},
        {"topicName": "t", "perm": "many"},
        {"topicName": "t", "perm": 2**31},
        {"topicName": "t", "attributes": []},
        {"topicName": "t", "attributes": {"k": {}}},
    ],
)
def test_what_is_no_topic_is_refused(bad: Any) -> None:
    with pytest.raises(RequestRefused):
        TopicConfig.from_json(bad)


@pytest.mark.parametrize("bad", [[], {"counter": "x"}, {"timestamp": 2**63}, {"stateVersion": []}])
def test_what_is_no_version_is_refused(bad: Any) -> None:
    with pytest.raises(RequestRefused):
        DataVersion.from_json(bad)
