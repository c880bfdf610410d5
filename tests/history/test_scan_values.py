"""The values of a scan travel: they are equal after a journey, and counters add up."""

from __future__ import annotations

import pickle

from tiermq.history.scan_values import (
    HistoryPlace,
    OffsetBounds,
    RecordPlace,
    ScanBundle,
    ScanCounters,
    ScanRequest,
    ScanTask,
    SegmentSpan,
    Side,
    StorePlace,
)
from tiermq.tier.names import QueueKey

KEY = QueueKey("c", "b", "t", 0)


def test_tasks_and_bundles_are_the_same_on_another_machine() -> None:
    place = HistoryPlace("s3://bucket/x", (StorePlace("/store", "c", "b"),))
    request = ScanRequest(topics=frozenset({"t"}), bounds={KEY: OffsetBounds(1, 2)}, tags=frozenset({"a"}))
    task = ScanTask(
        place, KEY, Side.COLD, 0, 9, request, 100, (RecordPlace(5, 91),), log_spans=(SegmentSpan(0, 1000),)
    )  # fmt: skip
    bundle = ScanBundle((task, task))
    assert pickle.loads(pickle.dumps(bundle)) == bundle
    assert bundle.log_bytes == 200
    assert SegmentSpan(10, 5).end == 15


def test_counters_add_every_field() -> None:
    one = ScanCounters(**{name: at for at, name in enumerate(ScanCounters.__slots__, start=1)})
    total = ScanCounters()
    total += one
    total += one
    assert [getattr(total, name) for name in ScanCounters.__slots__] == [
        2 * at for at in range(1, len(ScanCounters.__slots__) + 1)
    ]
