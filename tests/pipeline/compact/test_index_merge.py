"""Merging index files: which, and byte for byte what one file with all of the items would be."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from pipeline.job_world import INDEX
from tiermq.errors import SegmentConflict
from tiermq.files.os_file_access import OsFileAccess
from tiermq.pipeline import worker_cache
from tiermq.pipeline.compact.merge import MergeTask, plan_merges, run_merge_task, write_index_file
from tiermq.pipeline.index_files import IndexFile, read_index_file
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.index.compacted_index import companion_name
from tiermq.tier.index.index_coverage import Coverage, CoverageRecord
from tiermq.tier.index.index_item import POSITION_MAX, merged_begin_ms
from tiermq.tier.index.index_write_file import IndexWriteFile
from tiermq.tier.names import SegmentType

BEGIN_MS = merged_begin_ms(1_700_000_000_000)
NOTHING = CoverageRecord.of(Coverage(), ()).encode()


def file(base: int, item_count: int, slots: int = 5) -> IndexFile:
    return IndexFile(INDEX.segment(SegmentType.INDEX, base), 1, slots, item_count, base, base)


@pytest.mark.parametrize(
    ("counts", "items_max", "small", "expected"),
    [
        ([], 10, 5, []),
        ([4], 10, 5, []),
        ([4, 4], 10, 5, [[0, 1]]),
        ([4, 5, 4], 10, 5, [[0, 2]]),
        ([4, 4, 4, 4, 4], 10, 5, [[0, 1], [2, 3]]),
        ([4, 4, 4, 4], 8, 5, [[0, 1], [2, 3]]),
        ([4, 4, 4], 7, 5, []),
        ([9, 9], 10, 5, []),
    ],
)
def test_small_files_are_grouped_oldest_first(
    counts: list[int], items_max: int, small: int, expected: list[list[int]]
) -> None:
    groups = plan_merges([file(base, count) for base, count in enumerate(counts)], items_max, small)
    assert [[each.key.base for each in group] for group in groups] == expected


def test_no_merged_file_is_larger_than_its_slots_can_point_into() -> None:
    slots = POSITION_MAX // 8 - 100
    assert plan_merges([file(0, 30, slots), file(1, 30, slots)], 1000, 500) == []


@pytest.mark.parametrize("slots", [7, 70_001])
def test_a_merge_is_the_file_that_would_have_taken_all_items(
    tmp_path: Path, slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, chance = MemoryDriver(), random.Random(slots)
    monkeypatch.setitem(worker_cache._drivers, "memory://merge", driver)
    one = IndexWriteFile.create(OsFileAccess(), str(tmp_path), BEGIN_MS, slots, 1_000)
    sources, base = [], 0
    for number in range(3):
        begin_ms = BEGIN_MS + 1000 * (number + 1)
        local = IndexWriteFile.create(OsFileAccess(), str(tmp_path), begin_ms, slots if number else 3, 1_000)
        for at in range(50 * (number + 1)):
            item = ([chance.getrandbits(31)], 1 + at % 3, at % 4, 1000 * number + at, 90, begin_ms + 1000 * (at + 1))
            assert local.put(*item)
            assert one.put(*item)
        key = INDEX.segment(SegmentType.INDEX, base)
        data = local.compact()
        write_index_file(driver, key, data, CoverageRecord.of(Coverage(), [local.facts()]).encode())
        base += len(data)
        (info,) = [each for each in driver.list_segments() if each.key == key]
        found = read_index_file(driver, info)
        assert found is not None
        sources.append(found)
    target = INDEX.segment(SegmentType.INDEX, base)
    task = MergeTask("memory://merge", tuple(sources), target, BEGIN_MS, max(each.slots for each in sources), NOTHING)
    made = run_merge_task(task)
    merged, whole = bytes(driver.read(target, 0, made.file.size)), one.compact()
    if slots == 7:  # Items of the file with other slots stand among each other in another order.
        assert sorted(merged) == sorted(whole)
    assert len(merged) == len(whole) == task.size
    assert merged[:28] == whole[:28]
    assert run_merge_task(task) == made, "the same task again finds its own bytes"
    facts = CoverageRecord.decode(driver.get_object(companion_name(target)).data, "x").files[0]  # type: ignore[union-attr]
    assert (facts.item_count, facts.topic_ids, facts.newest_ms) == (300, frozenset({1, 2, 3}), one.facts().newest_ms)
    assert made.file.merged_from == [source.key.base for source in sources]


def test_files_of_equal_slots_are_merged_byte_for_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = MemoryDriver()
    monkeypatch.setitem(worker_cache._drivers, "memory://merge", driver)
    one = IndexWriteFile.create(OsFileAccess(), str(tmp_path), BEGIN_MS, 11, 1_000)
    sources, base = [], 0
    for number in range(3):
        begin_ms = BEGIN_MS + 60_000 * (number + 1)
        local = IndexWriteFile.create(OsFileAccess(), str(tmp_path), begin_ms, 11, 1_000)
        for at in range(40):
            item = ([at * 7 % 50, at * 3 % 50], 1, 2, 1000 * number + at, 90, begin_ms + 1000 * (at + 1))
            assert local.put(*item)
            assert one.put(*item)
        key, data = INDEX.segment(SegmentType.INDEX, base), local.compact()
        write_index_file(driver, key, data, NOTHING)
        base += len(data)
        found = read_index_file(driver, next(each for each in driver.list_segments() if each.key == key))
        assert found is not None
        sources.append(found)
    target = INDEX.segment(SegmentType.INDEX, base)
    made = run_merge_task(
        MergeTask("memory://merge", tuple(sources), target, BEGIN_MS, max(each.slots for each in sources), NOTHING)
    )
    assert bytes(driver.read(target, 0, made.file.size)) == one.compact()


def test_other_bytes_under_the_name_are_a_conflict() -> None:
    driver = MemoryDriver()
    key = INDEX.segment(SegmentType.INDEX, 0)
    write_index_file(driver, key, b"one", NOTHING)
    assert write_index_file(driver, key, b"one", NOTHING)
    for other in (b"two", b"on", b"one more"):
        with pytest.raises(SegmentConflict):
            write_index_file(driver, key, other, NOTHING)
