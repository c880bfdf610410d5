"""Index files as a restore sees them."""

from __future__ import annotations

import struct

import pytest

from tier.metadata.metadata_samples import index_key
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.index.index_item import ITEM_BYTES
from tiermq.tier.metadata.metadata_values import Segment, SegmentStatus
from tiermq.tier.restore import queue_discovery as index_discovery
from tiermq.tier.restore.queue_discovery import discover_index, topic_ids_in_index
from tiermq.tier.restore.restore_report import Finding, Remark


def discovered(*files: bytes) -> tuple[MemoryDriver, list[Segment], list[Remark]]:
    driver, base = MemoryDriver(), 0
    for data in files:
        driver.write(index_key(base), 0, [data])
        base += len(data)
    return driver, *discover_index(driver, list(driver.list_segments()), None)


def index_file(begin_ms: int, end_ms: int, topic_ids: list[int], slots: int = 3, magic: int = 0xBCC50285) -> bytes:
    header = struct.pack(">Iqqii", magic, begin_ms, end_ms, 1, len(topic_ids))
    return header + bytes(8 * slots) + b"".join(struct.pack(">iiiqii", 1, topic, 0, 0, 9, 0) for topic in topic_ids)


def test_bug_19_begin_and_end_come_from_their_own_fields() -> None:
    _, segments, remarks = discovered(index_file(1000, 5000, [1, 2]))
    assert remarks == []
    assert [(row.begin_ms, row.end_ms, row.status) for row in segments] == [(1000, 5000, SegmentStatus.SEALED)]


@pytest.mark.parametrize(
    "data",
    [b"short", index_file(1, 2, [1], magic=0xBCC50289), index_file(1, 2, [1]) + b"x", index_file(1, 2, [], slots=0)],
)
def test_a_damaged_index_file_is_kept_for_retention_and_reported(data: bytes) -> None:
    driver, segments, remarks = discovered(data)
    assert [remark.finding for remark in remarks] == [Finding.DAMAGED_SEGMENT]
    assert [row.key for row in segments] == [index_key(0)]
    assert segments[0].end_ms == segments[0].created_ms
    assert topic_ids_in_index(driver, segments) == {}


def test_topic_ids_are_counted_over_all_files_and_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_discovery, "ITEMS_READ_BYTES", 2 * ITEM_BYTES)
    driver, segments, _ = discovered(index_file(1, 2, [1, 2, 1, 1, 9]), index_file(3, 4, [2]))
    assert topic_ids_in_index(driver, segments) == {1: 3, 2: 2, 9: 1}
