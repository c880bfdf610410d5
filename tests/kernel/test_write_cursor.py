"""WriteCursor, Segments and QueueTail: what may be written and read, and what a detached end still allows."""

from __future__ import annotations

from types import ModuleType

import pytest

from kernel.kernel_world import KERNELS

pytestmark = pytest.mark.parametrize("kernel", KERNELS)


def test_nothing_is_written_at_or_beyond_the_limit(kernel: ModuleType) -> None:
    buffer = bytearray(16)
    tail = kernel.WriteCursor(buffer, 100, 16)
    assert not tail.append(b"x")
    tail.limit = 10
    assert tail.append(b"12345678")
    assert not tail.append(b"abc")
    assert (tail.position, bytes(buffer)) == (8, b"12345678" + bytes(8))
    assert tail.append(bytearray(b"ab"))
    assert tail.append(memoryview(b""))
    assert (tail.position, tail.base, tail.size, tail.limit) == (10, 100, 16, 10)


def test_only_published_bytes_are_read(kernel: ModuleType) -> None:
    tail = kernel.WriteCursor(bytearray(b"0123456789"), 0, 10)
    assert tail.read(0, 1) is None
    tail.position = 5
    assert tail.read(0, 5) == b"01234"
    assert tail.read(5, 0) == b""
    assert [tail.read(*place) for place in ((0, 6), (-1, 2), (2, -1), (6, 0))] == [None] * 4


def test_a_detached_tail_allows_nothing_and_lets_its_buffer_go(kernel: ModuleType) -> None:
    buffer = bytearray(10)
    tail = kernel.WriteCursor(buffer, 0, 10)
    tail.limit, tail.position = 10, 5
    tail.detach()
    assert (tail.limit, tail.append(b"x"), tail.read(0, 1)) == (0, False, None)
    tail.detach()
    buffer.extend(b"can grow again")


def test_segments_find_and_read_by_absolute_offset(kernel: ModuleType) -> None:
    views = [kernel.WriteCursor(bytearray(bytes([65 + number]) * 10), 100 + 10 * number, 10) for number in range(3)]
    for view in views:
        view.position = 10
    segments = kernel.Segments(views, 10)
    assert [segments.find(offset) for offset in (99, 100, 109, 110, 129, 130)] == [
        None, views[0], views[0], views[1], views[2], None,
    ]  # fmt: skip
    assert (segments.read(105, 5), segments.read(105, 6), segments.read(90, 1)) == (b"AAAAA", None, None)
    assert (segments.file_size, list(segments.views)) == (10, views)
    assert kernel.Segments((), 10).find(0) is None
    assert kernel.Segments((), 10).read(0, 1) is None


def test_segments_find_files_also_around_one_that_is_missing(kernel: ModuleType) -> None:
    views = [kernel.WriteCursor(bytearray(10), base, 10) for base in (0, 20, 30)]
    segments = kernel.Segments(views, 10)
    assert [segments.find(offset) for offset in (5, 15, 25, 35)] == [views[0], None, views[1], views[2]]


def test_a_queue_tail_knows_its_queue_and_begins_with_nothing(kernel: ModuleType) -> None:
    queue = kernel.QueueTail("T", 7)
    assert (queue.topic, queue.queue_id, queue.tail) == ("T", 7, None)
    assert (queue.max_physical_offset, queue.last_store_timestamp_ms) == (-1, 0)
    tail = kernel.WriteCursor(bytearray(20), 0, 20)
    queue.tail = tail
    queue.max_physical_offset, queue.last_store_timestamp_ms = 5, 6
    assert (queue.tail, queue.max_physical_offset, queue.last_store_timestamp_ms) == (tail, 5, 6)
    queue.tail = None
    assert queue.tail is None
