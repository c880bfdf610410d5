"""The walk over the log: where it begins, where it ends, and whether what lies behind the end is damage."""

from __future__ import annotations

import pytest

from simulation.manual_clock import ManualClock
from simulation.simulated_files import SimulatedFileAccess
from tiermq.commitlog.recovery import LogEnd, crc_mode_of, first_record, start_file, verify_log
from tiermq.files.mapped_file import MappedFile
from tiermq.message.record import encode_record

SIZE = 1024
BLANK_MAGIC = 0xCBD43194


def file_of(number: int, *records: bytes, blank: bool = False) -> MappedFile:
    """A file of the log that holds `records`, ended by a blank record if asked for."""
    access = SimulatedFileAccess()
    base = number * SIZE
    region = access.create(f"/log/{base:020d}", SIZE)
    region.reserve(0, SIZE)
    data = b"".join(records)
    region.buffer[: len(data)] = data  # type: ignore[index]
    if blank:
        end = (SIZE - len(data)).to_bytes(4, "big") + BLANK_MAGIC.to_bytes(4, "big")
        region.buffer[len(data) : len(data) + 8] = end  # type: ignore[index]
    return MappedFile.load(access, f"/log/{base:020d}", SIZE, clock=ManualClock())


def record(physical_offset: int, store_ms: int = 1, body: bytes = b"x" * 100) -> bytes:
    return encode_record(topic="T", body=body, physical_offset=physical_offset, store_timestamp_ms=store_ms)


LENGTH = len(record(0))


def test_a_log_that_simply_stops_is_not_damaged() -> None:
    file = file_of(0, record(0), record(LENGTH))
    assert verify_log([file]) == (LogEnd(2 * LENGTH, damaged=False), 2)


def test_an_empty_log_ends_where_it_begins() -> None:
    assert verify_log([file_of(3)]) == (LogEnd(3 * SIZE, damaged=False), 0)


def test_a_blank_record_leads_to_the_next_file() -> None:
    files = [file_of(0, record(0), blank=True), file_of(1, record(SIZE))]
    assert verify_log(files) == (LogEnd(SIZE + LENGTH, damaged=False), 2)


def test_trap_52_a_blank_record_at_the_very_end_is_not_part_of_the_log() -> None:
    assert verify_log([file_of(0, record(0), blank=True)]) == (LogEnd(LENGTH, damaged=False), 1)


def test_a_blank_record_before_an_empty_file_is_part_of_the_log() -> None:
    files = [file_of(0, record(0), blank=True), file_of(1)]
    assert verify_log(files) == (LogEnd(SIZE, damaged=False), 1)


@pytest.mark.parametrize("at", [0, 4, 20, 28, 84, 88, LENGTH - 1])
def test_a_record_with_a_flipped_byte_in_its_frame_or_body_ends_the_log_as_damage(at: int) -> None:
    bad = bytearray(record(LENGTH))
    bad[at] ^= 0xFF
    end, count = verify_log([file_of(0, record(0), bytes(bad))])
    if at == 20:
        assert count == 2  # The queue offset is covered by no checksum.
    else:
        assert (end, count) == (LogEnd(LENGTH, damaged=True), 1)


def test_trap_02_a_record_that_is_elsewhere_than_it_reports_ends_the_log() -> None:
    assert verify_log([file_of(0, record(0), record(LENGTH + 1))]) == (LogEnd(LENGTH, damaged=True), 1)


def test_a_walk_can_begin_at_a_later_file() -> None:
    files = [file_of(0, b"garbage"), file_of(1, record(SIZE))]
    assert verify_log(files, 1) == (LogEnd(SIZE + LENGTH, damaged=False), 1)
    assert verify_log(files, 0) == (LogEnd(0, damaged=True), 0)


def test_damage_ends_the_walk_before_later_files() -> None:
    files = [file_of(0, record(0), b"garbage"), file_of(1, record(SIZE))]
    assert verify_log(files) == (LogEnd(LENGTH, damaged=True), 1)


def test_a_torn_record_that_no_checksum_sees_ends_the_log_as_damage() -> None:
    file = file_of(0, record(0), record(LENGTH))
    asked: list[int] = []

    def find_torn(_file: MappedFile, start: int) -> int:
        asked.append(start)
        return start

    assert verify_log([file], find_torn=find_torn) == (LogEnd(2 * LENGTH, damaged=True), 2)
    assert asked == [2 * LENGTH]  # What lies before the first zero page cannot be torn, and is not asked for.


@pytest.mark.parametrize(
    ("check", "force", "mode"), [(True, False, 1), (False, False, 0), (True, True, 2), (False, True, 2)]
)
def test_which_checksum_is_verified(check: bool, force: bool, mode: int) -> None:
    assert crc_mode_of(check, force) == mode


def test_the_first_record_of_a_file_reports_where_and_when() -> None:
    assert first_record(file_of(2, record(2 * SIZE, 77))) == (2 * SIZE, 77)
    assert first_record(file_of(2)) is None
    assert first_record(file_of(2, b"garbage")) is None
    assert first_record(file_of(2, record(2 * SIZE, 0))) is None
    assert first_record(file_of(2, blank=True)) is None


def test_the_walk_begins_at_the_newest_file_that_is_vouched_for_and_else_at_the_first() -> None:
    files = [file_of(number, record(number * SIZE, 10 * number + 1), blank=True) for number in range(5)]
    assert start_file(files, lambda physical, store_ms: store_ms <= 25) == 2
    assert start_file(files, lambda physical, store_ms: physical <= 4 * SIZE) == 4
    assert start_file(files, lambda physical, store_ms: False) == 0
    assert start_file(files[:1], lambda physical, store_ms: True) == 0
