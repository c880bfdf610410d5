"""What comes back, and what cannot."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker.consuming import bodies_of, put, running
from broker.pop.pop_peer import MINUTE_MS, PopPeer, pop_fields, pops, revive
from broker.pop.test_pop_log import copy_as_killed
from simulation.manual_clock import ManualClock
from tiermq.broker.broker import Broker
from tiermq.broker.pop.pop_checkpoints import CheckPoint, PoppedMessage
from tiermq.broker.pop.pop_topics import pop_retry_topic, pop_retry_topics, real_topic, topic_to_come_back_to
from tiermq.errors import RequestRefused
from tiermq.namesrv.topic_config import TopicConfig
from tiermq.remoting.codes import RequestCode, ResponseCode


def test_a_copy_has_what_the_message_had_and_when_it_was_popped_first(
    broker: Broker, peer: PopPeer, manual_clock: ManualClock
) -> None:
    put(broker, "one", tags="A", keys="k1", flag=7)
    popped_ms = manual_clock.now_ms()
    peer.pop()
    for _ in range(2):
        manual_clock.advance_ms(MINUTE_MS)
        revive(broker)
        peer.pop()
    newest = broker.parts.local.get("%RETRY%G_T", 0, 1).messages[0]
    assert (newest.body, newest.tags, newest.keys, newest.flag, newest.reconsume_times) == (b"one", "A", ["k1"], 7, 2)
    assert newest.properties["1ST_POP_TIME"] == str(popped_ms)
    assert "POP_CK" not in newest.properties


@pytest.mark.parametrize("retry_max_times", [16, 0])
def test_a_message_comes_once_though_the_broker_was_killed_while_it_gave_it_back(
    tmp_path: Path, manual_clock: ManualClock, monkeypatch: pytest.MonkeyPatch, retry_max_times: int
) -> None:
    """Between its copy and the acknowledgement, which is where it would come twice; dead letters as well."""
    target = "%DLQ%G" if retry_max_times == 0 else "%RETRY%G_T"
    with running(tmp_path / "alive", clock=manual_clock) as broker, PopPeer(broker) as peer:
        put(broker, "one", "two", "three")
        peer.pop(maxMsgNums=2)
        peer.pop()
        group = broker.parts.groups.get("G")
        assert group is not None
        broker.parts.groups.put(replace(group, retry_max_times=retry_max_times))
        broker.parts.offsets.flush()
        pop = pops(broker)
        acknowledge = pop.log.acknowledge

        def killed_before(popped: PoppedMessage, offsets: list[int]) -> bool:
            if offsets == [1]:
                copy_as_killed(tmp_path)
            return acknowledge(popped, offsets)

        monkeypatch.setattr(pop.log, "acknowledge", killed_before)
        manual_clock.advance_ms(MINUTE_MS)
        revive(broker)
    with running(tmp_path / "died", clock=manual_clock) as broker:
        revive(broker)
        assert [each.body for each in broker.parts.local.get(target, 0, 0).messages] == [b"one", b"two", b"three"]


@pytest.mark.parametrize("retry_max_times", [0, 16])
def test_a_lite_message_that_is_given_up_does_not_come_to_its_lite_topic_again(
    tmp_path: Path, manual_clock: ManualClock, retry_max_times: int
) -> None:
    light, store = "%LMQ%$T$x", {"enable_lmq": True, "enable_multi_dispatch": True}
    with running(tmp_path, clock=manual_clock, store=store) as broker, PopPeer(broker) as peer:
        put(broker, "one", properties={"INNER_MULTI_DISPATCH": light, "x": "y"})
        peer.pop()
        group = broker.parts.groups.get("G")
        assert group is not None
        broker.parts.groups.put(replace(group, retry_max_times=retry_max_times))
        manual_clock.advance_ms(MINUTE_MS)
        revive(broker)
        broker.parts.local.dispatch_now()
        (copy,) = broker.parts.local.get("%RETRY%G_T" if retry_max_times else "%DLQ%G", 0, 0).messages
        assert (copy.properties["x"], "INNER_MULTI_DISPATCH" in copy.properties) == ("y", False)
        assert broker.parts.local.max_offset(light, 0) == 1


def test_a_copy_that_a_client_made_up_acknowledges_nothing(tmp_path: Path, manual_clock: ManualClock) -> None:
    with running(tmp_path, clock=manual_clock) as broker, PopPeer(broker) as peer:
        put(broker, "one")
        peer.pop()
        (point,) = pops(broker).log.points
        for words in (" ".join(map(str, (*point.popped, 0))), "G T 0 0", "G T x 0 0 0", f"G T 0 0 {'9' * 30} 0"):
            put(broker, "made up", topic="%RETRY%G_T", properties={"TIERMQ_GIVEN_BACK": words})
    with running(tmp_path, clock=manual_clock) as broker:
        assert len(pops(broker).log.points) == 1


def test_a_message_that_cannot_be_put_now_is_tried_again(
    broker: Broker, peer: PopPeer, manual_clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(broker, "one")
    peer.pop()
    service = pops(broker).revive
    service.stop()

    def refuse(*_arguments: object) -> None:
        raise RequestRefused("the disk is full")

    monkeypatch.setattr(service, "_put", refuse)
    monkeypatch.setattr(type(service), "stopping", False)
    manual_clock.advance_ms(MINUTE_MS)
    service.run_once()
    assert len(pops(broker).log.points) == 1
    monkeypatch.delattr(service, "_put")
    service.run_once()
    assert len(pops(broker).log.points) == 1, "not at once"
    manual_clock.advance_ms(1000)
    service.run_once()
    assert service.revived_count == 1
    assert len(pops(broker).log.points) == 0


def test_a_message_that_is_gone_is_passed_over(broker: Broker, peer: PopPeer, manual_clock: ManualClock) -> None:
    put(broker, "one")
    peer.pop()
    broker.parts.local.delete_topics(["T"])
    manual_clock.advance_ms(MINUTE_MS)
    revive(broker)
    assert (pops(broker).revive.gone.count, len(pops(broker).log.points)) == (1, 0)


def test_a_message_of_rocketmq_s_newer_retry_topic_comes_back_to_the_usual_one(broker: Broker, peer: PopPeer) -> None:
    put(broker, "one")
    (message,) = broker.parts.local.get("T", 0, 0).messages
    point = CheckPoint(PoppedMessage("G", "%RETRY%G+T", 0, 0, 1), MINUTE_MS, (0,), 0)
    pops(broker).revive._put(point, message)
    broker.parts.local.dispatch_now()
    assert [each.body for each in peer.pop(queueId=1)] == ["one"]


PAIRS = ({"consumerGroup": "a_b", "topic": "secret"}, {"consumerGroup": "a", "topic": "b_secret"})
SHARED = "%RETRY%a_b_secret"


@pytest.fixture
def shared(broker: Broker) -> Broker:
    for pair in PAIRS:
        broker.parts.topics.put(TopicConfig(pair["topic"], 1, 1))
        broker.parts.groups.find_or_make(pair["consumerGroup"])
    return broker


@pytest.mark.parametrize("owner", [0, 1])
def test_a_message_comes_back_to_its_own_group_though_another_shares_the_retry_topic(
    shared: Broker, peer: PopPeer, manual_clock: ManualClock, owner: int
) -> None:
    own, other = PAIRS[owner], PAIRS[1 - owner]
    put(shared, "mine", topic=own["topic"])
    for round_count in range(1, 4):
        assert [got.body for got in peer.pop(**own)] == ["mine"]
        manual_clock.advance_ms(MINUTE_MS)
        revive(shared)
        assert shared.parts.local.max_offset(SHARED, 0) == round_count
        for _ in range(2):
            notified = peer.ask(RequestCode.NOTIFICATION, **{**pop_fields(), **other})
            assert notified.ext["hasMsg"] == "false"
            assert peer.pop(**other) == []
            assert peer.pop(**{**other, "topic": SHARED}) == []
        assert peer.ask(RequestCode.NOTIFICATION, **{**pop_fields(), **own}).ext["hasMsg"] == "true"
    (got,) = peer.pop(**own)
    assert peer.ack(got, **own).code == 0
    manual_clock.advance_ms(MINUTE_MS)
    revive(shared)
    assert peer.pop(**own) == []


def test_a_group_that_is_named_like_a_retry_topic_gets_its_own_retries_only(
    shared: Broker, peer: PopPeer, manual_clock: ManualClock
) -> None:
    """Group a_b_secret has the retry topic in which POP gives back messages of (a_b, secret)."""
    named = "a_b_secret"
    put(shared, "secret", topic="secret")
    assert [got.body for got in peer.pop(**PAIRS[0])] == ["secret"]
    manual_clock.advance_ms(MINUTE_MS)
    revive(shared)
    put(shared, "own retry", topic=SHARED)
    assert shared.parts.local.max_offset(SHARED, 0) == 2
    peer.join(named, topic=SHARED)
    pulled = peer.pull(0, consumerGroup=named, topic=SHARED)
    assert bodies_of(pulled) == ["own retry"]
    own = peer.pull(0, consumerGroup=named, topic=SHARED, sysFlag=4, subscription="*", expressionType="TAG")
    assert bodies_of(own) == ["own retry"]
    assert [got.body for got in peer.pop(consumerGroup=named, topic=SHARED)] == ["own retry"]
    assert [got.body for got in peer.pop(**PAIRS[0])] == ["secret"]


@pytest.mark.parametrize("opened_before", [True, False])
def test_an_invented_receipt_brings_back_no_message_of_another_group(
    shared: Broker, peer: PopPeer, manual_clock: ManualClock, opened_before: bool
) -> None:
    """Of check points that a broker of RocketMQ may have made, only the receipt is known."""
    put(shared, "secret", topic="secret")
    peer.pop(**PAIRS[0])
    manual_clock.advance_ms(MINUTE_MS)
    revive(shared)
    now_ms = manual_clock.now_ms()
    popped_ms = 1 if opened_before else now_ms
    receipt = f"0 {popped_ms} {now_ms + MINUTE_MS} 0 1 b 0 0"
    fields: dict[str, Any] = {**PAIRS[1], "queueId": 0, "offset": 0, "extraInfo": receipt, "invisibleTime": 1000}
    assert peer.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, **fields).code == ResponseCode.MESSAGE_ILLEGAL
    point = CheckPoint(PoppedMessage("a", SHARED, 0, 0, now_ms), 1000, (0,), 0, 0)
    pops(shared).log.begin(0, point.popped, 1000, (0,))
    manual_clock.advance_ms(2000)
    revive(shared)
    assert peer.pop(**PAIRS[1]) == []
    assert [got.body for got in peer.pop(**PAIRS[0])] == ["secret"]
    assert pops(shared).revive.gone.count == 1


def test_a_message_that_does_not_say_whose_it_is_comes_back_unless_two_could_own_it(
    broker: Broker, peer: PopPeer
) -> None:
    """As brokers of RocketMQ leave them."""
    for pair in PAIRS:
        broker.parts.topics.put(TopicConfig(pair["topic"], 1, 1))
    broker.parts.topics.put(TopicConfig(SHARED, 1, 1))
    put(broker, "one", topic=SHARED)
    assert [got.body for got in peer.pop(**PAIRS[0])] == ["one"]
    put(broker, "two", topic=SHARED)
    assert peer.pop(**PAIRS[1]) == []
    assert peer.pop(**PAIRS[0]) == []


def test_retry_topics_have_rocketmq_s_names() -> None:
    assert pop_retry_topics("G", "T") == ("%RETRY%G_T", "%RETRY%G+T")
    assert pop_retry_topic("G", "%RETRY%G_T") == "%RETRY%G_T", "a retry topic has no retry topic of its own"


def test_a_mark_reports_which_topic_is_meant() -> None:
    assert [real_topic("G", "T", mark) for mark in "012"] == ["T", "%RETRY%G_T", "%RETRY%G+T"]


def test_what_was_popped_comes_back_to_a_topic_that_the_store_takes() -> None:
    popped_from = ["T", "%RETRY%G_T", "%RETRY%G+T", "%RETRY%G+A+B"]
    assert [topic_to_come_back_to("G", topic) for topic in popped_from] == [*["%RETRY%G_T"] * 3, "%RETRY%G_A+B"]
