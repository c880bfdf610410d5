"""WriteCursor, Segments, QueueTail: the write and read positions of mapped files, in pure Python.

The compiled twin has the same three classes with the same attributes as C fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class WriteCursor:
    """The write (or read) position of one mapped file.

    `position`: bytes below are complete; written last. `limit`: bytes below have disk blocks.
    Changed only by the thread that writes to the file; read by any thread.
    """

    __slots__ = ("base", "buffer", "limit", "position", "size")

    def __init__(self, buffer: Any, base: int, size: int) -> None:
        self.buffer: memoryview | None = memoryview(buffer)
        self.base = base
        self.size = size
        self.position = 0
        self.limit = 0

    def detach(self) -> None:
        """Drop the buffer so that its owner can unmap it. Later reads and writes do nothing."""
        self.limit = 0
        if self.buffer is not None:
            self.buffer.release()
            self.buffer = None

    def append(self, data: bytes | bytearray | memoryview) -> bool:
        """Write `data` at `position` and publish it; False, and nothing written, when it would pass `limit`."""
        end = self.position + len(data)
        if end > self.limit or self.buffer is None:
            return False
        self.buffer[self.position : end] = data
        self.position = end
        return True

    def read(self, position: int, length: int) -> bytes | None:
        """A copy of `length` bytes at `position`; None when that exceeds the published end."""
        if position < 0 or length < 0 or position + length > self.position or self.buffer is None:
            return None
        return bytes(self.buffer[position : position + length])


class Segments:
    """An immutable, ordered snapshot of the views of a queue of files of equal size."""

    __slots__ = ("file_size", "views")

    def __init__(self, views: Sequence[WriteCursor], file_size: int) -> None:
        self.views = list(views)
        self.file_size = file_size

    def find(self, offset: int) -> WriteCursor | None:
        """The view whose file covers `offset`, whether or not data has been written there yet."""
        views = self.views
        if not views or offset < views[0].base:
            return None
        at = (offset - views[0].base) // self.file_size
        if at < len(views) and views[at].base <= offset < views[at].base + self.file_size:
            return views[at]
        for view in views:  # Out of order only if a file was removed from the middle.
            if view.base <= offset < view.base + self.file_size:
                return view
        return None

    def read(self, offset: int, length: int) -> bytes | None:
        """A copy of `length` bytes at absolute `offset`, within one file; None when they do not exist."""
        view = self.find(offset)
        return None if view is None else view.read(offset - view.base, length)


class QueueTail:
    """Position of the next unit of one consume queue. Owned by the dispatching thread.

    The kernel's fast path appends a unit only when `tail` is set, the unit's offset is exactly the tail's position
    and it fits; `ConsumeQueue` handles every other case. Both keep `max_physical_offset` (the end of the newest
    record that has a unit) and `last_store_timestamp_ms` up to date.
    """

    __slots__ = ("last_store_timestamp_ms", "max_physical_offset", "queue_id", "tail", "topic")

    def __init__(self, topic: str, queue_id: int) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.tail: WriteCursor | None = None
        self.max_physical_offset = -1
        self.last_store_timestamp_ms = 0
