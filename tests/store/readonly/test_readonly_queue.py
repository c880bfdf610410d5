"""The end and the beginning of a queue that another process writes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiermq.consumequeue import batch_unit, unit
from tiermq.message.record import encode_record
from tiermq.store.readonly.queue import ReadOnlyQueue

UNITS = 8
FILE_BYTES = UNITS * unit.UNIT_BYTES


class Directory:
    """A queue's files, filled as a store fills them."""

    def __init__(self, root: Path, first_unit: int = 0) -> None:
        self.root = root / "q"
        self.root.mkdir(parents=True)
        self.next_unit = first_unit
        self.physical = 0

    def append(self, count: int = 1, *, blank: bool = False, code: int = 7) -> None:
        for _ in range(count):
            data = unit.PRE_BLANK if blank else unit.encode(self.physical, 100, code)
            self.physical += 0 if blank else 100
            self.put(self.next_unit, data)
            self.next_unit += 1

    def put(self, number: int, data: bytes) -> None:
        base = number // UNITS * FILE_BYTES
        path = self.root / f"{base:020d}"
        if not path.exists():
            path.write_bytes(bytes(FILE_BYTES))
        with path.open("r+b") as stream:
            stream.seek(number * unit.UNIT_BYTES - base)
            stream.write(data)


def opened(directory: Directory, records: dict[int, bytes] | None = None) -> ReadOnlyQueue:
    found = records or {}
    queue = ReadOnlyQueue(directory.root, "T", 0, is_batch=False, read_record=lambda at, _size: found.get(at))
    queue.refresh()
    return queue


@given(counts=st.lists(st.integers(0, 30), min_size=1, max_size=6), first=st.integers(0, 20))
def test_the_end_is_found_at_every_look_however_much_came_between(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int], first: int
) -> None:
    directory = Directory(tmp_path_factory.mktemp("q"), 0)
    directory.append(first, blank=True)
    queue = opened(directory)
    for count in counts:
        directory.append(count)
        queue.refresh()
        assert queue.max_offset == directory.next_unit
        assert queue.max_physical_offset == directory.physical
        assert queue.units().read(directory.next_unit * 20, 20) is None
        if directory.next_unit > first:
            assert queue.min_offset(0) == first
            assert queue.unit_at(directory.next_unit - 1) == unit.Unit(directory.physical - 100, 100, 7)


@given(real=st.lists(st.booleans(), min_size=1, max_size=40), log_min=st.integers(0, 4_000))
def test_the_beginning_is_the_first_message_whose_record_is_there_also_behind_holes(
    tmp_path_factory: pytest.TempPathFactory, real: list[bool], log_min: int
) -> None:
    directory = Directory(tmp_path_factory.mktemp("q"))
    places = []
    for number, is_real in enumerate(real):
        if is_real:
            places.append((number, directory.physical))
        directory.append(blank=not is_real)
    queue = opened(directory)
    expected = next((number for number, place in places if place >= log_min), len(real))
    assert queue.min_offset(log_min) == expected
    found = queue.next_real(0, len(real))
    assert (None if found is None else found[0]) == next((number for number, _ in places), None)


def test_a_unit_that_was_caught_without_its_tags_code_does_not_count_yet(tmp_path: Path) -> None:
    tagged = encode_record(topic="T", body=b"x", physical_offset=100, properties={"TAGS": "A"})
    plain = encode_record(topic="T", body=b"x", physical_offset=100)
    directory = Directory(tmp_path)
    directory.append()
    directory.append(code=0)
    assert opened(directory, {100: tagged}).max_offset == 1
    assert opened(directory, {100: plain}).max_offset == 2
    assert opened(directory, {100: b"\0" * 100}).max_offset == 1
    assert opened(directory).max_offset == 2  # Its record is gone: an old unit.


def test_an_end_that_the_store_lost_is_found_again(tmp_path: Path) -> None:
    directory = Directory(tmp_path)
    directory.append(7)
    queue = opened(directory)
    for number in (4, 5, 6):
        directory.put(number, bytes(20))
    queue.refresh()
    assert queue.max_offset == 4


def test_the_kernel_reads_up_to_the_end_of_the_last_look_and_no_further(tmp_path: Path) -> None:
    directory = Directory(tmp_path)
    directory.append(3)
    queue = opened(directory)
    units = queue.units()
    directory.append(2)
    assert units.read(3 * 20, 20) is None
    queue.refresh()
    assert units.read(3 * 20, 20) is not None
    queue.forget_maps()
    assert queue.units().read(4 * 20, 20) is not None
    assert queue.units().read(5 * 20, 20) is None


def test_a_batch_queue_counts_the_messages_of_its_batches(tmp_path: Path) -> None:
    folder = tmp_path / "b"
    folder.mkdir()
    units = [batch_unit.BatchUnit(n * 500, 500, 0, 1_000 + n, n * 10, 10) for n in range(3)]
    data = b"".join(batch_unit.encode(each) for each in units)
    (folder / f"{0:020d}").write_bytes(data + bytes(46 * 5))
    queue = ReadOnlyQueue(folder, "B", 0, is_batch=True, read_record=lambda _at, _size: None)
    queue.refresh()
    assert (queue.min_offset(0), queue.max_offset) == (0, 30)
    assert queue.min_offset(600) == 20
    assert queue.batch_unit_at(46) == units[1]
    assert queue.unit_at(0) is None


def test_what_is_written_behind_the_end_is_shown_to_tools_alone(tmp_path: Path) -> None:
    directory = Directory(tmp_path)
    directory.append(2, blank=True)
    directory.append()
    directory.put(7, unit.encode(900, 100, 7))  # Left behind by a truncation.
    queue = opened(directory)
    assert queue.max_offset == 3
    assert queue.unit_at(7) is None
    assert queue.written_unit_at(7) == unit.Unit(900, 100, 7)
    assert [queue.written_unit_at(at) for at in (-1, 0, 3, 100)] == [None] * 4
    assert [offset for offset, _ in queue.written_units()] == [2]


def test_the_first_unit_from_an_offset_of_the_log_is_found_within_bounds(tmp_path: Path) -> None:
    directory = Directory(tmp_path)
    directory.append(3)
    directory.append(4, blank=True)
    directory.append(3)
    queue = opened(directory)
    assert [queue.first_from(place, 0, 10) for place in (0, 1, 300, 301, 500, 501)] == [0, 1, 7, 8, 9, 10]
    assert queue.first_from(0, 2, 10) == 2
    assert queue.first_from(400, 0, 5) == 5
