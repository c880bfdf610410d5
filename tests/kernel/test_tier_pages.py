"""Pages of a tier's windows, in both twins of the kernel."""

from __future__ import annotations

import gc
import struct
import weakref
from array import array
from types import ModuleType
from typing import Any

import pytest

from kernel.kernel_world import KERNELS
from tiermq.errors import CorruptRecord
from tiermq.message import decode_records, encode_record
from tiermq.status import GetStatus

UNIT = struct.Struct(">qiq")
BODIES = [b"a" * (10 * number) for number in range(8)]
FIRST, LOG_OFFSET = 500, 700

pytestmark = pytest.mark.parametrize("kernel", KERNELS)


def units_and_data() -> tuple[bytes, bytes]:
    """The bodies as messages 500 to 507 of a queue, from log offset 700 on."""
    units, data = bytearray(), bytearray()
    for number, body in enumerate(BODIES, FIRST):
        place = LOG_OFFSET + len(data)
        record = encode_record(
            topic="T", body=body, queue_id=0, queue_offset=number, physical_offset=place, born_host="10.0.0.1:1",
            store_host="10.0.0.1:2", store_timestamp_ms=1, properties={},
        )  # fmt: skip
        units += UNIT.pack(place, len(record), 0)
        data += record
    return bytes(units), bytes(data)


def pages(kernel: ModuleType) -> Any:
    units, data = units_and_data()
    return kernel.WindowPages(units, memoryview(data), LOG_OFFSET, FIRST)


def test_a_piece_of_a_window_is_whole_records_within_the_limits_but_one_in_any_case(kernel: ModuleType) -> None:
    window = pages(kernel)
    sizes = [size for _, size, _ in UNIT.iter_unpack(units_and_data()[0])]
    for index in range(8):
        for count in (1, 3, 100):
            for limit in (0, 1, sum(sizes[index : index + 2]), 1 << 20):
                data, taken, next_offset = window.take(FIRST + index, count, limit)
                most = min(count, 8 - index)
                assert 1 <= taken <= most
                assert next_offset == FIRST + index + taken
                assert [message.body for message in decode_records(data)] == BODIES[index : index + taken]
                assert taken == 1 or len(data) <= limit
                assert taken == most or len(data) + sizes[index + taken] > limit


def test_outside_of_a_window_there_is_nothing(kernel: ModuleType) -> None:
    window = pages(kernel)
    for offset, count in ((FIRST - 1, 3), (FIRST + 8, 1), (FIRST, 0)):
        assert window.take(offset, count, 100) == (b"", 0, offset)
    assert kernel.WindowPages(b"", b"", 0, 0).take(0, 1, 100) == (b"", 0, 0)


def test_units_that_do_not_fit_the_records_are_noticed(kernel: ModuleType) -> None:
    units, data = units_and_data()
    for place in (LOG_OFFSET + 1, LOG_OFFSET - 10_000):
        with pytest.raises(CorruptRecord):
            kernel.WindowPages(units, data, place, FIRST).take(FIRST, 1, 100)
    with pytest.raises(CorruptRecord):
        kernel.WindowPages(units, data[:100], LOG_OFFSET, FIRST).page(FIRST, 3, 1 << 20, 0, 9)


def test_a_page_is_a_piece_with_the_bounds_of_its_queue(kernel: ModuleType) -> None:
    window = pages(kernel)
    page = window.page(FIRST + 2, 3, 1 << 20, 7, 9_000)
    data, count, next_offset = window.take(FIRST + 2, 3, 1 << 20)
    assert (page.status, page.data, page.count, page.next_offset) == (GetStatus.FOUND, data, count, next_offset)
    assert (page.min_offset, page.max_offset, page.suggest_slave) == (7, 9_000, False)
    assert [message.body for message in page.messages] == BODIES[2:5]
    assert page.messages is page.messages
    page.min_offset = 3
    assert page.min_offset == 3
    assert repr(page) == f"TierPage(status=FOUND, count=3, next_offset={FIRST + 5})"


def test_a_page_that_would_pass_the_window_is_left_to_the_caller_with_the_next_one(kernel: ModuleType) -> None:
    window = pages(kernel)
    assert window.page(FIRST + 5, 3, 1 << 20, 0, 9).count == 3
    for offset in (FIRST - 1, FIRST + 6, FIRST + 8, FIRST + 100):
        assert window.page(offset, 3, 1 << 20, 0, 9) is None


def test_a_window_keeps_its_memory_and_pages_do_not(kernel: ModuleType) -> None:
    units, data = units_and_data()
    memory = array("B", data)
    gone = weakref.ref(memory)
    window = kernel.WindowPages(units, memoryview(memory), LOG_OFFSET, FIRST)
    del memory
    gc.collect()
    assert gone() is not None
    page = window.page(FIRST, 8, 1 << 20, 0, 9)
    del window
    gc.collect()
    assert gone() is None
    assert page.data == data


def test_what_has_no_bytes_is_no_window(kernel: ModuleType) -> None:
    units, _ = units_and_data()
    for arguments in ((None, b""), (units, None)):
        with pytest.raises(TypeError):
            kernel.WindowPages(*arguments, 0, 0)
