"""The timer log: units in files, ends, cuts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.manual_clock import ManualClock
from simulation.simulated_files import SimulatedFileAccess
from tiermq.delivery.timer.timer_log import (
    TIMER_UNIT_BYTES,
    TimerLog,
    TimerUnit,
    decode_unit,
    encode_blank,
    encode_unit,
    is_blank,
    last_unit_position,
)
from tiermq.errors import DiskFull, StoreDamaged
from tiermq.message.java_hash import java_hash
from tiermq.message.layout import MAGIC_BLANK

FILE_BYTES = 4096
PER_FILE = (FILE_BYTES - 16) // TIMER_UNIT_BYTES
UNIT = TimerUnit(-1, 1, 1_700_000_000_000, 5_000, 1_024, 123, java_hash("TopicTest"))
INT = st.integers(-(2**31), 2**31 - 1)
UNITS = st.builds(
    TimerUnit,
    st.integers(-1, 2**63 - 1),
    st.sampled_from([1, 3, 5, 7, 9, 11, 13, 15]),
    st.integers(1, 2**62),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**63 - 1),
    st.integers(1, 2**31 - 1),
    INT,
)


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
    assert positions[PER_FILE - 1] == (PER_FILE - 1) * TIMER_UNIT_BYTES
    assert positions[PER_FILE] == FILE_BYTES
    assert log.end == 2 * FILE_BYTES + 5 * TIMER_UNIT_BYTES
    assert [log.read(position) for position in positions] == [unit(number) for number in range(len(positions))]
    assert list(log.units()) == [(position, unit(number)) for number, position in enumerate(positions)]
    assert list(log.units(positions[-3])) == list(log.units())[-3:]


def test_a_full_file_ends_in_rocketmqs_blank() -> None:
    access = SimulatedFileAccess()
    log, _ = filled(access, PER_FILE + 1)
    log.flush()
    data = access.read_bytes("/store/timerlog/00000000000000000000")
    left = FILE_BYTES - PER_FILE * TIMER_UNIT_BYTES
    assert data[: PER_FILE * TIMER_UNIT_BYTES] == b"".join(encode_unit(unit(number)) for number in range(PER_FILE))
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


def test_a_timer_unit_has_the_bytes_of_the_specification() -> None:
    assert encode_unit(UNIT).hex() == (
        "00000034ffffffffffffffff000000010000018bcfe568000000138800000000000004000000007b"
        f"{java_hash('TopicTest') & 0xFFFFFFFF:08x}0000000000000000"
    )


@given(UNITS)
def test_a_timer_unit_comes_back_as_it_was(unit: TimerUnit) -> None:
    assert decode_unit(encode_unit(unit)) == unit


@given(UNITS, st.integers(0, TIMER_UNIT_BYTES - 1))
def test_a_timer_unit_cut_short_is_none(unit: TimerUnit, length: int) -> None:
    assert decode_unit(encode_unit(unit)[:length]) is None


@given(st.binary(min_size=TIMER_UNIT_BYTES, max_size=TIMER_UNIT_BYTES))
def test_whatever_is_taken_for_a_timer_unit_encodes_to_the_same_bytes(data: bytes) -> None:
    unit = decode_unit(data)
    assert unit is None or encode_unit(unit) == data


def test_a_unit_whose_second_half_is_missing_is_none() -> None:
    """A page that never reached the disk leaves zeros; RocketMQ takes such a unit for one."""
    for length in range(40):
        assert decode_unit(encode_unit(UNIT)[:length].ljust(TIMER_UNIT_BYTES, b"\0")) is None


def test_zeros_and_blanks_are_no_units_and_only_blanks_are_blank() -> None:
    assert decode_unit(bytes(TIMER_UNIT_BYTES)) is None
    assert decode_unit(encode_blank(60)) is None
    assert is_blank(encode_blank(17))
    assert len(encode_blank(60)) == 60
    assert MAGIC_BLANK & 0xFFFFFFFF == 0xCBD43194
    assert not is_blank(encode_unit(UNIT))
    assert not is_blank(b"")


def test_what_magic_says() -> None:
    assert not UNIT.rolls
    assert not UNIT.cancels
    assert UNIT.weight == 1
    assert UNIT.slot_ms == 1_700_000_005_000
    assert UNIT._replace(magic=5).cancels
    assert UNIT._replace(magic=5).weight == -1
    assert UNIT._replace(magic=7).rolls
    assert not UNIT._replace(magic=7).cancels  # It is only on its way.


def test_the_last_unit_of_a_full_file_is_where_rocketmq_looks_for_it() -> None:
    for size in (4096, 4097, 104_857_600):
        position = last_unit_position(size)
        assert position % TIMER_UNIT_BYTES == 0
        assert position + TIMER_UNIT_BYTES + 16 <= size < position + 2 * TIMER_UNIT_BYTES + 16
