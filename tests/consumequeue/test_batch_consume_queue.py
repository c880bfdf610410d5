"""Batch queues: offsets inside of batches, bounds, times, recovery, cleaning."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulation.manual_clock import ManualClock
from tiermq.commitlog.dispatch_request import DispatchRequest
from tiermq.consumequeue.batch_consume_queue import BatchConsumeQueue
from tiermq.consumequeue.batch_unit import BATCH_UNIT_BYTES, BatchUnit, encode
from tiermq.consumequeue.queue_units import AppendOutcome, Boundary
from tiermq.errors import BadConfig, CorruptRecord, IllegalMessage
from tiermq.files.os_file_access import OsFileAccess

UNITS_PER_FILE = 5
FILE_BYTES = UNITS_PER_FILE * BATCH_UNIT_BYTES
BATCH = 10


class Disk:
    """One batch queue directory, opened again and again. Records of 100 bytes, batches of ten, one second apart."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.queue = self._new()
        self.dropped = False

    def _new(self) -> BatchConsumeQueue:
        return BatchConsumeQueue(OsFileAccess(), str(self.directory), "T", 0, FILE_BYTES, ManualClock())

    def reopen(self, *, clean: bool = False) -> BatchConsumeQueue:
        self.queue.close()
        self.queue = self._new()
        self.queue.load()
        self.dropped = self.queue.recover(clean)
        return self.queue

    def fill(self, count: int, first: int = 0) -> None:
        for number in range(first, first + count):
            assert self.queue.append(request(number)) is AppendOutcome.APPENDED


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    disk = Disk(tmp_path / "0")
    yield disk
    disk.queue.close()


def request(number: int, timestamp_ms: int | None = None) -> DispatchRequest:
    time = number * 1000 if timestamp_ms is None else timestamp_ms
    return DispatchRequest(number * 100, 100, number, number * BATCH, time, BATCH)


def facts(queue: BatchConsumeQueue) -> tuple[int, int, int]:
    return queue.min_offset, queue.max_offset, queue.max_physical_offset


def test_units_are_rocketmqs_bytes_end_to_end(disk: Disk) -> None:
    disk.fill(2)
    data = (disk.directory / f"{0:020d}").read_bytes()
    assert data[:92] == encode(BatchUnit(0, 100, 0, 0, 0, 10)) + encode(BatchUnit(100, 100, 1, 1000, 10, 10))
    assert not any(data[92:])


def test_every_offset_inside_of_a_batch_leads_to_the_batch(disk: Disk) -> None:
    disk.fill(12)
    for offset in range(120):
        number = offset // BATCH
        unit = disk.queue.unit_at(offset)
        assert unit is not None
        assert (unit.base_offset, unit.physical_offset) == (number * BATCH, number * 100)
        first = next(iter(disk.queue.iterate_from(offset) or ()))
        assert first == (number * 100, 100, number, number * BATCH, BATCH)


def test_there_is_nothing_outside_of_the_bounds(disk: Disk) -> None:
    assert facts(disk.queue) == (0, 0, -1)
    assert disk.queue.iterate_from(0) is None
    assert disk.queue.last_unit() is None
    disk.fill(12)
    assert facts(disk.queue) == (0, 120, 1200)
    assert len(disk.queue.files.files) == 3
    for offset in (-1, 120, 10**9):
        assert disk.queue.iterate_from(offset) is None
        assert disk.queue.unit_at(offset) is None


def test_the_maximum_physical_offset_is_the_end_of_the_last_record(disk: Disk) -> None:
    """Pitfall 4: RocketMQ's batch queue reports its start, its simple queue the end."""
    disk.fill(3)
    assert disk.queue.max_physical_offset == 300
    assert disk.reopen().max_physical_offset == 300
    assert disk.queue.append(DispatchRequest(250, 50, 0, 30, 0, 1)) is AppendOutcome.DUPLICATE


def test_rolling_to_the_next_file_leads_forward(disk: Disk) -> None:
    """Pitfall 51: RocketMQ's answer is 0, which sends the consumer back to the beginning."""
    disk.fill(12)
    assert disk.queue.roll_next_file(0) == 50
    assert disk.queue.roll_next_file(49) == 50
    assert disk.queue.roll_next_file(50) == 100
    assert disk.queue.roll_next_file(100) == 120
    assert disk.queue.roll_next_file(119) == 120


def test_an_iterator_ends_with_its_file(disk: Disk) -> None:
    disk.fill(12)
    assert [unit[3] for unit in disk.queue.iterate_from(25) or ()] == [20, 30, 40]
    assert [unit[3] for unit in disk.queue.iterate_from(100) or ()] == [100, 110]


def test_a_queue_may_start_anywhere(disk: Disk) -> None:
    assert disk.queue.append(DispatchRequest(500, 100, 0, 777, 0, 3)) is AppendOutcome.APPENDED
    assert facts(disk.queue) == (777, 780, 600)
    assert facts(disk.reopen()) == (777, 780, 600)


def test_duplicates_gaps_and_conflicts_are_distinguished(disk: Disk) -> None:
    disk.fill(3)
    assert disk.queue.append(request(1)) is AppendOutcome.DUPLICATE
    assert disk.queue.append(DispatchRequest(900, 100, 0, 0, 0, 10)) is AppendOutcome.CONFLICT
    assert disk.queue.append(DispatchRequest(900, 100, 0, 29, 0, 10)) is AppendOutcome.CONFLICT
    assert disk.queue.append(DispatchRequest(900, 100, 0, 35, 0, 10)) is AppendOutcome.GAP
    assert facts(disk.queue) == (0, 45, 1000)
    assert disk.queue.unit_at(32) is None
    assert [unit[3] for unit in disk.queue.iterate_from(32) or ()] == [35], "the next batch follows a gap"


def test_a_batch_of_none_is_refused(disk: Disk) -> None:
    with pytest.raises(IllegalMessage):
        disk.queue.append(DispatchRequest(0, 100, 0, 0, 0, 0))


def test_files_of_half_units_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="mapperFileSizeBatchConsumeQueue"):
        BatchConsumeQueue(OsFileAccess(), str(tmp_path), "T", 0, 47, ManualClock())


# Recovery and truncation


@pytest.mark.parametrize("count", [0, 1, 5, 6, 22])
def test_a_reopened_queue_is_as_it_was_and_goes_on(disk: Disk, count: int) -> None:
    disk.fill(count)
    for clean in (True, False):
        assert facts(disk.reopen(clean=clean)) == (0, count * BATCH, count * 100 if count else -1)
        assert not disk.dropped
    disk.fill(7, first=count)


def test_a_hole_ends_the_queue_and_is_reported(disk: Disk) -> None:
    disk.fill(22)
    disk.queue.close()
    path = disk.directory / f"{3 * FILE_BYTES:020d}"
    content = bytearray(path.read_bytes())
    content[BATCH_UNIT_BYTES : 2 * BATCH_UNIT_BYTES] = bytes(BATCH_UNIT_BYTES)
    path.write_bytes(content)
    assert facts(disk.reopen()) == (0, 160, 1600)
    assert disk.dropped
    disk.fill(6, first=16)
    assert facts(disk.reopen()) == (0, 220, 2200)
    assert not disk.dropped


@given(count=st.integers(1, 25), physical_offset=st.integers(0, 2600))
@settings(max_examples=30)
def test_truncation_keeps_exactly_the_records_that_end_in_the_log(
    tmp_path_factory: pytest.TempPathFactory, count: int, physical_offset: int
) -> None:
    disk = Disk(tmp_path_factory.mktemp("q") / "0")
    disk.fill(count)
    disk.queue.truncate_dirty(physical_offset)
    kept = min(count, physical_offset // 100)
    expected = (0, kept * BATCH, kept * 100 if kept else -1)
    assert facts(disk.queue) == expected
    assert facts(disk.reopen()) == expected
    disk.fill(7, first=kept)
    disk.queue.close()


def test_what_a_truncation_left_behind_is_never_taken_for_units(disk: Disk) -> None:
    disk.fill(4)
    disk.queue.truncate_dirty(200)
    assert disk.queue.append(DispatchRequest(200, 10, 0, 20, 0, 1)) is AppendOutcome.APPENDED
    assert facts(disk.reopen()) == (0, 21, 210)


@pytest.mark.parametrize("seed", range(40))
def test_a_damaged_queue_recovers_to_a_beginning_of_itself_or_reports_that_it_is_damaged(disk: Disk, seed: int) -> None:
    random_ = random.Random(seed)
    disk.fill(random_.randrange(1, 15))
    disk.queue.close()
    for path in disk.directory.iterdir():
        content = bytearray(path.read_bytes())
        for _ in range(random_.randrange(4)):
            content[random_.randrange(FILE_BYTES)] = random_.randrange(256)
        path.write_bytes(content)
    try:
        queue = disk.reopen()
        end = queue.max_offset
        assert (
            queue.append(DispatchRequest(max(0, queue.max_physical_offset), 1, 0, end, 0, 1)) is AppendOutcome.APPENDED
        )
        assert queue.max_offset == end + 1
    except (CorruptRecord, IllegalMessage):
        pass  # A damaged number near the end of its range leaves no room for another record.


# Cleaning and times


def test_expired_files_go_and_the_minimum_follows(disk: Disk) -> None:
    disk.fill(12)
    assert disk.queue.delete_expired(501) == 1
    assert disk.queue.min_offset == 60
    disk.queue.correct_min_offset(0)
    assert disk.queue.min_offset == 60, "the beginning never moves back"
    assert disk.queue.delete_expired(10**9) == 1
    assert facts(disk.queue) == (120, 120, 1200)
    disk.fill(1, first=12)


def test_times_lead_to_batches_as_in_rocketmq(disk: Disk) -> None:
    for number, time in enumerate([10, 20, 20, 20, 30, 40, 40, 50]):
        disk.queue.append(request(number, time))
    for time, lower, upper in [
        (5, 0, 0), (10, 0, 0), (15, 10, 10), (20, 10, 30), (25, 40, 40), (40, 50, 60), (50, 70, 70), (99, 70, 70),
    ]:  # fmt: skip
        assert disk.queue.offset_by_time(time, Boundary.LOWER) == lower, time
        assert disk.queue.offset_by_time(time, Boundary.UPPER) == upper, time
    assert disk.queue.offset_by_time(5, Boundary.LOWER, None, 300) == 30, "gone records are not offered"
    assert disk.queue.offset_by_time(5, Boundary.LOWER, None, 10**9) == 80


def test_an_empty_queue_answers_any_time_with_zero(disk: Disk) -> None:
    assert disk.queue.offset_by_time(5, Boundary.UPPER) == 0


def test_flush_and_destroy(disk: Disk) -> None:
    disk.fill(12)
    assert [disk.queue.flush(0) for _ in range(4)] == [False, False, False, True]
    disk.queue.destroy()
    assert not disk.directory.exists()
    assert facts(disk.queue) == (0, 0, -1)
    disk.fill(2)
