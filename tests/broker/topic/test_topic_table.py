"""The topic table: what is made, kept, told and never deleted."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.brokers import broker_config
from simulation.manual_clock import ManualClock
from tiermq.broker.topic.topic_table import TopicTable, check_topic_name, decode_topics, encode_topics, system_topics
from tiermq.errors import RequestRefused, StoreDamaged
from tiermq.message.topic_name import is_broker_topic, is_system_topic
from tiermq.namesrv.topic_config import NO_VERSION, DataVersion, TopicConfig
from tiermq.remoting.codes import ResponseCode

ROCKETMQ_S = {
    "SELF_TEST_TOPIC": (1, 6),
    "TBW102": (8, 7),
    "BenchmarkTest": (1024, 6),
    "DefaultCluster": (16, 7),
    "b1": (1, 7),
    "OFFSET_MOVED_EVENT": (1, 6),
    "SCHEDULE_TOPIC_XXXX": (18, 6),
    "DefaultCluster_REPLY_TOPIC": (1, 6),
    "rmq_sys_REVIVE_LOG_DefaultCluster": (8, 6),
    "rmq_sys_SYNC_BROKER_MEMBER_b1": (1, 1),
    "RMQ_SYS_TRANS_HALF_TOPIC": (1, 6),
    "RMQ_SYS_TRANS_OP_HALF_TOPIC": (1, 6),
    "rmq_sys_wheel_timer": (1, 6),
}


def table(path: Path, **settings: object) -> TopicTable:
    return TopicTable(str(path), broker_config(**settings), ManualClock())


def test_a_new_broker_has_rocketmq_s_system_topics(tmp_path: Path) -> None:
    found = {name: (each.read_queues, each.perm) for name, each in table(tmp_path).table.items()}
    assert found == ROCKETMQ_S
    traced = {each.name for each in system_topics(broker_config(trace_topic_enable=True))}
    assert traced - found.keys() == {"RMQ_SYS_TRACE_TOPIC"}
    assert "TBW102" not in table(tmp_path / "strict", auto_create_topic_enable=False).table


def test_without_a_file_the_topics_are_those_that_the_store_holds(tmp_path: Path) -> None:
    held = {"orders": [0, 5], "%RETRY%kitchen": [0], "empty": [], "SCHEDULE_TOPIC_XXXX": [2], "rmq_sys_other": [0]}
    topics = TopicTable(str(tmp_path), broker_config(), ManualClock(), held)
    found = {name: each.write_queues for name, each in topics.table.items() if name not in ROCKETMQ_S}
    assert found == {"orders": 6, "%RETRY%kitchen": 1}
    assert topics.table["SCHEDULE_TOPIC_XXXX"].write_queues == 18
    topics.delete(["orders"])
    again = TopicTable(str(tmp_path), broker_config(), ManualClock(), held)
    assert again.get("orders") is None, "with a file, a topic that it lacks was deleted"
    assert again.get("%RETRY%kitchen") is not None


def test_a_change_is_on_disk_and_reported_when_it_returns(tmp_path: Path) -> None:
    topics = table(tmp_path)
    reported: list[Collection[str]] = []
    topics.listeners.append(lambda names: reported.append(sorted(names)))
    before = topics.data_version
    topics.put(TopicConfig("orders", 4, 5, 6, order=True, attributes={"+a": "b"}))
    assert topics.make("orders", 1, 1).read_queues == 4  # It is there already.
    topics.make("made", 2, 2)
    assert reported == [["orders"], ["made"]]
    assert topics.data_version.counter == before.counter + 2
    again = table(tmp_path)
    assert (dict(again.table), again.data_version) == (dict(topics.table), topics.data_version)
    document = json.loads((tmp_path / "topics.json").read_text())
    assert document["topicConfigTable"]["orders"] == {
        "attributes": {"+a": "b"},
        "order": True,
        "perm": 6,
        "readQueueNums": 4,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "orders",
        "topicSysFlag": 0,
        "writeQueueNums": 5,
    }


def test_topics_are_deleted_unless_they_are_the_system_s(tmp_path: Path) -> None:
    topics = table(tmp_path)
    topics.put_all([TopicConfig("a"), TopicConfig("b")])
    reported: list[Collection[str]] = []
    topics.listeners.append(reported.append)
    assert topics.delete(["a", "nobody", "TBW102", "b1", "DefaultCluster", "SCHEDULE_TOPIC_XXXX"]) == ["a"]
    assert topics.delete(["nobody"]) == []
    assert reported == [["a"]]
    assert table(tmp_path).get("a") is None
    assert set(ROCKETMQ_S) <= set(table(tmp_path).table)


@pytest.mark.parametrize(
    ("name", "pattern", "queues", "made"),
    [
        ("new", "TBW102", 4, TopicConfig("new", 4, 4, 6)),
        ("new", "TBW102", 99, TopicConfig("new", 8, 8, 6)),
        ("new", "TBW102", -3, TopicConfig("new", 1, 1, 6)),
        ("new", "DefaultCluster", 9, TopicConfig("new", 9, 9, 6)),
        ("new", "SELF_TEST_TOPIC", 4, None),
        ("new", "nothing", 4, None),
        ("%RETRY%G", "nothing", 4, TopicConfig("%RETRY%G", 1, 1, 6)),
        ("TBW102", "nothing", 4, TopicConfig("TBW102", 8, 8, 7)),
    ],
)
def test_a_topic_for_a_send_is_found_or_made_from_its_pattern(
    tmp_path: Path, name: str, pattern: str, queues: int, made: TopicConfig | None
) -> None:
    topics = table(tmp_path)
    assert topics.for_send(name, pattern, queues) == made
    assert topics.get(name) == made


def test_topics_of_units_carry_their_flag(tmp_path: Path) -> None:
    topics = table(tmp_path)
    made = [topics.for_send(name, "TBW102", 4, unit_mode=True) for name in ("plain", "%RETRY%G")]
    assert [each and each.sys_flag for each in made] == [1, 2]


def test_a_pattern_left_from_before_makes_nothing_once_that_is_switched_off(tmp_path: Path) -> None:
    table(tmp_path)
    assert table(tmp_path, auto_create_topic_enable=False).for_send("new", "TBW102", 4) is None


def test_a_name_server_says_which_topics_are_ordered(tmp_path: Path) -> None:
    topics = table(tmp_path)
    topics.put_all([TopicConfig("a"), TopicConfig("b", order=True)])
    topics.set_order({"a": "b1:4"})
    version = topics.data_version
    topics.set_order({"a": "b1:4"})
    assert [name for name, each in topics.table.items() if each.order] == ["a"]
    assert topics.data_version == version


def test_a_reader_s_table_never_changes(tmp_path: Path) -> None:
    topics = table(tmp_path)
    before = topics.table
    snapshot = topics.registration_snapshot()
    topics.put(TopicConfig("new"))
    assert "new" not in before
    assert topics.registration_snapshot().data_version != snapshot.data_version


def test_a_damaged_file_is_read_from_its_backup_or_refused(tmp_path: Path) -> None:
    topics = table(tmp_path)
    topics.put(TopicConfig("first"))
    topics.put(TopicConfig("second"))
    (tmp_path / "topics.json").write_bytes(b'{"topicConfigTable":[')
    assert table(tmp_path).get("first") is not None
    for name in ("topics.json", "topics.json.bak"):
        (tmp_path / name).write_bytes(b"garbage")
    with pytest.raises(StoreDamaged, match=r"topics\.json"):
        table(tmp_path)


NAMES = st.text("abcXYZ019%|-_", min_size=1, max_size=127)


@given(st.dictionaries(NAMES, st.integers(0, 64), max_size=5), st.integers(0, 2**60))
def test_a_table_reads_back_as_it_was_written(found: dict[str, int], counter: int) -> None:
    topics = {name: TopicConfig(name, queues, queues) for name, queues in found.items()}
    version = DataVersion(1, counter, 2)
    assert decode_topics(encode_topics(topics, version)) == (topics, version)
    assert decode_topics(b'{"topicConfigTable":{}}') == ({}, NO_VERSION)


@given(NAMES)
def test_a_legal_name_is_legal(name: str) -> None:
    check_topic_name(name)
    check_topic_name("%RETRY%" + name)


@pytest.mark.parametrize("name", ["", "a b", "a.b", "ä", "x" * 128, "a\x00", "a\n", "%RETRY%" + "g" * 250])
def test_an_illegal_name_is_an_invalid_parameter(name: str) -> None:
    with pytest.raises(RequestRefused, match="expected a topic") as refused:
        check_topic_name(name)
    assert refused.value.code == ResponseCode.INVALID_PARAMETER


def test_who_owns_a_topic_is_known_by_its_name() -> None:
    assert is_system_topic("rmq_sys_anything")
    assert not is_system_topic("orders")
    assert is_broker_topic("SCHEDULE_TOPIC_XXXX")
    assert not is_broker_topic("BenchmarkTest")
