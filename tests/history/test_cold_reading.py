"""How records are fetched from the tier: in runs, neighbours together, nothing that was not asked for."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from history.history_world import HistoryWorld, as_sent, messages_of, read_plan, sent_of
from tiermq.history import cold_reading
from tiermq.history.cold_reading import ColdReader
from tiermq.history.planning import plan_scan
from tiermq.history.scan_values import Loss, RecordPlace, ScanCounters, ScanRequest, ScanTask, Side
from tiermq.tier.driver.tier_url import bare_driver
from tiermq.tier.names import SegmentType

WIDE = {"tiered_store_commit_log_max_size": 1 << 20, "tiered_store_consume_queue_max_size": 20 * 10_000}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[HistoryWorld]:
    made = HistoryWorld(tmp_path, **WIDE)
    made.open()
    yield made
    made.bury()


def task_of(world: HistoryWorld, **more: Any) -> ScanTask:
    (task,) = plan_scan(world.catalog(store=False), ScanRequest(**more)).tasks
    return task


def reader_of(world: HistoryWorld, task: ScanTask, counters: ScanCounters, losses: list[Loss]) -> ColdReader:
    return ColdReader(world.histories[-1], task, counters, losses.append, task.unit_spans, task.log_spans)


def test_a_queue_is_read_with_one_request_for_units_and_one_for_records(world: HistoryWorld) -> None:
    world.put(500)
    world.flush_to_tier()
    task, counters = task_of(world), ScanCounters()
    (run,) = reader_of(world, task, counters, []).runs(0, 500)
    assert as_sent(messages_of(run)) == sent_of(world.sent["orders", 0])
    assert (run.side, run.log_base, counters.requests) == (Side.COLD, 0, 2)
    assert run.segment in {info.key.path for info in world.driver.list_segments()}


def test_a_run_is_no_longer_than_it_may_be_but_holds_a_record(
    world: HistoryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold_reading, "SCAN_RUN_BYTES", 1000)
    world.put(30)
    world.put(1, size=5000)
    world.put(30)
    world.flush_to_tier()
    runs = list(reader_of(world, task_of(world), ScanCounters(), []).runs(0, 61))
    assert [message for run in runs for message in as_sent(messages_of(run))] == sent_of(world.sent["orders", 0])
    assert sorted({len(run.buffer) > 1100 for run in runs}) == [False, True]
    assert sum(len(run.buffer) > 1100 for run in runs) == 1


def test_far_records_are_fetched_apart_and_near_ones_together(
    world: HistoryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold_reading, "GAP_BYTES", 2000)
    world.put(90, size=500)
    world.flush_to_tier()
    task, counters = task_of(world, tags=frozenset({"t1"})), ScanCounters()
    runs = list(reader_of(world, task, counters, []).runs(0, 90))
    assert len(runs) == 1  # Every third message: the gaps are small.
    monkeypatch.setattr(cold_reading, "GAP_BYTES", 500)
    runs = list(reader_of(world, task, counters, []).runs(0, 90))
    assert len(runs) == 30
    assert sum(len(run.buffer) for run in runs) < 30 * 800


@pytest.mark.parametrize("url", ["memory://?driver=object"])
def test_the_next_bytes_are_fetched_while_these_are_used(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold_reading, "SCAN_RUN_BYTES", 2000)
    world = HistoryWorld(tmp_path, bare_driver(url, {}), **WIDE)
    world.open()
    try:
        world.put(200)
        world.flush_to_tier()
        plan = plan_scan(world.catalog(store=False), ScanRequest())
        history = world.histories[-1]
        assert history.reads_ahead
        assert as_sent(read_plan(history, plan)["orders", 0]) == sent_of(world.sent["orders", 0])
        runs = reader_of(world, plan.tasks[0], ScanCounters(), []).runs(0, 200)
        next(runs)
        assert isinstance(runs, Generator)
        runs.close()  # A reader that stops early leaves nothing behind that keeps the history from closing.
    finally:
        world.bury()


def test_exact_places_give_their_records_and_wrong_ones_nothing(world: HistoryWorld) -> None:
    world.put(10)
    world.flush_to_tier()
    task = task_of(world)
    (run,) = reader_of(world, task, ScanCounters(), []).runs(0, 10)
    places = [RecordPlace(int(at), int(size)) for at, size in zip(run.starts, run.sizes, strict=True)]
    wrong = RecordPlace(places[3].log_offset + 1, places[3].size)
    beyond = RecordPlace(1 << 40, 100)
    chosen = (places[1], wrong, places[7], beyond)
    exact = ScanTask(task.place, task.queue, Side.COLD, 0, 7, task.request, 0, chosen, log_spans=task.log_spans)
    losses: list[Loss] = []
    found = list(reader_of(world, exact, ScanCounters(), losses).runs(0, 7))
    # Message 7 lies outside of the range that was asked for.
    assert [message.queue_offset for run in found for message in messages_of(run)] == [1]
    assert losses == []


@pytest.mark.usefixtures("without_sums")
def test_a_unit_that_points_far_ahead_costs_two_reads_more_and_one_message(world: HistoryWorld) -> None:
    world.put(500)
    world.flush_to_tier()
    task, counters = task_of(world), ScanCounters()
    losses: list[Loss] = []
    units = next(key for key in world.driver.inner._place.segments if key.type is SegmentType.CONSUME_QUEUE)
    data = world.driver.inner._place.segments[units].data
    data[20 * 100 : 20 * 100 + 8] = data[20 * 400 : 20 * 400 + 8]
    runs = list(reader_of(world, task, counters, losses).runs(0, 500))
    found = [message.queue_offset for run in runs for message in messages_of(run)]
    assert found == [offset for offset in range(500) if offset != 100]
    assert [(loss.from_offset, loss.to_offset) for loss in losses] == [(100, 101)]
    assert counters.requests <= 4


@pytest.mark.usefixtures("without_sums")
def test_a_size_that_the_next_unit_contradicts_is_not_tried_out(
    world: HistoryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold_reading, "SCAN_RUN_BYTES", 4000)
    world.put(500)
    world.flush_to_tier()
    task, counters = task_of(world), ScanCounters()
    losses: list[Loss] = []
    units = next(key for key in world.driver.inner._place.segments if key.type is SegmentType.CONSUME_QUEUE)
    world.driver.inner._place.segments[units].data[20 * 100 + 10] = 0x60  # 24 KiB instead of some hundred bytes.
    runs = list(reader_of(world, task, counters, losses).runs(0, 500))
    assert sum(len(run.starts) for run in runs) == 499
    assert max(len(run.buffer) for run in runs) < 5000
    assert [loss.detail for loss in losses] == ["the unit reaches into the next record"]
