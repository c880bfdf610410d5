"""ReadOnlyQueue: one consume queue that another process writes.

Its end is not stored: files are created at full length, filled with zeros. Units are written in order, so a binary
search finds the first that was never written; later refreshes search from the known end, in steps that double.

Invariant: units before the end are complete. The newest one may be half-written: a unit without a tags code whose
record has a tag is not counted yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tiermq.consumequeue import batch_unit, unit
from tiermq.consumequeue.queue_units import first_not_below
from tiermq.kernel import Segments
from tiermq.message.properties import TAGS, get_property
from tiermq.message.record_head import HeadKind, read_head
from tiermq.store.readonly.mapped_run import MappedRun, ReadOnlyMap

ReadRecord = Callable[[int, int], bytes | None]
"""(physical offset, size) -> the record's bytes; None when they are missing."""

_TAGS = TAGS.encode()
_LOW_32 = 0xFFFFFFFF
BLANK_RUN_UNITS = 4_096
_BLANKS = unit.PRE_BLANK * BLANK_RUN_UNITS


class UnitPiece(NamedTuple):
    """Units in a row, the first of which is that of queue offset `first_offset`."""

    first_offset: int
    data: bytes


class ReadOnlyQueue:
    """See the module. `refresh` is cheap when nothing changed. Not safe to share between threads."""

    def __init__(self, directory: Path, topic: str, queue_id: int, *, is_batch: bool, read_record: ReadRecord) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.is_batch = is_batch
        self.unit_bytes = batch_unit.BATCH_UNIT_BYTES if is_batch else unit.UNIT_BYTES
        self._read_record = read_record
        self.run = MappedRun([directory])
        self._segments: Segments | None = None
        self.end_bytes = 0
        self.max_physical_offset = 0  # The end of the newest record that has a unit.
        self._min: tuple[int, int, int] = (-1, -1, 0)  # Log begin and first byte that it was found for, and the offset.

    def refresh(self) -> None:
        """Look for new units, and for files that came or went."""
        if self.run.refresh():
            self._segments = None
        end = self._find_end()
        if end != self.end_bytes:
            self.end_bytes = end
            self._publish_end()
            self.max_physical_offset = self._physical_end()

    def units(self) -> Segments:
        """The files of the queue, readable up to its end. A later `refresh` moves that end for the same value."""
        if self._segments is None:
            self._segments = self.run.segments()
            self._publish_end()
        return self._segments

    def forget_maps(self) -> None:
        self.run.forget_maps()
        self._segments = None

    @property
    def max_offset(self) -> int:
        if not self.is_batch:
            return self.end_bytes // unit.UNIT_BYTES
        found = self.batch_unit_at(self.end_bytes - self.unit_bytes)
        return 0 if found is None else found.end_offset

    def min_offset(self, log_min_offset: int) -> int:
        """The oldest message whose record is still there, if the log begins at `log_min_offset`."""
        first = self.run.min_offset
        if self._min[:2] != (log_min_offset, first):
            low, high = first // self.unit_bytes, self.end_bytes // self.unit_bytes
            self._min = (log_min_offset, first, self.first_from(log_min_offset, low, high) * self.unit_bytes)
        if not self.is_batch:
            return self._min[2] // unit.UNIT_BYTES
        found = self.batch_unit_at(self._min[2])
        return self.max_offset if found is None else found.base_offset

    def unit_at(self, queue_offset: int) -> unit.Unit | None:
        """The unit of a simple queue; None when there is no message at that offset."""
        found = self._unit_at(queue_offset * unit.UNIT_BYTES) if queue_offset >= 0 and not self.is_batch else None
        return found if found is not None and unit.is_real(found.physical_offset, found.size) else None

    def written_unit_at(self, queue_offset: int) -> unit.Unit | None:
        """The same for any unit in the files, also behind the end of the queue."""
        found = self.run.find(queue_offset * unit.UNIT_BYTES) if queue_offset >= 0 and not self.is_batch else None
        if found is None or found[1] + unit.UNIT_BYTES > len(found[0]):
            return None
        read = unit.Unit._make(unit.UNIT.unpack_from(*found))
        return read if unit.is_real(read.physical_offset, read.size) else None

    def batch_unit_at(self, byte_offset: int) -> batch_unit.BatchUnit | None:
        """The unit of a batch queue at a byte of its run of units."""
        if byte_offset < self.run.min_offset or byte_offset >= self.end_bytes:
            return None
        data = self.run.segments().read(byte_offset, self.unit_bytes)
        return None if data is None else batch_unit.BatchUnit._make(batch_unit.BATCH_UNIT.unpack(data)[:6])

    def written_units(self) -> Iterator[tuple[int, unit.Unit]]:
        """Queue offset and unit of every message of a simple queue, one by one, up to the first unit that was never
        written. For checks: the end is not searched for."""
        for file, opened in self.run.maps():
            for position in range(0, len(opened.view) - unit.UNIT_BYTES + 1, unit.UNIT_BYTES):
                found = unit.Unit._make(unit.UNIT.unpack_from(opened.view, position))
                if not unit.is_valid(found.physical_offset, found.size):
                    return
                if unit.is_real(found.physical_offset, found.size):
                    yield (file.base + position) // unit.UNIT_BYTES, found

    def written_batch_units(self) -> Iterator[batch_unit.BatchUnit]:
        """The same of a batch queue."""
        for _, opened in self.run.maps():
            for position in range(0, len(opened.view) - self.unit_bytes + 1, self.unit_bytes):
                found = batch_unit.BatchUnit._make(batch_unit.BATCH_UNIT.unpack_from(opened.view, position)[:6])
                if not batch_unit.is_valid(found):
                    return
                yield found

    # The end

    def _find_end(self) -> int:
        """Behind the last unit that was written, for certain."""
        for file in reversed(self.run.files):
            opened = self.run.map_of(file)
            if opened is None:
                continue
            known = min(max(0, self.end_bytes - file.base), file.size) // self.unit_bytes
            if known and not self._is_written(opened, known - 1):
                known = 0  # Recovery of the store moved its end.
            count = self._count_written(opened, known, file.size // self.unit_bytes)
            if count:
                if not self.is_batch and not self._is_whole(opened, count - 1):
                    count -= 1
                return file.base + count * self.unit_bytes
        return self.run.min_offset

    def _count_written(self, opened: ReadOnlyMap, known: int, most: int) -> int:
        low, step = known, 1
        while low < most and self._is_written(opened, min(low + step, most) - 1):
            low, step = min(low + step, most), step * 2
        high = min(low + step, most)  # The unit before `high` is not written, unless all are.
        while low < high:
            middle = (low + high) // 2
            if self._is_written(opened, middle):
                low = middle + 1
            else:
                high = middle
        return low

    def _is_written(self, opened: ReadOnlyMap, number: int) -> bool:
        at = number * self.unit_bytes
        if self.is_batch:
            found = batch_unit.BATCH_UNIT.unpack_from(opened.view, at)
            return batch_unit.is_valid(batch_unit.BatchUnit._make(found[:6]))
        physical, size, _ = unit.UNIT.unpack_from(opened.view, at)
        return unit.is_valid(physical, size)

    def _is_whole(self, opened: ReadOnlyMap, number: int) -> bool:
        physical, size, code = unit.UNIT.unpack_from(opened.view, number * self.unit_bytes)
        if code & _LOW_32 or not unit.is_real(physical, size):
            return True
        record = self._read_record(physical, size)
        if record is None:
            return True  # Of a deleted record: an old unit.
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
        while at > self.run.min_offset:
            at -= self.unit_bytes
            found = self._unit_at(at)
            if found is not None and unit.is_real(found.physical_offset, found.size):
                return found.physical_offset + found.size
        return 0

    def first_from(self, physical_offset: int, low: int, high: int) -> int:
        """The number of the first unit of [low, high) whose record is stored at or behind an offset of the log; `high`
        when there is none. Blank units and those that were deleted do not count."""

        def probe(low: int, high: int) -> tuple[int, int] | None:
            found = self.next_real(low, high)
            return None if found is None else (found[0], found[1].physical_offset)

        low = max(low, self.run.min_offset // self.unit_bytes)
        return min(high, first_not_below(low, max(low, high), physical_offset, probe))

    def next_real(self, low: int, high: int) -> tuple[int, unit.Unit] | None:
        """Number and content of the first unit in [low, high) that stands for a message. Nearly always it is `low`."""
        while low < high:
            found = self._unit_at(low * self.unit_bytes)
            if found is not None and unit.is_real(found.physical_offset, found.size):
                return low, found
            low += max(1, self._blank_run(low, high))
        return None

    def _blank_run(self, low: int, high: int) -> int:
        """How many units from `low` on are pre-blank, as far as one read of one file shows."""
        at = low * self.unit_bytes
        room = (self.run.file_size - (at - self.run.min_offset) % self.run.file_size) // self.unit_bytes
        count = min(high - low, room, BLANK_RUN_UNITS)
        if self.is_batch or count < 2:
            return 1
        data = self.units().read(at, count * unit.UNIT_BYTES)
        return count if data == _BLANKS[: count * unit.UNIT_BYTES] else 1

    def _unit_at(self, byte_offset: int) -> unit.Unit | None:
        """Physical offset, size and tags code, with which both kinds of units begin."""
        if byte_offset < self.run.min_offset or byte_offset >= self.end_bytes:
            return None
        data = self.units().read(byte_offset, unit.UNIT_BYTES)
        return None if data is None else unit.Unit._make(unit.UNIT.unpack(data))


def unit_pieces(units: Segments, from_offset: int, to_offset: int, at_once: int) -> Iterator[UnitPiece]:
    """The existing units of [from, to) of a simple queue, in chunks; missing ones are skipped."""
    for view in units.views:
        first = view.base // unit.UNIT_BYTES
        begin, end = max(from_offset, first), min(to_offset, first + view.position // unit.UNIT_BYTES)
        while begin < end:
            count = min(at_once, end - begin)
            data = view.read((begin - first) * unit.UNIT_BYTES, count * unit.UNIT_BYTES)
            if data is None:
                break
            yield UnitPiece(begin, data)
            begin += count
