"""The rule of a put: which time a message asks for, where it waits, and when it is refused."""

from __future__ import annotations

import pytest

from tiermq.delivery.timer.timer_destination import (
    TimerDestination,
    asks_for_a_time,
    deliver_time,
    is_congested,
    place_timer,
    slot_of,
    without_timer,
)
from tiermq.delivery.timer.timer_state import TimerSettings
from tiermq.message.properties import decode_properties, encode_properties
from tiermq.status import PutStatus

NOW_MS = 1_700_000_000_500
SETTINGS = TimerSettings()
ILLEGAL = PutStatus.WHEEL_TIMER_MSG_ILLEGAL


def placed(settings: TimerSettings = SETTINGS, *, has_limit: bool = True, **properties: str) -> object:
    return place_timer("orders", 3, encode_properties(properties), NOW_MS, settings, has_limit=has_limit)


def out_ms(place: object) -> int:
    assert isinstance(place, TimerDestination)
    assert (place.topic, place.queue_id) == ("rmq_sys_wheel_timer", 0)
    properties = decode_properties(place.properties)
    assert (properties["REAL_TOPIC"], properties["REAL_QID"]) == ("orders", "3")
    return int(properties["TIMER_OUT_MS"])


def test_seconds_come_before_milliseconds_and_these_before_a_time() -> None:
    every = {"TIMER_DELIVER_MS": str(NOW_MS + 9_000), "TIMER_DELAY_MS": "7000", "TIMER_DELAY_SEC": "5"}
    assert deliver_time(encode_properties(every), NOW_MS) == NOW_MS + 5_000
    del every["TIMER_DELAY_SEC"]
    assert deliver_time(encode_properties(every), NOW_MS) == NOW_MS + 7_000
    del every["TIMER_DELAY_MS"]
    assert deliver_time(encode_properties(every), NOW_MS) == NOW_MS + 9_000


def test_a_timer_waits_in_the_slot_before_its_time() -> None:
    assert out_ms(placed(TIMER_DELIVER_MS="1700000005000")) == 1_700_000_004_000
    assert out_ms(placed(TIMER_DELIVER_MS="1700000005001")) == 1_700_000_005_000
    assert out_ms(placed(TIMER_DELIVER_MS="1700000005999")) == 1_700_000_005_000
    fine = TimerSettings(precision_ms=100)
    assert out_ms(placed(fine, TIMER_DELIVER_MS="1700000005000")) == 1_700_000_004_900
    assert slot_of(1_700_000_005_000, SETTINGS) == 1_700_000_004_000


@pytest.mark.parametrize("due", ["0", "-1", "-9999999999"])
def test_what_is_due_is_stored_as_it_is(due: str) -> None:
    assert placed(TIMER_DELAY_SEC=due) is None
    assert placed(TIMER_DELIVER_MS=str(NOW_MS)) is None


def test_a_cancellation_of_what_is_due_is_refused() -> None:
    assert placed(TIMER_DELAY_SEC="0", TIMER_DEL_UNIQKEY="orders+K") is ILLEGAL


@pytest.mark.parametrize("text", ["", "x", "1.5", " 1", "1 ", "9" * 20, "9223372036854775808", "--1", "+", "１"])
def test_a_time_that_is_no_number_is_refused(text: str) -> None:
    assert placed(TIMER_DELIVER_MS="5", TIMER_DELAY_SEC=text or "\0") is ILLEGAL


@pytest.mark.parametrize("text", ["9223372036854775807", "9223372036854775"])
def test_a_delay_that_overflows_a_long_is_refused_where_the_original_wraps_around(text: str) -> None:
    assert placed(TIMER_DELAY_SEC=text, has_limit=False) is ILLEGAL


def test_the_longest_delay_is_three_days_and_thirty_days_can_be_set() -> None:
    assert out_ms(placed(TIMER_DELAY_SEC="259200"))
    assert placed(TIMER_DELAY_MS="259200001") is ILLEGAL
    # 30 days in milliseconds do not fit 32 bits, and the original compares with what is left of them.
    month = TimerSettings(max_delay_s=30 * 24 * 3600)
    assert out_ms(placed(month, TIMER_DELAY_SEC=str(30 * 24 * 3600)))
    assert placed(month, TIMER_DELAY_SEC=str(30 * 24 * 3600 + 1)) is ILLEGAL


def test_with_far_timers_there_is_no_longest_delay() -> None:
    assert out_ms(placed(TIMER_DELAY_SEC=str(10 * 365 * 24 * 3600), has_limit=False))


def test_a_message_keeps_its_other_properties() -> None:
    place = placed(TIMER_DELAY_SEC="5", KEYS="a b", REAL_TOPIC="forged", TAGS="t")
    assert isinstance(place, TimerDestination)
    properties = decode_properties(place.properties)
    assert properties["KEYS"] == "a b"
    assert properties["TIMER_DELAY_SEC"] == "5"
    assert place.properties.count(b"REAL_TOPIC") == 1


def test_who_was_rewritten_or_asks_nothing_asks_for_no_time() -> None:
    assert asks_for_a_time(encode_properties({"TIMER_DELAY_SEC": "5"}))
    assert asks_for_a_time(encode_properties({"TIMER_DELAY_MS": "5"}))
    assert asks_for_a_time(encode_properties({"TIMER_DELIVER_MS": "5"}))
    assert not asks_for_a_time(encode_properties({"TIMER_DELAY_SEC": "5", "TIMER_OUT_MS": "7"}))
    assert not asks_for_a_time(encode_properties({"KEYS": "TIMER_DELAY_SEC"}))
    assert not asks_for_a_time(b"")
    asked = encode_properties({"TIMER_DELAY_SEC": "5", "TIMER_DELAY_MS": "5", "TIMER_DELIVER_MS": "5", "KEYS": "k"})
    assert without_timer(asked) == encode_properties({"KEYS": "k"})


def test_a_congested_slot_refuses_the_more_often_the_fuller_it_is() -> None:
    """The original refuses less often the fuller the slot is."""
    half = 0.5
    assert not is_congested(100, 100, lambda: 0.0)
    assert not is_congested(149, 100, lambda: half)
    assert is_congested(151, 100, lambda: half)
    assert is_congested(200, 100, lambda: 0.999)
    settings = TimerSettings(congest_num_each_slot=10)
    properties = encode_properties({"TIMER_DELAY_SEC": "5"})

    def put(count: int) -> object:
        return place_timer("T", 0, properties, NOW_MS, settings, count_at=lambda _ms: count, chance=lambda: half)

    assert isinstance(put(10), TimerDestination)
    assert put(20) is PutStatus.WHEEL_TIMER_FLOW_CONTROL
