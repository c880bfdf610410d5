"""Ext queues alone, and together with the consume queue that refers to them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulation.manual_clock import ManualClock
from tiermq.commitlog.dispatch_request import DispatchRequest
from tiermq.consumequeue.consume_queue import ConsumeQueue
from tiermq.consumequeue.consume_queue_ext import ConsumeQueueExt
from tiermq.consumequeue.ext_unit import ExtUnit
from tiermq.consumequeue.queue_units import AppendOutcome
from tiermq.consumequeue.unit import EXT_ADDRESS_MAX, ext_address, ext_offset, is_ext_address
from tiermq.errors import BadConfig
from tiermq.files.os_file_access import OsFileAccess

FILE_BYTES = 100  # Three units of 28 bytes, and the end.


def unit(number: int) -> ExtUnit:
    return ExtUnit(number, 1000 + number, number.to_bytes(8, "big"))


def plain(number: int) -> ExtUnit:
    """As a queue writes it; four fit into a file."""
    return ExtUnit(number, 1000 + number)


class Disk:
    """An ext queue and a consume queue over it, opened again and again."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.ext, self.queue = self._new()

    def _new(self) -> tuple[ConsumeQueueExt, ConsumeQueue]:
        ext = ConsumeQueueExt(OsFileAccess(), str(self.root / "ext"), FILE_BYTES, ManualClock())
        return ext, ConsumeQueue(OsFileAccess(), str(self.root / "cq"), "T", 0, 200, ManualClock(), ext)

    def reopen(self) -> ConsumeQueue:
        self.queue.close()
        self.ext, self.queue = self._new()
        self.queue.load()
        self.queue.recover()
        return self.queue

    def reopen_ext(self) -> ConsumeQueueExt:
        self.ext.close()
        self.ext = self._new()[0]
        self.ext.load()
        self.ext.recover()
        return self.ext

    def fill(self, count: int, first: int = 0) -> None:
        for number in range(first, first + count):
            request = DispatchRequest(number * 100, 100, number, number, 1000 + number)
            assert self.queue.append(request) is AppendOutcome.APPENDED

    def ext_units(self) -> list[ExtUnit | None]:
        units = [self.queue.unit_at(offset) for offset in range(self.queue.max_offset)]
        return [self.queue.ext_unit_of(unit.tags_code) for unit in units if unit is not None]

    def ext_files(self) -> list[int]:
        return sorted(int(path.name) for path in (self.root / "ext").glob("*"))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    disk = Disk(tmp_path)
    yield disk
    disk.queue.close()


# Alone


def test_units_are_found_by_their_addresses(disk: Disk) -> None:
    addresses = [disk.ext.put(unit(number)) for number in range(10)]
    assert addresses[:5] == [ext_address(offset) for offset in (0, 28, 56, 100, 128)]
    assert [disk.ext.get(address or 0) for address in addresses] == [unit(number) for number in range(10)]


def test_the_end_of_a_file_is_marked_as_rocketmq_marks_it(disk: Disk) -> None:
    for number in range(4):
        disk.ext.put(unit(number))
    assert (disk.root / "ext" / f"{0:020d}").read_bytes()[84:] == b"\xff\xff" + bytes(14)


@pytest.mark.parametrize(
    "address", [0, 5, -1, EXT_ADDRESS_MAX + 1, ext_address(7), ext_address(84), ext_address(10**9)]
)
def test_an_address_without_a_unit_gives_none(disk: Disk, address: int) -> None:
    for number in range(4):
        disk.ext.put(unit(number))
    assert disk.ext.get(address) is None


def test_a_unit_that_does_not_fit_is_refused_and_the_queue_goes_on(disk: Disk) -> None:
    assert disk.ext.put(ExtUnit(1, 2, bytes(32748))) is None
    assert disk.ext.put(ExtUnit(1, 2, bytes(77))) is None, "four bytes stay free in each file"
    assert disk.ext.put(ExtUnit(1, 2, bytes(76))) == ext_address(0)
    assert disk.ext.put(unit(1)) == ext_address(100)


def test_a_file_too_small_for_any_unit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="mappedFileSizeConsumeQueueExt"):
        ConsumeQueueExt(OsFileAccess(), str(tmp_path), 23, ManualClock())


@pytest.mark.parametrize("count", [0, 1, 3, 4, 10])
def test_recovery_finds_the_bounds(disk: Disk, count: int) -> None:
    addresses = [disk.ext.put(unit(number)) for number in range(count)]
    before = disk.ext.files.min_offset, disk.ext.files.max_offset
    ext = disk.reopen_ext()
    assert (ext.files.min_offset, ext.files.max_offset) == before
    assert [ext.get(address or 0) for address in addresses] == [unit(number) for number in range(count)]
    new = ext.put(unit(99))
    assert new not in addresses
    assert ext.get(new or 0) == unit(99)


def test_truncating_by_the_minimum_removes_whole_files_before_it(disk: Disk) -> None:
    addresses = [disk.ext.put(unit(number)) or 0 for number in range(10)]
    assert disk.ext.truncate_by_min(addresses[3]) == 1
    assert disk.ext.get(addresses[2]) is None
    assert disk.ext.get(addresses[3]) == unit(3)
    assert disk.ext.files.min_offset == ext_offset(addresses[3])
    assert disk.ext.truncate_by_min(5) == 0, "a plain tags code is no address"
    assert disk.ext.truncate_by_min(ext_address(10**6)) == 2
    assert disk.ext_files() == [300]


def test_truncating_by_the_maximum_keeps_that_unit_and_nothing_behind_it(disk: Disk) -> None:
    addresses = [disk.ext.put(unit(number)) or 0 for number in range(10)]
    disk.ext.truncate_by_max(addresses[4])
    for reopened in (False, True):
        ext = disk.reopen_ext() if reopened else disk.ext
        assert [ext.get(address) for address in addresses[4:6]] == [unit(4), None]
        assert ext.files.max_offset == ext_offset(addresses[5])
    disk.ext.truncate_by_max(5)
    assert disk.ext.get(addresses[4]) == unit(4)


@pytest.mark.parametrize("seed", range(40))
def test_damage_never_hangs_and_units_read_back_are_whole(disk: Disk, seed: int) -> None:
    random_ = random.Random(seed)
    addresses = [disk.ext.put(unit(number)) or 0 for number in range(10)]
    disk.ext.close()
    for path in (disk.root / "ext").iterdir():
        content = bytearray(path.read_bytes())
        for _ in range(random_.randrange(5)):
            content[random_.randrange(FILE_BYTES)] = random_.randrange(256)
        path.write_bytes(content)
    ext = disk.reopen_ext()
    for address in addresses:
        found = ext.get(address)
        assert found is None or found.size <= FILE_BYTES
    new = ext.put(unit(99))
    assert new is not None
    assert ext.get(new) == unit(99)


# Under a consume queue


def test_each_unit_of_the_queue_resolves_to_its_ext_unit(disk: Disk) -> None:
    disk.fill(25)
    assert disk.ext_units() == [plain(number) for number in range(25)]
    assert all(is_ext_address(tags_code) for _, _, tags_code, _ in disk.queue.iterate_from(0) or ())
    assert disk.queue.queue_tail.tail is None, "the fast path knows nothing of ext units"
    disk.reopen()
    assert disk.ext_units() == [plain(number) for number in range(25)]


def test_a_duplicate_leaves_no_ext_unit(disk: Disk) -> None:
    disk.fill(5)
    before = disk.ext.files.max_offset
    assert disk.queue.append(DispatchRequest(0, 100, 0, 0, 0)) is AppendOutcome.DUPLICATE
    assert disk.queue.append(DispatchRequest(9000, 100, 0, 0, 0)) is AppendOutcome.CONFLICT
    assert disk.ext.files.max_offset == before


@pytest.mark.parametrize("kept", [0, 1, 2, 3, 9, 10, 11, 24, 25])
def test_truncating_the_queue_always_truncates_its_ext_units(disk: Disk, kept: int) -> None:
    """Pitfall 21: RocketMQ returns early from most paths and keeps them."""
    disk.fill(25)
    disk.queue.truncate_dirty(kept * 100)
    assert disk.ext_units() == [plain(number) for number in range(kept)]
    last = disk.queue.last_unit()
    expected_end = 0 if last is None else ext_offset(last.tags_code) + 20
    assert disk.ext.files.max_offset == expected_end
    assert disk.ext_files() == ([] if kept == 0 else list(range(0, expected_end, FILE_BYTES)))
    disk.fill(25 - kept, first=kept)
    disk.reopen()
    assert disk.ext_units() == [plain(number) for number in range(25)]


def test_recovery_drops_ext_units_that_no_unit_refers_to(disk: Disk) -> None:
    disk.fill(5)
    for number in range(10):
        disk.ext.put(unit(number))
    disk.reopen()
    assert disk.ext.files.max_offset == 120
    assert disk.ext_units() == [plain(number) for number in range(5)]


def test_cleaning_removes_the_ext_files_of_expired_units(disk: Disk) -> None:
    disk.fill(25)
    assert disk.queue.delete_expired(1500) == 1
    assert disk.ext_files()[0] == 300
    assert disk.queue.ext_unit_of((disk.queue.unit_at(15) or (0, 0, 0))[2]) == plain(15)


@pytest.mark.parametrize("lost", ["all", "newest", "half of the newest"])
def test_an_address_that_is_out_is_never_given_to_another_message(disk: Disk, lost: str) -> None:
    disk.fill(11)
    disk.queue.close()
    files = sorted((disk.root / "ext").iterdir())
    if lost == "half of the newest":
        files[-1].write_bytes(files[-1].read_bytes()[:20] + bytes(FILE_BYTES - 20))
    for path in files if lost == "all" else files[-1:] if lost == "newest" else []:
        path.unlink()
    disk.reopen()
    disk.fill(11, first=11)
    for reopened in (False, True):
        if reopened:
            disk.reopen()
        found = disk.ext_units()
        assert len(found) == 22
        assert all(ext is None or ext == plain(number) for number, ext in enumerate(found)), "never another's"
        assert found[11:] == [plain(number) for number in range(11, 22)]


def test_destroying_the_queue_removes_its_ext_files(disk: Disk) -> None:
    disk.fill(25)
    disk.queue.destroy()
    assert list(disk.root.iterdir()) == []


def test_flushing_the_queue_flushes_its_ext_units(disk: Disk) -> None:
    disk.fill(5)
    while not disk.queue.flush(0):
        pass
    assert disk.ext.files.flushed_where == disk.ext.files.max_offset
