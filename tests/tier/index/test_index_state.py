"""The life of an index file: which moves are legal, and who answers meanwhile."""

from __future__ import annotations

import itertools

import pytest

from servers.faulty_driver import Down, FaultyDriver
from simulation.simulated_files import SimulatedFileAccess
from tier.index.index_world import NOW_MS, index_key
from tiermq.clock import EVER_MS
from tiermq.errors import IllegalTransition
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.index.compacted_index import CompactedIndex, IndexEntry, IndexState
from tiermq.tier.index.index_write_file import IndexWriteFile
from tiermq.tier.metadata.metadata_values import Segment, SegmentStatus

LEGAL = {
    ("UNSEALED", "SEALED"),
    ("SEALED", "UPLOAD"),
    ("UNSEALED", "SHUTDOWN"),
    ("SEALED", "SHUTDOWN"),
    ("UPLOAD", "SHUTDOWN"),
}


@pytest.mark.parametrize(("before", "after"), [*itertools.product(IndexState, IndexState)])
def test_only_the_moves_of_the_diagram_are_made(before: IndexState, after: IndexState) -> None:
    entry = IndexEntry(5, before)
    if (before.value, after.value) in LEGAL:
        entry.move(after)
        assert entry.state is after
    else:
        with pytest.raises(IllegalTransition, match="index file 5"):
            entry.move(after)
        assert entry.state is before


def local_file() -> IndexWriteFile:
    file = IndexWriteFile.create(SimulatedFileAccess(), "/index", NOW_MS, 5, 20)
    file.put([3], 1, 2, 77, 100, NOW_MS - 5000)
    return file


def uploaded(file: IndexWriteFile, driver: MemoryDriver | FaultyDriver | None = None) -> CompactedIndex:
    data = file.compact()
    memory = MemoryDriver()
    memory.write(index_key(), 0, [data])
    row = Segment(index_key(), len(data), SegmentStatus.SEALED, 0, NOW_MS, NOW_MS - 5000)
    return CompactedIndex(driver or memory, row)


def test_a_local_file_knows_its_times_and_an_empty_one_has_none() -> None:
    entry = IndexEntry(NOW_MS, IndexState.UNSEALED, local=local_file())
    assert (entry.oldest_ms(), entry.newest_ms()) == (NOW_MS - 5000, NOW_MS - 5000)
    empty = IndexWriteFile.create(SimulatedFileAccess(), "/index", NOW_MS, 5, 20)
    assert IndexEntry(NOW_MS, IndexState.UNSEALED, local=empty).newest_ms() == -1


def test_a_file_whose_oldest_time_is_unknown_may_be_of_any_age() -> None:
    file = local_file()
    for remote in (uploaded(file), uploaded(file, FaultyDriver(MemoryDriver(), Down()))):
        entry = IndexEntry(NOW_MS, IndexState.UPLOAD, remote=remote)
        assert (entry.oldest_ms(), entry.newest_ms()) == (0, NOW_MS - 5000)


def test_an_entry_in_hand_answers_wherever_its_items_have_gone() -> None:
    file = local_file()
    entry = IndexEntry(NOW_MS, IndexState.SEALED, local=file)
    here = entry.select(3, 9, 0, EVER_MS)
    entry.remote = uploaded(file)
    entry.move(IndexState.UPLOAD)
    file.close()
    assert entry.select(3, 9, 0, EVER_MS) == here
    assert [item.tier_offset for item in here.items] == [77]


def test_an_entry_that_was_shut_down_has_no_answers() -> None:
    file = local_file()
    entry = IndexEntry(NOW_MS, IndexState.SEALED, local=file)
    file.close()
    assert entry.select(3, 9, 0, EVER_MS).items == []
    assert (entry.oldest_ms(), entry.newest_ms()) == (0, EVER_MS)
