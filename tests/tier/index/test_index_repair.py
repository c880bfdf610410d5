"""What a crash may leave of a local index file, and what is made of it."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.simulated_files import SimulatedFileAccess
from tier.index.chain_walk import rearrange_by_chain
from tiermq.errors import CorruptRecord
from tiermq.kernel import rearrange_index
from tiermq.tier.index import index_write_file as index_repair
from tiermq.tier.index.index_write_file import IndexWriteFile

BEGIN_MS = 1_700_000_000_000
SLOTS, CAPACITY = 7, 60
FIRST_ITEM = 28 + 8 * SLOTS


def filled(hashes: list[int]) -> tuple[SimulatedFileAccess, IndexWriteFile]:
    access = SimulatedFileAccess()
    file = IndexWriteFile.create(access, "/index", BEGIN_MS, SLOTS, CAPACITY)
    for offset, key_hash in enumerate(hashes):
        file.put([key_hash], 1, 2, offset, 100, BEGIN_MS + offset)
    return access, file


@given(st.lists(st.integers(0, 40), max_size=50), st.integers(0, 50), st.randoms(use_true_random=False))
def test_whatever_pages_survive_the_file_is_cut_to_what_was_synced(
    hashes: list[int], synced: int, choice: random.Random
) -> None:
    synced = min(synced, len(hashes))
    access, file = filled(hashes[:synced])
    file.sync()
    facts = file.facts()
    wanted = bytes(file._buffer[:FIRST_ITEM]), rearrange_by_chain(file._buffer, SLOTS)
    for offset, key_hash in enumerate(hashes[synced:], start=synced):
        file.put([key_hash], 3, 2, offset, 100, BEGIN_MS + offset)
    after = access.crash(lambda path, page: choice.random() < 0.5)
    again = IndexWriteFile.open(after, "/index", facts)
    assert (bytes(again._buffer[:FIRST_ITEM]), rearrange_by_chain(again._buffer, SLOTS)) == wanted
    assert again.facts() == facts


def test_a_sound_file_is_not_touched() -> None:
    _, file = filled([1, 2, 8, 15])
    before = bytes(file._buffer)
    assert index_repair.cut_to(file._buffer, SLOTS, 4) == 0
    found = index_repair.relink(file._buffer, SLOTS, 4, BEGIN_MS)
    assert (found.item_count, found.slot_count, found.topic_ids) == (4, 2, frozenset({1}))
    assert bytes(file._buffer) == before


def test_a_synced_item_that_is_torn_is_damage_and_not_repaired_in_silence() -> None:
    _, file = filled([1, 2, 8, 15])
    file._buffer[FIRST_ITEM + 32 * 2 : FIRST_ITEM + 32 * 3] = bytes(32)
    with pytest.raises(CorruptRecord, match="item 2"):
        index_repair.cut_to(file._buffer, SLOTS, 2)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=50), st.sets(st.integers(1, 50)), st.randoms())
def test_torn_items_are_dropped_and_all_others_stay_reachable(
    hashes: list[int], torn: set[int], choice: random.Random
) -> None:
    _, file = filled(hashes)
    for number in torn:
        at = FIRST_ITEM + 32 * number
        leads_forward = struct.pack(">iiiqiii", 1, 1, 1, 1, 1, 1, 59)
        file._buffer[at : at + 32] = choice.choice([bytes(32), b"\xff" * 32, leads_forward])
    sound = [(key_hash, n) for n, key_hash in enumerate(hashes) if n + 1 not in torn]
    found = index_repair.relink(file._buffer, SLOTS, len(hashes), BEGIN_MS)
    assert found.item_count == len(sound)
    file._write_header(found.newest_ms, found.slot_count, found.item_count)
    for key_hash in set(hashes):
        selected = file.select(key_hash, 99, 0, 2**62)
        assert selected is not None
        assert [item.tier_offset for item in selected.items] == [n for k, n in reversed(sound) if k == key_hash]
    assert rearrange_index(file._buffer, SLOTS, CAPACITY) == rearrange_by_chain(file._buffer, SLOTS)
    assert found.slot_count == len({key_hash % SLOTS for key_hash, _ in sound})
