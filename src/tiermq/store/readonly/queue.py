"""ReadOnlyQueue: one consume queue that another process writes.

Its end is on no disk: files are made at full length, full of zeros. Units are written in order, so halving finds the
first that was never written; from one look to the next only a few more are there, and steps that double find those.

Invariant: a unit that counts is whole. The newest one may have been caught half-written; a unit without a tags code is
that only if its record has a tag, and then it does not count yet.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tiermq.consumequeue import batch_unit, unit
from tiermq.consumequeue.hole_search import first_not_below
from tiermq.kernel import Segments, Tail
from tiermq.message.properties import TAGS, get_property
from tiermq.message.record_head import HeadKind, read_head
from tiermq.store.read_only_run import ReadOnlyRun

ReadRecord = Callable[[int, int], bytes | None]
"""(physical offset, size) -> the record's bytes; None when they are not there."""

_TAGS = TAGS.encode()
_LOW_32 = 0xFFFFFFFF
BLANK_RUN_UNITS = 4_096
_BLANKS = unit.PRE_BLANK * BLANK_RUN_UNITS


class ReadOnlyQueue:
    """See the module. `refresh` is cheap when nothing changed. Not safe to share between threads."""

    def __init__(self, directory: Path, topic: str, queue_id: int, *, is_batch: bool, read_record: ReadRecord) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.is_batch = is_batch
        self.unit_bytes = batch_unit.BATCH_UNIT_BYTES if is_batch else unit.UNIT_BYTES
        self._read_record = read_record
        self._run = ReadOnlyRun([directory])
        self._segments: Segments | None = None
        self.end_bytes = 0
        self.max_physical_offset = 0  # The end of the newest record that has a unit.
        self._min: tuple[int, int, int] = (-1, -1, 0)  # Log begin and first byte that it was found for, and the offset.

    def refresh(self) -> None:
        """Look for new units, and for files that came or went."""
        if self._run.refresh():
            self._segments = None
        end = self._find_end()
        if end != self.end_bytes:
            self.end_bytes = end
            self._publish_end()
            self.max_physical_offset = self._physical_end()

    def units(self) -> Segments:
        """The files of the queue, readable up to its end. A later `refresh` moves that end for the same value."""
        if self._segments is None:
            self._segments = self._run.segments()
            self._publish_end()
        return self._segments

    def forget_maps(self) -> None:
        self._run.forget_maps()
        self._segments = None

    @property
    def max_offset(self) -> int:
        if not self.is_batch:
            return self.end_bytes // unit.UNIT_BYTES
        found = self.batch_unit_at(self.end_bytes - self.unit_bytes)
        return 0 if found is None else found.end_offset

    def min_offset(self, log_min_offset: int) -> int:
        """The oldest message whose record is still there, if the log begins at `log_min_offset`."""
        first = self._run.min_offset
        if self._min[:2] != (log_min_offset, first):
            low = self._first_unit_behind(log_min_offset)
            self._min = (log_min_offset, first, low)
        if not self.is_batch:
            return self._min[2] // unit.UNIT_BYTES
        found = self.batch_unit_at(self._min[2])
        return self.max_offset if found is None else found.base_offset

    def unit_at(self, queue_offset: int) -> unit.Unit | None:
        """The unit of a simple queue; None when there is no message at that place."""
        found = self._unit_at(queue_offset * unit.UNIT_BYTES) if queue_offset >= 0 and not self.is_batch else None
        return found if found is not None and unit.is_real(found.physical_offset, found.size) else None

    def batch_unit_at(self, byte_offset: int) -> batch_unit.BatchUnit | None:
        """The unit of a batch queue at a byte of its run of units."""
        if byte_offset < self._run.min_offset or byte_offset >= self.end_bytes:
            return None
        data = self._run.segments().read(byte_offset, self.unit_bytes)
        return None if data is None else batch_unit.BatchUnit._make(batch_unit.BATCH_UNIT.unpack(data)[:6])

    # The end

    def _find_end(self) -> int:
        """Behind the last unit that was written, for certain."""
        for file in reversed(self._run.files):
            tail = self._run.tail_of(file)
            if tail is None:
                continue
            known = min(max(0, self.end_bytes - file.base), file.size) // self.unit_bytes
            if known and not self._is_written(tail, known - 1):
                known = 0  # The store lost its end, and found another one.
            count = self._count_written(tail, known, file.size // self.unit_bytes)
            if count:
                if not self.is_batch and not self._is_whole(tail, count - 1):
                    count -= 1
                return file.base + count * self.unit_bytes
        return self._run.min_offset

    def _count_written(self, tail: Tail, known: int, most: int) -> int:
        low, step = known, 1
        while low < most and self._is_written(tail, min(low + step, most) - 1):
            low, step = min(low + step, most), step * 2
        high = min(low + step, most)  # The unit before `high` is not written, unless all are.
        while low < high:
            middle = (low + high) // 2
            if self._is_written(tail, middle):
                low = middle + 1
            else:
                high = middle
        return low

    def _is_written(self, tail: Tail, number: int) -> bool:
        data = _peek(tail, number * self.unit_bytes, self.unit_bytes)
        if self.is_batch:
            return batch_unit.is_valid(batch_unit.BatchUnit._make(batch_unit.BATCH_UNIT.unpack(data)[:6]))
        physical, size, _ = unit.UNIT.unpack(data)
        return unit.is_valid(physical, size)

    def _is_whole(self, tail: Tail, number: int) -> bool:
        physical, size, code = unit.UNIT.unpack(_peek(tail, number * self.unit_bytes, self.unit_bytes))
        if code & _LOW_32 or not unit.is_real(physical, size):
            return True
        record = self._read_record(physical, size)
        if record is None:
            return True  # Of a record that went: an old unit.
        head = read_head(record, 0, len(record))
        if head.kind is not HeadKind.OK:
            return False
        properties = record[head.properties_position : head.properties_position + head.properties_length]
        return not get_property(properties, _TAGS)

    def _publish_end(self) -> None:
        """Let the kernel read up to the end and no further."""
        if self._segments is not None:
            for view in self._segments.views:
                view.position = min(max(0, self.end_bytes - view.base), view.size)

    def _physical_end(self) -> int:
        at = self.end_bytes
        while at > self._run.min_offset:
            at -= self.unit_bytes
            found = self._unit_at(at)
            if found is not None and unit.is_real(found.physical_offset, found.size):
                return found.physical_offset + found.size
        return 0

    def _first_unit_behind(self, log_min_offset: int) -> int:
        """The byte offset of the first unit whose record lies at or behind that offset of the log."""

        def probe(low: int, high: int) -> tuple[int, int] | None:
            found = self.next_real(low, high)
            return None if found is None else (found[0], found[1].physical_offset)

        low, high = self._run.min_offset // self.unit_bytes, self.end_bytes // self.unit_bytes
        return first_not_below(low, high, log_min_offset, probe) * self.unit_bytes

    def next_real(self, low: int, high: int) -> tuple[int, unit.Unit] | None:
        """Number and content of the first unit in [low, high) that stands for a message. Nearly always it is `low`."""
        while low < high:
            found = self._unit_at(low * self.unit_bytes)
            if found is not None and unit.is_real(found.physical_offset, found.size):
                return low, found
            low += max(1, self._blank_run(low, high))
        return None

    def _blank_run(self, low: int, high: int) -> int:
        """How many units from `low` on are pre-blank, as far as one read of one file tells."""
        at = low * self.unit_bytes
        room = (self._run.file_size - (at - self._run.min_offset) % self._run.file_size) // self.unit_bytes
        count = min(high - low, room, BLANK_RUN_UNITS)
        if self.is_batch or count < 2:
            return 1
        data = self.units().read(at, count * unit.UNIT_BYTES)
        return count if data == _BLANKS[: count * unit.UNIT_BYTES] else 1

    def _unit_at(self, byte_offset: int) -> unit.Unit | None:
        """Place, size and tags code, which both kinds of units begin with."""
        if byte_offset < self._run.min_offset or byte_offset >= self.end_bytes:
            return None
        data = self.units().read(byte_offset, unit.UNIT_BYTES)
        return None if data is None else unit.Unit._make(unit.UNIT.unpack(data))


def _peek(tail: Tail, position: int, length: int) -> bytes:
    """Bytes of a file, also of those behind the end that was published for the kernel."""
    published, tail.position = tail.position, tail.size
    try:
        data = tail.read(position, length)
    finally:
        tail.position = published
    assert data is not None, "a file has all bytes of its size"
    return data
