"""Changes of tables travel in the log: a replica that becomes the master has all of them, without a request."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.brokers import Producer, broker_config, running, send_command, stored
from broker.replication.elections import Member, member
from broker.replication.pairs import ask, caught_up, master, slave
from present import present
from tiermq.broker.broker import Broker
from tiermq.broker.broker_context import config_directory
from tiermq.broker.group.assignment_processor import AssignmentProcessor, RequestMode
from tiermq.broker.group.consumer_offsets import ConsumerOffsets
from tiermq.broker.topic.table_file import TableChange
from tiermq.broker.topic.topic_table import TopicTable
from tiermq.clock import SystemClock
from tiermq.kernel import Message
from tiermq.message.topic_name import REVIVE_GROUP, TABLE_LOG_TOPIC
from tiermq.namesrv.topic_config import PERM_READ, DataVersion, TopicConfig
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.replication.election import Role
from tiermq.store.delay_offsets import FILE as DELAY_FILE
from tiermq.store.delay_offsets import decode_delay_offsets
from waiting import until

NO_POLL = 10**9
"""Ms between two copies of all tables: they come by the log, or not at all."""


def in_sync(of: Member, *ids: int) -> None:
    until(lambda: of.election.decision.members == frozenset(ids))


@contextmanager
def pair(path: Path, **settings: Any) -> Iterator[tuple[Member, Member]]:
    """A master, and a replica in sync that has copied the tables once."""
    settings = {"master_sync_interval": NO_POLL, **settings}
    with member(path, 1, **settings) as first, member(path, 2, **settings) as second:
        first.lead(1)
        second.follow(first)
        in_sync(first, 1, 2)
        until(lambda: present(second.broker.metadata_sync).round_count == 1)
        yield first, second


def take_over(first: Member, second: Member) -> None:
    """The first is gone, and did not hand over."""
    first.election.is_valid = False
    second.lead(2)


def create_topic(broker: Broker, name: str, **fields: Any) -> None:
    values = {"readQueueNums": 4, "writeQueueNums": 4, "perm": 6, "topicFilterType": "SINGLE_TAG", **fields}
    ext: dict[str, Any] = {name: str(value) for name, value in values.items()}
    answer = ask(broker, RequestCode.UPDATE_AND_CREATE_TOPIC, topic=name, **ext)
    assert answer.code == ResponseCode.SUCCESS, answer.remark


def create_group(broker: Broker, name: str, **fields: Any) -> None:
    body = json.dumps({"groupName": name, **fields}).encode()
    answer = ask(broker, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body)
    assert answer.code == ResponseCode.SUCCESS, answer.remark


def commit(broker: Broker, group: str, topic: str, offset: int) -> None:
    fields: dict[str, Any] = {"consumerGroup": group, "topic": topic, "queueId": "0", "commitOffset": str(offset)}
    assert ask(broker, RequestCode.UPDATE_CONSUMER_OFFSET, **fields).code == ResponseCode.SUCCESS


def test_a_new_master_has_every_change_of_topics_groups_and_modes(tmp_path: Path) -> None:
    with pair(tmp_path) as (first, second):
        for name in ("kept", "altered", "gone"):
            create_topic(first.broker, name)
            create_group(first.broker, f"{name}-group")
        create_topic(first.broker, "altered", readQueueNums=8, attributes="+message.type=FIFO")
        create_group(first.broker, "altered-group", retryMaxTimes=3)
        ask(
            first.broker, RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, group="kept-group", topic="kept", readable="false"
        )
        ask(first.broker, RequestCode.DELETE_TOPIC_IN_BROKER, topic="gone")
        ask(first.broker, RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="gone-group")
        mode = {"topic": "kept", "consumerGroup": "kept-group", "mode": "POP", "popShareQueueNum": 2}
        ask(first.broker, RequestCode.SET_MESSAGE_REQUEST_MODE, json.dumps(mode).encode())
        topics, groups = first.broker.parts.topics.table, first.broker.parts.groups.table

        take_over(first, second)
        found = second.broker.parts
        assert found.topics.table == topics
        assert found.groups.table == groups
        assert present(found.topics.get("altered")).attributes == {"message.type": "FIFO"}
        assert present(found.groups.get("altered-group")).retry_max_times == 3
        assert found.groups.is_forbidden("kept-group", "kept", PERM_READ)
        assert found.topics.get("gone") is None
        assert found.groups.get("gone-group") is None
        [modes] = (each for each in second.broker.processors if isinstance(each, AssignmentProcessor))
        assert modes.mode_of("kept", "kept-group").mode is RequestMode.POP


def test_a_replica_that_never_asked_for_the_tables_has_them_from_the_log(tmp_path: Path) -> None:
    settings = {"master_sync_interval": NO_POLL}
    with member(tmp_path, 1, **settings) as first:
        first.lead(1)
        create_topic(first.broker, "before", attributes="+message.type=FIFO")
        create_group(first.broker, "before-group", retryMaxTimes=3)
        with member(tmp_path, 2, **settings) as second:
            second.broker.replication.take_decision = lambda decision: None  # type: ignore[method-assign]
            second.election.decide(replace(first.election.decision, role=Role.SLAVE, replica_id=2))
            assert present(second.broker.metadata_sync).round_count == 0
            present(second.broker.replication.slave).identify = None  # It does not know the master's client port.
            present(second.broker.replication.slave).set_master(first.keeper.ha_address, 1)
            in_sync(first, 1, 2)
            until(lambda: second.broker.parts.topics.get("before") is not None)
            assert present(second.broker.parts.topics.get("before")).attributes == {"message.type": "FIFO"}
            until(lambda: second.broker.parts.groups.get("before-group") is not None)
            assert second.broker.parts.topics.data_version == first.broker.parts.topics.data_version


def test_committed_offsets_reach_the_slave_within_a_second_and_resets_at_once(tmp_path: Path) -> None:
    with pair(tmp_path) as (first, second):
        create_topic(first.broker, "T")
        create_group(first.broker, "CG")
        with Producer(first.broker) as producer:
            for number in range(10):
                assert producer.send(body=b"%d" % number).code == ResponseCode.SUCCESS
        commit(first.broker, "CG", "T", 7)
        until(lambda: second.broker.parts.offsets.query("CG", "T", 0) == 7)
        fields: dict[str, Any] = {
            "topic": "T",
            "group": "CG",
            "timestamp": "0",
            "isForce": "true",
            "queueId": "0",
            "offset": "3",
        }
        answer = ask(first.broker, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **fields)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        take_over(first, second)
        assert second.broker.parts.offsets.query("CG", "T", 0) == 3


def test_offsets_that_a_killed_slave_had_not_written_are_read_from_the_log_again(tmp_path: Path) -> None:
    with pair(tmp_path) as (first, second):
        create_group(first.broker, "CG")
        with Producer(first.broker) as producer:
            for _ in range(10):
                producer.send()
        commit(first.broker, "CG", "T", 0)
        until(lambda: second.broker.parts.offsets.query("CG", "T", 0) == 0)
        second.broker.parts.offsets.flush()
        offsets = Path(second.broker.parts.offsets.path)
        written = offsets.read_bytes()
        commit(first.broker, "CG", "T", 5)
        until(lambda: second.broker.parts.offsets.query("CG", "T", 0) == 5)
        root = second.broker.parts.local.config.root_path
        second.keeper._stop_broker(None)
        offsets.write_bytes(written)  # As a killed process leaves it.
        assert present(decoded_offsets(root).table_log_next) > 0
        second.lead(2)
        assert second.broker.parts.offsets.query("CG", "T", 0) == 5


def decoded_offsets(root: str | os.PathLike[str]) -> ConsumerOffsets:
    return ConsumerOffsets(config_directory(root), SystemClock())


def test_a_deleted_topic_begins_again_at_zero_on_the_next_master(tmp_path: Path) -> None:
    with pair(tmp_path) as (first, second):
        with Producer(first.broker) as producer:
            producer.send(body=b"old")
            producer.send(body=b"old")
        ask(first.broker, RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")
        take_over(first, second)
        assert "T" not in second.broker.parts.local.topics()
        with Producer(second.broker) as producer:
            answer = producer.send(body=b"new")
        assert (answer.code, answer.ext["queueOffset"]) == (ResponseCode.SUCCESS, "0")
        assert [each.body for each in stored(second.broker)] == [b"new"]


def test_messages_of_a_topic_that_was_created_again_stay_on_the_slave(tmp_path: Path) -> None:
    with pair(tmp_path) as (first, second):
        with Producer(first.broker) as producer:
            producer.send(body=b"old", queue=0)
            producer.send(body=b"old", queue=1)
            ask(first.broker, RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")
            producer.send(body=b"new", queue=0)
            assert producer.send(body=b"newer", queue=0).ext["queueOffset"] == "1"
        take_over(first, second)
        assert [each.body for each in stored(second.broker)] == [b"new", b"newer"]
        assert stored(second.broker, queue_id=1) == []


def test_delay_levels_go_on_where_the_master_was(tmp_path: Path) -> None:
    with pair(tmp_path, message_delay_level="1s") as (first, second):
        with Producer(first.broker) as producer:
            producer.send(body=b"later", properties="DELAY\x011\x02")
        path = Path(config_directory(second.broker.parts.local.config.root_path), DELAY_FILE)
        until(lambda: path.exists() and decode_delay_offsets(path.read_bytes())[0] == {1: 1})
        take_over(first, second)
        until(lambda: [each.body for each in stored(second.broker)] == [b"later"])
        assert second.broker.delivery.delay_levels.delivered() == {1: 1}


def test_a_change_is_not_answered_ok_before_the_replicas_have_it(tmp_path: Path) -> None:
    with member(tmp_path, 1, in_sync_replicas=2) as first, member(tmp_path, 2) as second:
        first.lead(1)
        fields: dict[str, Any] = {
            "readQueueNums": "1",
            "writeQueueNums": "1",
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
        }
        answer = ask(first.broker, RequestCode.UPDATE_AND_CREATE_TOPIC, topic="T", **fields)
        assert answer.code == ResponseCode.SLAVE_NOT_AVAILABLE
        assert "made here; too few replicas are in sync" in (answer.remark or "")
        second.follow(first)
        in_sync(first, 1, 2)
        create_topic(first.broker, "U")
        assert second.broker.replication.is_slave
        until(lambda: second.broker.parts.topics.get("U") is not None)


def test_with_too_few_replicas_for_sends_a_change_is_reported_as_not_in_the_log(tmp_path: Path) -> None:
    with member(tmp_path, 1, in_sync_replicas=2, min_in_sync_replicas=2) as first:
        first.lead(1)
        body = json.dumps({"groupName": "CG"}).encode()
        answer = ask(first.broker, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body)
        assert answer.code == ResponseCode.SLAVE_NOT_AVAILABLE
        assert "the log does not take it" in (answer.remark or "")


def test_a_replaced_master_takes_the_tables_of_the_new_one(tmp_path: Path) -> None:
    with pair(tmp_path) as (first, second):
        create_topic(first.broker, "both")
        first.election.records = False
        second.lead(2)
        first.broker.parts.topics.put(TopicConfig("lost", 1, 1))  # Not acknowledged: its replica has gone.
        create_topic(second.broker, "new")
        first.follow(second)
        until(lambda: first.keeper.broker is not None and first.broker.replication.is_slave)
        until(lambda: first.keeper.broker is not None and first.broker.parts.topics.get("new") is not None)
        until(lambda: first.broker.parts.topics.get("lost") is None)
        until(lambda: first.broker.parts.topics.data_version == second.broker.parts.topics.data_version)


def test_whole_tables_are_written_again_when_the_log_lost_them(tmp_path: Path) -> None:
    with member(tmp_path, 1) as first:
        first.lead(1)
        log = present(first.broker.table_log)
        log.note()
        before = log.record_count
        log.note()
        assert log.record_count == before, "nothing has changed"
        log._tables_at = -1
        log.note()
        assert log.record_count > before


def test_a_large_table_comes_in_parts(tmp_path: Path) -> None:
    with pair(tmp_path) as (first, second):
        create_topic(first.broker, "T")
        topics = [TopicConfig(f"topic-{number:04}", 2, 2) for number in range(3_000)]
        first.broker.parts.topics.put_all(topics)
        log = present(first.broker.table_log)
        before = log.record_count
        log._lacks_tables = True
        log.note()
        assert log.record_count - before > 5
        local = second.broker.parts.local
        until(lambda: local.max_offset(TABLE_LOG_TOPIC, 0) == first.broker.parts.local.max_offset(TABLE_LOG_TOPIC, 0))
        until(lambda: second.broker.parts.topics.data_version == first.broker.parts.topics.data_version)
        assert second.broker.parts.topics.table == first.broker.parts.topics.table
        assert second.broker.table_replay.skipped.count == 0


def test_a_slave_by_its_settings_gets_changes_at_once(tmp_path: Path) -> None:
    with master(tmp_path) as first, slave(tmp_path, first, master_sync_interval=NO_POLL) as second:
        until(lambda: present(second.metadata_sync).round_count == 1)
        present(first.table_log).note()
        create_topic(first, "orders")
        until(lambda: second.parts.topics.get("orders") is not None)
        caught_up(second, first)
        assert second.parts.topics.data_version == first.parts.topics.data_version


def test_a_broker_without_replicas_writes_nothing(tmp_path: Path) -> None:
    with master(tmp_path) as broker:
        create_topic(broker, "orders")
        create_group(broker, "CG")
        commit(broker, "CG", "orders", 0)
        log = present(broker.table_log)
        assert not log.has_work
        log.note()
        broker.parts.offsets.flush(is_last=True)
        assert broker.parts.local.max_physical_offset == 0
        assert b"tableLogNext" not in Path(broker.parts.offsets.path).read_bytes()


def test_clients_reach_nothing_of_the_table_log(tmp_path: Path) -> None:
    with running(tmp_path) as broker, Producer(broker) as producer:
        assert producer.send(TABLE_LOG_TOPIC).code == ResponseCode.NO_PERMISSION
        fields: dict[str, Any] = {
            "readQueueNums": "1",
            "writeQueueNums": "1",
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
        }
        answer = ask(broker, RequestCode.UPDATE_AND_CREATE_TOPIC, topic=TABLE_LOG_TOPIC, **fields)
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert ask(broker, RequestCode.DELETE_TOPIC_IN_BROKER, topic=TABLE_LOG_TOPIC).code != ResponseCode.SUCCESS


def test_a_table_that_was_read_before_a_change_of_the_log_is_not_taken(tmp_path: Path) -> None:
    table = TopicTable(str(tmp_path), broker_config(), SystemClock())
    table.is_followed = True
    base, after = DataVersion(1, 10, 1), DataVersion(2, 11, 1)
    read = {"T": TopicConfig("T", 1, 1)}
    table.follow(read, base)
    change = TableChange(base, after, {"U": TopicConfig("U", 1, 1).to_json()})
    assert table.follow_log(change) is True
    table.follow(read, base)  # The answer to a request that was sent before.
    assert table.get("U") is not None
    assert table.data_version == after
    assert table.follow_log(change) is None, "it has that already"
    far = TableChange(DataVersion(8, 19, 1), DataVersion(9, 20, 1), {"V": TopicConfig("V", 1, 1).to_json()})
    assert table.follow_log(far) is False, "changes between are missing"
    assert table.get("V") is not None
    assert table.data_version == after
    again = TopicTable(str(tmp_path), broker_config(), SystemClock())
    assert (again.get("U"), again.get("V")) == (table.get("U"), table.get("V"))


def test_what_a_slave_creates_itself_has_no_version(tmp_path: Path) -> None:
    with master(tmp_path) as first, slave(tmp_path, first) as second:
        until(lambda: second.parts.groups.data_version == first.parts.groups.data_version)
        assert second.parts.groups.find_or_make("of-a-heartbeat") is not None
        assert second.parts.groups.data_version == first.parts.groups.data_version


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=8), children, max_size=3),
    max_leaves=8,
)
LIKELY: dict[str, list[Any]] = {
    "put": [{"a@b": {"0": 1}}, {"a@b": {"-1": -5}}, {"../x": {"topicName": "../x"}}, {"1": 5}, {"T": {}}],
    "gone": [["T"], [1], ["../.."]],
    "base": [[0, 0, 0], [1, 2, 3]],
    "version": [[0, 9, 9], [1, 2, 3], [2**80, 1, 1], ["1", 2, 3]],
    "part": [0, 1, -1],
    "parts": [1, 2, 2**40],
    "forbidden": [{"CG": {"T": 4}}, {"CG": 4}],
    "popLogEnds": [[1, 2], ["x"]],
    "modes": ["{}", '{"messageRequestModeMap":{"T":{"CG":{"mode":"POP"}}}}', "{"],
}
TABLES: dict[str, st.SearchStrategy[Any]] = {
    "table": st.sampled_from(["topics", "groups", "offsets", "delays", "modes", "", "T"])
}
RECORDS = st.binary(max_size=64) | st.fixed_dictionaries(
    TABLES, optional={name: ANY_JSON | st.sampled_from(values) for name, values in LIKELY.items()}
).map(lambda value: json.dumps(value).encode())


@pytest.fixture(scope="module")
def open_slave(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    path = tmp_path_factory.mktemp("hostile")
    with running(path) as broker:
        yield broker


@given(bodies=st.lists(RECORDS, min_size=1, max_size=5))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_a_record_has_it_is_applied_or_skipped_and_the_next_one_is_read(
    open_slave: Broker, bodies: list[bytes]
) -> None:
    replay, local = open_slave.table_replay, open_slave.parts.local
    for body in bodies:
        local.put(Message(TABLE_LOG_TOPIC, body, 0))
    before = replay.applied_count + replay.skipped.count
    replay.catch_up()
    assert replay.applied_count + replay.skipped.count >= before + len(bodies)
    assert all("/" not in name for name in open_slave.parts.topics.table)
    good = json.dumps({"table": "offsets", "put": {"T@CG": {"0": before}}}).encode()
    local.put(Message(TABLE_LOG_TOPIC, good, 0))
    replay.catch_up()
    assert open_slave.parts.offsets.query("CG", "T", 0) == before


def test_a_record_that_cannot_be_used_is_counted_and_the_tables_are_asked_for(tmp_path: Path) -> None:
    with pair(tmp_path) as (first, second):
        rounds = present(second.broker.metadata_sync).round_count
        first.broker.parts.local.put(Message(TABLE_LOG_TOPIC, b"no JSON", 0))
        until(lambda: second.broker.table_replay.skipped.count == 1)
        until(lambda: present(second.broker.metadata_sync).round_count > rounds)
        assert "tiermq_table_log_skipped_total 1" in second.broker.render_metrics()
        create_topic(first.broker, "after")
        until(lambda: second.broker.parts.topics.get("after") is not None)


def test_the_position_of_pops_travels_with_the_offsets(tmp_path: Path) -> None:
    with pair(tmp_path) as (first, second):
        with Producer(first.broker) as producer:
            for number in range(3):
                producer.send(body=b"%d" % number)
        create_group(first.broker, "CG")
        ext: dict[str, Any] = {
            "consumerGroup": "CG", "topic": "T", "queueId": "0", "maxMsgNums": "2", "invisibleTime": "600000",
            "pollTime": "0", "bornTime": "0", "initMode": "0", "expType": "TAG", "exp": "*", "order": "false",
        }  # fmt: skip
        answer = ask(first.broker, RequestCode.POP_MESSAGE, **ext)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        until(lambda: second.broker.parts.offsets.query("CG", "T", 0) == 2)
        assert sum(present(second.broker.parts.offsets.log_ends)) == 1
        take_over(first, second)
        assert second.broker.parts.offsets.query("CG", "T", 0) == 2
        assert second.broker.parts.offsets.query(REVIVE_GROUP, "rmq_sys_REVIVE_LOG_DefaultCluster", 0) <= 0


def test_a_send_creates_its_topic_before_its_message_in_the_log(tmp_path: Path) -> None:
    with pair(tmp_path) as (first, second):
        with Producer(first.broker) as producer:
            assert producer.client.request(send_command("made-by-a-send", b"0", queues=3)).code == ResponseCode.SUCCESS
        take_over(first, second)
        assert present(second.broker.parts.topics.get("made-by-a-send")).write_queues == 3
