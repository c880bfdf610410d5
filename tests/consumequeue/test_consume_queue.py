"""Consume queues: appending, bounds, reading, time search, cleaning."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulation.manual_clock import ManualClock
from tiermq.commitlog.dispatch_request import DispatchRequest
from tiermq.consumequeue.consume_queue import GAP_UNITS_MAX, ConsumeQueue
from tiermq.consumequeue.queue_units import AppendOutcome, Boundary
from tiermq.consumequeue.unit import PRE_BLANK, UNIT_BYTES
from tiermq.errors import DiskFull, IllegalMessage, IllegalTransition
from tiermq.files.file_access import Region
from tiermq.files.os_file_access import OsFileAccess

RECORD_BYTES = 100
UNITS_PER_FILE = 10
Open = Callable[[], ConsumeQueue]


@pytest.fixture
def open_queue(tmp_path: Path) -> Iterator[Open]:
    """Opens the same queue again and again, as restarts do."""
    opened: list[ConsumeQueue] = []

    def open_() -> ConsumeQueue:
        while opened:
            opened.pop().close()
        queue = ConsumeQueue(
            OsFileAccess(), str(tmp_path / "T" / "0"), "T", 0, UNITS_PER_FILE * UNIT_BYTES, ManualClock()
        )
        opened.append(queue)
        queue.load()
        queue.recover()
        return queue

    yield open_
    for queue in opened:
        queue.close()


@pytest.fixture
def queue(open_queue: Open) -> ConsumeQueue:
    return open_queue()


def request(queue_offset: int, physical_offset: int | None = None, tags_code: int = 7) -> DispatchRequest:
    """A record of 100 bytes; by default the records of the queue lie end to end."""
    physical = queue_offset * RECORD_BYTES if physical_offset is None else physical_offset
    return DispatchRequest(physical, RECORD_BYTES, tags_code, queue_offset, 1000 + queue_offset)


def fill(queue: ConsumeQueue, count: int, first: int = 0) -> None:
    for offset in range(first, first + count):
        assert queue.append(request(offset)) is AppendOutcome.APPENDED


def offsets(queue: ConsumeQueue, start: int) -> list[int]:
    return [unit[3] for unit in queue.iterate_from(start) or ()]


def store_time_of(physical_offset: int, _size: int) -> int:
    return 1000 + physical_offset // RECORD_BYTES * 10


# Appending


def test_units_are_found_under_their_queue_offsets(queue: ConsumeQueue) -> None:
    fill(queue, 25)
    assert (queue.min_offset, queue.max_offset, queue.max_physical_offset) == (0, 25, 2500)
    assert queue.unit_at(13) == (1300, RECORD_BYTES, 7)
    assert queue.unit_at(25) is None
    assert queue.last_unit() == (2400, RECORD_BYTES, 7)
    assert queue.queue_tail.last_store_timestamp_ms == 1024


def test_an_empty_queue_has_no_bounds_and_no_files(queue: ConsumeQueue, tmp_path: Path) -> None:
    assert (queue.min_offset, queue.max_offset, queue.max_physical_offset) == (0, 0, -1)
    assert queue.last_unit() is None
    assert queue.iterate_from(0) is None
    assert queue.queue_tail.tail is None
    assert not (tmp_path / "T").exists()


def test_dispatching_an_old_record_again_adds_no_unit(queue: ConsumeQueue) -> None:
    fill(queue, 25)
    for offset in range(25):
        assert queue.append(request(offset)) is AppendOutcome.DUPLICATE
    assert queue.max_offset == 25


def test_the_tail_follows_the_last_file(queue: ConsumeQueue) -> None:
    for offset in range(25):
        queue.append(request(offset))
        last = queue.files.last()
        assert last is not None
        assert queue.queue_tail.tail is last.tail


def test_units_that_the_fast_path_wrote_through_the_tail_belong_to_the_queue(
    queue: ConsumeQueue, open_queue: Open
) -> None:
    fill(queue, 3)
    tail = queue.queue_tail.tail
    assert tail is not None
    assert tail.append(bytes.fromhex("000000000000012c000000640000000000000007"))
    queue.queue_tail.max_physical_offset = 400
    assert queue.max_offset == 4
    assert queue.append(request(3)) is AppendOutcome.DUPLICATE
    assert queue.append(request(4)) is AppendOutcome.APPENDED
    assert offsets(open_queue(), 0) == [0, 1, 2, 3, 4]


def test_a_unit_ahead_of_the_end_is_reported_as_a_gap_and_is_at_its_own_offset(
    queue: ConsumeQueue, open_queue: Open
) -> None:
    """Pitfall 19: RocketMQ appends it at the end, and every later message has a wrong queue offset."""
    fill(queue, 3)
    assert queue.append(request(7)) is AppendOutcome.GAP
    assert queue.append(request(8)) is AppendOutcome.APPENDED
    assert queue.append(request(23)) is AppendOutcome.GAP
    for reopened in (False, True):
        opened = open_queue() if reopened else queue
        assert opened.max_offset == 24
        assert opened.unit_at(7) == (700, RECORD_BYTES, 7)
        assert opened.unit_at(23) == (2300, RECORD_BYTES, 7)
        assert [opened.unit_at(offset) for offset in (3, 4, 5, 6, 9, 22)] == [None] * 6
        assert offsets(opened, 0) == [0, 1, 2, 7, 8]
        assert offsets(opened, 4) == [7, 8]
        assert opened.max_physical_offset == 2400


def test_a_unit_much_too_far_ahead_is_refused_and_nothing_is_written(queue: ConsumeQueue) -> None:
    fill(queue, 3)
    assert queue.append(request(4 + GAP_UNITS_MAX, 5000)) is AppendOutcome.TOO_FAR
    assert queue.append(DispatchRequest(5000, 100, 0, 2**62, 0)) is AppendOutcome.TOO_FAR
    assert (queue.max_offset, queue.max_physical_offset) == (3, 300)


@pytest.mark.parametrize("queue_offset", [0, 1, 4])
def test_a_queue_offset_that_another_record_has_is_a_conflict_and_never_appended(
    queue: ConsumeQueue, queue_offset: int
) -> None:
    """Pitfall 20: RocketMQ appends a record with queue offset 0 at the end, whatever is in the queue."""
    fill(queue, 5)
    assert queue.append(request(queue_offset, 9000)) is AppendOutcome.CONFLICT
    assert (queue.max_offset, queue.max_physical_offset) == (5, 500)
    assert queue.unit_at(queue_offset) == (queue_offset * 100, 100, 7)


def test_a_record_that_has_its_place_is_a_duplicate_even_when_its_size_was_learnt_wrong(queue: ConsumeQueue) -> None:
    fill(queue, 5)
    assert queue.append(DispatchRequest(400, 150, 7, 4, 0)) is AppendOutcome.DUPLICATE


def test_values_that_no_unit_can_hold_are_refused_before_anything_is_written(queue: ConsumeQueue) -> None:
    for bad in (DispatchRequest(-1, 100, 0, 0, 0), DispatchRequest(0, 0, 0, 0, 0), DispatchRequest(0, 100, 0, -1, 0)):
        with pytest.raises(IllegalMessage):
            queue.append(bad)
    assert queue.files.files == ()


# Starting in the middle


@pytest.mark.parametrize("start", [4, 10, 100, 107])
def test_a_queue_may_start_anywhere(queue: ConsumeQueue, open_queue: Open, start: int) -> None:
    assert queue.append(request(start)) is AppendOutcome.APPENDED
    assert (queue.min_offset, queue.max_offset) == (start, start + 1)
    first = queue.files.first()
    assert first is not None
    assert first.from_offset == start // UNITS_PER_FILE * UNITS_PER_FILE * UNIT_BYTES
    blanks = start % UNITS_PER_FILE * UNIT_BYTES
    assert Path(first.path).read_bytes()[:blanks] == PRE_BLANK * (start % UNITS_PER_FILE)
    again = open_queue()
    assert (again.min_offset, again.max_offset) == (start, start + 1)
    assert offsets(again, start) == [start]


def test_a_queue_initialised_at_100_is_empty_there_also_after_a_reload(queue: ConsumeQueue, open_queue: Open) -> None:
    queue.initialize_with_offset(100)
    assert (queue.min_offset, queue.max_offset) == (100, 100)
    again = open_queue()
    again.correct_min_offset(1)
    assert (again.min_offset, again.max_offset) == (100, 100)
    assert again.append(request(100)) is AppendOutcome.APPENDED
    with pytest.raises(IllegalTransition):
        again.initialize_with_offset(200)


def test_pre_blank_units_never_count_as_records(open_queue: Open) -> None:
    """Pitfall 18: RocketMQ's maximum becomes 2 GiB, and every record below it is dropped as a duplicate."""
    open_queue().initialize_with_offset(107)
    queue = open_queue()
    assert queue.max_physical_offset == -1
    assert queue.last_unit() is None
    assert queue.append(request(107, 50)) is AppendOutcome.APPENDED
    assert open_queue().max_physical_offset == 150


def test_a_queue_of_blanks_alone_begins_again_further_on_without_filling_up(queue: ConsumeQueue) -> None:
    queue.initialize_with_offset(5)
    assert queue.append(request(1_000_000_003)) is AppendOutcome.APPENDED
    assert len(queue.files.files) == 1
    assert (queue.min_offset, queue.max_offset) == (1_000_000_003, 1_000_000_004)


# Reading


def test_an_iterator_ends_with_its_file(queue: ConsumeQueue) -> None:
    fill(queue, 25)
    assert offsets(queue, 3) == list(range(3, 10))
    assert offsets(queue, 20) == list(range(20, 25))
    assert queue.roll_next_file(3) == 10
    assert queue.roll_next_file(10) == 20


def test_an_iterator_gives_offset_size_tags_and_queue_offset(queue: ConsumeQueue) -> None:
    queue.append(DispatchRequest(0, 100, -5, 0, 0))
    assert list(queue.iterate_from(0) or ()) == [(0, 100, -5, 0)]


def test_there_is_no_iterator_outside_of_the_queue(queue: ConsumeQueue) -> None:
    fill(queue, 25)
    queue.correct_min_offset(1200)
    for offset in (-1, 0, 11, 25, 26, 10**9):
        assert queue.iterate_from(offset) is None
        assert queue.unit_at(offset) is None
    assert offsets(queue, 12) == list(range(12, 20))


def test_an_iterator_outlives_the_deletion_of_its_file(queue: ConsumeQueue) -> None:
    fill(queue, 25)
    units = queue.iterate_from(0)
    assert units is not None
    assert next(units)[3] == 0
    assert queue.delete_expired(2000) == 2
    assert [unit[3] for unit in units] == list(range(1, 10))


# The beginning of the queue


def test_correcting_the_minimum_of_ten_thousand_units(tmp_path: Path) -> None:
    queue = ConsumeQueue(OsFileAccess(), str(tmp_path), "T", 0, 300_000, ManualClock())
    fill(queue, 10_000)
    queue.correct_min_offset(0)
    assert queue.min_offset == 0
    queue.correct_min_offset(2000)
    assert queue.min_offset == 20
    queue.correct_min_offset(2001)
    assert queue.min_offset == 21
    queue.correct_min_offset(10**9)
    assert queue.min_logic_offset == queue.max_logic_offset == 200_000
    queue.correct_min_offset(0)
    assert queue.min_offset == 10_000
    queue.close()


@given(places=st.sets(st.integers(0, 60), min_size=1), min_physical=st.integers(0, 6200))
@settings(max_examples=40)
def test_the_minimum_is_the_first_message_that_is_still_there_also_with_gaps(
    tmp_path_factory: pytest.TempPathFactory, places: set[int], min_physical: int
) -> None:
    queue = ConsumeQueue(OsFileAccess(), str(tmp_path_factory.mktemp("q")), "T", 0, 200, ManualClock())
    for place in sorted(places):
        queue.append(request(place))
    queue.correct_min_offset(min_physical)
    left = [place for place in places if place * 100 >= min_physical]
    assert queue.min_offset == (min(left) if left else queue.max_offset)
    queue.close()


def test_correcting_the_minimum_with_an_empty_last_file_reads_nothing_before_it(open_queue: Open) -> None:
    """Pitfall 17, second half: RocketMQ reads the last unit of an empty file at -20 and raises."""
    queue = open_queue()
    fill(queue, 10)
    queue.files.create_next()
    queue.correct_min_offset(500)
    assert queue.min_offset == 5
    queue.correct_min_offset(5000)
    assert queue.min_offset == 10


def test_expired_files_go_and_the_last_one_stays(queue: ConsumeQueue) -> None:
    fill(queue, 25)
    assert queue.delete_expired(900) == 0
    assert queue.min_offset == 9
    assert queue.delete_expired(1000) == 1
    assert queue.min_offset == 10
    assert queue.delete_expired(10**9) == 1
    assert (queue.min_offset, queue.max_offset) == (25, 25)
    assert queue.append(request(25)) is AppendOutcome.APPENDED


# Times


def test_each_store_time_leads_to_its_own_unit(queue: ConsumeQueue) -> None:
    fill(queue, 35)
    for offset in range(35):
        time_ms = store_time_of(offset * 100, 100)
        assert queue.offset_by_time(time_ms, Boundary.LOWER, store_time_of) == offset
        assert queue.offset_by_time(time_ms, Boundary.UPPER, store_time_of) == offset
        assert queue.offset_by_time(time_ms - 2, Boundary.LOWER, store_time_of) == offset
        assert queue.offset_by_time(time_ms + 2, Boundary.UPPER, store_time_of) == offset
    assert queue.offset_by_time(0, Boundary.LOWER, store_time_of) == 0
    assert queue.offset_by_time(0, Boundary.UPPER, store_time_of) == 0
    assert queue.offset_by_time(10**9, Boundary.LOWER, store_time_of) == 35
    assert queue.offset_by_time(10**9, Boundary.UPPER, store_time_of) == 34


def test_an_early_time_leads_to_the_first_message_that_is_there_not_to_the_first_of_the_file(
    queue: ConsumeQueue,
) -> None:
    """Pitfall 26: RocketMQ answers with the first unit of the file and relies on a clamp."""
    fill(queue, 25)
    queue.correct_min_offset(300)
    assert queue.offset_by_time(0, Boundary.LOWER, store_time_of) == 3
    assert queue.offset_by_time(0, Boundary.UPPER, store_time_of, min_physical_offset=500) == 5


def test_a_record_whose_time_cannot_be_read_does_not_look_older_than_any_time(queue: ConsumeQueue) -> None:
    """Pitfall 26, second half: an unreadable newest record made RocketMQ answer with the end of the queue."""
    fill(queue, 25)

    def newest_unreadable(physical_offset: int, size: int) -> int:
        return -1 if physical_offset >= 2200 else store_time_of(physical_offset, size)

    assert queue.offset_by_time(1030, Boundary.LOWER, newest_unreadable) == 3
    assert queue.offset_by_time(10**9, Boundary.UPPER, newest_unreadable) == 21
    assert queue.offset_by_time(1030, Boundary.LOWER, lambda *_: -1) == 25
    assert queue.offset_by_time(1030, Boundary.UPPER, lambda *_: -1) == 0


def test_an_empty_queue_answers_any_time_with_zero(queue: ConsumeQueue) -> None:
    for boundary in Boundary:
        assert queue.offset_by_time(5, boundary, store_time_of) == 0


@given(
    steps=st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.booleans()), min_size=1, max_size=35),
    asked=st.integers(-1, 60),
)
@settings(max_examples=60)
def test_time_search_agrees_with_looking_at_every_message(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, bool, bool]], asked: int
) -> None:
    queue = ConsumeQueue(OsFileAccess(), str(tmp_path_factory.mktemp("q")), "T", 0, 200, ManualClock())
    times: dict[int, int] = {}
    time = 0
    for place, (step, is_gap, is_lost) in enumerate(steps):
        time += step
        if not is_gap:
            queue.append(request(place))
            times[place] = -1 if is_lost else time
    known = {place: ms for place, ms in times.items() if ms >= 0}

    def time_of(physical_offset: int, _size: int) -> int:
        return times[physical_offset // 100]

    later = [place for place, ms in known.items() if ms >= asked]
    earlier = [place for place, ms in known.items() if ms <= asked]
    assert queue.offset_by_time(asked, Boundary.LOWER, time_of) == min(later, default=queue.max_offset)
    assert queue.offset_by_time(asked, Boundary.UPPER, time_of) == max(earlier, default=queue.min_offset)
    queue.close()


# Full disks, ends


class FullDisk(OsFileAccess):
    """A file system on which files cannot be given blocks from some moment on."""

    __slots__ = ("full",)

    def __init__(self) -> None:
        self.full = False

    def create(self, path: str, size: int) -> Region:  # type: ignore[override]
        region = super().create(path, size)
        access = self

        class Guarded:
            """Asks before it reserves; everything else is the real region's."""

            def __getattr__(self, name: str) -> object:
                return getattr(region, name)

            def reserve(self, start: int, length: int) -> None:
                if access.full:
                    raise DiskFull("expected free blocks, found none")
                region.reserve(start, length)

        return Guarded()  # type: ignore[return-value]


def test_a_full_disk_refuses_the_unit_and_takes_it_later(tmp_path: Path) -> None:
    access = FullDisk()
    queue = ConsumeQueue(access, str(tmp_path), "T", 0, 200, ManualClock())
    fill(queue, 10)
    access.full = True
    for asked in (request(10), request(17)):
        with pytest.raises(DiskFull):
            queue.append(asked)
        assert (queue.max_offset, queue.max_physical_offset) == (10, 1000)
    access.full = False
    assert queue.append(request(10)) is AppendOutcome.APPENDED
    assert queue.unit_at(10) == (1000, RECORD_BYTES, 7)
    queue.close()


def test_a_gap_is_reported_even_when_the_disk_was_full_while_it_was_filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = ConsumeQueue(OsFileAccess(), str(tmp_path), "T", 0, 200, ManualClock())
    fill(queue, 3)
    file = queue.files.last()
    assert file is not None
    real_append = type(file).append

    def full_for_real_units(self: object, data: bytes) -> bool:
        if data[:UNIT_BYTES] != PRE_BLANK:
            raise DiskFull("expected free blocks, found none")
        return real_append(self, data)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(type(file), "append", full_for_real_units)
        with pytest.raises(DiskFull):
            queue.append(request(5))
    assert queue.append(request(5)) is AppendOutcome.GAP
    assert queue.append(request(6)) is AppendOutcome.APPENDED
    queue.close()


def test_flushing_moves_file_by_file_and_then_reports_that_nothing_moved(queue: ConsumeQueue) -> None:
    fill(queue, 25)
    assert [queue.flush(0) for _ in range(4)] == [False, False, False, True]
    assert queue.files.flushed_where == 500


def test_destroy_leaves_nothing_and_the_queue_can_begin_again(queue: ConsumeQueue, tmp_path: Path) -> None:
    fill(queue, 25)
    queue.destroy()
    assert not (tmp_path / "T" / "0").exists()
    assert (queue.min_offset, queue.max_offset, queue.max_physical_offset) == (0, 0, -1)
    assert queue.queue_tail.tail is None
    fill(queue, 3)
