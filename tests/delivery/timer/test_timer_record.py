"""What the wheel reads of a stored timer, and what becomes of its properties."""

from __future__ import annotations

import pytest

from delivery.timer.timer_world import TimerWorld
from tiermq import Message
from tiermq.delivery.timer.timer_record import cancel_key, delivered, own_key, read_timer, rolled
from tiermq.errors import CorruptRecord, IllegalMessage
from tiermq.message.properties import decode_properties, encode_properties, with_property
from tiermq.message.stored_message import StoredMessage


def stored(topic: str = "rmq_sys_wheel_timer", **properties: str) -> StoredMessage:
    world = TimerWorld()
    encoded = encode_properties({"TIMER_OUT_MS": "1700000009000", "REAL_TOPIC": "T", "REAL_QID": "2", **properties})
    result = world.store.put(Message(topic, b"body", 0, encoded_properties=encoded, flag=7))
    message = world.store.message_at(result.physical_offset)
    assert message is not None
    return message


def test_a_timer_says_its_slot_its_topic_and_whether_it_cancels() -> None:
    timer = read_timer(stored())
    assert (timer.deliver_ms, timer.topic, timer.is_delete) == (1_700_000_009_000, "T", False)
    assert read_timer(stored(TIMER_DEL_UNIQKEY="T+K")).is_delete


@pytest.mark.parametrize("out_ms", ["x", "-5", "9" * 19])
def test_a_message_without_a_time_is_no_timer(out_ms: str) -> None:
    with pytest.raises(CorruptRecord, match="TIMER_OUT_MS"):
        read_timer(stored(TIMER_OUT_MS=out_ms))


def test_a_message_of_another_topic_is_no_timer() -> None:
    with pytest.raises(CorruptRecord, match="timer topic"):
        read_timer(stored("orders"))


def test_a_cancellation_names_topic_and_key() -> None:
    assert own_key(stored(UNIQ_KEY="K")) == "T+K"
    assert own_key(stored()) is None
    assert cancel_key(stored(TIMER_DEL_UNIQKEY="T+K")) == "T+K"
    assert cancel_key(stored()) is None


def test_a_delivered_timer_keeps_its_properties_and_says_when_it_came_and_went() -> None:
    message = delivered(stored(KEYS="k", UNIQ_KEY="K"), 111, 222)
    assert (message.topic, message.queue_id, message.body, message.flag) == ("T", 2, b"body", 7)
    assert decode_properties(message.encoded_properties) == {
        "TIMER_OUT_MS": "1700000009000",
        "REAL_TOPIC": "T",
        "REAL_QID": "2",
        "KEYS": "k",
        "UNIQ_KEY": "K",
        "TIMER_ENQUEUE_MS": "111",
        "TIMER_DEQUEUE_MS": "222",
    }


@pytest.mark.parametrize(
    "end", [b"", b"\x02", b"\x02TIMER_ENQUEUE_MS\x015\x02", b"\x02TIMER_DEQUEUE_MS\x015", b"\x02\x02"]
)
def test_a_timer_is_stamped_once_however_its_properties_end(end: bytes) -> None:
    message = stored()
    message.encoded_properties = b"REAL_TOPIC\x01T\x02REAL_QID\x012\x02KEYS\x01k" + end
    expected = with_property(message.encoded_properties, "TIMER_ENQUEUE_MS", "111")
    expected = with_property(expected, "TIMER_DEQUEUE_MS", "222")
    assert delivered(message, 111, 222).encoded_properties == expected


def test_a_rolled_timer_counts_its_rolls() -> None:
    once = rolled(stored(), 111, 222)
    assert (once.topic, once.queue_id) == ("rmq_sys_wheel_timer", 0)
    assert decode_properties(once.encoded_properties)["TIMER_ROLL_TIMES"] == "1"
    again = rolled(stored(TIMER_ROLL_TIMES="4"), 111, 222)
    assert decode_properties(again.encoded_properties)["TIMER_ROLL_TIMES"] == "5"


@pytest.mark.parametrize(("name", "value"), [("REAL_TOPIC", "a/b"), ("REAL_QID", "x"), ("REAL_QID", "-1")])
def test_a_timer_for_no_place_cannot_be_delivered(name: str, value: str) -> None:
    with pytest.raises(IllegalMessage):
        delivered(stored(**{name: value}), 111, 222)
