"""read_page: the status table and the limits of a page, straight on units and records in memory."""

from __future__ import annotations

import struct
from types import ModuleType
from typing import Any

import pytest

from kernel.kernel_world import KERNELS, World
from tiermq.errors import CorruptRecord
from tiermq.status import GetStatus

pytestmark = pytest.mark.parametrize("kernel", KERNELS)
BLANK = struct.pack(">qiq", 0, 2**31 - 1, 0)
PLENTY = (10**9, 10**6, 10**9, 10**6, 10**9, 16_000)


class Shelf:
    """Ten records and a queue of units that a test arranges."""

    def __init__(self, kernel: ModuleType) -> None:
        self.kernel = kernel
        self.world = World(kernel)
        self.results = [self.world.appender.put(kernel.Message("T", f"{n}".encode() * 30)) for n in range(10)]
        self.views: list[Any] = []

    def file(self, base: int, *units: bytes) -> None:
        view = self.kernel.WriteCursor(bytearray(200), base, 200)
        view.limit = 200
        for unit in units:
            assert view.append(unit)
        self.views.append(view)

    def unit(self, number: int, size: int | None = None) -> bytes:
        result = self.results[number]
        return struct.pack(">qiq", result.physical_offset, result.size if size is None else size, 0)

    def page(
        self,
        offset: int,
        count: int = 32,
        max_bytes: int = 10**6,
        low: int = 0,
        limits: tuple[int, ...] = PLENTY,
        queue_id: int = -1,
        checked_below: int = 0,
    ) -> Any:
        segments = self.kernel.Segments(self.views, 200)
        transfer = self.kernel.TransferLimits(*limits)
        transfer.checked_below = checked_below
        return self.kernel.read_page(
            segments, 20 * low, offset, self.world.segments(), count, max_bytes, transfer, queue_id
        )


@pytest.fixture
def shelf(kernel: ModuleType) -> Shelf:
    return Shelf(kernel)


def test_the_table(shelf: Shelf) -> None:
    assert shelf.page(0).status is GetStatus.NO_MESSAGE_IN_QUEUE
    shelf.file(0, *map(shelf.unit, range(5)))
    found = {offset: shelf.page(offset, low=2) for offset in (1, 2, 4, 5, 6)}
    assert {offset: (page.status.name, page.next_offset) for offset, page in found.items()} == {
        1: ("OFFSET_TOO_SMALL", 2), 2: ("FOUND", 5), 4: ("FOUND", 5), 5: ("OFFSET_OVERFLOW_ONE", 5),
        6: ("OFFSET_OVERFLOW_BADLY", 5),
    }  # fmt: skip
    assert (found[2].min_offset, found[2].max_offset, found[2].count) == (2, 5, 3)
    assert [message.body[:1] for message in found[2].messages] == [b"2", b"3", b"4"]


def test_a_missing_queue_file_leads_to_the_next(shelf: Shelf) -> None:
    shelf.file(0, *[shelf.unit(0)] * 10)
    shelf.file(400, shelf.unit(1))
    page = shelf.page(12)
    assert (page.status, page.next_offset) == (GetStatus.OFFSET_FOUND_NULL, 20)


def test_blanks_are_passed_over_and_hide_nothing(shelf: Shelf) -> None:
    shelf.file(0, shelf.unit(0), BLANK, BLANK, shelf.unit(1), BLANK)
    page = shelf.page(0)
    assert (page.status, page.count, page.next_offset) == (GetStatus.FOUND, 2, 5)
    page = shelf.page(1)
    assert (page.count, page.messages[0].body[:1]) == (1, b"1")
    page = shelf.page(4)
    assert (page.count, page.next_offset) == (0, 5)


@pytest.mark.parametrize("size", [91, 120, 124, 126, 0, -5, 50, 10_000])
def test_a_page_ends_before_a_unit_of_a_wrong_size_and_does_not_begin_with_it(shelf: Shelf, size: int) -> None:
    assert shelf.results[0].size == 122
    shelf.file(0, shelf.unit(0), shelf.unit(1, size), shelf.unit(2))
    page = shelf.page(0)
    assert (page.status, page.count, page.next_offset) == (GetStatus.FOUND, 1, 1)
    with pytest.raises(CorruptRecord, match=r"queue offset 1 .*store check"):
        shelf.page(1)
    assert shelf.page(2).count == 1


@pytest.mark.parametrize("physical", [-(2**63), -1, 1, 122 * 10, 4096, 1 << 62], ids=str)
def test_a_unit_that_leads_nowhere_is_damage_and_not_a_removed_message(shelf: Shelf, physical: int) -> None:
    """Consumers were sent on to the next file, past every message between."""
    shelf.file(0, shelf.unit(0), struct.pack(">qiq", physical, 122, 0), shelf.unit(2), shelf.unit(3))
    assert (shelf.page(0).count, shelf.page(0).next_offset) == (1, 1)
    with pytest.raises(CorruptRecord, match="queue offset 1"):
        shelf.page(1)


def test_a_unit_that_leads_to_before_its_predecessor_is_damage_also_where_the_log_is_gone(
    kernel: ModuleType, shelf: Shelf
) -> None:
    shelf.results += [shelf.world.appender.put(kernel.Message("T", bytes(300))) for _ in range(20)]
    later = [n for n, result in enumerate(shelf.results) if result.physical_offset >= 4096]
    shelf.file(0, shelf.unit(later[0]), shelf.unit(0), shelf.unit(later[1]))
    shelf.world.segments = lambda: kernel.Segments(shelf.world.tails[1:], 4096)  # type: ignore[method-assign]
    assert (shelf.page(0).count, shelf.page(0).next_offset) == (1, 1)
    with pytest.raises(CorruptRecord, match="queue offset 1"):
        shelf.page(1)


def test_a_record_of_another_place_is_not_given_out(shelf: Shelf) -> None:
    shelf.file(0, shelf.unit(0), shelf.unit(2), shelf.unit(2))
    assert (shelf.page(0).count, shelf.page(0, queue_id=0).count) == (3, 1)
    with pytest.raises(CorruptRecord, match="queue offset 1"):
        shelf.page(1, queue_id=0)
    assert shelf.page(2, queue_id=0).messages[0].queue_offset == 2
    with pytest.raises(CorruptRecord, match="queue offset 0"):
        shelf.page(0, queue_id=1)


@pytest.mark.parametrize("at", [8, 11, 87, 100, 117], ids=["crc", "its end", "length of the body", "body", "its last"])
def test_what_another_process_wrote_is_given_out_only_if_its_checksum_holds(shelf: Shelf, at: int) -> None:
    shelf.file(0, *map(shelf.unit, range(4)))
    shelf.world.buffers[0][122 * 2 + at] ^= 4
    assert (shelf.page(0).count, shelf.page(0, checked_below=122 * 2).count) == (4, 4)
    page = shelf.page(0, checked_below=122 * 3)
    assert (page.count, page.next_offset, len(page.messages)) == (2, 2, 2)
    with pytest.raises(CorruptRecord, match="queue offset 2"):
        shelf.page(2, checked_below=122 * 3)
    assert shelf.page(3, checked_below=122 * 4).count == 1


@pytest.mark.parametrize(
    ("count", "max_bytes", "limits", "expected"),
    [
        (3, 10**6, PLENTY, 3),
        (32, 122 * 2, PLENTY, 2),
        (32, 122 * 2 - 1, PLENTY, 1),
        (32, 10**6, (122 * 4, 10**6, 1, 1, 10**9, 16_000), 4),
        (32, 10**6, (10**9, 5, 1, 1, 10**9, 16_000), 5),
        (32, 10**6, (1, 1, 122 * 4, 10**6, -1, 16_000), 4),
        (32, 10**6, (1, 1, 10**9, 6, -1, 16_000), 6),
        (0, 0, (0, 0, 0, 0, 0, 0), 1),
    ],
)
def test_the_limits(shelf: Shelf, count: int, max_bytes: int, limits: tuple[int, ...], expected: int) -> None:
    shelf.file(0, *map(shelf.unit, range(10)))
    page = shelf.page(0, count, max(max_bytes, 1), limits=limits)
    assert (page.count, page.next_offset) == (expected, expected)


def test_the_memory_window_decides_record_by_record(shelf: Shelf) -> None:
    shelf.file(0, *map(shelf.unit, range(10)))
    window = 122 * 4  # The last four records count as in memory.
    assert shelf.page(0, limits=(10**9, 10**6, 10**9, 3, window, 16_000)).count == 3
    assert shelf.page(4, limits=(10**9, 10**6, 10**9, 3, window, 16_000)).count == 6
    assert shelf.page(0, limits=(10**9, 10**6, 10**9, 3, window, 16_000)).suggest_slave
    assert not shelf.page(6, limits=(10**9, 10**6, 10**9, 3, window, 16_000)).suggest_slave


def test_removed_records_are_skipped_to_the_next_log_file(kernel: ModuleType, shelf: Shelf) -> None:
    shelf.results += [shelf.world.appender.put(kernel.Message("T", bytes(300))) for _ in range(20)]
    in_second = next(n for n, result in enumerate(shelf.results) if result.physical_offset >= 4096)
    shelf.file(0, shelf.unit(0), shelf.unit(1), shelf.unit(in_second))
    full = shelf.world.segments
    shelf.world.segments = lambda: kernel.Segments(shelf.world.tails[1:], 4096)  # type: ignore[method-assign]
    page = shelf.page(0)
    assert (page.status, page.count, page.next_offset) == (GetStatus.FOUND, 1, 3)
    shelf.world.segments = lambda: kernel.Segments((), 4096)  # type: ignore[method-assign]
    page = shelf.page(0)
    assert (page.status, page.count, page.next_offset) == (GetStatus.MESSAGE_WAS_REMOVING, 0, 3)
    shelf.world.segments = full  # type: ignore[method-assign]
