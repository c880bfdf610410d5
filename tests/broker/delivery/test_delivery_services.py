"""Delayed messages reach their topics while a broker runs, and after it was stopped."""

from __future__ import annotations

from pathlib import Path

from broker.brokers import Producer
from broker.consuming import Peer, bodies_of, messages_of, put, running, until
from simulation.manual_clock import ManualClock
from tiermq.broker.broker import Broker
from tiermq.delivery.timer.timer_service import TimerService
from tiermq.remoting.codes import ResponseCode


def delayed(level: int) -> dict[str, str]:
    return {"DELAY": str(level), "REAL_TOPIC": "T", "REAL_QID": "2"}


def test_a_delayed_message_reaches_who_waits_for_it_when_its_time_has_come(
    tmp_path: Path, manual_clock: ManualClock
) -> None:
    with running(tmp_path, clock=manual_clock) as broker, Peer(broker) as peer:
        peer.join()
        put(broker, "later", topic="SCHEDULE_TOPIC_XXXX", queue_id=2, properties=delayed(3))
        delivery = broker.delivery.delay_levels
        until(broker, lambda: delivery.running)
        held = peer.pull_later(0, queueId=2, sysFlag=2)
        manual_clock.advance_ms(9_999)
        assert delivery.delivered_count == 0
        manual_clock.advance_ms(1)
        assert bodies_of(held.result(60)) == ["later"]


def test_what_became_due_while_the_broker_was_down_is_delivered_once(tmp_path: Path, manual_clock: ManualClock) -> None:
    with running(tmp_path, clock=manual_clock) as broker:
        put(broker, "one", topic="SCHEDULE_TOPIC_XXXX", queue_id=0, properties=delayed(1))
        delivery = broker.delivery.delay_levels
        manual_clock.advance_ms(1_000)
        until(broker, lambda: delivery.delivered_count == 1)
        put(broker, "two", topic="SCHEDULE_TOPIC_XXXX", queue_id=0, properties=delayed(1))
    manual_clock.advance_ms(60_000)
    with running(tmp_path, clock=manual_clock) as broker, Peer(broker) as peer:
        peer.join()
        delivery = broker.delivery.delay_levels
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
        until(broker, lambda: broker.delivery.delay_levels.running)
        held = peer.pull_later(0, topic="%RETRY%G", sysFlag=2)
        manual_clock.advance_ms(10_000)
        (message,) = messages_of(held.result(60))
        assert (message.body, message.reconsume_times, message.topic) == (b"again", 1, "%RETRY%G")
        # It can be pulled before its level has gone on.
        until(broker, lambda: broker.delivery.delay_levels.waiting() == {3: (1, 1)})


# Timers


def timed(delay_ms: int, key: str = "K", **more: str) -> str:
    asked = {"UNIQ_KEY": key, "TIMER_DELAY_MS": str(delay_ms), **more}
    return "".join(f"{name}\x01{value}\x02" for name, value in asked.items())


def timers_of(broker: Broker) -> TimerService:
    timers = broker.delivery.timers
    assert timers is not None
    return timers


def test_a_message_for_a_time_reaches_who_waits_for_it_at_that_time(tmp_path: Path, manual_clock: ManualClock) -> None:
    with running(tmp_path, clock=manual_clock) as broker, Peer(broker) as peer, Producer(broker) as producer:
        peer.join()
        assert producer.send(body=b"later", properties=timed(90_000), queue=2).ext["queueId"] == "2"
        timers = timers_of(broker)
        until(broker, lambda: timers.waiting_count == 1)
        held = peer.pull_later(0, queueId=2, sysFlag=2)
        manual_clock.advance_ms(89_000)
        until(broker, lambda: timers.read_ms == manual_clock.now_ms())
        assert timers.counts.delivered == 0
        manual_clock.advance_ms(1_000)
        (message,) = messages_of(held.result(60))
        assert (message.body, message.topic, message.queue_id) == (b"later", "T", 2)


def test_a_timer_waits_while_the_broker_is_down(tmp_path: Path, manual_clock: ManualClock) -> None:
    with running(tmp_path, clock=manual_clock) as broker, Producer(broker) as producer:
        producer.send(body=b"a", properties=timed(5_000))
        until(broker, lambda: timers_of(broker).waiting_count == 1)
    with running(tmp_path, clock=manual_clock) as broker:
        assert timers_of(broker).waiting_count == 1
    manual_clock.advance_ms(60_000)
    with running(tmp_path, clock=manual_clock) as broker:
        until(broker, lambda: broker.parts.local.max_offset("T", 0) == 1)
        assert broker.parts.local.get("T", 0, 0).messages[0].body == b"a"


def test_a_cancellation_that_is_sent_as_a_message_is_honoured(tmp_path: Path, manual_clock: ManualClock) -> None:
    with running(tmp_path, clock=manual_clock) as broker, Producer(broker) as producer:
        producer.send(body=b"a", properties=timed(5_000, "A"))
        producer.send(body=b"b", properties=timed(5_000, "B"))
        assert producer.send(properties=timed(5_000, "X", TIMER_DEL_UNIQKEY="T+A")).code == ResponseCode.SUCCESS
        until(broker, lambda: timers_of(broker).counts.enqueued == 3)
        manual_clock.advance_ms(10_000)
        until(broker, lambda: broker.parts.local.max_offset("T", 0) == 1)
        assert broker.parts.local.get("T", 0, 0).messages[0].body == b"b"


def test_a_time_that_cannot_be_is_answered_as_rocketmq_answers_it(tmp_path: Path) -> None:
    with running(tmp_path, timer_congest_num_each_slot=1) as broker, Producer(broker) as producer:
        assert producer.send(properties=timed(259_200_001)).code == ResponseCode.MESSAGE_ILLEGAL
        assert producer.send(properties="TIMER_DELIVER_MS\x01soon\x02").code == ResponseCode.MESSAGE_ILLEGAL
        assert producer.send(properties=timed(-5, TIMER_DEL_UNIQKEY="T+A")).code == ResponseCode.MESSAGE_ILLEGAL
        due_ms = str(broker.parts.clock.now_ms() + 60_000)
        for key in "abc":
            at = f"UNIQ_KEY\x01{key}\x02TIMER_DELIVER_MS\x01{due_ms}\x02"
            assert producer.send(properties=at).code == ResponseCode.SUCCESS
        until(broker, lambda: timers_of(broker).waiting_count == 3)
        full = producer.send(properties=f"UNIQ_KEY\x01d\x02TIMER_DELIVER_MS\x01{due_ms}\x02")
        assert full.code == ResponseCode.SYSTEM_ERROR
        assert "timerCongestNumEachSlot" in (full.remark or "")


def test_waiting_timers_are_among_the_figures(tmp_path: Path, manual_clock: ManualClock) -> None:
    with running(tmp_path, clock=manual_clock) as broker, Producer(broker) as producer:
        producer.send(properties=timed(60_000))
        until(broker, lambda: 'rocketmq_timing_messages{topic="T"} 1' in broker.render_metrics())
        metrics = broker.render_metrics()
        assert "tiermq_timers_waiting 1" in metrics
        due_ms = manual_clock.now_ms() // 1_000 * 1_000 + 60_000
        assert f"tiermq_timers_next_due_ms {due_ms}" in metrics
        manual_clock.advance_ms(61_000)
        until(broker, lambda: 'rocketmq_timing_messages{topic="T"} 0' in broker.render_metrics())
