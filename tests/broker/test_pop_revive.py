"""What comes back, and what cannot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.consuming import put, running
from broker.popping_peer import MINUTE_MS, PopPeer, pops, revive
from tiermq.broker.broker import Broker
from tiermq.broker.pop_checkpoints import CheckPoint, Popped
from tiermq.clock import ManualClock
from tiermq.errors import RequestRefused


@pytest.fixture
def broker(tmp_path: Path, manual_clock: ManualClock) -> Iterator[Broker]:
    with running(tmp_path, clock=manual_clock) as made:
        yield made


@pytest.fixture
def peer(broker: Broker) -> Iterator[PopPeer]:
    with PopPeer(broker) as made:
        yield made


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
    point = CheckPoint(Popped("G", "%RETRY%G+T", 0, 0, 1), MINUTE_MS, (0,), 0)
    pops(broker).revive._put(point, message)
    broker.parts.local.dispatch_now()
    assert [each.body for each in peer.pop(queueId=1)] == ["one"]
