"""Consume queues after crashes: recovery, truncation, holes, remains, damage."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulation.manual_clock import ManualClock
from tiermq.commitlog.dispatch_request import DispatchRequest
from tiermq.consumequeue.consume_queue import ConsumeQueue
from tiermq.consumequeue.queue_units import AppendOutcome
from tiermq.consumequeue.unit import UNIT, UNIT_BYTES
from tiermq.errors import StoreDamaged
from tiermq.files.os_file_access import OsFileAccess

UNITS_PER_FILE = 10
FILE_BYTES = UNITS_PER_FILE * UNIT_BYTES


class Disk:
    """One queue directory, opened again and again; files are patched while they are closed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.dropped = False
        self.queue = self._new()

    def _new(self) -> ConsumeQueue:
        return ConsumeQueue(OsFileAccess(), str(self.directory), "T", 0, FILE_BYTES, ManualClock())

    def open(self, *, clean: bool = False) -> ConsumeQueue:
        self.queue = self._new()
        self.queue.load()
        self.dropped = self.queue.recover(clean)
        return self.queue

    def reopen(self, *, clean: bool = False) -> ConsumeQueue:
        self.queue.close()
        return self.open(clean=clean)

    def path(self, file: int) -> Path:
        return self.directory / f"{file * FILE_BYTES:020d}"

    def patch(self, queue_offset: int, data: bytes) -> None:
        """Overwrite bytes of a unit behind the queue's back."""
        self.queue.close()
        path = self.path(queue_offset // UNITS_PER_FILE)
        content = bytearray(path.read_bytes())
        at = queue_offset % UNITS_PER_FILE * UNIT_BYTES
        content[at : at + len(data)] = data
        path.write_bytes(content)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    disk = Disk(tmp_path / "0")
    yield disk
    disk.queue.close()


def request(queue_offset: int, physical_offset: int | None = None) -> DispatchRequest:
    return DispatchRequest(queue_offset * 100 if physical_offset is None else physical_offset, 100, 7, queue_offset, 0)


def fill(queue: ConsumeQueue, count: int, first: int = 0) -> None:
    for offset in range(first, first + count):
        assert queue.append(request(offset)) is AppendOutcome.APPENDED


def facts(queue: ConsumeQueue) -> tuple[int, int, int]:
    return queue.min_offset, queue.max_offset, queue.max_physical_offset


@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 45])
@pytest.mark.parametrize("clean", [True, False])
def test_a_reopened_queue_is_as_it_was_and_goes_on(disk: Disk, count: int, clean: bool) -> None:
    fill(disk.queue, count)
    queue = disk.reopen(clean=clean)
    assert facts(queue) == (0, count, count * 100 if count else -1)
    assert not disk.dropped
    assert queue.files.flushed_where == count * UNIT_BYTES
    fill(queue, 15, first=count)
    assert facts(disk.reopen()) == (0, count + 15, (count + 15) * 100)


@pytest.mark.parametrize("bad", [bytes(20), UNIT.pack(-1, 100, 0), UNIT.pack(3300, 0, 0), UNIT.pack(3300, -5, 0)])
def test_a_queue_ends_before_its_first_invalid_unit(disk: Disk, bad: bytes) -> None:
    fill(disk.queue, 45)
    disk.patch(33, bad)
    assert facts(disk.reopen()) == (0, 33, 3300)
    assert disk.dropped, "units behind a hole are gone; the store must dispatch their records again"
    fill(disk.queue, 12, first=33)
    assert facts(disk.reopen()) == (0, 45, 4500)
    assert not disk.dropped


def test_a_hole_before_the_last_three_files_is_not_looked_for_but_never_read_as_a_message(disk: Disk) -> None:
    fill(disk.queue, 45)
    disk.patch(3, bytes(20))
    queue = disk.reopen()
    assert facts(queue) == (0, 45, 4500)
    assert queue.unit_at(3) is None
    assert [unit[3] for unit in queue.iterate_from(2) or ()] == [2, 4, 5, 6, 7, 8, 9]


def test_a_unit_that_runs_backwards_ends_the_queue(disk: Disk) -> None:
    """It is what an earlier truncation left: its record begins inside of another one."""
    fill(disk.queue, 8)
    disk.patch(5, UNIT.pack(450, 100, 7))
    assert facts(disk.reopen()) == (0, 5, 500)


def test_what_a_truncation_left_behind_is_never_taken_for_units(disk: Disk) -> None:
    """RocketMQ moves positions only: after a crash, old units behind new ones look valid."""
    fill(disk.queue, 8)
    disk.queue.truncate_dirty(500)
    assert disk.queue.append(DispatchRequest(500, 40, 7, 5, 0)) is AppendOutcome.APPENDED
    assert facts(disk.reopen()) == (0, 6, 540)


def test_what_a_power_cut_left_behind_a_hole_is_never_taken_for_units(disk: Disk) -> None:
    fill(disk.queue, 8)
    disk.patch(3, bytes(20))
    queue = disk.reopen()
    assert queue.append(DispatchRequest(300, 40, 7, 3, 0)) is AppendOutcome.APPENDED
    assert facts(disk.reopen()) == (0, 4, 340)


def test_an_all_zero_last_file_yields_no_unit(disk: Disk) -> None:
    """Pitfall 17: RocketMQ accepts the first unit of a file unchecked and invents a unit of zeros."""
    fill(disk.queue, 10)
    disk.queue.close()
    disk.path(1).write_bytes(bytes(FILE_BYTES))
    queue = disk.reopen()
    assert facts(queue) == (0, 10, 1000)
    assert not disk.dropped
    assert not disk.path(1).exists(), "RocketMQ would stumble over it"
    queue.close()
    disk.path(1).write_bytes(bytes(FILE_BYTES))
    queue = disk._new()
    queue.load()
    queue.truncate_dirty(1000)
    assert facts(queue) == (0, 10, 1000)
    queue.close()


def test_a_queue_that_is_one_all_zero_file_is_empty(disk: Disk) -> None:
    disk.directory.mkdir()
    disk.path(0).write_bytes(bytes(FILE_BYTES))
    assert facts(disk.open()) == (0, 0, -1)
    fill(disk.queue, 3)


# Truncation


@pytest.mark.parametrize("count", [1, 10, 11, 45])
@pytest.mark.parametrize("physical_offset", [0, 1, 99, 100, 500, 999, 1000, 1050, 3400, 4400, 4500, 9999])
def test_truncation_keeps_exactly_the_records_that_end_in_the_log(disk: Disk, count: int, physical_offset: int) -> None:
    fill(disk.queue, count)
    disk.queue.truncate_dirty(physical_offset)
    kept = min(count, physical_offset // 100)
    assert facts(disk.queue) == (0, kept, kept * 100 if kept else -1)
    assert facts(disk.reopen()) == (0, kept, kept * 100 if kept else -1)
    fill(disk.queue, 12, first=kept)


def test_the_first_unit_of_a_file_is_checked_when_truncating(disk: Disk) -> None:
    """Pitfall 17, first half."""
    fill(disk.queue, 11)
    disk.queue.truncate_dirty(1000)
    assert facts(disk.queue) == (0, 10, 1000)
    disk.queue.truncate_dirty(0)
    assert facts(disk.queue) == (0, 0, -1)
    assert disk.queue.files.files == ()


def test_after_truncation_a_record_of_the_same_place_is_no_duplicate(disk: Disk) -> None:
    """RocketMQ takes the end of the log for the maximum, also when the queue lost its last unit."""
    fill(disk.queue, 3)
    disk.queue.truncate_dirty(250)
    assert disk.queue.append(DispatchRequest(200, 50, 7, 2, 0)) is AppendOutcome.APPENDED


def test_a_queue_that_lost_all_its_units_still_knows_its_numbering(disk: Disk) -> None:
    fill(disk.queue, 25)
    assert disk.queue.delete_expired(2000) == 2
    disk.queue.truncate_dirty(1000)
    assert facts(disk.queue) == (20, 20, -1)
    assert facts(disk.reopen()) == (20, 20, -1)
    assert disk.queue.append(request(20, 1000)) is AppendOutcome.APPENDED


def test_blanks_at_the_start_of_a_file_do_not_hide_dirty_units_before_it(disk: Disk) -> None:
    fill(disk.queue, 9)
    assert disk.queue.append(request(14)) is AppendOutcome.GAP
    disk.queue.truncate_dirty(800)
    assert facts(disk.queue) == (0, 8, 800)


def test_truncation_keeps_the_blanks_of_a_gap_so_that_numbering_goes_on_behind_it(disk: Disk) -> None:
    fill(disk.queue, 10)
    assert disk.queue.append(request(14)) is AppendOutcome.GAP
    disk.queue.truncate_dirty(1000)
    assert facts(disk.queue) == (0, 14, 1000)
    assert facts(disk.reopen()) == (0, 14, 1000)


def test_truncation_keeps_the_blanks_before_a_queues_beginning(disk: Disk) -> None:
    for offset in (105, 106):
        disk.queue.append(request(offset))
    disk.queue.truncate_dirty(100)
    assert facts(disk.queue) == (105, 105, -1)
    assert facts(disk.reopen()) == (105, 105, -1)


@given(
    places=st.lists(st.integers(1, 4), min_size=1, max_size=30),
    cut=st.integers(0, 60),
    start=st.integers(0, 35),
)
@settings(max_examples=40)
def test_truncation_agrees_with_a_list_also_with_gaps(
    tmp_path_factory: pytest.TempPathFactory, places: list[int], cut: int, start: int
) -> None:
    disk = Disk(tmp_path_factory.mktemp("q") / "0")
    place, records = start, {}
    for number, step in enumerate(places):
        records[place] = number * 100
        disk.queue.append(request(place, number * 100))
        place += step
    disk.queue.truncate_dirty(cut * 100)
    kept = {place: physical for place, physical in records.items() if physical + 100 <= cut * 100}
    for reopened in (False, True):
        queue = disk.reopen() if reopened else disk.queue
        found = {}
        offset = queue.min_offset
        while offset < queue.max_offset:
            found.update({unit[3]: unit[0] for unit in queue.iterate_from(offset) or ()})
            offset = queue.roll_next_file(offset)
        assert found == kept
        assert queue.max_physical_offset == max((physical + 100 for physical in kept.values()), default=-1)
    disk.queue.close()


# Rewinding before a walk that gives the units again


@pytest.mark.parametrize("count", [1, 10, 11, 45])
@pytest.mark.parametrize("physical_offset", [0, 99, 100, 500, 1000, 1050, 3400, 4500, 9999])
@pytest.mark.parametrize("again", [0, 1, 7, 12, 60])
def test_a_rewound_queue_ends_as_one_that_was_truncated_and_filled(
    tmp_path: Path, count: int, physical_offset: int, again: int
) -> None:
    disks = [Disk(tmp_path / "rewound"), Disk(tmp_path / "truncated")]
    for disk in disks:
        fill(disk.queue, count)
        disk.reopen()
    disks[0].queue.rewind(physical_offset)
    disks[1].queue.truncate_dirty(physical_offset)
    kept = min(count, physical_offset // 100)
    for disk in disks:
        assert facts(disk.queue) == (0, kept, kept * 100 if kept else -1)
        fill(disk.queue, again, first=kept)
    disks[0].queue.end_rewind()
    assert facts(disks[0].queue) == facts(disks[1].queue) == (0, kept + again, (kept + again) * 100 or -1)
    images = []
    for disk in disks:
        while not disk.queue.flush(0):
            pass
        assert disk.queue.files.flushed_where == (kept + again) * UNIT_BYTES
        images.append({path.name: path.read_bytes() for path in disk.directory.glob("*")})
        disk.queue.close()
    assert images[0] == images[1]


def test_a_rewound_queue_keeps_its_file_and_has_blocks_for_the_units_it_had(disk: Disk) -> None:
    fill(disk.queue, 8)
    queue = disk.reopen()
    (before,) = queue.files.files
    queue.rewind(0)
    assert queue.files.files == (before,)
    tail = queue.queue_tail.tail
    assert tail is not None
    assert (tail.position, queue.queue_tail.max_physical_offset) == (0, -1)
    assert tail.limit >= 8 * UNIT_BYTES


def test_a_rewound_queue_that_gets_nothing_again_has_no_file(disk: Disk) -> None:
    fill(disk.queue, 8)
    queue = disk.reopen()
    queue.rewind(0)
    queue.end_rewind()
    assert queue.files.files == ()
    assert not disk.path(0).exists()
    fill(queue, 3)
    assert facts(disk.reopen()) == (0, 3, 300)


@pytest.mark.parametrize("again", range(9))
def test_a_crash_between_rewinding_and_its_end_leaves_old_units_or_those_of_the_walk(disk: Disk, again: int) -> None:
    fill(disk.queue, 8)
    queue = disk.reopen()
    queue.rewind(0)
    fill(queue, again)
    assert facts(disk.reopen()) == (0, 8, 800)
    assert not disk.dropped


def test_ending_a_rewind_that_was_not_begun_changes_nothing(disk: Disk) -> None:
    fill(disk.queue, 8)
    disk.queue.end_rewind()
    assert facts(disk.queue) == (0, 8, 800)
    fill(disk.queue, 1, first=8)


# Damage


@pytest.mark.parametrize("seed", range(80))
def test_a_damaged_queue_recovers_to_a_beginning_of_itself(disk: Disk, seed: int) -> None:
    random_ = random.Random(seed)
    count = random_.randrange(1, 30)
    fill(disk.queue, count)
    disk.queue.close()
    for _ in range(random_.randrange(1, 12)):
        path = disk.path(random_.randrange((count - 1) // UNITS_PER_FILE + 1))
        content = bytearray(path.read_bytes())
        at = random_.randrange(FILE_BYTES)
        length = random_.choice([1, 4, 20, 60])
        content[at : at + length] = random_.randbytes(length) if random_.random() < 0.7 else bytes(length)
        path.write_bytes(content[:FILE_BYTES])
    queue = disk.reopen()
    assert 0 <= queue.min_offset <= queue.max_offset <= 30
    units = [queue.unit_at(offset) for offset in range(queue.max_offset)]
    ends = [unit.physical_offset + unit.size for unit in units if unit is not None]
    starts = [unit.physical_offset for unit in units if unit is not None]
    assert starts == sorted(starts)
    assert queue.max_physical_offset == (ends[-1] if ends else -1)
    assert all(end <= start for end, start in zip(ends, starts[1:], strict=False))
    outcome = queue.append(request(queue.max_offset, max(0, queue.max_physical_offset)))
    assert outcome is AppendOutcome.APPENDED
    before = facts(queue)
    assert facts(disk.reopen()) == before


def test_a_file_of_another_size_is_refused(disk: Disk) -> None:
    fill(disk.queue, 3)
    disk.queue.close()
    disk.path(0).write_bytes(bytes(40))
    with pytest.raises(StoreDamaged, match="expected a file of 200 bytes"):
        disk.open()
