"""TierQueue: reads one queue of a tier through the driver, by its segments.

The reader of everything that is not a broker's own: verification, repair, restore, `tier cat`, reindex and scans. A
broker's queues are `FlatMessageFile`s; both are built on the units and records of this package.
Blocks whose checksums a segment's row knows are compared with them on the way. Any thread may read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from tiermq.consumequeue.unit import UNIT_BYTES
from tiermq.errors import CorruptRecord, SegmentMissing, TierError
from tiermq.message.stored_message import StoredMessage
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.metadata.metadata_values import Segment
from tiermq.tier.names import QueueKey
from tiermq.tier.queue.records import RecordBatch, bytes_to_read, peek_store_ms, record_of
from tiermq.tier.queue.segments import END, UNREADABLE, SegmentList, StoredSegment, end_of
from tiermq.tier.queue.units import (
    CHUNK_UNITS,
    Unit,
    chunks_of,
    first_behind,
    iter_units,
    log_range,
    runs_of_records,
    unit_at,
)

RECORDS_READ_BYTES = 4 * 1024 * 1024
PROBE_UNITS = 64
Skip = Callable[[TierError], None]
"""Gets the error of what is left out."""

DAMAGE_ADVICE = "run `tiermq tier verify`, and `tiermq tier repair --store` where a local store still has the messages"


@dataclass(frozen=True, slots=True)
class MessageRow:
    """What is at one queue offset: a message, a gap (neither), or damage (`error`)."""

    queue_offset: int
    message: StoredMessage | None = None
    error: str = ""


class TierQueue:
    """See the module."""

    def __init__(
        self, driver: TierDriver, key: QueueKey, logs: Iterable[StoredSegment], units: Iterable[StoredSegment]
    ) -> None:
        self.driver, self.key = driver, key
        self.logs: SegmentList[StoredSegment] = SegmentList(logs)
        self.units: SegmentList[StoredSegment] = SegmentList(units)

    # Bytes

    def read_records(self, log_offset: int, length: int) -> memoryview:
        """Bytes of the commit log, cut to the segment that holds the first of them. Raises UNREADABLE."""
        return self._read(self.logs, log_offset, length)

    def read_units(self, queue_offset: int, count: int) -> memoryview:
        """Whole units from `queue_offset` on, cut to the segment that holds the first of them. Raises UNREADABLE."""
        data = self._read(self.units, queue_offset * UNIT_BYTES, count * UNIT_BYTES)
        return data[: len(data) // UNIT_BYTES * UNIT_BYTES]

    def _read(self, segments: SegmentList[StoredSegment], offset: int, length: int) -> memoryview:
        segment = segments.find(offset) if length > 0 else None
        if segment is None:
            raise self._missing("bytes", offset)
        return self._read_in(segment, offset, min(length, end_of(segment) - offset))

    def _read_in(self, segment: StoredSegment, offset: int, length: int) -> memoryview:
        """Bytes of the queue's file that are in one segment."""
        position = offset - segment.key.base
        sums = segment.sums.cut(segment.size) if isinstance(segment, Segment) and segment.sums is not None else None
        if sums is None:
            return memoryview(self.driver.read(segment.key, position, length))
        low, count = sums.range_to_read(position, length)
        data = self.driver.read(segment.key, low, count)
        return sums.checked(data, low, position, length, segment.key, DAMAGE_ADVICE)

    # Units

    def unit_chunks(
        self, begin: int | None = None, end: int = END, skip: Skip | None = None, *, over_holes: bool = False
    ) -> Iterator[tuple[int, memoryview]]:
        """The units of [begin, end), many at a time, each chunk with the queue offset of its first; by default all.

        What is not there, or cannot be read, is reported to `skip` and left out; without it, the error is raised.
        `over_holes`: a range that no segment has is passed over without an error.
        """
        at = first = self.units.begin // UNIT_BYTES if begin is None else begin
        for segment in self.units:
            for offset, count in chunks_of(segment.key.base, end_of(segment), first, end):
                if offset > at and not over_holes:
                    self._failed(self._missing("units", at), skip)
                at = max(at, offset + count)
                try:
                    data = self._read_in(segment, offset * UNIT_BYTES, count * UNIT_BYTES)
                except UNREADABLE as error:
                    self._failed(error, skip)
                else:
                    yield offset, data
        if end != END and at < end and not over_holes:
            self._failed(self._missing("units", at), skip)

    def _missing(self, what: str, offset: int) -> SegmentMissing:
        return SegmentMissing(f"{self.key.logical_path}: expected a segment with the {what} at {offset}, found none")

    @staticmethod
    def _failed(error: TierError, skip: Skip | None) -> None:
        if skip is None:
            raise error
        skip(error)

    def unit(self, queue_offset: int) -> Unit | None:
        """The stored unit of a queue offset, valid or not; None when it cannot be read."""
        try:
            data = self.read_units(queue_offset, 1)
        except UNREADABLE:
            return None
        return unit_at(data, 0, queue_offset) if len(data) else None

    def first_unit(self, begin: int, end: int) -> Unit | None:
        """The first unit in [begin, end) that is not blank. Reads a few, and more and more while all are blank."""
        wanted = PROBE_UNITS
        while begin < end:
            try:
                data = self.read_units(begin, min(wanted, end - begin))
            except UNREADABLE:
                return None
            found = next((unit for unit in iter_units(data, begin) if not unit.is_blank), None)
            if found is not None or not len(data):
                return found
            begin, wanted = begin + len(data) // UNIT_BYTES, min(wanted * 4, CHUNK_UNITS)
        return None

    def leads(self, unit: Unit) -> bool:
        """Whether a unit points to its own record, by the record's head. One request."""
        segment = self.logs.find(unit.log_offset, unit.end) if unit.log_offset >= 0 else None
        if segment is None:
            return False
        try:
            peek_store_ms(self.driver, segment, unit)
        except UNREADABLE:
            return False
        return True

    # Records

    def batches(
        self,
        begin: int | None = None,
        end: int = END,
        *,
        log_from: int = 0,
        log_to: int = END,
        skip: Skip | None = None,
    ) -> Iterator[RecordBatch]:
        """The records to which the units of [begin, end) lead and that begin in [log_from, log_to) of the log.

        Each batch is of one segment. What cannot be read is reported to `skip` and left out; without it, the error is
        raised. Bytes that no unit knows are passed over.
        """
        for offset, units in self.unit_chunks(begin, end, skip):
            for first, run in runs_of_records(units, offset):
                low, high = first_behind(run, log_from), first_behind(run, log_to)
                yield from self._by_segment(first + low, run[low * UNIT_BYTES : high * UNIT_BYTES], skip)

    def _by_segment(self, first: int, run: memoryview, skip: Skip | None) -> Iterator[RecordBatch]:
        while len(run):
            unit = unit_at(run, 0, first)
            segment = self.logs.find(unit.log_offset, unit.end) if unit.log_offset >= 0 else None
            count = 1 if segment is None else max(1, first_behind(run, end_of(segment)))
            if segment is not None and log_range(run[: count * UNIT_BYTES])[1] > end_of(segment):
                count -= 1  # Its record reaches into the next segment: the next round finds out.
            units, first, run = run[: count * UNIT_BYTES], first + count, run[count * UNIT_BYTES :]
            try:
                if segment is None:
                    raise self._missing(f"record of queue offset {unit.queue_offset}", unit.log_offset)
                start, stop = log_range(units)
                data = self.read_records(start, stop - start)
            except UNREADABLE as error:
                self._failed(error, skip)
            else:
                yield RecordBatch.of_bytes(data, units, unit.queue_offset)

    def messages(self, begin: int, end: int) -> Iterator[MessageRow]:
        """What is at each queue offset of [begin, end): one row each, damage too."""
        while begin < end:
            try:
                units = self.read_units(begin, min(CHUNK_UNITS, end - begin))
            except UNREADABLE as error:
                yield MessageRow(begin, error=str(error))
                begin += 1
                continue
            yield from self._rows(units, begin)
            begin += max(1, len(units) // UNIT_BYTES)

    def _rows(self, units: memoryview, first: int) -> Iterator[MessageRow]:
        window, start, why = memoryview(b""), 0, ""
        for unit in iter_units(units, first):
            if unit.is_blank:
                yield MessageRow(unit.queue_offset)
                continue
            if not start <= unit.log_offset <= unit.log_offset + bytes_to_read(unit) <= start + len(window):
                window, start, why = self._window(unit)
            yield MessageRow(unit.queue_offset, error=why) if why else self.row(unit, window, start)

    def _window(self, unit: Unit) -> tuple[memoryview, int, str]:
        """Bytes of the log from a unit's record on, where they begin, and why there are none."""
        wanted = bytes_to_read(unit)
        for length in (max(wanted, RECORDS_READ_BYTES), wanted, unit.size):  # Damage further on does not matter.
            try:
                return self.read_records(unit.log_offset, length), unit.log_offset, ""
            except UNREADABLE as error:
                why = str(error)
        return memoryview(b""), 0, why

    def message(self, unit: Unit) -> MessageRow:
        """The message of one unit, read alone."""
        for length in (bytes_to_read(unit), unit.size):  # As in `_window`.
            try:
                return self.row(unit, self.read_records(unit.log_offset, length), unit.log_offset)
            except UNREADABLE as error:
                why = str(error)
        return MessageRow(unit.queue_offset, error=why)

    @staticmethod
    def row(unit: Unit, window: memoryview, start: int) -> MessageRow:
        try:
            return MessageRow(unit.queue_offset, record_of(unit, window, start)[1])
        except CorruptRecord as error:
            return MessageRow(unit.queue_offset, error=str(error))
