"""Ext units: bytes, sizes, damage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiermq.consumequeue import ext_unit
from tiermq.consumequeue.ext_unit import ExtUnit
from tiermq.errors import CorruptRecord, IllegalMessage

I64 = st.integers(-(2**63), 2**63 - 1)


def test_an_ext_unit_has_its_fields_in_rocketmqs_order() -> None:
    data = ext_unit.encode(ExtUnit(2598919, 1_700_000_000_123, b"\x0f\xf0"))
    assert data.hex() == "0016" + "000000000027a807" + "0000018bcfe5687b" + "0002" + "0ff0"


@given(I64, I64, st.binary(max_size=300))
def test_every_ext_unit_comes_back_with_its_size(tags_code: int, timestamp_ms: int, bit_map: bytes) -> None:
    unit = ExtUnit(tags_code, timestamp_ms, bit_map)
    data = ext_unit.encode(unit)
    assert len(data) == unit.size == ext_unit.size_at(data, 0)
    assert ext_unit.decode(b"--" + data + b"rest", 2) == unit


def test_the_largest_bit_map_fits_and_one_more_byte_does_not() -> None:
    largest = ExtUnit(0, 0, bytes(32767 - 20))
    assert ext_unit.decode(ext_unit.encode(largest)) == largest
    with pytest.raises(IllegalMessage, match="shorten"):
        ext_unit.encode(ExtUnit(0, 0, bytes(32767 - 19)))


def test_a_number_that_is_no_i64_is_refused() -> None:
    with pytest.raises(IllegalMessage):
        ext_unit.encode(ExtUnit(2**63, 0))


def test_the_ends_of_data_and_file_are_no_units() -> None:
    assert ext_unit.size_at(bytes(4), 0) == 0
    assert ext_unit.size_at(ext_unit.END_OF_FILE, 0) == -1
    for data in (bytes(4), ext_unit.END_OF_FILE):
        with pytest.raises(CorruptRecord, match="end of the data"):
            ext_unit.decode(data)


@given(st.binary(max_size=60), st.integers(-2, 62))
def test_any_bytes_decode_to_what_they_say_or_are_refused(data: bytes, position: int) -> None:
    try:
        found = ext_unit.decode(data, position)
    except CorruptRecord:
        return
    assert ext_unit.encode(found) == data[position : position + found.size]


@given(st.binary(max_size=50), st.integers(0, 19), st.integers(0, 255))
def test_a_damaged_head_never_reads_beyond_the_data(bit_map: bytes, at: int, value: int) -> None:
    data = bytearray(ext_unit.encode(ExtUnit(1, 2, bit_map)))
    data[at] = value
    try:
        found = ext_unit.decode(data)
    except CorruptRecord:
        return
    assert found.bit_map == bit_map
