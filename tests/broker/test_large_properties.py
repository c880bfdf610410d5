"""Messages whose properties nearly fill a record: refused in words, or kept through everything that a broker adds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from broker.brokers import Producer
from broker.consuming import Peer, messages_of, put, running, until
from broker.delivery.test_end_transaction_processor import world_at
from broker.delivery.test_tiered_timers import far_of, kept
from broker.delivery.transaction_peer import COMMIT, shown
from broker.pop.pop_peer import MINUTE_MS, PopPeer, pops, revive
from broker.send.test_send_back_processor import back
from simulation.manual_clock import ManualClock
from tiermq import Message
from tiermq.broker.broker import Broker
from tiermq.broker.broker_config import BrokerConfig
from tiermq.broker.send.send_checks import SENT_PROPERTIES_BYTES_MAX
from tiermq.delivery.timer.timer_service import TimerService
from tiermq.errors import BadConfig
from tiermq.message.client_batch import BatchElement, encode_client_batch
from tiermq.message.layout import PROPERTIES_BYTES_MAX
from tiermq.message.stored_message import StoredMessage
from tiermq.message.topic_name import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from tiermq.namesrv.topic_config import TopicConfig
from tiermq.remoting.codes import ResponseCode
from tiermq.testing import LocalBroker

DAY_MS = 86_400_000
LONG_TOPIC = "t" * 127
LONG_GROUP = "g" * 120
LONG_BROKER = "b" * 255


def timers_of(broker: Broker) -> TimerService:
    assert broker.parts.timers is not None
    return broker.parts.timers


def padded(size: int, fixed: str = "") -> str:
    """Properties of so many bytes, with `fixed` among them."""
    head = f"{fixed}UNIQ_KEY\x01K\x02pad\x01"
    return f"{head}{'x' * (size - len(head) - 1)}\x02"


def stored(broker: Broker, topic: str, queue_id: int = 0) -> list[StoredMessage]:
    local = broker.parts.local
    local.dispatch_now()
    return [
        message
        for at in range(local.max_offset(topic, queue_id))
        for message in local.get(topic, queue_id, at, 1).messages
    ]


def all_delivered(timers: TimerService, due_ms: int) -> bool:
    return timers.read_ms > due_ms + MINUTE_MS and timers.is_idle


def bodies(broker: Broker, topic: str, queue_id: int = 0) -> list[bytes]:
    return [message.body for message in stored(broker, topic, queue_id)]


@pytest.mark.parametrize(
    ("fixed", "sys_flag", "kept_in"),
    [
        ("", 0, "T"),
        ("DELAY\x011\x02", 0, SCHEDULE_TOPIC),
        ("TIMER_DELAY_MS\x0190000\x02", 0, TIMER_TOPIC),
        ("TRAN_MSG\x01true\x02PGROUP\x01PG\x02", 4, HALF_TOPIC),
    ],
    ids=["now", "delayed", "timer", "half"],
)
def test_a_send_that_leaves_no_room_for_what_brokers_add_is_refused_with_the_limit(
    tmp_path: Path, manual_clock: ManualClock, fixed: str, sys_flag: int, kept_in: str
) -> None:
    with running(tmp_path, clock=manual_clock) as broker, Producer(broker) as producer:
        assert producer.send("T", b"first", properties=padded(100, fixed), sys_flag=sys_flag).code == 0
        accepted, refused = 100, PROPERTIES_BYTES_MAX
        while refused - accepted > 1:
            size = (accepted + refused) // 2
            answer = producer.send("T", b"%d" % size, properties=padded(size, fixed), sys_flag=sys_flag)
            if answer.code == 0:
                accepted = size
            else:
                assert answer.code == ResponseCode.MESSAGE_ILLEGAL
                assert str(SENT_PROPERTIES_BYTES_MAX) in (answer.remark or "")
                refused = size
        largest = max(stored(broker, kept_in), key=lambda each: len(each.encoded_properties))
        assert largest.body == b"%d" % accepted
        assert len(largest.encoded_properties) == SENT_PROPERTIES_BYTES_MAX


def test_a_message_of_a_batch_leaves_the_same_room(tmp_path: Path) -> None:
    with running(tmp_path) as broker, Producer(broker) as producer:
        assert producer.send("T", b"first").code == 0
        added = len(stored(broker, "T")[0].encoded_properties) - len("UNIQ_KEY\x01KEY1\x02WAIT\x01true\x02")
        own = padded(100)
        room = SENT_PROPERTIES_BYTES_MAX - added - len(own)
        for size, code in ((room, 0), (room + 1, ResponseCode.MESSAGE_ILLEGAL)):
            elements = [BatchElement(0, b"small", b""), BatchElement(0, b"large", padded(size).encode())]
            body = encode_client_batch(elements)
            for queue in (0, 1):  # The fast path, and the general one: a queue's first send.
                assert producer.send("T", body, code=320, batch=True, properties=own, queue=queue).code == code
        assert bodies(broker, "T", 0) == [b"first", b"small", b"large"]
        assert bodies(broker, "T", 1) == [b"small", b"large"]
        assert len(stored(broker, "T", 1)[1].encoded_properties) == SENT_PROPERTIES_BYTES_MAX


def test_a_reply_without_room_is_refused_once_and_not_pushed(tmp_path: Path) -> None:
    with running(tmp_path) as broker, Producer(broker) as producer, Peer(broker) as waiting:
        waiting.join(client_id="c1")
        fixed = "REPLY_TO_CLIENT\x01c1\x02"
        answer = producer.send("T", b"reply", code=325, properties=padded(SENT_PROPERTIES_BYTES_MAX, fixed))
        assert (answer.code, str(SENT_PROPERTIES_BYTES_MAX) in (answer.remark or "")) == (13, True)
        assert producer.send("T", b"next").code == 0
        assert bodies(broker, "T") == [b"next"]


def test_a_message_at_the_limit_comes_through_everything_with_the_longest_names(
    tmp_path: Path, manual_clock: ManualClock
) -> None:
    """A half that is asked about and committed, rolls as a timer, is popped, given back, sent back, and dies."""
    settings = {"broker_name": LONG_BROKER, "timer_roll_window_slot": 4, "transaction_check_interval": 30_000}
    with world_at(tmp_path, manual_clock, store={"enabled_append_prop_crc": True}, **settings) as world:
        broker, peer = world.broker, PopPeer(world.broker)
        broker.parts.topics.put(TopicConfig(LONG_TOPIC, 1, 1))
        due_ms = manual_clock.now_ms() + 120_000
        fixed = f"TRAN_MSG\x01true\x02PGROUP\x01PG\x02TIMER_DELIVER_MS\x01{due_ms}\x02"
        head = world.producer.prepare("small", topic=LONG_TOPIC, queue=0, properties=padded(200, fixed))
        assert head.code == 0
        room = SENT_PROPERTIES_BYTES_MAX - len(stored(broker, HALF_TOPIC)[0].encoded_properties) + 20
        half = world.producer.prepare("large", topic=LONG_TOPIC, queue=0, properties=padded(200 + room, fixed))
        assert half.code == 0, half.remark
        world.round_after(40)
        asked = [world.producer.asked.get(timeout=60) for _ in range(2)]
        question = next(each for each in asked if shown(each).body == b"large")
        assert world.producer.answer(question, COMMIT).code == 0
        counts = timers_of(broker).counts
        while not stored(broker, LONG_TOPIC):
            manual_clock.advance_ms(1_000)
        assert counts.rolled > 0
        (delivered,) = stored(broker, LONG_TOPIC)
        assert int(delivered.get_property("TIMER_ROLL_TIMES") or 0) == counts.rolled
        pop = {"topic": LONG_TOPIC, "consumerGroup": LONG_GROUP}
        for tries in range(3):
            (got,) = peer.pop(**pop)
            assert (got.message.reconsume_times, got.message.get_property("pad")) == (
                tries,
                delivered.get_property("pad"),
            )
            manual_clock.advance_ms(MINUTE_MS)
            revive(broker)
        (got,) = peer.pop(**pop)
        retry = f"%RETRY%{LONG_GROUP}_{LONG_TOPIC}"
        copy = stored(broker, retry)[-1]
        assert back(peer, copy, group=LONG_GROUP).code == 0
        assert back(peer, copy, level=-1, group=LONG_GROUP).code == 0
        assert peer.ack(got, **pop).code == 0
        manual_clock.advance_ms(60 * MINUTE_MS)
        until(broker, lambda: bodies(broker, f"%RETRY%{LONG_GROUP}") == [b"large"])
        assert bodies(broker, f"%DLQ%{LONG_GROUP}") == [b"large"]
        peer.client.close()


def test_a_name_that_would_not_fit_receipts_is_no_broker_s() -> None:
    with pytest.raises(BadConfig, match="brokerName"):
        BrokerConfig(broker_name="b" * 256, bind_address="127.0.0.1")


# Records that no such send made: of RocketMQ, of older versions, of puts without a broker.


@pytest.mark.parametrize("size", [32_700, 32_740, PROPERTIES_BYTES_MAX])
def test_a_popped_message_without_room_for_a_retry_becomes_a_dead_letter(
    tmp_path: Path, manual_clock: ManualClock, size: int
) -> None:
    with running(tmp_path, clock=manual_clock) as broker, PopPeer(broker) as peer:
        put(broker, "small")
        put(broker, "large", encoded_properties=padded(size).encode())
        assert [got.body for got in peer.pop()] == ["small", "large"]
        manual_clock.advance_ms(MINUTE_MS)
        revive(broker)
        assert [got.body for got in peer.pop()] == ["small"]
        (letter,) = stored(broker, "%DLQ%G")
        assert (letter.body, letter.properties["pad"]) == (b"large", stored(broker, "T")[1].properties["pad"])
        assert (pops(broker).revive.dead_count, pops(broker).revive.gone.count) == (1, 0)


@pytest.mark.parametrize(("size", "comes"), [(32_710, True), (32_735, False), (PROPERTIES_BYTES_MAX, False)])
def test_a_retried_message_without_room_for_a_receipt_starves_no_other(
    tmp_path: Path, manual_clock: ManualClock, size: int, comes: bool
) -> None:
    with running(tmp_path, clock=manual_clock) as broker, PopPeer(broker) as peer:
        broker.parts.topics.make("%RETRY%G_T", 1, 1)
        mark = f"1ST_POP_TIME\x01{manual_clock.now_ms()}\x02TIERMQ_GIVEN_BACK\x01G T 0 0 {manual_clock.now_ms()} 0\x02"
        put(broker, "before", topic="%RETRY%G_T")
        put(broker, "large", topic="%RETRY%G_T", encoded_properties=padded(size, mark if comes else "").encode())
        put(broker, "after", topic="%RETRY%G_T")
        expected = ["before", "large", "after"] if comes else ["before", "after"]
        answer = peer.pop_raw()
        assert [each.body.decode() for each in messages_of(answer)] == expected
        assert answer.ext["msgOffsetInfo"] == ("1 0 0,1,2" if comes else "1 0 0,2")
        assert all(len((each.get_property("POP_CK") or "").split(" ")) == 8 for each in messages_of(answer))
        manual_clock.advance_ms(MINUTE_MS)
        revive(broker)
        assert sorted(got.body for got in peer.pop()) == sorted(expected)
        assert bodies(broker, "%DLQ%G") == ([] if comes else [b"large"])


def test_a_message_without_room_that_is_sent_back_becomes_a_dead_letter(tmp_path: Path) -> None:
    with running(tmp_path) as broker, Peer(broker) as peer:
        peer.join()
        put(broker, "large", encoded_properties=padded(PROPERTIES_BYTES_MAX).encode())
        put(broker, "smaller", encoded_properties=padded(PROPERTIES_BYTES_MAX - 100).encode())
        for message in stored(broker, "T"):
            assert back(peer, message).code == 0
        letters = stored(broker, "%DLQ%G")
        assert [(each.body, each.reconsume_times) for each in letters] == [(b"large", 1), (b"smaller", 1)]
        assert [each.get_property("RETRY_TOPIC") for each in letters] == [None, "T"]


def test_what_a_consumer_gives_back_by_sending_may_use_the_reserve(tmp_path: Path) -> None:
    with running(tmp_path) as broker, Producer(broker) as producer:
        properties = padded(SENT_PROPERTIES_BYTES_MAX, "RETRY_TOPIC\x01T\x02DELAY\x013\x02")
        assert producer.send("%RETRY%G", b"again", properties=properties, reconsume=1).code == 0
        assert bodies(broker, SCHEDULE_TOPIC, 2) == [b"again"]


def test_a_timer_without_room_rolls_and_is_delivered(tmp_path: Path, manual_clock: ManualClock) -> None:
    with running(tmp_path, clock=manual_clock, timer_roll_window_slot=4) as broker:
        due_ms = (manual_clock.now_ms() + 30_000) // 1000 * 1000
        fixed = f"TIMER_OUT_MS\x01{due_ms}\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02"
        for size in (200, 32_700, 32_740, PROPERTIES_BYTES_MAX):
            put(broker, str(size), topic=TIMER_TOPIC, encoded_properties=padded(size, fixed).encode())
        timers = timers_of(broker)
        while not all_delivered(timers, due_ms):
            manual_clock.advance_ms(1_000)
        assert sorted(bodies(broker, "T")) == sorted(b"%d" % size for size in (200, 32_700, 32_740, 32_767))
        assert (timers.counts.skipped, timers.counts.delivered) == (0, 4)
        assert timers.counts.rolled >= 4


def test_a_timer_without_room_comes_back_from_the_tier(tmp_path: Path) -> None:
    with LocalBroker(tmp_path / "store", tier=(tmp_path / "tier").as_uri(), timer_flush_interval_ms=50) as broker:
        broker.create_topic("T", queues=1)
        due_ms = (broker.clock.now_ms() + 30 * DAY_MS) // 1000 * 1000
        fixed = f"TIMER_OUT_MS\x01{due_ms}\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02"
        for size in (200, PROPERTIES_BYTES_MAX):
            put(broker.broker, str(size), topic=TIMER_TOPIC, encoded_properties=padded(size, fixed).encode())
        kept(broker, 2)
        broker.advance(days=29, hours=13)
        until(broker.broker, lambda: far_of(broker).given_count == 2)
        timers = timers_of(broker.broker)
        until(broker.broker, lambda: timers.behind_count == 0)
        broker.advance(days=2)
        until(broker.broker, lambda: all_delivered(timers, due_ms))
        assert sorted(message.body for message in broker.messages("T")) == [b"200", b"32767"]


def test_a_timer_that_the_store_never_takes_is_counted_and_holds_up_no_other(
    tmp_path: Path, manual_clock: ManualClock
) -> None:
    due_ms = manual_clock.now_ms() // 1000 * 1000 + 5_000
    fixed = f"TIMER_OUT_MS\x01{due_ms}\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02"
    with running(tmp_path, clock=manual_clock) as broker:
        for body in ("large" * 1_000, "small"):
            put(broker, body, topic=TIMER_TOPIC, encoded_properties=padded(200, fixed).encode())
    with running(tmp_path, clock=manual_clock, store={"max_message_size": 1_000}) as broker:
        timers = timers_of(broker)
        while not all_delivered(timers, due_ms):
            manual_clock.advance_ms(1_000)
        assert (timers.counts.skipped, timers.counts.delivered) == (1, 1)
        assert bodies(broker, "T") == [b"small"]


def test_a_half_message_without_room_is_asked_about_and_can_be_committed(
    tmp_path: Path, manual_clock: ManualClock
) -> None:
    with world_at(tmp_path, manual_clock) as world:
        fixed = "TRAN_MSG\x01true\x02PGROUP\x01PG\x02REAL_TOPIC\x01T\x02REAL_QID\x011\x02"
        encoded = padded(PROPERTIES_BYTES_MAX, fixed).encode()
        half = Message(HALF_TOPIC, b"large", 0, encoded_properties=encoded, born_timestamp_ms=manual_clock.now_ms())
        assert world.broker.parts.local.put(half).ok
        for _ in range(2):
            question = world.ask_again()
            assert shown(question).body == b"large"
        assert world.processor.check.discarded_count == 0
        assert world.producer.answer(question, COMMIT).code == 0
        assert world.visible() == ["large"]
        world.round_after(30)
        world.round_after(30)
        assert world.producer.asked.empty()
        assert world.visible() == ["large"]


def test_a_dead_letter_of_a_used_up_retry_is_kept_as_it_is(tmp_path: Path, manual_clock: ManualClock) -> None:
    with running(tmp_path, clock=manual_clock) as broker, PopPeer(broker) as peer:
        put(broker, "large", encoded_properties=padded(PROPERTIES_BYTES_MAX).encode())
        peer.pop()
        group = broker.parts.groups.get("G")
        assert group is not None
        broker.parts.groups.put(replace(group, retry_max_times=0))
        manual_clock.advance_ms(MINUTE_MS)
        revive(broker)
        (letter,) = stored(broker, "%DLQ%G")
        assert letter.encoded_properties == stored(broker, "T")[0].encoded_properties
