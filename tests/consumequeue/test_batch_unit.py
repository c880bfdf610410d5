"""The 46-byte batch unit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiermq.consumequeue import batch_unit
from tiermq.consumequeue.batch_unit import BatchUnit
from tiermq.errors import CorruptRecord, IllegalMessage

OFFSET = st.integers(0, 2**63 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
UNITS = st.builds(BatchUnit, OFFSET, st.integers(1, 2**31 - 1), I64, I64, OFFSET, st.integers(1, 2**15 - 1))


def test_a_batch_unit_has_its_fields_in_rocketmqs_order() -> None:
    unit = BatchUnit(1024, 123, 2598919, 1_700_000_000_123, 7, 10)
    assert batch_unit.encode(unit).hex() == (
        "0000000000000400" "0000007b" "000000000027a807" "0000018bcfe5687b"
        "0000000000000007" "000a" "ffffffff" "00000000"
    )  # fmt: skip
    assert (unit.end_offset, unit.end_physical_offset) == (17, 1147)


@given(UNITS)
def test_every_batch_unit_comes_back(unit: BatchUnit) -> None:
    assert batch_unit.decode(b"-" + batch_unit.encode(unit), 1) == unit


@given(st.binary(max_size=100), st.integers(-2, 60))
def test_any_bytes_decode_to_a_valid_unit_or_are_refused(data: bytes, position: int) -> None:
    try:
        found = batch_unit.decode(data, position)
    except CorruptRecord:
        return
    assert batch_unit.encode(found)[:38] == data[position : position + 38]


@pytest.mark.parametrize(
    "unit",
    [
        BatchUnit(-1, 1, 0, 0, 0, 1),
        BatchUnit(0, 0, 0, 0, 0, 1),
        BatchUnit(0, 1, 0, 0, -1, 1),
        BatchUnit(0, 1, 0, 0, 0, 0),
        BatchUnit(0, 1, 0, 0, 0, 2**15),
    ],
)
def test_values_that_would_not_be_read_back_are_refused(unit: BatchUnit) -> None:
    with pytest.raises(IllegalMessage):
        batch_unit.encode(unit)
