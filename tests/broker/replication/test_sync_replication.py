"""Sends to a SYNC_MASTER: answered once enough replicas have the message, and what the answer says otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.brokers import Producer, send_command, stored
from broker.replication.pairs import caught_up, master, sends_of, slave, until
from replication.streams import SlaveSocket
from simulation.manual_clock import ManualClock
from tiermq.broker.broker import Broker
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.replication.ha_master import HaMaster

SYNC: dict[str, Any] = {"broker_role": "SYNC_MASTER", "slave_timeout": 600_000}


def port_of(broker: Broker) -> HaMaster:
    assert broker.replication.master is not None
    return broker.replication.master


def in_sync(broker: Broker, count: int) -> None:
    until(lambda: port_of(broker).state.in_sync == count)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_send_is_answered_once_master_and_slave_have_it(tmp_path: Path, flush: str) -> None:
    store = {**SYNC, "flush_disk_type": flush}
    with (
        master(tmp_path, store=store, in_sync_replicas=2) as first,
        slave(tmp_path, first, store={"flush_disk_type": flush}) as copy,
        Producer(first) as producer,
    ):
        in_sync(first, 2)
        for number in range(30):
            answer = producer.send(body=b"%d" % number)
            assert answer.code == ResponseCode.SUCCESS
            have = copy.parts.local.max_physical_offset
            assert have == first.parts.local.max_physical_offset, "the slave had it before the answer"
        caught_up(copy, first)
        assert [each.body for each in stored(copy)] == [b"%d" % number for number in range(30)]


@pytest.mark.parametrize(("count", "size"), [(600, 1_000), (24, 150_000)])
def test_sends_that_follow_each_other_are_all_answered_whatever_their_size(
    tmp_path: Path, count: int, size: int
) -> None:
    """Bodies larger than a frame of the stream, and many at once: replicas acknowledge within records."""
    store = {**SYNC, "mapped_file_size_commit_log": 8 << 20}
    with (
        master(tmp_path, store=store, in_sync_replicas=2) as first,
        slave(tmp_path, first, store={"mapped_file_size_commit_log": 8 << 20}) as copy,
        Producer(first) as producer,
    ):
        in_sync(first, 2)
        made = [bytes([number % 251]) * size for number in range(count)]
        later = [producer.client.request_later(send_command(body=each), 600) for each in made]
        assert {each.result(600).code for each in later} == {ResponseCode.SUCCESS}
        until(lambda: first.parts.local.max_offset("T", 0) == count)
        caught_up(copy, first)
        assert copy.parts.local.max_offset("T", 0) == count
        assert first.parts.local.writeable


def test_a_send_waits_for_the_slave_and_no_consumer_sees_it_before(tmp_path: Path) -> None:
    with (
        master(tmp_path, store=SYNC, in_sync_replicas=2) as first,
        Producer(first) as producer,
        SlaveSocket(port_of(first).port) as replica,
    ):
        replica.report(0)
        in_sync(first, 2)
        later = producer.client.request_later(send_command(body=b"held"), 60)
        until(lambda: sends_of(first).durable.waiting == 1)
        end = first.parts.local.max_physical_offset
        first.parts.local.flush()
        first.parts.local.dispatch_now()
        assert first.parts.local.max_offset("T", 0) == 0
        assert not later.done()
        replica.report(end)
        assert later.result(60).code == ResponseCode.SUCCESS
        until(lambda: first.parts.local.max_offset("T", 0) == 1)


def test_everybody_else_is_served_while_a_send_is_held(tmp_path: Path) -> None:
    with (
        master(tmp_path, store=SYNC, in_sync_replicas=2) as first,
        Producer(first) as producer,
        Producer(first) as other,
        SlaveSocket(port_of(first).port) as replica,
    ):
        replica.report(0)
        in_sync(first, 2)
        held = [producer.client.request_later(send_command(body=b"%d" % number), 600) for number in range(50)]
        until(lambda: sends_of(first).durable.waiting == 50)
        not_waiting = "UNIQ_KEY\x01K\x02WAIT\x01false\x02"
        for each in (producer, other):  # The connection with the held sends, too.
            for _ in range(20):
                assert each.send(properties=not_waiting).code == ResponseCode.SUCCESS
                assert each.client.request(RemotingCommand(RequestCode.GET_ALL_TOPIC_CONFIG)).code == 0
        assert not any(each.done() for each in held)
        assert sends_of(first).durable.waiting == 50
        replica.report(first.parts.local.max_physical_offset)
        assert {each.result(600).code for each in held} == {ResponseCode.SUCCESS}


def test_a_slave_that_does_not_confirm_in_time_is_answered_flush_slave_timeout(
    tmp_path: Path, manual_clock: ManualClock
) -> None:
    store = {**SYNC, "clock": manual_clock, "slave_timeout": 3_000}
    config = {"in_sync_replicas": 2, "ha_housekeeping_interval": 2_000_000_000, "channel_expired_timeout": 2**31 - 1}
    with (
        master(tmp_path, store=store, **config) as first,
        Producer(first) as producer,
        SlaveSocket(port_of(first).port) as replica,
    ):
        replica.report(0)
        in_sync(first, 2)
        later = producer.client.request_later(send_command(), 60)
        until(lambda: sends_of(first).durable.waiting == 1)
        manual_clock.advance_ms(2_999)
        assert not later.done()
        manual_clock.advance_ms(2)
        answer = later.result(60)
        assert answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
        assert answer.ext["queueOffset"] == "0", "it is stored"
        replica.report(first.parts.local.max_physical_offset)
        until(lambda: first.parts.local.max_offset("T", 0) == 1)


def test_a_slave_shows_only_what_its_master_has_committed(tmp_path: Path) -> None:
    with (
        master(tmp_path, store=SYNC, in_sync_replicas=3) as first,
        slave(tmp_path, first, slave_read_enable=True) as copy,
        Producer(first) as producer,
        SlaveSocket(port_of(first).port, source="127.0.0.2") as other,
    ):
        other.report(0)
        in_sync(first, 3)
        later = producer.client.request_later(send_command(body=b"held"), 600)
        until(lambda: sends_of(first).durable.waiting == 1)
        end = first.parts.local.max_physical_offset
        until(lambda: copy.parts.local.max_physical_offset == end)
        until(lambda: {each.ack for each in port_of(first).slaves()} == {0, end})
        copy.parts.local.flush()
        copy.parts.local.dispatch_now()
        assert copy.parts.local.max_offset("T", 0) == 0
        assert copy.parts.local.query("T", "KEY1").messages == []
        other.report(end)
        assert later.result(600).code == ResponseCode.SUCCESS
        until(lambda: copy.parts.local.max_offset("T", 0) == 1)


def test_without_a_slave_the_message_is_stored_and_the_answer_says_so_at_once(tmp_path: Path) -> None:
    with master(tmp_path, store=SYNC, in_sync_replicas=2) as first, Producer(first) as producer:
        answer = producer.send()
        assert (answer.code, answer.ext["queueOffset"]) == (ResponseCode.SLAVE_NOT_AVAILABLE, "0")
        first.parts.local.flush()
        first.parts.local.dispatch_now()
        assert first.parts.local.max_offset("T", 0) == 0, "it is not visible"
        with slave(tmp_path, first):
            until(lambda: first.parts.local.max_offset("T", 0) == 1)
            until(lambda: producer.send().code == ResponseCode.SUCCESS)


def test_a_slave_that_goes_away_releases_waiting_sends_as_slave_not_available(tmp_path: Path) -> None:
    with master(tmp_path, store=SYNC, in_sync_replicas=2) as first, Producer(first) as producer:
        with SlaveSocket(port_of(first).port) as replica:
            replica.report(0)
            in_sync(first, 2)
            later = producer.client.request_later(send_command(), 60)
            until(lambda: sends_of(first).durable.waiting == 1)
        assert later.result(60).code == ResponseCode.SLAVE_NOT_AVAILABLE


def test_a_forged_report_releases_nothing(tmp_path: Path) -> None:
    with (
        master(tmp_path, store=SYNC, in_sync_replicas=2) as first,
        Producer(first) as producer,
        SlaveSocket(port_of(first).port) as replica,
    ):
        replica.report(0)
        in_sync(first, 2)
        replica.report(2**62)
        later = producer.client.request_later(send_command(), 60)
        until(lambda: sends_of(first).durable.waiting == 1)
        end = first.parts.local.max_physical_offset
        replica.report(2**62)
        replica.report(end - 1)
        until(lambda: port_of(first).slaves()[0].ack == end - 1)
        assert not later.done()
        replica.report(end)
        assert later.result(60).code == ResponseCode.SUCCESS


def test_with_fewer_replicas_than_the_least_nothing_is_stored(tmp_path: Path) -> None:
    with (
        master(tmp_path, store=SYNC, in_sync_replicas=2, min_in_sync_replicas=2) as first,
        Producer(first) as producer,
    ):
        answer = producer.send()
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "fewer replicas are in sync than minInSyncReplicas: 1 of 2" in (answer.remark or "")
        assert first.parts.local.max_physical_offset == 0
        with slave(tmp_path, first):
            in_sync(first, 2)
            until(lambda: first.parts.local.writeable)
            assert producer.send().code == ResponseCode.SUCCESS
        in_sync(first, 1)
        until(lambda: not first.parts.local.writeable)
        assert producer.send().code == ResponseCode.SERVICE_NOT_AVAILABLE


def test_auto_waits_for_a_slave_only_while_there_is_one(tmp_path: Path) -> None:
    with (
        master(tmp_path, store=SYNC, in_sync_replicas=2, enable_auto_in_sync_replicas=True) as first,
        Producer(first) as producer,
    ):
        assert producer.send(body=b"alone").code == ResponseCode.SUCCESS
        until(lambda: first.parts.local.max_offset("T", 0) == 1)
        with slave(tmp_path, first) as copy:
            in_sync(first, 2)
            assert producer.send(body=b"both").code == ResponseCode.SUCCESS
            assert copy.parts.local.max_physical_offset == first.parts.local.max_physical_offset
        in_sync(first, 1)
        assert producer.send(body=b"alone again").code == ResponseCode.SUCCESS
        until(lambda: first.parts.local.max_offset("T", 0) == 3)


def test_two_slaves_of_one_address_count_as_one_replica(tmp_path: Path) -> None:
    with (
        master(tmp_path, store=SYNC, in_sync_replicas=3) as first,
        Producer(first) as producer,
        slave(tmp_path, first),
        slave(tmp_path, first, broker_id=2),
    ):
        until(lambda: len(port_of(first).slaves()) == 2)
        assert producer.send().code == ResponseCode.SLAVE_NOT_AVAILABLE
        with slave(tmp_path, first, broker_id=3, bind_address="127.0.0.2", broker_ip1="127.0.0.2"):
            in_sync(first, 3)
            assert producer.send().code == ResponseCode.SUCCESS


def test_a_producer_that_does_not_wait_is_answered_without_slaves(tmp_path: Path) -> None:
    with master(tmp_path, store=SYNC, in_sync_replicas=2) as first, Producer(first) as producer:
        assert producer.send(properties="UNIQ_KEY\x01K\x02WAIT\x01false\x02").code == ResponseCode.SUCCESS


def test_what_is_not_confirmed_is_not_tiered(tmp_path: Path) -> None:
    tier = {"tier": (tmp_path / "tier").as_uri(), "tiered_store_group_commit_count": 1}
    with master(tmp_path, store={**SYNC, **tier}, in_sync_replicas=2) as first, Producer(first) as producer:
        tiered = first.parts.tiered
        assert tiered is not None
        with SlaveSocket(port_of(first).port) as replica:
            replica.report(0)
            in_sync(first, 2)
            for number in range(3):
                later = producer.client.request_later(send_command(), 60)
                until(lambda: sends_of(first).durable.waiting == 1)
                first.parts.local.flush()
                assert tiered.flush_to_tier()
                file = tiered.tier.files.find("T", 0)
                assert (0 if file is None else file.commit_offset) == number
                replica.report(first.parts.local.max_physical_offset)
                assert later.result(60).code == ResponseCode.SUCCESS
