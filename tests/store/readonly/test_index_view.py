"""Index files as offline tools read them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiermq.errors import StoreDamaged
from tiermq.index.index_file import ENTRY, ENTRY_BYTES, HEADER, HEADER_BYTES, SLOT, SLOT_BYTES
from tiermq.store.readonly.index import IndexView

GOLDEN = Path(__file__).parents[2] / "golden" / "rocketmq-5.3.3-clean" / "store" / "index"


def index_of(hashes: list[int], slots: int, entries_max: int) -> bytearray:
    """An index file with these keys, written here step by step as the format says."""
    data = bytearray(HEADER_BYTES + slots * SLOT_BYTES + entries_max * ENTRY_BYTES)
    used = 0
    for number, key_hash in enumerate(hashes, start=1):
        slot_at = HEADER_BYTES + key_hash % slots * SLOT_BYTES
        previous = SLOT.unpack_from(data, slot_at)[0]
        used += previous == 0
        at = HEADER_BYTES + slots * SLOT_BYTES + number * ENTRY_BYTES
        ENTRY.pack_into(data, at, key_hash, 1_000 + number, number // 10, previous)
        SLOT.pack_into(data, slot_at, number)
    if hashes:
        HEADER.pack_into(data, 0, 5_000, 9_000, 1_001, 1_000 + len(hashes), used, len(hashes) + 1)
    return data


@given(
    st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=30),
    st.integers(1, 40),
    st.integers(0, 20),
)
def test_entries_are_read_back_in_order_when_the_slots_are_known(hashes: list[int], slots: int, spare: int) -> None:
    view = IndexView(memoryview(index_of(hashes, slots, len(hashes) + 1 + spare)), slots)
    assert [entry.key_hash for entry in view.entries()] == hashes
    assert [entry.number for entry in view.entries()] == list(range(1, len(hashes) + 1))
    assert view.problems() == []


def test_the_number_of_slots_is_found_in_files_of_usual_and_unusual_shape() -> None:
    hashes = [value * 7919 for value in range(1, 26)]
    assert IndexView(memoryview(index_of(hashes, 50, 200))).slot_count_max == 50
    assert IndexView(memoryview(index_of(hashes, 33, 40))).slot_count_max == 33
    assert IndexView(memoryview(index_of([], 50, 200))).slot_count_max == 50


@pytest.mark.parametrize("path", sorted(GOLDEN.iterdir()), ids=lambda path: path.name)
def test_index_files_of_the_real_rocketmq_are_read_without_knowing_their_shape(path: Path) -> None:
    view = IndexView(memoryview(path.read_bytes()))
    assert (view.slot_count_max, view.entry_count_max) == (50, 200)
    assert view.problems() == []
    assert len(list(view.entries())) == view.header.entry_count - 1


def test_a_broken_chain_and_a_wrong_slot_are_found() -> None:
    data = index_of([3, 53, 103], 50, 200)
    at = HEADER_BYTES + 50 * SLOT_BYTES + 3 * ENTRY_BYTES
    ENTRY.pack_into(data, at, 103, 1_003, 0, 0)
    assert ["entry 3" in text for text in IndexView(memoryview(data), 50).problems()] == [True]
    data = index_of([3, 53, 103], 50, 200)
    SLOT.pack_into(data, HEADER_BYTES + 3 * SLOT_BYTES, 1)
    assert ["slot 3" in text for text in IndexView(memoryview(data), 50).problems()] == [True]


def test_offsets_that_go_back_and_negative_hashes_are_found() -> None:
    data = index_of([1, 2], 50, 200)
    ENTRY.pack_into(data, HEADER_BYTES + 50 * SLOT_BYTES + 2 * ENTRY_BYTES, 2, 7, 0, 0)
    assert "goes back" in IndexView(memoryview(data), 50).problems()[0]
    ENTRY.pack_into(data, HEADER_BYTES + 50 * SLOT_BYTES + 2 * ENTRY_BYTES, -2, 1_002, 0, 0)
    assert "not negative" in IndexView(memoryview(data), 50).problems()[0]


def test_bytes_that_are_no_index_file_are_refused() -> None:
    with pytest.raises(StoreDamaged, match="at least"):
        IndexView(memoryview(b"short"))
    with pytest.raises(StoreDamaged, match="number of slots"):
        IndexView(memoryview(b"\x01" * 4_240))
    with pytest.raises(StoreDamaged, match="entry count"):
        IndexView(memoryview(index_of([1, 2, 3], 50, 200)), 1_045)
