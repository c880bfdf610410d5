"""Plans: what is pruned, how large queues are cut and small ones joined, what is lost and why."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from tiermq.errors import DataLoss
from tiermq.history.catalog import QueueHistory, queue_filter
from tiermq.history.planning import FoundPlaces, bounded, bundle_tasks, plan_scan
from tiermq.history.scan_values import (
    HistoryPlace,
    LossReason,
    OffsetBounds,
    RecordPlace,
    ScanCounters,
    ScanPlan,
    ScanRequest,
    ScanTask,
    Side,
    StorePlace,
)
from tiermq.tier.metadata.metadata_values import Gap, Segment, TimeEntry
from tiermq.tier.names import QueueKey, SegmentType

KEY = QueueKey("c", "b", "orders", 0)
STORE = StorePlace("/store", "c", "b")


class Shelf:
    """Stands in for a catalogue: planning is pure, and needs no more of it."""

    place = HistoryPlace("memory://x")

    def __init__(self, *queues: QueueHistory) -> None:
        self._queues = queues

    def queues(self) -> list[QueueHistory]:
        return list(self._queues)

    def require_readable(self) -> None:
        """Everything can be read."""


def cold(
    key: QueueKey = KEY, *, segments: int = 10, messages: int = 100, size: int = 10_000, **more: Any
) -> QueueHistory:
    """A queue whose segments have so many messages of 100 bytes each, one every millisecond."""
    logs = tuple(
        Segment(
            key.segment(SegmentType.COMMIT_LOG, number * size),
            size,
            begin_ms=number * messages,
            end_ms=(number + 1) * messages - 1,
            begin_offset=number * messages,
            end_offset=(number + 1) * messages,
        )
        for number in range(segments)
    )
    entries = tuple(TimeEntry(at, at, at * size // messages) for at in range(0, segments * messages, messages // 4))
    units = (Segment(key.segment(SegmentType.CONSUME_QUEUE, 0), segments * messages * 20),)
    fields: dict[str, Any] = {"cold_max": segments * messages, "logs": logs, "units": units, "time_entries": entries}
    return QueueHistory(key, **{**fields, **more})


def plan(*queues: QueueHistory, **request: Any) -> ScanPlan:
    settings = {name: request.pop(name) for name in list(request) if name in ("min_partitions", "loss_is_error")}
    size = request.pop("max_bytes_per_partition", 64 << 20)
    return plan_scan(Shelf(*queues), ScanRequest(**request), max_bytes_per_partition=size, **settings)  # type: ignore[arg-type]


def spans(found: ScanPlan) -> list[tuple[int, int]]:
    return [(task.from_offset, task.to_offset) for task in found.tasks]


def test_a_large_queue_becomes_many_tasks_of_about_equal_size() -> None:
    found = plan(cold(), max_bytes_per_partition=12_000)
    assert spans(found)[0][0] == 0
    assert spans(found)[-1][1] == 1000
    assert [before[1] == after[0] for before, after in zip(spans(found), spans(found)[1:], strict=False)] == [True] * 8
    assert all(8_000 <= task.log_bytes <= 13_000 for task in found.tasks)
    assert found.counters.bytes_planned == 100_000


def test_cuts_fall_on_places_that_the_time_index_knows() -> None:
    found = plan(cold(), max_bytes_per_partition=12_000)
    assert all(begin % 25 == 0 for begin, _ in spans(found))


def test_at_least_so_many_tasks_are_made_as_are_asked_for() -> None:
    assert len(plan(cold(), min_partitions=16).tasks) >= 16
    assert len(plan(cold(segments=1, messages=4), min_partitions=16).tasks) == 4


def test_a_task_names_the_segments_that_it_touches() -> None:
    found = plan(cold(), bounds={KEY: OffsetBounds(250, 310)})
    (task,) = found.tasks
    assert [span.base for span in task.log_spans] == [20_000, 30_000]
    assert [span.base for span in task.unit_spans] == [0]
    assert (found.counters.segments_planned, found.counters.segments_skipped) == (2, 8)
    assert found.counters.bytes_skipped == 94_000


def test_times_prune_segments_and_chunks() -> None:
    found = plan(cold(), begin_ms=460, end_ms=510)
    assert spans(found) == [(450, 525)]
    assert (found.counters.segments_planned, found.counters.segments_skipped) == (2, 8)
    assert spans(plan(cold(), begin_ms=5_000)) == []
    assert spans(plan(cold(), end_ms=-1)) == []


def test_topics_brokers_and_queues_that_are_not_wanted_have_no_tasks() -> None:
    other = QueueKey("c", "b2", "payments", 3)
    assert {task.queue for task in plan(cold(), cold(other), topics=frozenset({"orders"})).tasks} == {KEY}
    assert {task.queue for task in plan(cold(), cold(other), brokers=frozenset({"b2"})).tasks} == {other}
    assert queue_filter(ScanRequest(queue_ids=frozenset({3})))(other)


def test_hot_begins_where_cold_ends() -> None:
    found = plan(cold(hot_min=500, hot_max=1500, hot_record_bytes=100, store=STORE))
    assert [(task.side, task.from_offset, task.to_offset, task.store) for task in found.tasks] == [
        (Side.COLD, 0, 1000, None),
        (Side.HOT, 1000, 1500, STORE),
    ]


@pytest.mark.parametrize(
    ("bounds", "expected", "reason"),
    [
        (OffsetBounds(), (100, 1000), None),
        (OffsetBounds(100, 200), (100, 200), None),
        (OffsetBounds(1000, None), (1000, 1000), None),
        (OffsetBounds(5, 50), (100, 100), LossReason.EXPIRED),
        (OffsetBounds(5, 150), (100, 150), LossReason.EXPIRED),
        (OffsetBounds(1001, None), (1001, 1001), LossReason.BEYOND_END),
        (OffsetBounds(900, 1100), (900, 1000), LossReason.BEYOND_END),
        (OffsetBounds(None, 50), (100, 100), None),
    ],
)
def test_offsets_that_are_not_there_are_losses(
    bounds: OffsetBounds, expected: tuple[int, int], reason: LossReason | None
) -> None:
    found, losses = bounded(cold(cold_min=100), bounds)
    assert found == expected
    assert [loss.reason for loss in losses] == ([] if reason is None else [reason])


def test_a_recorded_gap_is_a_loss_of_the_reader_across_it() -> None:
    queue = cold(gaps=(Gap(200, 210, "the disk was cleaned", 0),))
    found = plan(queue, loss_is_error=False)
    assert spans(found) == [(0, 200), (210, 1000)]
    assert [(loss.from_offset, loss.to_offset, loss.reason) for loss in found.losses] == [(200, 210, LossReason.GAP)]
    with pytest.raises(DataLoss, match="the disk was cleaned"):
        plan(queue)
    assert plan(queue, begin_ms=500).losses == ()


def test_what_the_store_lost_before_it_was_copied_is_a_loss() -> None:
    found = plan(cold(hot_min=1010, hot_max=1100, store=STORE), loss_is_error=False)
    assert [(loss.from_offset, loss.to_offset, loss.reason) for loss in found.losses] == [(1000, 1010, LossReason.GAP)]
    assert spans(found) == [(0, 1000), (1010, 1100)]


def test_a_topic_that_is_gone_is_a_loss() -> None:
    found = plan(bounds={KEY: OffsetBounds(7, 9)}, loss_is_error=False)
    assert [(loss.queue, loss.reason) for loss in found.losses] == [(KEY, LossReason.DELETED)]
    found = plan(cold(is_deleted=True), loss_is_error=False)
    assert [loss.reason for loss in found.losses] == [LossReason.DELETED]
    assert found.tasks == ()


def test_tiny_queues_share_bundles_and_large_tasks_have_their_own() -> None:
    keys = [QueueKey("c", "b", "tiny", number) for number in range(10_000)]
    found = plan(*[cold(key, segments=1, messages=4, size=400) for key in keys], cold())
    bundles = bundle_tasks(found.tasks, max_bytes=64 << 20)
    assert 30 <= len(bundles) <= 50
    assert [task for bundle in bundles for task in bundle.tasks] == list(found.tasks)
    large = [ScanTask(HistoryPlace(), KEY, Side.COLD, 0, 1, ScanRequest(), 60 << 20) for _ in range(3)]
    assert len(bundle_tasks(large)) == 3
    assert len(bundle_tasks(found.tasks, min_bundles=100)) >= 100


def test_tasks_are_small_and_carry_no_bounds_of_others() -> None:
    bounds = {QueueKey("c", "b", "orders", number): OffsetBounds(0, 5) for number in range(1000)}
    found = plan(cold(), bounds=bounds, loss_is_error=False)
    assert len(pickle.dumps(found.tasks[0])) < 1500
    assert pickle.loads(pickle.dumps(found.tasks)) == found.tasks


class Known:
    """An index that knows some places of the cold side, and nothing of offsets from 900 on."""

    def __init__(self, *log_offsets: int) -> None:
        self.places = tuple(RecordPlace(at, 100) for at in log_offsets)

    def find(self, _queue: QueueHistory, side: Side, within: tuple[int, int], counters: ScanCounters) -> FoundPlaces:
        counters.index_files_asked += 1
        if side is Side.HOT:
            return FoundPlaces((), (within,))
        return FoundPlaces(self.places, ((900, within[1]),))


def look_up(queue: QueueHistory, known: Known, **settings: Any) -> ScanPlan:
    request = ScanRequest(keys=frozenset({"k"}))
    return plan_scan(Shelf(queue), request, lookup=known, **settings)  # type: ignore[arg-type]


def test_an_index_makes_exact_tasks_and_leaves_the_rest_to_a_scan() -> None:
    found = look_up(cold(), Known(300, 95_00))
    exact, scanned = found.tasks
    assert exact.places == (RecordPlace(300, 100), RecordPlace(9500, 100))
    assert [span.base for span in exact.log_spans] == [0]
    assert (scanned.places, scanned.from_offset, scanned.to_offset) == (None, 900, 1000)


def test_an_exact_task_names_only_the_segments_of_its_places() -> None:
    found = look_up(cold(), Known(300, 85_000))
    assert [span.base for span in found.tasks[0].log_spans] == [0, 80_000]


def test_many_places_are_cut_into_tasks() -> None:
    found = look_up(cold(), Known(*range(0, 90_000, 100)), max_bytes_per_partition=10_000)
    exact = [task for task in found.tasks if task.places is not None]
    assert [len(task.places or ()) for task in exact] == [100] * 9
    assert [place for task in exact for place in task.places or ()] == list(Known(*range(0, 90_000, 100)).places)


def test_a_key_that_a_large_part_of_a_queue_has_is_scanned_for() -> None:
    hot = look_up(cold(), Known(*range(0, 80_000, 40)))  # 2,000 places of a log of 100,000 bytes.
    assert [task.places for task in hot.tasks] == [None] * len(hot.tasks)
    assert (hot.tasks[0].from_offset, hot.tasks[-1].to_offset) == (0, 1000)
    rare = look_up(cold(), Known(*range(0, 80_000, 1000)))
    assert any(task.places is not None for task in rare.tasks)


def test_only_the_offsets_of_interest_are_planned_and_others_are_no_loss() -> None:
    found = plan(cold(), only_offsets=(950, 5000))
    assert (found.tasks[0].from_offset, found.tasks[-1].to_offset, found.losses) == (950, 1000, ())
    assert plan(cold(), only_offsets=(2000, 5000)).tasks == ()


def test_what_the_tiers_index_does_not_know_is_asked_of_the_store_that_still_has_it() -> None:
    found = look_up(cold(hot_min=950, hot_max=1100, hot_record_bytes=10, store=STORE), Known(300))
    scanned = [(task.side, task.from_offset, task.to_offset) for task in found.tasks if task.places is None]
    assert scanned == [(Side.COLD, 900, 950), (Side.HOT, 950, 1000), (Side.HOT, 1000, 1100)]
    assert found.counters.index_files_asked == 3


def test_an_empty_range_wants_nothing_and_loses_nothing() -> None:
    assert bounded(cold(cold_min=100, is_deleted=True), OffsetBounds(0, 0))[1] == []
