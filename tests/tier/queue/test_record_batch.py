"""Batches: records rebased for any place, found through their units, and parted between records."""

from __future__ import annotations

import struct

import pytest

from tier.flat.flat_world import batch, record
from tiermq.message import decode_records
from tiermq.tier.queue.records import RecordBatch, store_time_at

START = 13_131_313


def test_rebased_records_differ_from_the_originals_in_their_physical_offset_alone() -> None:
    originals = [record(number) for number in range(10)]
    found = RecordBatch.of(batch(0, 10, START))
    position = 0
    for number, (at, size, _) in enumerate(found.locations()):
        data = bytes(found.data[at : at + size])
        assert (at, size) == (position, len(originals[number]))
        assert data[:28] + data[36:] == originals[number][:28] + originals[number][36:]
        assert struct.unpack_from(">q", data, 28) == (START + position,)
        position += size
    assert (found.log_offset, found.first_offset, found.next_offset) == (START, 0, 10)


@pytest.mark.parametrize("room_units", [1, 2, 9, 10, 11])
@pytest.mark.parametrize("extra", [-1, 0, 1])
@pytest.mark.parametrize("records", [1, 5, 10])
def test_a_batch_is_parted_between_two_records(records: int, extra: int, room_units: int) -> None:
    whole = RecordBatch.of(batch(7, 10, START))
    ends = [at + size for at, size, _ in whole.locations()]
    part, rest = whole.split(ends[records - 1] + extra, room_units)
    expected = min(records - (extra < 0), room_units)
    assert (part.count if part else 0) == expected
    pieces = [piece for piece in (part, rest) if piece is not None]
    assert b"".join(bytes(piece.data) for piece in pieces) == whole.data
    assert b"".join(bytes(piece.units) for piece in pieces) == whole.units
    for piece in pieces:
        numbers = [message.queue_offset for message in decode_records(bytes(piece.data))]
        assert numbers == list(range(piece.first_offset, piece.next_offset))
        assert (piece.begin_ms, piece.end_ms) == (1000 + numbers[0], 1000 + numbers[-1])


def test_bug_11_the_store_time_is_found_behind_a_born_host_of_any_shape() -> None:
    for host in ("127.0.0.1:1", "[::1]:1"):
        assert store_time_at(record(3, host=host), 0) == 1003


@pytest.mark.parametrize("messages_max", [1, 3, 10, 99])
@pytest.mark.parametrize("bytes_max", [1, 300, 1_000, 1 << 20])
def test_chunks_are_whole_records_and_as_long_as_both_limits_allow(messages_max: int, bytes_max: int) -> None:
    whole = RecordBatch.of(batch(7, 10, START))
    found = list(whole.runs(messages_max, bytes_max))
    assert [first for first, _ in found] + [whole.count] == [0] + [end for _, end in found]
    for first, end in found:
        length = whole.end_of(end) - whole.location(first)[0]
        assert end == first + 1 or (end - first <= messages_max and length <= bytes_max)
        if end < whole.count and end - first < messages_max:
            assert whole.end_of(end + 1) - whole.location(first)[0] > bytes_max, "one more would have fitted"
