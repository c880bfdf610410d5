"""What a write means for a segment that ends somewhere, as a table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tier.driver.conformance import fresh_segment
from tiermq.errors import IllegalRange, SegmentConflict
from tiermq.tier.driver.contract import missing_suffix

KEY = fresh_segment()
STORED = b"0123456789"


def missing(position: int, data: bytes) -> bytes:
    return bytes(missing_suffix(KEY, position, data, len(STORED), lambda at, length: STORED[at : at + length]))


@pytest.mark.parametrize(
    ("position", "data", "expected"),
    [
        (10, b"abc", b"abc"),
        (0, STORED, b""),
        (4, b"456", b""),
        (9, b"9", b""),
        (9, b"9abc", b"abc"),
        (0, STORED + b"x", b"x"),
    ],
)
def test_only_what_is_not_there_is_missing(position: int, data: bytes, expected: bytes) -> None:
    assert missing(position, data) == expected


@pytest.mark.parametrize(("position", "data"), [(0, b"1"), (4, b"457"), (9, b"xabc"), (0, b"012345678x")])
def test_other_bytes_are_a_conflict(position: int, data: bytes) -> None:
    with pytest.raises(SegmentConflict, match=f"position {position}"):
        missing(position, data)


@pytest.mark.parametrize("position", [-1, 11, 10**12])
def test_no_write_leaves_a_hole(position: int) -> None:
    with pytest.raises(IllegalRange):
        missing(position, b"x")


@given(st.binary(max_size=40), st.integers(0, 45), st.integers(0, 45))
def test_any_slice_of_a_text_continues_any_prefix_of_it(text: bytes, end: int, position: int) -> None:
    end = min(end, len(text))
    position = min(position, end)
    data = text[position:]
    rest = missing_suffix(KEY, position, data, end, lambda at, length: text[at : at + length])
    assert text[:end] + bytes(rest) == text
