"""The bytes of tier index files: golden positions, sizes, hashes, seconds, and refusal of what is no index."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiermq.errors import CorruptRecord
from tiermq.message.java_hash import java_hash, key_hash
from tiermq.tier.index.index_item import (
    CAPACITY_DEFAULT,
    HEADER,
    ITEM,
    MAGIC_BEGIN,
    MAGIC_END,
    MINUTE_MS,
    OPEN_ITEM,
    SLOTS_DEFAULT,
    IndexItem,
    compacted_bytes,
    decode_header,
    decode_run,
    distinct,
    index_hash,
    is_merged,
    low_32_bits,
    merged_begin_ms,
    open_file_bytes,
    seconds_between,
)

I32 = st.integers(-(2**31), 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)


def test_an_item_is_at_the_positions_of_the_format() -> None:
    data = ITEM.pack(*IndexItem(0x01020304, 5, 6, 0x0708090A0B0C0D0E, 15, -16))
    assert data == struct.pack(">iiiqii", 0x01020304, 5, 6, 0x0708090A0B0C0D0E, 15, -16)
    for position, width, value in [(0, 4, 0x01020304), (4, 4, 5), (8, 4, 6), (12, 8, 0x0708090A0B0C0D0E), (20, 4, 15)]:
        assert int.from_bytes(data[position : position + width], "big") == value
    assert int.from_bytes(data[24:28], "big", signed=True) == -16


def test_an_open_item_is_a_compacted_one_with_its_chain_link_behind_it() -> None:
    assert OPEN_ITEM.pack(1, 2, 3, 4, 5, 6, 7) == ITEM.pack(1, 2, 3, 4, 5, 6) + b"\0\0\0\x07"


def test_the_magics_are_rocketmq_s() -> None:
    assert HEADER.pack(MAGIC_BEGIN, 0, 0, 0, 0)[:4] == bytes.fromhex("bcc50289")
    assert HEADER.pack(MAGIC_END, 0, 0, 0, 0)[:4] == bytes.fromhex("bcc50285")


def test_default_files_have_rocketmq_s_sizes() -> None:
    assert open_file_bytes(SLOTS_DEFAULT, CAPACITY_DEFAULT) == 680_000_028
    assert compacted_bytes(SLOTS_DEFAULT, CAPACITY_DEFAULT - 1) == 600_000_000
    assert compacted_bytes(SLOTS_DEFAULT, 0) == 0


def test_the_known_key_has_the_known_hash() -> None:
    assert index_hash("TopicTest", "MessageKey") == 638347386


def test_bug_12_the_key_without_an_absolute_value_gets_a_slot() -> None:
    assert java_hash("orders#lrc4znxzk") == -(2**31)
    assert index_hash("orders", "lrc4znxzk") == 0


@given(st.text(st.characters(), max_size=20), st.text(st.characters(), max_size=40))
def test_the_index_hash_is_the_key_hash_of_topic_and_key(topic: str, key: str) -> None:
    assert index_hash(topic, key) == key_hash(f"{topic}#{key}")


@given(I32, I32, I32, I64, I32, I32)
def test_an_item_comes_back_as_it_went(a: int, b: int, c: int, d: int, e: int, f: int) -> None:
    item = IndexItem(a, b, c, d, e, f)
    assert list(decode_run(ITEM.pack(*item) * 2)) == [item, item]


def test_a_run_that_ends_within_an_item_is_refused() -> None:
    with pytest.raises(CorruptRecord):
        decode_run(bytes(57))


@pytest.mark.parametrize(
    "data",
    [
        bytes(27),
        bytes(28),
        HEADER.pack(MAGIC_BEGIN + 1, 1, 1, 1, 1),
        HEADER.pack(MAGIC_END, 1, 1, -1, 1),
        HEADER.pack(MAGIC_END, 1, 1, 1, -1),
    ],
)
def test_what_is_no_header_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptRecord):
        decode_header(data)


@given(st.integers(0, 2**40), st.integers(0, 2**40))
def test_seconds_are_cut_toward_zero_and_the_true_time_is_in_the_item_s_range(begin_ms: int, store_ms: int) -> None:
    seconds = seconds_between(begin_ms, store_ms)
    assert seconds == int((store_ms - begin_ms) / 1000)
    item = IndexItem(0, 0, 0, 0, 0, seconds)
    assert item.earliest_ms(begin_ms) <= store_ms <= item.latest_ms(begin_ms)


@given(st.integers(0, 2**40), st.integers(0, 2**40), st.integers(0, 2**40))
def test_a_merged_item_s_range_holds_the_true_time_also_when_merged_again(begin: int, store: int, into: int) -> None:
    merged_ms = merged_begin_ms(into)
    assert is_merged(merged_ms)
    assert into - MINUTE_MS < merged_ms <= into
    earliest_ms = IndexItem(0, 0, 0, 0, 0, seconds_between(begin, store)).earliest_ms(begin)
    once = IndexItem(0, 0, 0, 0, 0, (earliest_ms - merged_ms) // 1000)
    assert once.earliest_ms(merged_ms) <= store <= once.latest_ms(merged_ms)
    again_ms = merged_ms - 7 * MINUTE_MS
    again = once._replace(seconds=once.seconds + 7 * 60)
    assert again.earliest_ms(again_ms) <= store <= again.latest_ms(again_ms)


def test_seconds_that_no_int_holds_are_clamped() -> None:
    assert seconds_between(0, 2**63 - 1) == 2**31 - 1
    assert seconds_between(2**63 - 1, 0) == -(2**31)


def test_a_topic_id_keeps_its_low_32_bits() -> None:
    assert [low_32_bits(value) for value in (0, 7, 2**31, 2**32 + 5, -1)] == [0, 7, -(2**31), 5, -1]


def test_keys_are_indexed_once_each_and_empty_ones_never() -> None:
    assert distinct(["uk", "a", "", "b", "a", "uk"]) == ("uk", "a", "b")
