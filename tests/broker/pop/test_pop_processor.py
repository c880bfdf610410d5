"""POP over the wire: what is given to whom, for how long, and what comes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.consuming import damage_unit, on_loop, put, running, until
from broker.pop.pop_peer import MINUTE_MS, PopPeer, got_of, pops, revive
from simulation.manual_clock import ManualClock
from tiermq.broker.broker import Broker
from tiermq.namesrv.topic_config import TopicConfig
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.tier.tiered_store import TieredStore


def test_each_message_is_given_to_one_consumer_of_a_group(broker: Broker, peer: PopPeer) -> None:
    for queue_id in range(4):
        put(broker, f"a{queue_id}", f"b{queue_id}", queue_id=queue_id)
    with PopPeer(broker) as other:
        first, second = peer.pop(maxMsgNums=5), other.pop()
        assert len(first) == 5
        assert sorted(got.body for got in first + second) == sorted(f"{name}{at}" for name in "ab" for at in range(4))
        assert other.pop() == []
        assert len(other.pop(consumerGroup="H")) == 8, "another group has its own"


def test_an_answer_reports_what_receipts_are_made_of(broker: Broker, peer: PopPeer, manual_clock: ManualClock) -> None:
    put(broker, "one", "two", queue_id=2)
    put(broker, "left", queue_id=1)
    answer = peer.pop_raw(queueId=2)
    assert answer.ext["startOffsetInfo"] == "0 2 0"
    assert answer.ext["msgOffsetInfo"] == "0 2 0,1"
    assert answer.ext["popTime"] == str(manual_clock.now_ms())
    assert (answer.ext["invisibleTime"], answer.ext["restNum"]) == (str(MINUTE_MS), "0")
    assert 0 <= int(answer.ext["reviveQid"]) < broker.config.revive_queue_num
    assert "orderCountInfo" not in answer.ext


def test_what_is_not_acknowledged_in_time_comes_back_tried_once_more(
    broker: Broker, peer: PopPeer, manual_clock: ManualClock
) -> None:
    put(broker, "kept", "acknowledged")
    got = {each.body: each for each in peer.pop()}
    assert peer.ack(got["acknowledged"]).code == 0
    manual_clock.advance_ms(MINUTE_MS - 1)
    revive(broker)
    assert peer.pop() == []
    manual_clock.advance_ms(1)
    revive(broker)
    (again,) = peer.pop()
    assert (again.body, again.message.reconsume_times, again.message.topic) == ("kept", 1, "T")
    assert again.receipt.split(" ")[4] == "1"
    assert peer.ack(again).code == 0
    manual_clock.advance_ms(10 * MINUTE_MS)
    revive(broker)
    assert peer.pop() == []
    assert len(pops(broker).log.points) == 0


def test_a_message_comes_back_until_it_is_dead(broker: Broker, peer: PopPeer, manual_clock: ManualClock) -> None:
    peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {"groupName": "G", "retryMaxTimes": 2})
    put(broker, "poison")
    for tried in range(3):
        (got,) = peer.pop()
        assert got.message.reconsume_times == tried
        manual_clock.advance_ms(MINUTE_MS)
        revive(broker)
    assert peer.pop() == []
    (dead,) = broker.parts.local.get("%DLQ%G", 0, 0).messages
    assert (dead.body, dead.reconsume_times) == (b"poison", 3)
    assert pops(broker).revive.dead_count == 1


def test_open_messages_come_back_after_a_restart_of_the_broker(tmp_path: Path, manual_clock: ManualClock) -> None:
    with running(tmp_path, clock=manual_clock) as broker, PopPeer(broker) as peer:
        put(broker, "open", "acknowledged", "later")
        got = {each.body: each for each in peer.pop()}
        peer.ack(got["acknowledged"])
        assert peer.change_time(got["later"], 3 * MINUTE_MS).code == 0
    with running(tmp_path, clock=manual_clock) as broker, PopPeer(broker) as peer:
        assert len(pops(broker).log.points) == 2
        manual_clock.advance_ms(MINUTE_MS)  # Not before: the broker's own thread gives back what is due, too.
        revive(broker)
        assert [got.body for got in peer.pop()] == ["open"]
        manual_clock.advance_ms(2 * MINUTE_MS)
        revive(broker)
        assert {got.body for got in peer.pop()} == {"later", "open"}


def test_more_time_is_given_and_the_old_receipt_is_over(
    broker: Broker, peer: PopPeer, manual_clock: ManualClock
) -> None:
    put(broker, "slow")
    (got,) = peer.pop()
    answer = peer.change_time(got, 5 * MINUTE_MS)
    assert (answer.code, answer.ext["invisibleTime"]) == (0, str(5 * MINUTE_MS))
    assert peer.change_time(got, MINUTE_MS).code == ResponseCode.MESSAGE_ILLEGAL
    manual_clock.advance_ms(MINUTE_MS)
    revive(broker)
    assert peer.pop() == []
    own = f"0 {answer.ext['popTime']} {answer.ext['invisibleTime']} {answer.ext['reviveQid']} 0 b 0 0"
    assert peer.ack(got, extraInfo=own).code == 0
    manual_clock.advance_ms(10 * MINUTE_MS)
    revive(broker)
    assert peer.pop() == []


def test_a_message_is_given_back_at_once_when_its_time_is_changed_to_nothing(
    broker: Broker, peer: PopPeer, manual_clock: ManualClock
) -> None:
    put(broker, "not now")
    (got,) = peer.pop()
    manual_clock.advance_ms(1)
    assert peer.change_time(got, 0).code == 0
    revive(broker)
    assert [(each.body, each.message.reconsume_times) for each in peer.pop()] == [("not now", 1)]


def test_a_pop_waits_for_a_message(broker: Broker, peer: PopPeer) -> None:
    later = peer.pop_later(pollTime=15_000)
    until(broker, lambda: pops(broker).waiting.held)
    put(broker, "came", queue_id=3)
    assert [got.body for got in got_of(later.result(60))] == ["came"]
    assert on_loop(broker, lambda: pops(broker).waiting.held) == 0


def test_a_pop_waits_for_what_comes_back(broker: Broker, peer: PopPeer, manual_clock: ManualClock) -> None:
    put(broker, "again")
    assert len(peer.pop()) == 1
    later = peer.pop_later(pollTime=100_000)
    until(broker, lambda: pops(broker).waiting.held)
    manual_clock.advance_ms(MINUTE_MS)
    revive(broker)
    assert [got.message.reconsume_times for got in got_of(later.result(60))] == [1]


def test_a_pop_that_waited_in_vain_is_notified(broker: Broker, peer: PopPeer, manual_clock: ManualClock) -> None:
    later = peer.pop_later(pollTime=15_000)
    until(broker, lambda: pops(broker).waiting.held)
    manual_clock.advance_ms(15_000)
    assert later.result(60).code == ResponseCode.POLLING_TIMEOUT
    assert peer.pop_raw().code == ResponseCode.POLLING_TIMEOUT, "without waiting, at once"


def test_no_more_pops_wait_than_may(tmp_path: Path, manual_clock: ManualClock) -> None:
    with running(tmp_path, clock=manual_clock, pop_polling_size=1) as broker, PopPeer(broker) as peer:
        first = peer.pop_later(pollTime=15_000)
        until(broker, lambda: pops(broker).waiting.held)
        assert peer.pop_raw(pollTime=15_000).code == ResponseCode.POLLING_FULL
        put(broker, "one")
        assert first.result(60).code == 0


def test_filters_hold_for_pops(broker: Broker, peer: PopPeer) -> None:
    put(broker, "a", tags="A")
    put(broker, "b", tags="B")
    put(broker, "cheap", properties={"price": "5"})
    assert [got.body for got in peer.pop(exp="A", expType="TAG")] == ["a"]
    assert [got.body for got in peer.pop(consumerGroup="H", exp="price < 10", expType="SQL92")] == ["cheap"]
    assert peer.pop_raw(exp="price <", expType="SQL92").code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    later = peer.pop_later(pollTime=15_000, exp="A", expType="TAG")
    until(broker, lambda: pops(broker).waiting.held)
    put(broker, "b again", tags="B")
    put(broker, "a again", tags="A")
    assert [got.body for got in got_of(later.result(60))] == ["a again"]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"topic": "none"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queueId": 4}, ResponseCode.INVALID_PARAMETER),
        ({"maxMsgNums": 33}, ResponseCode.INVALID_PARAMETER),
        ({"maxMsgNums": 0}, ResponseCode.INVALID_PARAMETER),
        ({"invisibleTime": 0}, ResponseCode.INVALID_PARAMETER),
        ({"pollTime": "long"}, ResponseCode.SYSTEM_ERROR),
    ],
)
def test_a_pop_that_cannot_be_is_refused(peer: PopPeer, changes: dict[str, object], code: ResponseCode) -> None:
    assert peer.pop_raw(**changes).code == code


def test_rights_are_looked_at(broker: Broker, peer: PopPeer) -> None:
    broker.parts.topics.put(TopicConfig("T", 4, 4, perm=2))
    assert peer.pop_raw().code == ResponseCode.NO_PERMISSION
    broker.parts.topics.put(TopicConfig("T", 4, 4))
    peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {"groupName": "G", "consumeEnable": False})
    assert peer.pop_raw().code == ResponseCode.NO_PERMISSION


def test_a_group_that_may_not_come_by_itself_pops_nothing(tmp_path: Path) -> None:
    with running(tmp_path, auto_create_subscription_group=False) as broker, PopPeer(broker) as peer:
        assert peer.pop_raw().code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


def test_a_new_group_begins_at_the_start_of_a_young_queue_whatever_it_asks_for(broker: Broker, peer: PopPeer) -> None:
    put(broker, "one", "two")
    assert len(peer.pop(initMode=1)) == 2


def test_a_group_that_was_sent_elsewhere_pops_there(broker: Broker, peer: PopPeer) -> None:
    put(broker, "one", "two")
    assert len(peer.pop()) == 2
    broker.parts.offsets.reset("G", "T", 0, 1)
    assert [got.body for got in peer.pop()] == ["two"]


def test_a_notification_reports_whether_there_is_something_and_takes_nothing(broker: Broker, peer: PopPeer) -> None:
    fields: dict[str, Any] = {"consumerGroup": "G", "topic": "T", "queueId": -1, "pollTime": 0, "bornTime": 0}
    peer.pop()
    assert peer.ask(RequestCode.NOTIFICATION, **fields).ext == {"hasMsg": "false", "pollingFull": "false"}
    later = peer.ask_later(RequestCode.NOTIFICATION, **{**fields, "pollTime": 15_000})
    until(broker, lambda: pops(broker).waiting.held)
    put(broker, "one")
    assert later.result(60).ext["hasMsg"] == "true"
    assert len(peer.pop()) == 1


def test_nothing_of_a_deleted_topic_comes_back_to_the_one_that_is_made_after_it(
    broker: Broker, peer: PopPeer, manual_clock: ManualClock
) -> None:
    put(broker, "old")
    put(broker, "old in order", queue_id=1)
    peer.pop(queueId=0)
    peer.pop(queueId=1, order="true")
    assert peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T").code == 0
    broker.parts.topics.put(TopicConfig("T", 4, 4))
    put(broker, "new")
    put(broker, "new in order", queue_id=1)
    (got,) = peer.pop(queueId=0)
    assert peer.ack(got).code == 0
    manual_clock.advance_ms(MINUTE_MS)
    revive(broker)
    assert [each.body for each in peer.pop(queueId=1, order="true")] == ["new in order"]
    assert peer.pop(queueId=0) == []


def test_binary_headers_whose_codes_are_cut_off_are_understood(broker: Broker) -> None:
    put(broker, "one")
    with PopPeer(broker, header_type=1) as peer:
        (got,) = peer.pop()
        assert peer.change_time(got, 2 * MINUTE_MS).code == 0
        assert len(pops(broker).log.points) == 1


def test_what_was_given_out_is_counted(broker: Broker, peer: PopPeer) -> None:
    put(broker, "one", "two")
    peer.pop()
    assert broker.parts.hooks.given() == {("G", "T"): 2}
    reported = broker.render_metrics()
    assert "rocketmq_pop_checkpoint_buffer_size 1" in reported


def test_messages_that_only_the_tier_has_are_popped(tmp_path: Path) -> None:
    tier = (tmp_path / "tier").as_uri()
    (tmp_path / "tier").mkdir()
    settings = {"tier": tier, "tiered_storage_level": "FORCE"}
    with running(tmp_path / "store", store=settings) as broker, PopPeer(broker) as peer:
        assert isinstance(broker.store, TieredStore)
        put(broker, "cold")
        assert broker.store.flush_to_tier(60)
        (got,) = peer.pop(pollTime=1000)
        assert got.body == "cold"
        assert peer.ack(got).code == 0


def test_a_broker_that_may_not_be_read_from_gives_nothing(tmp_path: Path) -> None:
    with running(tmp_path) as broker, PopPeer(broker) as peer:
        peer.pop()
        assert peer.ask(RequestCode.UPDATE_BROKER_CONFIG, b"brokerPermission=2").code == 0
        assert peer.pop_raw().code == ResponseCode.NO_PERMISSION


def test_a_topic_that_is_forbidden_to_a_group_gives_it_nothing(tmp_path: Path) -> None:
    with running(tmp_path) as broker, PopPeer(broker) as peer:
        broker.parts.groups.set_forbidden("G", "T", 4)
        assert peer.pop_raw().code == ResponseCode.NO_PERMISSION
        assert peer.pop_raw(consumerGroup="H").code == ResponseCode.POLLING_TIMEOUT


def test_sql92_that_is_switched_off_is_refused(tmp_path: Path) -> None:
    with running(tmp_path, enable_property_filter=False) as broker, PopPeer(broker) as peer:
        answer = peer.pop_raw(exp="a = 1", expType="SQL92")
        assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


def test_a_damaged_unit_keeps_nothing_of_other_queues_from_a_pop_and_is_named(
    tmp_path: Path, manual_clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    with running(tmp_path, clock=manual_clock) as broker, PopPeer(broker) as peer:
        for queue_id in range(4):
            put(broker, f"a{queue_id}", f"b{queue_id}", queue_id=queue_id)
        damage_unit(tmp_path, 2, 1)
        assert sorted(got.body for got in peer.pop()) == ["a0", "a1", "a2", "a3", "b0", "b1", "b3"]
        for _ in range(3):
            answer = peer.pop_raw()
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert (answer.remark or "").startswith("queue T-2 cannot be read at offset 1 (CorruptRecord)")
        lines = [each for each in caplog.records if "cannot be read" in each.getMessage()]
        assert [(each.levelname, each.exc_info) for each in lines] == [("WARNING", None)]
        assert broker.parts.server.handler_errors == 0
