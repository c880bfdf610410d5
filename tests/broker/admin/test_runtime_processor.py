"""How a broker does, as mqadmin asks it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.brokers import Producer
from broker.consuming import Peer, bodies_of, on_loop, part, put, running, until
from simulation.manual_clock import ManualClock
from tiermq import Message
from tiermq.broker.admin.offset_admin_processor import OffsetAdminProcessor
from tiermq.broker.admin.runtime_processor import RuntimeProcessor, _bytes_text, _duration
from tiermq.broker.admin.topic_admin_processor import TopicAdminProcessor
from tiermq.broker.broker import Broker
from tiermq.message.client_batch import BatchElement, encode_client_batch
from tiermq.remoting.codes import RequestCode
from tiermq.remoting.json_dialect import decode_body

DAY_MS = 86_400_000
READ_BY_CLUSTER_LIST = {
    "brokerActive", "putTps", "getTransferredTps", "brokerVersionDesc", "sendThreadPoolQueueSize",
    "pullThreadPoolQueueSize", "ackThreadPoolQueueSize", "sendThreadPoolQueueHeadWaitTimeMills",
    "pullThreadPoolQueueHeadWaitTimeMills", "ackThreadPoolQueueHeadWaitTimeMills", "pageCacheLockTimeMills",
    "earliestMessageTimeStamp", "commitLogDiskRatio", "timerReadBehind", "timerOffsetBehind", "timerCongestNum",
    "timerEnqueueTps", "timerDequeueTps", "msgPutTotalYesterdayMorning", "msgPutTotalTodayMorning",
    "msgPutTotalTodayNow", "msgGetTotalYesterdayMorning", "msgGetTotalTodayMorning", "msgGetTotalTodayNow",
}  # fmt: skip


@pytest.fixture
def broker_options(manual_clock: ManualClock) -> dict[str, Any]:
    return {"clock": manual_clock, "store": {"background": False}}


def table(peer: Peer) -> dict[str, str]:
    found: dict[str, str] = decode_body(peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO).body)["table"]
    return found


def test_what_mqadmin_reads_is_there_and_everything_is_text(peer: Peer) -> None:
    found = table(peer)
    assert found.keys() >= READ_BY_CLUSTER_LIST
    assert all(isinstance(value, str) for value in found.values())
    assert found["earliestMessageTimeStamp"] == "-1"


def test_figures_are_those_of_the_store(broker: Broker, peer: Peer, manual_clock: ManualClock) -> None:
    stored_ms = manual_clock.now_ms()
    put(broker, "one", "two", "three")
    manual_clock.advance_ms(90_061_000)
    found = table(peer)
    assert found["putMessageTimesTotal"] == found["msgPutTotalTodayNow"] == "3"
    assert found["earliestMessageTimeStamp"] == str(stored_ms)
    assert int(found["commitLogMaxOffset"]) == broker.parts.local.max_physical_offset > 0
    assert found["runtime"] == "[ 1 days, 1 hours, 1 minutes, 1 seconds ]"


def test_failed_puts_are_counted_of_sends_batches_and_a_store_that_is_shut(broker: Broker, peer: Peer) -> None:
    assert table(peer)["putMessageFailedTimes"] == "0"
    local = broker.parts.local
    with Producer(broker) as producer:
        assert producer.send().code == 0
        assert not local.put(Message("T", bytes(5 << 20))).ok
        assert table(peer)["putMessageFailedTimes"] == "1"
        local._parts.log.set_writeable(False)
        assert producer.send().code != 0
        local._parts.log.set_writeable(True)
        assert table(peer)["putMessageFailedTimes"] == "2"
    body = encode_client_batch([BatchElement(0, b"a", b""), BatchElement(0, b"b", b"")])
    batch = Message("T", body, 0, properties={"DELAY": "3"})
    assert not local.put_batch(batch)[0].ok
    assert table(peer)["putMessageFailedTimes"] == "4"
    assert "tiermq_store_put_failures_total 4" in broker.render_metrics()


def test_rates_are_of_ten_sixty_and_six_hundred_seconds(broker: Broker, peer: Peer, manual_clock: ManualClock) -> None:
    counting = broker.parts.local._parts.housekeeping._sample
    for number in range(12):
        put(broker, *("m" for _ in range(60 if number == 0 else 5)))
        manual_clock.advance_ms(5_000)
        counting()
    assert table(peer)["putTps"] == f"1.0 {115 / 60} {115 / 60}"


def test_a_waiting_delivery_of_delays_is_no_get(broker: Broker, peer: Peer) -> None:
    """RocketMQ's figures count what consumers get; ours once counted every look for messages that are due."""
    reader = broker.parts.local._parts.reader
    before = reader.missed_count
    broker.delivery.delay_levels.run_once()
    assert reader.missed_count == before


def test_days_begin_with_the_totals_of_midnight(broker: Broker, peer: Peer, manual_clock: ManualClock) -> None:
    put(broker, "one", "two")
    peer.join("G")
    assert len(bodies_of(peer.pull())) == 2
    manual_clock.advance_ms(DAY_MS)
    on_loop(broker, part(broker, RuntimeProcessor).look_at_the_date)
    put(broker, "three")
    found = table(peer)
    assert [found[f"msgPutTotal{when}"] for when in ("YesterdayMorning", "TodayMorning", "TodayNow")] == ["0", "2", "3"]
    assert [found[f"msgGetTotal{when}"] for when in ("TodayMorning", "TodayNow")] == ["2", "2"]
    manual_clock.advance_ms(DAY_MS)
    assert table(peer)["msgPutTotalYesterdayMorning"] == "2"


@pytest.mark.parametrize("code", [RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, RequestCode.DELETE_EXPIRED_COMMITLOG])
def test_housekeeping_is_done_when_it_is_asked_for(peer: Peer, code: RequestCode) -> None:
    assert peer.ask(code).code == 0


def test_texts_are_those_that_rocketmq_writes() -> None:
    assert _duration(34_999) == "[ 0 days, 0 hours, 0 minutes, 34 seconds ]"
    assert [_bytes_text(count) for count in (0, 552, 1024, 1536, 10 * 1024**3)] == [
        "0 B", "552 B", "1.0 KiB", "1.5 KiB", "10.0 GiB",
    ]  # fmt: skip


def test_what_a_topic_was_sent_and_a_group_was_given_is_shown_by_minute_hour_and_day(
    tmp_path: Path, manual_clock: ManualClock
) -> None:
    with running(tmp_path, clock=manual_clock) as broker, Peer(broker) as peer:
        check_stats_data(broker, peer, manual_clock)


def check_stats_data(broker: Broker, peer: Peer, manual_clock: ManualClock) -> None:
    put(broker, "one", "two", "three")
    until(broker, lambda: broker.parts.local.put_counts().get("T") == 3)
    peer.join()
    assert len(bodies_of(peer.pull())) == 3
    manual_clock.advance_ms(10_000)
    for kind in (TopicAdminProcessor, OffsetAdminProcessor):
        on_loop(broker, part(broker, kind).note_rates)
    code = RequestCode.VIEW_BROKER_STATS_DATA
    put_stats = decode_body(peer.ask(code, statsName="TOPIC_PUT_NUMS", statsKey="T").body)
    given_stats = decode_body(peer.ask(code, statsName="GROUP_GET_NUMS", statsKey="T@G").body)
    for reported in (put_stats, given_stats):
        assert {name: (each["sum"], each["tps"]) for name, each in reported.items()} == {
            "statsMinute": (3, 0.3),
            "statsHour": (3, 0.3),
            "statsDay": (3, 0.3),
        }
    assert decode_body(peer.ask(code, statsName="GROUP_GET_NUMS", statsKey="T@H").body)["statsDay"]["sum"] == 0
    for name, key in (("TOPIC_PUT_NUMS", "nowhere"), ("TOPIC_PUT_SIZE", "T")):
        assert peer.ask(code, statsName=name, statsKey=key).remark == f"The stats <{name}> <{key}> not exist"


def test_replication_is_reported_as_a_master_without_slaves_sees_it(broker: Broker, peer: Peer) -> None:
    put(broker, "one")
    reported = decode_body(peer.ask(RequestCode.GET_BROKER_HA_STATUS).body)
    assert reported["master"] is True
    assert reported["haConnectionInfo"] == []
    assert reported["masterCommitLogMaxOffset"] == broker.parts.local.max_physical_offset > 0
