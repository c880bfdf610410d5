"""The hot/cold map and the bill: pure functions over what manifests and stores know."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tiermq.console.bill import DAY_MS, GB, SHEETS, TopicUse, WhatIf, cost_of, sheet_of
from tiermq.console.hot_cold_map import Times, Where, spans_of
from tiermq.errors import BadRequest
from tiermq.history.catalog import QueueHistory
from tiermq.tier.metadata.metadata_values import Gap, Segment, SegmentStatus, TimeEntry
from tiermq.tier.names import QueueKey, SegmentKey, SegmentType

KEY = QueueKey("DefaultCluster", "broker-a", "orders", 0)


def log(base: int, size: int, begin: int, end: int, *, sealed: bool) -> Segment:
    status = SegmentStatus.SEALED if sealed else SegmentStatus.NEW
    return Segment(
        SegmentKey(KEY.cluster, KEY.broker, KEY.topic, KEY.queue_id, SegmentType.COMMIT_LOG, base), size, status,
        begin_ms=begin * 10, end_ms=end * 10 - 10,
        crc32=7 if sealed else None, begin_offset=begin, end_offset=end,
    )  # fmt: skip


def shown(queue: QueueHistory) -> list[tuple[Where, int, int]]:
    return [(span.where, span.from_offset, span.to_offset) for span in spans_of(queue)]


def test_the_ranges_of_a_queue_are_where_its_messages_are() -> None:
    queue = QueueHistory(
        KEY, cold_min=100, cold_max=600, hot_min=500, hot_max=900,
        logs=(log(0, 1000, 100, 300, sealed=True), log(1000, 1000, 300, 600, sealed=False)),
        gaps=(Gap(350, 400, "deleted before it was copied", 0),),
    )  # fmt: skip
    assert shown(queue) == [
        (Where.EXPIRED, 0, 100),
        (Where.PROVEN, 100, 300),
        (Where.TIERED, 300, 350),
        (Where.GAP, 350, 400),
        (Where.TIERED, 400, 500),
        (Where.BOTH, 500, 600),
        (Where.LOCAL, 600, 900),
    ]
    assert shown(replace(queue, hot_min=200))[2:4] == [(Where.EVICTABLE, 200, 300), (Where.BOTH, 300, 600)]


def test_bytes_missing_between_segments_are_shown_as_damage_unless_the_disk_has_them() -> None:
    logs = (log(0, 1000, 0, 100, sealed=True), log(1500, 1000, 150, 250, sealed=True))
    assert shown(QueueHistory(KEY, cold_min=0, cold_max=250, logs=logs)) == [
        (Where.PROVEN, 0, 100), (Where.DAMAGED, 100, 150), (Where.PROVEN, 150, 250),
    ]  # fmt: skip
    kept = QueueHistory(KEY, cold_min=0, cold_max=250, hot_min=90, hot_max=250, logs=logs)
    assert shown(kept) == [
        (Where.PROVEN, 0, 90), (Where.EVICTABLE, 90, 100), (Where.BOTH, 100, 150), (Where.EVICTABLE, 150, 250),
    ]  # fmt: skip


def test_messages_between_both_sides_are_missing() -> None:
    queue = QueueHistory(KEY, cold_min=0, cold_max=50, hot_min=80, hot_max=90)
    assert shown(queue) == [(Where.TIERED, 0, 50), (Where.MISSING, 50, 80), (Where.LOCAL, 80, 90)]


def test_times_are_interpolated_and_never_go_back() -> None:
    times = Times([(100, 1_000), (200, 2_000), (300, 1_500)])
    assert [times.at(offset) for offset in (50, 100, 150, 200, 250, 400)] == [None, 1_000, 1_500, 2_000, 2_000, 2_000]
    entries = (TimeEntry(0, 1_000, 0), TimeEntry(9, 1_900, 0))
    [span] = spans_of(QueueHistory(KEY, hot_max=10, hot_time_entries=entries))
    assert (span.begin_ms, span.end_ms) == (1_000, 1_900)


def test_the_bill_multiplies_what_is_there_by_the_sheet() -> None:
    use = TopicUse("orders", queues=4, objects=300, size_bytes=100 * GB, begin_ms=0, end_ms=10 * DAY_MS)
    sheet = sheet_of("s3-standard", gb_month=0.02, writes_1000=0.005)
    line = cost_of(use, sheet, WhatIf(reads_a_day=1_000))
    assert (line["storage"], line["writesADay"], line["bytesADay"]) == (2.0, 30.0, 10 * GB)
    assert line["writes"] == pytest.approx(30 * 30.4 / 1000 * 0.005)
    assert line["reads"] == pytest.approx(30.4 * 0.0004, abs=1e-6)
    then = cost_of(use, sheet, WhatIf(retention_days=365, segment_bytes=GB))
    assert (then["bytesThen"], then["storage"], then["writesADay"]) == (3650 * GB, 73.0, 20.0)
    with pytest.raises(BadRequest, match="s3-standard"):
        sheet_of("nowhere")


def test_objects_of_the_size_that_they_have_cost_what_they_cost() -> None:
    mebibyte = 1 << 20
    use = TopicUse("orders", 1, 8, 4 * 64 * mebibyte, 0, DAY_MS, 4 * 64 * mebibyte, commits=4, manifests=2)
    now = cost_of(use, SHEETS["s3-standard"])
    assert now["writesADay"] == pytest.approx(4 * 2 + 2 + 4 * 2 / 32, abs=0.06)
    same = cost_of(use, SHEETS["s3-standard"], WhatIf(segment_bytes=64 * mebibyte))
    assert same == now
    half = cost_of(use, SHEETS["s3-standard"], WhatIf(segment_bytes=128 * mebibyte))
    assert half["writesADay"] == pytest.approx(now["writesADay"] / 2, abs=0.1)
    assert cost_of(use, SHEETS["s3-standard"], WhatIf(segment_bytes=32 * mebibyte))["total"] > now["total"]
