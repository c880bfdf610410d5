"""Timer objects: what goes in comes out, by time; damage at any byte is reported and never served."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiermq.delivery.tiered_timers.timer_object import (
    ROW,
    TABLE_AT,
    CorruptTimers,
    DamagedTimer,
    TimerObject,
    encode_timers,
    encoded_bytes,
)
from tiermq.delivery.timer.timer_record import TieredTimer

DUES = st.integers(min_value=0, max_value=2**63 - 1)
TIMERS = st.lists(st.builds(TieredTimer, DUES, st.booleans(), st.binary(max_size=40)), min_size=1, max_size=12)
EVER_MS = 1 << 63


@given(TIMERS)
def test_timers_come_back_by_time_and_in_their_order(timers: list[TieredTimer]) -> None:
    data = encode_timers(timers)
    found = TimerObject(data, "x")
    assert list(found.timers(0, EVER_MS)) == sorted(timers, key=lambda timer: timer.deliver_ms)
    assert len(found) == len(timers)
    assert (found.first_ms, found.last_ms) == (min(t.deliver_ms for t in timers), max(t.deliver_ms for t in timers))
    assert len(data) == TABLE_AT + sum(map(encoded_bytes, timers))


@given(TIMERS, DUES, DUES)
def test_a_range_of_times_gives_exactly_the_timers_due_in_it(timers: list[TieredTimer], one: int, two: int) -> None:
    from_ms, until_ms = sorted((one, two))
    found = TimerObject(encode_timers(timers), "x").timers(from_ms, until_ms)
    expected = [timer for timer in timers if from_ms <= timer.deliver_ms < until_ms]
    assert list(found) == sorted(expected, key=lambda timer: timer.deliver_ms)


def test_the_layout_is_the_documented_one() -> None:
    data = encode_timers([TieredTimer(5, True, b"ab"), TieredTimer(3, False, b"c")])
    assert data[:4] == b"TMQT"
    assert data[4:32].hex() == "00010000000000020000000000000003000000000000000500000003"
    assert data[TABLE_AT + 2 * ROW.size :] == b"cab"
    assert data[TABLE_AT + 2 * ROW.size - 1] == 1


@given(TIMERS, st.data())
def test_a_changed_byte_is_reported_and_never_served(timers: list[TieredTimer], data: st.DataObject) -> None:
    encoded = bytearray(encode_timers(timers))
    at = data.draw(st.integers(0, len(encoded) - 1))
    encoded[at] ^= data.draw(st.integers(1, 255))
    try:
        found = list(TimerObject(bytes(encoded), "x").timers(0, EVER_MS))
    except CorruptTimers:
        assert at < TABLE_AT + len(timers) * ROW.size
        return
    assert at >= TABLE_AT + len(timers) * ROW.size
    expected = sorted(timers, key=lambda timer: timer.deliver_ms)
    assert [isinstance(timer, DamagedTimer) for timer in found].count(True) == 1
    assert all(each == right for each, right in zip(found, expected, strict=True) if isinstance(each, TieredTimer))


@given(TIMERS, st.data())
def test_a_torn_or_lengthened_object_is_reported(timers: list[TieredTimer], data: st.DataObject) -> None:
    encoded = encode_timers(timers)
    cut = data.draw(st.integers(0, len(encoded) - 1))
    for damaged in (encoded[:cut], encoded + b"x"):
        with pytest.raises(CorruptTimers):
            TimerObject(damaged, "x")


@given(st.binary(max_size=200))
def test_foreign_bytes_are_no_timer_object(data: bytes) -> None:
    with pytest.raises(CorruptTimers):
        TimerObject(data, "x")


def test_an_object_without_timers_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="at least one"):
        encode_timers([])


def test_a_newer_version_is_named() -> None:
    encoded = bytearray(encode_timers([TieredTimer(1, False, b"x")]))
    encoded[5] = 2
    with pytest.raises(CorruptTimers, match="newer"):
        TimerObject(bytes(encoded), "x")
