"""Timer-log units: RocketMQ's bytes, round trips, and nothing but units taken for one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tiermq.delivery.timer.timer_unit import (
    BLANK_MAGIC,
    UNIT_BYTES,
    TimerUnit,
    decode_unit,
    encode_blank,
    encode_unit,
    is_blank,
    last_unit_position,
)
from tiermq.message.java_hash import java_hash

UNIT = TimerUnit(-1, 1, 1_700_000_000_000, 5_000, 1_024, 123, java_hash("TopicTest"))
INT = st.integers(-(2**31), 2**31 - 1)
UNITS = st.builds(
    TimerUnit,
    st.integers(-1, 2**63 - 1),
    st.sampled_from([1, 3, 5, 7, 9, 11, 13, 15]),
    st.integers(1, 2**62),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**63 - 1),
    st.integers(1, 2**31 - 1),
    INT,
)


def test_a_timer_unit_has_the_bytes_of_the_specification() -> None:
    assert encode_unit(UNIT).hex() == (
        "00000034ffffffffffffffff000000010000018bcfe568000000138800000000000004000000007b"
        f"{java_hash('TopicTest') & 0xFFFFFFFF:08x}0000000000000000"
    )


@given(UNITS)
def test_a_timer_unit_comes_back_as_it_was(unit: TimerUnit) -> None:
    assert decode_unit(encode_unit(unit)) == unit


@given(UNITS, st.integers(0, UNIT_BYTES - 1))
def test_a_timer_unit_cut_short_is_none(unit: TimerUnit, length: int) -> None:
    assert decode_unit(encode_unit(unit)[:length]) is None


@given(st.binary(min_size=UNIT_BYTES, max_size=UNIT_BYTES))
def test_whatever_is_taken_for_a_timer_unit_encodes_to_the_same_bytes(data: bytes) -> None:
    unit = decode_unit(data)
    assert unit is None or encode_unit(unit) == data


def test_a_unit_whose_second_half_is_missing_is_none() -> None:
    """A page that never reached the disk leaves zeros; RocketMQ takes such a unit for one."""
    for length in range(40):
        assert decode_unit(encode_unit(UNIT)[:length].ljust(UNIT_BYTES, b"\0")) is None


def test_zeros_and_blanks_are_no_units_and_only_blanks_are_blank() -> None:
    assert decode_unit(bytes(UNIT_BYTES)) is None
    assert decode_unit(encode_blank(60)) is None
    assert is_blank(encode_blank(17))
    assert len(encode_blank(60)) == 60
    assert BLANK_MAGIC & 0xFFFFFFFF == 0xCBD43194
    assert not is_blank(encode_unit(UNIT))
    assert not is_blank(b"")


def test_what_magic_says() -> None:
    assert not UNIT.rolls
    assert not UNIT.cancels
    assert UNIT.weight == 1
    assert UNIT.slot_ms == 1_700_000_005_000
    assert UNIT._replace(magic=5).cancels
    assert UNIT._replace(magic=5).weight == -1
    assert UNIT._replace(magic=7).rolls
    assert not UNIT._replace(magic=7).cancels  # It is only on its way.


def test_the_last_unit_of_a_full_file_is_where_rocketmq_looks_for_it() -> None:
    for size in (4096, 4097, 104_857_600):
        position = last_unit_position(size)
        assert position % UNIT_BYTES == 0
        assert position + UNIT_BYTES + 16 <= size < position + 2 * UNIT_BYTES + 16
