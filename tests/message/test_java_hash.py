"""Java's string hash and what RocketMQ makes of it."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiermq.message.java_hash import java_hash, key_hash, tags_code


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("TagA", 2598919),
        ("TAG1", 2567159),
        ("TopicTest", -1902610879),
        ("TopicTest-3", 1247014823),
        ("TopicTest#k1", 2746024),
        ("polygenelubricants", -2147483648),
    ],
)
def test_the_hash_is_the_one_that_java_computes(text: str, expected: int) -> None:
    assert java_hash(text) == expected


def slow_java_hash(text: str) -> int:
    """Spelled out: 32-bit registers, one UTF-16 unit at a time."""
    raw = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for (unit,) in struct.iter_unpack(">H", raw):
        value = (value * 31 + unit) % 2**32
    (signed,) = struct.unpack(">i", struct.pack(">I", value))
    assert isinstance(signed, int)
    return signed


@given(st.text(max_size=200) | st.text(st.characters(), max_size=50))
def test_the_hash_agrees_with_the_rule_spelled_out(text: str) -> None:
    assert java_hash(text) == slow_java_hash(text)


def test_a_character_outside_the_basic_plane_counts_as_two_units() -> None:
    assert java_hash("\U0001f600") == 0xD83D * 31 + 0xDE00


def test_the_key_hash_without_an_absolute_value_is_zero() -> None:
    assert key_hash("polygenelubricants") == 0
    assert key_hash("TopicTest") == 1902610879


@given(st.text(max_size=50))
def test_a_key_hash_is_never_negative_and_fits_an_int(text: str) -> None:
    assert 0 <= key_hash(text) < 1 << 31


def test_no_tag_has_code_zero() -> None:
    assert tags_code(None) == 0
    assert tags_code("") == 0
    assert tags_code("TagA") == 2598919
