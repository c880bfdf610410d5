"""From rows of a listing to segments."""

from __future__ import annotations

import random

from tier.driver.conformance import fresh_queue
from tiermq.tier.driver.object_requests import ObjectStat
from tiermq.tier.driver.object_store import segments_of
from tiermq.tier.driver.part_log import part_path
from tiermq.tier.names import SegmentType

QUEUE = fresh_queue()
OPEN, MARKED, MERGED, SEALED, BROKEN = (QUEUE.segment(SegmentType.COMMIT_LOG, base) for base in range(0, 50, 10))


def test_objects_in_any_order_become_segments_in_the_order_of_paths() -> None:
    objects = [
        ObjectStat(part_path(OPEN.path, 0), 10, 1),
        ObjectStat(part_path(OPEN.path, 10), 5, 7),
        ObjectStat(part_path(MARKED.path, 0), 10, 2),
        ObjectStat(part_path(MARKED.path, 10), 0, 3),
        ObjectStat(MERGED.path, 20, 4),
        ObjectStat(part_path(MERGED.path, 10), 10, 3),
        ObjectStat(SEALED.path, 30, 5),
        ObjectStat(part_path(SEALED.path, 30), 0, 4),
        ObjectStat(part_path(BROKEN.path, 0), 10, 6),
        ObjectStat(part_path(BROKEN.path, 20), 10, 6),
        ObjectStat(QUEUE.object_name("manifest"), 100, 9),
        ObjectStat("another/writer", 100, 9),
        ObjectStat(OPEN.path + ".parts/not a position", 100, 9),
        ObjectStat(OPEN.path + ".bak", 100, 9),
    ]
    random.shuffle(objects)
    found = segments_of(objects)
    assert [info.key.path for info in found] == sorted(key.path for key in (OPEN, MARKED, MERGED, SEALED, BROKEN))
    assert {info.key: (info.size, info.sealed, info.part_count, info.modified_ms) for info in found} == {
        OPEN: (15, False, 2, 7),
        MARKED: (10, True, 1, 3),
        MERGED: (20, True, 1, 4),
        SEALED: (30, True, 0, 5),
        BROKEN: (10, False, 2, 6),
    }
    assert [info.key for info in found if info.damage] == [BROKEN]
    assert [info.key for info in segments_of(objects, OPEN.path)] == [OPEN]
    assert segments_of(objects, "elsewhere") == []
    assert segments_of([]) == []
