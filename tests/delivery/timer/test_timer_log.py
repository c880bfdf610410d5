"""The timer log: units in files, ends, cuts."""

from __future__ import annotations

import pytest

from simulation.simulated_files import SimulatedFileAccess
from tiermq.clock import ManualClock
from tiermq.delivery.timer.timer_log import TimerLog
from tiermq.delivery.timer.timer_unit import UNIT_BYTES, TimerUnit, encode_blank, encode_unit
from tiermq.errors import DiskFull, StoreDamaged

FILE_BYTES = 4096
PER_FILE = (FILE_BYTES - 16) // UNIT_BYTES


def unit(number: int) -> TimerUnit:
    return TimerUnit(number - 1, 1, 1_700_000_000_000, 1_000, number * 100, 100, 7)


def opened(access: SimulatedFileAccess, *, end: int | None = None) -> TimerLog:
    log = TimerLog(access, "/store/timerlog", FILE_BYTES, ManualClock())
    if end is not None:
        log.truncate(end)
    return log


def filled(access: SimulatedFileAccess, count: int) -> tuple[TimerLog, list[int]]:
    log = opened(access, end=0)
    return log, [log.append(unit(number)) for number in range(count)]


def test_units_lie_end_to_end_and_never_cross_a_file() -> None:
    log, positions = filled(SimulatedFileAccess(), 2 * PER_FILE + 5)
    assert positions[PER_FILE - 1] == (PER_FILE - 1) * UNIT_BYTES
    assert positions[PER_FILE] == FILE_BYTES
    assert log.end == 2 * FILE_BYTES + 5 * UNIT_BYTES
    assert [log.read(position) for position in positions] == [unit(number) for number in range(len(positions))]
    assert list(log.units()) == [(position, unit(number)) for number, position in enumerate(positions)]
    assert list(log.units(positions[-3])) == list(log.units())[-3:]


def test_a_full_file_ends_in_rocketmqs_blank() -> None:
    access = SimulatedFileAccess()
    log, _ = filled(access, PER_FILE + 1)
    log.flush()
    data = access.read_bytes("/store/timerlog/00000000000000000000")
    left = FILE_BYTES - PER_FILE * UNIT_BYTES
    assert data[: PER_FILE * UNIT_BYTES] == b"".join(encode_unit(unit(number)) for number in range(PER_FILE))
    assert data[-left:] == encode_blank(left)


def test_nothing_is_read_beyond_the_ends_of_the_log() -> None:
    log, positions = filled(SimulatedFileAccess(), 3)
    assert log.read(log.end) is None
    assert log.read(-1) is None
    assert log.read(positions[0] + 1) is None
    assert list(log.units(log.end)) == []


def test_flushed_units_survive_a_power_cut_and_the_others_need_not() -> None:
    access = SimulatedFileAccess()
    log, positions = filled(access, PER_FILE + 3)
    log.flush()
    end = log.end
    assert log.flushed_where == end
    log.append(unit(99))
    after = opened(access.crash(lambda _path, _page: False))
    assert [position for position, _ in after.units()] == positions


@pytest.mark.parametrize("keep", [0, 1, 5, PER_FILE - 1, PER_FILE, PER_FILE + 1, 2 * PER_FILE])
def test_a_log_that_was_cut_goes_on_there_and_nothing_of_the_rest_comes_back(keep: int) -> None:
    access = SimulatedFileAccess()
    log, positions = filled(access, 2 * PER_FILE + 5)
    log.flush()
    log.close()
    cut = opened(access, end=positions[keep])
    assert [position for position, _ in cut.units()] == positions[:keep]
    added = cut.append(unit(500))
    assert added == positions[keep]
    cut.flush()
    after = opened(access.crash(lambda _path, _page: False))
    assert [position for position, _ in after.units()] == [*positions[:keep], added]


def test_leading_files_go_when_their_messages_are_gone() -> None:
    log, positions = filled(SimulatedFileAccess(), 2 * PER_FILE + 5)
    newest_of_first_file = unit(PER_FILE - 1).physical_offset
    assert log.delete_before(newest_of_first_file) == 0
    assert log.delete_before(newest_of_first_file + 1) == 1
    assert log.begin == FILE_BYTES
    assert log.read(positions[0]) is None
    assert next(log.units())[0] == FILE_BYTES
    assert log.delete_before(10**9) == 1  # Never the last one.


def test_a_full_disk_leaves_the_log_as_it_was() -> None:
    access = SimulatedFileAccess()
    log, positions = filled(access, PER_FILE)
    access.capacity_bytes = 0
    with pytest.raises(DiskFull):
        log.append(unit(77))
    access.capacity_bytes = None
    assert log.append(unit(77)) == FILE_BYTES
    assert [position for position, _ in log.units()] == [*positions, FILE_BYTES]


def test_a_timer_log_of_another_file_size_is_refused() -> None:
    access = SimulatedFileAccess()
    filled(access, 1)[0].flush()
    with pytest.raises(StoreDamaged, match="expected a file of 8192 bytes"):
        TimerLog(access, "/store/timerlog", 8192, ManualClock())
