"""Body CRC and the whole-record CRC property."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiermq.errors import IllegalMessage
from tiermq.message.crc import (
    CRC_MASK,
    body_crc,
    crc32,
    decode_crc_property,
    encode_crc_property,
    has_crc_property,
    seal_crc_property,
    verify_crc_property,
)


def test_the_crc_of_hello_is_rocketmqs() -> None:
    assert body_crc(b"hello") == 907060870 == 0x3610A686


def test_the_crc_of_nothing_is_zero() -> None:
    assert body_crc(b"") == 0


@given(st.binary(max_size=500))
def test_the_fast_crc_agrees_with_zlib_on_every_kind_of_buffer(data: bytes) -> None:
    assert crc32(data) == zlib.crc32(data)
    assert body_crc(memoryview(data)) == body_crc(bytearray(data)) == zlib.crc32(data) & 0x7FFFFFFF


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1852833821, b"__CRC32#\x011283382581\x02"),
        (0, b"__CRC32#\x010000000000\x02"),
        (7, b"__CRC32#\x017000000000\x02"),
        (1230, b"__CRC32#\x010321000000\x02"),
        (CRC_MASK, b"__CRC32#\x017463847412\x02"),
    ],
)
def test_digits_are_written_least_significant_first(value: int, expected: bytes) -> None:
    assert encode_crc_property(value) == expected


@given(st.integers(0, CRC_MASK))
def test_every_crc_survives_its_property(value: int) -> None:
    encoded = encode_crc_property(value)
    assert len(encoded) == 20
    assert decode_crc_property(b"KEYS\x01k\x02" + encoded) == value


@pytest.mark.parametrize("value", [-1, CRC_MASK + 1])
def test_a_number_that_was_not_masked_is_refused(value: int) -> None:
    with pytest.raises(IllegalMessage, match="0x7FFFFFFF"):
        encode_crc_property(value)


@pytest.mark.parametrize(
    "properties",
    [b"", b"KEYS\x01k\x02", b"__CRC32#\x01128338258\x02", b"__CRC32#\x0112833825810", b"_CRC32#\x01a1283382581\x02"],
)
def test_other_endings_are_not_taken_for_the_property(properties: bytes) -> None:
    assert not has_crc_property(properties)
    assert decode_crc_property(properties) is None
    assert not verify_crc_property(properties)


def test_digits_that_are_none_never_verify() -> None:
    assert has_crc_property(b"__CRC32#\x0112833x2581\x02")
    assert decode_crc_property(b"__CRC32#\x0112833x2581\x02") is None


@given(st.binary(max_size=300), st.data())
def test_a_sealed_record_verifies_until_a_byte_before_the_property_changes(data: bytes, draw: st.DataObject) -> None:
    record = bytearray(data + b"p" + bytes(20))
    seal_crc_property(record)
    assert verify_crc_property(record)
    assert verify_crc_property(memoryview(record))
    at = draw.draw(st.integers(0, len(record) - 21))
    record[at] ^= draw.draw(st.integers(1, 255))
    assert not verify_crc_property(record)
