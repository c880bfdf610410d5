"""The 20-byte unit: bytes, bounds, blanks and ext addresses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiermq.consumequeue import unit
from tiermq.errors import CorruptRecord, IllegalMessage


def test_the_unit_of_the_sample_record_has_rocketmqs_bytes() -> None:
    data = unit.encode(1024, 123, 2598919)
    assert data.hex() == "00000000000004000000007b000000000027a807"
    assert unit.decode(data) == (1024, 123, 2598919)


def test_the_pre_blank_unit_has_rocketmqs_bytes() -> None:
    assert unit.PRE_BLANK.hex() == "00000000000000007fffffff0000000000000000"
    assert unit.is_valid(*unit.decode(unit.PRE_BLANK)[:2])
    assert not unit.is_real(*unit.decode(unit.PRE_BLANK)[:2])


def test_the_ext_address_of_offset_48_is_rocketmqs() -> None:
    assert unit.ext_address(48) & (2**64 - 1) == 0x8000000000000030
    assert unit.ext_offset(unit.ext_address(48)) == 48


@given(st.integers(0, 2**63 - 1), st.integers(1, 2**31 - 2), st.integers(-(2**63), 2**63 - 1))
def test_every_unit_comes_back(physical_offset: int, size: int, tags_code: int) -> None:
    data = b"x" + unit.encode(physical_offset, size, tags_code)
    assert unit.decode(data, 1) == (physical_offset, size, tags_code)


@given(st.integers(0, unit.EXT_OFFSET_MAX))
def test_every_ext_address_is_distinguished_from_every_hash(offset: int) -> None:
    address = unit.ext_address(offset)
    assert unit.is_ext_address(address)
    assert unit.ext_offset(address) == offset


@pytest.mark.parametrize("tags_code", [-(2**31), -1, 0, 2**31 - 1, 2**63 - 1])
def test_hashes_and_times_are_no_ext_address(tags_code: int) -> None:
    assert not unit.is_ext_address(tags_code)
    with pytest.raises(CorruptRecord):
        unit.ext_offset(tags_code)


@given(st.binary(max_size=40), st.integers(-3, 45))
def test_any_bytes_decode_to_a_valid_unit_or_are_refused(data: bytes, position: int) -> None:
    try:
        found = unit.decode(data, position)
    except CorruptRecord:
        return
    assert unit.is_valid(found.physical_offset, found.size)
    assert unit.UNIT.pack(*found) == data[position : position + 20]


@pytest.mark.parametrize(
    "values", [(-1, 1, 0), (0, 0, 0), (0, -1, 0), (0, 2**31 - 1, 0), (2**63, 1, 0), (0, 1, 2**63), (0, 2**40, 0)]
)
def test_values_that_would_not_be_read_back_are_refused(values: tuple[int, int, int]) -> None:
    with pytest.raises(IllegalMessage):
        unit.encode(*values)


@pytest.mark.parametrize("offset", [-1, unit.EXT_OFFSET_MAX + 1])
def test_an_ext_offset_out_of_range_is_refused(offset: int) -> None:
    with pytest.raises(IllegalMessage):
        unit.ext_address(offset)


@pytest.mark.parametrize(("asked", "rounded"), [(6_000_000, 6_000_000), (1, 20), (20, 20), (21, 40)])
def test_a_file_size_is_rounded_up_to_whole_units(asked: int, rounded: int) -> None:
    assert unit.whole_units_bytes(asked) == rounded
