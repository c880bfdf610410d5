"""Index files: bytes, chains, damage, torn writes, full disks."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples import examples
from tiermq.errors import DiskFull, IllegalMessage, StoreDamaged
from tiermq.files.file_access import Region
from tiermq.files.os_file_access import OsFileAccess
from tiermq.index.index_file import ENTRY, HEADER, HEADER_BYTES, IndexFile, index_file_bytes
from tiermq.message.java_hash import key_hash

EVER = (0, 2**63 - 1)
BEGIN_MS = 1_700_000_000_000


@pytest.fixture
def index_file(tmp_path: Path) -> Iterator[IndexFile]:
    file = IndexFile.create(OsFileAccess(), str(tmp_path / "20231114221320000"), 10, 20, None)
    yield file
    file.close()


class FullDisk:
    """A region whose disk has room for a given number of bytes."""

    def __init__(self, size: int, room_bytes: int) -> None:
        self.path = "memory"
        self.size = size
        self.buffer = bytearray(size)
        self.room_bytes = room_bytes

    def reserve(self, start: int, length: int) -> None:
        if start + length > self.room_bytes:
            raise DiskFull(f"expected {length} free bytes, found fewer")

    def sync(self) -> None: ...

    def close_descriptor(self) -> None: ...

    def close(self) -> None: ...


class MemoryAccess(OsFileAccess):
    """Hands out one region that a test prepared."""

    __slots__ = ("region",)

    def __init__(self, region: object) -> None:
        self.region = region

    def create(self, path: str, size: int) -> Region:  # type: ignore[override]
        return self.region  # type: ignore[return-value]

    def open(self, path: str, size: int, writable: bool = True) -> Region:  # type: ignore[override]
        return self.region  # type: ignore[return-value]

    def remove(self, path: str) -> None: ...

    def rename(self, old: str, new: str) -> None: ...

    def sync_directory(self, path: str) -> None: ...


def test_one_entry_has_the_bytes_that_rocketmq_writes(tmp_path: Path) -> None:
    slots = 5_000_000
    path = tmp_path / "20231114221320000"
    file = IndexFile.create(OsFileAccess(), str(path), slots, 10, None)
    assert file.put_key(key_hash("TopicTest#k1"), 1024, 1_700_000_000_123)
    file.sync()
    file.close()
    data = path.read_bytes()
    assert len(data) == 40 + 4 * slots + 20 * 10
    assert data[:40].hex() == "0000018bcfe5687b0000018bcfe5687b000000000000040000000000000004000000000100000002"
    assert data[10_984_136:10_984_140].hex() == "00000001"
    first_entry = 40 + 4 * slots + 20
    assert data[first_entry : first_entry + 20].hex() == "0029e6a800000000000004000000000000000000"
    assert data.count(0, 40, 10_984_136) == 10_984_136 - 40
    assert data.count(0, 10_984_140, first_entry) == first_entry - 10_984_140


def test_a_default_index_file_is_as_large_as_rocketmqs() -> None:
    assert index_file_bytes(5_000_000, 20_000_000) == 420_000_040


def test_capacity_is_one_less_than_the_entry_count(index_file: IndexFile) -> None:
    for number in range(19):
        assert index_file.put_key(number, number, BEGIN_MS + number)
    assert index_file.is_full
    before = bytes(index_file.buffer or b"")
    assert not index_file.put_key(19, 19, BEGIN_MS)
    assert bytes(index_file.buffer or b"") == before


def test_lookup_of_one_key_returns_exactly_one_offset(index_file: IndexFile) -> None:
    for number in range(19):
        index_file.put_key(number, 100 + number, BEGIN_MS + number)
    assert index_file.select(7, 10, *EVER) == [107]


def test_a_query_for_the_largest_count_does_not_fail(index_file: IndexFile) -> None:
    index_file.put_key(7, 1, BEGIN_MS)
    index_file.put_key(7, 2, BEGIN_MS)
    assert index_file.select(7, 2**31 - 1, *EVER) == [2, 1]
    assert index_file.select(7, 1, *EVER) == [2]
    assert index_file.select(7, 0, *EVER) == []


def test_keys_of_one_slot_do_not_mix(index_file: IndexFile) -> None:
    index_file.put_key(3, 1, BEGIN_MS)
    index_file.put_key(13, 2, BEGIN_MS)
    index_file.put_key(3, 3, BEGIN_MS)
    assert index_file.select(3, 10, *EVER) == [3, 1]
    assert index_file.select(13, 10, *EVER) == [2]
    assert index_file.header.slot_count == 1
    assert index_file.header.entry_count == 4


def test_an_empty_file_finds_nothing_even_for_hash_zero(index_file: IndexFile) -> None:
    assert index_file.select(0, 10, *EVER) == []


def test_a_count_of_zero_on_disk_means_one(tmp_path: Path) -> None:
    path = tmp_path / "20231114221320000"
    path.write_bytes(bytes(index_file_bytes(4, 8)))
    file = IndexFile.open(OsFileAccess(), str(path), 4, 8)
    assert file.header.entry_count == 1
    assert file.put_key(5, 77, BEGIN_MS)
    assert file.select(5, 1, *EVER) == [77]
    file.close()


def test_polygenelubricants_is_found_under_hash_zero(index_file: IndexFile) -> None:
    """Pitfall 47: the one hash without an absolute value."""
    assert key_hash("polygenelubricants") == 0
    index_file.put_key(0, 42, BEGIN_MS)
    assert index_file.select(key_hash("polygenelubricants"), 1, *EVER) == [42]


def test_the_first_entry_of_a_rolled_file_is_zero_seconds_from_its_own_begin(tmp_path: Path) -> None:
    """Pitfall 9: RocketMQ counts that entry from the end of the previous file and reads it from its own begin."""
    access = OsFileAccess()
    first = IndexFile.create(access, str(tmp_path / "20231114221320000"), 10, 20, None)
    first.put_key(1, 10, BEGIN_MS)
    second = IndexFile.create(access, str(tmp_path / "20231114221320001"), 10, 20, first.header)
    assert second.header[:4] == (BEGIN_MS, BEGIN_MS, 10, 10)
    second.put_key(1, 20, BEGIN_MS + 60_000)
    assert second.header[:4] == (BEGIN_MS + 60_000, BEGIN_MS + 60_000, 20, 20)
    assert ENTRY.unpack_from(second.buffer or b"", HEADER_BYTES + 10 * 4 + 20)[2] == 0
    assert second.select(1, 1, BEGIN_MS + 60_000, BEGIN_MS + 60_000) == [20]
    first.close()
    second.close()


@given(offset_ms=st.integers(0, 5000), begin_ms=st.integers(-2000, 7000), length_ms=st.integers(0, 3000))
@examples(60)
def test_no_entry_inside_the_range_is_missed_though_times_are_cut_to_seconds(
    offset_ms: int, begin_ms: int, length_ms: int
) -> None:
    """Pitfall 10: RocketMQ misses a message up to 999 ms after `begin`."""
    region = FullDisk(index_file_bytes(4, 8), 1 << 20)
    file = IndexFile.create(MemoryAccess(region), "memory", 4, 8, None)
    file.put_key(1, 1, BEGIN_MS)
    file.put_key(2, 2, BEGIN_MS + offset_ms)
    begin, end = BEGIN_MS + begin_ms, BEGIN_MS + begin_ms + length_ms
    found = file.select(2, 8, begin, end)
    if begin <= BEGIN_MS + offset_ms <= end:
        assert found == [2]
    if BEGIN_MS + offset_ms < begin - 999 or BEGIN_MS + offset_ms > end + 999:
        assert found == []


def test_seconds_are_capped_and_never_negative(index_file: IndexFile) -> None:
    index_file.put_key(1, 1, BEGIN_MS)
    index_file.put_key(2, 2, BEGIN_MS - 5000)
    index_file.put_key(3, 3, BEGIN_MS + 2**31 * 1000 + 5000)
    diffs = [ENTRY.unpack_from(index_file.buffer or b"", HEADER_BYTES + 40 + 20 * number)[2] for number in (1, 2, 3)]
    assert diffs == [0, 0, 2**31 - 1]


def test_entries_survive_closing_and_opening(tmp_path: Path) -> None:
    path = str(tmp_path / "20231114221320000")
    file = IndexFile.create(OsFileAccess(), path, 10, 20, None)
    file.put_key(4, 400, BEGIN_MS)
    file.close()
    again = IndexFile.open(OsFileAccess(), path, 10, 20)
    assert again.select(4, 9, *EVER) == [400]
    assert again.entry_limit == 0, "blocks of an opened file are not taken for granted"
    assert again.put_key(4, 500, BEGIN_MS)
    assert again.entry_limit == 20
    assert again.select(4, 9, *EVER) == [500, 400]
    again.destroy()
    assert not Path(path).exists()
    assert again.select(4, 9, *EVER) == []


def test_a_full_disk_leaves_nothing_half_written() -> None:
    slots, entries = 4, 1 << 18
    region = FullDisk(index_file_bytes(slots, entries), index_file_bytes(slots, entries) - 1)
    file = IndexFile.create(MemoryAccess(region), "memory", slots, entries, None)
    limit = file.entry_limit
    assert 1 < limit < entries
    HEADER.pack_into(region.buffer, 0, BEGIN_MS, BEGIN_MS, 1, limit, 1, limit)  # As if all reserved places were used.
    region.room_bytes = 0
    before = bytes(region.buffer)
    with pytest.raises(DiskFull):
        file.put_key(1, 2**40, BEGIN_MS)
    assert bytes(region.buffer) == before


def test_no_file_is_left_when_the_disk_has_no_room_for_a_new_one() -> None:
    removed = []

    class NoRoom(MemoryAccess):
        def remove(self, path: str) -> None:
            removed.append(path)

    with pytest.raises(DiskFull):
        IndexFile.create(NoRoom(FullDisk(index_file_bytes(4, 8), 0)), "memory", 4, 8, None)
    assert removed == ["memory.new"]


def test_a_put_that_was_killed_before_its_header_does_not_cut_off_older_entries(tmp_path: Path) -> None:
    path = str(tmp_path / "20231114221320000")
    file = IndexFile.create(OsFileAccess(), path, 10, 20, None)
    file.put_key(3, 1, BEGIN_MS)
    header = bytes((file.buffer or b"")[:HEADER_BYTES])
    file.put_key(3, 2, BEGIN_MS)
    assert file.buffer is not None
    file.buffer[:HEADER_BYTES] = header
    file.close()

    again = IndexFile.open(OsFileAccess(), path, 10, 20)
    assert again.select(3, 9, *EVER) == [1]
    again.put_key(4, 5, BEGIN_MS)
    assert again.select(3, 9, *EVER) == [1], "entry 2 now belongs to another slot"
    assert again.select(4, 9, *EVER) == [5]
    again.close()


def test_values_that_no_entry_can_hold_are_refused(index_file: IndexFile) -> None:
    with pytest.raises(IllegalMessage, match="key hash"):
        index_file.put_key(-1, 0, BEGIN_MS)
    with pytest.raises(IllegalMessage, match="physical offset"):
        index_file.put_key(1, -1, BEGIN_MS)


@pytest.mark.parametrize(
    "header", [(0, 0, 0, 0, 0, 21), (0, 0, 0, 0, -1, 1), (-1, 0, 0, 0, 0, 1), (0, 0, 5, 4, 0, 3), (0, 0, -1, 4, 0, 3)]
)
def test_an_impossible_header_is_refused(tmp_path: Path, header: tuple[int, ...]) -> None:
    path = tmp_path / "20231114221320000"
    path.write_bytes(HEADER.pack(*header) + bytes(index_file_bytes(10, 20) - HEADER_BYTES))
    with pytest.raises(StoreDamaged, match="header"):
        IndexFile.open(OsFileAccess(), str(path), 10, 20)


def test_a_chain_that_points_at_itself_or_forward_ends() -> None:
    region = FullDisk(index_file_bytes(1, 8), 1 << 20)
    file = IndexFile.create(MemoryAccess(region), "memory", 1, 8, None)
    for number in range(1, 6):
        file.put_key(9, number, BEGIN_MS)
    previous_of_3 = HEADER_BYTES + 4 + 20 * 3 + 16
    for target in (3, 5, -4, 7):
        struct.pack_into(">i", region.buffer, previous_of_3, target)
        assert file.select(9, 100, *EVER) == [5, 4, 3]


@pytest.mark.parametrize("seed", range(60))
def test_a_damaged_file_never_hangs_and_never_invents_an_offset_out_of_its_range(tmp_path: Path, seed: int) -> None:
    random_ = random.Random(seed)
    path = tmp_path / "20231114221320000"
    file = IndexFile.create(OsFileAccess(), str(path), 7, 50, None)
    for number in range(40):
        file.put_key(random_.randrange(10), 1000 + number * 10, BEGIN_MS + number * 500)
    file.close()
    data = bytearray(path.read_bytes())
    for _ in range(random_.randrange(1, 30)):
        data[random_.randrange(HEADER_BYTES, len(data))] = random_.randrange(256)
    path.write_bytes(data)

    damaged = IndexFile.open(OsFileAccess(), str(path), 7, 50)
    for hash_ in range(10):
        offsets = damaged.select(hash_, 100, *EVER)
        assert len(offsets) <= 49
        assert all(1000 <= offset <= 1390 for offset in offsets)
    damaged.close()


@pytest.mark.parametrize("seed", range(60))
def test_a_damaged_header_raises_store_damaged_or_reads(tmp_path: Path, seed: int) -> None:
    random_ = random.Random(seed)
    path = tmp_path / "20231114221320000"
    file = IndexFile.create(OsFileAccess(), str(path), 7, 50, None)
    for number in range(40):
        file.put_key(number % 10, 1000 + number * 10, BEGIN_MS + number * 500)
    file.close()
    data = bytearray(path.read_bytes())
    data[random_.randrange(HEADER_BYTES)] = random_.randrange(256)
    path.write_bytes(data)
    try:
        damaged = IndexFile.open(OsFileAccess(), str(path), 7, 50)
    except StoreDamaged:
        return
    for hash_ in range(10):
        assert len(damaged.select(hash_, 100, *EVER)) <= 49
    damaged.close()
