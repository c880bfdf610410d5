"""Delayed messages reach their topics while a broker runs, and after it was stopped."""

from __future__ import annotations

from pathlib import Path

from broker.consuming import Peer, bodies_of, messages_of, on_loop, part, put, running, until
from tiermq.broker.delivering import DeliveryProcessor
from tiermq.clock import ManualClock


def delayed(level: int) -> dict[str, str]:
    return {"DELAY": str(level), "REAL_TOPIC": "T", "REAL_QID": "2"}


def test_a_delayed_message_reaches_who_waits_for_it_when_its_time_has_come(
    tmp_path: Path, manual_clock: ManualClock
) -> None:
    with running(tmp_path, clock=manual_clock) as broker, Peer(broker) as peer:
        peer.join()
        put(broker, "later", topic="SCHEDULE_TOPIC_XXXX", queue_id=2, properties=delayed(3))
        delivery = part(broker, DeliveryProcessor).delay_levels
        until(broker, lambda: delivery.running)
        held = peer.pull_later(0, queueId=2, sysFlag=2)
        manual_clock.advance_ms(9_999)
        assert delivery.delivered_count == 0
        manual_clock.advance_ms(1)
        assert bodies_of(held.result(60)) == ["later"]


def test_what_became_due_while_the_broker_was_down_is_delivered_once(tmp_path: Path, manual_clock: ManualClock) -> None:
    with running(tmp_path, clock=manual_clock) as broker:
        put(broker, "one", topic="SCHEDULE_TOPIC_XXXX", queue_id=0, properties=delayed(1))
        delivery = part(broker, DeliveryProcessor).delay_levels
        manual_clock.advance_ms(1_000)
        until(broker, lambda: delivery.delivered_count == 1)
        put(broker, "two", topic="SCHEDULE_TOPIC_XXXX", queue_id=0, properties=delayed(1))
    manual_clock.advance_ms(60_000)
    with running(tmp_path, clock=manual_clock) as broker, Peer(broker) as peer:
        peer.join()
        delivery = part(broker, DeliveryProcessor).delay_levels
        until(broker, lambda: delivery.delivered_count == 1)
        broker.parts.local.dispatch_now()
        assert bodies_of(peer.pull(0, queueId=2)) == ["one", "two"]


def test_a_message_that_was_given_back_comes_again(tmp_path: Path, manual_clock: ManualClock) -> None:
    with running(tmp_path, clock=manual_clock) as broker, Peer(broker) as peer:
        peer.join()
        peer.join(topic="%RETRY%G", version=2)
        put(broker, "again")
        found = broker.parts.local.get("T", 0, 0).messages[0]
        assert peer.ask(36, offset=found.physical_offset, group="G", delayLevel=0).code == 0
        broker.parts.local.dispatch_now()
        until(broker, lambda: part(broker, DeliveryProcessor).delay_levels.running)
        held = peer.pull_later(0, topic="%RETRY%G", sysFlag=2)
        manual_clock.advance_ms(10_000)
        (message,) = messages_of(held.result(60))
        assert (message.body, message.reconsume_times, message.topic) == (b"again", 1, "%RETRY%G")
        assert on_loop(broker, lambda: part(broker, DeliveryProcessor).delay_levels.waiting()) == {3: (1, 1)}
