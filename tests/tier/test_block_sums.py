"""Checksums of blocks, of index files and segments: what they cover, how they are stored, no bad bit passes."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiermq.errors import CorruptSegment
from tiermq.message.crc import crc32
from tiermq.tier.block_sums import BLOCK_BYTES_MIN, BLOCKS_MAX, FIELD, BlockSums, summed

DATA = random.Random(3).randbytes(3 * BLOCK_BYTES_MIN + 100)


def read(data: bytes | bytearray, sums: BlockSums, position: int, length: int) -> bytes:
    low, count = sums.range_to_read(position, length)
    return bytes(sums.checked(memoryview(data)[low : low + count], low, position, length, "here"))


@pytest.mark.parametrize(
    ("position", "length"), [(0, 8), (4_090, 12), (4_096, 4_096), (0, len(DATA)), (len(DATA) - 8, 8), (100, 0)]
)
def test_what_is_read_is_what_was_asked_for(position: int, length: int) -> None:
    assert read(DATA, BlockSums.of(DATA), position, length) == DATA[position : position + length]


def test_a_bad_bit_is_found_by_each_read_of_its_block() -> None:
    sums = BlockSums.of(DATA)
    bad = bytearray(DATA)
    bad[BLOCK_BYTES_MIN + 7] ^= 16
    assert read(bad, sums, 0, BLOCK_BYTES_MIN) == DATA[:BLOCK_BYTES_MIN]
    for position, length in ((BLOCK_BYTES_MIN, 8), (BLOCK_BYTES_MIN - 1, 2), (0, len(DATA))):
        with pytest.raises(CorruptSegment, match="of 4096 bytes at 4096 is not"):
            read(bad, sums, position, length)


def test_a_companion_shows_them_and_keeps_what_else_it_reported() -> None:
    sums = BlockSums.of(DATA)
    companion = summed(b'{"version":1,"files":[]}', sums)
    assert json.loads(companion)["version"] == 1
    assert BlockSums.of_companion(companion, len(DATA)) == sums
    assert summed(b"{}", None) == b"{}"


@pytest.mark.parametrize(
    "companion",
    [b"{}", b"[]", b"no JSON", b'{"blocks":{"bytes":0,"crc32":""}}', b'{"blocks":{"bytes":4096,"crc32":"?"}}'],
)
def test_a_companion_that_does_not_show_them_is_none(companion: bytes) -> None:
    assert BlockSums.of_companion(companion, len(DATA)) is None


def test_sums_of_another_size_are_not_believed() -> None:
    assert BlockSums.of_companion(summed(b"{}", BlockSums.of(DATA)), len(DATA) + BLOCK_BYTES_MIN) is None


def test_a_large_file_has_larger_blocks() -> None:
    sums = BlockSums.of(bytes(BLOCK_BYTES_MIN * BLOCKS_MAX + 1))
    assert sums.block_bytes == 2 * BLOCK_BYTES_MIN
    assert len(json.dumps({FIELD: sums.document()})) < 500_000


@given(st.lists(st.binary(max_size=9_000), max_size=6), st.integers(0, 60_000))
def test_sums_grow_and_are_cut_as_the_bytes_do(pieces: list[bytes], size: int) -> None:
    data = b"".join(pieces)
    sums = BlockSums(0, BLOCK_BYTES_MIN, ())
    for piece in pieces:
        sums = sums.extended(piece)
    assert sums == BlockSums(0, BLOCK_BYTES_MIN, ()).extended(data)
    assert sums.whole() == crc32(data)
    assert BlockSums.unpacked(sums.packed()) == sums
    cut = sums.cut(size)
    assert cut.size <= min(size, len(data)) or cut == sums
    assert not cut.bad_blocks(memoryview(data)[: cut.size], 0)


def test_what_is_behind_the_sums_is_read_unchecked_and_what_is_before_is_not() -> None:
    sums = BlockSums(0, BLOCK_BYTES_MIN, ()).extended(DATA)
    longer = DATA + b"more"
    assert read(longer, sums, len(DATA) - 3, 7) == longer[-7:]
    with pytest.raises(CorruptSegment):
        read(bytes([DATA[0] ^ 1]) + longer[1:], sums, 1, len(longer) - 1)
