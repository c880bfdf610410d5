"""Records are taken for those of their units only when they say so themselves."""

from __future__ import annotations

import struct

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tier.tier_world import record
from tiermq.consumequeue.unit import PRE_BLANK, UNIT
from tiermq.history.scan_values import RecordPlace
from tiermq.message.layout import MAGIC_V1, MAGIC_V2
from tiermq.tier.queue.unit_array import claimed_offsets, decode_units, locate, units_of_locations

BASE = 5000


def log_of(count: int, topic: str = "orders") -> tuple[bytes, bytes]:
    """Records one behind the other from BASE on, and their units."""
    data, units = bytearray(), b""
    for number in range(count):
        one = bytearray(record(topic, 3, number, 7, size=number * 5))
        struct.pack_into(">q", one, 28, BASE + len(data))
        units += UNIT.pack(BASE + len(data), len(one), 0)
        data += one
    return bytes(data), units


def test_sound_records_are_found_where_their_units_say() -> None:
    data, units = log_of(5)
    array = decode_units(units, 0)
    starts, good = locate(array, data, BASE, 3)
    assert good.all()
    assert (starts == array.log_offsets - BASE).all()
    assert claimed_offsets(data, starts, good).tolist() == [0, 1, 2, 3, 4]
    assert not locate(array, data, BASE, 2)[1].any()
    assert not locate(decode_units(units, 1), data, BASE, 3)[1].any()


def test_an_end_mark_before_a_record_is_passed_over() -> None:
    one = bytearray(record("orders", 3, 0, 7))
    struct.pack_into(">q", one, 28, BASE + 16)
    data = struct.pack(">iiq", 16, 0xCBD43194 - (1 << 32), 7) + bytes(one)
    starts, good = locate(decode_units(UNIT.pack(BASE, len(one), 0), 0), data, BASE, 3)
    assert (starts.tolist(), good.tolist()) == ([16], [True])


def test_blank_and_impossible_units_are_not_sound() -> None:
    units = decode_units(PRE_BLANK + UNIT.pack(7, 100, 0) + UNIT.pack(7, 5, 0) + struct.pack(">qiq", -1, 100, 0), 10)
    assert units.is_blank.tolist() == [True, False, False, False]
    assert units.is_sound.tolist() == [False, True, False, False]
    assert list(units.runs(~units.is_sound)) == [(10, 11), (12, 14)]


@given(st.binary(max_size=400), st.lists(st.tuples(st.integers(-10, 500), st.integers(91, 400)), max_size=20))
def test_garbage_is_never_a_record_and_never_an_error(data: bytes, places: list[tuple[int, int]]) -> None:
    units = decode_units(b"".join(struct.pack(">qiq", place, size, 0) for place, size in places), 0)
    _, good = locate(units.choose(units.is_sound), data, 0, 0)
    assert not good.any()


@given(st.integers(0, 4), st.integers(0, 35), st.integers(1, 255))
def test_a_flipped_byte_of_what_identifies_a_record_loses_it_alone(number: int, at: int, flip: int) -> None:
    if 8 <= at < 12 or 16 <= at < 20 or (at, flip) == (7, (MAGIC_V1 ^ MAGIC_V2) & 0xFF):
        return  # The CRC of the body, the flag and the version of the record are the decoder's to check.
    data, units = log_of(5)
    array = decode_units(units, 0)
    damaged = bytearray(data)
    damaged[int(array.log_offsets[number]) - BASE + at] ^= flip
    _, good = locate(array, bytes(damaged), BASE, 3)
    assert np.flatnonzero(~good).tolist() == [number]


def test_locations_become_units_without_queue_offsets() -> None:
    units = units_of_locations([RecordPlace(5, 100), RecordPlace(9, 5), RecordPlace(-1, 100)])
    assert (units.log_offsets.tolist(), units.sizes.tolist(), units.queue_offsets.tolist()) == ([5], [100], [-1])
