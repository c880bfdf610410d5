"""What a producer makes of a message, before anything is sent."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tiermq import Message
from tiermq.client.member.async_producer import choice_of
from tiermq.client.member.outgoing import Compression, Delay, Outgoing, Preparation, batches_of, message_ids_of
from tiermq.errors import CorruptRecord, IllegalMessage
from tiermq.message.compression import decompress
from tiermq.message.properties import decode_properties


def prepare(message: Message, *, compression: Compression = Compression.ZLIB, **options: Any) -> Outgoing:
    return Preparation(lambda: "KEY", lambda: 1_000, 100, compression).prepare(message, **options)


def test_a_message_gets_a_unique_key_and_keeps_its_own() -> None:
    made = prepare(Message("orders", b"x", keys=["a"], tags="paid", properties={"n": "1"}))
    expected = {"KEYS": "a", "TAGS": "paid", "n": "1", "UNIQ_KEY": "KEY", "WAIT": "true"}
    assert decode_properties(made.properties) == expected
    assert (made.unique_key, made.born_ms) == ("KEY", 1_000)
    again = prepare(Message("orders", b"x", encoded_properties=b"UNIQ_KEY\x01MINE"))
    assert (again.unique_key, decode_properties(again.properties)) == ("MINE", {"UNIQ_KEY": "MINE"})


@pytest.mark.parametrize("compression", Compression)
def test_large_bodies_are_compressed_and_small_or_dense_ones_are_not(compression: Compression) -> None:
    large = prepare(Message("orders", b"abc" * 1_000), compression=compression)
    assert len(large.body) < 200
    assert decompress(large.body, large.sys_flag) == b"abc" * 1_000
    assert prepare(Message("orders", b"abc"), compression=compression).sys_flag == 0
    dense = bytes(range(256))
    assert prepare(Message("orders", dense), compression=compression).body == dense
    assert prepare(Message("orders", large.body, sys_flag=large.sys_flag)).sys_flag == large.sys_flag


def test_delays_are_properties() -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    for delay, expected in (
        (Delay(delay_level=3), {"DELAY": "3"}),
        (Delay(delay_s=1.5), {"TIMER_DELAY_MS": "1500"}),
        (Delay(deliver_at=at), {"TIMER_DELIVER_MS": "1893456000000"}),
    ):
        made = prepare(Message("orders", b"x"), delay=delay)
        assert expected.items() <= decode_properties(made.properties).items()
        assert made.is_timer == ("DELAY" not in expected)
    assert prepare(Message("orders", b"x", properties={"TIMER_DELAY_SEC": "3"})).is_timer


@pytest.mark.parametrize(
    ("delay", "reason"),
    [
        (Delay(delay_level=19), "1 to 18"),
        (Delay(delay_s=0), "above 0"),
        (Delay(delay_s=float("nan")), "above 0"),
        (Delay(delay_s=float("inf")), "above 0"),
        (Delay(deliver_at=datetime(2030, 1, 1)), "time zone"),  # noqa: DTZ001 - that is refused
        (Delay(delay_level=1, delay_s=1), "one of"),
    ],
)
def test_a_delay_that_no_broker_takes_is_refused(delay: Delay, reason: str) -> None:
    with pytest.raises(IllegalMessage, match=reason):
        prepare(Message("orders", b"x"), delay=delay)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (Message("orders", b"x", 1), "chooses the queue"),
        (Message("orders", b""), "an empty one"),
        (Message("or ders", b"x"), "illegal characters"),
    ],
)
def test_a_message_that_cannot_be_sent_is_refused_in_words(message: Message, reason: str) -> None:
    with pytest.raises(IllegalMessage, match=reason):
        prepare(message)


def test_batches_keep_the_order_of_a_topic_and_the_limits() -> None:
    made = [prepare(Message("a" if number % 3 else "b", b"x" * 10)) for number in range(8)]
    assert batches_of(made, 10_000, 3) == [[0, 3, 6], [1, 2, 4], [5, 7]]
    assert batches_of(made, 1, 3) == [[number] for number in range(8)]


def test_the_ids_of_a_batch_are_counted() -> None:
    assert message_ids_of("a,b", 2) == ["a", "b"]
    assert message_ids_of("a", 2) == ["a", "a"]
    with pytest.raises(CorruptRecord, match="3 message ids"):
        message_ids_of("a,b", 3)


def test_a_queue_and_a_sharding_key_exclude_each_other() -> None:
    with pytest.raises(IllegalMessage, match="or a queue"):
        choice_of(1, "a")
    with pytest.raises(IllegalMessage, match="empty"):
        choice_of(None, "")
    assert choice_of(None, None) is None


def test_a_time_ahead_is_kept_to_the_millisecond() -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC) + timedelta(milliseconds=7)
    assert Delay(deliver_at=at).properties() == {"TIMER_DELIVER_MS": "1893456000007"}
