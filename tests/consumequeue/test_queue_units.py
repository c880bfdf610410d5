"""Reading units across files, while files come and go."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from simulation.manual_clock import ManualClock
from tiermq.consumequeue.queue_units import (
    Boundary,
    QueueUnits,
    readable,
)
from tiermq.consumequeue.unit import PRE_BLANK, UNIT
from tiermq.files.mapped_file_queue import MappedFileQueue
from tiermq.files.os_file_access import OsFileAccess


@pytest.fixture
def files(tmp_path: Path) -> Iterator[MappedFileQueue]:
    """Three files of five units; those at 3, 5, 6, 7, 8, 9 and 10 are blank, 13 and 14 are not written."""
    files = MappedFileQueue(OsFileAccess(), str(tmp_path), 100, clock=ManualClock())
    for number in range(13):
        is_blank = number in (3, 5, 6, 7, 8, 9, 10)
        files.last_or_create().append(PRE_BLANK if is_blank else UNIT.pack(number * 100, 100, number))
    yield files
    files.close()


def test_a_unit_is_real_or_none(files: MappedFileQueue) -> None:
    units = QueueUnits(files)
    assert units.at(4) == (400, 100, 4)
    assert [units.at(offset) for offset in (-1, 3, 7, 13, 99)] == [None] * 5


def test_the_rest_of_a_file_is_given_up_to_what_is_written(files: MappedFileQueue) -> None:
    units = QueueUnits(files)
    assert len(units.from_offset(2) or b"") == 60
    assert len(units.from_offset(10) or b"") == 60
    assert units.from_offset(13) is None
    assert units.from_offset(15) is None


@pytest.mark.parametrize(
    ("low", "high", "expected"), [(0, 13, 0), (3, 13, 4), (5, 13, 11), (5, 11, None), (5, 12, 11), (13, 15, None)]
)
def test_the_next_real_unit_is_found_across_blank_files(
    files: MappedFileQueue, low: int, high: int, expected: int | None
) -> None:
    units = QueueUnits(files)
    found = units.next_real(low, high)
    assert (None if found is None else found[0]) == expected
    assert units.probe_physical(low, high) == (None if expected is None else (expected, expected * 100))


def test_units_are_walked_backwards(files: MappedFileQueue) -> None:
    units = QueueUnits(files)
    assert [unit.tags_code for unit in units.backwards()] == [12, 11, 4, 2, 1, 0]


def test_the_next_file_begins_at_a_whole_number_of_files(files: MappedFileQueue) -> None:
    units = QueueUnits(files)
    assert [units.roll_next_file(offset) for offset in (0, 4, 5, 14)] == [5, 5, 10, 15]


def test_bytes_stay_readable_after_their_file_is_gone_and_a_gone_file_has_none(files: MappedFileQueue) -> None:
    first = files.first()
    assert first is not None
    data = readable(first, 20)
    assert first.destroy(0), "a view does not keep the name of a file"
    assert UNIT.unpack_from(data) == (100, 100, 1)
    assert len(readable(first)) == 0


def test_a_boundary_is_chosen_by_its_name_and_no_other_name_is_taken() -> None:
    assert Boundary("lower") is Boundary.LOWER
    assert Boundary("upper") is Boundary.UPPER
    with pytest.raises(ValueError, match="middle"):
        Boundary("middle")
