"""Scanning bytes for units: where they end, which are real, whether anything is left."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiermq.consumequeue.unit import PRE_BLANK, UNIT
from tiermq.consumequeue.unit_scan import Scan, has_data, real_units, real_units_backwards, scan_units

REAL = [UNIT.pack(number * 100, 100, number) for number in range(5)]


def view(*units: bytes) -> memoryview:
    return memoryview(b"".join(units))


@pytest.mark.parametrize(
    ("units", "expected"),
    [
        ([], Scan(0, 0, False)),
        (REAL, Scan(100, 500, True)),
        ([*REAL, bytes(40)], Scan(100, 500, True)),
        ([*REAL, b"half of one"], Scan(100, 500, True)),
        ([PRE_BLANK, PRE_BLANK], Scan(40, 0, False)),
        ([PRE_BLANK, REAL[0], PRE_BLANK, REAL[1]], Scan(80, 200, True)),
        ([REAL[0], REAL[2], REAL[1]], Scan(40, 300, True)),
        ([REAL[0], REAL[0]], Scan(20, 100, True)),
        ([REAL[0], UNIT.pack(5, 2**31 - 1, 0), REAL[1]], Scan(20, 100, True)),
        ([UNIT.pack(-1, 5, 0)], Scan(0, 0, False)),
        ([bytes(20), REAL[0]], Scan(0, 0, False)),
    ],
)
def test_a_scan_ends_at_the_first_unit_that_does_not_belong(units: list[bytes], expected: Scan) -> None:
    assert scan_units(view(*units)) == expected


def test_a_scan_ends_at_the_first_record_that_passes_the_end_of_the_log() -> None:
    assert scan_units(view(*REAL), physical_end_max=300) == Scan(60, 300, True)
    assert scan_units(view(*REAL), physical_end_max=299) == Scan(40, 200, True)
    assert scan_units(view(*REAL), physical_end_max=0) == Scan(0, 0, False)


def test_a_scan_goes_on_from_the_file_before() -> None:
    assert scan_units(view(*REAL[2:]), previous_end=200) == Scan(60, 500, True)
    assert scan_units(view(*REAL[2:]), previous_end=201) == Scan(0, 201, False)


@given(st.binary(max_size=400), st.integers(0, 1000))
def test_any_bytes_scan_to_whole_units_in_order(data: bytes, end: int) -> None:
    scan = scan_units(memoryview(data), physical_end_max=end)
    assert scan.valid_bytes % 20 == 0
    assert scan.valid_bytes <= len(data)
    assert scan.physical_end <= end


def test_real_units_are_given_with_their_offsets_and_all_others_passed_over() -> None:
    data = view(PRE_BLANK, REAL[0], bytes(20), REAL[1], UNIT.pack(-4, 1, 1))
    assert list(real_units(data, 50)) == [(0, 100, 0, 51), (100, 100, 1, 53)]
    assert [unit.physical_offset for unit in real_units_backwards(data)] == [100, 0]


@pytest.mark.parametrize("size", [0, 1, 20, 65535, 65536, 65537, 200_000])
def test_a_single_byte_is_seen_wherever_it_lies(size: int) -> None:
    assert not has_data(memoryview(bytes(size)))
    for at in {0, size // 2, size - 1} if size else ():
        data = bytearray(size)
        data[at] = 1
        assert has_data(memoryview(data))
