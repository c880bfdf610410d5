"""Records are taken for those of their units only when they say so themselves."""

from __future__ import annotations

import struct

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tier.metadata.metadata_samples import log_key
from tier.tier_world import record
from tiermq.consumequeue.unit import PRE_BLANK, UNIT
from tiermq.errors import CorruptRecord
from tiermq.history.scan_values import RecordPlace
from tiermq.message.layout import I32, MAGIC_BLANK, MAGIC_V1, MAGIC_V2, QUEUE_ID_AT
from tiermq.tier.metadata.metadata_values import Segment
from tiermq.tier.queue.records import PEEK_BYTES, behind_coda, claimed_record
from tiermq.tier.queue.segments import SegmentList, end_of
from tiermq.tier.queue.unit_array import claimed_offsets, decode_units, locate, segments_of, units_of_locations
from tiermq.tier.queue.units import iter_units

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


def rounded(number: int) -> st.SearchStrategy[int]:
    """Numbers around `number`, the borders of what can be a record's among them."""
    return st.one_of(st.integers(number - 2, number + 2), st.integers(-1, 2 * number), st.just(0))


@given(st.lists(st.tuples(rounded(BASE), st.one_of(rounded(91), st.just(2**31 - 1))), max_size=20))
def test_units_are_blank_and_sound_alike_one_by_one_and_as_arrays(fields: list[tuple[int, int]]) -> None:
    data = b"".join(UNIT.pack(log_offset, size, 0) for log_offset, size in fields)
    array, units = decode_units(data, 10), list(iter_units(data, 10))
    assert array.is_blank.tolist() == [unit.is_blank for unit in units]
    assert array.is_sound.tolist() == [unit.is_sound for unit in units]
    assert array.ends.tolist() == [unit.end for unit in units]


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 300)), max_size=6),
    st.lists(st.tuples(st.integers(0, 2_000), st.integers(91, 400)), min_size=1, max_size=20),
)
def test_records_are_in_the_same_segments_one_by_one_and_as_arrays(
    parts: list[tuple[int, int]], records: list[tuple[int, int]]
) -> None:
    logs, at = [], 0
    for hole, size in parts:
        logs.append(Segment(log_key(at + hole), size))
        at += hole + size
    segments = SegmentList(logs)
    array = decode_units(b"".join(UNIT.pack(*each, 0) for each in records), 0)
    numbers, inside = segments_of(array, [each.key.base for each in segments], [end_of(each) for each in segments])
    for (log_offset, size), number, holds in zip(records, numbers.tolist(), inside.tolist(), strict=True):
        assert holds == segments.covers(log_offset, log_offset + size)
        assert not holds or segments.find(log_offset, log_offset + size) is segments.segments[number]


@given(st.integers(0, 4), st.integers(0, 60), st.integers(1, 255), st.booleans())
def test_damaged_heads_are_refused_alike_one_by_one_and_as_arrays(
    number: int, at: int, flip: int, behind_an_end_mark: bool
) -> None:
    data, units = log_of(5)
    mark = struct.pack(">iiq", 16, MAGIC_BLANK, 7) if behind_an_end_mark else b""
    promised = list(iter_units(units))
    damaged = bytearray(data)
    damaged[promised[number].log_offset - BASE + at] ^= flip
    promised[0] = promised[0]._replace(log_offset=BASE - len(mark))
    log, base = mark + bytes(damaged), BASE - len(mark)
    _, good = locate(decode_units(b"".join(unit.packed() for unit in promised), 0), log, base, 3)
    for unit, is_good in zip(promised, good.tolist(), strict=True):
        head = log[unit.log_offset - base :][:PEEK_BYTES]
        try:
            claimed_record(unit, head)
            is_claimed = I32.unpack_from(head, behind_coda(head) + QUEUE_ID_AT)[0] == 3
        except CorruptRecord:
            is_claimed = False
        assert is_good == is_claimed
