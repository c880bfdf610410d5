"""A TierMQ master and its TierMQ slave, over the wire."""

from __future__ import annotations

import json
import logging
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

from broker.brokers import SMALL, Producer, broker_config, running, send_command, stored
from broker.replication.pairs import ask, caught_up, master, slave, synced, until
from tiermq.broker.group.group_table import SubscriptionGroup
from tiermq.delivery.timer.timer_checkpoint import SUM_MASK, VALUES, decode_progress
from tiermq.errors import BadConfig, StoreDamaged
from tiermq.namesrv.name_server import NameServer
from tiermq.namesrv.name_server_config import NameServerConfig
from tiermq.namesrv.topic_config import TopicConfig
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.json_dialect import decode_object
from tiermq.store.delay_offsets import decode_delay_offsets
from tiermq.store.local_store import LocalStore


def test_a_slave_has_what_was_sent_to_its_master(tmp_path: Path) -> None:
    with master(tmp_path) as first, Producer(first) as producer:
        for number in range(20):
            assert producer.send(body=b"before %d" % number).code == ResponseCode.SUCCESS
        with slave(tmp_path, first) as copy:
            for number in range(20):
                producer.send(body=b"after %d" % number)
            caught_up(copy, first)
            assert [each.body for each in stored(copy)] == [each.body for each in stored(first)]
            assert copy.problems() == {}


def test_a_slave_with_larger_log_files_than_its_masters_is_no_replica_and_says_so(tmp_path: Path) -> None:
    """It would take the end of a file of its master for the end of its own, and show nothing of what follows."""
    small, large = ({"mapped_file_size_commit_log": size} for size in (65_536, 131_072))
    with master(tmp_path, store=small) as first, Producer(first) as producer:
        assert first.replication.master is not None
        with slave(tmp_path, first, store=large) as copy:
            for number in range(100):
                assert producer.send(body=b"%d" % number + b"." * 1_000).code == ResponseCode.SUCCESS
            until(lambda: "another mappedFileSizeCommitLog" in copy.problems().get("replication", ""))
            until(lambda: first.replication.master.replicas() == [])  # type: ignore[union-attr]
            killed = tmp_path / "killed"
            shutil.copytree(tmp_path / "slave1" / "store", killed, ignore=shutil.ignore_patterns("lock"))
    log = killed / "commitlog" / f"{0:020}"
    before = log.read_bytes()
    for role in ("SLAVE", "ASYNC_MASTER"):
        with pytest.raises(StoreDamaged, match="another mappedFileSizeCommitLog"):
            LocalStore.open(killed, accept_weaker=True, **{**SMALL, **large, "broker_role": role})
        assert log.read_bytes() == before, "nothing is erased"


def test_a_slave_finds_its_master_by_the_name_server_and_clients_find_the_slave(tmp_path: Path) -> None:
    config = NameServerConfig(bind_address="127.0.0.1", listen_port=0, kv_config_path=str(tmp_path / "kv.json"))
    names = NameServer(config)
    names.start()
    try:
        at: dict[str, Any] = {"namesrv_addr": f"127.0.0.1:{names.port}"}
        with master(tmp_path, **at) as first, slave(tmp_path, None, **at) as copy:
            with Producer(first) as producer:
                producer.send()
            caught_up(copy, first)
            until(lambda: copy.replication.master_address == first.address)
            synced(copy)
            with BlockingClient("127.0.0.1", names.port, timeout_s=30.0) as client:
                answer = client.request(RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext={"topic": "T"}))
            [found] = decode_object(answer.body)["brokerDatas"]
            assert {int(key): value for key, value in found["brokerAddrs"].items()} == {
                0: first.address,
                1: copy.address,
            }
    finally:
        names.stop()


REFUSED = [
    (RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "N", "defaultTopic": "TBW102"}),
    (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}),
    (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}),
    (RequestCode.POP_MESSAGE, {"consumerGroup": "G", "topic": "T"}),
    (RequestCode.CONSUMER_SEND_MSG_BACK, {"group": "G", "offset": "0"}),
]


def test_a_slave_refuses_in_words_what_belongs_to_its_master(tmp_path: Path) -> None:
    with master(tmp_path) as first, slave(tmp_path, first) as copy:
        with Producer(copy) as producer:
            answer = producer.send()
            assert (answer.code, "are changed at the master" in (answer.remark or "")) == (
                ResponseCode.SYSTEM_BUSY,
                True,
            )
            batch = producer.client.request(send_command(batch=True, code=RequestCode.SEND_BATCH_MESSAGE))
            assert "are changed at the master" in (batch.remark or "")
        for code, ext in REFUSED:
            answer = ask(copy, code, b"{}" * 100_000 if not ext else b"", **ext)
            assert answer.code == ResponseCode.SYSTEM_ERROR, code
            assert f"found a slave of {first.address}" in (answer.remark or ""), code
        assert copy.parts.local.max_physical_offset == 0


def test_topics_groups_offsets_and_modes_follow_the_master(tmp_path: Path) -> None:
    with master(tmp_path) as first, slave(tmp_path, first) as copy:
        parts = first.parts
        parts.topics.put(TopicConfig("orders", 3, 5))
        parts.groups.put(SubscriptionGroup("CG", retry_max_times=3))
        parts.groups.set_forbidden("CG", "orders", 4)
        parts.offsets.commit("CG", "orders", 2, 77)
        mode = {"topic": "orders", "consumerGroup": "CG", "mode": "POP", "popShareQueueNum": 2}
        assert ask(first, RequestCode.SET_MESSAGE_REQUEST_MODE, json.dumps(mode).encode()).code == 0
        synced(copy)
        got = copy.parts
        assert got.topics.get("orders") == TopicConfig("orders", 3, 5)
        assert got.groups.get("CG") == SubscriptionGroup("CG", retry_max_times=3)
        assert got.groups.is_forbidden("CG", "orders", 4)
        assert got.offsets.query("CG", "orders", 2) == 77
        assert (got.topics.data_version, got.groups.data_version) == (
            parts.topics.data_version,
            parts.groups.data_version,
        )
        same = [ask(each, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE).body for each in (first, copy)]
        assert same[0] == same[1]
        parts.topics.delete(["orders"])
        synced(copy)
        assert got.topics.get("orders") is None


def test_what_the_master_delivered_is_known_to_a_slave_that_has_its_log(tmp_path: Path) -> None:
    config = {"flush_delay_offset_interval": 1, "timer_flush_interval_ms": 1, "message_delay_level": "1s 2s"}
    delays = {"message_delay_level": "1s 2s"}
    with master(tmp_path, store=delays, **config) as first, slave(tmp_path, first, store=delays, **config) as copy:
        with Producer(first) as producer:
            producer.send(properties="UNIQ_KEY\x01K1\x02DELAY\x011\x02WAIT\x01true\x02")
        until(lambda: first.parts.local.max_offset("T", 0) == 1)
        path = Path(copy.parts.local.config.root_path) / "config" / "delayOffset.json"
        until(lambda: path.exists() and decode_delay_offsets(path.read_bytes())[0].get(1) == 1)
        caught_up(copy, first)
        assert [each.body for each in stored(copy)] == [b"hello"]
        assert first.parts.timers is not None
        wire = ask(first, RequestCode.GET_TIMER_CHECK_POINT).body
        assert len(wire) == VALUES.size
        check = Path(copy.parts.local.config.root_path) / "config" / "timercheck"
        until(lambda: check.exists() and decode_progress(check.read_bytes()).read_time_ms > 0)


def test_what_the_master_delivered_waits_for_its_log(tmp_path: Path) -> None:
    """Otherwise the slave, made master by hand, would skip a delivery whose record it does not have."""
    with master(tmp_path) as first, slave(tmp_path, first) as copy:
        synced(copy)
        sync = copy.metadata_sync
        assert sync is not None
        assert copy.replication.slave is not None
        copy.replication.slave.stop()
        with Producer(first) as producer:
            producer.send()
        wanted = sync.round_count + 3
        until(lambda: sync.round_count >= wanted)
        assert {end for end, _ in sync._delivered.values()} == {first.parts.local.max_physical_offset}


def test_ha_status_is_that_of_mqadmin_on_both_sides(tmp_path: Path) -> None:
    with master(tmp_path) as first, slave(tmp_path, first) as copy:
        with Producer(first) as producer:
            producer.send()
        caught_up(copy, first)
        assert first.replication.master is not None
        port, end = first.replication.master, first.parts.local.max_physical_offset
        until(lambda: port.slaves() and port.slaves()[0].ack == end)
        status = decode_object(ask(first, RequestCode.GET_BROKER_HA_STATUS).body)
        assert (status["master"], status["masterCommitLogMaxOffset"], status["inSyncSlaveNums"]) == (True, end, 1)
        [shown] = status["haConnectionInfo"]
        assert (shown["slaveAckOffset"], shown["diff"], shown["inSync"], shown["transferFromWhere"]) == (
            end,
            0,
            True,
            end,
        )
        status = decode_object(ask(copy, RequestCode.GET_BROKER_HA_STATUS).body)
        client = status["haClientRuntimeInfo"]
        assert (status["master"], client["masterAddr"], client["maxOffset"]) == (
            False,
            first.replication.ha_address,
            end,
        )
        reported = ask(first, RequestCode.EXCHANGE_BROKER_HA_INFO).ext
        assert reported == {
            "masterAddress": first.address,
            "masterFlushOffset": "0",
            "masterHaAddress": first.replication.ha_address,
        }
        assert ask(copy, RequestCode.EXCHANGE_BROKER_HA_INFO).ext == {}
        other = ask(copy, RequestCode.EXCHANGE_BROKER_HA_INFO, masterHaAddress="127.0.0.1:1")
        assert other.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert "tiermq_replication_behind_bytes 0" in first.render_metrics()
        assert "tiermq_slave_connected 1" in copy.render_metrics()


def test_a_slave_says_why_it_copies_nothing(tmp_path: Path) -> None:
    nowhere = {"ha_master_address": "127.0.0.1:1", "broker_id": 1}
    with running(tmp_path, config=broker_config(**nowhere), broker_role="SLAVE") as copy:
        until(lambda: copy.replication.problem)
        assert "127.0.0.1:1" in copy.problems()["replication"]


BAD_ROLES = [
    ({"broker_id": 0, "ha_master_address": "h:1"}, "SLAVE", "expected a brokerId above 0"),
    ({"broker_id": 1}, "SLAVE", "expected haMasterAddress, or namesrvAddr"),
    ({"broker_id": 1}, "ASYNC_MASTER", "expected 0 for brokerRole=ASYNC_MASTER"),
    ({"in_sync_replicas": 2}, "ASYNC_MASTER", "expected brokerRole=SYNC_MASTER"),
]


@pytest.mark.parametrize(("settings", "role", "words"), BAD_ROLES)
def test_a_role_that_the_settings_contradict_stops_the_start(
    tmp_path: Path, settings: dict[str, object], role: str, words: str
) -> None:
    with pytest.raises(BadConfig, match=words), running(tmp_path, config=broker_config(**settings), broker_role=role):
        pass
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"read_only": True}, "readOnly: expected a tier to read from"),
        ({"ha_observer": True}, "haObserver: expected brokerRole=SLAVE and a tier"),
    ],
)
def test_a_reader_and_an_observer_need_a_tier(tmp_path: Path, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(BadConfig, match=words), running(tmp_path, config=broker_config(**settings)):
        pass


def test_settings_of_replication_are_checked_when_they_are_made() -> None:
    with pytest.raises(BadConfig, match="minInSyncReplicas: expected at most inSyncReplicas"):
        broker_config(min_in_sync_replicas=2)
    with pytest.raises(BadConfig, match="haAllowedAddresses: expected addresses and networks"):
        broker_config(ha_allowed_addresses="10.0.0.0/8, nonsense")


def test_a_master_that_is_not_up_yet_is_no_error_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        closed = f"127.0.0.1:{taken.getsockname()[1]}"
    with (
        caplog.at_level(logging.WARNING),
        slave(tmp_path, None, master_address=closed, ha_master_address=closed) as copy,
    ):
        sync = copy.metadata_sync
        assert sync is not None
        until(lambda: sync.round_count >= 3)
    [said] = [each for each in caplog.records if "the master's tables were not copied" in each.message]
    assert (said.levelno, said.exc_info) == (logging.WARNING, None)


def test_a_slave_that_becomes_the_master_builds_its_timers_without_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    quick: dict[str, Any] = {"timer_flush_interval_ms": 1}
    with master(tmp_path, **quick) as first, slave(tmp_path, first, **quick) as copy:
        path = Path(copy.parts.local.config.root_path) / "config" / "timercheck"
        until(lambda: path.exists() and decode_progress(path.read_bytes()).units_sum == SUM_MASK)
    with caplog.at_level(logging.INFO), running(tmp_path / "slave1", config=broker_config(**quick)) as promoted:
        assert promoted.parts.timers is not None
    assert "built from the topic, as the check point is that of a master" in caplog.text
    assert not [each.message for each in caplog.records if each.levelno >= logging.ERROR]
